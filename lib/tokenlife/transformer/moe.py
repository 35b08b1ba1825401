"""A mixture of experts: many MLPs, of which each token visits a few.

A router scores the experts for each token; the best ``top_k`` are visited, and their outputs are
added with weights made from the scores. Parameters grow with the number of experts, work only with
``top_k``. Experts live on different machines when a model is large, so the choice decides what is
sent where; DeepSeek limits it to a few groups of experts, one group a machine.

Left to itself a router prefers few experts. Two cures: a loss that is least when all are used alike
(Fedus et al. 2021), or a bias on each expert that only steers the choice (DeepSeek-V3 2024).

Left out: capacity limits and dropped tokens, noise on the router, and moving the choice bias (that
is the trainer's work).
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from tokenlife.transformer import config as parts
from tokenlife.transformer.layers import Mlp


@dataclass(frozen=True)
class Routing:
    """Which experts each token visits.

    Attributes
    ----------
    chosen
        (tokens, top_k) numbers of experts.
    weights
        (tokens, top_k) what their outputs are multiplied by.
    probabilities
        (tokens, experts) each row of sum 1: the scores as shares, for the load-balance loss.
    """

    chosen: Tensor
    weights: Tensor
    probabilities: Tensor

    def load(self) -> Tensor:
        """Return the share of all visits that each expert gets, (experts,)."""
        counts = torch.bincount(self.chosen.flatten(), minlength=self.probabilities.shape[-1])
        return counts / self.chosen.numel()


def route(logits: Tensor, moe: "parts.Moe", choice_bias: Tensor | None = None) -> Routing:
    """Choose experts from the router's scores.

    Parameters
    ----------
    logits
        (tokens, experts).
    moe
        How: see ``config.Moe``.
    choice_bias
        (experts,) added to scores for the choice only.

    Examples
    --------
    >>> moe = parts.Moe(experts=3, top_k=2, width=8)
    >>> routing = route(torch.tensor([[0.5, 0.2, 0.3]]).log(), moe)
    >>> routing.chosen.tolist(), routing.weights.round(decimals=3).tolist()
    ([[0, 2]], [[0.625, 0.375]])
    """
    logits = logits.float()
    scores = logits.sigmoid() if moe.scoring == "sigmoid" else logits.softmax(-1)
    steered = scores if choice_bias is None else scores + choice_bias
    if moe.groups > 1:
        steered = _limit_groups(steered, moe)
    chosen = steered.topk(moe.top_k, dim=-1).indices
    if moe.scoring == "softmax_top":
        weights = logits.gather(-1, chosen).softmax(-1)
    else:
        weights = scores.gather(-1, chosen)
        if moe.normalise:
            weights = weights / weights.sum(-1, keepdim=True)
    shares = scores / scores.sum(-1, keepdim=True) if moe.scoring == "sigmoid" else scores
    return Routing(chosen, weights * moe.scale, shares)


def _limit_groups(scores: Tensor, moe: "parts.Moe") -> Tensor:
    """Shut out the experts of all but the best groups."""
    grouped = scores.unflatten(-1, (moe.groups, -1))  # (tokens, groups, experts of a group)
    # DeepSeek-V2 goes by a group's best expert, V3 (which steers by a bias) by its best two.
    best = min(2, grouped.shape[-1]) if moe.router_bias == "choice" else 1
    worth = grouped.topk(best, dim=-1).values.sum(-1)
    allowed = torch.zeros_like(worth, dtype=torch.bool)
    allowed.scatter_(-1, worth.topk(moe.top_groups, dim=-1).indices, True)
    return grouped.masked_fill(~allowed[..., None], -torch.inf).flatten(-2)


def load_balance_loss(routing: Routing) -> Tensor:
    """Return experts · Σ fᵢ·Pᵢ: least, and equal to top_k, when all experts are used alike.

    fᵢ is the number of visits to expert i per token, Pᵢ its mean probability. Only P has a
    gradient.
    """
    experts, top_k = routing.probabilities.shape[-1], routing.chosen.shape[-1]
    visits = routing.load() * top_k
    return experts * (visits * routing.probabilities.mean(0)).sum()


class Mixture(nn.Module):
    """The mixture of one layer: a router, its experts, and the shared ones.

    Parameters
    ----------
    config
        Of a model with a mixture.

    Attributes
    ----------
    routing
        Of the last forward pass; what the load-balance loss reads.
    """

    def __init__(self, config: "parts.ModelConfig"):
        super().__init__()
        moe, mlp, hidden = config.moe, config.mlp, config.hidden
        self.moe = moe
        self.router = nn.Linear(hidden, moe.experts, bias=moe.router_bias == "logit")
        self.choice_bias = None
        if moe.router_bias == "choice":
            self.choice_bias = nn.Parameter(torch.zeros(moe.experts), requires_grad=False)
        self.experts = nn.ModuleList(
            Mlp(hidden, moe.width, mlp.activation, mlp.gated, moe.expert_bias)
            for _ in range(moe.experts)
        )
        self.shared = None
        if moe.shared_width:
            self.shared = Mlp(hidden, moe.shared_width, mlp.activation, mlp.gated, mlp.bias)
        self.routing: Routing | None = None

    def __getstate__(self):
        # The last routing hangs on the graph of its pass: a copy of the model must not take it.
        return {**self.__dict__, "routing": None}

    def forward(self, x: Tensor) -> Tensor:
        """(B, S, hidden) → (B, S, hidden)."""
        tokens = x.flatten(0, -2)  # (tokens, hidden)
        self.routing = routing = route(self.router(tokens), self.moe, self.choice_bias)
        out = torch.zeros_like(tokens)
        for number in routing.chosen.unique().tolist():  # only experts that someone visits
            rows, places = torch.where(routing.chosen == number)
            weight = routing.weights[rows, places, None].to(x.dtype)
            out = out.index_add(0, rows, self.experts[number](tokens[rows]) * weight)
        if self.shared is not None:
            out = out + self.shared(tokens)
        return out.view_as(x)
