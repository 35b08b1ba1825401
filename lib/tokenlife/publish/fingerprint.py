"""What a chapter's outputs depend on, as one hash.

A chapter is run again when its own file, the library, the data, a lock, Python or an installed
package changed. Left out: ``tokenlife/publish/site``, which turns finished notebooks into pages and
which no notebook imports (``tests/test_publish.py`` holds that).
"""

import hashlib
import sys
from importlib import metadata
from pathlib import Path

from tokenlife.publish.layout import Book, Chapter


def shared_files(root: Path) -> list[Path]:
    """List the files that every chapter depends on."""
    library = root / "lib" / "tokenlife"
    site = library / "publish" / "site"
    code = [path for path in library.rglob("*.py") if site not in path.parents]
    data = [path for path in (root / "data").rglob("*") if path.is_file()]
    locks = [*root.glob("requirements*.lock"), *root.glob("package-lock.json")]
    return sorted(code + data + locks)


def shared_hash(book: Book) -> str:
    """Hash the library, the data, the locks, Python's version and the installed packages."""
    digest = hashlib.sha256(sys.version.encode())
    installed = {f"{d.metadata['Name']}=={d.version}" for d in metadata.distributions()}
    digest.update("\n".join(sorted(installed)).encode())
    for path in shared_files(book.root):
        _add(digest, path, book.root)
    return digest.hexdigest()


def fingerprint(chapter: Chapter, shared: str) -> str:
    """Hash one chapter; ``shared`` comes from :func:`shared_hash`."""
    digest = hashlib.sha256(shared.encode())
    _add(digest, chapter.source, chapter.root)
    return digest.hexdigest()


def _add(digest, path: Path, root: Path) -> None:
    # The length keeps "a" + "bc" apart from "ab" + "c".
    content = path.read_bytes()
    digest.update(f"\0{path.relative_to(root).as_posix()}\0{len(content)}\0".encode())
    digest.update(content)
