"""Figures of the hand-written pages, made by the library when the pages are built."""

import altair as alt

from tokenlife import charts
from tokenlife.jobs import trace


def running_ledger() -> alt.LayerChart:
    """Draw the running sentence and its small job, from words to bits."""
    return charts.ledger(trace().ledger)
