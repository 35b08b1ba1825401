"""``python -m tokenlife.publish``: what the make targets call."""

import argparse
import sys
from pathlib import Path

from tokenlife.errors import TokenlifeError
from tokenlife.publish import PublishError
from tokenlife.publish.execute import due, execute_all, fingerprints
from tokenlife.publish.kernel import interruptible
from tokenlife.publish.layout import Book
from tokenlife.publish.pairs import sync
from tokenlife.publish.site.build import build
from tokenlife.publish.site.check import library_lines, problems
from tokenlife.publish.site.pdf import write_pdf
from tokenlife.publish.sweep import sweep

CHECKOUT = Path(__file__).resolve().parents[3]


def main(argv: list[str] | None = None) -> int:
    """Run a command; return 0, 1 after a failure in one clear line, 130 when interrupted."""
    args = _parser().parse_args(argv)
    book = Book(args.root.resolve())
    try:
        with interruptible():
            args.run(book, args)
    except TokenlifeError as error:
        print(f"publish: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("publish: interrupted; nothing half-written is left", file=sys.stderr)
        return 130
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tokenlife.publish", description=__doc__)
    parser.add_argument("--root", type=Path, default=CHECKOUT, help="the checkout (default: this)")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for name, run, about in (
        ("book", _book, "execute what changed and build the site"),
        ("chapter", _chapter, "execute one chapter, or several, and build the site"),
        ("pages", _pages, "build the site from the outputs that are kept"),
        ("notebooks", _notebooks, "write or update the .ipynb pairs"),
        ("check", _check, "check the structure of the book"),
        ("pdf", _pdf, "print the built pages into one PDF"),
        ("sweep", _sweep, "run a chapter for many sets of parameters"),
    ):
        command = commands.add_parser(name, help=about, description=about)
        command.set_defaults(run=run)
        if run is _chapter:
            command.add_argument("names", nargs="+", help="number (1, 01) or slug of each")
        if run is _sweep:
            command.add_argument("file", type=Path, help="chapter, parameters and grid, as TOML")
            command.add_argument("--out", type=Path, help="a .csv or .parquet (default: in _build)")
            command.add_argument("--scheduler", help="address of a Dask scheduler")
            command.add_argument("--workers", type=_count, help="on this machine (default: cores)")
    return parser


def _book(book: Book, _args) -> None:
    _refuse(faults_of_pages(book))
    chapters = book.chapters()
    marks = fingerprints(book, chapters)
    seconds = execute_all(book, due(chapters, marks), marks)
    _report(book, {c.slug: seconds.get(c.slug) for c in chapters}, build(book))


def _chapter(book: Book, args) -> None:
    asked = [book.chapter(name) for name in args.names]
    chapters = book.chapters()
    marks = fingerprints(book, chapters)
    # The site shows every chapter: those that have never run must run too. Those that merely
    # changed wait for `book`.
    never = [c for c in chapters if c not in asked and not c.executed.is_file()]
    seconds = execute_all(book, [*asked, *never], marks)
    old = [c.slug for c in due(chapters, marks)]
    if old:
        print(f"shown as they were before a change: {', '.join(old)}")
    _report(book, seconds, build(book))
    for chapter in asked:
        print(f"page       {book.html / chapter.entry}.html")


def _pages(book: Book, _args) -> None:
    _report(book, {}, build(book))


def _notebooks(book: Book, _args) -> None:
    for path in sync(book):
        print(path)


def _pdf(book: Book, _args) -> None:
    print(f"printed    {write_pdf(book)}")


def _sweep(book: Book, args) -> None:
    print(f"numbers    {sweep(book, args.file, args.out, args.scheduler, args.workers)}")


def _count(text: str) -> int:
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"{text!r} is no number of workers; take 1 or more")
    return int(text)


def _check(book: Book, _args) -> None:
    _refuse(problems(book))
    print(f"{len(book.entries())} pages, {len(book.chapters())} chapters: structure sound")
    print(f"{library_lines(book.root / 'lib' / 'tokenlife'):,} lines of code in the library")


def faults_of_pages(book: Book) -> list[str]:
    """Return the faults that make a page wrong, not merely unfinished."""
    return [fault for fault in problems(book) if "exercises" not in fault]


def _refuse(faults: list[str]) -> None:
    if faults:
        raise PublishError("\n  ".join(["the book is not sound:", *faults]))


def _report(book: Book, seconds: dict[str, float | None], site_s: float) -> None:
    for slug, taken in seconds.items():
        print(f"{'unchanged' if taken is None else f'{taken:.1f} s':>9}  {slug}")
    print(f"{site_s:7.1f} s  pages")
    print(f"book       {book.html / 'index.html'}")
