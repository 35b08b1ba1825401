"""What can be seen wrong in seconds, without running or building anything."""

import ast
import re
from pathlib import Path

import jupytext

from tokenlife.ledger import LEVELS
from tokenlife.publish import PublishError
from tokenlife.publish.layout import Book, Chapter

EXERCISES = 3  # at the least, each with its solution
SPINE = re.compile(r"^```\{spine\}[ \t]*(.*)$", re.MULTILINE)
FENCE = r"^[`:]{{3,}}\{{{name}(?:-start)?\}}[ \t]*(\S*)"
ABSOLUTE = re.compile(r"""["'(\s](?:/(?:home|Users|work|tmp|root|mnt)/|[A-Z]:\\)""")
REMOTE = re.compile(r"""(?:src|data-src)\s*=\s*["']?https?:|!\[[^\]]*\]\(https?:""", re.IGNORECASE)


def problems(book: Book) -> list[str]:
    """Return one line for each fault in the structure of the book."""
    try:
        chapters = book.chapters()
    except PublishError as error:
        return [str(error)]
    found = [f"notebooks/{stem}.py has no place in _toc.yml" for stem in book.strays()]
    for page in sorted((book.root / "book").glob("*.md")):
        found += _paths_and_loads(f"book/{page.name}", page.read_text(encoding="utf-8"))
        if f"book/{page.stem}" not in book.entries():
            found.append(f"book/{page.name} has no place in _toc.yml")
    for chapter in chapters:
        found += [f"{chapter.entry}.py: {fault}" for fault in _chapter(chapter)]
    return found


def levels_of(markdown: str) -> list[str]:
    """Return the levels that a chapter's ``{spine}`` directive lights."""
    match = SPINE.search(markdown)
    return match[1].split() if match else []


def _chapter(chapter: Chapter) -> list[str]:
    text = chapter.source.read_text(encoding="utf-8")
    notebook = jupytext.reads(text, fmt="py:percent")
    words = "\n".join(c.source for c in notebook.cells if c.cell_type == "markdown")
    faults = []
    kernel = notebook.metadata.get("kernelspec", {})
    if (kernel.get("name"), kernel.get("language")) != ("python3", "python"):
        faults.append("its header needs the kernelspec python3, display_name and language python")
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    if not code or "parameters" not in code[0].metadata.get("tags", []):
        faults.append('its first code cell needs tags=["parameters"]')
    if not re.match(r"# \S", words):
        faults.append("its first cell must begin with its title, '# …'")
    levels = levels_of(words)
    wrong = [level for level in levels if level not in LEVELS]
    if not levels or wrong:
        known = ", ".join(LEVELS)
        faults.append(f"it needs ```{{spine}} LEVEL with levels of: {known} (got {wrong})")
    exercises = re.findall(FENCE.format(name="exercise"), words, re.MULTILINE)
    solutions = re.findall(FENCE.format(name="solution"), words, re.MULTILINE)
    if len(exercises) < EXERCISES or len(solutions) < len(exercises):
        faults.append(
            f"{len(exercises)} exercises and {len(solutions)} solutions; "
            f"at least {EXERCISES} are needed, each with its solution"
        )
    return faults + [fault.split(": ", 1)[1] for fault in _paths_and_loads("", text)]


def _paths_and_loads(name: str, text: str) -> list[str]:
    faults = []
    for number, line in enumerate(text.splitlines(), 1):
        if ABSOLUTE.search(line):
            faults.append(f"{name}: line {number} holds an absolute path")
        if REMOTE.search(line):
            faults.append(f"{name}: line {number} loads something from the network")
    return faults


def library_lines(library: Path) -> int:
    """Count the lines of code of the library: neither blank nor comment nor docstring."""
    return sum(code_lines(path.read_text(encoding="utf-8")) for path in library.rglob("*.py"))


def code_lines(source: str) -> int:
    r"""Count the lines of a module that are neither blank nor comment nor docstring.

    Examples
    --------
    >>> code_lines("# why\nx = 1\n")
    1
    """
    docstrings: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        documented = isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
        if documented and ast.get_docstring(node):
            docstrings |= set(range(node.body[0].lineno, node.body[0].end_lineno + 1))
    return sum(
        1
        for number, line in enumerate(source.splitlines(), 1)
        if number not in docstrings and line.strip() and not line.strip().startswith("#")
    )
