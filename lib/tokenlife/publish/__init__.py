"""From notebooks to pages: ``python -m tokenlife.publish book``.

:mod:`~tokenlife.publish.execute` runs a chapter and keeps its outputs under ``_build/executed``;
:mod:`tokenlife.publish.site` turns them and the hand-written pages into HTML. The repository's own
folders are only read.
"""

from tokenlife.errors import TokenlifeError


class PublishError(TokenlifeError):
    """A book that cannot be built, and the one thing to mend."""
