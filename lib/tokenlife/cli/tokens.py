"""``tokenlife tokens``: a text as tokens, in one vocabulary or several side by side."""

import argparse
import sys
from pathlib import Path

from tokenlife.cli import Result
from tokenlife.errors import TokenlifeError
from tokenlife.tokenizer import Encoding, vocabularies
from tokenlife.tokenizer.errors import SpecialTokenInText

HELP = "cut words into tokens: ids, pieces, bytes"
SHOWN = 40  # tokens in a table for people; --json has all


class InputError(TokenlifeError):
    """No text, two texts, or a file that cannot be read as text."""


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument(
        "text", nargs="?", help="the words; '-' (or nothing, in a pipe) reads input"
    )
    parser.add_argument(
        "--vocabulary",
        action="append",
        metavar="NAME",
        help=f"{', '.join(vocabularies.names())}, or all; repeat it, or separate names by commas "
        "(default: book)",
    )
    parser.add_argument("--file", metavar="PATH", help="read the text from a UTF-8 file")
    parser.add_argument(
        "--special",
        choices=("refuse", "token", "text"),
        default="refuse",
        help="what a special token spelt in the text is (default: refuse it)",
    )


def run(args: argparse.Namespace) -> Result:
    """Encode and print.

    Raises
    ------
    TokenlifeError
        If a vocabulary is unknown or missing, or there is no readable text.
    """
    names = _names(args.vocabulary or ["book"])
    text = _read(args.text, args.file)
    encodings = [_encode(name, text, args.special) for name in names]
    records = [_record(encoding) for encoding in encodings]
    if len(records) == 1:
        return Result(records[0], _one(encodings[0]))
    return Result(records, _several(encodings))


def _names(asked: list[str]) -> list[str]:
    names = [name.strip() for item in asked for name in item.split(",") if name.strip()]
    if not names:
        raise InputError(f"--vocabulary names none; known: {', '.join(vocabularies.names())}")
    names = [known for name in names for known in _expand(name)]
    for name in names:
        vocabularies.describe(name)  # say that a name is unknown before reading anything
    return list(dict.fromkeys(names))


def _expand(name: str) -> list[str]:
    return list(vocabularies.names()) if name == "all" else [name]


def _read(text: str | None, file: str | None) -> str:
    if text is not None and file is not None:
        raise InputError("a text and --file are two texts; give one")
    if file is not None:
        try:
            return _text(Path(file).read_bytes(), file)
        except OSError as error:
            raise InputError(f"cannot read {file}: {error.strerror}") from None
    if text == "-" or (text is None and not sys.stdin.isatty()):
        return _text(sys.stdin.buffer.read(), "standard input")
    if text is None:
        raise InputError("no text; write it in quotes, or give --file PATH, or pipe it in")
    return text


def _text(data: bytes, where: str) -> str:
    if (nul := data.find(0)) >= 0:
        raise InputError(f"{where} is no text: it holds a NUL byte at offset {nul}")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise InputError(
            f"{where} is no UTF-8 text: byte 0x{data[error.start]:02x} at offset {error.start}"
        ) from None


def _encode(name: str, text: str, special: str) -> Encoding:
    allowed = "all" if special == "token" else ()
    disallowed = () if special == "text" else "all"
    try:
        return vocabularies.load(name).encoding(text, allowed, disallowed)
    except SpecialTokenInText as error:
        told = str(error).split(";")[0]
        raise InputError(f"{name}: {told}; say --special token or --special text") from None


def _record(encoding: Encoding) -> dict:
    return {
        "vocabulary": encoding.vocabulary,
        "n_tokens": encoding.n_tokens,
        "n_bytes": encoding.n_bytes,
        "ids": list(encoding.ids),
        # A token may hold a part of a character: text shows U+FFFD there, the bytes are exact.
        "pieces": [piece.decode(errors="replace") for piece in encoding.pieces],
        "pieces_hex": [piece.hex() for piece in encoding.pieces],
    }


def _show(piece: bytes) -> str:
    """Write a piece on one line: quotes keep its spaces visible, bytes that are no text in hex."""
    try:
        text = piece.decode()
    except UnicodeDecodeError:
        return f"bytes {piece.hex(' ')}"
    return repr(text)


def _summary(encoding: Encoding) -> str:
    per_token = encoding.n_bytes / encoding.n_tokens if encoding.n_tokens else 0.0
    tokens, bytes_ = (
        f"{n:,} {word}{'' if n == 1 else 's'}"
        for n, word in ((encoding.n_tokens, "token"), (encoding.n_bytes, "byte"))
    )
    return f"{bytes_} are {tokens} of {encoding.vocabulary} ({per_token:.2f} bytes each)"


def _one(encoding: Encoding) -> str:
    lines = [f"{'id':>7}  {'bytes':>5}  piece"]
    for id_, piece in list(zip(encoding.ids, encoding.pieces, strict=True))[:SHOWN]:
        lines.append(f"{id_:>7}  {len(piece):>5}  {_show(piece)}")
    if encoding.n_tokens > SHOWN:
        lines.append(f"    ... and {encoding.n_tokens - SHOWN:,} more; --json has all")
    return "\n".join([*lines, _summary(encoding)])


def _several(encodings: list[Encoding]) -> str:
    lines = [f"{'vocabulary':<10} {'tokens':>9}  pieces"]
    for encoding in encodings:
        pieces = "|".join(_show(piece).strip("'") for piece in encoding.pieces[:SHOWN])
        more = " ..." if encoding.n_tokens > SHOWN else ""
        lines.append(f"{encoding.vocabulary:<10} {encoding.n_tokens:>9,}  {pieces}{more}")
    return "\n".join([*lines, f"of {encodings[0].n_bytes:,} bytes"])
