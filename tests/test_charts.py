"""Charts, tables and labels: legible, deterministic, accessible, and quiet outside the book."""

import itertools
import json
import re
import subprocess
import sys

import altair as alt
import numpy as np
import pandas as pd
import pytest
from tokenlife import charts
from tokenlife.jobs import trace
from tokenlife.ledger import LEVELS
from tokenlife.provenance import Label

PAGES = {"light": "#ffffff", "dark": "#121212"}  # the theme's two backgrounds

# Machado, Oliveira and Fernandes (2009), full severity, in linear RGB.
VISION = {
    "full": np.eye(3),
    "protanopia": [
        [0.152286, 1.052583, -0.204868],
        [0.114503, 0.786281, 0.099216],
        [-0.003882, -0.048116, 1.051998],
    ],
    "deuteranopia": [
        [0.367322, 0.860646, -0.227968],
        [0.280085, 0.672501, 0.047413],
        [-0.011820, 0.042940, 0.968881],
    ],
    "tritanopia": [
        [1.255528, -0.076749, -0.178779],
        [-0.078411, 0.930809, 0.147602],
        [0.004733, 0.691367, 0.303900],
    ],
}


def linear(colour: str) -> np.ndarray:
    channel = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    return np.where(channel <= 0.04045, channel / 12.92, ((channel + 0.055) / 1.055) ** 2.4)


def contrast(one: str, other: str) -> float:
    low, high = sorted(float(linear(c) @ [0.2126, 0.7152, 0.0722]) for c in (one, other))
    return (high + 0.05) / (low + 0.05)


def oklab(rgb: np.ndarray) -> np.ndarray:
    lms = np.cbrt(
        np.array(
            [
                [0.4122214708, 0.5363325363, 0.0514459929],
                [0.2119034982, 0.6806995451, 0.1073969566],
                [0.0883024619, 0.2817188376, 0.6299787005],
            ]
        )
        @ np.clip(rgb, 0, 1)
    )
    return (
        np.array(
            [
                [0.2104542553, 0.7936177850, -0.0040720468],
                [1.9779984951, -2.4285922050, 0.4505937099],
                [0.0259040371, 0.7827717662, -0.8086757660],
            ]
        )
        @ lms
    )


@pytest.fixture(autouse=True)
def altair_as_before():
    theme, renderer = alt.theme.active, alt.renderers.active
    yield
    alt.theme.enable(theme)
    alt.renderers.enable(renderer)


@pytest.fixture
def chart():
    frame = pd.DataFrame({"x": [1, 2], "y": [1 / 3, 2 / 3]})
    return alt.Chart(frame, description="Two points.").mark_point().encode(x="x:Q", y="y:Q")


@pytest.mark.parametrize("page", PAGES)
@pytest.mark.parametrize("name", charts.PALETTE)
def test_colours_stand_out_from_both_pages(name, page):
    assert contrast(charts.PALETTE[name], PAGES[page]) >= 3  # WCAG 1.4.11, graphical objects


@pytest.mark.parametrize("vision", VISION)
def test_colours_stay_apart_for_everybody(vision):
    seen = {n: oklab(np.array(VISION[vision]) @ linear(c)) for n, c in charts.PALETTE.items()}
    for one, other in itertools.combinations(seen, 2):
        assert np.linalg.norm(seen[one] - seen[other]) >= 0.09, (one, other)


def test_the_four_labels_differ_in_colour_and_shape():
    styles = list(charts.LABELS.values())
    assert set(charts.LABELS) == set(Label)
    assert len({s.colour for s in styles}) == len({s.shape for s in styles}) == len(Label)


def test_outside_the_book_the_renderer_stays(monkeypatch):
    monkeypatch.delenv("TOKENLIFE_BOOK", raising=False)
    before = alt.renderers.active
    charts.setup()
    assert alt.renderers.active == before
    assert "currentColor" not in json.dumps(alt.theme.get()())


def test_in_the_book_a_chart_is_a_figure(monkeypatch, chart):
    monkeypatch.setenv("TOKENLIFE_BOOK", "1")
    charts.setup()
    shown = chart._repr_mimebundle_()
    shown = shown[0] if isinstance(shown, tuple) else shown
    assert shown["text/plain"] == "Two points."
    body = re.search(r'<script type="application/json">(.*)</script>', shown["text/html"])[1]
    spec = json.loads(body)
    assert spec["width"] == "container"
    assert spec["config"]["axis"]["labelColor"] == "currentColor"
    assert 'id="chart-' in shown["text/html"]


def test_equal_charts_give_equal_text_in_two_processes():
    code = (
        "import altair as alt, pandas as pd; from tokenlife import charts; charts.setup();"
        "c = alt.Chart(pd.DataFrame({'x': [0.1, 0.2]}), description='d').mark_bar();"
        "c = c.encode(x='x:Q');"
        "p = alt.param(value=1, bind=alt.binding_range(min=0, max=1));"
        "print(charts.figure_html(c.add_params(p).to_dict()))"
    )
    runs = [
        subprocess.run(
            [sys.executable, "-c", code], env={"TOKENLIFE_BOOK": "1", "PYTHONHASHSEED": seed},
            capture_output=True, text=True, check=True,
        ).stdout
        for seed in ("1", "2")
    ]  # fmt: skip
    assert runs[0] == runs[1]


def test_a_chart_that_nobody_described_is_refused(chart):
    with pytest.raises(charts.ChartError, match="without description"):
        charts.figure_html(chart.properties(description=" ").to_dict())


def test_data_cannot_break_out_of_the_script(chart):
    frame = pd.DataFrame({"x": ["</script><b>"], "y": [1]})
    html = charts.figure_html(chart.properties(data=frame).to_dict())
    assert html.count("</script>") == 1


def test_figures_are_rounded_and_not_a_number_is_null(chart):
    frame = pd.DataFrame({"x": [1 / 3, float("inf")], "y": [1, 2]})
    html = charts.figure_html(chart.properties(data=frame).to_dict())
    assert "0.333333}" in html.replace(',"y":1', "")
    assert "Infinity" not in html


def test_concatenated_charts_keep_their_widths(chart):
    spec = (chart | chart).properties(description="Twice.").to_dict()
    assert '"width":"container"' not in charts.figure_html(spec)


def test_a_table_has_caption_headers_and_label():
    frame = pd.DataFrame({"name": ["a<b"], "n": [1234567], "share": [0.25], "none": [np.nan]})
    html = charts.table(frame, "What & why", "published", {"share": ".0%"})._repr_html_()
    assert "What &amp; why" in html and 'class="provenance-tag published"' in html
    assert '<th scope="row" class=words>a&lt;b</th>' in html
    assert "<td>1,234,567</td><td>25%</td><td>–</td>" in html
    assert html.count('scope="col"') == 4
    assert 'tabindex="0"' in html and 'role="region"' in html


def test_a_table_with_a_label_for_each_column():
    frame = pd.DataFrame({"op": ["x"], "model": [1.0], "run": [1.1]})
    html = charts.table(frame, "Both", {"model": "modelled", "run": "measured"}, sortable=True)
    assert html.count("provenance-tag") == 2
    assert html.count("<button") == 3 and 'data-sort="1.1"' in html


@pytest.mark.parametrize(
    "label, formats, message",
    [
        ("guessed", None, "no label 'guessed'"),
        ({"y": "measured"}, None, "no column 'y'"),
        ("measured", {"z": ".1f"}, "no column 'z'"),
    ],
)
def test_a_table_refuses_what_it_does_not_know(label, formats, message):
    with pytest.raises(charts.ChartError, match=message):
        charts.table(pd.DataFrame({"x": [1]}), "c", label, formats)


@pytest.mark.parametrize(
    "value, shown",
    [(0.0, "0"), (1234.5678, "1,235"), (0.0123456, "0.01235"), (12.0, "12"), (-3.14159, "-3.142"),
     (1e9, "1,000,000,000"), (float("inf"), "inf"), (True, "True")],
)  # fmt: skip
def test_cells_show_four_figures(value, shown):
    assert f">{shown}<" in charts.table(pd.DataFrame({"x": [value]}), "c", "measured")


def test_prose_keeps_roles_in_the_book_only(monkeypatch):
    text = charts.prose("{measured}`12 ms` on a {term}`rank`, two {term}`ranks <rank>`")
    monkeypatch.delenv("TOKENLIFE_BOOK", raising=False)
    assert text._repr_markdown_() == "12 ms (measured) on a rank, two ranks"
    monkeypatch.setenv("TOKENLIFE_BOOK", "1")
    assert text._repr_markdown_() == str(text)


def test_the_ledger_chart_shows_every_level():
    spec = charts.ledger(trace().ledger).to_dict()
    rows = next(iter(spec["datasets"].values()))
    assert [row["level"] for row in rows] == list(LEVELS)
    assert all(level in spec["description"] for level in LEVELS)
