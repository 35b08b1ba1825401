"""Execution that leaves all or nothing, fingerprints, pairs, and the structure check."""

import ast
import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import jupytext
import nbformat
import pytest
from tokenlife import provenance
from tokenlife.ledger import LEVELS
from tokenlife.publish import PublishError, execute, fingerprint
from tokenlife.publish.command import main
from tokenlife.publish.layout import Book
from tokenlife.publish.pairs import sync
from tokenlife.publish.progress import Progress
from tokenlife.publish.site import check, scoreboard, spine, stage, status, vendor

ROOT = Path(__file__).resolve().parents[1]
HEAD = textwrap.dedent(
    """\
    # ---
    # jupyter:
    #   jupytext:
    #     text_representation:
    #       extension: .py
    #       format_name: percent
    #   kernelspec:
    #     display_name: Python 3
    #     language: python
    #     name: python3
    # ---

    # %% [markdown]
    # # A title
    #
    # ```{spine} text ids
    # ```

    # %% tags=["parameters"]
    n = 2
    """
)
EXERCISES = "\n# %% [markdown]\n" + "".join(
    f"# ```{{exercise}}\n# :label: e{i}\n# Do.\n# ```\n#\n"
    f"# ```{{solution}} e{i}\n# :class: dropdown\n# Done.\n# ```\n#\n"
    for i in range(3)
)
TOC = "format: jb-book\nroot: book/index\nchapters:\n- file: notebooks/01_one\n"


@pytest.fixture
def book(tmp_path) -> Book:
    """A book of one page and one chapter."""
    for folder in ("book", "notebooks", "data", "lib/tokenlife/publish/site"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "_toc.yml").write_text(TOC)
    (tmp_path / "jupytext.toml").write_text((ROOT / "jupytext.toml").read_text())
    (tmp_path / "book" / "index.md").write_text("# Front\n")
    (tmp_path / "data" / "numbers.toml").write_text("a = 1\n")
    (tmp_path / "lib" / "tokenlife" / "units.py").write_text("A = 1\n")
    (tmp_path / "lib" / "tokenlife" / "publish" / "site" / "stage.py").write_text("A = 1\n")
    (tmp_path / "requirements.lock").write_text("numpy==2\n")
    (tmp_path / "package-lock.json").write_text("{}\n")
    write(Book(tmp_path), "print(n)")
    return Book(tmp_path)


def write(book: Book, *cells: str, name: str = "01_one") -> None:
    text = HEAD + "".join(f"\n# %%\n{cell}\n" for cell in cells) + EXERCISES
    (book.root / "notebooks" / f"{name}.py").write_text(text)


def run(book: Book, name: str = "1") -> nbformat.NotebookNode:
    chapter = book.chapter(name)
    with Progress(1) as progress:
        execute.execute(book, chapter, "mark", progress)
    return nbformat.read(chapter.executed, as_version=4)


def left(book: Book) -> list[str]:
    return sorted(p.relative_to(book.build).as_posix() for p in book.build.rglob("*"))


# ---- layout


@pytest.mark.parametrize("name", ["1", "01", "01_one", "notebooks/01_one"])
def test_a_chapter_is_found_by_number_or_slug(book, name):
    assert book.chapter(name).slug == "01_one"


def test_an_unknown_chapter_lists_the_known(book):
    with pytest.raises(PublishError, match="no chapter '7'; the book has: 01_one"):
        book.chapter("7")


def test_a_page_without_a_file_is_refused(book):
    (book.root / "_toc.yml").write_text(TOC + "- file: book/gone\n")
    with pytest.raises(PublishError, match="names book/gone, but there is no such file"):
        book.chapters()


def test_a_page_named_twice_is_refused(book):
    (book.root / "_toc.yml").write_text(TOC + "- file: notebooks/01_one\n")
    with pytest.raises(PublishError, match="more than once"):
        book.entries()


# ---- fingerprints


def mark(book: Book) -> str:
    return fingerprint.fingerprint(book.chapter("1"), fingerprint.shared_hash(book))


@pytest.mark.parametrize(
    "file",
    [
        "notebooks/01_one.py",
        "lib/tokenlife/units.py",
        "data/numbers.toml",
        "requirements.lock",
        "package-lock.json",
    ],
)
def test_a_change_of_what_matters_changes_the_fingerprint(book, file):
    before = mark(book)
    path = book.root / file
    path.write_text(path.read_text() + "\n")
    assert mark(book) != before


def test_a_new_data_file_changes_the_fingerprint(book):
    before = mark(book)
    (book.root / "data" / "more.csv").write_text("a\n1\n")
    assert mark(book) != before


def test_the_site_and_the_pages_do_not(book):
    before = mark(book)
    (book.root / "lib" / "tokenlife" / "publish" / "site" / "stage.py").write_text("A = 2\n")
    (book.root / "book" / "index.md").write_text("# Other\n")
    assert mark(book) == before


def test_nothing_that_runs_in_a_notebook_imports_publish():
    # The fingerprint leaves publish/site out for this reason.
    library = ROOT / "lib" / "tokenlife"
    files = [*(ROOT / "notebooks").glob("*.py"), *library.rglob("*.py")]
    for path in files:
        if library / "publish" in path.parents or library / "cli" in path.parents:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not any(name.startswith("tokenlife.publish") for name in names), path


# ---- execution


def test_a_chapter_runs_in_this_python_with_the_book_switched_on(book):
    write(book, "import os, sys\nprint(sys.executable, os.environ['TOKENLIFE_BOOK'])")
    cells = run(book).cells
    assert cells[2].outputs[0].text == f"{sys.executable} 1\n"
    assert "TOKENLIFE_BOOK" not in os.environ


def test_another_kernel_called_python3_is_not_taken(book, monkeypatch, tmp_path):
    spec = tmp_path / "theirs" / "kernels" / "python3"
    spec.mkdir(parents=True)
    wrong = {"argv": ["/nowhere/python"], "display_name": "Other", "language": "python"}
    (spec / "kernel.json").write_text(json.dumps(wrong))
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path / "theirs"))
    assert run(book).cells[2].outputs[0].text == "2\n"
    assert os.environ["JUPYTER_PATH"] == str(tmp_path / "theirs")


def test_two_runs_are_equal_to_the_byte(book):
    write(book, "print({'a', 'b', 'c', 'd'})", "import random; random.seed(1); random.random()")
    run(book)
    first = book.chapter("1").executed.read_bytes()
    run(book)
    assert book.chapter("1").executed.read_bytes() == first
    notebook = json.loads(first)
    assert "papermill" not in first.decode()
    assert all(set(cell["metadata"]) <= {"tags"} for cell in notebook["cells"])


def test_the_record_names_machine_and_time(book):
    run(book)
    record = json.loads(book.chapter("1").record.read_text())
    assert record["machine"] == provenance.machine()
    assert record["code_cells"] == 2 and record["seconds"] > 0
    assert execute.is_current(book.chapter("1"), "mark")
    assert not execute.is_current(book.chapter("1"), "other")


def test_a_failing_cell_is_shown_and_nothing_is_kept(book):
    write(book, "print(n)", "def half(x):\n    return x / 0\n\n\nhalf(n)")
    with pytest.raises(PublishError) as caught:
        run(book)
    text = str(caught.value)
    assert text.startswith("notebooks/01_one.py, code cell 3 of 3 failed: ZeroDivisionError")
    assert "return x / 0" in text and "\x1b" not in text
    assert left(book) == []


def test_a_failure_keeps_what_was_there(book):
    run(book)
    kept = book.chapter("1").executed.read_bytes()
    write(book, "1 / 0")
    with pytest.raises(PublishError):
        run(book)
    assert book.chapter("1").executed.read_bytes() == kept
    assert left(book) == ["executed", "executed/01_one.ipynb", "executed/01_one.json"]


def test_words_on_standard_error_are_refused(book):
    write(book, "import warnings\nwarnings.warn('old')")
    with pytest.raises(PublishError, match="code cell 2 wrote to standard error"):
        run(book)


def test_a_dead_kernel_gets_one_line(book):
    write(book, "import os\nos._exit(1)")
    with pytest.raises(PublishError, match="the kernel died"):
        run(book)
    assert left(book) == []


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="looks at processes through /proc")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_kill_leaves_no_kernel_and_no_file(book, number):
    write(
        book,
        "import os, pathlib, subprocess, sys, time",
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])",
        "pathlib.Path('../pids').write_text(f'{os.getpid()} {child.pid}')\ntime.sleep(60)",
    )
    command = [sys.executable, "-m", "tokenlife.publish", "--root", str(book.root)]
    process = subprocess.Popen([*command, "chapter", "1"], stderr=subprocess.PIPE, text=True)
    pids = book.root / "pids"
    deadline = time.monotonic() + 60
    while not (pids.exists() and pids.read_text()):
        assert time.monotonic() < deadline, "the notebook did not start"
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.1)
    kernel, child = map(int, pids.read_text().split())
    assert alive(kernel) and alive(child)
    process.send_signal(number)
    _, said = process.communicate(timeout=30)
    assert process.returncode == 130
    assert said.strip().splitlines()[-1].startswith("publish: interrupted")
    deadline = time.monotonic() + 10
    while (alive(kernel) or alive(child)) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not alive(kernel) and not alive(child)
    assert left(book) == []


def test_what_a_power_cut_leaves_is_swept(book):
    book.build.mkdir()
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    (book.build / f"run-{gone.pid}-x").mkdir()
    (book.build / f"run-{os.getpid()}-y").mkdir()
    execute.execute_all(book, [], {})
    assert left(book) == [f"run-{os.getpid()}-y"]


def test_only_what_changed_is_due(book):
    (book.root / "_toc.yml").write_text(TOC + "- file: notebooks/02_two\n")
    write(book, "print(2)", name="02_two")
    chapters = book.chapters()
    marks = execute.fingerprints(book, chapters)
    assert execute.due(chapters, marks) == chapters
    execute.execute_all(book, chapters, marks)
    assert execute.due(chapters, execute.fingerprints(book, chapters)) == []
    write(book, "print(3)", name="02_two")
    due = execute.due(chapters, execute.fingerprints(book, chapters))
    assert [chapter.slug for chapter in due] == ["02_two"]


# ---- pairs


def test_pairs_are_written_and_the_newer_side_wins(book):
    source = book.chapter("1").source
    before = source.read_text()
    assert sync(book) == sync(book) == ["notebooks/01_one.ipynb"]
    assert source.read_text() == before
    pair = book.root / "notebooks" / "01_one.ipynb"
    notebook = jupytext.read(pair)
    notebook.cells.append(nbformat.v4.new_code_cell("print('a reader wrote this')"))
    jupytext.write(notebook, pair)
    later = time.time() + 5
    os.utime(pair, (later, later))
    sync(book)
    assert "a reader wrote this" in source.read_text()
    source.write_text(source.read_text().replace("a reader wrote this", "changed again"))
    os.utime(source, (later + 5, later + 5))
    sync(book)
    assert "changed again" in pair.read_text()


def test_pairs_keep_outputs(book):
    sync(book)
    pair = book.root / "notebooks" / "01_one.ipynb"
    notebook = nbformat.read(pair, as_version=4)
    notebook.cells[2].outputs = [nbformat.v4.new_output("stream", text="kept\n")]
    nbformat.write(notebook, pair)
    later = time.time() + 5
    os.utime(pair, (later, later))
    sync(book)
    assert "kept" in pair.read_text()


# ---- structure


def test_a_sound_book_has_no_problems(book):
    assert check.problems(book) == []


@pytest.mark.parametrize(
    "old, new, fault",
    [
        ("{spine} text ids", "{spine} text pigeons", "levels of: text, ids"),
        ("{spine} text ids", "{note}", "it needs ```{spine} LEVEL"),
        ('tags=["parameters"]', "", 'needs tags=["parameters"]'),
        ("name: python3", "name: theirs", "kernelspec python3"),
        ("# # A title", "# A title", "begin with its title"),
        ("```{solution} e2", "```{note}", "3 exercises and 2 solutions"),
        ("```{exercise}\n# :label: e2", "```{note}\n# :label: e2", "2 exercises"),
        ("n = 2", "n = '/home/me/x'", "holds an absolute path"),
        ("n = 2", "n = '<img src=\"https://x.org/a.png\">'", "from the network"),
    ],
)
def test_each_fault_is_found(book, old, new, fault):
    source = book.chapter("1").source
    text = source.read_text()
    assert old in text
    source.write_text(text.replace(old, new, 1))
    assert any(fault in problem for problem in check.problems(book)), check.problems(book)


def test_a_notebook_without_a_place_is_found(book):
    write(book, "print(2)", name="02_two")
    assert check.problems(book) == ["notebooks/02_two.py has no place in _toc.yml"]


def test_the_command_says_what_is_wrong(book, capsys):
    write(book, "print(2)", name="02_two")
    assert main(["--root", str(book.root), "check"]) == 1
    assert "02_two.py has no place" in capsys.readouterr().err
    assert main(["--root", str(book.root), "chapter", "9"]) == 1
    assert capsys.readouterr().err.strip() == "publish: no chapter '9'; the book has: 01_one"


# ---- pages


def test_staging_says_when_mathjax_is_missing(book):
    run(book)
    with pytest.raises(PublishError, match=r"node_modules holds no MathJax .*npm ci"):
        vendor.mathjax_files(book.root)


def test_staging_removes_what_went_and_keeps_what_stayed(book, monkeypatch):
    (book.root / "_config.yml").write_text("title: t\n")
    monkeypatch.setattr(stage, "mathjax_files", lambda root: {})
    monkeypatch.setattr(stage, "vega_bundle", lambda: "vega")
    run(book)
    (book.root / "notebooks" / "01_one.ipynb").write_text("a reader's own")
    first = stage.stage(book)
    page, old = book.source / "book" / "index.md", book.source / "book" / "old.md"
    before = page.stat().st_mtime_ns
    old.write_text("x")
    assert stage.stage(book) == first
    assert not old.exists() and page.stat().st_mtime_ns == before
    staged = (book.source / "notebooks" / "01_one.ipynb").read_text()
    assert "A title" in staged and "reader" not in staged
    (book.root / "book" / "index.md").write_text("# Other\n")
    assert stage.stage(book) != first


def test_a_page_of_status_needs_a_run_of_each_chapter(book):
    with pytest.raises(PublishError, match="01_one has no record of a run"):
        status.status_page(book)
    run(book)
    page = status.status_page(book)
    assert "{doc}`/notebooks/01_one`" in page
    assert provenance.machine()["processor"] in page


def test_the_scoreboard_has_every_table_that_holds_a_model_to_something(book):
    write(
        book,
        "import pandas as pd\nfrom tokenlife.charts import table",
        "frame = pd.DataFrame({'of': ['a', 'b', 'c'], 'error': [0.01, -0.25, None]})\n"
        "table(frame, 'Seconds $ | modelled', 'measured', formats={'error': '+.0%'})",
        "table(frame.rename(columns={'error': 'bytes'}), 'Not held to anything', 'modelled')",
    )
    run(book)
    page = scoreboard.scoreboard_page(book)
    row = next(line for line in page.splitlines() if "Seconds" in line)
    assert row.split(" | ")[1:] == ["Seconds \\$ \\| modelled", "2", "13.0%", "25.0% |"]
    assert "Not held" not in page
    assert "{doc}`01 </notebooks/01_one>`" in row


def test_the_vega_bundle_leaks_no_names():
    bundle = vendor.vega_bundle()
    assert bundle.startswith("(function(){") and "window.vegaEmbed=" in bundle
    assert len(bundle) < 1_200_000


def test_the_spine_lights_and_links():
    html = spine.spine_html(["ids"], {"text": "a.html", "ids": "#"})
    assert html.count("<li") == len(LEVELS)
    assert '<li class="lit" aria-current="true"><span class="spine-level">ids</span></li>' in html
    assert '<a href="a.html">text</a>' in html
    assert "aria-label" in html
