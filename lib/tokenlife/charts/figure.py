"""A chart as the pages hold it: a ``<figure>`` with its specification, drawn in the browser."""

import hashlib
import html
import json
import math

import altair as alt

from tokenlife.charts.theme import ChartError, in_book, theme


def setup() -> None:
    """Use the book's theme, and inside the book's build its offline renderer."""
    book = in_book()

    @alt.theme.register("tokenlife", enable=True)
    def _theme() -> alt.theme.ThemeConfig:
        return theme(book)

    if book:
        alt.renderers.register("tokenlife-book", _render)
        alt.renderers.enable("tokenlife-book")


def _render(spec: dict, **_) -> dict:
    return {"text/html": figure_html(spec), "text/plain": spec.get("description", "")}


def _round(value: object) -> object:
    """Six significant figures are more than a screen shows, and half the bytes."""
    if isinstance(value, float):
        return float(f"{value:.6g}") if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _round(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_round(item) for item in value]
    return value


def figure_html(spec: dict) -> str:
    """Return the ``<figure>`` of a chart: its specification as JSON, drawn later by the page.

    Parameters
    ----------
    spec
        A Vega-Lite specification with its data inline.

    Returns
    -------
    str
        HTML; equal specifications give equal text.

    Raises
    ------
    ChartError
        If the chart has no ``description``: who cannot see it would get nothing.

    Examples
    --------
    >>> figure_html({"mark": "bar"})
    Traceback (most recent call last):
        ...
    tokenlife.charts.theme.ChartError: a chart without description; write \
alt.Chart(..., description="what the chart shows, in one or two sentences")
    """
    description = spec.get("description", "").strip()
    if not description:
        raise ChartError(
            "a chart without description; write "
            'alt.Chart(..., description="what the chart shows, in one or two sentences")'
        )
    spec = dict(spec)
    if "datasets" in spec:
        spec["datasets"] = _round(spec["datasets"])
    if not {"width", "facet", "hconcat", "vconcat", "concat", "repeat"} & spec.keys():
        spec["width"] = "container"
    if spec.get("width") == "container":
        # Only the width follows the page; with "fit" Vega would complain about heights by step.
        spec.setdefault("autosize", {"type": "fit-x", "contains": "padding"})
    body = json.dumps(spec, separators=(",", ":"), ensure_ascii=False, sort_keys=True)
    # A closing tag inside the data would end the script element.
    body = body.replace("</", "<\\/")
    height = spec.get("height", theme(True)["config"]["view"]["continuousHeight"])
    height = height if isinstance(height, int | float) else 200  # a step: known once drawn
    return (
        f'<figure class="chart" id="chart-{key_of(body)}">'
        f'<div class="chart-canvas" style="min-height:{height + 60:.0f}px"></div>'
        f'<script type="application/json">{body}</script>'
        f"<noscript><p>{html.escape(description)}</p></noscript></figure>"
    )


def key_of(text: str) -> str:
    """Return a short name that depends on nothing but the text."""
    return hashlib.sha256(text.encode()).hexdigest()[:10]
