"""The explorer of chapter 15, in a real browser: its times equal the library's closed forms."""

import json
import random
from pathlib import Path

import pytest
from tokenlife.collectives import algorithms

SCRIPT = Path(__file__).parents[1] / "_static" / "explorer.js"


def triple(algorithm, ranks: int) -> list[float]:
    terms = algorithm.terms(ranks, 1.0, **algorithm.options)
    return [float(terms.rounds), float(terms.sent_bytes), float(terms.reduced_bytes)]


def test_the_page_prices_as_the_library_does(page):
    draw = random.Random(15)
    for algorithm in algorithms("all_reduce"):
        for _ in range(8):
            ranks, size = 2 ** draw.randrange(1, 15), 2 ** draw.randrange(35)
            if not algorithm.supports(ranks, **algorithm.options):
                continue
            alpha, beta, gamma = (10 ** draw.uniform(-12, -4) for _ in range(3))
            at = {"alpha": alpha, "beta": beta, "gamma": gamma, "size": size}
            there = page.evaluate(
                "([ways, at]) => tokenlife.collective.time(ways, at)",
                [[triple(algorithm, ranks), [1e9, 1e9, 1e9]], at],
            )
            terms = algorithm.terms(ranks, size, **algorithm.options)
            assert there == pytest.approx(float(terms.time_s(alpha, beta, gamma)), rel=1e-12)


def test_the_winner_changes_where_the_times_cross(page):
    forms = {"few rounds": [[1, 4, 0]], "few bytes": [[9, 2, 0]]}
    at = {"alpha": 1, "beta": 1, "gamma": 0, "size": 0}
    runs = page.evaluate(
        "([forms, at]) => tokenlife.collective.winners(forms, at, [1, 2, 3, 5, 6])", [forms, at]
    )
    assert runs == [["few rounds", 1, 3], ["few bytes", 5, 6]]  # equal at size 4


def test_the_sliders_move_the_verdict(page):
    held = {
        "ranks": [2, 64],
        "collectives": {
            "all-reduce": {
                "few rounds": [[[1, 4, 0]], [[6, 6, 0]]],
                "few bytes": [[[2, 1, 0]], None],
            }
        },
    }
    script = f'<script type="application/json">{json.dumps(held)}</script>'
    page.set_content(f"<div data-explorer>{script}</div><script>{SCRIPT.read_text()}</script>")
    page.wait_for_selector("output")
    assert page.locator("tbody tr").count() == 1  # one of them does not serve 64 ranks
    assert "few rounds at every size" in page.locator("p").inner_text()
    page.get_by_label("ranks").focus()
    page.keyboard.press("ArrowLeft")
    assert page.locator("tbody tr").count() == 2
    assert "few rounds up to" in page.locator("p").inner_text()
    first = page.locator("tbody tr th").first
    page.get_by_label("S, buffer of a rank").focus()
    page.keyboard.press("End")
    assert first.inner_text() == "few bytes"
    page.keyboard.press("Home")
    assert first.inner_text() == "few rounds"
