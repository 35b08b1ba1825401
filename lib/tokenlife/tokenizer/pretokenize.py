r"""Pre-tokenisation: cutting text into pieces that no token may cross.

Byte-pair encoding alone would make a token of "dog." or of "2024, "; the cut before it keeps words,
numbers, punctuation and space apart. Each vocabulary brings its own cut, written as regular
expressions. Where they differ is worth money:

========  ==================================================================================
gpt2      a space belongs to the word after it; digits run together; contractions split off
cl100k    GPT-4: at most three digits; any case of 's; one punctuation mark may lead a word
o200k     GPT-4o: words also break where lower case turns to upper; marks belong to letters
llama3    as cl100k, with GPT-2's handling of the last spaces
qwen      as llama3, but every digit alone
deepseek  three cuts one after the other: three digits; Chinese and Japanese; the rest
none      no cut at all: to see what the cut is good for
========  ==================================================================================

The patterns are written so that Python's ``regex``, Rust's engines and Oniguruma read them alike:
``{1,3}+`` and ``$`` mean different things to them, so neither is used.

Left out: cuts that drop text (a tokeniser must give every byte back) and cuts by look-up. The
engine is the ``regex`` package, so ``\p{L}`` means a letter of *its* Unicode version: characters
assigned in the newest version may be cut elsewhere by another engine.

Sources: the published code of each vocabulary, named in ``data/vocabularies/vocabularies.toml``.
"""

import re
import unicodedata
from dataclasses import dataclass, field

import regex

from tokenlife.tokenizer.errors import BadPattern

_WORD_GPT4 = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_SUFFIX = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SPACE_GPT2 = r"\s+(?!\S)|\s+"
_UPPER, _LOWER = r"\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}", r"\p{Ll}\p{Lm}\p{Lo}\p{M}"

PATTERNS: dict[str, tuple[str, ...]] = {
    "gpt2": (r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|" + _SPACE_GPT2,),
    "cl100k": (
        rf"'(?i:[sdmt]|ll|ve|re)|{_WORD_GPT4}|\p{{N}}{{1,3}}"
        r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s++(?![\s\S])|\s*[\r\n]|\s+(?!\S)|\s",
    ),
    "o200k": (
        rf"[^\r\n\p{{L}}\p{{N}}]?[{_UPPER}]*[{_LOWER}]+{_SUFFIX}?"
        rf"|[^\r\n\p{{L}}\p{{N}}]?[{_UPPER}]+[{_LOWER}]*{_SUFFIX}?"
        r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|" + _SPACE_GPT2,
    ),
    "llama3": (
        rf"{_SUFFIX}|{_WORD_GPT4}|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|\s*[\r\n]+|"
        + _SPACE_GPT2,
    ),
    "qwen": (
        rf"{_SUFFIX}|{_WORD_GPT4}|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|\s*[\r\n]+|" + _SPACE_GPT2,
    ),
    "deepseek": (
        r"\p{N}{1,3}",
        "[一-龥\u3040-ゟ゠-ヿ]+",
        # Real line ends, not escapes: as DeepSeek's file has them.
        "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+"
        "|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|"
        + _SPACE_GPT2,
    ),
    "none": (),
}
_SINGLE_SPACE = re.compile(r"(?<=\S)(?= \S)")


@dataclass(frozen=True)
class Pretokenizer:
    """Cut text into pieces by one or more patterns, one after the other.

    Parameters
    ----------
    patterns
        Regular expressions without capturing groups. Each cuts the pieces of the one before it;
        what lies between two matches is a piece as well, so nothing is lost.
    normalization
        ``None``, or a Unicode form that the text is brought to first (``"NFC"`` for Qwen).
    prefix_space
        Put a space before text that starts without one, as some Hugging Face files ask.

    Raises
    ------
    BadPattern
        If a pattern is no regular expression, or has a capturing group.

    Examples
    --------
    >>> pretokenizer("gpt2").split("It's 1,448 bytes.")
    ['It', "'s", ' 1', ',', '448', ' bytes', '.']
    >>> pretokenizer("qwen").split("1,448 bytes")
    ['1', ',', '4', '4', '8', ' bytes']
    """

    patterns: tuple[str, ...]
    normalization: str | None = None
    prefix_space: bool = False
    _compiled: tuple = field(init=False, repr=False, compare=False)
    _cuts_at_spaces: bool = field(init=False, repr=False, compare=False)

    def __post_init__(self):
        object.__setattr__(self, "_compiled", tuple(_compile(p) for p in self.patterns))
        known = self.patterns and self.patterns in PATTERNS.values()
        object.__setattr__(self, "_cuts_at_spaces", bool(known))
        if self.normalization not in (None, "NFC", "NFD", "NFKC", "NFKD"):
            raise BadPattern(f"no Unicode form {self.normalization!r}; use NFC, NFD, NFKC or NFKD")

    def normalize(self, text: str) -> str:
        """Return the text as it will be cut: well-formed Unicode, in the asked form.

        Lone surrogates, which have no UTF-8, become U+FFFD; a pair of them becomes its character.
        """
        try:
            text.encode()
        except UnicodeEncodeError:
            text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        if self.normalization:
            text = unicodedata.normalize(self.normalization, text)
        return text

    def words(self, text: str) -> list[str]:
        """Cut text coarsely, only where :meth:`split` is sure to cut as well.

        All patterns of this module cut before a single space that stands between two other
        characters. Finding those places is much cheaper than matching the patterns, and most of
        what comes out was met before: its pieces, or even its ids, can be looked up.

        Examples
        --------
        >>> pretokenizer("gpt2").words("a word, a  word")
        ['a', ' word,', ' a  word']
        """
        return _SINGLE_SPACE.split(text) if self._cuts_at_spaces else [text]

    def split(self, text: str) -> list[str]:
        """Cut text that :meth:`normalize` returned; joined, the pieces are the text."""
        if self.prefix_space and text and not text.startswith(" "):
            text = f" {text}"
        pieces = [text] if text else []
        for whole, with_gaps in self._compiled:
            pieces = [cut for piece in pieces for cut in _cut(whole, with_gaps, piece)]
        return pieces


def _cut(whole, with_gaps, text: str) -> list[str]:
    # Almost every pattern matches every character, and then findall is the faster way by far.
    pieces = whole.findall(text)
    if sum(map(len, pieces)) == len(text):
        return pieces
    return [piece for piece in with_gaps.split(text) if piece]


def _compile(pattern: str):
    try:
        whole = regex.compile(pattern)
    except regex.error as error:
        raise BadPattern(f"pattern {pattern!r} is no regular expression: {error}") from None
    if whole.groups:
        raise BadPattern(f"pattern {pattern!r} has a capturing group; write (?:…)")
    return whole, regex.compile(f"({pattern})")


def pretokenizer(name: str, normalization: str | None = None) -> Pretokenizer:
    """Return a named cut of :data:`PATTERNS`.

    Raises
    ------
    BadPattern
        If the name is unknown.

    Examples
    --------
    >>> pretokenizer("cl100k").split("1448 bytes")
    ['144', '8', ' bytes']
    >>> pretokenizer("gpt9")
    Traceback (most recent call last):
        ...
    tokenlife.tokenizer.errors.BadPattern: no pattern 'gpt9'; known: gpt2, cl100k, o200k, ...
    """
    if name not in PATTERNS:
        raise BadPattern(f"no pattern {name!r}; known: {', '.join(PATTERNS)}")
    return Pretokenizer(PATTERNS[name], normalization)
