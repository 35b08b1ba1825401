"""Training a small GPT: our decoder's tokens per second beside the same architecture elsewhere.

nanoGPT's model is GPT-2's: learned positions, LayerNorm before each part, a GELU MLP of four times
the width, one table for embedding and head. It is built here twice more: out of torch's own
``nn.TransformerEncoderLayer`` with a causal mask, and as ``transformers``' GPT2LMHeadModel. Same
shape, same batch, same loss, same fused AdamW, no dropout.
"""

import harness
import torch
from tokenlife.transformer import ModelConfig
from tokenlife.transformer.model import Decoder
from tokenlife.transformer.train import TrainingRecipe, loss_sum, make_optimiser
from torch import nn

BATCH, LENGTH, STEPS, ROUNDS = 8, 256, 4, 7


class EncoderGPT(nn.Module):
    """GPT-2 out of torch's encoder layers."""

    def __init__(self, config: ModelConfig):
        super().__init__()
        self.tokens = nn.Embedding(config.vocab, config.hidden)
        self.places = nn.Embedding(config.positions, config.hidden)
        layer = nn.TransformerEncoderLayer(
            config.hidden,
            config.attention.heads,
            config.mlp.width,
            dropout=0.0,
            activation=nn.GELU(approximate="tanh"),
            batch_first=True,
            norm_first=True,
        )
        self.layers = nn.TransformerEncoder(layer, config.layers, nn.LayerNorm(config.hidden))
        mask = nn.Transformer.generate_square_subsequent_mask(config.positions)
        self.register_buffer("mask", mask)
        nn.init.normal_(self.tokens.weight, std=0.02)

    def forward(self, ids):
        length = ids.shape[1]
        x = self.tokens(ids) + self.places.weight[:length]
        x = self.layers(x, mask=self.mask[:length, :length], is_causal=True)
        return x @ self.tokens.weight.T


class HuggingFaceGPT(nn.Module):
    """GPT-2 of the transformers library."""

    def __init__(self, config: ModelConfig):
        super().__init__()
        from transformers import GPT2Config, GPT2LMHeadModel

        self.inner = GPT2LMHeadModel(
            GPT2Config(
                vocab_size=config.vocab,
                n_positions=config.positions,
                n_embd=config.hidden,
                n_layer=config.layers,
                n_head=config.attention.heads,
                resid_pdrop=0.0,
                embd_pdrop=0.0,
                attn_pdrop=0.0,
                bos_token_id=None,
                eos_token_id=None,
            )
        )

    def forward(self, ids):
        return self.inner(ids, use_cache=False).logits


def steps(model: nn.Module, config: ModelConfig):
    """Return a function that trains the model for a few steps."""
    torch.manual_seed(0)
    ids = torch.randint(config.vocab, (BATCH, LENGTH + 1))
    optimiser = make_optimiser(model, TrainingRecipe(steps=1))

    def run():
        for _ in range(STEPS):
            optimiser.zero_grad(set_to_none=True)
            (loss_sum(model(ids[:, :-1]), ids[:, 1:]) / ids[:, 1:].numel()).backward()
            optimiser.step()

    return run


def main():
    config = ModelConfig.load("running-gpt")
    for name, peer in (
        ("TransformerEncoderLayer", EncoderGPT),
        ("transformers GPT-2", HuggingFaceGPT),
    ):
        ours, theirs = Decoder(config), peer(config).train()
        counts = [sum(p.numel() for p in model.parameters()) for model in (ours, theirs)]
        assert counts[0] == counts[1], f"{counts[0]:,} and {counts[1]:,} parameters"
        run, run_peer = steps(ours, config), steps(theirs, config)
        run(), run_peer()  # warm up
        ours_s, peer_s = harness.side_by_side(run, run_peer, ROUNDS)
        tokens = STEPS * BATCH * LENGTH
        what = f"small GPT, training, {tokens / ours_s:,.0f} tokens/s"
        harness.row(what, ours_s, peer_s, name, "≥ 1.0×")


if __name__ == "__main__":
    main()
