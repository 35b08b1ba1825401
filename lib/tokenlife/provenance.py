"""Where a number comes from: four labels, and what is known about the machine that measured.

Every number on a page carries one of four labels. ``modelled``: computed by a formula of this
library. ``measured``: timed or counted in this very run, on this machine. ``recorded``: measured
earlier, kept in ``data/results/`` with machine, date and versions. ``published``: taken from a
paper or a vendor, kept in ``data/reference/`` with its source and table.
"""

import ast
import datetime
import hashlib
import json
import os
import platform
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from importlib import metadata
from pathlib import Path

from tokenlife.errors import TokenlifeError
from tokenlife.files import atomic_write


class ProvenanceError(TokenlifeError, ValueError):
    """A number without a source, or with a label that does not exist."""


class Label(StrEnum):
    """The four kinds of number in the book.

    Examples
    --------
    >>> Label("measured").value, [label.value for label in Label]
    ('measured', ['modelled', 'measured', 'recorded', 'published'])
    """

    MODELLED = "modelled"
    MEASURED = "measured"
    RECORDED = "recorded"
    PUBLISHED = "published"


@dataclass(frozen=True)
class Quantity:
    """A number with its unit, its label and, where it was not computed here, its source.

    Attributes
    ----------
    value
        The number, SI units.
    unit
        ``"B"``, ``"s"``, ``"bit/s"``, ``"FLOP"``, ``""`` for a count.
    label
        One of the four labels.
    source
        Who says so: needed for ``recorded`` and ``published``.

    Raises
    ------
    ProvenanceError
        If a recorded or published number names no source.

    Examples
    --------
    >>> Quantity(124_439_808, "", Label.MODELLED).error_against(
    ...     Quantity(124_000_000, "", Label.PUBLISHED, "GPT-2 paper, table 2"))
    0.003546...
    >>> Quantity(1, "B", Label.PUBLISHED)
    Traceback (most recent call last):
        ...
    tokenlife.provenance.ProvenanceError: a published number needs a source
    """

    value: float
    unit: str
    label: Label
    source: str = ""

    def __post_init__(self):
        if self.label in (Label.RECORDED, Label.PUBLISHED) and not self.source:
            raise ProvenanceError(f"a {self.label} number needs a source")

    def error_against(self, reference: "Quantity") -> float:
        """Return the signed relative error of this number against ``reference`` (a fraction).

        Raises
        ------
        ProvenanceError
            If the two have different units.
        """
        if self.unit != reference.unit:
            raise ProvenanceError(f"cannot compare {self.unit!r} with {reference.unit!r}")
        return self.value / reference.value - 1


def machine() -> dict[str, str | int]:
    """Describe the machine of this run, as it stands beside each measured number.

    Returns
    -------
    dict
        ``processor``, ``cores`` (those this process may use), ``memory_bytes`` (0 where unknown),
        ``system``, ``python`` and the versions of numpy and torch.

    Examples
    --------
    >>> sorted(machine())
    ['cores', 'memory_bytes', 'numpy', 'processor', 'python', 'system', 'torch']
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    try:
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        memory = 0
    return {
        "processor": _processor(),
        "cores": cores or 1,
        "memory_bytes": memory,
        "system": f"{platform.system()} {platform.release().split('-')[0]} {platform.machine()}",
        "python": sys.version.split()[0],
        "numpy": _version("numpy"),
        "torch": _version("torch"),
    }


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith(("model name", "Model")):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _version(package: str) -> str:
    # From the package's metadata: importing torch for its version alone costs seconds.
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"


def code_hash(parts: Sequence[str]) -> str:
    """Hash what a part of this library does: its syntax trees, without comments and docstrings.

    Parameters
    ----------
    parts
        Files or folders below ``tokenlife``: ``"costs/roofline.py"``, ``"transformer"``.

    Raises
    ------
    ProvenanceError
        If there is no such part.

    Examples
    --------
    >>> len(code_hash(["units.py"])), code_hash(["units.py"]) == code_hash(["provenance.py"])
    (64, False)
    """
    root = Path(__file__).resolve().parent
    digest = hashlib.sha256()
    for part in sorted(parts):
        path = root / part
        files = sorted(path.rglob("*.py")) if path.is_dir() else [path]
        if not files or not all(file.is_file() for file in files):
            raise ProvenanceError(f"no part {part!r} in the library")
        for file in files:
            tree = ast.parse(file.read_text(encoding="utf-8"))
            for node in ast.walk(tree):
                documented = isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
                if documented and ast.get_docstring(node) is not None:
                    node.body = node.body[1:]
            digest.update(f"\0{file.relative_to(root).as_posix()}\0{ast.dump(tree)}".encode())
    return digest.hexdigest()


def write_record(path: str | Path, values: dict, parts: Sequence[str]) -> dict:
    """Write measured values with what is needed to trust them later; the old file stays till then.

    Parameters
    ----------
    path
        The JSON file, in ``data/results/`` for the book.
    values
        What was measured, as plain values.
    parts
        The parts of the library that were measured, as :func:`code_hash` takes them.

    Returns
    -------
    dict
        ``date``, ``machine``, ``code`` (its parts and their hash) and ``values``: what was written.

    Raises
    ------
    ProvenanceError
        If it cannot be written.
    """
    path = Path(path)
    record = {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "machine": machine(),
        "code": {"parts": sorted(parts), "sha256": code_hash(parts)},
        "values": values,
    }
    text = json.dumps(record, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    with atomic_write(path, ProvenanceError) as file:
        file.write(text.encode())
    return record


def is_stale(record: dict) -> bool:
    """Tell whether the code that a record measured has changed since."""
    return code_hash(record["code"]["parts"]) != record["code"]["sha256"]
