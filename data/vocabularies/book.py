"""Train this book's own vocabulary anew: ``python data/vocabularies/book.py`` writes ``book.json``.

It stands here and not in the library because it needs the corpus, a room above the tokeniser.
"""

import tomllib
from pathlib import Path

from tokenlife import corpus
from tokenlife.tokenizer import Tokenizer, train

HERE = Path(__file__).parent


def recipe() -> dict:
    """Return ``book.toml``: what the vocabulary is trained on, and how large it is."""
    return tomllib.loads((HERE / "book.toml").read_text(encoding="utf-8"))


def texts() -> list[str]:
    """Return the training texts: Shakespeare's works, then the Declaration in each language."""
    works = corpus.shakespeare() if recipe()["shakespeare"] else []
    return [document.text for document in (*works, *corpus.udhr(recipe()["languages"]))]


def retrain() -> Tokenizer:
    """Train the vocabulary from its recipe; takes a few seconds."""
    made = recipe()
    return train(
        texts(),
        n_vocab=made["n_vocab"],
        pattern=made["pattern"],
        special=made["special"],
        name="book",
    )


if __name__ == "__main__":
    retrain().save(HERE / "book.json")
