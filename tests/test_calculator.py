"""The page's calculator, in a real browser: its counts equal the library's."""

import json
import random
from pathlib import Path

import pytest
from tokenlife.costs import active_parameters, count_parameters, forward_flops, training_flops
from tokenlife.costs.memory import kv_bytes_per_token, state_bytes
from tokenlife.transformer import ModelConfig

SCRIPT = Path(__file__).parents[1] / "_static" / "tokenlife.js"


def random_shape(draw: random.Random) -> dict:
    heads = draw.randrange(1, 129)
    experts = draw.choice((0, 2, 8, 64, 256))
    return {
        "layers": draw.randrange(1, 129),
        "hidden": 64 * draw.randrange(1, 257),
        "heads": heads,
        "kvHeads": draw.choice([n for n in range(1, heads + 1) if heads % n == 0]),
        "headDim": 8 * draw.randrange(1, 33),
        "width": 64 * draw.randrange(1, 1025),
        "experts": experts,
        "topK": draw.randrange(1, max(2, min(16, experts) + 1)),
        "vocab": 128 * draw.randrange(1, 2049),
        "tied": draw.choice((True, False)),
        "length": 2 ** draw.randrange(6, 18),
        "bytesPerNumber": draw.choice((1, 2, 4)),
    }


def library_counts(shape: dict) -> dict:
    experts = {"num_local_experts": shape["experts"], "num_experts_per_tok": shape["topK"]}
    config = ModelConfig.from_hf(
        {
            "model_type": "mixtral" if shape["experts"] else "llama",
            "num_hidden_layers": shape["layers"],
            "hidden_size": shape["hidden"],
            "num_attention_heads": shape["heads"],
            "num_key_value_heads": shape["kvHeads"],
            "head_dim": shape["headDim"],
            "intermediate_size": shape["width"],
            "vocab_size": shape["vocab"],
            "tie_word_embeddings": shape["tied"],
            "max_position_embeddings": shape["length"],
            **(experts if shape["experts"] else {}),
        },
        "sliders",
    )
    return {
        "parameters": count_parameters(config),
        "active": active_parameters(config),
        "weightBytes": count_parameters(config) * shape["bytesPerNumber"],
        "trainingStateBytes": sum(state_bytes(config, "mixed").values()),
        "kvBytesPerToken": kv_bytes_per_token(config, shape["bytesPerNumber"]),
        "forwardFlops": forward_flops(config, 1, shape["length"]),
        "trainingFlops": training_flops(config, 1, shape["length"]).total,
    }


def test_the_page_counts_what_the_library_counts(page):
    draw = random.Random(4)
    shapes = [random_shape(draw) for _ in range(60)]
    shown = page.evaluate("shapes => shapes.map(tokenlife.count)", shapes)
    for shape, there in zip(shapes, shown, strict=True):
        for key, value in library_counts(shape).items():
            # JavaScript counts in doubles: exact up to 2^53, to 16 figures beyond.
            assert there[key] == value or (
                value > 2**53 and there[key] == pytest.approx(value, rel=1e-14)
            ), (key, shape)


def test_the_sliders_move_the_numbers(page):
    preset = {
        "layers": 32, "hidden": 4096, "heads": 32, "kvHeads": 8, "headDim": 128, "width": 14336,
        "experts": 0, "topK": 1, "vocab": 128256, "tied": False, "length": 8192,
    }  # fmt: skip
    held = json.dumps({"Llama 3.1 8B": preset})
    script = f'<script type="application/json">{held}</script>'
    page.set_content(f"<div data-calculator>{script}</div><script>{SCRIPT.read_text()}</script>")
    page.wait_for_selector("output")
    cells = page.locator("td")
    assert cells.first.get_attribute("title") == "8,030,261,248"
    assert cells.first.inner_text() == "8.03 G"
    page.get_by_label("layers").focus()
    page.keyboard.press("ArrowRight")
    assert page.locator("select").input_value() == ""
    bigger = library_counts({**preset, "layers": 33, "bytesPerNumber": 2})["parameters"]
    assert cells.first.get_attribute("title") == f"{bigger:,}"
    page.get_by_label("query heads").focus()
    page.keyboard.press("ArrowLeft")  # 31 heads: 8 key-value heads no longer divide them
    assert page.get_by_label("key–value heads").get_attribute("aria-valuetext") == "1"
