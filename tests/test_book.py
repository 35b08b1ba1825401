"""The built pages, read as files: none missing, none broken, nothing from the network."""

import json
import os
import re
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from tokenlife.publish.layout import Book
from tokenlife.publish.site import check
from tokenlife.publish.site.sphinx_ext import public_modules

ROOT = Path(__file__).resolve().parents[1]
BOOK = Book(ROOT)
HTML = BOOK.html
ENTRIES = BOOK.entries()
CHAPTERS = [entry for entry in ENTRIES if entry.startswith("notebooks/")]
PAGE_BYTES = 2_000_000
MUST = os.environ.get("CI") == "true" or os.environ.get("TOKENLIFE_REQUIRE_BOOK") == "1"
LOADS = {
    "script": "src", "img": "src", "iframe": "src", "source": "src", "video": "src",
    "audio": "src", "embed": "src", "object": "data",
}  # fmt: skip
LOADING_LINKS = {"stylesheet", "preload", "prefetch", "preconnect", "dns-prefetch", "icon"}


@pytest.fixture(scope="module", autouse=True)
def built():
    if not (HTML / "index.html").is_file():
        (pytest.fail if MUST else pytest.skip)("no built book: run make book")


class Page(HTMLParser):
    """What a page links to, loads, and can be linked at."""

    def __init__(self, text: str):
        super().__init__()
        self.links, self.loads, self.ids, self.figures = [], [], [], []
        self._in_figure = None
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        attrs = dict(attrs)
        if attrs.get("id"):
            self.ids.append(attrs["id"])
        if tag == "a" and attrs.get("href"):
            self.links.append(attrs["href"])
        if tag in LOADS and attrs.get(LOADS[tag]):
            self.loads.append(attrs[LOADS[tag]])
        if tag == "link" and LOADING_LINKS & set(attrs.get("rel", "").split()):
            self.loads.append(attrs.get("href", ""))
        if tag == "figure" and "chart" in attrs.get("class", "").split():
            self._in_figure = attrs.get("id")
        if tag == "script" and self._in_figure:
            self.figures.append([self._in_figure, ""])

    def handle_data(self, data):
        if self._in_figure and self.figures and self.figures[-1][0] == self._in_figure:
            self.figures[-1][1] += data

    def handle_endtag(self, tag):
        if tag == "script":
            self._in_figure = None


@cache
def text_of(page: Path) -> str:
    return page.read_text(encoding="utf-8")


@cache
def parse(page: Path) -> Page:
    return Page(text_of(page))


def page_of(entry: str) -> Path:
    path = HTML / f"{entry}.html"
    assert path.is_file(), f"{entry} has no page"
    return path


def test_the_structure_is_sound():
    assert check.problems(BOOK) == []


@pytest.mark.parametrize("entry", ENTRIES)
def test_each_entry_has_its_page(entry):
    page = page_of(entry)
    assert page.stat().st_size <= PAGE_BYTES
    assert re.search(r"<h1>[^<]", text_of(page))


def test_every_module_is_documented_once():
    text = "".join(text_of(page_of(entry)) for entry in ENTRIES if entry.startswith("book/api"))
    count = {name: text.count(f'id="module-{name}"') for name in public_modules()}
    assert {name: n for name, n in count.items() if n != 1} == {}


@pytest.mark.parametrize("entry", ENTRIES)
def test_no_page_shows_an_error(entry):
    text = text_of(page_of(entry))
    shown = re.sub(r'<div class="cell_input.*?</pre>', "", text, flags=re.DOTALL)
    marks = ['class="output error', "output traceback"]
    if not entry.startswith("book/api"):  # whose docstrings show what bad input gets
        marks.append("Traceback (most recent call last)")
    assert [mark for mark in marks if mark in shown] == []
    assert not re.search(r"/(home|root|tmp|work|Users)/\w+/", shown), "a path of some machine"


@pytest.mark.parametrize("entry", CHAPTERS)
def test_executed_notebooks_hold_no_error(entry):
    chapter = BOOK.chapter(entry)
    notebook = json.loads(chapter.executed.read_text(encoding="utf-8"))
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert all(cell["execution_count"] for cell in code if cell["source"])
    for cell in code:
        kinds = {(out["output_type"], out.get("name")) for out in cell["outputs"]}
        assert not {("error", None), ("stream", "stderr")} & kinds


@pytest.mark.parametrize("entry", ENTRIES)
def test_each_figure_is_described(entry):
    page = parse(page_of(entry))
    held = text_of(page_of(entry)).count('<figure class="chart"')
    assert len(page.figures) == held
    for name, body in page.figures:
        spec = json.loads(body)
        assert len(spec["description"]) > 20, f"{name}: {spec['description']!r} tells too little"
        assert spec["title"] or "layer" not in spec, f"{name} has no title"


@pytest.mark.parametrize("entry", ENTRIES)
def test_nothing_is_loaded_from_a_network_host(entry):
    for address in parse(page_of(entry)).loads:
        assert not urlsplit(address).netloc, address
        assert urlsplit(address).scheme in ("", "data"), address


def test_styles_load_nothing_from_a_network_host():
    for style in HTML.rglob("*.css"):
        text = style.read_text(encoding="utf-8")
        assert not re.search(r"""(?:url\(\s*["']?|@import\s+["'])(?:https?:)?//""", text), style


@pytest.mark.parametrize("entry", ENTRIES)
def test_internal_links_and_files_resolve(entry):
    here = page_of(entry)
    page = parse(here)
    for address in [*page.links, *page.loads]:
        parts = urlsplit(address)
        if parts.scheme or parts.netloc:
            continue
        target = (here.parent / unquote(parts.path)).resolve() if parts.path else here
        assert target.is_file(), f"{entry} points at {address}"
        if parts.fragment and target.suffix == ".html":
            assert unquote(parts.fragment) in parse(target).ids, f"{entry} points at {address}"


@pytest.mark.parametrize("entry", ENTRIES)
def test_ids_are_unique(entry):
    ids = parse(page_of(entry)).ids
    assert not {i for i in ids if ids.count(i) > 1 and i.startswith(("chart-", "table-"))}


@pytest.mark.parametrize("entry", CHAPTERS)
def test_status_lists_each_chapter(entry):
    status = text_of(page_of("book/status"))
    assert f'href="../{entry}.html"' in status


@pytest.mark.parametrize("entry", CHAPTERS)
def test_each_chapter_shows_its_level(entry):
    text = text_of(page_of(entry))
    assert re.search(r'<nav class="spine"[^>]*>.*?<li class="lit" aria-current="true">', text)


def test_the_link_check_can_fail():
    page = Page('<a href="gone.html">x</a><script src="https://x.org/y.js"></script>')
    assert page.links == ["gone.html"] and urlsplit(page.loads[0]).netloc == "x.org"
