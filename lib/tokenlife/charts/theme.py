"""The look of every chart: palette, the four labels, one Vega-Lite theme.

Every colour of :data:`PALETTE` has a contrast of at least 3:1 on the light and on the dark page,
and any two stay apart under the three common colour-vision deficiencies: ``tests/test_charts.py``
computes both. The start was the palette of Okabe and Ito, half of which is too pale on white.
Ink is the page's own text colour, so a chart follows the page's theme without being drawn again.
"""

import os
from dataclasses import dataclass

from tokenlife.errors import TokenlifeError
from tokenlife.provenance import Label

PALETTE = {
    "blue": "#0072b2",
    "orange": "#e8590c",
    "sky": "#3399dd",
    "brick": "#a84a4c",
    "grey": "#8f8a86",
    "violet": "#9a33f5",
}


@dataclass(frozen=True)
class LabelStyle:
    """How a label is drawn (colour and shape, never colour alone) and what it means."""

    colour: str
    shape: str
    meaning: str


LABELS = {
    Label.MODELLED: LabelStyle(PALETTE["blue"], "circle", "computed by a formula of this book"),
    Label.MEASURED: LabelStyle(
        PALETTE["orange"], "square", "timed or counted in this run, on the machine named in Status"
    ),
    Label.RECORDED: LabelStyle(
        PALETTE["sky"], "triangle-up", "measured earlier; machine and date are kept with it"
    ),
    Label.PUBLISHED: LabelStyle(
        PALETTE["grey"], "diamond", "taken from a paper or a vendor; the source is named"
    ),
}

# What an axis writes at its ticks, given as its labelExpr: bytes in binary units, seconds in ms.
SIZE_TICKS = (
    "datum.value < 1024 ? datum.value + ' B' : datum.value < 1048576 ? datum.value / 1024 + ' KiB' "
    ": datum.value < 1073741824 ? datum.value / 1048576 + ' MiB' "
    ": datum.value / 1073741824 + ' GiB'"
)
TIME_TICKS = "replace(format(datum.value, '~s'), regexp('([a-zµ]?)$'), ' $1s')"
# A logarithmic axis of seconds: left alone it would write every multiple of a power of ten.
LOG_TIME_AXIS = {
    "labelExpr": TIME_TICKS,
    "values": [leading * 10.0**power for power in range(-9, 4) for leading in (1, 3)],
}


class ChartError(TokenlifeError, ValueError):
    """A chart, table or label that a reader could not understand."""


def in_book() -> bool:
    """Tell whether this process runs inside the book's own build."""
    return os.environ.get("TOKENLIFE_BOOK") == "1"


def theme(book: bool) -> dict:
    """Return the Vega-Lite theme; in the book, ink and font come from the page.

    Examples
    --------
    >>> theme(book=True)["config"]["axis"]["labelColor"]
    'currentColor'
    """
    ink, ground = ("currentColor", "transparent") if book else ("#222832", "white")
    config = {
        "background": ground,
        "padding": 2,
        "view": {"stroke": None, "continuousHeight": 260},
        "axis": {
            "labelColor": ink,
            "titleColor": ink,
            "domainColor": ink,
            "domainOpacity": 0.5,
            "tickColor": ink,
            "tickOpacity": 0.5,
            "gridColor": ink,
            "gridOpacity": 0.13,
            "labelFontSize": 12,
            "titleFontSize": 12,
            "titleFontWeight": "normal",
            "titlePadding": 8,
            "labelLimit": 220,
        },
        "axisX": {"grid": False},
        "axisBand": {"grid": False, "domain": False, "ticks": False},
        "legend": {
            "labelFontSize": 12,
            "labelColor": ink,
            "titleColor": ink,
            "titleFontWeight": "normal",
            "orient": "top",
        },
        "header": {"labelColor": ink, "titleColor": ink, "labelFontSize": 12},
        "title": {
            "color": ink,
            "subtitleColor": ink,
            "fontSize": 15,
            "fontWeight": 600,
            "subtitleFontSize": 12.5,
            "anchor": "start",
            "frame": "bounds",
            "offset": 14,
        },
        "mark": {"color": PALETTE["blue"]},
        "text": {"color": ink, "fontSize": 12},
        "rule": {"color": ink},
        "line": {"strokeWidth": 2.2},
        "point": {"size": 60, "filled": True, "opacity": 1},
        "range": {
            "category": list(PALETTE.values()),
            "symbol": [style.shape for style in LABELS.values()],
        },
    }
    if not book:  # in the book the page's own font is set when the chart is drawn
        config["font"] = "system-ui, sans-serif"
    return {"config": config}
