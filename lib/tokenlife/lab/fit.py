"""From measured times to α, β, γ: a fit in relative error that a few outliers cannot move.

Times of collectives run over five decades, so it is the relative error that counts: each sample is
divided by its own time. Outliers lose weight as Huber [1]_ gives it, in a few rounds of reweighted
least squares. No parameter can be negative. The interval of 95 % is the usual one of least squares,
with the scale of the errors taken from their median; it says how well the samples pin a parameter,
not whether the model is right.

:func:`fit_fastest` fits several models at once, of which the fastest runs: a library that changes
its protocol with the size.

References
----------
.. [1] P. J. Huber, "Robust estimation of a location parameter", Ann. Math. Statist. 35(1), 1964.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from tokenlife.collectives import Terms
from tokenlife.errors import TokenlifeError

HUBER = 1.345  # of the scale: the usual constant, 95 % efficient on normal errors
NORMAL_95, MAD = 1.96, 1.4826  # of the normal distribution


class FitError(TokenlifeError, ValueError):
    """Samples that a model cannot be fitted to."""


@dataclass(frozen=True)
class Fit:
    """Parameters and how well the samples know them.

    Attributes
    ----------
    names
        Of the parameters.
    values, low, high
        Each, and its interval of 95 %; shape (parameters,).
    errors
        Relative error of the model at each sample; shape (samples,).
    """

    names: tuple[str, ...]
    values: np.ndarray
    low: np.ndarray
    high: np.ndarray
    errors: np.ndarray

    def __getitem__(self, name: str) -> float:
        return float(self.values[self.names.index(name)])


def fit(columns: dict[str, np.ndarray], time_s: np.ndarray) -> Fit:
    """Fit times as a sum of columns, each times a parameter that is not negative.

    Parameters
    ----------
    columns
        What each parameter is multiplied by; shape (samples,).
    time_s
        Measured seconds, more than zero; shape (samples,).

    Raises
    ------
    FitError
        If there are fewer samples than parameters, or a time is not a number above zero.

    Examples
    --------
    >>> sizes = np.array([1e3, 1e4, 1e5, 1e6])
    >>> fit_alpha_beta(sizes, 5e-6 + 1e-9 * sizes)["alpha_s"].__round__(9)
    5e-06
    """
    time_s = np.asarray(time_s, dtype=float)
    matrix = np.column_stack([np.broadcast_to(c, time_s.shape) for c in columns.values()])
    if not np.isfinite(matrix).all():
        raise FitError("each sample needs numbers: a size is missing or endless")
    if len(time_s) < matrix.shape[1]:
        raise FitError(f"{len(time_s)} samples cannot give {matrix.shape[1]} parameters")
    if not (np.isfinite(time_s).all() and (time_s > 0).all()):
        raise FitError("every measured time must be a number above zero")
    values, weight = _robust(matrix, time_s)
    errors = matrix @ values / time_s - 1
    scaled = matrix / time_s[:, None] * np.sqrt(weight)[:, None]
    spare = max(len(time_s) - matrix.shape[1], 1)
    scale = max(_scale(errors) ** 2, (weight * errors**2).mean()) * len(time_s) / spare
    spread = NORMAL_95 * np.sqrt(scale * np.diag(np.linalg.pinv(scaled.T @ scaled)))
    return Fit(tuple(columns), values, np.maximum(values - spread, 0), values + spread, errors)


def fit_alpha_beta(bytes_: np.ndarray, time_s: np.ndarray) -> Fit:
    """Fit ``alpha_s`` and ``beta_s_per_B`` of single messages."""
    return fit({"alpha_s": np.ones(len(bytes_)), "beta_s_per_B": bytes_}, time_s)


def fit_terms(terms: Terms, time_s: np.ndarray, floor: bool = False, gamma: bool = False) -> Fit:
    """Fit α and β of one system to all its algorithms, sizes and rank counts at once.

    Parameters
    ----------
    terms
        Closed forms of the samples; arrays of shape (samples,).
    time_s
        Measured seconds; shape (samples,).
    floor, gamma
        Whether to fit ``floor_s`` too, paid once a call, and ``gamma_s_per_B``.
    """
    columns = {"alpha_s": terms.rounds, "beta_s_per_B": terms.sent_bytes}
    if floor:
        columns["floor_s"] = 1.0
    if gamma:
        columns["gamma_s_per_B"] = terms.reduced_bytes
    return fit(columns, time_s)


def fit_fastest(
    designs: np.ndarray, time_s: np.ndarray, starts: Iterable[Sequence[int]]
) -> np.ndarray:
    """Fit models that share one vector of parameters, where each sample is the fastest model's.

    Turn about: fit all parameters to the models that the samples are assigned to, then assign each
    sample to the model that is fastest. Of all starts the best end wins.

    Parameters
    ----------
    designs
        Of each model, what each parameter is multiplied by; shape (models, samples, parameters).
    time_s
        Measured seconds; shape (samples,).
    starts
        First assignments of samples to models, each of shape (samples,).

    Returns
    -------
    ndarray
        The parameters; the model's time is ``times_s(designs, parameters).min(axis=0)``.

    Examples
    --------
    >>> sizes = np.array([1.0, 2, 4, 8, 16, 32])
    >>> one, zero = np.ones(6), np.zeros(6)
    >>> designs = np.array([[one, sizes, zero, zero], [zero, zero, one, sizes]]).swapaxes(1, 2)
    >>> truth = np.minimum(1 + 2 * sizes, 9 + sizes)
    >>> fit_fastest(designs, truth, [np.array([0, 0, 0, 1, 1, 1])]).round(6).tolist()
    [1.0, 2.0, 9.0, 1.0]
    """
    rows, best, least = np.arange(len(time_s)), None, np.inf
    for start in starts:
        assigned = np.asarray(start)
        for _ in range(12):
            values, _ = _robust(designs[assigned, rows], time_s)
            modelled_s = times_s(designs, values)
            fastest = modelled_s.argmin(axis=0)
            if (fastest == assigned).all():
                break
            assigned = fastest
        error = np.abs(np.log(modelled_s.min(axis=0) / time_s)).mean()
        if error < least:
            best, least = values, error
    if best is None:
        raise FitError("a fit of several models needs a start, and times above zero")
    return best


def times_s(designs: np.ndarray, parameters: np.ndarray) -> np.ndarray:
    """Return each model's seconds; one that lost all samples costs nothing, and is out of the race.

    Returns
    -------
    ndarray
        Shape (models, samples).
    """
    modelled_s = designs @ parameters
    return np.where(modelled_s > 0, modelled_s, np.inf)


def _robust(matrix: np.ndarray, time_s: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return parameters and the weights of the samples."""
    weight = np.ones(len(time_s))
    for _ in range(6):
        values = _not_negative(matrix / time_s[:, None] * np.sqrt(weight)[:, None], np.sqrt(weight))
        errors = np.abs(matrix @ values / time_s - 1)
        scale = max(_scale(errors), np.finfo(float).eps)
        weight = np.minimum(1, HUBER * scale / np.maximum(errors, scale * HUBER))
    return values, weight


def _scale(errors: np.ndarray) -> float:
    return MAD * float(np.median(np.abs(errors)))


def _not_negative(matrix: np.ndarray, goal: np.ndarray) -> np.ndarray:
    """Least squares; what would be negative is set to zero, and the rest solved again."""
    size = np.abs(matrix).max(axis=0)
    free = size > 0
    values = np.zeros(len(size))
    while free.any():
        values[:] = 0
        values[free] = np.linalg.lstsq(matrix[:, free] / size[free], goal)[0] / size[free]
        if (values >= 0).all():
            break
        free &= values > 0
    return np.maximum(values, 0)
