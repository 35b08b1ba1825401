"""A training job cut over sites: which axis may cross the line between them, and what a step costs.

Data parallelism: gradients once a step, summed at home first, behind the backward pass of the last
micro-batch, bucket by bucket. Local SGD: the same every H steps, with fewer bits. Pipeline: the
stream of each micro-batch and its gradient at k − 1 borders. In 1F1B the stages on either side of a
border are one micro-batch apart, however deep the pipeline is: a round trip over it lets two
micro-batches pass, so each waits one delay. More micro-batches under way before the border fill the
wait, and memory. Tensor parallelism: twice a layer, forward and backward, exposed: its cost is
there to show why it never crosses.

The step at one site is :mod:`tokenlife.jobs.step`'s; lines are :mod:`tokenlife.jobs.sites`'s.
Arguments may be arrays that broadcast. With extra micro-batches, but too few to fill the wait, the
closed form of the pipeline is up to 7 % low. Left out: stages that differ, and several axes that
cross at once.
"""

from dataclasses import dataclass

import numpy as np

from tokenlife.costs.parameters import count_parameters
from tokenlife.jobs.cluster import Cluster
from tokenlife.jobs.compute import Calibration, pass_seconds
from tokenlife.jobs.sites import (
    Distance,
    SitesError,
    at_least_one,
    hierarchical_s,
    overlapped_s,
)
from tokenlife.jobs.step import step
from tokenlife.jobs.traffic import rows
from tokenlife.parallel import Plan
from tokenlife.transformer import ModelConfig


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
        at_least_one(every, "every"), at_least_one(bits, "bits")
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
