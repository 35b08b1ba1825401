"""The status page: when each chapter ran, how long, on which machine, with which versions."""

import json

from tokenlife.publish import PublishError
from tokenlife.publish.layout import Book, Chapter
from tokenlife.units import format_bytes

HEAD = """# Status

Every number that a chapter labels *measured* was measured in the run listed here.
All chapters ran from beginning to end without an error; a chapter that fails stops the build.

"""


def status_page(book: Book) -> str:
    """Return the page as MyST Markdown.

    Raises
    ------
    PublishError
        If a chapter of the table of contents has no run.
    """
    chapters = book.chapters()
    records = {chapter.entry: _record(chapter) for chapter in chapters}
    if not records:
        return HEAD + "No chapter is written yet.\n"
    lines = [
        "| chapter | seconds | code cells | run (UTC) | result |",
        "|---|---:|---:|---|---|",
    ]
    for entry, record in records.items():
        when = record["date"].replace("T", " ").replace("+00:00", "")
        lines.append(
            f"| {{doc}}`/{entry}` | {record['seconds']:.1f} | {record['code_cells']} "
            f"| {when} | passed |"
        )
    total = sum(record["seconds"] for record in records.values())
    lines.append(f"| together | {total:.1f} | | | |")
    return HEAD + "\n".join(lines) + "\n\n" + _machines(list(records.values()))


def _record(chapter: Chapter) -> dict:
    try:
        return json.loads(chapter.record.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise PublishError(f"{chapter.slug} has no record of a run: execute it first") from error


def _machines(records: list[dict]) -> str:
    """Describe each machine once; usually there is one."""
    seen = []
    for record in records:
        both = (record["machine"], record["versions"])
        if both not in seen:
            seen.append(both)
    blocks = []
    for machine, versions in seen:
        memory = format_bytes(machine["memory_bytes"]) if machine["memory_bytes"] else "unknown"
        packages = versions | {name: machine[name] for name in ("numpy", "torch")}
        rows = {
            "processor": machine["processor"],
            "cores used": machine["cores"],
            "memory": memory,
            "system": machine["system"],
            "Python": machine["python"],
            "packages": ", ".join(
                f"{name} {version}" for name, version in sorted(packages.items())
            ),
        }
        table = "\n".join(f"| {name} | {value} |" for name, value in rows.items())
        blocks.append(f"| property | value |\n|---|---|\n{table}\n")
    return "## Machine\n\n" + "\n".join(blocks)
