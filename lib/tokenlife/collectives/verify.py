"""Running a schedule on arrays: the result must be the definition of the collective."""

import numpy as np

from tokenlife.collectives.schedule import Schedule, ScheduleError


def run(schedule: Schedule, buffers: np.ndarray) -> np.ndarray:
    """Play a schedule.

    Parameters
    ----------
    schedule
        The algorithm.
    buffers
        What each rank holds before; shape (ranks, items).

    Returns
    -------
    ndarray
        What each rank holds after; the same shape.

    Examples
    --------
    >>> from tokenlife.collectives.ring import ring_all_reduce
    >>> run(ring_all_reduce(2), np.array([[1, 2, 3], [10, 20, 30]])).tolist()
    [[11, 22, 33], [11, 22, 33]]
    """
    if buffers.shape[0] != schedule.ranks:
        raise ScheduleError(f"{buffers.shape[0]} buffers for a schedule of {schedule.ranks} ranks")
    held = buffers.copy()
    slices = schedule.chunk_slices(buffers.shape[1])
    for sends in schedule.rounds:
        before = held.copy()  # all sends of a round read what stood before it
        for send in sends:
            where = slices[send.chunk]
            if send.reduce:
                held[send.dst, where] += before[send.src, where]
            else:
                held[send.dst, where] = before[send.src, where]
    return held


def verify(schedule: Schedule, items: int) -> None:
    """Check a schedule against the definition of its collective, on whole numbers.

    Raises
    ------
    ScheduleError
        If any rank ends with anything else.

    Examples
    --------
    >>> from tokenlife.collectives.ring import ring_all_reduce
    >>> verify(ring_all_reduce(5), items=17)
    """
    if schedule.kind != "all_reduce":
        raise ScheduleError(f"no definition of {schedule.kind!r} to verify against")
    # Powers of two: a sum that counts one rank twice and another never cannot come out right.
    own = 2 ** np.arange(schedule.ranks, dtype=object)[:, None] * np.arange(1, items + 1)
    wrong = (run(schedule, own) != own.sum(axis=0)).any(axis=1).nonzero()[0]
    if wrong.size:
        raise ScheduleError(
            f"{schedule.algorithm} over {schedule.ranks} ranks: "
            f"rank {wrong[0]} does not hold the sum"
        )
