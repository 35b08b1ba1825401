"""The layout of a job: how many ranks along each axis, which rank sits where, and what it trains.

Ranks are numbered with the first axis of ``order`` running fastest, by default as Megatron-LM
does [1]_: the axis that talks most gets neighbouring ranks, which share a machine. Llama 3 puts
``pp`` before ``dp``: ``order=("tp", "cp", "pp", "dp")`` [2]_.

Experts have a layout of their own inside a pipeline stage [3]_: its tp·cp·dp ranks, counted with tp
running fastest, are cut into expert-tensor (``etp``), expert (``ep``) and expert-data (``edp``)
groups. With ``etp = tp`` an expert group is taken from dp × cp, as DeepSeek-V3 does.

Every size is an ``int``, or in :class:`Plans` an array: the same formulas price one plan or a
million.

References
----------
.. [1] D. Narayanan et al., "Efficient large-scale language model training on GPU clusters using
   Megatron-LM", SC'21.
.. [2] Llama Team, "The Llama 3 herd of models", 2024, section 3.3.2.
.. [3] D. Liu et al., "MoE parallel folding", 2025.
"""

from dataclasses import dataclass, fields
from functools import cached_property

import numpy as np

from tokenlife.costs.flops import RECOMPUTE
from tokenlife.costs.memory import BYTES, RECIPES, Recipe
from tokenlife.parallel.ranks import AXES, Ranks
from tokenlife.parallel.rules import PlanError, layout_rules, model_rules
from tokenlife.transformer.config import ModelConfig

SCHEDULES = ("gpipe", "1f1b", "interleaved", "zb-h1", "zb-h2", "zb-v")
CP_METHODS = ("ring", "all_gather", "ulysses")

_CHOICES = {
    "schedule": SCHEDULES, "cp_method": CP_METHODS, "recompute": RECOMPUTE, "recipe": RECIPES,
    "communication": ("", *BYTES), "dispatch": ("", *BYTES), "attention": ("naive", "sdpa"),
}  # fmt: skip
_MAY_BE_ZERO = ("etp", "zero", "global_batch", "sequence", "bucket_bytes")


@dataclass(frozen=True)
class Plan(Ranks):
    """A layout, and the step that it runs.

    Attributes
    ----------
    dp, tp, pp, cp
        Ranks along the data-, tensor-, pipeline- and context-parallel axes; their product is the
        number of GPUs.
    ep, etp
        Ranks that share out the experts of a layer, and ranks that split one; ``etp`` 0 means
        ``tp``.
    ep_node
        With node-limited routing: ranks of an expert group that sit in one node; else 1.
    replicate
        Copies of the sharded states: ``dp = replicate × shard``; 1 shards over all of dp × cp.
    zero
        What a data-parallel group shards: 0 nothing, 1 optimiser states, 2 gradients, 3 weights.
    micro_batch, global_batch
        Sequences in one pass of one model copy, and in one step of the whole job; 0 means one pass.
    sequence
        Tokens in a sequence; 0 where no volume is asked.
    virtual, schedule
        Model chunks on each pipeline stage, and a name of ``SCHEDULES``.
    sequence_parallel, regather
        Split what tensor parallelism leaves whole along the sequence; keep only the local part of
        what was gathered, and gather again in the backward pass.
    balance
        Count embedding and head as a layer each when layers are dealt to stages.
    cp_method
        A name of ``CP_METHODS``.
    recompute, attention
        As in ``tokenlife.costs.activations``.
    recipe, communication, dispatch
        Bytes of states (``tokenlife.costs.memory.RECIPES``), the type in which gradients travel
        (by default their own), and that of tokens on the way to experts (by default the weights').
    bucket_bytes
        Largest piece of gradients in one call; 0: all at once.
    overlap
        Whether gradients and weights travel behind computation.
    order
        Axes, fastest first.

    Raises
    ------
    PlanError
        If a size is not a whole number above 0, or a name is not known.

    Examples
    --------
    >>> plan = Plan(dp=2, tp=4)
    >>> plan.world, plan.coordinates(5)
    (8, {'tp': 1, 'cp': 0, 'dp': 1, 'pp': 0})
    >>> plan.groups("dp")
    ((0, 4), (1, 5), (2, 6), (3, 7))
    >>> print(plan)
    dp=2, tp=4
    """

    dp: int = 1
    tp: int = 1
    pp: int = 1
    cp: int = 1
    ep: int = 1
    etp: int = 0
    ep_node: int = 1
    replicate: int = 1
    zero: int = 0
    micro_batch: int = 1
    global_batch: int = 0
    sequence: int = 0
    virtual: int = 1
    schedule: str = "1f1b"
    sequence_parallel: bool = False
    regather: bool = True
    balance: bool = False
    cp_method: str = "all_gather"
    recompute: str = "none"
    attention: str = "sdpa"
    recipe: str = "mixed, float32 gradients"
    communication: str = ""
    dispatch: str = ""
    bucket_bytes: int = 0
    overlap: bool = True
    order: tuple[str, ...] = AXES

    def __post_init__(self):
        for name, value in vars(self).items():
            if name in _CHOICES and value not in _CHOICES[name]:
                raise PlanError(
                    f"no {name} {value!r}; known: {', '.join(filter(None, _CHOICES[name]))}"
                )
            least = int(name not in _MAY_BE_ZERO)
            if name in _INTEGERS and (type(value) is not int or value < least):
                raise PlanError(f"{name} must be a whole number above {least - 1}, not {value!r}")
        if sorted(self.order) != sorted(AXES):
            raise PlanError(f"order must name {', '.join(AXES)} once each, not {self.order!r}")
        self._refuse(layout_rules(self))

    @classmethod
    def parse(cls, text: str) -> "Plan":
        """Read a layout such as ``dp=2,tp=4`` or ``pp=4,schedule=gpipe,order=tp-cp-pp-dp``.

        Examples
        --------
        >>> print(Plan.parse("dp=2"))
        dp=2
        >>> Plan.parse("dp=two")
        Traceback (most recent call last):
            ...
        tokenlife.parallel.rules.PlanError: cannot read plan 'dp=two'; write it like dp=2,tp=4
        """
        kinds = {field.name: type(field.default) for field in fields(cls)}
        given = {}
        for part in filter(None, text.split(",")):
            name, _, value = (piece.strip() for piece in part.partition("="))
            kind = kinds.get(name, int)
            if not value or (kind in (int, bool) and not (value.isascii() and value.isdigit())):
                raise PlanError(f"cannot read plan {text!r}; write it like dp=2,tp=4")
            if name not in kinds:
                raise PlanError(f"no axis {name!r} in plan {text!r}; known: {', '.join(kinds)}")
            if name in given:
                raise PlanError(f"plan {text!r} names {name} twice")
            reads = {str: str, tuple: lambda text: tuple(text.split("-"))}
            given[name] = reads.get(kind, lambda text, kind=kind: kind(int(text)))(value)
        return cls(**given)

    def __str__(self) -> str:
        changed = [f for f in fields(self) if getattr(self, f.name) != f.default]
        return ", ".join(f"{f.name}={getattr(self, f.name)}" for f in changed) or "one rank"

    # ---- sizes: formulas that take arrays too ---------------------------------------------

    @cached_property
    def world(self) -> int:
        """Number of ranks."""
        return self.dp * self.tp * self.pp * self.cp

    @cached_property
    def sequences(self) -> int:
        """Sequences in a step of the whole job."""
        return self.global_batch + (self.global_batch == 0) * self.dp * self.micro_batch

    @cached_property
    def micro_batches(self) -> int:
        """Passes of each model copy in a step."""
        return self.sequences // (self.dp * self.micro_batch)

    @cached_property
    def tokens(self) -> int:
        """Tokens of a micro-batch on one rank, before tensor parallelism splits the sequence."""
        return self.micro_batch * self.sequence // self.cp

    @cached_property
    def tokens_per_step(self) -> int:
        """Tokens that a step trains on."""
        return self.sequences * self.sequence

    @cached_property
    def stream_tp(self) -> int:
        """Parts that tensor parallelism cuts the residual stream into: tp, or 1."""
        return 1 + (self.tp - 1) * self.sequence_parallel

    @cached_property
    def expert_tp(self) -> int:
        """Ranks that split one expert."""
        return self.etp + (self.etp == 0) * self.tp

    @cached_property
    def states(self) -> Recipe:
        """Bytes of weights, gradients, master copy and moments for each parameter."""
        return RECIPES[self.recipe]

    @cached_property
    def gradient_bytes(self) -> int:
        """Bytes of one gradient on the network."""
        return BYTES[self.communication] if self.communication else self.states.gradients

    def check(self, config: ModelConfig, gpus: int | None = None) -> "Plan":
        """Return this plan, if the model can be laid out so.

        Raises
        ------
        PlanError
            With the first thing that is wrong, and what would be right.

        Examples
        --------
        >>> Plan(tp=3, sequence=8).check(ModelConfig.load("llama-3.1-8b"))
        Traceback (most recent call last):
            ...
        tokenlife.parallel.rules.PlanError: tp=3 does not divide the 32 heads of llama-3.1-8b; \
1, 2, 4, 8 would
        """
        if gpus is not None and gpus != self.world:
            product = " × ".join(f"{axis} {getattr(self, axis)}" for axis in AXES)
            raise PlanError(f"{product} = {self.world} ranks, but there are {gpus} GPUs")
        self._refuse(model_rules(self, config))
        return self

    def _refuse(self, rules):
        for message, bad in rules.items():
            if bad:
                raise PlanError(message)


class Plans(Plan):
    """Many plans at once: sizes are arrays of one length; names are the same for all.

    ``sequence`` must be one number: activations are counted once for all plans. Nothing is refused;
    :meth:`legal` says which plans can be.

    Examples
    --------
    >>> plans = Plans(dp=[2, 4, 8], tp=[8, 4, 3], sequence=8)
    >>> plans.world.tolist(), plans.legal(ModelConfig.load("llama-3.1-8b")).tolist()
    ([16, 16, 24], [True, True, False])
    """

    def __post_init__(self):
        names = [n for n in (*_INTEGERS, "sequence_parallel") if n != "sequence"]
        columns = np.broadcast_arrays(*(np.atleast_1d(getattr(self, name)) for name in names))
        for name, column in zip(names, columns, strict=True):
            object.__setattr__(self, name, column)

    def take(self, which) -> "Plans":
        """Return some of the plans: those of a mask, of a slice, or of these numbers."""
        columns = {field.name: getattr(self, field.name) for field in fields(self)}
        arrays = {n: c[which] for n, c in columns.items() if isinstance(c, np.ndarray)}
        return Plans(**columns | arrays)

    def legal(self, config: ModelConfig) -> np.ndarray:
        """Return which plans can be; shape (plans,)."""
        bad = {**layout_rules(self), **model_rules(self, config)}.values()
        return ~np.logical_or.reduce(np.broadcast_arrays(*bad))


_INTEGERS = tuple(f.name for f in fields(Plan) if type(f.default) is int)
