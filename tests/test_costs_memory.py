"""Memory: states by recipe, the key–value cache as published."""

import pytest
from tokenlife.catalog import model_names, read_reference
from tokenlife.costs import CostError, count_parameters
from tokenlife.costs.memory import (
    RECIPES,
    bytes_of,
    kv_bytes_per_token,
    kv_cache_bytes,
    state_bytes,
)
from tokenlife.transformer import ModelConfig

PUBLISHED = read_reference("06_models_params")
KV = PUBLISHED[PUBLISHED.quantity == "kv_bytes_per_token"]


@pytest.mark.parametrize("row", list(KV.itertuples()), ids=lambda row: row.model)
def test_kv_bytes_equal_the_published(row):
    assert kv_bytes_per_token(ModelConfig.load(row.model)) == row.value


def test_kv_bytes_by_kind_of_attention():
    """By hand: 2 tensors × layers × heads × width × 2 bytes; MLA: latent + rotated part."""
    kv = {name: kv_bytes_per_token(ModelConfig.load(name)) for name in model_names()}
    assert kv["gpt3-175b"] == 2 * 96 * 96 * 128 * 2  # MHA
    assert kv["llama-2-70b"] == 2 * 80 * 8 * 128 * 2  # GQA
    assert kv["falcon-7b"] == 2 * 32 * 1 * 64 * 2  # MQA
    assert kv["deepseek-v2"] == 60 * (512 + 64) * 2  # MLA


def test_a_windowed_cache_stops_growing():
    config = ModelConfig.load("gpt-oss-20b")
    per_layer = kv_bytes_per_token(config) // config.layers
    full = 12 * per_layer  # every other layer sees all
    assert kv_cache_bytes(config, 1, 128) == 128 * kv_bytes_per_token(config)
    assert kv_cache_bytes(config, 1, 1129) - kv_cache_bytes(config, 1, 129) == 1000 * full
    assert kv_cache_bytes(config, 3, 500) == 3 * kv_cache_bytes(config, 1, 500)


def test_recipes():
    gpt2 = ModelConfig.load("gpt2")
    assert RECIPES["mixed"].per_parameter == 16  # ZeRO: 2 + 2 + 12
    assert RECIPES["mixed, float32 gradients"].per_parameter == 18
    for name, recipe in RECIPES.items():
        assert sum(state_bytes(gpt2, name).values()) == recipe.per_parameter * count_parameters(
            gpt2
        )


def test_mistakes_get_one_clear_line():
    gpt2 = ModelConfig.load("gpt2")
    with pytest.raises(CostError, match="recipe 'int4' is not known; known: float32, mixed"):
        state_bytes(gpt2, "int4")
    with pytest.raises(CostError, match="dtype 'int3' is not known; known: fp32"):
        bytes_of("int3")
    with pytest.raises(CostError, match="2000 tokens are more than the 1024"):
        kv_cache_bytes(gpt2, 1, 2000)
