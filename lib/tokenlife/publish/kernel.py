"""A kernel of this very Python, deaf to the user's own Jupyter settings, that never outlives us.

Papermill runs the cells. Around it stand three things it does not give: the name ``python3`` means
this interpreter even where the user has other kernels; an interrupt or a polite kill becomes an
exception, so that every clean-up runs; and the kernel's process group is killed in any case.
"""

import contextlib
import json
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from papermill.clientwrap import PapermillNotebookClient
from papermill.engines import Engine, papermill_engines
from papermill.log import logger

ENGINE = "tokenlife"


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Turn SIGTERM and SIGHUP into ``KeyboardInterrupt``, as SIGINT is already."""

    def stop(number, _frame):
        # A second signal must not break the clean-up that the first one started.
        for each in caught:
            signal.signal(each, signal.SIG_IGN)
        raise KeyboardInterrupt(signal.Signals(number).name)

    caught = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]
    before = {each: signal.signal(each, stop) for each in caught}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


@contextlib.contextmanager
def environment(folder: Path) -> Iterator[None]:
    """Point Jupyter and IPython at ``folder`` for a while, and say that the book is being built."""
    spec = folder / "kernels" / "python3"
    spec.mkdir(parents=True)
    argv = [
        sys.executable,
        "-m",
        "ipykernel_launcher",
        "--log-level=ERROR",
        "-f",
        "{connection_file}",
    ]
    names = {"argv": argv, "display_name": "Python 3", "language": "python"}
    (spec / "kernel.json").write_text(json.dumps(names))
    ours = {
        "JUPYTER_PATH": str(folder),
        "JUPYTER_RUNTIME_DIR": str(folder / "runtime"),
        "JUPYTER_CONFIG_DIR": str(folder / "config"),
        "IPYTHONDIR": str(folder / "ipython"),
        "TMPDIR": str(folder / "tmp"),
        "PYDEVD_DISABLE_FILE_VALIDATION": "1",
        "PYTHONHASHSEED": "0",
        "TOKENLIFE_BOOK": "1",
    }
    (folder / "tmp").mkdir()
    before = {name: os.environ.get(name) for name in ours}
    os.environ.update(ours)
    tempfile.tempdir = None  # or Python would go on with the folder it found first
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        tempfile.tempdir = None


class _Engine(Engine):
    @classmethod
    def execute_managed_notebook(
        cls, nb_man, kernel_name: str, report: Callable[[int], None], **_
    ) -> None:
        """Run the cells, calling ``report(index)`` before each one."""
        begin = nb_man.cell_start

        def cell_start(cell, cell_index=None, **kwargs):
            report(cell_index)
            return begin(cell, cell_index, **kwargs)

        nb_man.cell_start = cell_start
        client = PapermillNotebookClient(
            nb_man,
            kernel_name=kernel_name,
            timeout=None,
            startup_timeout=120,
            shutdown_kernel="immediate",
            coalesce_streams=True,
            log=logger,
        )
        manager = client.create_kernel_manager()
        started = manager.start_kernel
        pids = []

        async def start_kernel(**kwargs):
            await started(**kwargs)
            pids.append(manager.provisioner.pid)

        manager.start_kernel = start_kernel
        try:
            client.execute()
        finally:
            for pid in pids:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(pid, signal.SIGKILL)


papermill_engines.register(ENGINE, _Engine)
