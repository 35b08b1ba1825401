"""A printable character for each byte, as in GPT-2's files and in ``tokenizer.json``.

Byte-level BPE works on bytes, but those files hold text, and many bytes are no text: GPT-2 gave
each byte a printable stand-in. The bytes that print in Latin-1 stand for themselves; the other 68
take the characters from U+0100 on, in order. A space (0x20) is therefore written ``Ġ`` (U+0120).

The order of the stand-ins is also the order of the 256 base ids in GPT-2, in what Hugging Face's
trainer assigns, and here; the rule for ties in training depends on it.

Source: Radford et al. 2019, "Language Models are Unsupervised Multitask Learners", and its code.
"""

from functools import cache

from tokenlife.tokenizer.errors import CorruptTokenizer

_PRINTABLE = (*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100))


@cache
def byte_order() -> tuple[int, ...]:
    """Return the 256 bytes in the order of the base ids.

    Examples
    --------
    >>> byte_order()[:3], byte_order()[188:191]
    ((33, 34, 35), (0, 1, 2))
    """
    return (*_PRINTABLE, *(byte for byte in range(256) if byte not in _PRINTABLE))


@cache
def _characters() -> tuple[str, ...]:
    stand_ins = [chr(byte) for byte in _PRINTABLE]
    stand_ins += [chr(256 + n) for n in range(256 - len(_PRINTABLE))]
    return tuple(stand_in for _, stand_in in sorted(zip(byte_order(), stand_ins, strict=True)))


@cache
def _bytes() -> dict[str, int]:
    return {stand_in: byte for byte, stand_in in enumerate(_characters())}


def to_characters(token: bytes) -> str:
    """Write a token's bytes with the printable alphabet.

    Examples
    --------
    >>> to_characters(" é".encode())
    'ĠÃ©'
    """
    alphabet = _characters()
    return "".join([alphabet[byte] for byte in token])


def to_bytes(token: str) -> bytes:
    """Read a token written with the printable alphabet.

    Raises
    ------
    CorruptTokenizer
        If a character stands for no byte.

    Examples
    --------
    >>> to_bytes("ĠÃ©").decode()
    ' é'
    """
    alphabet = _bytes()
    try:
        return bytes([alphabet[character] for character in token])
    except KeyError as error:
        raise CorruptTokenizer(
            f"token {token!r} holds {error.args[0]!r}, which stands for no byte: "
            "this is not a byte-level vocabulary"
        ) from None
