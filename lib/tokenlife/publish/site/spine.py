"""The map of the spine: nine levels, the page's own lit, each linked to the chapter that treats it.

``{spine} LEVEL …`` draws the small map; ``{spine-map}`` draws the large one, which says what each
level is. A level links to the first page of the table of contents that lights it, so the map grows
with the book and no list of links is kept anywhere.
"""

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from tokenlife.ledger import LEVELS

MEANING = {
    "text": "what a person typed, as UTF-8 bytes",
    "ids": "pieces of that text, each a number of a vocabulary",
    "tensors": "the numbers that pass between the stages of the model",
    "operations": "the arithmetic and memory that the stages cost",
    "communication": "what one GPU must tell others: an operation, a group, a number of bytes",
    "messages": "who sends which part to whom, round by round",
    "flows": "the messages on their paths through the network, over time",
    "packets": "the flows cut to what a link carries at once, with every header",
    "bits": "all that occupies the wire, preamble and gaps included",
}
assert tuple(MEANING) == LEVELS, "each level of the ledger needs its meaning here"


class spine_node(nodes.General, nodes.Element):
    """A map; ``levels`` are lit, ``full`` adds what each level is."""


class Spine(SphinxDirective):
    """``{spine} LEVEL …`` at the top of a chapter."""

    required_arguments = 1
    final_argument_whitespace = True

    def run(self) -> list[nodes.Node]:
        """Note the page's levels and leave a node to be drawn once every page is read."""
        levels = self.arguments[0].split()
        wrong = [level for level in levels if level not in LEVELS]
        if wrong:
            raise self.error(f"no level {wrong[0]!r} in the spine; known: {', '.join(LEVELS)}")
        _pages(self.env)[self.env.docname] = levels
        return [spine_node("", levels=levels, full=False)]


class SpineMap(SphinxDirective):
    """``{spine-map}``: the large map of the front page."""

    def run(self) -> list[nodes.Node]:
        """Leave a node to be drawn once every page is read."""
        return [spine_node("", levels=[], full=True)]


def _pages(env) -> dict[str, list[str]]:
    if not hasattr(env, "tokenlife_spine"):
        env.tokenlife_spine = {}
    return env.tokenlife_spine


def _chapters_of(env) -> dict[str, str]:
    """Map each level to the first page that lights it, in reading order."""
    pages = _pages(env)
    order = [name for name in env.toctree_includes.get(env.config.root_doc, []) if name in pages]
    order += [name for name in sorted(pages) if name not in order]
    return {level: page for page in reversed(order) for level in pages[page]}


def draw(app: Sphinx, doctree: nodes.document, docname: str) -> None:
    """Turn each map into HTML, when all pages are known."""
    chapters = _chapters_of(app.env)
    for node in list(doctree.findall(spine_node)):
        links = {
            level: app.builder.get_relative_uri(docname, page) if page != docname else "#"
            for level, page in chapters.items()
        }
        html = spine_html(node["levels"], links, node["full"])
        node.replace_self(nodes.raw("", html, format="html"))


def spine_html(lit: list[str], links: dict[str, str], full: bool = False) -> str:
    """Return the map as a list in a landmark.

    Examples
    --------
    >>> drawn = spine_html(["ids"], {"text": "01.html", "ids": "#"})
    >>> drawn.count("<li"), drawn.count('aria-current="true"')
    (9, 1)
    """
    items = []
    for level in LEVELS:
        here = level in lit
        name = f'<a href="{links[level]}">{level}</a>' if level in links and not here else level
        name = f'<span class="spine-level">{name}</span>'
        about = f'<span class="spine-meaning">{MEANING[level]}</span>' if full else ""
        current = ' class="lit" aria-current="true"' if here else ""
        items.append(f"<li{current}>{name}{about}</li>")
    kind, label = ("spine-map", "The nine levels") if full else ("spine", "Where the token is")
    return f'<nav class="{kind}" aria-label="{label}"><ol>{"".join(items)}</ol></nav>'


def forget(app: Sphinx, env, docname: str) -> None:
    """Forget a page that is read again."""
    _pages(env).pop(docname, None)


def merge(app: Sphinx, env, docnames, other) -> None:
    """Take over the pages that another process has read."""
    _pages(env).update(_pages(other))


def setup(app: Sphinx) -> dict:
    """Register the directives and their events."""
    app.add_node(spine_node)
    app.add_directive("spine", Spine)
    app.add_directive("spine-map", SpineMap)
    app.connect("doctree-resolved", draw)
    app.connect("env-purge-doc", forget)
    app.connect("env-merge-info", merge)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
