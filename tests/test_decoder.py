"""The decoder: two attention paths, a cache, positions and mixtures, each against its definition.

Equality with another library's models is in ``test_weights``.
"""

import copy
import dataclasses
import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from small_configs import FAMILIES, small_config
from tokenlife.costs import count_parameters, forward_flops
from tokenlife.errors import TokenlifeError
from tokenlife.transformer import ModelConfig
from tokenlife.transformer.attention import attention_weights, fused_attention, naive_attention
from tokenlife.transformer.cache import CacheError, KVCache
from tokenlife.transformer.config import ConfigError, Moe, Position
from tokenlife.transformer.context import InputError
from tokenlife.transformer.layers import RMSNorm
from tokenlife.transformer.model import Decoder
from tokenlife.transformer.moe import Routing, load_balance_loss, route
from tokenlife.transformer.position import alibi_slopes, cosines, frequencies, rotate
from torch.utils.flop_counter import FlopCounterMode

LENGTH = 17  # longer than the small models' windows


pytestmark = pytest.mark.usefixtures("one_thread")


def small(family: str, attention: str = "sdpa", seed: int = 0) -> Decoder:
    """Build a small model with every weight random."""
    torch.manual_seed(seed)
    model = Decoder(ModelConfig.from_hf(small_config(family, seed), family), attention)
    for parameter in model.parameters():
        parameter.data += 0.15 * torch.randn(parameter.shape)
    return model.eval()


def some_ids(model: Decoder, rows: int = 2, length: int = LENGTH) -> torch.Tensor:
    generator = torch.Generator().manual_seed(length)
    return torch.randint(model.config.vocab, (rows, length), generator=generator)


def close(a: torch.Tensor, b: torch.Tensor, tolerance: float = 1e-4) -> bool:
    assert b.std() > 0.05
    return bool((a - b).abs().max() < tolerance)


# ---- the whole model -------------------------------------------------------------------------


@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_the_fused_kernel_equals_the_definition(family):
    naive, fused = small(family, "naive"), small(family, "sdpa")
    ids = some_ids(naive)
    assert close(fused(ids), naive(ids))


@pytest.mark.parametrize("family", FAMILIES)
def test_parameters_and_flops_are_those_of_costs(family):
    model = small(family, "naive")
    ids = some_ids(model)
    assert sum(p.numel() for p in model.parameters()) == count_parameters(model.config)
    with FlopCounterMode(display=False) as counter:
        logits = model(ids)
        forward = counter.get_total_flops()
        logits.sum().backward()
    assert forward == forward_flops(model.config, *ids.shape)
    assert counter.get_total_flops() == 3 * forward


@pytest.mark.parametrize("attention", ["naive", "sdpa"])
@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_no_token_sees_the_future(family, attention):
    model = small(family, attention)
    ids = some_ids(model)
    changed = ids.clone()
    changed[:, 9] = (changed[:, 9] + 1) % model.config.vocab
    before, after = model(ids), model(changed)
    # Not bit-equal: a mixture multiplies a changed batch in another order.
    assert (before[:, :9] - after[:, :9]).abs().max() < 1e-5
    assert ((before[:, 9:] - after[:, 9:]).abs().amax(-1) > 1e-5)[:, 0].all()


@pytest.mark.parametrize("family", ["mistral", "gemma2", "gpt_oss"])
@torch.no_grad()
def test_a_window_ends_what_one_layer_sees(family):
    model = small(family)
    model.blocks = model.blocks[:1]  # through several layers, windows add up
    if not model.blocks[0].attention.windowed:
        model.blocks[0].attention.windowed = True
    window, ids = model.config.attention.window, some_ids(model)
    changed = ids.clone()
    changed[:, 0] = (changed[:, 0] + 1) % model.config.vocab
    differs = (model(ids) - model(changed)).abs().amax(-1) > 1e-6
    assert differs[:, window - 1].all()
    assert not differs[:, window:].any()


@pytest.mark.parametrize("attention", ["naive", "sdpa"])
@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_with_a_cache_as_without(family, attention):
    model = small(family, attention)
    ids = some_ids(model)
    cache = KVCache(model.config, 2, LENGTH)
    cuts = (0, 6, 7, 11, *range(12, LENGTH + 1))  # a prompt, single tokens, a chunk
    parts = [model(ids[:, a:b], cache=cache) for a, b in itertools.pairwise(cuts)]
    assert cache.lengths.tolist() == [LENGTH, LENGTH]
    assert close(torch.cat(parts, dim=1), model(ids))


@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_rows_of_different_length_in_one_cache(family):
    model = small(family)
    ids = some_ids(model, rows=3)
    whole = model(ids)
    cache = KVCache(model.config, 3, LENGTH)
    lengths = torch.tensor([9, 4, 1])
    real = torch.arange(9) < lengths[:, None]
    padded = torch.where(real, ids[:, :9], 0)
    first = model(padded, cache=cache, mask=real)
    assert cache.lengths.tolist() == lengths.tolist()
    rows = torch.arange(3)
    assert close(first[rows, lengths - 1], whole[rows, lengths - 1])
    for _ in range(5):
        places = cache.lengths.clone()
        step = model(ids[rows, places][:, None], cache=cache)
        assert close(step[:, 0], whole[rows, places])
    # One row is given up and taken by another sequence, while the others stay.
    cache.set_lengths(cache.lengths * torch.tensor([1, 0, 1]))
    model(ids[2:, :3], cache=cache.rows(1, 2))
    assert cache.lengths.tolist() == [14, 3, 6]
    step = model(torch.stack((ids[0, 14], ids[2, 3], ids[2, 6]))[:, None], cache=cache)
    assert close(step[:, 0], whole[[0, 2, 2], [14, 3, 6]])


@pytest.mark.parametrize("family", ["gpt2", "llama", "bloom", "deepseek_v3"])
@torch.no_grad()
def test_packed_documents_do_not_see_each_other(family):
    model = small(family)
    first, second = some_ids(model, 1, 7), some_ids(model, 1, 5)
    document = torch.tensor([0] * 7 + [1] * 5)
    packed = model(
        torch.cat((first, second), dim=1),
        positions=torch.cat((torch.arange(7), torch.arange(5))),
        mask=(document[:, None] == document)[None],
    )
    assert close(packed, torch.cat((model(first), model(second)), dim=1))


@torch.no_grad()
def test_stage_by_stage_as_at_once():
    model = small("gemma2")
    ids = some_ids(model)
    context = model.context(ids)
    x = model.embed(ids)
    for block in model.blocks:
        x = block(x, context)
    assert torch.equal(model.head(x), model(ids))


def test_a_new_model_starts_near_even_guesses():
    torch.manual_seed(0)
    model = Decoder(ModelConfig.load("running-gpt"))
    ids = some_ids(model)
    targets = ids.roll(1, 1).flatten()  # not the ids themselves: a tied head favours those
    loss = torch.nn.functional.cross_entropy(model(ids).flatten(0, 1), targets)
    assert loss.item() == pytest.approx(math.log(4096), rel=0.05)


def test_the_model_says_what_is_wrong():
    config = ModelConfig.load("running-gpt")
    model = Decoder(config)
    ids = torch.zeros(1, 3, dtype=torch.long)
    for bad, says in (
        (ids[:, :0], "one token at least"),
        (ids[0], "must be"),
        (ids + config.vocab, f"no token {config.vocab} in running-gpt; ids run from 0 to 4095"),
        (ids - 1, "no token -1"),
        (torch.zeros(1, config.positions + 1, dtype=torch.long), "positions of running-gpt"),
    ):
        with pytest.raises(InputError, match=says):
            model(bad)
    with pytest.raises(InputError, match="are more than"):
        model(ids, positions=torch.tensor([0, 1, config.positions]))
    with pytest.raises(InputError, match="'flash' is not known; known: sdpa, naive"):
        Decoder(config, attention="flash")
    with pytest.raises(InputError, match="no mixture"):
        model.load_balance_loss()
    assert issubclass(InputError, TokenlifeError)


# ---- the cache ---------------------------------------------------------------------------------


@pytest.mark.parametrize("family", FAMILIES)
def test_a_cache_is_as_large_as_costs_say(family):
    from tokenlife.costs.memory import kv_bytes_per_token

    config = ModelConfig.from_hf(small_config(family), family)
    cache = KVCache(config, 3, 20, dtype=torch.bfloat16)
    assert cache.bytes_per_token == kv_bytes_per_token(config, 2)
    assert cache.bytes == 3 * 20 * kv_bytes_per_token(config, 2)


def test_a_full_or_foreign_cache_is_refused():
    model = small("llama")
    ids = some_ids(model)
    cache = KVCache(model.config, 2, 10)
    with pytest.raises(CacheError, match="17 tokens do not fit the cache's capacity of 10"):
        model(ids, cache=cache)
    assert cache.lengths.tolist() == [0, 0]
    with pytest.raises(CacheError, match="a batch of 1 does not fit a cache of 2"):
        model(ids[:1, :5], cache=cache)
    with pytest.raises(CacheError, match="at least"):
        KVCache(model.config, 0, 10)
    with torch.no_grad():  # padding may reach beyond the capacity, tokens may not
        real = torch.arange(LENGTH) < torch.tensor([[10], [3]])
        model(ids, cache=cache, mask=real)
    assert cache.lengths.tolist() == [10, 3]


# ---- attention ----------------------------------------------------------------------------------


def by_loops(q, k, v, scale, sinks=None):
    """Attend in the plainest words: a loop over heads, queries and keys."""
    out = torch.zeros(*q.shape[:-1], v.shape[-1])
    batch, heads, length, _ = q.shape
    for b in range(batch):
        for h in range(heads):
            kv = h * k.shape[1] // heads
            for i in range(length):
                scores = [scale * float(q[b, h, i] @ k[b, kv, j]) for j in range(i + 1)]
                whole = scores if sinks is None else [*scores, float(sinks[h])]
                shares = torch.tensor(whole).softmax(0)
                out[b, h, i] = sum(s * v[b, kv, j] for j, s in enumerate(shares[: i + 1]))
    return out


@settings(max_examples=20, deadline=None)
@given(
    groups=st.sampled_from([(1, 1), (4, 4), (4, 2), (6, 1), (6, 3)]),
    length=st.integers(1, 6),
    widths=st.tuples(st.integers(1, 5), st.integers(1, 5)),
)
def test_attention_in_the_plainest_words(groups, length, widths):
    (heads, kv_heads), (width, value) = groups, widths
    q = torch.randn(2, heads, length, width)
    k, v = torch.randn(2, kv_heads, length, width), torch.randn(2, kv_heads, length, value)
    bias = torch.full((length, length), -torch.inf).triu(1)
    expected = by_loops(q, k, v, 0.3)
    assert torch.allclose(naive_attention(q, k, v, bias, scale=0.3), expected, atol=1e-5)
    assert torch.allclose(fused_attention(q, k, v, None, True, 0.3), expected, atol=1e-5)
    assert torch.allclose(fused_attention(q, k, v, bias, False, 0.3), expected, atol=1e-5)
    sinks = torch.randn(heads)
    drained = naive_attention(q, k, v, bias, scale=0.3, sinks=sinks)
    assert torch.allclose(drained, by_loops(q, k, v, 0.3, sinks), atol=1e-5)


def test_weights_sum_to_one_and_a_softcap_bounds_scores():
    q, k = 50 * torch.randn(1, 2, 5, 8), torch.randn(1, 2, 5, 8)
    assert torch.allclose(attention_weights(q, k).sum(-1), torch.ones(1, 2, 5))
    capped = attention_weights(q, k, softcap=1.0)
    assert (capped.amax(-1) / capped.amin(-1)).max() <= torch.e**2 + 1e-4


@torch.no_grad()
def test_latent_attention_absorbed_equals_expanded():
    model = small("deepseek_v2")
    attention, context = model.blocks[0].attention, model.context(some_ids(model))
    x = torch.randn(2, LENGTH, model.config.hidden)
    q, held = attention.queries_and_latent(x, context)
    last = dataclasses.replace(context, biases=(None, None), causal=(False, False))
    expanded = attention.attend(q[:, :, -1:], *attention.expand(held), last)
    assert close(attention.absorbed(q[:, :, -1:], held, last), expanded, 1e-5)


@pytest.mark.parametrize("attention", ["naive", "sdpa"])
@torch.no_grad()
def test_the_map_of_a_layer_is_what_attention_uses(attention):
    model = small("llama", attention)
    ids = some_ids(model)
    context, block = model.context(ids), model.blocks[0]
    read = block.read(model.embed(ids))
    weights = block.attention.weights(read, context)
    _, _, v = block.attention.queries_keys_values(read, context)
    v = v.repeat_interleave(weights.shape[1] // v.shape[1], dim=1)
    mixed = block.attention.out((weights @ v).transpose(1, 2).flatten(2))
    assert close(mixed, block.attention(read, context), 1e-5)
    assert weights.triu(1).abs().max() == 0


# ---- positions -----------------------------------------------------------------------------------


@settings(max_examples=50, deadline=None)
@given(
    places=st.tuples(st.integers(0, 500), st.integers(0, 500), st.integers(0, 3000)),
    interleaved=st.booleans(),
    part=st.sampled_from([4, 8, 16]),
)
def test_rope_sees_distances_only(places, interleaved, part):
    i, j, shift = places
    position = Position("rope", theta=10_000.0, rotary_dim=part)
    q, k = torch.randn(16, dtype=torch.float64), torch.randn(16, dtype=torch.float64)

    def score(a: int, b: int) -> float:
        turned = (
            rotate(x, *(t[0] for t in cosines(torch.tensor([p]), position)), interleaved)
            for x, p in ((q, a), (k, b))
        )
        return float(torch.dot(*turned))

    assert score(i + shift, j + shift) == pytest.approx(score(i, j), abs=5e-3)
    assert score(i, i) == pytest.approx(float(q @ k), abs=1e-5)


def test_rope_keeps_lengths_and_leaves_the_rest_alone():
    position = Position("rope", theta=100.0, rotary_dim=6)
    x = torch.randn(2, 3, 9, 10)
    for interleaved in (False, True):
        turned = rotate(x, *cosines(torch.arange(9), position), interleaved)
        assert torch.allclose(turned.norm(dim=-1), x.norm(dim=-1), atol=1e-5)
        assert torch.equal(turned[..., 6:], x[..., 6:])
        assert not torch.allclose(turned[..., 1:, :6], x[..., 1:, :6])


def test_halves_and_neighbours_are_the_same_turn_in_another_order():
    """What a GGUF file does to queries and keys, and why the loader undoes it."""
    position = Position("rope", theta=100.0, rotary_dim=8)
    turn = cosines(torch.arange(5), position)
    x = torch.randn(5, 8)
    neighbours = x.unflatten(-1, (2, 4)).transpose(-1, -2).flatten(-2)
    turned = rotate(neighbours, *turn, interleaved=True)
    back = turned.unflatten(-1, (4, 2)).transpose(-1, -2).flatten(-2)
    assert torch.allclose(back, rotate(x, *turn), atol=1e-6)


def test_a_scaling_that_is_unknown_or_incomplete():
    rope = Position("rope", theta=1e4, rotary_dim=8)
    dynamic = dataclasses.replace(rope, scaling=(("factor", 2.0), ("rope_type", "dynamic")))
    with pytest.raises(ConfigError, match="'dynamic' is not known; known: linear"):
        frequencies(dynamic)
    with pytest.raises(ConfigError, match="'yarn' needs 'original_max_position_embeddings'"):
        frequencies(dataclasses.replace(rope, scaling=(("factor", 2.0), ("rope_type", "yarn"))))


def test_alibi_slopes_as_published():
    assert alibi_slopes(8).tolist() == [2.0**-i for i in range(1, 9)]  # Press et al., section 3
    assert len(set(alibi_slopes(12).tolist())) == 12


def test_rms_norm_by_its_formula():
    x = torch.randn(3, 7)
    norm, gemma = RMSNorm(7, 1e-3), RMSNorm(7, 1e-3, unit_offset=True)
    norm.weight.data.normal_()
    gemma.weight.data = norm.weight.data - 1
    expected = x / (x.pow(2).mean(-1, keepdim=True) + 1e-3).sqrt() * norm.weight
    assert torch.allclose(norm(x), expected, atol=1e-6)
    assert torch.allclose(gemma(x), expected, atol=1e-6)


# ---- mixtures ------------------------------------------------------------------------------------


def test_each_token_gets_the_weighted_sum_of_its_experts():
    model = small("mixtral")
    mixture = model.blocks[0].mlp
    x = torch.randn(2, 5, model.config.hidden)
    out = mixture(x)
    chosen_by, weights_of = mixture.routing.chosen, mixture.routing.weights
    for token, got, chosen, weights in zip(
        x.flatten(0, 1), out.flatten(0, 1), chosen_by, weights_of, strict=True
    ):
        expected = sum(
            w * mixture.experts[int(e)](token) for e, w in zip(chosen, weights, strict=True)
        )
        assert torch.allclose(got, expected, atol=1e-5)


@given(groups=st.sampled_from([2, 4]), top_groups=st.integers(1, 2), seed=st.integers(0, 99))
@settings(max_examples=30, deadline=None)
def test_node_limited_routing_stays_in_its_groups(groups, top_groups, seed):
    moe = Moe(16, 4, 8, scoring="sigmoid", router_bias="choice", groups=groups,
              top_groups=top_groups, scale=2.5)  # fmt: skip
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(20, 16, generator=generator)
    routing = route(logits, moe, torch.randn(16, generator=generator))
    for chosen, weights in zip(routing.chosen, routing.weights, strict=True):
        assert len(set(chosen.tolist())) == 4
        assert len({int(e) * groups // 16 for e in chosen}) <= top_groups
        assert weights.sum() == pytest.approx(2.5, rel=1e-5)
    free = route(logits, dataclasses.replace(moe, groups=1, top_groups=1))
    assert torch.equal(free.chosen.sort().values, logits.topk(4).indices.sort().values)


def test_the_choice_bias_steers_the_choice_and_not_the_weights():
    moe = Moe(4, 1, 8, scoring="sigmoid", router_bias="choice", normalise=False)
    logits = torch.tensor([[2.0, 1.0, 0.0, -1.0]])
    routing = route(logits, moe, torch.tensor([0.0, 0.0, 5.0, 0.0]))
    assert routing.chosen.tolist() == [[2]]
    assert routing.weights.tolist() == [[0.5]]  # the sigmoid of 0, bias or not


def test_the_load_balance_loss_is_least_when_loads_are_even():
    even = torch.full((8, 4), 0.25)
    chosen = torch.arange(16).view(8, 2) % 4
    assert load_balance_loss(Routing(chosen, even[:, :2], even)) == pytest.approx(2.0)
    one = torch.zeros(8, 4).index_fill_(1, torch.tensor([0]), 1.0)
    lopsided = Routing(torch.zeros(8, 1, dtype=torch.long), one[:, :1], one)
    assert load_balance_loss(lopsided) == pytest.approx(4.0)


def test_the_load_balance_loss_equals_transformers():
    mixtral = pytest.importorskip("transformers.models.mixtral.modeling_mixtral")
    logits = torch.randn(50, 6, requires_grad=True)
    ours = load_balance_loss(route(logits, Moe(6, 2, 8)))
    theirs = mixtral.load_balancing_loss_func((logits,), num_experts=6, top_k=2)
    assert ours.item() == pytest.approx(theirs.item(), rel=1e-5)
    (gradient,) = torch.autograd.grad(ours, logits)
    (expected,) = torch.autograd.grad(theirs, logits)
    assert torch.allclose(gradient, expected, atol=1e-7)


def test_the_load_balance_loss_evens_a_router_out():
    torch.manual_seed(0)
    model = small("mixtral")
    mixture, x = model.blocks[0].mlp, torch.randn(1, 64, model.config.hidden)
    with torch.no_grad():
        mixture.router.weight[0] += 0.3 * x.mean((0, 1))  # everyone's favourite
        mixture.router.weight[0] += x[0, 0] / 8
    optimiser = torch.optim.SGD(mixture.router.parameters(), lr=1.0)
    losses = []
    for _ in range(30):
        optimiser.zero_grad()
        mixture(x)
        losses.append(load_balance_loss(mixture.routing))
        losses[-1].backward()
        optimiser.step()
    assert losses[-1] < 0.98 * losses[0]
    assert losses[-1] >= model.config.moe.top_k - 0.05


def test_a_mixture_can_be_copied_after_a_step():
    model = small("mixtral")
    logits = model(some_ids(model))
    assert model.load_balance_loss() > 0
    assert torch.equal(copy.deepcopy(model)(some_ids(model)), logits)
