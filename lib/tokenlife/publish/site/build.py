"""The pages: Jupyter Book in nit-picky mode, warnings are errors, one page for each toc entry."""

import os
import re
import shutil
import subprocess
import sys
import time

from tokenlife.publish import PublishError
from tokenlife.publish.layout import Book
from tokenlife.publish.site.stage import replace_folder, stage

JUPYTER_BOOK = "from jupyter_book.cli.main import main; main()"
ANSI = re.compile(r"\x1b\[[0-9;]*m")
TOO_LONG = 40  # lines of Sphinx, beyond which only the warnings are shown
KEY = ".built-from"  # inside the pages' folder: the hash of what they were built from


def build(book: Book) -> float:
    """Stage and build the site, unless nothing changed; return the seconds it took.

    Raises
    ------
    PublishError
        If Sphinx warns, or a page of the table of contents is missing afterwards.
    """
    started = time.monotonic()
    mark = stage(book)
    if not _is_built(book, mark):
        work = book.build / "site"  # finished pages replace the old ones in one move
        shutil.rmtree(work, ignore_errors=True)
        try:
            _sphinx(book, work)
            pages = work / "_build" / "html"
            (pages / KEY).write_text(mark)
            replace_folder(pages, book.html)
        finally:
            shutil.rmtree(work, ignore_errors=True)
    missing = missing_pages(book)
    if missing:
        raise PublishError(f"pages missing from {book.html}: {', '.join(missing)}")
    return time.monotonic() - started


def missing_pages(book: Book) -> list[str]:
    """List the entries of the table of contents that have no page."""
    return [e for e in book.entries() if not (book.html / f"{e}.html").is_file()]


def _is_built(book: Book, mark: str) -> bool:
    key = book.html / KEY
    return key.is_file() and key.read_text() == mark and not missing_pages(book)


def _sphinx(book: Book, work) -> None:
    command = [sys.executable, "-c", JUPYTER_BOOK, "build", str(book.source)]
    command += ["--path-output", str(work), "--all", "-n", "-W", "--keep-going", "-q"]
    work.mkdir(parents=True)
    environment = os.environ | {"NO_COLOR": "1"}
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=book.root, env=environment, check=False
    )
    if done.returncode or not (work / "_build" / "html" / "index.html").is_file():
        said = ANSI.sub("", done.stderr.strip() or done.stdout.strip())
        lines = [line for line in said.splitlines() if line.strip()]
        if len(lines) > TOO_LONG:
            lines = [line for line in lines if "WARNING" in line or "ERROR" in line] or lines[-40:]
        told = "\n".join(lines).replace(f"{book.source}/", "").replace(f"{book.root}/", "")
        raise PublishError(f"the pages do not build clean:\n{told}")
