"""Every page in a real browser, network off: light and dark, narrow and wide, http and file."""

import functools
import http.server
import io
import os
import shutil
import threading
from contextlib import contextmanager
from pathlib import Path

import pytest
from pypdf import PdfReader
from tokenlife.charts import bill
from tokenlife.jobs import trace
from tokenlife.publish.layout import Book
from tokenlife.publish.site.pdf import print_pages

ROOT = Path(__file__).resolve().parents[1]
BOOK = Book(ROOT)
ENTRIES = BOOK.entries()
MUST = os.environ.get("CI") == "true" or os.environ.get("TOKENLIFE_REQUIRE_BOOK") == "1"
AXE = ROOT / "node_modules" / "axe-core" / "axe.min.js"
FLAGS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--no-first-run",
]  # fmt: skip
FIRST_CHART_MS = 2_000
WAIT_MS = 20_000

# Scroll every chart into view, and wait until each was drawn or has failed.
DRAW_ALL = """async () => {
  for (const figure of document.querySelectorAll("figure.chart")) {
    figure.scrollIntoView();
    while (!figure.dataset.drawn) await new Promise((done) => setTimeout(done, 20));
  }
  window.scrollTo(0, 0);
}"""
FIGURES = """() => [...document.querySelectorAll("figure.chart")].map((figure) => ({
  id: figure.id,
  drawn: figure.dataset.drawn === "yes" && !!figure.querySelector("svg"),
  label: figure.querySelector("[role=graphics-document]")?.getAttribute("aria-label") ?? "",
  described: JSON.parse(figure.querySelector("script").textContent).description,
}))"""
MATHS = """async () => {
  const sources = document.querySelectorAll(".math").length;
  if (sources) {
    while (!window.MathJax?.startup?.promise) await new Promise((done) => setTimeout(done, 20));
    await window.MathJax.startup.promise;
  }
  return [sources, document.querySelectorAll("mjx-container").length,
          document.querySelectorAll("mjx-merror").length];
}"""
# Colours that are still fading from one to the next are no page: let transitions end first.
AXE_SETTLED = """async () => {
  const ends = document.getAnimations().map((moving) => moving.finished.catch(() => {}));
  await Promise.race([Promise.all(ends), new Promise((done) => setTimeout(done, 1000))]);
  return axe.run(document, {resultTypes: ["violations"], preload: false});
}"""
# Titles of charts and captions of tables that do not fit the box they stand in.
CUT_OFF = """() => {
  const right = (element) => element.getBoundingClientRect().right;
  const cut = [];
  for (const figure of document.querySelectorAll("figure.chart")) {
    for (const title of figure.querySelectorAll(".role-title text")) {
      if (right(title) > right(figure) + 1) cut.push(title.textContent);
    }
  }
  for (const box of document.querySelectorAll("div.data-table")) {
    const words = document.createRange();
    words.selectNodeContents(box.querySelector("caption"));
    if (right(words) > right(box) + 1) cut.push(words.toString());
  }
  return cut;
}"""
SCROLL = "() => document.documentElement.scrollWidth - document.documentElement.clientWidth"


def missing(reason: str):
    (pytest.fail if MUST else pytest.skip)(reason)


@pytest.fixture(scope="module")
def browser():
    sync_api = pytest.importorskip("playwright.sync_api")
    names = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
    path = next(filter(None, map(shutil.which, names)), None)
    if path is None:
        missing("no chromium or google-chrome on the PATH")
    if not (BOOK.html / "index.html").is_file():
        missing("no built book: run make book")
    if not AXE.is_file():
        missing("no axe-core: run make install")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=FLAGS)
        yield browser
        browser.close()


class Quiet(http.server.SimpleHTTPRequestHandler):
    """A file server that says nothing."""

    def log_message(self, *args):
        pass


@pytest.fixture(scope="module")
def served():
    handler = functools.partial(Quiet, directory=str(BOOK.html))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@contextmanager
def open_page(browser, base: str, entry: str, **settings):
    """Open a page; on leaving it, nothing may have gone wrong in it."""
    wrong = []
    context = browser.new_context(**settings)
    context.set_default_timeout(WAIT_MS)
    # The network is off but for our own files: any other request fails, and is reported.
    context.route("**/*", lambda route: (
        route.continue_() if route.request.url.startswith((base, "data:", "blob:"))
        else route.abort()
    ))  # fmt: skip
    page = context.new_page()
    page.on("console", lambda m: wrong.append(m.text) if m.type == "error" else None)
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("requestfailed", lambda request: wrong.append(f"failed: {request.url}"))
    page.on("response", lambda r: wrong.append(f"{r.status}: {r.url}") if r.status >= 400 else 0)
    try:
        page.goto(f"{base}/{entry}.html", wait_until="load")
        yield page
        assert wrong == []
    finally:
        context.close()


def look(page) -> None:
    """Draw every chart, typeset every formula, and hold them to what they must be."""
    page.evaluate(DRAW_ALL)
    for figure in page.evaluate(FIGURES):
        assert figure["drawn"], figure
        assert figure["label"] == figure["described"], figure
    sources, typeset, failed = page.evaluate(MATHS)
    assert typeset >= sources and failed == 0
    assert page.evaluate(SCROLL) <= 0, "the page scrolls sideways"
    assert page.evaluate(CUT_OFF) == []


def serious(page) -> list[str]:
    """Run axe-core; return what it finds serious or critical."""
    page.add_script_tag(path=str(AXE))
    # Without preload: axe would fetch each style again, and read @import against the wrong folder.
    found = page.evaluate(AXE_SETTLED)
    return [
        f"{v['id']}: {v['help']}: {node['html'][:160]}"
        for v in found["violations"]
        if v["impact"] in ("serious", "critical")
        for node in v["nodes"]
    ]


@pytest.mark.parametrize("width", [420, 1200])
@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("entry", ENTRIES)
def test_page_over_http(browser, served, entry, theme, width):
    size = {"width": width, "height": 900}
    with open_page(browser, served, entry, viewport=size, color_scheme=theme) as page:
        assert page.evaluate("() => document.documentElement.dataset.theme") == theme
        look(page)
        assert serious(page) == []


@pytest.mark.parametrize("theme, width", [("light", 1200), ("dark", 420)])
@pytest.mark.parametrize("entry", ENTRIES)
def test_page_from_a_file(browser, entry, theme, width):
    size = {"width": width, "height": 900}
    base = BOOK.html.as_uri()
    with open_page(browser, base, entry, viewport=size, color_scheme=theme) as page:
        look(page)


def test_the_first_chart_is_drawn_in_time(browser, served):
    with open_page(browser, served, "book/index") as page:
        page.evaluate(DRAW_ALL)
        assert page.evaluate("() => performance.now()") <= FIRST_CHART_MS


def test_only_pages_with_charts_fetch_the_chart_library(browser, served):
    for entry, wanted in (("book/how_to_read", False), ("book/index", True)):
        with open_page(browser, served, entry) as page:
            page.evaluate(DRAW_ALL)
            names = page.evaluate("() => performance.getEntriesByType('resource').map(e => e.name)")
            assert any(name.endswith("vega.js") for name in names) == wanted


def test_a_chart_that_cannot_be_drawn_says_so(browser, served):
    context = browser.new_context()
    page = context.new_page()
    page.route("**/vega.js", lambda route: route.abort())
    page.goto(f"{served}/book/index.html")
    page.evaluate(DRAW_ALL)
    told = page.locator("figure.chart [role=alert]").inner_text()
    context.close()
    assert told.startswith("This chart could not be drawn (vega.js is missing beside this page).")
    assert "It shows: " in told


def test_the_theme_button_turns_charts_too(browser, served):
    with open_page(browser, served, "book/index", color_scheme="light") as page:
        page.evaluate(DRAW_ALL)
        ink = "() => getComputedStyle(document.querySelector('figure.chart svg text')).fill"
        before = page.evaluate(ink)
        page.evaluate("() => { document.documentElement.dataset.theme = 'dark'; }")
        assert page.evaluate(ink) != before


@pytest.mark.parametrize("theme, width", [("light", 1200), ("dark", 420)])
def test_a_bill_that_stands_alone(browser, tmp_path, theme, width):
    (tmp_path / "bill.html").write_text(bill.page(trace("some words").to_dict()), encoding="utf-8")
    settings = {"viewport": {"width": width, "height": 900}, "color_scheme": theme}
    with open_page(browser, tmp_path.as_uri(), "bill", **settings) as page:
        assert page.locator("tbody tr.level").count() == 9
        assert page.evaluate(SCROLL) <= 0 and serious(page) == []


def test_axe_can_find_something(browser, served):
    with open_page(browser, served, "book/how_to_read") as page:
        page.evaluate("() => document.querySelector('article').append(new Image())")
        assert any(fault.startswith("image-alt") for fault in serious(page))


def test_pages_print_with_their_charts_and_links_that_stay_inside(browser):
    entries, file = ["book/index", "book/how_to_read", "book/glossary"], io.BytesIO()
    print_pages(browser, BOOK, entries).write(file)
    printed = PdfReader(file)
    starts = [printed.get_destination_page_number(item) for item in printed.outline]
    assert starts[0] == 0 and starts == sorted(set(starts))
    assert "bytes (logarithmic)" in printed.pages[0].extract_text()  # of the chart's axis
    notes = [note.get_object() for sheet in printed.pages for note in sheet.get("/Annots") or ()]
    actions = [note["/A"] for note in notes if "/A" in note]
    assert not [a for a in actions if str(a.get("/URI", "")).startswith("file:")]
    glossary = printed.pages[starts[2]].indirect_reference
    assert any(a.get("/S") == "/GoTo" and a["/D"][0] == glossary for a in actions)
