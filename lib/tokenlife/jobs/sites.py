"""A training job over several sites: what may cross the line between them, and what a step costs.

Sites are alike; each pair is joined by a line with a delay and a rate either way, which all ranks
of the two share. A collective that crosses is priced in waits for the delay and in bytes through
the line. A flat ring over n ranks at k sites sends 2(n − 1)/n of the buffer through each line it
uses; where a rank sends on what has come without further ado it waits 2k − 1 times or a little
less, and in lock-step in every one of its 2(n − 1) rounds. The hierarchical all-reduce sends
2(k − 1)/k of the buffer out of a site, and waits 2(k − 1) times, whoever speaks for the site.

What may cross. Data parallelism: gradients once a step, summed at home first, behind the backward
pass of the last micro-batch, bucket by bucket. Local SGD: the same every H steps, with fewer bits.
Pipeline: the stream of each micro-batch and its gradient at k − 1 borders. In 1F1B the stages on
either side of a border are one micro-batch apart, however deep the pipeline is: a round trip over
it lets two micro-batches pass, so each waits one delay. More micro-batches under way before the
border fill the wait, and memory. Tensor parallelism: twice a layer,
forward and backward, exposed: its cost is there to show why it never crosses.

The step at one site is :mod:`tokenlife.jobs.step`'s. Arguments may be arrays that broadcast. Left
out: TCP's start and losses (:mod:`tokenlife.wan`), several micro-batches that share a stage, and
sites that differ.
"""

from dataclasses import dataclass

import numpy as np

from tokenlife.costs.parameters import count_parameters
from tokenlife.errors import TokenlifeError
from tokenlife.jobs.cluster import Cluster
from tokenlife.jobs.compute import Calibration, pass_seconds
from tokenlife.jobs.step import step
from tokenlife.jobs.traffic import rows
from tokenlife.parallel import Plan
from tokenlife.transformer import ModelConfig

CROSSINGS = ("dp", "local", "pp", "tp")


class SitesError(TokenlifeError, ValueError):
    """Sites, a line between them, or a use of it that cannot be."""


@dataclass(frozen=True)
class Distance:
    """Sites, and the line between each pair of them.

    Attributes
    ----------
    delay_s, rate_bps
        One way; the rate is what payload gets. Numbers or arrays.
    sites
        How many, at least 2.

    Examples
    --------
    >>> Distance(0.02, 1e11, sites=1)
    Traceback (most recent call last):
        ...
    tokenlife.jobs.sites.SitesError: a job over sites needs at least 2, not 1
    """

    delay_s: np.ndarray | float
    rate_bps: np.ndarray | float
    sites: int = 2

    def __post_init__(self):
        if not isinstance(self.sites, int) or self.sites < 2:
            raise SitesError(f"a job over sites needs at least 2, not {self.sites}")
        for name, least in (("delay_s", "0 or more seconds"), ("rate_bps", "above 0 bit/s")):
            value = np.asarray(getattr(self, name), float)
            if not (np.all(value >= 0) and np.all((value > 0) | (name == "delay_s"))):
                raise SitesError(f"{name} must be {least}, not {getattr(self, name)}")

    def carry_s(self, bytes_):
        """Return the seconds that bytes take through one line, without its delay."""
        return bytes_ * 8 / self.rate_bps


def flat_ring_s(distance: Distance, bytes_, per_site: int, lockstep: bool = False):
    """Return the seconds of a ring all-reduce over all ranks, numbered site by site.

    Links inside a site take no time here.

    Parameters
    ----------
    distance
        Sites and lines.
    bytes_
        Of one rank's buffer.
    per_site
        Ranks at each site.
    lockstep
        Whether a round begins only when the last has ended everywhere.

    Examples
    --------
    >>> far = Distance(0.02, 1e8)
    >>> [round(float(flat_ring_s(far, 1e6, 2, lockstep)), 3) for lockstep in (False, True)]
    [0.14, 0.24]
    """
    ranks = distance.sites * _positive(per_site, "per_site")
    rounds, delay_s = 2 * (ranks - 1), distance.delay_s
    block_s = distance.carry_s(bytes_ / ranks)
    if lockstep:
        return rounds * (delay_s + block_s)
    # Either a line is always busy, or a block that goes around decides: it meets so many lines.
    laps, rest = divmod(rounds - 1, per_site)
    around_s = (laps + 1) * (delay_s + block_s) + rest * block_s
    return np.maximum(delay_s + rounds * block_s, around_s)


def hierarchical_s(
    distance: Distance,
    bytes_,
    per_site: int,
    gateways: int = 0,
    inside_Bps=np.inf,
    inside_s=0.0,
):
    """Return the seconds of an all-reduce that sums at each site first.

    Parameters
    ----------
    distance, bytes_, per_site
        As for :func:`flat_ring_s`.
    gateways
        Ranks of a site that speak to others, as
        :func:`~tokenlife.collectives.gateways.gateways_all_reduce` takes them; 0 for all.
    inside_Bps, inside_s
        Of a rank's link, which is its way out of the site too, and its start-up time.

    Raises
    ------
    SitesError
        If the gateways do not share the ranks of a site evenly.

    Examples
    --------
    >>> far = Distance(0.02, 1e8)
    >>> round(float(hierarchical_s(far, 1e6, 2)), 3)
    0.12
    """
    gateways = gateways or _positive(per_site, "per_site")
    if gateways < 1 or per_site % gateways:
        raise SitesError(f"{gateways} gateways cannot share the {per_site} ranks of a site evenly")
    k, each = distance.sites, per_site // gateways
    rounds = 2 * (per_site + each - 2)
    inside = rounds * inside_s + rounds / per_site * bytes_ / inside_Bps
    sent = 2 * (k - 1) / k * bytes_
    out = np.maximum(distance.carry_s(sent), sent / (gateways * inside_Bps))
    return inside + 2 * (k - 1) * (distance.delay_s + inside_s) + out


def overlapped_s(distance: Distance, bytes_, window_s, buckets: int = 1, under_way: int = 1):
    """Return what is seen of a hierarchical all-reduce that hides behind work, cut into buckets.

    Buckets become ready evenly through the window. What crosses is what matters: sums at home are
    taken to be done.

    Parameters
    ----------
    distance, bytes_
        As for :func:`flat_ring_s`; the bytes of all buckets.
    window_s
        Of the work that it hides behind.
    buckets, under_way
        How many, and how many may be on their way at once: of a queue that sends one after the
        other, each waits for the distance.

    Examples
    --------
    >>> far = Distance(0.02, 1e9)
    >>> [round(float(overlapped_s(far, 1e8, 1.0, b, f)), 3) for b, f in ((1, 1), (50, 1), (50, 8))]
    [0.84, 1.82, 0.056]
    """
    _positive(buckets, "buckets"), _positive(under_way, "under_way")
    k = distance.sites
    carry = distance.carry_s(2 * (k - 1) / k * bytes_ / buckets)
    wait = 2 * (k - 1) * distance.delay_s
    served = np.maximum(carry, (carry + wait) / under_way)
    # The last bucket is ready when the window ends, or waits for all that came before it.
    behind = np.maximum((buckets - 1) * (served - np.divide(window_s, buckets)), 0.0)
    return behind + carry + wait


@dataclass(frozen=True)
class Crossing:
    """What a job needs to know of itself, to be cut over sites.

    Attributes
    ----------
    step_s
        At one site.
    gradient_bytes, parameters
        Of the whole model.
    backward_s
        Of one micro-batch through all stages.
    stage_s
        Of one micro-batch on one stage, forward and backward.
    stream_bytes
        Of one micro-batch of all pipelines together, one way.
    stages, micro_batches, chunks
        Of a pipeline; chunks of the model on a stage.
    tensor_waits, tensor_bytes
        Collectives of tensor parallelism that a rank waits for in a step, one after another, and
        the bytes of all of them, in all groups.
    """

    step_s: float
    gradient_bytes: int
    parameters: int
    backward_s: float
    stage_s: float
    stream_bytes: int
    stages: int
    micro_batches: int
    chunks: int
    tensor_waits: int
    tensor_bytes: float

    @classmethod
    def of(
        cls,
        config: ModelConfig,
        plan: Plan,
        cluster: Cluster,
        calibration: Calibration | None = None,
    ) -> "Crossing":
        """Find the numbers of a job.

        Examples
        --------
        >>> job = Crossing.of(
        ...     ModelConfig.load("llama-3.1-405b"),
        ...     Plan(tp=8, pp=16, dp=128, zero=2, sequence=8192, global_batch=2048),
        ...     Cluster.load("llama3-24k"),
        ... )
        >>> job.micro_batches, job.stream_bytes / 1e9, round(job.parameters / 1e9)
        (16, 34.359738368, 406)
        """
        c = calibration or Calibration.fitted()
        (dense, mixed), _, head = pass_seconds(config, plan, cluster, c)
        mixtures = sum(map(config.is_moe, range(config.layers)))
        forward = (config.layers - mixtures) * dense + mixtures * mixed + head
        tensor = [row for row in rows(config, plan) if row.demand.axis == "tp"]
        counts = {s: sum(r.demand.count for r in tensor if s in r.stages) for s in range(plan.pp)}
        groups = plan.world // plan.pp // plan.tp
        moved = sum(r.demand.count * r.demand.bytes_ * len(r.stages) for r in tensor) * groups
        parameters = count_parameters(config)
        return cls(
            step(config, plan, cluster, calibration).time_s,
            parameters * plan.gradient_bytes,
            parameters,
            2 * float(forward),
            3 * float(forward) / plan.pp,
            plan.dp * plan.micro_batch * plan.sequence * config.hidden * plan.states.weights,
            plan.pp,
            plan.micro_batches,
            plan.virtual,
            max(counts.values()),
            moved,
        )

    def data_s(self, distance: Distance, buckets: int = 64, under_way: int = 8):
        """Return the step where gradients cross: once, behind the last backward pass."""
        seen = overlapped_s(distance, self.gradient_bytes, self.backward_s, buckets, under_way)
        return self.step_s + seen

    def local_s(self, distance: Distance, every: int, bits: int = 32, hidden_steps: int = 0):
        """Return the mean step of local SGD: an exchange every so many steps.

        Parameters
        ----------
        distance
            Sites and lines.
        every, bits
            Steps between two exchanges, and bits of a number in them.
        hidden_steps
            Steps that an exchange may take while the next ones compute.
        """
        _positive(every, "every"), _positive(bits, "bits")
        whole = hierarchical_s(distance, self.parameters * bits / 8, 1)
        seen = np.maximum(whole - hidden_steps * self.step_s, 0.0)
        return self.step_s + seen / every

    def stall_s(self, distance: Distance, extra: int = 0):
        """Return how long each micro-batch waits for the distance.

        Parameters
        ----------
        distance
            Sites and lines: borders lie evenly between stages.
        extra
            Micro-batches that all stages before a border hold, for each border, beyond 1F1B's.

        Raises
        ------
        SitesError
            If the stages do not lie evenly at the sites.
        """
        k, trips = distance.sites, self._trips(distance)
        if self.stages % k or extra < 0:
            raise SitesError(
                f"{self.stages} stages must lie evenly at {k} sites, with 0 or more extra "
                f"micro-batches under way, not {extra}"
            )
        worst = np.zeros_like(np.asarray(trips, float))
        for borders in range(1, k):
            loop = (borders - 1) * self.stages // k + 2  # stages that a round trip works on
            lacks = borders * (trips - extra * self.stage_s)
            worst = np.maximum(worst, lacks / (loop + borders * extra))
        return worst

    def pipeline_s(self, distance: Distance, extra: int = 0):
        """Return the step where the pipeline crosses; parameters as for :meth:`stall_s`."""
        k, carry = distance.sites, distance.carry_s(self.stream_bytes)
        # A border is crossed by every chunk of a stage.
        waits = np.maximum(self.stall_s(distance, extra), self.chunks * carry - self.stage_s)
        free = self.stages // k + (k - 1) * extra  # the first ones find room under way
        times = np.maximum(self.micro_batches - free, 0)
        return self.step_s + times * waits + (k - 1) * self._trips(distance)

    def _trips(self, distance: Distance):
        return 2 * (distance.delay_s + distance.carry_s(self.stream_bytes))

    def fills(self, distance: Distance):
        """Return the ``extra`` of :meth:`stall_s` with which nobody waits for the distance."""
        return np.ceil(self._trips(distance) / self.stage_s).astype(int)

    def tensor_s(self, distance: Distance):
        """Return the step where tensor parallelism crosses."""
        k = distance.sites
        carry = distance.carry_s((k - 1) / k * self.tensor_bytes)
        return self.step_s + self.tensor_waits * (k - 1) * distance.delay_s + carry


def break_even_bps(cost_s, most_s, low_bps: float = 1e6, high_bps: float = 1e15):
    """Return the least rate at which a step takes no longer than asked; infinite where none does.

    Parameters
    ----------
    cost_s
        Called with rates, shape of ``most_s``; returns seconds, which must fall with the rate.
    most_s
        Seconds; a number or an array.
    low_bps, high_bps
        Where to look.

    Examples
    --------
    >>> round(float(break_even_bps(lambda rate: 1 + 1e9 / rate, 1.1)) / 1e9, 6)
    10.0
    """
    low, high = (np.full(np.shape(most_s), np.log(bps)) for bps in (low_bps, high_bps))
    never = cost_s(np.exp(high)) > most_s
    for _ in range(60):
        middle = (low + high) / 2
        slow = cost_s(np.exp(middle)) > most_s
        low, high = np.where(slow, middle, low), np.where(slow, high, middle)
    return np.where(never, np.inf, np.exp(high))


def _positive(value: int, name: str) -> int:
    if value < 1:
        raise SitesError(f"{name} must be at least 1, not {value}")
    return value
