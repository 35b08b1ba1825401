"""The tree that Sphinx reads, mirrored under ``_build/source``.

The checkout never holds a generated page, and a reader's own ``notebooks/*.ipynb`` are never read
or touched. Files are written only where they differ, and files that no longer belong are removed.
"""

import contextlib
import hashlib
import json
import shutil
from pathlib import Path

from tokenlife.charts.tables import TABLE_TYPE
from tokenlife.publish.fingerprint import shared_hash
from tokenlife.publish.layout import Book
from tokenlife.publish.site.scoreboard import scoreboard_page
from tokenlife.publish.site.status import status_page
from tokenlife.publish.site.vendor import mathjax_files, palette_css, vega_bundle

HAND_WRITTEN = ("book", "_static")


def stage(book: Book) -> str:
    """Bring ``_build/source`` up to date and return a hash of all that the site depends on.

    Raises
    ------
    PublishError
        If MathJax is missing or a chapter has not been run.
    """
    files: dict[str, Path | str] = {
        "_config.yml": book.root / "_config.yml",
        "_toc.yml": book.root / "_toc.yml",
        "_static/palette.css": palette_css(),
        "_vendor/vega/vega.js": vega_bundle(),
        "book/status.md": status_page(book),
        "book/scoreboard.md": scoreboard_page(book),
    }
    for folder in HAND_WRITTEN:
        for path in sorted((book.root / folder).rglob("*")):
            if path.is_file() and not path.name.startswith("."):
                files.setdefault(path.relative_to(book.root).as_posix(), path)
    for chapter in book.chapters():
        files[f"{chapter.entry}.ipynb"] = _shown(chapter.executed)
    files |= {f"_vendor/{place}": path for place, path in mathjax_files(book.root).items()}

    digest = hashlib.sha256(shared_hash(book).encode())
    for code in sorted(Path(__file__).parent.rglob("*.py")):
        digest.update(code.read_bytes())
    for place, source in sorted(files.items()):
        content = source.encode() if isinstance(source, str) else source.read_bytes()
        digest.update(f"\0{place}\0{len(content)}\0".encode() + content)
        _write(book.source / place, content)
    _prune(book.source, set(files))
    return digest.hexdigest()


def _shown(notebook: Path) -> str:
    """Return a notebook without the values of its tables, which are for programs only."""
    content = json.loads(notebook.read_text(encoding="utf-8"))
    for cell in content["cells"]:
        for output in cell.get("outputs", ()):
            output.get("data", {}).pop(TABLE_TYPE, None)
    return json.dumps(content, indent=1, ensure_ascii=False) + "\n"


def _write(path: Path, content: bytes) -> None:
    if path.is_file() and path.read_bytes() == content:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def _prune(folder: Path, wanted: set[str]) -> None:
    for path in sorted(folder.rglob("*"), reverse=True):
        if path.is_file() and path.relative_to(folder).as_posix() not in wanted:
            path.unlink()
        elif path.is_dir():
            with contextlib.suppress(OSError):  # not empty
                path.rmdir()


def replace_folder(new: Path, old: Path) -> None:
    """Put the folder ``new`` in the place of ``old``; a kill leaves one of the two whole."""
    gone = old.with_name(f"{old.name}.old")
    shutil.rmtree(gone, ignore_errors=True)
    if old.exists():
        old.rename(gone)
    new.rename(old)
    shutil.rmtree(gone, ignore_errors=True)
