"""The first level of the spine: a text, and the ids that stand for it."""

from dataclasses import dataclass

from tokenlife.tokenizer.errors import TokenizerError


@dataclass(frozen=True)
class Encoding:
    """A text as tokens: nothing lost between the two.

    Attributes
    ----------
    text
        The text that the pieces spell. It is the text that was given, except where the vocabulary
        itself changes text first (Qwen normalises to NFC; lone surrogates become U+FFFD).
    vocabulary
        Name of the vocabulary.
    ids
        Token ids, in order.
    pieces
        The bytes of each token. Joined, they are the UTF-8 of ``text``: a piece may hold a part of
        a character.
    spans
        Start and end byte of each token in the UTF-8 of ``text``.

    Raises
    ------
    TokenizerError
        If the pieces do not spell the text: this type is where conservation begins.

    Examples
    --------
    >>> e = Encoding("hi!", "book", (71, 0), (b"hi", b"!"), ((0, 2), (2, 3)))
    >>> e.n_tokens, e.n_bytes
    (2, 3)
    >>> Encoding("hi!", "book", (71,), (b"hi",), ((0, 2),))
    Traceback (most recent call last):
        ...
    tokenlife.tokenizer.errors.TokenizerError: the pieces spell 2 bytes, the text has 3
    """

    text: str
    vocabulary: str
    ids: tuple[int, ...]
    pieces: tuple[bytes, ...]
    spans: tuple[tuple[int, int], ...]

    def __post_init__(self):
        spelt, wanted = b"".join(self.pieces), self.text.encode()
        if spelt != wanted:
            raise TokenizerError(
                f"the pieces spell {len(spelt)} bytes, the text has {len(wanted)}"
                if len(spelt) != len(wanted)
                else "the pieces spell another text"
            )
        if not len(self.ids) == len(self.pieces) == len(self.spans):
            raise TokenizerError("ids, pieces and spans differ in number")

    @property
    def n_tokens(self) -> int:
        """Number of tokens."""
        return len(self.ids)

    @property
    def n_bytes(self) -> int:
        """Number of bytes of the text in UTF-8."""
        return self.spans[-1][1] if self.spans else 0
