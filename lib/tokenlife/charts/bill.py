"""A bill that stands alone: one HTML file with the ledger of a job, read without a network.

Each level is a row: exact bytes, and a dot on a logarithmic scale. A dot and no bar: on such a
scale the length of a bar says nothing. The terms stand under their level, with their sign. Light
and dark follow the reader's system; the dots are for the eye alone, all they say is in the figures.
"""

import html
import math

from tokenlife.units import format_bits, format_bytes

_STYLE = """
:root{color-scheme:light dark;--ink:#222832;--paper:#fff;--line:#8884;--dot:#0072b2}
@media(prefers-color-scheme:dark){:root{--ink:#e8eaed;--paper:#14181e;--dot:#58b1ec}}
body{font:16px/1.5 system-ui,sans-serif;color:var(--ink);background:var(--paper);margin:2rem auto;
max-width:62rem;padding:0 1rem}
table{border-collapse:collapse;width:100%}caption{text-align:left;padding:.5rem 0}
th,td{padding:.2rem .6rem;border-bottom:1px solid var(--line);text-align:left;vertical-align:top}
th.n{text-align:right}
td.n{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}
tr.term th{font-weight:400;padding-left:1.8rem}tr.term{font-size:.9em}
.scale{position:relative;height:1.1rem;min-width:9rem;border-bottom:1px solid var(--line)}
.scale i{position:absolute;top:.25rem;width:.7rem;height:.7rem;margin-left:-.35rem;
border-radius:50%;background:var(--dot)}
.wide{overflow-x:auto}@media(max-width:40rem){.how{display:none}th,td{padding:.2rem .3rem}
.scale{min-width:2rem}td.n{white-space:normal}table{font-size:.85rem}}
""".replace("\n", "")


def page(job: dict) -> str:
    """Return the page.

    Parameters
    ----------
    job
        What :meth:`tokenlife.jobs.trace.Trace.to_dict` returns.

    Examples
    --------
    >>> from tokenlife.jobs.trace import trace
    >>> text = page(trace("some words").to_dict())
    >>> text.count("<tr class=level>"), "http" in text
    (9, False)
    """
    most = max(level["bytes"] for level in job["levels"])
    decades = max(1, math.ceil(math.log10(max(most, 1))))
    rows = []
    for level in job["levels"]:
        bytes_, name = level["bytes"], level["level"]
        dot = f'<i style="left:{100 * math.log10(bytes_) / decades:.1f}%"></i>' if bytes_ else ""
        rows.append(
            f"<tr class=level><th scope=row>{name}</th><td class=n>{bytes_:,}</td>"
            f'<td><div class=scale aria-hidden=true title="{format_bytes(bytes_)}">{dot}</div></td>'
            f"<td class=how>{html.escape(level['how'])}</td></tr>"
        )
        rows += [
            f"<tr class=term><th scope=row>{html.escape(term)}</th><td class=n>{added:+,}</td>"
            f"<td></td><td class=how>{html.escape(level['why'][term])}</td></tr>"
            for term, added in level["overheads"].items()
        ]
    axes = "".join(
        f"<tr><th scope=row>{axis}</th>"
        + "".join(f"<td class=n>{format_bytes(sums[n])}</td>" for n in ("messages", "in_node"))
        + f"<td class=n>{format_bits(sums['card_bits_per_token'])}</td></tr>"
        for axis, sums in job["per_axis"].items()
    )
    served = "served" if job["serving"] else "trained on"
    title = f"The bill of {job['model']}"
    return f"""<!doctype html>
<html lang=en><head><meta charset=utf-8><meta name=viewport content="width=device-width">
<title>{html.escape(title)}</title><style>{_STYLE}</style></head><body><main>
<h1>{html.escape(title)}</h1>
<p lang="">“{html.escape(job["text"])}”</p>
<p>{html.escape(job["layout"])}; {job["transport"]}, MTU {job["mtu"]}.
<b>{format_bits(job["wire_bits_per_token"])}</b> on all network links for each token {served},
{format_bits(job["card_bits_per_token"])} of them out of network cards;
{format_bytes(job["node_bytes_per_token"])} beside them stay in nodes. All numbers are modelled.</p>
<div class=wide role=region tabindex=0 aria-label="Ledger"><table>
<caption>From words to bits. The dots stand on a logarithmic scale from 1 B to
{format_bytes(10**decades)}.</caption>
<thead><tr><th scope=col>level<th scope=col class=n>bytes<th scope=col>size
<th scope=col class=how>how</tr></thead><tbody>{"".join(rows)}</tbody></table></div>
<div class=wide role=region tabindex=0 aria-label="By axis"><table>
<caption>By axis of parallelism</caption>
<thead><tr><th scope=col>axis<th scope=col class=n>messages<th scope=col class=n>in nodes
<th scope=col class=n>out of cards, a token</tr></thead><tbody>{axes}</tbody></table></div>
</main></body></html>
"""
