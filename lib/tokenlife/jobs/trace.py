"""One training step followed from words to bits, and the ledger that accounts for it.

The job: data-parallel training. Every rank reads one sequence, the text that is traced; after the
backward pass the gradients are all-reduced around a ring of hosts that hang on one switch, as TCP
over Ethernet. Everything here is modelled; the text's ids are exact.

Left out so far: the other axes of parallelism, other algorithms and topologies, and serving.
"""

from collections import Counter
from dataclasses import dataclass

from tokenlife.catalog import read_link, read_model, running
from tokenlife.collectives import Schedule, ring_all_reduce, verify
from tokenlife.costs import StageCost, count_parameters, forward_stages
from tokenlife.errors import TokenlifeError
from tokenlife.ledger import Ledger, Level, Term
from tokenlife.network import Flow, Topology, place, single_switch
from tokenlife.parallel import CommOp, Plan, data_parallel_ops
from tokenlife.tokenizer import Encoding, vocabularies
from tokenlife.transformer import ModelConfig
from tokenlife.wire import Framing, PacketFormat, tcp_over_ethernet
from tokenlife.wire.framing import INTERFRAME_GAP, PREAMBLE

GRADIENT_BYTES = 4  # float32, as gloo sums it

LARGEST_GROUP = 256  # every message of the step is laid over the network


class TraceError(TokenlifeError, ValueError):
    """A text, model and plan that make no job."""


@dataclass(frozen=True)
class Trace:
    """Every level of one step, as the type of its room, and the ledger over all of them.

    Attributes
    ----------
    encoding, config, stages, plan, op, schedule, topology, flows, packets
        The spine, from the text's ids to the packet format.
    ledger
        The account; its bytes are summed over all links of the network.
    tokens_per_step
        Tokens that all ranks together train on.
    """

    encoding: Encoding
    config: ModelConfig
    stages: tuple[StageCost, ...]
    plan: Plan
    op: CommOp
    schedule: Schedule
    topology: Topology
    flows: tuple[Flow, ...]
    packets: PacketFormat
    ledger: Ledger
    tokens_per_step: int

    @property
    def wire_bits_per_token(self) -> float:
        """Bits on all links for each token trained on."""
        return self.ledger.wire_bits / self.tokens_per_step

    @property
    def communication_s(self) -> float:
        """Seconds from the first byte to the last."""
        return self.flows[-1].finish_s

    def to_dict(self) -> dict:
        """Return what scripts read: ``levels``, ``wire_bits_per_token`` and the job itself."""
        return {
            "text": self.encoding.text,
            "model": self.config.name,
            "vocabulary": self.encoding.vocabulary,
            "plan": {axis: getattr(self.plan, axis) for axis in ("dp", "tp", "pp", "cp")},
            "tokens_per_step": self.tokens_per_step,
            "parameters": count_parameters(self.config),
            "levels": self.ledger.to_list(),
            "wire_bits": self.ledger.wire_bits,
            "wire_bits_per_token": self.wire_bits_per_token,
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
) -> Trace:
    """Follow a text through one data-parallel training step.

    Parameters
    ----------
    text
        What every rank reads; the running sentence where it is left out.
    model
        A named model or a path to a ``config.json``.
    plan
        The layout; only ``dp`` may be above 1 so far.
    vocabulary
        Where it is left out, the one that goes with the model.
    link
        A link of ``data/hardware/links.toml``.
    mtu
        Largest IP packet, bytes.

    Raises
    ------
    TraceError
        If the text is empty or has ids that the model lacks, or the plan has no network traffic or
        axes that are not traced yet.
    CostError
        If the text has more tokens than the model has positions.

    Examples
    --------
    >>> step = trace()
    >>> step.plan.dp, step.ledger["text"].bytes_, step.ledger["communication"].bytes_
    (2, 69, 7630848)
    """
    job = running()["small"]
    text = running()["sentence"] if text is None else text
    model = model or job["model"]
    plan = plan or Plan(dp=job["dp"])
    config = ModelConfig.load(model)
    vocabulary = vocabulary or read_model(model).get("_vocabulary")
    if vocabulary is None:
        raise TraceError(f"no vocabulary goes with {model}; name one with --vocabulary")
    if plan != Plan(dp=plan.dp) or not 2 <= plan.dp <= LARGEST_GROUP:
        raise TraceError(
            f"only data parallelism is traced so far, over 2 to {LARGEST_GROUP} ranks, not {plan}"
        )

    encoding = vocabularies.load(vocabulary).encoding(text)
    if not encoding.ids:
        raise TraceError("an empty text has no tokens to follow; give some words")
    if max(encoding.ids) >= config.vocab:
        raise TraceError(
            f"id {max(encoding.ids)} of vocabulary {vocabulary} is beyond the {config.vocab} "
            f"embedding rows of {config.name}; take the vocabulary that the model was made for"
        )
    stages = forward_stages(config, sequences=1, length=encoding.n_tokens)
    (op,) = data_parallel_ops(plan, count_parameters(config), GRADIENT_BYTES)
    schedule = ring_all_reduce(plan.dp)
    verify(schedule)
    topology = single_switch(plan.dp, read_link(link or job["link"])["rate_bps"])
    packets = tcp_over_ethernet(job["mtu"] if mtu is None else mtu)
    flows = place(schedule, op.items, op.item_bytes, topology, packets)
    ledger = _account(encoding, config, stages, op, schedule, flows, packets)
    return Trace(
        encoding, config, stages, plan, op, schedule, topology, flows, packets, ledger,
        tokens_per_step=plan.dp * encoding.n_tokens,
    )  # fmt: skip


def _account(
    encoding: Encoding,
    config: ModelConfig,
    stages: tuple[StageCost, ...],
    op: CommOp,
    schedule: Schedule,
    flows: tuple[Flow, ...],
    packets: PacketFormat,
) -> Ledger:
    """Count every level for itself; the ledger then refuses a byte that no term explains."""
    ranks, tokens = len(op.group), encoding.n_tokens
    id_bytes = 2 if config.vocab <= 2**16 else 4
    owned = count_parameters(config) * op.item_bytes
    # A flow crosses each link of its path in the same packets, so frame once and count links.
    crossings: Counter[int] = Counter()
    for flow in flows:
        crossings[flow.bytes_] += len(flow.path)
    framed = [(packets.frame(bytes_), links) for bytes_, links in crossings.items()]

    sent = int(schedule.bytes_sent_per_rank(op.items, op.item_bytes).sum())
    on_links = sum(flow.link_bytes for flow in flows)
    frames = sum(
        links * (full * full_size + last + framing.acknowledgement_bytes)
        for framing, links in framed
        for full, full_size, last in [packets.frame_sizes(framing.payload_bytes)]
    )
    silent = _over(framed, lambda f: f.silent_bytes + f.acknowledgement_silent_bytes)
    n_frames = _over(framed, lambda f: f.packets + f.acknowledgements)

    closed_form = 2 * (ranks - 1) * op.bytes_
    return Ledger(
        (
            Level("text", encoding.n_bytes, "the text as UTF-8"),
            Level("ids", tokens * id_bytes, f"{tokens} tokens × {id_bytes} B, one id each"),
            Level(
                "tensors",
                stages[0].output_bytes,
                f"{tokens} tokens × {config.hidden} numbers × 4 B between two stages",
            ),
            Level(
                "operations",
                owned,
                f"the backward pass: one float32 gradient for each of {owned // 4:,} parameters",
            ),
            Level(
                "communication",
                op.handed_over_bytes,
                f"{op.kind}: each of {ranks} ranks hands over its gradients",
            ),
            Level(
                "messages",
                sent,
                f"{schedule.algorithm}: {len(schedule.rounds)} rounds of {ranks} messages",
                (
                    Term(
                        "replication by the algorithm",
                        closed_form - op.handed_over_bytes,
                        f"each rank sends 2(n − 1)/n of its buffer, n = {ranks}",
                    ),
                ),
            ),
            Level(
                "flows",
                on_links,
                f"{len(flows)} flows, each over {len(flows[0].path)} links",
                (
                    Term(
                        "hops",
                        (len(flows[0].path) - 1) * sent,
                        "up to the switch and down again",
                    ),
                ),
            ),
            Level(
                "packets",
                frames,
                f"frames at an MTU of {packets.mtu}, summed over links",
                (
                    *(
                        Term(
                            layer,
                            _over(framed, lambda f, layer=layer: f.header_bytes[layer]),
                            f"{size} B in each packet",
                        )
                        for layer, size in packets.headers
                    ),
                    Term(
                        "padding",
                        _over(framed, lambda f: f.padding_bytes),
                        "frames below 64 B are filled up",
                    ),
                    Term(
                        "acknowledgements",
                        _over(framed, lambda f: f.acknowledgement_bytes),
                        "one frame back for every second packet",
                    ),
                ),
            ),
            Level(
                "bits",
                frames + (PREAMBLE + INTERFRAME_GAP) * n_frames,
                f"what {n_frames:,} frames occupy on the links",
                (
                    Term(
                        "preamble and gap",
                        silent,
                        f"{PREAMBLE} B before and {INTERFRAME_GAP} B after each",
                    ),
                ),
            ),
        )
    )


def _over(framed: list[tuple[Framing, int]], count) -> int:
    """Sum a count of each framing over the links that it crosses."""
    return sum(count(framing) * links for framing, links in framed)
