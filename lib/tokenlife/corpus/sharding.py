"""Who reads what: a global batch dealt to data-parallel ranks, micro-batch by micro-batch.

A step consumes ``global_batch`` sequences. Each rank has room for ``micro_batch`` of them at a
time, so a step takes ``accumulation`` micro-steps. In each, every rank takes its share of the next
``ranks · micro_batch`` places of the global order::

    place    0 1 | 2 3 | 4 5 | 6 7 | 8 9 | 10 11 | ...      ranks = 2, micro_batch = 2
    rank      0     1     0     1     0     1
    micro-step   0           1           2

With micro-steps outermost, what has been consumed after any of them is a *prefix* of the global
order, whatever the number of ranks. Its length is all that a resumed run has to know, and a run on
another number of ranks continues with the same next place. The sum of gradients over a step is over
the same sequences for every layout, so the layout changes speed, not (beyond rounding) the result.

Ranks of other axes (tensor, pipeline, context) read what their data-parallel rank reads.
"""

from dataclasses import dataclass

from tokenlife.errors import TokenlifeError


class BatchLayoutError(TokenlifeError, ValueError):
    """A global batch that the ranks cannot share evenly."""


class RankError(TokenlifeError, ValueError):
    """A rank that the layout does not have."""


class ResumeError(TokenlifeError, ValueError):
    """A saved place that this run cannot continue from."""


@dataclass(frozen=True)
class BatchLayout:
    """How a global batch is dealt out.

    Attributes
    ----------
    global_batch
        Sequences of one step, over all ranks.
    micro_batch
        Sequences that one rank takes at a time.
    ranks
        Data-parallel ranks.

    Raises
    ------
    BatchLayoutError
        If a number is not a whole number above 0, or ``ranks · micro_batch`` does not divide the
        global batch.

    Examples
    --------
    >>> layout = BatchLayout(global_batch=8, micro_batch=2, ranks=2)
    >>> layout.accumulation, [layout.places(rank, micro_step=1) for rank in range(2)]
    (2, [range(4, 6), range(6, 8)])
    >>> BatchLayout(global_batch=8, micro_batch=3, ranks=2)
    Traceback (most recent call last):
        ...
    tokenlife.corpus.sharding.BatchLayoutError: a global batch of 8 cannot be shared by 2 ranks in \
micro-batches of 3; take a multiple of 6
    """

    global_batch: int
    micro_batch: int
    ranks: int = 1

    def __post_init__(self):
        for field in ("global_batch", "micro_batch", "ranks"):
            value = getattr(self, field)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise BatchLayoutError(f"{field} must be a whole number above 0, not {value!r}")
        if self.global_batch % self.micro_step_batch:
            raise BatchLayoutError(
                f"a global batch of {self.global_batch} cannot be shared by {self.ranks} ranks in "
                f"micro-batches of {self.micro_batch}; take a multiple of {self.micro_step_batch}"
            )

    @property
    def micro_step_batch(self) -> int:
        """Sequences of one micro-step, over all ranks."""
        return self.micro_batch * self.ranks

    @property
    def accumulation(self) -> int:
        """Micro-steps in a step: gradients are summed over them before the ranks exchange any."""
        return self.global_batch // self.micro_step_batch

    def check_rank(self, rank: int) -> None:
        """Refuse a rank that is not there.

        Raises
        ------
        RankError
        """
        if not isinstance(rank, int) or isinstance(rank, bool) or not 0 <= rank < self.ranks:
            raise RankError(
                f"no data-parallel rank {rank!r}; there are ranks 0 to {self.ranks - 1}"
            )

    def places(self, rank: int, micro_step: int, after: int = 0) -> range:
        """Return the places of the global order that a rank takes in a micro-step.

        Parameters
        ----------
        rank
            The data-parallel rank.
        micro_step
            Counted from 0 where the run starts.
        after
            Sequences consumed before the run started.

        Raises
        ------
        RankError
            If there is no such rank.
        """
        self.check_rank(rank)
        start = after + micro_step * self.micro_step_batch + rank * self.micro_batch
        return range(start, start + self.micro_batch)

    def check_resume(self, consumed: int) -> None:
        """Refuse a place in the middle of a step that this layout's micro-steps would jump over.

        At the end of a step every layout may take over.

        Raises
        ------
        ResumeError

        Examples
        --------
        >>> BatchLayout(8, 2, ranks=2).check_resume(consumed=12)
        >>> BatchLayout(8, 2, ranks=4).check_resume(consumed=12)
        Traceback (most recent call last):
            ...
        tokenlife.corpus.sharding.ResumeError: 12 sequences were consumed, 4 into a step of 8; \
with micro-steps of 8 resume at the end of a step
        """
        into = consumed % self.global_batch
        if consumed < 0 or into % self.micro_step_batch:
            raise ResumeError(
                f"{consumed} sequences were consumed, {into} into a step of {self.global_batch}; "
                f"with micro-steps of {self.micro_step_batch} resume at the end of a step"
            )
