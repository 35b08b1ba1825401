"""What the trace page knows: the book's vocabulary, the sizes of some models, frames' headers.

``_static/trace.js`` counts with it in the reader's browser.
"""

import json
import re

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from tokenlife.catalog import running
from tokenlife.costs import count_parameters
from tokenlife.tokenizer import Tokenizer, vocabularies
from tokenlife.transformer import ModelConfig
from tokenlife.wire import framing

MODELS = ("running-gpt", "gpt2", "llama-3.1-8b", "llama-3.1-70b", "llama-3.1-405b")
RANKS = (2, 4, 8, 16, 32, 64, 128, 256)
MTUS = (1500, 9000)


def javascript(pattern: str) -> str:
    r"""Return a pattern as JavaScript reads it the same way.

    There a space is another set of characters, and a part cannot ignore case in every browser.

    Examples
    --------
    >>> javascript(r"(?i:'s|'re)|\s+(?!\S)|[^\s\p{L}]")
    "(?:'[sSſ]|'[rR][eE])|\\p{White_Space}+(?!\\P{White_Space})|[^\\p{White_Space}\\p{L}]"
    """

    def both_cases(match: re.Match) -> str:
        letters = {"s": "[sSſ]"}  # the long s is an s in lower case

        def cases(c: re.Match) -> str:
            return letters.get(c[0], f"[{c[0]}{c[0].upper()}]")

        return f"(?:{re.sub('[a-z]', cases, match[1])})"

    pattern = re.sub(r"\(\?i:([^()]*)\)", both_cases, pattern)
    return pattern.replace(r"\s", r"\p{White_Space}").replace(r"\S", r"\P{White_Space}")


def vocabulary(tokenizer: Tokenizer) -> dict:
    """Return a vocabulary as the page takes it."""
    (pattern,) = tokenizer.pretokenizer.patterns
    ids = {token: id_ for id_, token in tokenizer.tokens().items()}
    return {
        "pattern": javascript(pattern),
        "merges": tokenizer.merges,
        "products": [tokenizer.product(rank) for rank in range(len(tokenizer.merges))],
        "bytes": [ids[bytes([byte])] for byte in range(256)],
        "size": tokenizer.n_vocab,
    }


def knowledge() -> dict:
    """Return all that the page knows."""
    models = {}
    for name in MODELS:
        config = ModelConfig.load(name)
        models[name] = {
            "parameters": count_parameters(config),
            "hidden": config.hidden,
            "vocab": config.vocab,
            "positions": config.positions,
        }
    return {
        "sentence": running()["sentence"],
        "vocabulary": vocabulary(vocabularies.load("book")),
        "models": models,
        "ranks": RANKS,
        "mtus": MTUS,
        "wire": {
            "headers": framing.tcp_over_ethernet(MTUS[0]).headers,
            "ethernet": framing.ETHERNET_HEADER + framing.FRAME_CHECK,
            "smallest": framing.SMALLEST_FRAME,
            "silent": framing.PREAMBLE + framing.INTERFRAME_GAP,
        },
    }


class TraceDirective(SphinxDirective):
    """``{tracer}``: the place where the page builds itself, and its data."""

    def run(self) -> list[nodes.Node]:
        """Return the element."""
        data = json.dumps(knowledge(), separators=(",", ":")).replace("</", "<\\/")
        words = "<p>This part of the page runs in the browser, and needs JavaScript.</p>"
        html = f'<div data-trace>{words}<script type="application/json">{data}</script></div>'
        return [nodes.raw("", html, format="html")]


def setup(app: Sphinx) -> dict:
    """Register the directive."""
    app.add_directive("tracer", TraceDirective)
    return {"parallel_read_safe": True}
