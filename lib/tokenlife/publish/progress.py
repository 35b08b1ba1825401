"""What the user sees while chapters run: a bar on a terminal, plain lines elsewhere."""

import sys
import time

from tqdm import tqdm

QUIET_S = 20  # between two lines about one chapter, where there is no terminal


class Progress:
    """A bar over chapters that names the chapter and the cell being run."""

    def __init__(self, chapters: int):
        self._terminal = sys.stderr.isatty()
        self._bar = tqdm(
            total=chapters,
            disable=not self._terminal,
            bar_format="{desc} |{bar:20}| {n}/{total} chapters [{elapsed}]",
            desc="chapters",
        )

    def __enter__(self) -> "Progress":
        return self

    def __exit__(self, *_) -> None:
        self._bar.close()

    def start(self, slug: str, cells: int) -> None:
        """Begin a chapter of so many code cells."""
        self._slug, self._cells, self._said = slug, cells, time.monotonic()
        self._say(f"{slug}: {cells} cells")

    def cell(self, number: int) -> None:
        """Say which cell runs now, counted from 1."""
        text = f"{self._slug}: cell {number} of {self._cells}"
        if self._terminal:
            self._bar.set_description_str(text)
        elif time.monotonic() - self._said > QUIET_S:
            self._say(text)

    def done(self, seconds: float | None) -> None:
        """End a chapter; ``None`` where it had not changed."""
        if seconds is not None:
            self._say(f"{self._slug}: done in {seconds:.1f} s")
        self._bar.update()

    def _say(self, text: str) -> None:
        if not self._terminal:
            print(text, file=sys.stderr, flush=True)
            self._said = time.monotonic()
