"""A chapter run for many sets of parameters, and the numbers of its tables in one tidy file.

A sweep is a TOML file: the chapter, the parameters that all runs share, and a grid of which every
combination is run (or the points, one by one). The runs are spread by Dask, over this machine's
cores or over whatever workers a scheduler has. What a run found is kept as soon as it is done,
under a hash of the chapter, the library, the data and the parameters: a sweep that was stopped
goes on where it was, and one whose code changed begins anew. A run that fails is reported, and the
others go on; one whose worker dies is given to another.

Left out: charts, and what a chapter says in prose. Workers on other machines need the same
checkout at the same place.
"""

import hashlib
import itertools
import json
import math
import os
import sys
import tempfile
import threading
import tomllib
from dataclasses import dataclass
from pathlib import Path

import jupytext
import nbformat
import pandas as pd
import papermill
from tqdm import tqdm

from tokenlife.charts.tables import TABLE_TYPE
from tokenlife.files import atomic_write
from tokenlife.publish import PublishError
from tokenlife.publish.execute import ran, scratch
from tokenlife.publish.fingerprint import fingerprint, shared_hash
from tokenlife.publish.layout import Book, Chapter

KEYS = {"chapter", "parameters", "grid", "points"}
LARGEST_SWEEP = 100_000  # points
ANSWER_S = 5  # for a scheduler to answer
_ONE_AT_A_TIME = threading.Lock()  # a run sets the environment of its process


@dataclass(frozen=True)
class Sweep:
    """What to run: a chapter, and its parameters for each run."""

    name: str
    chapter: Chapter
    points: tuple[dict, ...]


def read_sweep(book: Book, path: Path) -> Sweep:
    """Read a sweep from its file.

    Raises
    ------
    PublishError
        If the file cannot be read, says what is not known, or names no parameter of the chapter.
    """
    try:
        text = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise PublishError(f"cannot read {path}: {error}") from error
    if strange := sorted(set(text) - KEYS):
        raise PublishError(f"{path}: no key {strange[0]!r}; it may hold: {', '.join(sorted(KEYS))}")
    if "chapter" not in text:
        raise PublishError(f'{path} names no chapter; write: chapter = "12"')
    shared, grid, points = (text.get(key, new()) for key, new in _FORMS.items())
    lists = isinstance(grid, dict) and all(isinstance(v, list) and v for v in grid.values())
    if not lists or not isinstance(shared, dict) or not all(isinstance(p, dict) for p in points):
        raise PublishError(
            f"{path}: [parameters] holds values, [grid] a list of values for each name, and each "
            "[[points]] values"
        )
    if not grid and not points:
        raise PublishError(f"{path} asks for nothing: give it a [grid], or [[points]]")
    n = len(points) + math.prod(map(len, grid.values()))
    if n > LARGEST_SWEEP:
        raise PublishError(f"{path}: {n:,} runs, more than {LARGEST_SWEEP:,}")
    crossed = [dict(zip(grid, v, strict=True)) for v in itertools.product(*grid.values()) if v]
    once = {json.dumps(p, sort_keys=True): p for own in (*crossed, *points) if (p := shared | own)}
    every = tuple(once.values())
    chapter = book.chapter(str(text["chapter"]))
    known = _parameters(chapter)
    for name in sorted({name for point in every for name in point}):
        if name not in known:
            raise PublishError(
                f"{path}: chapter {chapter.slug} has no parameter {name!r}; "
                f"it has: {', '.join(known)}"
            )
    return Sweep(path.stem, chapter, every)


_FORMS = {"parameters": dict, "grid": dict, "points": list}


def _parameters(chapter: Chapter) -> list[str]:
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder, "chapter.ipynb")
        nbformat.write(jupytext.read(chapter.source), copy)
        return list(papermill.inspect_notebook(copy))


def run_point(root: str, slug: str, parameters: dict) -> list[dict]:
    """Run a chapter with other parameters; return each number of its tables.

    Returns
    -------
    list of dict
        ``table`` (its caption), ``row`` (what stands in its first column), ``column``, ``value``
        (None for words), ``text`` (None for numbers), ``label``.
    """
    book = Book(Path(root))
    with _ONE_AT_A_TIME, scratch(book.build) as folder:
        before = os.environ.get("OMP_NUM_THREADS")
        os.environ.setdefault("OMP_NUM_THREADS", "1")  # the cores are shared among the runs
        try:
            notebook = ran(book.chapter(slug), folder, lambda _: None, parameters)
        finally:
            if before is None:
                del os.environ["OMP_NUM_THREADS"]
    return tidy(notebook)


def tidy(notebook: nbformat.NotebookNode) -> list[dict]:
    """Return each number of a notebook's tables, as :func:`run_point` does."""
    rows = []
    outputs = (out for cell in notebook.cells for out in cell.get("outputs", ()))
    for table in (out["data"][TABLE_TYPE] for out in outputs if TABLE_TYPE in out.get("data", ())):
        for first, *others in table["data"]:
            for column, value in zip(table["columns"][1:], others, strict=True):
                number = isinstance(value, int | float) and not isinstance(value, bool)
                rows.append(
                    {
                        "table": table["caption"],
                        "row": str(first),
                        "column": column,
                        "value": value if number else None,
                        "text": None if number or value is None else str(value),
                        "label": table["labels"].get(column, table["labels"].get("")),
                    }
                )
    return rows


def sweep(
    book: Book,
    path: Path,
    out: Path | None = None,
    scheduler: str | None = None,
    workers: int | None = None,
) -> Path:
    """Run what a sweep asks for and has not been run yet; write all that is known as one file.

    Parameters
    ----------
    book
        Whose chapter.
    path
        The sweep.
    out
        ``.csv``, or ``.parquet`` where pandas can write it; ``_build/sweeps/NAME.csv`` if not
        given.
    scheduler
        Address of a Dask scheduler; workers on this machine if not given.
    workers
        How many, on this machine; as many as it has cores if not given.

    Returns
    -------
    Path
        Of the file: for each number the parameters of its run, and what :func:`run_point` says.

    Raises
    ------
    PublishError
        If the sweep cannot be, or runs failed: then all others are kept, and the file is written.
    """
    asked = read_sweep(book, path)
    out = out or book.build / "sweeps" / f"{asked.name}.csv"
    if out.suffix not in (".csv", ".parquet"):
        raise PublishError(f"cannot write {out}: take a name that ends in .csv or .parquet")
    kept = book.build / "sweeps" / asked.name
    kept.mkdir(parents=True, exist_ok=True)
    if not out.parent.is_dir():
        raise PublishError(f"cannot write {out}: there is no folder {out.parent}")
    mark = fingerprint(asked.chapter, shared_hash(book))
    places = [kept / f"{_key(mark, point)}.json" for point in asked.points]
    todo = [k for k, place in enumerate(places) if not place.is_file()]
    if len(todo) < len(places):
        print(f"{len(places) - len(todo)} of {len(places)} runs are kept from before")
    failed = {}
    try:
        for k, found in _spread(book, asked, todo, scheduler, workers) if todo else ():
            if isinstance(found, str):
                failed[k] = found
                continue
            with atomic_write(places[k], PublishError) as file:
                file.write(json.dumps(found).encode())
    finally:
        _write(asked.points, places, out)
    if failed:
        lines = (f"{json.dumps(asked.points[k])}: {why}" for k, why in sorted(failed.items()))
        raise PublishError(
            "\n  ".join([f"{len(failed)} of {len(places)} runs failed; {out} holds the others:",
                         *lines])
        )  # fmt: skip
    return out


def _key(mark: str, point: dict) -> str:
    return hashlib.sha256(f"{mark}{json.dumps(point, sort_keys=True)}".encode()).hexdigest()[:20]


def _spread(book: Book, asked: Sweep, todo: list[int], scheduler: str | None, workers: int | None):
    """Give the runs to workers; yield which is done, and its rows or why there are none."""
    from distributed import Client, LocalCluster, as_completed

    with tempfile.TemporaryDirectory(prefix="tokenlife-sweep-") as folder:
        try:
            cluster = scheduler or LocalCluster(
                n_workers=min(workers or os.cpu_count() or 1, len(todo)),
                threads_per_worker=1,
                dashboard_address=None,
                local_directory=folder,
                silence_logs="CRITICAL",
            )
            client = Client(cluster, timeout=ANSWER_S)
        except (OSError, ValueError) as error:
            raise PublishError(f"no scheduler answers at {scheduler}: {error}") from error
        quiet = not sys.stderr.isatty()
        bar = tqdm(total=len(todo), unit="run", desc=asked.name, disable=quiet)
        with client, bar:
            calls = (str(book.root), asked.chapter.slug)
            futures = {
                client.submit(run_point, *calls, asked.points[k], key=f"{asked.name}-{k}",
                              pure=False): k
                for k in todo
            }  # fmt: skip
            try:
                for done, future in enumerate(as_completed(futures), 1):
                    error = future.exception()
                    yield futures[future], _line(error) if error else future.result()
                    bar.update()
                    if quiet:
                        print(f"{asked.name}: {done} of {len(todo)} runs", file=sys.stderr)
            finally:
                client.cancel(list(futures))
                if not scheduler:
                    cluster.close(timeout=5)


def _line(error: BaseException) -> str:
    first = str(error).splitlines()[0] if str(error) else ""
    return first if isinstance(error, PublishError) else f"{type(error).__name__}: {first}"


def _write(points: tuple[dict, ...], places: list[Path], out: Path) -> None:
    names = list(dict.fromkeys(name for point in points for name in point))
    columns = [*names, "table", "row", "column", "value", "text", "label"]
    rows = [
        {**{n: v if isinstance(v, str | int | float) else json.dumps(v) for n, v in point.items()},
         **row}
        for point, place in zip(points, places, strict=True)
        if place.is_file()
        for row in json.loads(place.read_text(encoding="utf-8"))
    ]  # fmt: skip
    frame = pd.DataFrame(rows, columns=columns)
    with atomic_write(out, PublishError) as file:
        if out.suffix == ".csv":
            frame.to_csv(file, index=False)
            return
        try:
            frame.to_parquet(file, index=False)
        except ImportError as error:
            raise PublishError(
                f"cannot write {out}: Parquet needs pyarrow (pip install pyarrow); or take .csv"
            ) from error
