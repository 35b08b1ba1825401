"""The book as one PDF: each page printed by a browser, joined, with an outline and links inside.

A browser draws the charts and sets the formulas, so what is printed is what the pages show; sliders
and folds are left out, and solutions are printed open. A link from page to page becomes a jump
within the file. The browser is Chromium or Chrome on the PATH.
"""

import io
import re
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import urlsplit

from pypdf import PdfReader, PdfWriter
from pypdf.generic import ArrayObject, DictionaryObject, NameObject, NullObject
from tqdm import tqdm

from tokenlife.files import atomic_write
from tokenlife.publish import PublishError
from tokenlife.publish.layout import Book
from tokenlife.publish.site.build import missing_pages

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
MARGIN_MM, SCALE = 18, 0.8
PAPER = {
    "format": "A4",
    "margin": dict.fromkeys(("top", "bottom", "left", "right"), f"{MARGIN_MM}mm"),
    "scale": SCALE,
    "print_background": True,
}
# As wide as the paper leaves room, so that charts are drawn at the width that they are printed at.
VIEW = {"width": round((210 - 2 * MARGIN_MM) / 25.4 * 96 / SCALE), "height": 1100}
# Everything that waits for the reader is opened, drawn and set before it is printed.
READY = """async () => {
  document.querySelectorAll("details:not(.hide)").forEach((fold) => { fold.open = true; });
  document.querySelectorAll(".toggle-hidden").forEach((e) => e.classList.remove("toggle-hidden"));
  for (const figure of document.querySelectorAll("figure.chart")) {
    figure.scrollIntoView();
    while (!figure.dataset.drawn) await new Promise((done) => setTimeout(done, 20));
  }
  if (document.querySelector(".math")) {
    while (!window.MathJax?.startup?.promise) await new Promise((done) => setTimeout(done, 20));
    await window.MathJax.startup.promise;
  }
}"""


def write_pdf(book: Book, out: Path | None = None, entries: Sequence[str] | None = None) -> Path:
    """Print the built pages into one file.

    Parameters
    ----------
    book
        Built before.
    out
        ``_build/the_life_of_a_token.pdf`` if not given.
    entries
        Pages of the table of contents; all if not given.

    Returns
    -------
    Path
        Of the file.

    Raises
    ------
    PublishError
        If a page is missing, there is no browser, or it cannot print.
    """
    from playwright.sync_api import Error, sync_playwright

    out = out or book.build / "the_life_of_a_token.pdf"
    entries = list(entries or book.entries())
    if missing_pages(book):
        raise PublishError("the pages are not built: run make book first")
    path = next(filter(None, map(shutil.which, BROWSERS)), None)
    if path is None:
        raise PublishError(f"no browser to print with: install one of {', '.join(BROWSERS)}")
    try:
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
            writer = print_pages(browser, book, entries)
            browser.close()
    except Error as error:
        raise PublishError(f"the browser cannot print: {str(error).splitlines()[0]}") from error
    with atomic_write(out, PublishError) as file:
        writer.write(file)
    return out


def print_pages(browser, book: Book, entries: Sequence[str]) -> PdfWriter:
    """Print pages with an open browser, and join them."""
    writer, starts = PdfWriter(), {}
    page = browser.new_page(viewport=VIEW)
    page.emulate_media(media="print", color_scheme="light")
    for entry in tqdm(entries, unit="page", disable=not sys.stderr.isatty()):
        page.goto((book.html / f"{entry}.html").as_uri())
        page.evaluate(READY)
        title = page.evaluate("() => document.querySelector('h1').firstChild.data")
        starts[entry] = len(writer.pages)
        writer.append(PdfReader(io.BytesIO(page.pdf(**PAPER))), import_outline=False)
        writer.add_outline_item(title=title.strip(), page_number=starts[entry])
    page.close()
    _jump_inside(writer, book, starts)
    return writer


def _jump_inside(writer: PdfWriter, book: Book, starts: dict[str, int]) -> None:
    """Turn links to pages of the book into jumps to where these begin in the file."""
    root = f"{book.html.as_uri()}/"
    for sheet in writer.pages:
        kept = ArrayObject()
        for reference in sheet.get("/Annots") or ():
            note = reference.get_object()
            action = note.get("/A", {})
            address = str(action.get("/URI", ""))
            if not address.startswith("file:"):
                kept.append(reference)
                continue
            entry = re.sub(r"\.html$", "", urlsplit(address).path)
            entry = entry.removeprefix(urlsplit(root).path)
            if entry in starts:
                target = writer.pages[starts[entry]].indirect_reference
                note[NameObject("/A")] = DictionaryObject(
                    {
                        NameObject("/S"): NameObject("/GoTo"),
                        NameObject("/D"): ArrayObject(
                            [target, NameObject("/XYZ"), NullObject(), NullObject(), NullObject()]
                        ),
                    }
                )
                kept.append(reference)
        if "/Annots" in sheet:
            sheet[NameObject("/Annots")] = kept
