"""The scoreboard: how far each model of the book was off in this build, and how fast the code is.

A chapter that holds a model to something puts the difference into a column of a table, ``error`` or
``difference``, as a ratio; the executed notebooks carry the values of their tables, and this page
collects them. So no error can be left out of it, and none can be older than the build. How fast the
code is stands in the record that ``make bench`` writes.
"""

import re
import statistics

import nbformat

from tokenlife.catalog import read_record, record_names
from tokenlife.charts.tables import TABLE_TYPE
from tokenlife.publish.layout import Book, Chapter

COLUMNS = ("error", "difference")
BENCH = "bench"  # the record of `make bench`
HEAD = """# Scoreboard

## How far the models are off

Every table of this book that holds a model to a measurement or to a published value, with the
difference that it had in this build: the median and the worst of its rows, either sign. The
chapters say why.

"""
SPEED = """
## How fast the code is

Each row timed two things in turn in one run; the ratio is the peer's time over ours. Recorded by
`make bench` on {date}, {machine}. Where a bound was set and is not reached, the row says so.

"""


def scoreboard_page(book: Book) -> str:
    """Return the page as MyST Markdown."""
    lines = [
        "| chapter | table | rows | median | worst |",
        "|---|---|---:|---:|---:|",
    ]
    for chapter in book.chapters():
        for caption, errors in errors_of(chapter):
            off = [abs(error) for error in errors]
            lines.append(
                f"| {{doc}}`{chapter.slug[:2]} </{chapter.entry}>` | {_plain(caption)} "
                f"| {len(off)} | {_percent(statistics.median(off))} | {_percent(max(off))} |"
            )
    return HEAD + "\n".join(lines) + "\n" + _speed()


def errors_of(chapter: Chapter) -> list[tuple[str, list[float]]]:
    """Return the caption and the differences of each table that holds a model to something."""
    notebook = nbformat.read(chapter.executed, as_version=4)
    outputs = (out for cell in notebook.cells for out in cell.get("outputs", ()))
    found = []
    for table in (out["data"][TABLE_TYPE] for out in outputs if TABLE_TYPE in out.get("data", ())):
        for name in COLUMNS:
            if name in table["columns"]:
                place = table["columns"].index(name)
                errors = [row[place] for row in table["data"]]
                errors = [error for error in errors if isinstance(error, int | float)]
                found += [(table["caption"], errors)] if errors else []
    return found


def _speed() -> str:
    if BENCH not in record_names():
        return ""
    record = read_record(BENCH)
    lines = ["| what | ours | peer | ratio | to reach | |", "|---|---:|---|---:|---|---|"]
    for row in record["values"]["rows"]:
        bound = re.match(r"[≥>] ?([\d.]+)", row["reach"])
        short = bound and row["ratio"] < float(bound[1])
        lines.append(
            f"| {_plain(row['what'])} | {row['ours_s']:.3g} s | {_plain(row['peer'])} "
            f"| {{recorded}}`{row['ratio']:.3g}` | {row['reach']} | {'short' if short else ''} |"
        )
    machine = record["machine"]
    where = f"{machine['processor']}, {machine['cores']} cores"
    return SPEED.format(date=record["date"], machine=where) + "\n".join(lines) + "\n"


def _plain(text: str) -> str:
    return text.replace("|", "\\|").replace("$", "\\$")


def _percent(ratio: float) -> str:
    return f"{ratio:.2%}" if ratio < 0.01 else f"{ratio:.1%}"
