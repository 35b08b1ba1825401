"""Where everything lies: the chapters that the table of contents names, and the build folders."""

from dataclasses import dataclass
from pathlib import Path

import yaml

from tokenlife.publish import PublishError

GENERATED = (
    "book/status",
    "book/scoreboard",
)  # pages in the table of contents that the build writes itself


@dataclass(frozen=True)
class Chapter:
    """One notebook of the book.

    Attributes
    ----------
    entry
        Its name in the table of contents, ``notebooks/01_words_to_tokens``.
    root
        The checkout.
    """

    entry: str
    root: Path

    @property
    def slug(self) -> str:
        """``01_words_to_tokens``."""
        return self.entry.rsplit("/", 1)[-1]

    @property
    def source(self) -> Path:
        """The py:percent file that is edited."""
        return self.root / f"{self.entry}.py"

    @property
    def executed(self) -> Path:
        """The notebook with its outputs."""
        return self.root / "_build" / "executed" / f"{self.slug}.ipynb"

    @property
    def record(self) -> Path:
        """What is known about the run: fingerprint, seconds, versions, machine, date."""
        return self.executed.with_suffix(".json")


@dataclass(frozen=True)
class Book:
    """A checkout of the book."""

    root: Path

    @property
    def build(self) -> Path:
        """Everything that can be deleted."""
        return self.root / "_build"

    @property
    def source(self) -> Path:
        """The staged tree that Sphinx reads."""
        return self.build / "source"

    @property
    def html(self) -> Path:
        """The finished pages."""
        return self.build / "html"

    def entries(self) -> list[str]:
        """Return the pages of ``_toc.yml`` in reading order.

        Raises
        ------
        PublishError
            If the file is missing, is no YAML, or names a page twice.
        """
        path = self.root / "_toc.yml"
        try:
            toc = yaml.safe_load(path.read_text(encoding="utf-8"))
        except (OSError, yaml.YAMLError) as error:
            raise PublishError(f"cannot read {path}: {error}") from error
        found = list(_files(toc))
        twice = {entry for entry in found if found.count(entry) > 1}
        if twice:
            raise PublishError(f"_toc.yml names {', '.join(sorted(twice))} more than once")
        return found

    def chapters(self) -> list[Chapter]:
        """Return the notebooks among the pages, each with its file.

        Raises
        ------
        PublishError
            If a page of the table of contents has no file.
        """
        entries = self.entries()
        missing = [e for e in entries if e not in GENERATED and not self._written(e)]
        if missing:
            raise PublishError(f"_toc.yml names {', '.join(missing)}, but there is no such file")
        return [Chapter(e, self.root) for e in entries if e.startswith("notebooks/")]

    def strays(self) -> list[str]:
        """Return the notebooks that have no place in the table of contents."""
        entries = self.entries()
        stems = sorted(path.stem for path in (self.root / "notebooks").glob("*.py"))
        return [stem for stem in stems if f"notebooks/{stem}" not in entries]

    def chapter(self, name: str) -> Chapter:
        """Find a chapter by number (``1``, ``01``) or slug.

        Raises
        ------
        PublishError
            If there is none.
        """
        chapters = self.chapters()
        for chapter in chapters:
            number = chapter.slug.split("_", 1)[0]
            if name in (chapter.slug, chapter.entry) or name.zfill(2) == number:
                return chapter
        known = ", ".join(chapter.slug for chapter in chapters) or "none yet"
        raise PublishError(f"no chapter {name!r}; the book has: {known}")

    def _written(self, entry: str) -> bool:
        return any((self.root / f"{entry}{suffix}").is_file() for suffix in (".py", ".md"))


def _files(node: dict):
    if "root" in node:
        yield node["root"]
    if "file" in node:
        yield node["file"]
    for part in ("parts", "chapters", "sections"):
        for child in node.get(part) or ():
            yield from _files(child)
