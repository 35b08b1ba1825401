"""Parameters, counted exactly from the architecture's numbers.

A linear layer of shape (in, out) holds in · out weights and, where it has one, out biases; an
RMSNorm one vector, a LayerNorm two. A tied head holds nothing of its own. Multi-token-prediction
blocks stand beside a model, not in it: :func:`mtp_parameters` counts them apart.
"""

from tokenlife.transformer.config import ModelConfig

PARTS = (
    "token embedding",
    "position embedding",
    "attention",
    "mlp",
    "router",
    "experts",
    "shared experts",
    "norms",
    "head",
)


def attention_parameters(config: ModelConfig) -> int:
    """Count one layer's projections, their biases and its sinks; its norms are counted as norms."""
    a, hidden = config.attention, config.hidden
    if a.kv_rank:
        queries = a.heads * a.head_dim
        if a.query_rank:
            query = hidden * a.query_rank + a.qkv_bias * a.query_rank + a.query_rank * queries
        else:
            query = hidden * queries
        latent = a.kv_rank + a.rope_dim
        compress = hidden * latent + a.qkv_bias * latent
        expand = a.kv_rank * a.heads * (a.head_dim - a.rope_dim + a.value_dim)
        qkv = query + compress + expand
    else:
        width = (a.heads + a.kv_heads) * a.head_dim + a.kv_heads * a.value_dim
        qkv = hidden * width + a.qkv_bias * width
    out = a.heads * a.value_dim * hidden + a.out_bias * hidden
    return qkv + out + a.sinks * a.heads


def mlp_parameters(hidden: int, width: int, gated: bool, bias: bool) -> int:
    """Count a feed-forward part: up, down, and where it is gated the gate.

    Examples
    --------
    >>> mlp_parameters(768, 3072, gated=False, bias=True)
    4722432
    """
    ups = 2 if gated else 1
    return (ups + 1) * hidden * width + bias * (ups * width + hidden)


def norm_parameters(config: ModelConfig) -> int:
    """Count one layer's norms: of the stream, of queries and keys, and of latent vectors."""
    a, norm = config.attention, config.norm
    vector = config.hidden * (2 if norm.bias else 1)
    count = {"pre": 2, "post": 2, "both": 4}[norm.placement] - norm.shared
    inner = {"": 0, "head": 2 * a.head_dim, "width": (a.heads + a.kv_heads) * a.head_dim}
    return count * vector + inner[a.qk_norm] + a.kv_rank + a.query_rank


def layer_parameters(config: ModelConfig, layer: int) -> dict[str, int]:
    """Count one layer by part: ``attention``, ``mlp`` or ``router``, ``experts``, ``norms``.

    Examples
    --------
    >>> layer_parameters(ModelConfig.load("gpt2"), 0)
    {'attention': 2362368, 'norms': 3072, 'mlp': 4722432}
    """
    hidden, mlp, moe = config.hidden, config.mlp, config.moe
    parts = {"attention": attention_parameters(config), "norms": norm_parameters(config)}
    if moe is None or not config.is_moe(layer):
        return parts | {"mlp": mlp_parameters(hidden, mlp.width, mlp.gated, mlp.bias)}
    expert = mlp_parameters(hidden, moe.width, mlp.gated, moe.expert_bias)
    parts |= {
        "router": hidden * moe.experts + bool(moe.router_bias) * moe.experts,
        "experts": moe.experts * expert,
    }
    if moe.shared_width:
        parts["shared experts"] = mlp_parameters(hidden, moe.shared_width, mlp.gated, mlp.bias)
    return parts


def parameters_by_part(config: ModelConfig) -> dict[str, int]:
    """Count the trainable numbers of each part of a model, over all layers.

    Returns
    -------
    dict
        The names of ``PARTS``, each with its count; 0 where the model has no such part. The
        ``router`` of DeepSeek-V3 includes the bias that only steers the choice, which no gradient
        trains.

    Examples
    --------
    >>> parts = parameters_by_part(ModelConfig.load("gpt2"))
    >>> parts["token embedding"], parts["attention"], sum(parts.values())
    (38597376, 28348416, 124439808)
    """
    parts = dict.fromkeys(PARTS, 0)
    parts["token embedding"] = config.vocab * config.hidden
    if config.position.kind == "learned":
        parts["position embedding"] = (config.positions + config.position.offset) * config.hidden
    for layer in range(config.layers):
        for part, count in layer_parameters(config, layer).items():
            parts[part] += count
    vector = config.hidden * (2 if config.norm.bias else 1)
    parts["norms"] += (config.norm.embedding + config.norm.final) * vector
    parts["head"] = (not config.tied) * config.vocab * config.hidden + (
        config.head_bias * config.vocab
    )
    return parts


def count_parameters(config: ModelConfig) -> int:
    """Count all trainable numbers.

    Examples
    --------
    >>> count_parameters(ModelConfig.load("gpt2"))
    124439808
    """
    return sum(parameters_by_part(config).values())


def active_parameters(config: ModelConfig) -> int:
    """Count the parameters that one token meets: all of them, less the experts it does not visit.

    Examples
    --------
    >>> active_parameters(ModelConfig.load("mixtral-8x7b"))
    12879925248
    """
    moe = config.moe
    if moe is None:
        return count_parameters(config)
    asleep = parameters_by_part(config)["experts"] * (moe.experts - moe.top_k) // moe.experts
    return count_parameters(config) - asleep


def mtp_parameters(config: ModelConfig) -> int:
    """Count the multi-token-prediction blocks that stand beside a model (DeepSeek-V3).

    Each is one more layer, a projection of two hidden vectors to one, and three norms; embedding
    and head are the model's own.

    Examples
    --------
    >>> mtp_parameters(ModelConfig.load("gpt2"))
    0
    """
    hidden = config.hidden
    layer = sum(layer_parameters(config, config.layers - 1).values())
    return config.mtp_layers * (layer + 2 * hidden * hidden + 3 * hidden)
