"""Reading and writing ``tokenizer.json``, the form of Hugging Face ``tokenizers``.

Of all that such a file may hold, this module takes byte-level BPE: a ``BPE`` model, a pre-tokeniser
made of ``Split``, ``Digits`` and ``ByteLevel`` steps, a Unicode form or nothing as normaliser. It
says plainly what else it meets, rather than give other ids than the file means.

Added tokens all become special tokens here: ``allowed_special="all"`` gives the ids that
``tokenizers`` gives with ``add_special_tokens=False``.
"""

import json
from pathlib import Path

from tokenlife.files import atomic_write
from tokenlife.tokenizer.byte_alphabet import to_bytes, to_characters
from tokenlife.tokenizer.errors import BrokenMerges, CorruptTokenizer
from tokenlife.tokenizer.pretokenize import PATTERNS, Pretokenizer
from tokenlife.tokenizer.tokenizer import Tokenizer

_FORMS = ("NFC", "NFD", "NFKC", "NFKD")
_UNSUPPORTED_MODEL = ("dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix")
_UNSUPPORTED_TOKEN = ("single_word", "lstrip", "rstrip")


def read(path: str | Path, name: str | None = None) -> Tokenizer:
    """Read a byte-level BPE tokeniser.

    Parameters
    ----------
    path
        The file.
    name
        What to call it; the file's stem if not given.

    Raises
    ------
    CorruptTokenizer
        If the file cannot be read, is no JSON, or is no byte-level BPE.
    BrokenMerges
        If its merges do not chain.
    """
    path = Path(path)
    try:
        document = json.loads(path.read_bytes())
    except OSError as error:
        raise CorruptTokenizer(f"cannot read {path}: {error.strerror}") from None
    except ValueError as error:
        raise CorruptTokenizer(f"{path} is no JSON: {error}") from None
    try:
        return _tokenizer(document, name or path.stem)
    except CorruptTokenizer as error:
        raise type(error)(f"{path}: {error}") from None
    except (KeyError, TypeError, AttributeError, IndexError, ValueError) as error:
        raise CorruptTokenizer(
            f"{path} is no tokenizer.json of a byte-level BPE: {type(error).__name__} at {error}"
        ) from None


def _tokenizer(document: dict, name: str) -> Tokenizer:
    model = document["model"]
    if model.get("type", "BPE") != "BPE":
        raise CorruptTokenizer(f"a {model['type']} model; only byte-level BPE can be read")
    for key in _UNSUPPORTED_MODEL:
        if model.get(key):
            raise CorruptTokenizer(f"the model's {key} is {model[key]!r}; only none can be read")
    added = document.get("added_tokens") or []
    for token in added:
        for key in _UNSUPPORTED_TOKEN:
            if token.get(key):
                raise CorruptTokenizer(f"added token {token['content']!r} has {key}; not supported")
    special = {token["content"]: token["id"] for token in added}
    vocabulary = model["vocab"]
    numbers = (*vocabulary.values(), *special.values())
    if not all(isinstance(number, int) and number >= 0 for number in numbers):
        raise CorruptTokenizer("an id is no whole number from 0 up")
    characters = {token: id_ for token, id_ in vocabulary.items() if token not in special}
    merges = []
    for n, pair in enumerate(model["merges"]):
        # Older files write "a b", newer ones ["a", "b"].
        left, right = pair.split(" ") if isinstance(pair, str) else pair
        try:
            merges.append((characters[left], characters[right]))
        except KeyError as error:
            raise BrokenMerges(f"merge {n} needs {error}, which is no token") from None
    return Tokenizer(
        name,
        {to_bytes(token): id_ for token, id_ in characters.items()},
        _read_pretokenizer(document.get("pre_tokenizer"), document.get("normalizer")),
        special,
        merges,
        whole_piece_first=bool(model.get("ignore_merges")),
    )


def _steps(node: dict | None, children: str) -> list[dict]:
    if node is None:
        return []
    if node["type"] == "Sequence":
        return [step for child in node[children] for step in _steps(child, children)]
    return [node]


def _read_pretokenizer(node: dict | None, normalizer: dict | None) -> Pretokenizer:
    forms = [step["type"] for step in _steps(normalizer, "normalizers")]
    if len(forms) > 1 or not set(forms) <= set(_FORMS):
        raise CorruptTokenizer(f"normaliser {forms}; only one of {', '.join(_FORMS)} can be read")
    patterns, prefix_space, byte_level = [], False, False
    for step in _steps(node, "pretokenizers"):
        if byte_level:
            raise CorruptTokenizer("a pre-tokeniser after ByteLevel; it must be the last")
        match step["type"]:
            case "ByteLevel":
                byte_level, prefix_space = True, step["add_prefix_space"]
                if prefix_space and patterns:
                    raise CorruptTokenizer("add_prefix_space after another cut; not supported")
                if step.get("use_regex", True):
                    patterns += PATTERNS["gpt2"]
            case "Digits":
                patterns.append(r"\p{N}" if step["individual_digits"] else r"\p{N}+")
            case "Split":
                patterns.append(_split_pattern(step))
            case other:
                raise CorruptTokenizer(
                    f"pre-tokeniser {other}; only Split, Digits and ByteLevel can be read"
                )
    if not byte_level:
        raise CorruptTokenizer("no ByteLevel pre-tokeniser: this is not a byte-level BPE")
    return Pretokenizer(tuple(patterns), forms[0] if forms else None, prefix_space)


def _split_pattern(step: dict) -> str:
    # "Removed" with "invert" keeps the matches and drops the gaps. The patterns in use leave no
    # gaps; where one does, we keep the gap, since a tokeniser must give every byte back.
    if (step["behavior"], step["invert"]) not in (("Isolated", False), ("Removed", True)):
        raise CorruptTokenizer(
            f"Split with behaviour {step['behavior']!r}; only 'Isolated' can be read"
        )
    pattern = step["pattern"]
    if "Regex" in pattern:
        return pattern["Regex"]
    return "".join(f"\\x{{{ord(c):x}}}" for c in pattern["String"])


def write(tokenizer: Tokenizer, path: str | Path) -> None:
    """Write a tokeniser so that ``tokenizers`` and :func:`read` load it.

    A vocabulary that ranks by token (tiktoken's rule) is written with, for each token, every pair
    of tokens that spells it: the nearest that a list of pairs comes to that rule.

    Raises
    ------
    CorruptTokenizer
        If the file cannot be written.
    """
    body = json.dumps(_document(tokenizer), ensure_ascii=False, separators=(",", ":"))
    with atomic_write(path, CorruptTokenizer) as file:
        file.write(f"{body}\n".encode())


def _document(tokenizer: Tokenizer) -> dict:
    tokens = {id_: to_characters(token) for id_, token in tokenizer.tokens().items()}
    cut = tokenizer.pretokenizer
    splits = [
        {"type": "Split", "pattern": {"Regex": p}, "behavior": "Isolated", "invert": False}
        for p in cut.patterns
    ]
    byte_level = {"type": "ByteLevel", "trim_offsets": True}
    last = byte_level | {"add_prefix_space": cut.prefix_space, "use_regex": False}
    if cut.prefix_space:  # it must come before the cut, so the cut must be ByteLevel's own
        if cut.patterns != PATTERNS["gpt2"]:
            raise CorruptTokenizer("a prefix space with another cut than GPT-2's has no such form")
        splits, last = [], last | {"use_regex": True}
    # The special tokens stand in the vocabulary too, because `tokenizers` would otherwise number
    # them after its last id, whatever this file says.
    vocabulary = {text: id_ for id_, text in tokens.items()} | tokenizer.special
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {"id": id_, "content": text, "single_word": False, "lstrip": False, "rstrip": False}
            | {"normalized": False, "special": True}
            for text, id_ in sorted(tokenizer.special.items(), key=lambda item: item[1])
        ],
        "normalizer": {"type": cut.normalization} if cut.normalization else None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [*splits, last]},
        "post_processor": None,
        "decoder": byte_level | {"add_prefix_space": False, "use_regex": False},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": tokenizer.whole_piece_first,
            "vocab": dict(sorted(vocabulary.items(), key=lambda item: item[1])),
            "merges": [[tokens[left], tokens[right]] for left, right in _merges(tokenizer)],
        },
    }


def _merges(tokenizer: Tokenizer) -> list[tuple[int, int]]:
    if tokenizer.merges is not None:
        return list(tokenizer.merges)
    tokens = tokenizer.tokens()
    ids = {token: id_ for id_, token in tokens.items()}
    pairs = []
    for _, token in sorted(tokens.items()):
        splits = [(ids.get(token[:n]), ids.get(token[n:])) for n in range(1, len(token))]
        pairs += sorted(pair for pair in splits if None not in pair)
    return pairs
