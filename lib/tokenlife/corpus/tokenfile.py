r"""Token files: the ids of many documents in one file that every rank maps into memory.

A file has three parts, all little-endian:

====================  ===========================================================================
bytes                 what
====================  ===========================================================================
0 – 7                 magic ``TKLIFE\r\n`` (the line end shows a transfer in text mode)
8 – 11, 12 – 15       uint32: version of this format (1), bytes of one id (2 or 4)
16 – 23, 24 – 31      uint64: documents, ids
32 – 39               uint64: ids in the vocabulary
40 – 71               SHA-256 of the vocabulary (:func:`vocabulary_fingerprint`)
72 – 103              SHA-256 of the ids as they lie in this file
104 – 127             zero
128 –                 the ids: each document's, then its end-of-text id
…                     zeros up to a multiple of 8
… end                 uint64, one more than documents: where each document starts, counted in ids
====================  ===========================================================================

The width is 2 bytes where the vocabulary has at most 65,536 ids, else 4. A file is written beside
its place and moved there when it is whole: a reader sees the old file or the new one, never half.
Opening checks the size to the byte, and the vocabulary where the caller names one; it does not read
the ids (:meth:`TokenFile.verify` does).
"""

import hashlib
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from tokenlife.corpus.documents import Document
from tokenlife.errors import TokenlifeError
from tokenlife.files import atomic_write
from tokenlife.tokenizer import Tokenizer
from tokenlife.tokenizer.codes import fixed_width, pack

MAGIC = b"TKLIFE\r\n"
VERSION = 1
_HEADER = struct.Struct("<8sIIQQQ32s32s24x")
# What the vocabularies of `data/vocabularies/` call the token that closes a document.
END_NAMES = ("<|endoftext|>", "<|end_of_text|>", "<｜end▁of▁sentence｜>")


class TokenFileError(TokenlifeError, ValueError):
    """A file that is no whole token file of this format."""


class VocabularyMismatchError(TokenlifeError, ValueError):
    """A token file written with another vocabulary, or a vocabulary without end-of-text."""


class EmptyCorpusError(TokenlifeError, ValueError):
    """A corpus without a document, or without a token."""


def end_of_text(tokenizer: Tokenizer) -> int:
    """Return the id that closes a document.

    Raises
    ------
    VocabularyMismatchError
        If the vocabulary has none of :data:`END_NAMES`.

    Examples
    --------
    >>> from tokenlife.tokenizer import vocabularies
    >>> end_of_text(vocabularies.load("book"))
    4095
    """
    for name in END_NAMES:
        if name in tokenizer.special:
            return tokenizer.special[name]
    raise VocabularyMismatchError(
        f"vocabulary {tokenizer.name!r} has no end-of-text token; one of {', '.join(END_NAMES)}"
    )


def vocabulary_fingerprint(tokenizer: Tokenizer) -> bytes:
    """Return 32 bytes that stand for what a tokeniser does: its tokens, merges and cuts.

    The name does not count: the same vocabulary under another name gives the same ids.
    """
    digest = hashlib.sha256()
    tokens = tokenizer.tokens() | {i: text.encode() for text, i in tokenizer.special.items()}
    for id_, token in sorted(tokens.items()):
        digest.update(struct.pack("<II", id_, len(token)) + token)
    cut = tokenizer.pretokenizer
    rules = (cut.patterns, cut.normalization, cut.prefix_space, tokenizer.whole_piece_first)
    digest.update(repr((sorted(tokenizer.special.values()), tokenizer.merges, rules)).encode())
    return digest.digest()


def write_tokens(
    path: str | Path, documents: Iterable[Document], tokenizer: Tokenizer
) -> "TokenFile":
    """Tokenise documents into a token file, one at a time, and open it.

    Text that looks like a special token is encoded as text: only the file's own end-of-text ids are
    special.

    Raises
    ------
    EmptyCorpusError
        If there is no document. Nothing is left on the disk then.
    TokenFileError
        If the folder cannot be written.

    Examples
    --------
    >>> import tempfile
    >>> from tokenlife.tokenizer import vocabularies
    >>> note = Document("note", "A token leaves as a word", "", "English", "")
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = write_tokens(Path(folder, "notes.tokens"), [note], vocabularies.load("book"))
    ...     file.n_documents, file.n_tokens, file.document(0).tolist()[-1]
    (1, 9, 4095)
    """
    path = Path(path)
    end = end_of_text(tokenizer)
    starts, digest = [0], hashlib.sha256()
    with atomic_write(path, TokenFileError) as out:
        out.write(bytes(_HEADER.size))
        for document in documents:
            ids = [*tokenizer.encode_ordinary(document.text), end]
            block = pack(ids, tokenizer.n_vocab)
            digest.update(block)
            out.write(block)
            starts.append(starts[-1] + len(ids))
        if len(starts) == 1:
            raise EmptyCorpusError("no document to tokenise; give at least one")
        out.write(bytes(-out.tell() % 8))
        out.write(np.array(starts, "<u8").tobytes())
        out.seek(0)
        out.write(
            _HEADER.pack(
                MAGIC,
                VERSION,
                fixed_width(tokenizer.n_vocab).itemsize,
                len(starts) - 1,
                starts[-1],
                tokenizer.n_vocab,
                vocabulary_fingerprint(tokenizer),
                digest.digest(),
            )
        )
    return TokenFile(path, tokenizer)


@dataclass(frozen=True)
class TokenFile:
    """A token file, mapped into memory: opening it reads the header and the table of documents.

    Parameters
    ----------
    path
        The file.
    tokenizer
        The vocabulary that it must have been written with; ``None`` accepts any.

    Raises
    ------
    TokenFileError
        If it cannot be read, is no token file, or is not whole.
    VocabularyMismatchError
        If it was written with another vocabulary.
    """

    path: Path
    tokenizer: Tokenizer | None = None

    def __post_init__(self):
        object.__setattr__(self, "path", Path(self.path))
        self._header  # noqa: B018  (reading the header is the check)

    def __reduce__(self):
        # A worker process opens the file anew; pickling the map would copy all its ids. The
        # vocabulary was checked here and need not travel.
        return TokenFile, (self.path,)

    @cached_property
    def _header(self) -> tuple:
        try:
            size = self.path.stat().st_size
            with self.path.open("rb") as file:
                head = file.read(_HEADER.size)
        except OSError as error:
            raise TokenFileError(f"cannot read {self.path}: {error.strerror}") from error
        if not head.startswith(MAGIC):
            raise TokenFileError(f"{self.path} is no token file: it does not start with {MAGIC!r}")
        if len(head) < _HEADER.size:
            raise TokenFileError(f"{self.path} ends inside its header; write it again")
        _, version, width, n_documents, n_tokens, n_vocab, vocabulary, content = _HEADER.unpack(
            head
        )
        if version != VERSION:
            raise TokenFileError(
                f"{self.path} has version {version}; this library reads version {VERSION}"
            )
        if width not in (2, 4) or n_documents < 1 or n_tokens < n_documents:
            raise TokenFileError(f"{self.path} has a damaged header; write it again")
        table = _HEADER.size + n_tokens * width
        table += -table % 8
        whole = table + 8 * (n_documents + 1)
        if size != whole:
            raise TokenFileError(
                f"{self.path} has {size:,} B where its header promises {whole:,} B; write it again"
            )
        if self.tokenizer and vocabulary_fingerprint(self.tokenizer) != vocabulary:
            raise VocabularyMismatchError(
                f"{self.path} was not written with vocabulary {self.tokenizer.name!r}; "
                "name the one it was written with, or write it again"
            )
        return width, n_documents, n_tokens, n_vocab, content, table

    width = property(lambda self: self._header[0], doc="Bytes of one id: 2 or 4.")
    n_documents = property(lambda self: self._header[1], doc="Documents in the file.")
    n_tokens = property(lambda self: self._header[2], doc="Ids in the file, end-of-text included.")
    n_vocab = property(lambda self: self._header[3], doc="Ids in the vocabulary.")
    content = property(lambda self: self._header[4], doc="SHA-256 of the ids, 32 bytes.")

    @cached_property
    def tokens(self) -> np.ndarray:
        """All ids, mapped read-only: shape (n_tokens,), uint16 or uint32."""
        return np.memmap(self.path, f"<u{self.width}", "r", _HEADER.size, (self.n_tokens,))

    @cached_property
    def starts(self) -> np.ndarray:
        """Where each document starts, and the end of the last: shape (n_documents + 1,), int64."""
        with self.path.open("rb") as file:
            file.seek(self._header[5])
            starts = np.fromfile(file, "<u8").astype(np.int64)
        if starts[0] != 0 or starts[-1] != self.n_tokens or (np.diff(starts) < 1).any():
            raise TokenFileError(f"{self.path} has a damaged table of documents; write it again")
        return starts

    @property
    def lengths(self) -> np.ndarray:
        """Ids of each document, its end-of-text id included: shape (n_documents,)."""
        return np.diff(self.starts)

    def document(self, i: int) -> np.ndarray:
        """Return the ids of document ``i``, a view into the map."""
        return self.tokens[self.starts[i] : self.starts[i + 1]]

    def verify(self) -> None:
        """Read all ids and compare them with the hash in the header.

        Raises
        ------
        TokenFileError
            If an id changed since the file was written.
        """
        if hashlib.sha256(self.tokens.tobytes()).digest() != self.content:
            raise TokenFileError(f"the ids of {self.path} are not those written; write it again")
