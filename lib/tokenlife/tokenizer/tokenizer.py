"""A byte-level BPE tokeniser: text to ids and back, losing nothing.

Text is cut into pieces (``pretokenize``), each piece becomes bytes, the bytes merge into tokens
(``merge``). A language repeats itself: the ids of each piece, and of each run of pieces between two
spaces, are kept, so a word is merged once and then looked up. Ids decode to bytes, and any ids do:
a token may end inside a character.

Special tokens are markers, not text. As in tiktoken, text that spells one is refused unless the
caller says what to do: users must not be able to type an end of document.

Left out: unknown tokens (256 bytes leave nothing unknown), dropout, and templates around a text.

Sources: Sennrich et al. 2016 (BPE for words), Radford et al. 2019 (on bytes), tiktoken's interface.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Literal

import regex

from tokenlife.tokenizer.encoding import Encoding
from tokenlife.tokenizer.errors import (
    BrokenMerges,
    CorruptTokenizer,
    IdOutOfRange,
    MissingByte,
    SpecialTokenInText,
)
from tokenlife.tokenizer.merge import by_pair, by_token, merge
from tokenlife.tokenizer.pretokenize import Pretokenizer

_REMEMBERED, _REMEMBERED_LENGTH = 1 << 18, 1 << 10


class Tokenizer:
    """Text ⇄ ids for one vocabulary; does not change once it is made.

    Parameters
    ----------
    name
        What to call the vocabulary.
    ids
        Token bytes → id, special tokens left out.
    pretokenizer
        How text is cut.
    special
        Special token → id.
    merges
        Pairs of ids in the order they were learnt: only these merge, in this order, as in Hugging
        Face ``tokenizers``. ``None``: rank by token, as in tiktoken (see ``merge``).
    whole_piece_first
        Look a piece up before merging it. It finds tokens that no merge reaches (Llama 3 has 588).

    Attributes
    ----------
    n_vocab
        Number of ids up to the last one, holes included, as tiktoken counts them.
    rank, product
        The merge rule: ``rank(left id, right id)`` says which pair merges first (``merge.NEVER``:
        it does not), ``product(rank)`` gives the id of what they become.

    Raises
    ------
    BrokenMerges
        If a merge joins or makes a token that is not there.
    CorruptTokenizer
        If two tokens share an id.

    Examples
    --------
    >>> from tokenlife.tokenizer import vocabularies
    >>> book = vocabularies.load("book")
    >>> book.decode(book.encode("A token leaves as a word"))
    'A token leaves as a word'
    >>> book.encode("<|endoftext|>", allowed_special="all")
    [4095]
    """

    def __init__(
        self,
        name: str,
        ids: Mapping[bytes, int],
        pretokenizer: Pretokenizer,
        special: Mapping[str, int] | None = None,
        merges: Sequence[tuple[int, int]] | None = None,
        whole_piece_first: bool = False,
    ):
        self.name = name
        self.pretokenizer = pretokenizer
        self.special = dict(special or {})
        self.merges = None if merges is None else tuple(merges)
        self.whole_piece_first = whole_piece_first
        self._ids = dict(ids)
        self._tokens = {id_: token for token, id_ in self._ids.items()}
        markers = {id_: text.encode() for text, id_ in self.special.items()}
        self._all = self._tokens | markers
        if len(self._all) != len(self._ids) + len(self.special):
            raise CorruptTokenizer(f"{name}: two tokens share an id")
        self.n_vocab = max(self._all, default=-1) + 1
        self._byte_ids = [self._ids.get(bytes([byte])) for byte in range(256)]
        self.rank, self.product = self._merge_rule()
        self._special_pattern = _any_of(self.special)
        self._pieces = _Memory(self._merge_piece)
        self._words = _Memory(self._encode_word)

    def __repr__(self) -> str:
        return f"<Tokenizer {self.name}: {self.n_vocab:,} ids>"

    def _merge_rule(self):
        if self.merges is None:
            return by_token(self._ids, self._tokens), lambda rank: rank
        products = []
        for n, (left, right) in enumerate(self.merges):
            try:
                products.append(self._ids[self._tokens[left] + self._tokens[right]])
            except KeyError:
                raise BrokenMerges(
                    f"{self.name}: merge {n} joins ids {left} and {right}, "
                    "but one of them, or the token they spell, is not in the vocabulary"
                ) from None
        return by_pair(self.merges), products.__getitem__

    def _merge_piece(self, piece: str) -> tuple[int, ...]:
        spelt = piece.encode()
        if self.whole_piece_first and (id_ := self._ids.get(spelt)) is not None:
            return (id_,)
        symbols = [self._byte_ids[byte] for byte in spelt]
        if None in symbols:
            byte = spelt[symbols.index(None)]
            raise MissingByte(f"{self.name}: no token for byte 0x{byte:02x} of {piece[:20]!r}")
        return tuple(merge(symbols, self.rank, self.product))

    def _encode_word(self, word: str) -> tuple[int, ...]:
        pieces = self.pretokenizer.split(word)
        return tuple(chain.from_iterable(map(self._pieces.__getitem__, pieces)))

    def _encode(self, text: str) -> list[int]:
        words = self.pretokenizer.words(text)
        return list(chain.from_iterable(map(self._words.__getitem__, words)))

    def encode_ordinary(self, text: str) -> list[int]:
        """Encode text; what looks like a special token is text as well.

        Examples
        --------
        >>> from tokenlife.tokenizer import vocabularies
        >>> len(vocabularies.load("book").encode_ordinary("<|endoftext|>")) > 1
        True
        """
        return self._encode(self.pretokenizer.normalize(text))

    def encode(
        self,
        text: str,
        allowed_special: Collection[str] | Literal["all"] = frozenset(),
        disallowed_special: Collection[str] | Literal["all"] = "all",
    ) -> list[int]:
        """Encode text in which special tokens may stand.

        Parameters
        ----------
        text
            Any string; lone surrogates become U+FFFD.
        allowed_special
            Special tokens that become their id.
        disallowed_special
            Special tokens that are refused; ``"all"`` means all that are not allowed. A special
            token in neither is ordinary text.

        Raises
        ------
        SpecialTokenInText
            If the text spells a disallowed special token.
        """
        allowed = set(self.special) if allowed_special == "all" else set(allowed_special)
        if disallowed_special == "all":
            refused = set(self.special) - allowed
        else:
            refused = set(disallowed_special)
        text = self.pretokenizer.normalize(text)
        if (pattern := _any_of(refused)) and (match := pattern.search(text)):
            raise SpecialTokenInText(
                f"the text spells the special token {match[0]!r}; pass it in allowed_special, "
                "or disallowed_special=() to treat it as text"
            )
        pattern = self._special_pattern
        if allowed != set(self.special):
            pattern = _any_of(allowed & set(self.special))
        if pattern is None:
            return self._encode(text)
        ids, start = [], 0
        for match in pattern.finditer(text):
            ids += self._encode(text[start : match.start()])
            ids.append(self.special[match[0]])
            start = match.end()
        return ids + self._encode(text[start:])

    def encoding(
        self,
        text: str,
        allowed_special: Collection[str] | Literal["all"] = frozenset(),
        disallowed_special: Collection[str] | Literal["all"] = "all",
    ) -> Encoding:
        """Encode text into the spine's type, which keeps pieces and byte spans.

        Examples
        --------
        >>> from tokenlife.tokenizer import vocabularies
        >>> vocabularies.load("book").encoding("the word").pieces
        (b'the', b' word')
        """
        ids = self.encode(text, allowed_special, disallowed_special)
        pieces = tuple(self._all[id_] for id_ in ids)
        spans, end = [], 0
        for piece in pieces:
            spans.append((end, end := end + len(piece)))
        return Encoding(b"".join(pieces).decode(), self.name, tuple(ids), pieces, tuple(spans))

    def token_bytes(self, id_: int) -> bytes:
        """Return the bytes of one token.

        Raises
        ------
        IdOutOfRange
            If no token has this id.
        """
        try:
            return self._all[id_]
        except KeyError:
            raise IdOutOfRange(
                f"{self.name} has no token {id_!r}; ids run from 0 to {self.n_vocab - 1}"
            ) from None

    def decode_bytes(self, ids: Iterable[int]) -> bytes:
        """Join the bytes of the tokens: the exact inverse of encoding.

        Raises
        ------
        IdOutOfRange
            If the vocabulary does not hold one of the ids.
        """
        ids = list(ids)
        try:
            return b"".join([self._all[id_] for id_ in ids])
        except KeyError:
            return b"".join(map(self.token_bytes, ids))

    def decode(self, ids: Iterable[int], errors: str = "replace") -> str:
        """Decode ids to text; bytes that are no UTF-8 are handled as in ``bytes.decode``."""
        return self.decode_bytes(ids).decode(errors=errors)

    def tokens(self) -> dict[int, bytes]:
        """Return id → bytes of every token that is not special."""
        return dict(self._tokens)

    def save(self, path: str | Path) -> None:
        """Write the tokeniser in Hugging Face's ``tokenizer.json`` form; see ``hf_json``."""
        from tokenlife.tokenizer import hf_json  # it needs this class

        hf_json.write(self, path)

    @staticmethod
    def load(path: str | Path, name: str | None = None) -> "Tokenizer":
        """Read a byte-level BPE from a ``tokenizer.json``; see ``hf_json``."""
        from tokenlife.tokenizer import hf_json

        return hf_json.read(path, name)


class _Memory(dict):
    """Ids of the strings met so far; ``__missing__`` keeps the look-up loop out of Python."""

    def __init__(self, encode: Callable[[str], tuple[int, ...]]):
        super().__init__()
        self._encode = encode

    def __missing__(self, text: str) -> tuple[int, ...]:
        ids = self._encode(text)
        if len(text) <= _REMEMBERED_LENGTH:
            if len(self) >= _REMEMBERED:
                self.clear()
            self[text] = ids
        return ids


def _any_of(texts: Iterable[str]):
    """Match any of the texts, the longest first, so that one may begin another."""
    alternatives = sorted(texts, key=len, reverse=True)
    return regex.compile("|".join(map(regex.escape, alternatives))) if alternatives else None
