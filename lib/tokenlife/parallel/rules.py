"""What a layout may not be: each rule is a condition, and a line that says what would be right.

Conditions take arrays: one rule refuses one plan, or marks the bad ones among a million.
"""

import math
from itertools import islice
from typing import Any

import numpy as np

from tokenlife.errors import TokenlifeError
from tokenlife.transformer.config import ModelConfig

LARGEST_TRIED = 100_000  # as a divisor to be proposed


class PlanError(TokenlifeError, ValueError):
    """A layout that cannot be."""


def layout_rules(plan: Any) -> dict[str, bool]:
    """Return what would be wrong without any model, and whether it is."""
    inner, share = plan.tp * plan.cp * plan.dp, plan.dp * plan.micro_batch
    block, m, v, name = plan.ep * plan.expert_tp, plan.micro_batches, plan.virtual, plan.schedule
    runs = {"interleaved": v > 1, "zb-v": v == 2}.get(name, v == 1)
    return {
        f"zero must be 0 to 3, not {plan.zero}": plan.zero > 3,
        f"replicate={plan.replicate} does not divide dp={plan.dp}; {_divisors(plan.dp)} would":
            plan.dp % plan.replicate != 0,
        f"a global batch of {plan.sequences} is no multiple of dp × micro-batch = {share}; "
        f"{_over(plan.sequences, share)} would be": (plan.sequences % share != 0) | (m < 1),
        f"ep × expert-tp = {block} does not divide tp × cp × dp = {inner}; "
        f"{_divisors(inner)} would": inner % block != 0,
        f"ep_node={plan.ep_node} does not divide ep={plan.ep}; {_divisors(plan.ep)} would":
            plan.ep % plan.ep_node != 0,
        f"the schedule {name} does not run {v} virtual stages; interleaved runs 2 or more, zb-v 2, "
        "all others 1": (plan.pp > 1) & (runs == 0),
        f"interleaved needs a multiple of pp={plan.pp} micro-batches, not {m}":
            (name == "interleaved") & (m % plan.pp != 0),
    }  # fmt: skip


def model_rules(plan: Any, config: ModelConfig) -> dict[str, bool]:
    """Return what would be wrong for this model, and whether it is."""
    a, moe, name, tp = config.attention, config.moe, config.name, plan.tp
    chunks, pieces = plan.pp * plan.virtual, plan.stream_tp * plan.cp * (1 + (plan.cp > 1))
    shared, experts, columns = (moe.shared_width, moe.experts, moe.width) if moe else (0, 1, 1)
    parts = {
        "heads": a.heads, "key-value heads": a.kv_heads, "columns of the MLP": config.mlp.width,
        "columns of the shared experts": shared, "rows of the vocabulary": config.vocab,
    }  # fmt: skip
    able = f"{_divisors(math.gcd(*parts.values()))} would"
    padded = f"{able}, or a vocabulary padded to {_over(config.vocab, tp)}"
    return {
        f"tp={tp} does not divide the {size} {what} of {name}; "
        f"{padded if what.startswith('rows') else able}": size % tp != 0
        for what, size in parts.items()
    } | {
        f"{chunks} pipeline chunks are more than the {config.layers} layers of {name}":
            chunks > config.layers + 2 * plan.balance,
        f"a sequence of {plan.sequence} tokens is outside {name}'s 1 to {config.positions}":
            (plan.sequence < 1) | (plan.sequence > config.positions),
        f"a sequence of {plan.sequence} tokens cannot be cut into {pieces} equal parts (2 a "
        "context-parallel rank, tp for sequence parallelism); "
        f"{_over(plan.sequence, pieces)} can": plan.sequence % pieces != 0,
        f"ulysses cannot deal {a.kv_heads} heads of keys to {tp * plan.cp} ranks (tp × cp); "
        f"{_divisors(a.kv_heads)} would do":
            (plan.cp_method == "ulysses") & (a.kv_heads % (tp * plan.cp) != 0),
        f"ep={plan.ep} does not divide the {experts} experts of {name}; {_divisors(experts)} would":
            experts % plan.ep != 0,
        f"expert-tp={plan.expert_tp} does not divide the {columns} columns of an expert of {name}; "
        f"{_divisors(columns)} would": (moe is not None) & (columns % plan.expert_tp != 0),
        "experts with tp > 1 need sequence parallelism, or every token would be sent tp times":
            (moe is not None) & (tp > 1) & (plan.stream_tp == 1),
    }  # fmt: skip


def _over(number, divisor):
    """Return the least multiple that is not below a number."""
    return -(-number // divisor) * divisor


def _divisors(number: int) -> str:
    """Write the divisors of a number, the first eight of many; nothing of many numbers."""
    if np.ndim(number):
        return ""
    looked = range(1, min(number, LARGEST_TRIED) + 1)
    found = list(islice((d for d in looked if number % d == 0), 9))
    more = len(found) > 8 or number > LARGEST_TRIED
    return ", ".join(map(str, found[:8])) + (" …" if more else "")
