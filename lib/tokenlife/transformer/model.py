"""The decoder: one module for every family, built from a ``ModelConfig`` alone.

Token ids become vectors (the residual stream). Each block reads the stream, computes attention and
an MLP, and adds what they give. The head turns the last vector of each token into a score for every
entry of the vocabulary: the logits of the token that comes next.

    model = Decoder(ModelConfig.load("gpt2"))
    logits = model(ids)                                # (B, S) → (B, S, V)

The stages can be called one by one, as a pipeline over several machines does::

    context = model.context(ids)
    x = model.embed(ids)                               # (B, S, hidden)
    for block in model.blocks:
        x = block(x, context)                          # (B, S, hidden)
    logits = model.head(x)                             # (B, S, V)

Left out: dropout, multi-token-prediction blocks.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tokenlife.transformer.attention import Attention, LatentAttention, needs_naive
from tokenlife.transformer.cache import KVCache
from tokenlife.transformer.config import ModelConfig
from tokenlife.transformer.context import Context, InputError, counts, make_context
from tokenlife.transformer.layers import Mlp, norm
from tokenlife.transformer.moe import Mixture, load_balance_loss

PATHS = ("sdpa", "naive")


class Block(nn.Module):
    """One layer: attention and MLP (or a mixture), each added to the residual stream."""

    def __init__(self, config: ModelConfig, layer: int, path: str = "sdpa"):
        super().__init__()
        n = self.norm = config.norm
        before, after = n.placement in ("pre", "both"), n.placement in ("post", "both")
        attention = LatentAttention if config.attention.kv_rank else Attention
        self.attention_norm = norm(config) if before else None
        self.attention = attention(config, layer, path)
        self.attention_post_norm = norm(config) if after else None
        self.mlp_norm = norm(config) if before and not n.shared else None
        if config.is_moe(layer):
            self.mlp = Mixture(config)
        else:
            m = config.mlp
            self.mlp = Mlp(config.hidden, m.width, m.activation, m.gated, m.bias)
        self.mlp_post_norm = norm(config) if after else None

    def forward(self, x: Tensor, context: Context) -> Tensor:
        """(B, S, hidden) → (B, S, hidden)."""
        if self.norm.parallel:
            read = self.attention_norm(x)
            also = read if self.norm.shared else self.mlp_norm(x)
            return x + self.attention(read, context) + self.mlp(also)
        x = x + _through(self.attention_post_norm, self.attention(self.read(x), context))
        return x + _through(self.mlp_post_norm, self.mlp(_through(self.mlp_norm, x)))

    def read(self, x: Tensor) -> Tensor:
        """Return what attention reads of the stream."""
        return _through(self.attention_norm, x)


def _through(module: nn.Module | None, x: Tensor) -> Tensor:
    return x if module is None else module(x)


class Decoder(nn.Module):
    """A decoder-only transformer.

    Parameters
    ----------
    config
        The architecture's numbers.
    attention
        ``"sdpa"``: torch's fused kernel where it can be used; ``"naive"``: the definition.

    Attributes
    ----------
    blocks
        The layers, ``nn.ModuleList`` of :class:`Block`.

    Raises
    ------
    InputError
        If ``attention`` is neither.

    Examples
    --------
    >>> config = ModelConfig.load("running-gpt")
    >>> Decoder(config)(torch.tensor([[1, 2, 3]])).shape
    torch.Size([1, 3, 4096])
    """

    def __init__(self, config: ModelConfig, attention: str = "sdpa"):
        super().__init__()
        if attention not in PATHS:
            raise InputError(f"attention {attention!r} is not known; known: {', '.join(PATHS)}")
        self.config, self.path = config, attention
        self.token_embedding = nn.Embedding(config.vocab, config.hidden)
        self.position_embedding = None
        if config.position.kind == "learned":
            rows = config.positions + config.position.offset
            self.position_embedding = nn.Embedding(rows, config.hidden)
        self.embedding_norm = norm(config) if config.norm.embedding else None
        self.blocks = nn.ModuleList(
            Block(config, layer, attention) for layer in range(config.layers)
        )
        self.final_norm = norm(config) if config.norm.final else None
        self.unembedding = None
        if not config.tied:
            self.unembedding = nn.Linear(config.hidden, config.vocab, bias=False)
        self.head_bias = nn.Parameter(torch.zeros(config.vocab)) if config.head_bias else None
        self.reset_parameters()

    def reset_parameters(self, std: float = 0.02) -> None:
        """Draw new weights as GPT-2 does: normal, smaller where a block adds to the stream."""
        for name, module in self.named_modules():
            if isinstance(module, nn.Linear):
                adds = name.endswith((".out", ".down"))
                shrunk = std / math.sqrt(2 * self.config.layers) if adds else std
                nn.init.normal_(module.weight, std=shrunk)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
            elif isinstance(module, nn.Embedding):
                nn.init.normal_(module.weight, std=std)

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.token_embedding.weight.device

    @property
    def dtype(self) -> torch.dtype:
        """The weights' type."""
        return self.token_embedding.weight.dtype

    def forward(
        self,
        ids: Tensor,
        *,
        cache: KVCache | None = None,
        positions: Tensor | None = None,
        mask: Tensor | None = None,
    ) -> Tensor:
        """Return the logits of the token after each token: (B, S) → (B, S, V).

        Parameters
        ----------
        ids
            (B, S) int64.
        cache
            Tokens read before; these are added to it.
        positions
            (B, S) or (S,): where each token stands, if not one after the other (documents packed
            into one sequence). Decides embeddings and angles, not who sees whom.
        mask
            (B, S) bool: which ids are tokens; the rest is padding, on the right. Or (B, S, T) bool:
            which of the T tokens in cache and batch each token may look at, the future excluded
            in any case.

        Raises
        ------
        InputError
            If the ids are none, unknown, or reach beyond the model's positions.
        CacheError
            If they do not fit the cache.
        """
        return self.head(self.hidden_states(ids, cache=cache, positions=positions, mask=mask))

    def hidden_states(self, ids: Tensor, *, cache=None, positions=None, mask=None) -> Tensor:
        """Return the residual stream after the last block: (B, S) → (B, S, hidden)."""
        context = self.context(ids, cache=cache, positions=positions, mask=mask)
        x = self.embed(ids, context.positions)
        for block in self.blocks:
            x = block(x, context)
        if cache is not None:
            cache.lengths += counts(ids, mask)
        return x

    # ---- the stages ---------------------------------------------------------------------------

    def embed(self, ids: Tensor, positions: Tensor | None = None) -> Tensor:
        """Look up the vector of each token: (B, S) → (B, S, hidden)."""
        x = self.token_embedding(ids)
        if self.config.embedding_scale != 1:
            x = x * torch.tensor(self.config.embedding_scale, dtype=x.dtype)
        if self.position_embedding is not None:
            if positions is None:
                positions = torch.arange(ids.shape[1], device=ids.device)
            x = x + self.position_embedding(positions + self.config.position.offset)
        return _through(self.embedding_norm, x)

    def head(self, x: Tensor) -> Tensor:
        """Score the vocabulary: (…, hidden) → (…, V)."""
        table = self.token_embedding if self.unembedding is None else self.unembedding
        logits = F.linear(_through(self.final_norm, x), table.weight, self.head_bias)
        if cap := self.config.softcap:
            logits = cap * torch.tanh(logits / cap)
        return logits

    def context(self, ids: Tensor, *, cache=None, positions=None, mask=None) -> Context:
        """Work out once what all blocks need: angles, and who may look at whom."""
        fused = not needs_naive(self.config.attention, self.path)
        return make_context(self.config, ids, self.dtype, fused, cache, positions, mask)

    def load_balance_loss(self) -> Tensor:
        """Return the mean load-balance loss of the mixtures, for the last forward pass.

        Raises
        ------
        InputError
            If the model has no mixture, or has not read anything yet.
        """
        mixtures = [block.mlp for block in self.blocks if isinstance(block.mlp, Mixture)]
        losses = [load_balance_loss(m.routing) for m in mixtures if m.routing is not None]
        if not losses:
            raise InputError(f"{self.config.name} has routed nothing yet, or has no mixture")
        return torch.stack(losses).mean()
