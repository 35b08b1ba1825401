"""What input can do wrong to a tokeniser: one named exception for each case."""

from tokenlife.errors import TokenlifeError


class TokenizerError(TokenlifeError):
    """Base of every error of this room."""


class UnknownVocabulary(TokenizerError, KeyError):
    """A vocabulary name that the book does not know."""

    def __str__(self) -> str:  # KeyError would show the message in quotes
        return self.args[0]


class MissingVocabulary(TokenizerError):
    """A known vocabulary whose file is not on this machine."""


class CorruptTokenizer(TokenizerError, ValueError):
    """A tokeniser file that cannot be read, or that is no byte-level BPE."""


class BrokenMerges(CorruptTokenizer):
    """Merges that do not chain: one joins tokens, or makes a token, that do not exist."""


class IdOutOfRange(TokenizerError, IndexError):
    """An id that the vocabulary does not hold."""


class SpecialTokenInText(TokenizerError, ValueError):
    """Ordinary text that spells a special token, where that was not allowed."""


class MissingByte(TokenizerError, ValueError):
    """A byte for which the vocabulary has no token."""


class BadPattern(TokenizerError, ValueError):
    """A pre-tokenisation pattern that cannot be used."""


class EmptyCorpus(TokenizerError, ValueError):
    """Training on no text at all."""


class TrainingError(TokenizerError, ValueError):
    """A size that training cannot reach, whatever the corpus."""


class CorruptCode(TokenizerError, ValueError):
    """Data, or a table of counts, that a code of ``codes`` cannot use."""


class TrainingStopped(UserWarning):
    """Training ended early: no pair is left to merge."""
