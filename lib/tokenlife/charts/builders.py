"""Charts that several chapters share."""

import altair as alt
import pandas as pd

from tokenlife.ledger import Ledger
from tokenlife.units import format_bytes


def ledger(account: Ledger) -> alt.LayerChart:
    """Draw an account from words to bits: one dot a level, bytes on a logarithmic axis."""
    first, last = account.levels[0].bytes_, account.levels[-1].bytes_
    rows = [
        {
            "level": level.name,
            "bytes": level.bytes_,
            "shown": format_bytes(level.bytes_),
            "how": level.how,
        }
        for level in account.levels
    ]
    takeaway = f"{format_bytes(first)} of {rows[0]['level']} put {format_bytes(last)} on the wire"
    described = "; ".join(f"{row['level']} {row['shown']}" for row in rows)
    base = alt.Chart(pd.DataFrame(rows)).encode(
        y=alt.Y("level:N", sort=None, title=None),
        x=alt.X("bytes:Q", title="bytes (logarithmic)")
        .axis(format="~s", tickCount=6)
        .scale(type="log", domainMin=1),
        tooltip=[alt.Tooltip("level:N"), alt.Tooltip("bytes:Q", format=","), alt.Tooltip("how:N")],
    )
    stem = base.mark_rule(opacity=0.35).encode(x2=alt.datum(1))
    label = base.mark_text(align="left", dx=9).encode(text="shown:N")
    return (stem + base.mark_point(size=90) + label).properties(
        title=takeaway,
        description=f"{takeaway}. Bytes at each level: {described}.",
        height=alt.Step(27),
    )
