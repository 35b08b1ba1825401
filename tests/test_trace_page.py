"""The trace page's module, in a real browser: its tokens and its ledger equal the library's."""

import random
from pathlib import Path

import pytest
from tokenlife.jobs import trace
from tokenlife.parallel import Plan
from tokenlife.publish.site.tracer import MODELS, MTUS, knowledge
from tokenlife.tokenizer import vocabularies

SCRIPT = Path(__file__).parents[1] / "_static" / "trace.js"
TORTURE = [
    "It'S we'RE I'Ll 'ſ they'd", "a\u00a0b\u2003c\u200bd\ufeffe", "\t\n  \r\n x  ", "1234567 ١٢٣ ½",
    "don’t 😀👩‍👩‍👧 é e\u0301", "<|endoftex|>", "日本語のテキスト。", "\x85\x1c\x1f.", "ßSſ ΑΣ ΰ",
]  # fmt: skip


@pytest.fixture(scope="module")
def known(page):
    known = knowledge()
    page.evaluate("(known) => { window.known = known; }", known)
    page.evaluate("() => { window.encode = tokenlife.trace.encoder(known.vocabulary); }")
    return known


def words(draw: random.Random) -> str:
    kinds = [
        lambda: "".join(draw.choices("etaoin shrdlu\n'.,ABC", k=draw.randrange(1, 60))),
        lambda: "".join(chr(draw.randrange(0x20, 0xD7FF)) for _ in range(draw.randrange(1, 20))),
        lambda: draw.choice(TORTURE),
        lambda: str(draw.randrange(10**12)),
    ]
    return " ".join(draw.choice(kinds)() for _ in range(draw.randrange(1, 5)))


def ids_there(page, texts: list[str]) -> list[list[int]]:
    return page.evaluate("(texts) => texts.map((t) => encode(t).flatMap((p) => p.ids))", texts)


def test_the_page_cuts_and_merges_as_the_library_does(page, known):
    draw = random.Random(23)
    texts = [*TORTURE, *(words(draw) for _ in range(200))]
    book = vocabularies.load("book")
    for text, ids in zip(texts, ids_there(page, texts), strict=True):
        assert ids == book.encode_ordinary(text), text
    pieces = page.evaluate("(t) => encode(t).map((p) => p.piece)", "It's 1,448 bytes.")
    assert pieces == book.pretokenizer.split("It's 1,448 bytes.")


def test_two_hundred_ledgers_are_the_librarys_to_the_byte(page, known):
    draw = random.Random(200)
    for case in range(200):
        text, model = words(draw), draw.choice(MODELS)
        ranks, mtu = draw.choice((2, 3, 4, 5, 7, 8, 12)), draw.choice((*MTUS, 576, 4000, 68))
        if case < len(MODELS):
            model, ranks, mtu = MODELS[case], 64, 1500
        here = trace(
            text, model=model, plan=Plan(dp=ranks, recipe="float32"), vocabulary="book", mtu=mtu
        )
        there = page.evaluate(
            "([job, model]) => tokenlife.trace.ledger(job, known.models[model], known.wire)",
            [
                {
                    "textBytes": len(text.encode()),
                    "tokens": here.encoding.n_tokens,
                    "ranks": ranks,
                    "mtu": mtu,
                },
                model,
            ],
        )
        ours = [
            {"level": row["level"], "bytes": row["bytes"], "overheads": row["overheads"]}
            for row in here.ledger.to_list()
        ]
        assert there == ours, (text, model, ranks, mtu)
