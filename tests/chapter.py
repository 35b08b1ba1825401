"""Functions of a chapter's cells, taken from its file: what a page shows is what is tested."""

import ast
from pathlib import Path
from types import SimpleNamespace

NOTEBOOKS = Path(__file__).parents[1] / "notebooks"


def functions(chapter: str) -> SimpleNamespace:
    """Define the functions of a chapter, and nothing else of it."""
    path = NOTEBOOKS / f"{chapter}.py"
    tree = ast.parse(path.read_text(encoding="utf-8"))
    plain = (part for part in tree.body if isinstance(part, ast.FunctionDef))
    tree.body = [part for part in plain if not part.decorator_list]
    names = {"__name__": chapter}
    exec(compile(tree, str(path), "exec"), names)
    return SimpleNamespace(**{part.name: names[part.name] for part in tree.body})
