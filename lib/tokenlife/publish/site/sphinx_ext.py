"""The book's own Sphinx extension: labels, charts, the spine, the API page, and two mends.

Mended: the theme starts Thebe (live code over the network) on every page, twice, which throws an
error; its scripts are left out. ``MENDS`` lists what is mended in the finished pages. The map of
the spine has a module of its own.
"""

import importlib
import pkgutil
import re
from pathlib import Path

import altair as alt
from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective, SphinxRole

import tokenlife
from tokenlife.charts import ChartError, badge, figure_html, theme
from tokenlife.provenance import Label
from tokenlife.publish.site import spine, tracer

HEADING = re.compile(r"^(\S.*)\n[-=~^]{3,}$", re.MULTILINE)
MENDS = (
    # A page opened from a file may not preload a font; the style sheets load it anyway.
    (re.compile(r'<link\b[^>]*\brel="preload"[^>]*\bas="font"[^>]*>'), ""),
    # A list's children must be list items; those of a list of citations are not.
    (re.compile(r'<div role="list" class="citation-list">'), '<div class="citation-list">'),
)
MODULES_GO_HERE = re.compile(r"<!-- modules of (.*?) -->")


class provenance(nodes.Inline, nodes.TextElement):
    """A number, or a few words, with the label that says where it comes from."""


class LabelRole(SphinxRole):
    """``{measured}`12 ms```: the text, then its label in small letters."""

    def run(self) -> tuple[list[nodes.Node], list]:
        """Return the labelled text."""
        return [provenance(self.rawtext, self.text, label=self.name)], []


def visit_provenance(translator, node: provenance) -> None:
    """Open the element."""
    translator.body.append(f'<span class="provenance {node["label"]}">')


def depart_provenance(translator, node: provenance) -> None:
    """Close it, after the label's name."""
    translator.body.append(f"{badge(node['label'])}</span>")


class ChartDirective(SphinxDirective):
    """``{chart} module:function``: the chart that a function without arguments returns."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """Call the function with the book's theme and return the figure."""
        module, _, name = self.arguments[0].partition(":")
        try:
            function = getattr(importlib.import_module(module), name)
        except (ImportError, AttributeError, ValueError) as error:
            raise self.error(f"no chart {self.arguments[0]!r}: {error}") from error
        alt.theme.register("tokenlife-page", enable=True)(lambda: theme(book=True))
        try:
            html = figure_html(function().to_dict())
        except ChartError as error:
            raise self.error(f"{self.arguments[0]}: {error}") from error
        return [nodes.raw("", html, format="html")]


def list_modules(app: Sphinx, docname: str, source: list[str]) -> None:
    """Put the documentation of rooms where a page says ``<!-- modules of wire network -->``."""

    def documented(match: re.Match) -> str:
        rooms = match[1].split()
        return "\n".join(_module(m) for m in public_modules() if m.split(".")[1] in rooms)

    source[0] = MODULES_GO_HERE.sub(documented, source[0])


def public_modules() -> list[str]:
    """List the library's modules: all but those whose name begins with an underscore.

    Examples
    --------
    >>> "tokenlife.ledger" in public_modules()
    True
    """
    found = pkgutil.walk_packages(tokenlife.__path__, "tokenlife.")
    names = [m.name for m in found if not m.name.rpartition(".")[2].startswith("_")]
    return sorted(names)


def _module(name: str) -> str:
    # Only what a module defines itself: a package that passes names on would list them twice.
    options = "   :members:\n   :ignore-module-all:"
    return f"## {name}\n\n```{{eval-rst}}\n.. automodule:: {name}\n{options}\n```\n"


def headings_to_rubrics(app: Sphinx, what: str, name: str, obj, options, lines: list[str]) -> None:
    """Let a module's docstring have underlined headings, which are no sections of the page."""
    if what == "module":
        text = HEADING.sub(r".. rubric:: \1\n", "\n".join(lines))
        lines[:] = text.split("\n")


def without_thebe(app: Sphinx, pagename, templatename, context: dict, doctree) -> None:
    """Leave out the scripts that would fetch Thebe from the network."""

    def is_thebe(script) -> bool:
        attributes = getattr(script, "attributes", {})
        return "thebe" in f"{attributes.get('body')} {getattr(script, 'filename', '')}".lower()

    for kind in ("script_files", "css_files"):
        context[kind] = [file for file in context.get(kind, []) if not is_thebe(file)]


def mend_pages(app: Sphinx, error: Exception | None) -> None:
    """Mend in the finished pages what their templates get wrong; see ``MENDS``."""
    if error is None and app.builder.format == "html":
        for page in Path(app.outdir).rglob("*.html"):
            text = mended = page.read_text(encoding="utf-8")
            for wrong, right in MENDS:
                mended = wrong.sub(right, mended)
            if mended != text:
                page.write_text(mended, encoding="utf-8")


def setup(app: Sphinx) -> dict:
    """Register everything."""
    for label in Label:
        app.add_role(str(label), LabelRole())
    app.add_node(provenance, html=(visit_provenance, depart_provenance))
    app.add_directive("chart", ChartDirective)
    app.connect("autodoc-process-docstring", headings_to_rubrics)
    app.connect("source-read", list_modules)
    app.connect("build-finished", mend_pages)
    app.connect("html-page-context", without_thebe, priority=900)
    return {"version": tokenlife.__version__} | tracer.setup(app) | spine.setup(app)
