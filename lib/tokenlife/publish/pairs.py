"""The ``.ipynb`` pairs of the notebooks, for readers who open them in Jupyter or run papermill.

The newer side wins, as in jupytext: an edited ``.ipynb`` updates the ``.py`` and keeps its outputs,
an edited ``.py`` updates the cells of the ``.ipynb``. Nothing a reader wrote is lost.
"""

import jupytext
from jupytext.cli import jupytext as run_jupytext

from tokenlife.publish import PublishError
from tokenlife.publish.layout import Book


def sync(book: Book) -> list[str]:
    """Write or update the pair of every chapter and return their paths, relative to the checkout.

    Raises
    ------
    PublishError
        If jupytext cannot read a file.
    """
    written = []
    for chapter in book.chapters():
        pair = chapter.source.with_suffix(".ipynb")
        try:
            if pair.exists():
                run_jupytext(["--quiet", "--sync", str(chapter.source)])
            else:
                # The formats stand in jupytext.toml, so the script's own header stays as it is.
                jupytext.write(jupytext.read(chapter.source), pair)
        except Exception as error:
            raise PublishError(f"cannot pair {chapter.source.name}: {error}") from error
        written.append(str(pair.relative_to(book.root)))
    return written
