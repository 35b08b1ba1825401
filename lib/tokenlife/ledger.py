"""The account: the same bytes at nine levels, with nothing lost between two of them.

A token's way is cut into nine levels (:data:`LEVELS`). From ``text`` to ``communication`` each
level follows from the one before by a formula (ids become hidden states, parameters become
gradients): a *derivation*, not a balance. From ``communication`` down to ``bits`` the bytes
balance: a level holds what the level above holds plus signed, named terms (replication by the
algorithm, hops, headers, acknowledgements, …). A :class:`Ledger` that does not balance cannot be
made.

What it leaves out: time. When the bytes cross is told by flows and time lines.
"""

from dataclasses import dataclass

from tokenlife.errors import TokenlifeError
from tokenlife.provenance import Label
from tokenlife.units import format_bytes

LEVELS = (
    "text",
    "ids",
    "tensors",
    "operations",
    "communication",
    "messages",
    "flows",
    "packets",
    "bits",
)
BALANCED = LEVELS[LEVELS.index("communication") + 1 :]


class LedgerError(TokenlifeError, ValueError):
    """Levels out of order, or bytes that no term accounts for."""


@dataclass(frozen=True)
class Term:
    """A named difference between a level and the one above it.

    Attributes
    ----------
    name
        The overhead, as it is called everywhere in the book.
    bytes_
        Signed: negative where a level carries less than the one above.
    why
        One sentence.
    """

    name: str
    bytes_: int
    why: str


@dataclass(frozen=True)
class Level:
    """The bytes at one level.

    Attributes
    ----------
    name
        One of :data:`LEVELS`.
    bytes_
        How many bytes stand at this level, counted independently of the level above.
    how
        The derivation, in words: from what these bytes were counted.
    terms
        The signed differences from the level above; empty for a derivation.
    label
        Whether the count was modelled, measured, recorded or published.
    """

    name: str
    bytes_: int
    how: str
    terms: tuple[Term, ...] = ()
    label: Label = Label.MODELLED


@dataclass(frozen=True)
class Ledger:
    """One account from words to bits.

    Parameters
    ----------
    levels
        One :class:`Level` for each name of :data:`LEVELS`, in that order.

    Raises
    ------
    LedgerError
        If a level is missing or out of order, or if a balanced level's bytes are not those of the
        level above plus its terms.

    Examples
    --------
    >>> way = [Level(name, 100, "given") for name in LEVELS[:-1]]
    >>> headers = Term("preamble and gap", 20, "every frame needs them")
    >>> ledger = Ledger((*way, Level("bits", 120, "what occupies the link", (headers,))))
    >>> ledger["bits"].bytes_, ledger.wire_bits
    (120, 960)
    >>> Ledger((*way, Level("bits", 121, "what occupies the link", (headers,))))
    Traceback (most recent call last):
        ...
    tokenlife.ledger.LedgerError: bits: 121 B, but packets holds 100 B and the terms add 20 B: \
1 B unaccounted for
    """

    levels: tuple[Level, ...]

    def __post_init__(self):
        names = tuple(level.name for level in self.levels)
        if names != LEVELS:
            raise LedgerError(f"a ledger needs the levels {', '.join(LEVELS)}; got {names}")
        for above, level in zip(self.levels, self.levels[1:], strict=False):
            added = sum(term.bytes_ for term in level.terms)
            if level.name in BALANCED:
                lost = level.bytes_ - above.bytes_ - added
                if lost:
                    raise LedgerError(
                        f"{level.name}: {level.bytes_} B, but {above.name} holds {above.bytes_} B "
                        f"and the terms add {added} B: {lost} B unaccounted for"
                    )
            elif level.terms:
                raise LedgerError(f"{level.name} is a derivation from {above.name}: no terms there")

    def __getitem__(self, name: str) -> Level:
        """Return the level of that name."""
        return self.levels[LEVELS.index(name)]

    @property
    def wire_bits(self) -> int:
        """Bits at the last level."""
        return 8 * self.levels[-1].bytes_

    def to_list(self) -> list[dict]:
        """Return the levels as JSON-ready dictionaries, overheads and their reasons by name."""
        return [
            {
                "level": level.name,
                "bytes": level.bytes_,
                "overheads": {term.name: term.bytes_ for term in level.terms},
                "why": {term.name: term.why for term in level.terms},
                "how": level.how,
                "label": str(level.label),
            }
            for level in self.levels
        ]

    def __str__(self) -> str:
        """Print the account as a table: exact bytes, the signed terms under each level."""
        rows = []
        for level in self.levels:
            rows.append((level.name, f"{level.bytes_:,}", level.how))
            rows += [(f"  {t.name}", f"{t.bytes_:+,}", f"  {t.why}") for t in level.terms]
        name_width = max(len(row[0]) for row in rows)
        bytes_width = max(len(row[1]) for row in rows)
        lines = [f"{'level':<{name_width}}  {'bytes':>{bytes_width}}  how"]
        lines += [f"{name:<{name_width}}  {n:>{bytes_width}}  {how}" for name, n, how in rows]
        total = f"{self.wire_bits:,} bits ({format_bytes(self.levels[-1].bytes_)})"
        return "\n".join([*lines, f"on the wire: {total}"])
