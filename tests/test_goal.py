"""GOAL text, judged by a reader and a LogGP replay of its own."""

import re
from collections import defaultdict

import pytest
from test_collectives_cost import linear_all_to_all
from tokenlife.cli import main
from tokenlife.collectives import algorithms, build, ring_all_reduce
from tokenlife.collectives.cost import LogGP, price
from tokenlife.interop.goal import goal_text

OPERATION = re.compile(r"l(\d+): (?:(send|recv) (\d+)b (?:to|from) (\d+) tag (\d+)|calc (\d+))")
REQUIRES = re.compile(r"l(\d+) requires l(\d+)")
MIB = 1 << 20


def read(text: str) -> list[dict]:
    """One dictionary for each rank: label → (verb, size, peer, tag, required labels)."""
    head, *blocks = re.split(r"^rank (?=\d+ \{$)", text, flags=re.MULTILINE)
    assert int(re.fullmatch(r"num_ranks (\d+)\n?", head)[1]) == len(blocks)
    ranks = []
    for number, block in enumerate(blocks):
        first, *lines, last = block.strip().splitlines()
        assert first == f"{number} {{" and last == "}"
        ops = {}
        for line in lines:
            if match := OPERATION.fullmatch(line):
                label, verb, size, peer, tag, calc = match.groups()
                fields = ("calc", int(calc), 0, 0) if calc else (verb, *map(int, (size, peer, tag)))
                assert label not in ops
                ops[label] = (*fields, set())
            else:
                label, other = REQUIRES.fullmatch(line).groups()
                assert other in ops, "an operation requires a later one"
                ops[label][4].add(other)
        ranks.append(ops)
    return ranks


def replay(ranks: list[dict], L: int, G: int) -> int:
    """Nanoseconds until all is done, with L and G and no overhead; fails where it cannot go on."""
    done, at_wire = [{} for _ in ranks], {}
    left = [dict(ops) for ops in ranks]
    while any(left):
        moved = False
        for rank, ops in enumerate(left):
            for label, (verb, size, peer, tag, needs) in list(ops.items()):
                if not needs <= done[rank].keys():
                    continue
                ready = max((done[rank][n] for n in needs), default=0)
                if verb == "send":
                    at_wire[rank, peer, tag] = ready + L + max(size - 1, 0) * G
                    done[rank][label] = ready
                elif verb == "calc":
                    done[rank][label] = ready + size
                elif (peer, rank, tag) in at_wire:
                    done[rank][label] = max(ready, at_wire[peer, rank, tag])
                else:
                    continue
                del ops[label]
                moved = True
        assert moved, "deadlock"
    return max((t for times in done for t in times.values()), default=0)


def test_a_ring_replays_to_the_nanosecond():
    text = goal_text(ring_all_reduce(8), MIB, 1)
    assert replay(read(text), L=2000, G=1) == 1_862_994
    assert replay(read(goal_text(linear_all_to_all(8), 8 * MIB, 1)), 2000, 1) == 7_354_025


def test_adding_becomes_calculations():
    schedule = ring_all_reduce(4)
    links = LogGP(1e-6, 0, 0, 1e-9, gamma_s_per_B=2e-9)
    ours_s = price(schedule, 4096, 1, links).time_s
    text = goal_text(schedule, 4096, 1, gamma_s_per_B=2e-9)
    assert text.count("calc 2048") == 4 * 3
    assert replay(read(text), L=1000, G=1) == round(ours_s * 1e9)


@pytest.mark.parametrize("each", algorithms(), ids=lambda a: f"{a.kind}-{a.name}")
@pytest.mark.parametrize("ranks", [1, 2, 5, 8])
def test_every_export_sends_the_bytes_of_its_schedule_and_ends(each, ranks):
    if not each.supports(ranks, **each.options):
        pytest.skip("does not work for so many ranks")
    schedule = build(each.kind, each.name, ranks)
    read_back = read(goal_text(schedule, items=101, item_bytes=4))
    sent = [sum(op[1] for op in ops.values() if op[0] == "send") for ops in read_back]
    assert sent == schedule.bytes_sent_per_node(101, 4).tolist()
    ends = defaultdict(list)
    for rank, ops in enumerate(read_back):
        for verb, size, peer, tag, _ in ops.values():
            pair = (rank, peer) if verb == "send" else (peer, rank)
            ends[(*pair, tag, size)].append(verb)
    assert all(sorted(verbs) == ["recv", "send"] for verbs in ends.values())
    waits_for_all = price(schedule, 101, 4, LogGP(2e-6, 0, 0, 1e-9)).time_s
    assert replay(read_back, L=2000, G=1) <= round(waits_for_all * 1e9) + 1


def test_the_command_writes_a_file(tmp_path, capsys):
    words = ["all_reduce", "--algorithm", "ring", "--ranks", "4", "--bytes", "400", "--goal"]
    assert main(["collective", *words, str(tmp_path / "ring.goal")]) == 0
    assert (tmp_path / "ring.goal").read_text() == goal_text(ring_all_reduce(4), 400, 1) + "\n"
    assert main(["collective", *words, str(tmp_path / "no" / "ring.goal")]) == 2
    assert capsys.readouterr().err.count("\n") == 1
