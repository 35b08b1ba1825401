"""What a job asks of the network, as an account: a step of training, or a batch of requests.

Training: what every rank asks for in one step. Serving: what a batch asks for, from the pass that
reads the prompts to the last token written, and the caches that move to another machine if one
reads and another writes.

A moved cache is one message for each request and rank, to the next unit of the level around a node.
Left out: prompts read in pieces, caches that are found, speculation, and requests that end early.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from tokenlife.jobs.account import CACHE, Account
from tokenlife.jobs.cluster import Level
from tokenlife.jobs.messages import Messages, check_algorithms, of_rows
from tokenlife.jobs.traffic import Row, collect, rows
from tokenlife.parallel import Plan, PlanError
from tokenlife.parallel.inference import check_layout, kv_bytes, pass_demands
from tokenlife.transformer import ModelConfig
from tokenlife.wire.stack import Stack


@dataclass(frozen=True)
class Serving:
    """Requests that a served model answers together.

    Attributes
    ----------
    prompt
        Tokens of each prompt; 0: the cache is there already.
    new
        Tokens written for each request. The pass that reads the prompt writes the first.
    moved
        Whether another machine writes: the cache of the prompt follows.

    Raises
    ------
    PlanError
        If nothing is read or written, or a cache is to move that nobody read.
    """

    prompt: int
    new: int
    moved: bool = False

    def __post_init__(self):
        if self.prompt < 0 or self.new < 0 or self.prompt + self.new < 1:
            raise PlanError(
                "a request reads or writes one token at least, "
                f"not {self.prompt} read and {self.new} written"
            )
        if self.moved and not self.prompt:
            raise PlanError("a cache moves after its prompt was read; give a prompt")

    def passes(self, batch: int) -> Iterable[tuple[str, int, int, int]]:
        """Yield (phase, tokens, tokens drawn, how often) of the passes of a batch."""
        if self.prompt:
            yield "prefill", batch * self.prompt, batch * (self.new > 0), 1
        if self.new > (self.prompt > 0):
            yield "decode", batch, batch, self.new - (self.prompt > 0)


def training(
    config: ModelConfig,
    plan: Plan,
    levels: tuple[Level, ...],
    stack: Stack,
    algorithms: Mapping[str, str] | None = None,
) -> Account:
    """Account for one training step.

    Parameters
    ----------
    config, plan
        The model and its layout, with the length of a sequence.
    levels
        Of the cluster.
    stack
        The transport of its network.
    algorithms
        For kinds of collectives; rings, and all-to-all straight to each, where not named.

    Raises
    ------
    PlanError, ScheduleError
        If there is no such job.

    Examples
    --------
    >>> from tokenlife.jobs.cluster import Cluster
    >>> model, h100 = ModelConfig.load("llama-3.1-8b"), Cluster.load("dgx-h100")
    >>> plan = Plan(dp=4, tp=8, sequence=1024, sequence_parallel=True)
    >>> account = training(model, plan, h100.levels, Stack("ib", 4096))
    >>> account.axes, account.node_bytes("dp"), account.card_bits("tp")
    (('tp', 'dp'), 0, 0)
    """
    algorithms = check_algorithms(algorithms or {})
    own = replace(plan, communication="", dispatch="")
    found = rows(config, plan, algorithms)
    wider = _wider(rows(config, own, algorithms), found, plan) if own != plan else {}
    messages = of_rows(found, plan, levels, algorithms)
    return Account(plan, plan.tokens_per_step, found, wider, messages, stack, algorithms)


def _wider(kept: tuple[Row, ...], sent: tuple[Row, ...], plan: Plan) -> dict[str, int]:
    """Return by axis how much more would be handed over in the types that things are kept in."""
    found: dict[str, int] = {}
    for sign, each in ((1, kept), (-1, sent)):
        for d, _, stages, *_ in each:
            times = plan.world // plan.pp * len(stages) * d.count
            found[d.axis] = found.get(d.axis, 0) + sign * times * d.bytes_
    return {axis: bytes_ for axis, bytes_ in found.items() if bytes_}


def serving(
    config: ModelConfig,
    plan: Plan,
    levels: tuple[Level, ...],
    stack: Stack,
    asked: Serving,
    algorithms: Mapping[str, str] | None = None,
) -> Account:
    """Account for a batch of requests on each data-parallel copy, ``plan.micro_batch`` of them.

    Examples
    --------
    >>> from tokenlife.jobs.cluster import Cluster
    >>> model, h100 = ModelConfig.load("llama-3.1-8b"), Cluster.load("dgx-h100")
    >>> asked = Serving(prompt=512, new=16, moved=True)
    >>> account = serving(model, Plan(tp=8), h100.levels, Stack("ib", 4096), asked)
    >>> account.axes, account.tokens, account.levels("kv")[0].bytes_ // 512
    (('tp', 'kv'), 528, 131072)
    """
    algorithms = check_algorithms(algorithms or {})
    check_layout(config, plan)
    batch = plan.micro_batch
    passes = tuple(asked.passes(batch))

    def listed(at: Plan) -> tuple[Row, ...]:
        def ask(stage: int):
            for phase, tokens, drawn, times in passes:
                for d in pass_demands(config, at, tokens, drawn, stage):
                    yield replace(d, phase=phase, count=d.count * times)

        return collect(at, ask, algorithms)

    found = listed(plan)
    wider = _wider(listed(replace(plan, dispatch="")), found, plan) if plan.dispatch else {}
    messages = of_rows(found, plan, levels, algorithms)
    if asked.moved:
        beside = levels[min(1, len(levels) - 1)]  # to the next machine
        for stage in range(plan.pp):
            size = int(np.ceil(kv_bytes(config, plan, asked.prompt, stage)))
            count = plan.world // plan.pp * batch
            moved = Messages(CACHE, "send", "transfer", beside.name, beside.links, False, size,
                             count)  # fmt: skip
            messages = (*messages, moved)
    tokens = plan.dp * batch * (asked.prompt + asked.new)
    return Account(plan, tokens, found, wider, messages, stack, algorithms)
