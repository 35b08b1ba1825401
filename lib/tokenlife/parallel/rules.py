"""What a layout may not be: each rule is a condition, and a line that says what would be right.

Conditions take arrays: one rule refuses one plan, or marks the bad ones among a million.
"""

import math
from typing import Any

import numpy as np

from tokenlife.errors import TokenlifeError
from tokenlife.transformer.config import ModelConfig

Rule = tuple[bool, str]


class PlanError(TokenlifeError, ValueError):
    """A layout that cannot be."""


def layout_rules(plan: Any) -> list[Rule]:
    """Return what would be wrong without any model."""
    inner, share = plan.tp * plan.cp * plan.dp, plan.dp * plan.micro_batch
    block, m, v = plan.ep * plan.expert_tp, plan.micro_batches, plan.virtual
    chunks = {"interleaved": v < 2, "zb-v": v != 2}.get(plan.schedule, v != 1)
    batches = _over(plan.sequences, share)
    return [
        (plan.zero > 3, f"zero must be 0 to 3, not {plan.zero}"),
        _divides(plan.replicate, plan.dp, f"replicate={plan.replicate}", f"dp={plan.dp}"),
        (
            (plan.sequences % share != 0) | (m < 1),
            f"a global batch of {plan.sequences} is no multiple of dp × micro-batch = {share}; "
            f"{batches} would be",
        ),
        _divides(block, inner, f"ep × expert-tp = {block}", f"tp × cp × dp = {inner}"),
        _divides(plan.ep_node, plan.ep, f"ep_node={plan.ep_node}", f"ep={plan.ep}"),
        (
            chunks & (plan.pp > 1),
            f"the schedule {plan.schedule} does not run {v} virtual stages; interleaved runs 2 or "
            "more, zb-v 2, all others 1",
        ),
        (
            (plan.schedule == "interleaved") & (m % plan.pp != 0),
            f"interleaved needs a multiple of pp={plan.pp} micro-batches, not {m}",
        ),
    ]


def model_rules(plan: Any, config: ModelConfig) -> list[Rule]:
    """Return what would be wrong for this model."""
    a, moe, name, chunks = config.attention, config.moe, config.name, plan.pp * plan.virtual
    parts = {
        "heads": a.heads, "key-value heads": a.kv_heads, "columns of the MLP": config.mlp.width,
        "columns of the shared experts": moe.shared_width if moe else 0,
        "rows of the vocabulary": config.vocab,
    }  # fmt: skip
    able = _divisors(math.gcd(*parts.values()))
    rules = [
        (
            size % plan.tp != 0,
            f"tp={plan.tp} does not divide the {size} {what} of {name}; {able} would"
            + f", or a vocabulary padded to {_over(size, plan.tp)}" * (what[:4] == "rows"),
        )
        for what, size in parts.items()
    ]
    pieces = plan.stream_tp * plan.cp * (1 + (plan.cp > 1))
    experts, columns = (moe.experts, moe.width) if moe else (1, 1)  # without any, one MLP
    heads, key_values = plan.tp * plan.cp, a.kv_heads
    return [
        *rules,
        (
            chunks > config.layers + 2 * plan.balance,
            f"{chunks} pipeline chunks are more than the {config.layers} layers of {name}",
        ),
        (
            (plan.sequence < 1) | (plan.sequence > config.positions),
            f"a sequence of {plan.sequence} tokens is outside {name}'s 1 to {config.positions}",
        ),
        (
            plan.sequence % pieces != 0,
            f"a sequence of {plan.sequence} tokens cannot be cut into {pieces} equal parts (2 a "
            f"context-parallel rank, tp for sequence parallelism); "
            f"{_over(plan.sequence, pieces)} can",
        ),
        (
            (plan.cp_method == "ulysses") & (key_values % heads != 0),
            f"ulysses cannot deal {key_values} heads of keys to {heads} ranks (tp × cp); "
            f"{_divisors(key_values)} would do",
        ),
        _divides(plan.ep, experts, f"ep={plan.ep}", f"the {experts} experts of {name}"),
        _divides(
            plan.expert_tp if moe else 1, columns, f"expert-tp={plan.expert_tp}",
            f"the {columns} columns of an expert of {name}",
        ),
        (
            (moe is not None) & (plan.tp > 1) & (plan.stream_tp == 1),
            "experts with tp > 1 need sequence parallelism, or every token would be sent tp times",
        ),
    ]  # fmt: skip


def _divides(divisor, number, what: str, of: str) -> Rule:
    return number % divisor != 0, f"{what} does not divide {of}; {_divisors(number)} would"


def _over(number, divisor):
    """Return the least multiple that is not below a number."""
    return -(-number // divisor) * divisor


def _divisors(number: int) -> str:
    """Write the divisors of a number, the first eight of many; nothing of many numbers."""
    found = [] if np.ndim(number) else [d for d in range(1, number + 1) if number % d == 0]
    return ", ".join(map(str, found[:8])) + (" …" if len(found) > 8 else "")
