"""Files that a page needs from others' packages, copied beside the pages: nothing comes from a CDN.

MathJax comes from npm (``node_modules``, locked); the Vega bundle that draws charts comes from
``vl-convert-python``. Both land in ``_vendor``, which Sphinx copies to the root of the site as is:
under ``_static`` every page would load them.
"""

from pathlib import Path

import altair as alt
import vl_convert

from tokenlife.charts import PALETTE
from tokenlife.publish import PublishError

MATHJAX = ("tex-chtml.js", "output/chtml/fonts/woff-v2", "input/tex/extensions")


def mathjax_files(root: Path) -> dict[str, Path]:
    """Map each file's place under ``_vendor`` to where npm has put it.

    Raises
    ------
    PublishError
        If MathJax is not installed.
    """
    home = root / "node_modules" / "mathjax" / "es5"
    files = {}
    for part in MATHJAX:
        start = home / part
        found = [start] if start.is_file() else sorted(p for p in start.rglob("*") if p.is_file())
        if not found:
            raise PublishError(
                f"node_modules holds no MathJax ({part}); run 'make install' (npm ci)"
            )
        files |= {f"mathjax/{path.relative_to(home).as_posix()}": path for path in found}
    return files


def vega_bundle() -> str:
    """Return the script that defines ``window.vegaEmbed``, without leaking its other names."""
    version = ".".join(alt.SCHEMA_VERSION.removeprefix("v").split(".")[:2])
    return f"(function(){{\n{vl_convert.javascript_bundle(vl_version=version)}\n}})();\n"


def palette_css() -> str:
    """Return the charts' colours as CSS variables, so that pages and charts share them."""
    lines = [f"  --chart-{name}: {colour};" for name, colour in PALETTE.items()]
    return ":root {\n" + "\n".join(lines) + "\n}\n"
