"""What one pass of a served model takes: roofline of one rank, plus its communication.

A pass reads all weights that it needs once and the cache of every row, and multiplies. It takes the
longer of both, at a stated part of the peaks, then its operations on the levels that they cross
(``tokenlife.jobs.placement``), all exposed, then a constant for starting kernels. Everything is
affine in new tokens, (query, key) pairs, cached tokens and drawn tokens, so the coefficients are
taken once from ``tokenlife.costs`` and ``tokenlife.parallel.inference``.

Experts are read with the probability that some token of the data-parallel group picks them. Left
out: several batches in flight in a pipeline (its stages follow each other), latent keys expanded
anew for each chunk of a prompt, windows, and a pass that is not the mean of its stages.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import pandas as pd

from tokenlife.costs.operations import head_operation, layer_operations
from tokenlife.jobs.cluster import Cluster
from tokenlife.jobs.compute import Calibration
from tokenlife.jobs.placement import op_seconds, outermost
from tokenlife.jobs.traffic import sent
from tokenlife.parallel import Demand, Plan
from tokenlife.parallel.inference import check_layout, kv_bytes, pass_demands
from tokenlife.parallel.shards import hold
from tokenlife.transformer import ModelConfig

BOUND = Calibration(1.0, 1.0, 1.0, 1.0)  # the peaks themselves


@dataclass(frozen=True)
class Engine:
    """A model laid out on a cluster.

    Attributes
    ----------
    config, plan, cluster
        What is served, how, and where.
    reached
        Parts of the peaks that are reached; by default all of them, a lower bound of time.
    overhead_s
        Added to each pass.

    Examples
    --------
    >>> engine = Engine(ModelConfig.load("llama-3.1-70b"), Plan(tp=8), Cluster.load("dgx-h100"))
    >>> one, many = engine.seconds(0, 0, 1, 1024), engine.seconds(0, 0, 64, 64 * 1024)
    >>> bool(0.005 < one < many < 2 * one)
    True
    """

    config: ModelConfig
    plan: Plan
    cluster: Cluster
    reached: Calibration = BOUND
    overhead_s: float = 0.0

    def __post_init__(self):
        check_layout(self.config, self.plan)

    def communication_s(self, tokens: int, sampled: int) -> float:
        """Return seconds of all operations of one pass, one after another."""
        rates = {True: self.reached.inside, False: self.reached.between}
        asked = self._asked(tokens, sampled)
        return float(sum(d.count * op_seconds(d, self._pass, self.cluster, rates) for d in asked))

    @cached_property
    def _pass(self) -> Plan:
        """The plan of a pass, whose tokens its demands bring themselves."""
        return replace(self.plan, micro_batch=1, global_batch=0, sequence=self.plan.stream_tp)

    def _asked(self, tokens: int, sampled: int) -> Iterator[Demand]:
        """Yield what a rank of each stage sends in one pass."""
        for stage in range(self.plan.pp):
            demands = pass_demands(self.config, self.plan, tokens, sampled, stage)
            yield from (d for d in demands if d.moves(self.plan))

    @cached_property
    def _network(self) -> tuple[float, float, float]:
        """Seconds a pass, a token, a draw."""
        n = self.plan.stream_tp
        base, drawn, more = (self.communication_s(*p) for p in ((n, 0), (n, 1), (2 * n, 0)))
        one = (more - base) / n
        draw = self.communication_s(n, 2) - drawn
        # Something is drawn in every pass, so its latency is paid in every pass.
        return drawn - draw - one * n, one, draw

    @cached_property
    def _work(self) -> dict[str, float]:
        """FLOPs and bytes of one rank over the whole pass, by what they grow with."""
        config, tp = self.config, self.plan.tp
        found = dict.fromkeys(("prompt", "pair", "token", "cached"), 0.0)
        for layer in range(config.layers):
            whole = layer_operations(config, layer, 1, 1, 0, causal=True)
            near, far = (layer_operations(config, layer, 1, 1, p, causal=True) for p in (1, 2))
            found["prompt"] += sum(op.flops for op in whole if not op.core) / tp
            found["pair"] += sum(op.flops for op in whole if op.core) / tp
            core = (sum(o.flops for o in far) - sum(o.flops for o in near)) / tp
            found["cached"] += core
            found["token"] += sum(op.flops for op in near) / tp - 2 * core
        found["head"] = head_operation(config, 1).flops / tp
        width = self.plan.states.weights
        held = [hold(config, self.plan, stage) for stage in range(self.plan.pp)]
        found["experts"], found["weights"] = (
            width * sum(h.parameters()[i] for h in held) for i in (0, 1)
        )
        found["kv"] = sum(kv_bytes(config, self.plan, 1, stage) for stage in range(self.plan.pp))
        return found

    def seconds(self, tokens, pairs, rows, context, sampled=None):
        """Return the seconds of one pass; takes arrays.

        Parameters
        ----------
        tokens, pairs
            Of prompts: new tokens, and the (query, key) pairs that they look at.
        rows, context
            Rows that decode, and tokens in their caches together.
        sampled
            Tokens drawn; by default one a row, and one for the prompts.
        """
        w, moe, total = self._work, self.config.moe, tokens + rows
        drawn = rows + (np.asarray(tokens) > 0) if sampled is None else sampled
        flops = tokens * w["prompt"] + pairs * w["pair"] + rows * w["token"]
        flops = flops + (context + rows) * w["cached"] + drawn * w["head"]
        read = w["weights"] + (context + total) * w["kv"]
        if moe:
            unread = (1 - moe.top_k / moe.experts) ** (total * self.plan.dp)
            read = read + w["experts"] * (1 - unread)
        peak = self.cluster.peak(self.plan.states.weights) * self.reached.matmul
        least = np.maximum(flops / peak, read / (self.cluster.memory_Bps * self.reached.memory))
        base, token, draw = self._network
        padded = -(-total // self.plan.stream_tp) * self.plan.stream_tp
        return least + base + token * padded + draw * drawn + self.overhead_s

    def traffic(self, tokens: int, sampled: int) -> pd.DataFrame:
        """Return the payload of one pass by kind and by the outermost level that it crosses.

        Returns
        -------
        pandas.DataFrame
            ``axis``, ``kind``, ``after``, ``level``, ``count`` and ``bytes`` that one rank sends,
            summed over the stages of a pipeline.
        """
        lines = []
        for d in self._asked(tokens, sampled):
            level = outermost(self._pass, d.over, self.cluster)
            bytes_ = float(sent(d, self._pass)[1] * d.count)
            lines.append((d.axis, d.kind, d.after, level, int(d.count), bytes_))
        names = ["axis", "kind", "after", "level", "count", "bytes"]
        table = pd.DataFrame(lines, columns=names)
        return table.groupby(names[:4], as_index=False, sort=False)[["count", "bytes"]].sum()
