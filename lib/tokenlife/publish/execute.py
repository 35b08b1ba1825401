"""Run a chapter from beginning to end and keep its outputs, or keep nothing.

The notebook runs in a temporary folder under ``_build``; only a whole, clean, normalised notebook
is moved to ``_build/executed``. Two runs of one state differ in nothing but what was measured.
"""

import contextlib
import datetime
import json
import os
import re
import shutil
import tempfile
import time
import warnings
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

import jupytext
import nbformat
import papermill
from jupyter_client.kernelspec import NoSuchKernel
from nbclient.exceptions import DeadKernelError
from papermill.exceptions import PapermillExecutionError

from tokenlife import provenance
from tokenlife.publish import PublishError
from tokenlife.publish.fingerprint import fingerprint, shared_hash
from tokenlife.publish.kernel import ENGINE, environment
from tokenlife.publish.layout import Book, Chapter
from tokenlife.publish.progress import Progress

ANSI = re.compile(r"\x1b\[[0-9;]*m")
TRACEBACK_LINES = 12
PACKAGES = ("altair", "numpy", "pandas", "tokenizers", "tiktoken")


def is_current(chapter: Chapter, mark: str) -> bool:
    """Tell whether the chapter's kept outputs come from its present state."""
    try:
        record = json.loads(chapter.record.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return record.get("fingerprint") == mark and chapter.executed.is_file()


def due(chapters: list[Chapter], marks: dict[str, str]) -> list[Chapter]:
    """Return the chapters that changed since their last run; ``marks`` are their fingerprints."""
    return [chapter for chapter in chapters if not is_current(chapter, marks[chapter.slug])]


def execute_all(book: Book, chapters: list[Chapter], marks: dict[str, str]) -> dict[str, float]:
    """Run chapters one after the other and return the seconds of each.

    Raises
    ------
    PublishError
        If a cell fails; the chapters before it keep their outputs.
    """
    _sweep(book.build)
    seconds = {}
    with Progress(len(chapters)) as progress:
        for chapter in chapters:
            seconds[chapter.slug] = execute(book, chapter, marks[chapter.slug], progress)
    return seconds


def fingerprints(book: Book, chapters: list[Chapter]) -> dict[str, str]:
    """Return the fingerprint of each chapter, by slug."""
    shared = shared_hash(book)
    return {chapter.slug: fingerprint(chapter, shared) for chapter in chapters}


def execute(book: Book, chapter: Chapter, mark: str, progress: Progress) -> float:
    """Run one chapter and return the seconds it took.

    Raises
    ------
    PublishError
        If a cell raises, warns on standard error, or its kernel dies.
    """
    code = _code_cells(jupytext.read(chapter.source))
    progress.start(chapter.slug, len(code))

    def report(index: int) -> None:
        if index in code:
            progress.cell(code.index(index) + 1)

    with scratch(book.build) as folder:
        out = folder / "executed.ipynb"
        started = time.monotonic()
        done = ran(chapter, folder, report)
        seconds = time.monotonic() - started
        nbformat.write(normalise(done), out)
        record = folder / "record.json"
        record.write_text(json.dumps(_record(mark, seconds, len(code)), indent=2) + "\n")
        chapter.executed.parent.mkdir(exist_ok=True)
        # The record goes first: a kill between the two moves then only costs another run.
        chapter.record.unlink(missing_ok=True)
        out.replace(chapter.executed)
        record.replace(chapter.record)
    progress.done(seconds)
    return seconds


def _sweep(build: Path) -> None:
    """Remove what a killed machine or process has left: folders whose process is gone."""
    for folder in build.glob("run-*-*"):
        try:
            os.kill(int(folder.name.split("-")[1]), 0)
        except (ProcessLookupError, ValueError):
            shutil.rmtree(folder, ignore_errors=True)
        except PermissionError:
            continue


@contextlib.contextmanager
def scratch(build: Path):
    """Lend a temporary folder on the build's own file system, so that a move is atomic."""
    build.mkdir(exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix=f"run-{os.getpid()}-", dir=build))
    try:
        yield folder
    finally:
        # A process that the kernel left behind may still write there: try once more.
        shutil.rmtree(folder, ignore_errors=True)
        if folder.exists():
            time.sleep(0.5)
            shutil.rmtree(folder, ignore_errors=True)


def ran(
    chapter: Chapter,
    folder: Path,
    report: Callable[[int], None],
    parameters: dict | None = None,
) -> nbformat.NotebookNode:
    """Run a chapter in a folder; return the notebook with its outputs.

    Parameters
    ----------
    chapter
        Which.
    folder
        For what the run writes.
    report
        Called with the index of each cell before it runs.
    parameters
        What takes the place of the values in the cell that is tagged so.

    Raises
    ------
    PublishError
        If a cell raises, warns on standard error, or its kernel dies.
    """
    begun, out = folder / "begun.ipynb", folder / "done.ipynb"
    notebook = jupytext.read(chapter.source)
    nbformat.write(notebook, begun)
    with environment(folder / "jupyter"):
        _run(chapter, begun, out, _code_cells(notebook), report, parameters)
    done = nbformat.read(out, as_version=4)
    _refuse_complaints(chapter, done)
    return done


def _code_cells(notebook: nbformat.NotebookNode) -> list[int]:
    return [index for index, cell in enumerate(notebook.cells) if cell.cell_type == "code"]


def _run(
    chapter: Chapter, begun: Path, out: Path, code: list[int], report, parameters: dict | None
) -> None:
    where = chapter.source.relative_to(chapter.root)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # papermill's own, about event loops and missing ids
            papermill.execute_notebook(
                begun,
                out,
                parameters=parameters,
                engine_name=ENGINE,
                kernel_name="python3",
                progress_bar=False,
                request_save_on_cell_execute=False,
                cwd=chapter.source.parent,
                report=report,
            )
    except PapermillExecutionError as error:
        # Papermill puts a cell with a banner at the top: count the code cells up to the failed one.
        lines = ANSI.sub("", "\n".join(error.traceback)).splitlines()[-TRACEBACK_LINES:]
        raise PublishError(
            f"{where}, code cell {_number(error, code, parameters)} of {len(code)} failed: "
            f"{error.ename}: {ANSI.sub('', error.evalue)}\n" + "\n".join(f"    {x}" for x in lines)
        ) from None
    except DeadKernelError:
        raise PublishError(f"{where}: the kernel died, perhaps for want of memory") from None
    except NoSuchKernel as error:
        raise PublishError(f"{where}: {error}; run 'make' to install the kernel") from None


def _number(error: PapermillExecutionError, code: list[int], parameters: dict | None) -> int:
    return sum(index <= error.cell_index - bool(parameters) for index in code)


def _refuse_complaints(chapter: Chapter, notebook: nbformat.NotebookNode) -> None:
    where = chapter.source.relative_to(chapter.root)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    for number, cell in enumerate(code, 1):
        for output in cell.outputs:
            if output.output_type == "error":
                raise PublishError(f"{where}, code cell {number}: {output.ename}: {output.evalue}")
            if output.output_type == "stream" and output.name == "stderr":
                first = output.text.strip().splitlines()[-1] if output.text.strip() else ""
                raise PublishError(
                    f"{where}, code cell {number} wrote to standard error, which a page must not "
                    f"show: {first}"
                )


def normalise(notebook: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """Take away what differs between two equal runs: times, random ids, papermill's notes."""
    notebook.metadata.pop("papermill", None)
    for number, cell in enumerate(notebook.cells):
        cell.id = f"cell-{number}"
        tags = cell.metadata.get("tags")
        cell.metadata = nbformat.from_dict({"tags": tags} if tags else {})
    return notebook


def _record(mark: str, seconds: float, cells: int) -> dict:
    now = datetime.datetime.now(datetime.UTC).replace(microsecond=0)
    return {
        "fingerprint": mark,
        "seconds": round(seconds, 2),
        "code_cells": cells,
        "date": now.isoformat(),
        "machine": provenance.machine(),
        "versions": {name: metadata.version(name) for name in PACKAGES},
    }
