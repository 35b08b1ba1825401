"""Writing a file so that its place holds the old content or all of the new one, never a half."""

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from tokenlife.errors import TokenlifeError


@contextlib.contextmanager
def atomic_write(path: str | Path, error: type[TokenlifeError]) -> Iterator[BinaryIO]:
    """Lend a file that takes the place of ``path`` when the block ends, whole and on the disk.

    Where the block fails or is interrupted, ``path`` stays what it was and nothing is left beside
    it.

    Parameters
    ----------
    path
        The place; its folder must exist.
    error
        Raised, with one line, when the place cannot be written, or is no ordinary file: a device
        would be replaced by one. A link is followed.

    Yields
    ------
    file
        Open for bytes, seekable.

    Examples
    --------
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with atomic_write(f"{folder}/note", TokenlifeError) as file:
    ...         _ = file.write(b"whole")
    ...     os.listdir(folder), Path(folder, "note").read_bytes()
    (['note'], b'whole')
    """
    path, part = Path(path).resolve(), None
    if path.exists() and not path.is_file():
        raise error(f"cannot write {path}: it must be an ordinary file, or not be there yet")
    try:
        handle, part = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        with os.fdopen(handle, "w+b") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        Path(part).chmod(0o644)  # mkstemp makes it private
        Path(part).replace(path)
    except BaseException as failure:
        if part is not None:
            with contextlib.suppress(OSError):
                Path(part).unlink()
        if isinstance(failure, OSError):
            raise error(f"cannot write {path}: {failure.strerror}") from failure
        raise
