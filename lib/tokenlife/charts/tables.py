"""Tables and prose that hold values of the run, each with the label that says whence they come."""

import html
import json
import math
import re
from collections.abc import Callable, Mapping

import pandas as pd

from tokenlife.charts.figure import key_of
from tokenlife.charts.theme import LABELS, ChartError, in_book
from tokenlife.provenance import Label

TABLE_TYPE = "application/vnd.tokenlife.table+json"  # of a table's values, beside its HTML


class _Table(str):
    """A table as HTML, with its values for a program that reads the notebook."""

    def _repr_html_(self) -> str:
        return str(self)

    def _repr_mimebundle_(self, **_) -> dict:
        return {TABLE_TYPE: self.values}


def badge(label: str | Label) -> str:
    """Return the HTML of a label: its name, and its meaning as a title.

    Raises
    ------
    ChartError
        If there is no such label.
    """
    if label not in set(Label):
        raise ChartError(f"no label {label!r}; one of: {', '.join(Label)}")
    meaning = html.escape(LABELS[Label(label)].meaning)
    return f'<span class="provenance-tag {label}" title="{meaning}">{label}</span>'


def table(
    frame: pd.DataFrame,
    caption: str,
    label: str | Mapping[str, str],
    formats: Mapping[str, str | Callable] | None = None,
    sortable: bool = False,
) -> _Table:
    """Show a table: caption, where its numbers come from, aligned figures, no index.

    Parameters
    ----------
    frame
        What to show; the first column names the rows.
    caption
        One sentence, plain text.
    label
        The label of all its numbers, or a label for each column that has one.
    formats
        For a column, a format specification (``".1%"``) or a function of the value.
    sortable
        Let the reader sort by a click on a column's name.

    Raises
    ------
    ChartError
        If a label is unknown, or a label or format names no column.

    Examples
    --------
    >>> frame = pd.DataFrame({"vocabulary": ["gpt2"], "tokens": [50257]})
    >>> shown = table(frame, "Size of the vocabulary", "published")
    >>> "<td>50,257</td>" in shown
    True
    """
    labels = dict(label) if isinstance(label, Mapping) else {}
    formats = formats or {}
    unknown = [name for name in (*labels, *formats) if name not in frame.columns]
    if unknown:
        raise ChartError(f"no column {unknown[0]!r}; the table has: {', '.join(map(str, frame))}")
    key = key_of(caption + str(frame.columns.tolist()) + frame.to_json())
    of_all = "" if labels else f" {badge(label)}"
    head = []
    for name in frame.columns:
        numeric = pd.api.types.is_numeric_dtype(frame[name])
        text = html.escape(str(name))
        text = f'<button type="button">{text}</button>' if sortable else text
        tag = f"<br>{badge(labels[name])}" if name in labels else ""
        head.append(f'<th scope="col"{"" if numeric else " class=words"}>{text}{tag}</th>')
    body = []
    for row in frame.itertuples(index=False):
        cells = []
        for place, (name, value) in enumerate(zip(frame.columns, row, strict=True)):
            words = not pd.api.types.is_numeric_dtype(frame[name])
            start = 'th scope="row"' if place == 0 else "td"
            sort = f' data-sort="{value}"' if sortable and not words else ""
            style = " class=words" if words else ""
            text = html.escape(_cell(value, formats.get(name)))
            cells.append(f"<{start}{style}{sort}>{text}</{start.split()[0]}>")
        body.append(f"<tr>{''.join(cells)}</tr>")
    shown = _Table(
        f'<div class="data-table" role="region" tabindex="0" aria-labelledby="table-{key}">'
        f'<table{" data-sortable" if sortable else ""}><caption id="table-{key}">'
        f"{html.escape(caption)}{of_all}</caption><thead><tr>{''.join(head)}</tr></thead>"
        f"<tbody>{''.join(body)}</tbody></table></div>"
    )
    values = json.loads(frame.to_json(orient="split", index=False, double_precision=15))
    shown.values = {"caption": caption, "labels": labels or {"": str(label)}, **values}
    return shown


def _cell(value: object, how: str | Callable | None) -> str:
    if value is None or value is pd.NA or (isinstance(value, float) and math.isnan(value)):
        return "–"
    if callable(how):
        return str(how(value))
    if how is not None:
        return format(value, how)
    if isinstance(value, bool | str):
        return str(value)
    if isinstance(value, float) and math.isfinite(value):
        shown = f"{value:,.{max(0, 3 - math.floor(math.log10(abs(value))))}f}" if value else "0"
        return shown.rstrip("0").rstrip(".") if "." in shown else shown
    return f"{value:,}" if pd.api.types.is_number(value) else str(value)


class _Markdown(str):
    """A piece of MyST Markdown; outside the book, roles are written out."""

    __slots__ = ()

    def _repr_markdown_(self) -> str:
        if in_book():
            return str(self)
        text = re.sub(rf"\{{({'|'.join(Label)})\}}`([^`]*)`", r"\2 (\1)", self)
        return re.sub(r"\{term\}`([^`<]*?)(?: <[^>]*>)?`", r"\1", text)


def prose(markdown: str) -> _Markdown:
    """Show a paragraph that holds values of this run, as MyST Markdown with the book's roles.

    Examples
    --------
    >>> prose("It took {measured}`12 ms`.")._repr_markdown_()
    'It took 12 ms (measured).'
    """
    return _Markdown(markdown)
