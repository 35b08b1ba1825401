"""Where a number comes from: four labels, and what is known about the machine that measured.

Every number on a page carries one of four labels. ``modelled``: computed by a formula of this
library. ``measured``: timed or counted in this very run, on this machine. ``recorded``: measured
earlier, kept in ``data/results/`` with machine, date and versions. ``published``: taken from a
paper or a vendor, kept in ``data/reference/`` with its source and table.
"""

import os
import platform
import sys
from dataclasses import dataclass
from enum import StrEnum
from importlib import metadata
from pathlib import Path

from tokenlife.errors import TokenlifeError


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
