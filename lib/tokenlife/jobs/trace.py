"""One job followed from words to bits, and the ledger that accounts for it.

Training: every sequence of the step is the text, or, where the plan gives a length, a sequence that
holds it. Serving: the text is the prompt of each request. From text to operations each level is the
text's own, or the model's; from communication on it is the whole job's
(:mod:`tokenlife.jobs.bills`). Everything here is modelled; the text's ids are exact.

The network is a cluster of ``data/hardware/``, or one switch with a link to each rank.

Left out: when the bytes cross. Only of plain data parallelism on one switch is the time told, that
of its all-reduce.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from tokenlife.catalog import read_link, read_model, running
from tokenlife.collectives import ring_all_reduce
from tokenlife.costs import StageCost, count_parameters, forward_stages
from tokenlife.costs.memory import kv_bytes_per_token
from tokenlife.errors import TokenlifeError
from tokenlife.jobs.account import Account
from tokenlife.jobs.bills import Serving, serving, training
from tokenlife.jobs.cluster import Cluster
from tokenlife.jobs.cluster import Level as NetworkLevel
from tokenlife.ledger import Ledger, Level
from tokenlife.parallel import Plan
from tokenlife.tokenizer import Encoding, vocabularies
from tokenlife.transformer import ModelConfig
from tokenlife.wire.physical import line_bits, line_code
from tokenlife.wire.stack import PATH_MTUS, Stack

LARGEST_JOB = 2**17  # ranks: who sits where is looked up for each
ONE_ID = {True: 2, False: 4}  # bytes, by whether the vocabulary fits in 16 bits


class TraceError(TokenlifeError, ValueError):
    """A text, model and plan that make no job."""


@dataclass(frozen=True)
class Trace:
    """Every level of one job, and the ledger over all of them.

    Attributes
    ----------
    encoding, config, stages, plan
        The text's ids, the model, its stages' costs, the layout.
    serve
        What is asked of a served model; None where it is trained.
    account
        What the job sends, message by message.
    ledger
        The account from text to bits; its bytes are summed over all links of the network.
    rate_bps
        Of the outermost links.
    communication_s
        Seconds of the all-reduce of plain data parallelism on one switch, else None.
    """

    encoding: Encoding
    config: ModelConfig
    stages: tuple[StageCost, ...]
    plan: Plan
    serve: Serving | None
    account: Account
    ledger: Ledger
    rate_bps: float
    communication_s: float | None

    @property
    def tokens_per_step(self) -> int:
        """Tokens that all ranks together train on, or read and write."""
        return self.account.tokens

    @property
    def wire_bits_per_token(self) -> float:
        """Bits on all network links for each token."""
        return self.ledger.wire_bits / self.tokens_per_step

    def to_dict(self) -> dict:
        """Return what scripts read: ``levels``, ``wire_bits_per_token`` and the job itself."""
        tokens, wire = self.tokens_per_step, self.ledger["bits"].bytes_
        ethernet = self.account.stack.transport != "ib"  # whose line codes are those we have
        return {
            "text": self.encoding.text,
            "model": self.config.name,
            "vocabulary": self.encoding.vocabulary,
            "plan": {axis: getattr(self.plan, axis) for axis in ("dp", "tp", "pp", "cp", "ep")},
            "layout": str(self.plan),
            "serving": vars(self.serve) if self.serve else None,
            "transport": self.account.stack.transport,
            "mtu": self.account.stack.mtu,
            "algorithms": dict(self.account.algorithms),
            "tokens_per_step": tokens,
            "parameters": count_parameters(self.config),
            "levels": self.ledger.to_list(),
            "per_axis": self.account.per_axis(),
            "wire_bits": self.ledger.wire_bits,
            "wire_bits_per_token": self.wire_bits_per_token,
            "card_bits_per_token": self.account.card_bits() / tokens,
            "node_bytes_per_token": self.account.node_bytes() / tokens,
            "line_code": line_code(self.rate_bps).name if ethernet else None,
            "line_bits_per_token": float(line_bits(wire, self.rate_bps)) / tokens
            if ethernet
            else None,
            "communication_s": self.communication_s,
            "label": "modelled",
        }


def trace(
    text: str | None = None,
    model: str | None = None,
    plan: Plan | None = None,
    vocabulary: str | None = None,
    link: str | None = None,
    mtu: int | None = None,
    *,
    transport: str | None = None,
    cluster: str | Cluster | None = None,
    algorithms: Mapping[str, str] | None = None,
    new: int | None = None,
    moved: bool = False,
) -> Trace:
    """Follow a text through one training step, or through a served model.

    Parameters
    ----------
    text
        The running sentence where it is left out.
    model
        A named model or a path to a ``config.json``.
    plan
        The layout. ``sequence`` 0 takes the text's own length; when serving it is the length of
        each prompt, and ``micro_batch`` the requests of each data-parallel copy.
    vocabulary
        Where it is left out, the one that goes with the model.
    link, cluster
        A link of ``data/hardware/links.toml`` to a switch, or a cluster; not both.
    mtu
        As :class:`~tokenlife.wire.stack.Stack` takes it; by default 1500 for TCP, for RDMA 4096.
    transport
        ``tcp``, ``rocev2`` or ``ib``; by default that of the cluster, or of the link.
    algorithms
        For kinds of collectives.
    new
        Tokens to write for each request: the model is served. None: it is trained.
    moved
        When serving: whether the prompts' caches go to another machine.

    Raises
    ------
    TraceError
        If the text is empty or has ids that the model lacks, or the network cannot be.
    CostError, PlanError, ScheduleError, FramingError
        If the text is longer than the model's positions, or there is no such job.

    Examples
    --------
    >>> step = trace()
    >>> step.plan.dp, step.ledger["text"].bytes_, step.ledger["communication"].bytes_
    (2, 69, 7630848)
    >>> big = trace("some words", "llama-3.1-8b", Plan(dp=4, tp=8), cluster="dgx-h100")
    >>> [term.name for term in big.ledger["flows"].terms]
    ['stays in the node', 'hops']
    """
    job = running()["small"]
    text = running()["sentence"] if text is None else text
    model = model or job["model"]
    plan = plan or Plan(dp=job["dp"], recipe="float32")
    config = ModelConfig.load(model)
    vocabulary = vocabulary or read_model(model).get("_vocabulary")
    if vocabulary is None:
        raise TraceError(f"no vocabulary goes with {model}; name one with --vocabulary")
    encoding = vocabularies.load(vocabulary).encoding(text)
    if not encoding.ids:
        raise TraceError("an empty text has no tokens to follow; give some words")
    if max(encoding.ids) >= config.vocab:
        raise TraceError(
            f"id {max(encoding.ids)} of vocabulary {vocabulary} is beyond the {config.vocab} "
            f"embedding rows of {config.name}; take the vocabulary that the model was made for"
        )
    if plan.world > LARGEST_JOB:
        raise TraceError(f"jobs are traced up to {LARGEST_JOB:,} ranks, not {plan.world:,}")
    stages = forward_stages(config, sequences=1, length=encoding.n_tokens)
    levels, carried, rate_bps = _network(link, cluster, plan)
    transport = transport or carried
    mtu = mtu if mtu is not None else job["mtu"] if transport == "tcp" else max(PATH_MTUS)
    stack, serve = Stack(transport, mtu), None
    plan = replace(plan, sequence=plan.sequence or encoding.n_tokens)
    if new is None:
        if moved:
            raise TraceError("only a served model has a cache that moves; give the tokens to write")
        account = training(config, plan, levels, stack, algorithms)
    else:
        serve = Serving(plan.sequence, new, moved)
        account = serving(config, plan, levels, stack, serve, algorithms)
    if not account.messages:
        raise TraceError(f"a job laid out as {plan} sends nothing; give more ranks, like dp=2")
    found = _derived(encoding, config, plan, serve)
    ledger = Ledger((*found, *account.levels()))
    plain = replace(plan, dp=1, recipe=Plan.recipe) == Plan(sequence=plan.sequence)
    plain = plain and cluster is None and new is None and not algorithms
    seconds = _ring_seconds(account, rate_bps) if plain else None
    return Trace(encoding, config, stages, plan, serve, account, ledger, rate_bps, seconds)


def _network(
    link: str | None, cluster: str | Cluster | None, plan: Plan
) -> tuple[tuple[NetworkLevel, ...], str, float]:
    """Return the levels, the usual transport, and the rate of the outermost links."""
    if cluster is None:
        found = read_link(link or running()["small"]["link"])
        Bps = found["rate_bps"] / 8
        return (NetworkLevel("switch", plan.world, Bps, 0.0),), found["transport"], 8 * Bps
    if link is not None:
        raise TraceError("give a cluster or a link, not both")
    where = cluster if isinstance(cluster, Cluster) else Cluster.load(cluster)
    if plan.world > where.gpus:
        raise TraceError(f"{plan.world:,} ranks do not fit on the {where.gpus:,} of {where.name}")
    return where.levels, where.transport, 8 * where.levels[-1].Bps


def _derived(
    encoding: Encoding, config: ModelConfig, plan: Plan, serve: Serving | None
) -> tuple[Level, ...]:
    """Return the levels that are no balance: each follows from the one before by a formula."""
    tokens, id_bytes = encoding.n_tokens, ONE_ID[config.vocab <= 2**16]
    width = plan.states.weights
    if serve:
        each = kv_bytes_per_token(config)
        made = int(each * (serve.prompt + serve.new))
        how = f"keys and values of {serve.prompt + serve.new:,} tokens of a request"
    else:
        owned = count_parameters(config)
        made = owned * plan.states.gradients
        kind = {2: "bfloat16", 4: "float32"}.get(plan.states.gradients, "")
        how = f"the backward pass: one {kind} gradient for each of {owned:,} parameters"
    return (
        Level("text", encoding.n_bytes, "the text as UTF-8"),
        Level("ids", tokens * id_bytes, f"{tokens} tokens × {id_bytes} B, one id each"),
        Level("tensors", tokens * config.hidden * width,
              f"{tokens} tokens × {config.hidden} numbers × {width} B between two stages"),
        Level("operations", made, how),
    )  # fmt: skip


def _ring_seconds(account: Account, rate_bps: float) -> float:
    """Return the time of ring all-reduces in turn: each round waits for its longest block."""
    seconds = 0.0
    for row in account.rows:
        rounds = len(ring_all_reduce(row.group_size).rounds) * row.demand.count
        block = -(-row.demand.items // row.group_size) * row.demand.item_bytes
        seconds += rounds * 8 * account.stack.frame(block).wire_bytes / rate_bps
    return seconds
