"""How numbers are shown: one theme for every chart, tables with a label, prose with values in it.

A chapter calls :func:`setup` once. In the book's own build (the environment holds
``TOKENLIFE_BOOK=1``) a chart becomes a ``<figure>`` that holds its specification as JSON and is
drawn in the reader's browser from files beside the page, offline. Everywhere else (JupyterLab,
VS Code) Altair's default renderer stays.
"""

from tokenlife.charts.builders import ledger
from tokenlife.charts.figure import figure_html, setup
from tokenlife.charts.tables import badge, prose, table
from tokenlife.charts.theme import (
    LABELS,
    LOG_TIME_AXIS,
    PALETTE,
    SIZE_TICKS,
    TIME_TICKS,
    ChartError,
    LabelStyle,
    in_book,
    theme,
)

__all__ = [
    "LABELS",
    "LOG_TIME_AXIS",
    "PALETTE",
    "SIZE_TICKS",
    "TIME_TICKS",
    "ChartError",
    "LabelStyle",
    "badge",
    "figure_html",
    "in_book",
    "ledger",
    "prose",
    "setup",
    "table",
    "theme",
]
