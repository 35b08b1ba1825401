"""The one base class of every error that a reader's input can cause."""


class TokenlifeError(Exception):
    """Bad input, explained in one line that says what is wrong and what would be right.

    Each room derives its own named exceptions from this class; the command prints the line and
    exits with status 2.

    Examples
    --------
    >>> raise TokenlifeError("no vocabulary 'gpt9'; known: book, gpt2")
    Traceback (most recent call last):
        ...
    tokenlife.errors.TokenlifeError: no vocabulary 'gpt9'; known: book, gpt2
    """
