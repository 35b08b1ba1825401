"""What a collective costs in closed form: three numbers, and what one message costs.

The α–β–γ model [1]_: a message of m bytes takes α + β·m seconds, and adding a byte takes γ. A round
lasts as long as its longest message, so an algorithm is three numbers: how many rounds, how many
bytes in the longest message of each, summed, and how many of those must be added.

Left out: contention (a network that cannot carry all messages of a round at once), the overlap of
adding with receiving, and rounds that start before the last has ended everywhere.

References
----------
.. [1] R. Thakur, R. Rabenseifner, W. Gropp, "Optimization of collective communication operations in
   MPICH", Int. J. High Performance Computing Applications 19(1), 2005.
"""

from dataclasses import dataclass

import numpy as np

from tokenlife.collectives.schedule import ScheduleError


@dataclass(frozen=True)
class Terms:
    """The three numbers of an algorithm; each may be an array, for many sizes or rank counts.

    Attributes
    ----------
    rounds
        Messages one after another, each paying α.
    sent_bytes
        Bytes one after another, each paying β.
    reduced_bytes
        Bytes added one after another, each paying γ.

    Examples
    --------
    >>> Terms(6, 1500.0, 750.0).time_s(alpha_s=2e-6, beta_s_per_B=1e-9)
    1.35e-05
    """

    rounds: np.ndarray | float
    sent_bytes: np.ndarray | float
    reduced_bytes: np.ndarray | float = 0.0

    def time_s(self, alpha_s, beta_s_per_B, gamma_s_per_B=0.0):
        """Return the time in seconds.

        Raises
        ------
        ScheduleError
            If α, β or γ is negative or not a number.
        """
        for name, value in (("α", alpha_s), ("β", beta_s_per_B), ("γ", gamma_s_per_B)):
            if not np.all(np.asarray(value) >= 0):
                raise ScheduleError(f"{name} must be zero or more seconds, not {value}")
        return (
            self.rounds * alpha_s
            + self.sent_bytes * beta_s_per_B
            + self.reduced_bytes * gamma_s_per_B
        )

    def __add__(self, other: "Terms") -> "Terms":
        """One after the other."""
        return Terms(
            self.rounds + other.rounds,
            self.sent_bytes + other.sent_bytes,
            self.reduced_bytes + other.reduced_bytes,
        )


def log2_up(n):
    """Return ⌈log₂ n⌉ for whole n ≥ 1, exact at powers of two; takes arrays.

    Examples
    --------
    >>> log2_up(np.array([1, 2, 3, 4, 5])).tolist()
    [0, 1, 2, 2, 3]
    """
    # frexp counts in 32 bits, in which a number of rounds times a size would overflow.
    return np.frexp(np.asarray(n) - 1)[1].astype(np.int64)


def log2_down(n):
    """Return ⌊log₂ n⌋ for whole n ≥ 1, exact at powers of two; takes arrays."""
    return np.frexp(np.asarray(n))[1].astype(np.int64) - 1


def whole_buffers(rounds):
    """Return the closed form of sending the whole buffer in each of ``rounds(ranks)`` rounds."""

    def terms(ranks, bytes_, **options) -> Terms:
        return Terms(rounds(ranks, **options), rounds(ranks, **options) * bytes_)

    return terms


def all_but_own(rounds):
    """Return the closed form of sending (n − 1)/n of the buffer, in ``rounds(ranks)`` rounds."""

    def terms(ranks, bytes_, **options) -> Terms:
        return Terms(rounds(ranks, **options), (ranks - 1) / ranks * bytes_)

    return terms


def others(ranks):
    """Return how many other ranks there are: the rounds of algorithms that meet each in turn."""
    return ranks - 1
