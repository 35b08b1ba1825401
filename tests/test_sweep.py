"""Sweeps: every run's numbers in one file, nothing lost to a stop, a failure or a killed worker."""

import os
import re
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pandas as pd
import pytest
from tokenlife.publish import PublishError
from tokenlife.publish.command import main
from tokenlife.publish.layout import Book
from tokenlife.publish.sweep import LARGEST_SWEEP, read_sweep, sweep

CELLS = """
# %% tags=["parameters"]
n = 2
wait = 0.0
words = ["a"]

# %%
import os, time
import pandas as pd
from tokenlife.charts import table
with open(os.environ["RUNS"], "a") as runs:
    print(n, file=runs)
time.sleep(wait)
assert n != 13, "thirteen will not do"
frame = pd.DataFrame({"of": ["n", "n, in words"], "square": [n**2, None], "say": ["x", "y"]})
table(frame, "Squares", label={"square": "modelled"})
"""


@pytest.fixture
def book(tmp_path, monkeypatch) -> Book:
    """A book of one chapter that squares its parameter, and notes that it ran."""
    head = (Path(__file__).parents[1] / "notebooks" / "01_words_to_tokens.py").read_text()
    head = head[: head.index("# %%")]
    (tmp_path / "notebooks").mkdir()
    (tmp_path / "book").mkdir()
    (tmp_path / "book" / "index.md").write_text("# A book\n")
    (tmp_path / "notebooks" / "01_one.py").write_text(head + textwrap.dedent(CELLS))
    (tmp_path / "_toc.yml").write_text(
        "format: jb-book\nroot: book/index\nchapters:\n- file: notebooks/01_one\n"
    )
    monkeypatch.setenv("RUNS", str(tmp_path / "runs"))
    return Book(tmp_path)


def written(book: Book, text: str) -> Path:
    path = book.root / "asked.toml"
    path.write_text(f'chapter = "1"\n{text}')
    return path


def runs(book: Book) -> list[str]:
    return sorted((book.root / "runs").read_text().split())


def test_a_failed_run_is_told_the_others_are_kept_and_none_runs_twice(book):
    path = written(book, "[grid]\nn = [3, 13, 4]\n")
    with pytest.raises(PublishError, match=r'1 of 3 runs failed(.|\n)*"n": 13(.|\n)*thirteen will'):
        sweep(book, path, workers=1)
    found = pd.read_csv(book.build / "sweeps" / "asked.csv")
    squares = found[found.column == "square"]
    numbers = squares[squares.row == "n"].set_index("n").value
    assert numbers.to_dict() == {3: 9, 4: 16}
    assert set(squares.label) == {"modelled"} and set(found.table) == {"Squares"}
    assert squares[squares.row != "n"].value.isna().all()
    assert set(found[found.column == "say"].text) == {"x", "y"}

    assert runs(book) == ["13", "3", "4"]
    path = written(book, "[grid]\nn = [3, 4, 5]\n")
    sweep(book, path, workers=1)
    assert runs(book) == ["13", "3", "4", "5"]

    source = book.root / "notebooks" / "01_one.py"
    source.write_text(source.read_text().replace("n**2", "n**3"))
    out = sweep(book, written(book, "[grid]\nn = [3]\n"), workers=1)
    found = pd.read_csv(out)
    assert found[found.column == "square"].value.dropna().tolist() == [27]
    assert not list(book.build.glob("run-*"))


def test_a_killed_worker_loses_nothing(book):
    from distributed import LocalCluster

    path = written(book, "[parameters]\nwait = 1.0\n[grid]\nn = [3, 4, 5, 6]\n")
    with LocalCluster(2, threads_per_worker=1, dashboard_address=None, silence_logs=50) as cluster:

        def kill():
            while not (book.root / "runs").is_file():
                time.sleep(0.05)
            os.kill(next(iter(cluster.workers.values())).pid, signal.SIGKILL)

        killer = threading.Thread(target=kill)
        killer.start()
        out = sweep(book, path, scheduler=cluster.scheduler_address)
        killer.join()
    found = pd.read_csv(out)
    assert set(found[found.column == "square"].value.dropna()) == {9, 16, 25, 36}


def test_an_interrupted_sweep_keeps_what_is_done_and_leaves_no_process(book):
    path = written(book, "[grid]\nwait = [0.0, 600.0]\n")
    command = [sys.executable, "-m", "tokenlife.publish", "--root", str(book.root)]
    process = subprocess.Popen(
        [*command, "sweep", str(path), "--workers", "1"], stderr=subprocess.PIPE, text=True
    )
    kept, mark = book.build / "sweeps" / "asked", str(book.build)
    while process.poll() is None and not list(kept.glob("*.json")):
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) == 130
    assert len(pd.read_csv(kept.with_suffix(".csv"))) == 4
    deadline = time.monotonic() + 10
    while (left := _processes(mark)) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not left


def _processes(mark: str) -> list[str]:
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            line = (entry / "cmdline").read_bytes().decode(errors="replace").replace("\0", " ")
        except OSError:
            continue
        if mark in line:
            found.append(line)
    return found


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[grid]\nm = [1]\n", "has no parameter 'm'; it has: n, wait, words"),
        ("[grid]\nn = 1\n", "a list of values for each name"),
        ("[grid]\nn = []\n", "a list of values for each name"),
        ("", "asks for nothing"),
        ("workers = 2\n[grid]\nn = [1]\n", "no key 'workers'; it may hold: chapter, grid"),
        (f"[grid]\nn = {list(range(400))}\nwait = {list(range(400))}\n", f"{LARGEST_SWEEP:,}"),
        ("[grid\n", "cannot read"),
    ],
)
def test_a_sweep_that_cannot_be_is_refused_in_one_line(book, text, says, capsys):
    assert main(["--root", str(book.root), "sweep", str(written(book, text))]) == 1
    said = capsys.readouterr().err
    assert says in said and said.count("\n") == 1


def test_points_and_grids_share_parameters_and_count_once(book):
    text = "[parameters]\nwait = 0.5\n[grid]\nn = [1, 2]\n[[points]]\nn = 2\n"
    asked = read_sweep(book, written(book, f'{text}[[points]]\nwords = ["b"]\n'))
    assert asked.points == (
        {"wait": 0.5, "n": 1}, {"wait": 0.5, "n": 2}, {"wait": 0.5, "words": ["b"]},
    )  # fmt: skip


def test_nowhere_to_write_and_nobody_to_ask_is_said(book):
    path = written(book, "[grid]\nn = [1]\n")
    with pytest.raises(PublishError, match=r"ends in \.csv or \.parquet"):
        sweep(book, path, out=Path("numbers.xls"))
    with pytest.raises(PublishError, match="there is no folder"):
        sweep(book, path, out=book.root / "nowhere" / "n.csv")
    with pytest.raises(PublishError, match=r"no scheduler answers at tcp://127\.0\.0\.1:9"):
        sweep(book, path, scheduler="tcp://127.0.0.1:9")
    with pytest.raises(PublishError, match=re.escape('write: chapter = "12"')):
        path.write_text("[grid]\nn = [1]\n")
        sweep(book, path)
