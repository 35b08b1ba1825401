"""The parts of a transformer's block, as numbers: attention, MLP, experts, position, norms."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Attention:
    """Multi-head, grouped-query, multi-query or latent attention.

    Attributes
    ----------
    heads
        Query heads.
    kv_heads
        Key–value heads: ``heads`` (MHA), fewer (GQA), 1 (MQA). Latent attention has as many as
        query heads.
    head_dim
        Width of a query and of a key.
    value_dim
        Width of a value; ``head_dim`` in all but latent attention.
    qkv_bias, out_bias
        Whether the projections carry biases.
    qk_norm
        ``""``; ``"head"``: queries and keys are normalised head by head (Qwen3, Gemma 3);
        ``"width"``: over the whole projection (OLMo 2).
    kv_rank
        Latent attention (MLA): width of the compressed key–value vector; 0 elsewhere.
    query_rank
        MLA: width of the compressed query; 0 where queries are projected at once.
    rope_dim
        MLA: the part of ``head_dim`` that is rotated, held once for all heads.
    window
        Tokens that a windowed layer looks back on, itself included; 0 where all layers see all.
    windowed
        For each layer whether it is windowed; empty where none is.
    sinks
        A learned logit per head in the softmax that no value answers to (gpt-oss).
    softcap
        Scores are squashed to ± this by tanh (Gemma 2); 0 where they are not.
    scale
        What scores are multiplied by; 0 for head_dim ** −½.
    """

    heads: int
    kv_heads: int
    head_dim: int
    value_dim: int
    qkv_bias: bool = False
    out_bias: bool = False
    qk_norm: str = ""
    kv_rank: int = 0
    query_rank: int = 0
    rope_dim: int = 0
    window: int = 0
    windowed: tuple[bool, ...] = ()
    sinks: bool = False
    softcap: float = 0.0
    scale: float = 0.0

    @property
    def kind(self) -> str:
        """The name the field gives it: MHA, GQA, MQA or MLA."""
        if self.kv_rank:
            return "MLA"
        if self.kv_heads == self.heads:
            return "MHA"
        return "MQA" if self.kv_heads == 1 else "GQA"


@dataclass(frozen=True)
class Mlp:
    """The feed-forward part of a dense layer.

    Attributes
    ----------
    width
        Of the inner layer.
    activation
        ``gelu``, ``gelu_tanh``, ``relu``, ``silu`` or ``silu_clamped`` (gpt-oss: inputs held to
        ± 7, gate · σ(1.702 · gate), and 1 added to the other half).
    gated
        Whether a second projection gates the first (SwiGLU, GeGLU).
    bias
        Whether the projections carry biases.
    """

    width: int
    activation: str
    gated: bool = False
    bias: bool = False


@dataclass(frozen=True)
class Moe:
    """A mixture of experts in place of the MLP.

    Attributes
    ----------
    experts
        Routed experts in a layer.
    top_k
        How many of them a token visits.
    width
        Inner width of one expert.
    shared_width
        Inner width of all shared experts together, which every token visits; 0 for none.
    first_dense
        Layers at the bottom that keep the dense MLP.
    every
        From there, every how-many-th layer is a mixture.
    scoring
        ``softmax`` (over all experts), ``softmax_top`` (over the chosen ones) or ``sigmoid``.
    normalise
        Whether the chosen experts' weights are scaled to sum to 1.
    scale
        What the weights are multiplied by at last.
    router_bias
        ``""``; ``"logit"``: an ordinary bias; ``"choice"``: a bias that only steers the choice
        (DeepSeek-V3).
    expert_bias
        Whether the experts' projections carry biases.
    groups, top_groups
        Node-limited routing: experts lie in groups, and a token may visit so many of them.
    """

    experts: int
    top_k: int
    width: int
    shared_width: int = 0
    first_dense: int = 0
    every: int = 1
    scoring: str = "softmax"
    normalise: bool = True
    scale: float = 1.0
    router_bias: str = ""
    expert_bias: bool = False
    groups: int = 1
    top_groups: int = 1


@dataclass(frozen=True)
class Position:
    """How a token knows where it stands.

    Attributes
    ----------
    kind
        ``learned``, ``rope`` or ``alibi``.
    theta
        RoPE's base.
    rotary_dim
        The part of a head that RoPE turns.
    interleaved
        Whether RoPE pairs neighbours (2i, 2i+1), or halves (i, i + rotary_dim/2).
    scaling
        RoPE's scaling as (key, value) pairs of the ``config.json``, sorted; empty for none.
    local_theta
        RoPE's base in windowed layers where it differs (Gemma 3); 0 elsewhere.
    offset
        Rows of a learned table before position 0 (OPT).
    scaled
        ALiBi is added before scores are scaled, so that it is scaled with them (Falcon-RW).
    """

    kind: str
    theta: float = 0.0
    rotary_dim: int = 0
    interleaved: bool = False
    scaling: tuple[tuple[str, object], ...] = ()
    local_theta: float = 0.0
    offset: int = 0
    scaled: bool = False


@dataclass(frozen=True)
class Norm:
    """Normalisation: its kind, and where it stands in a block.

    Attributes
    ----------
    kind
        ``layernorm`` or ``rmsnorm``.
    eps
        Added to the variance.
    bias
        Whether a LayerNorm has a bias.
    placement
        ``pre``: before attention and MLP; ``post``: on what they give, before it is added (OLMo 2);
        ``both`` (Gemma 2, 3).
    parallel
        Attention and MLP read the same input and are added together (GPT-NeoX, Falcon).
    shared
        With ``parallel``: one norm feeds both.
    unit_offset
        The weight is stored as w − 1 (Gemma).
    embedding
        A norm right after the embedding (BLOOM).
    final
        A norm before the head.
    """

    kind: str
    eps: float
    bias: bool = False
    placement: str = "pre"
    parallel: bool = False
    shared: bool = False
    unit_offset: bool = False
    embedding: bool = False
    final: bool = True
