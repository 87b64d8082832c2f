"""Planted operators and collectives are counted in their phase, also on autograd's thread and in recomputation."""

from pathlib import Path

from support.paper_runs import read_answer

BLOCKS = ("blocks.0", "blocks.1")
PLANTED = [
    *(["aten::erf", "forward", block, 1] for block in BLOCKS),
    *(["aten::erfc", "backward", block, 1] for block in BLOCKS),
    ["aten::erfinv", "optimizer", "", 4],
]
RECOMPUTED = [["aten::erf", "backward", block, 1] for block in BLOCKS]

# Phase, module, count, bytes: all-reduces of two numbers in forward, three in backward, five in the optimizer.
REDUCED = [
    *(["forward", block, 1, 8] for block in BLOCKS),
    *(["backward", block, 1, 12] for block in BLOCKS),
    ["optimizer", "", 1, 20],
]
REDUCED_AGAIN = [
    *(["forward", block, 1, 8] for block in BLOCKS),
    *(["backward", block, 2, 20] for block in BLOCKS),
    ["optimizer", "", 1, 20],
]


def test_planted_operators_and_collectives_are_counted_in_their_phase_and_module(paper_library: Path) -> None:
    answer = read_answer(paper_library, "liveness.py")
    assert answer["threads"] == ["autograd"]
    assert answer["paper"]["None"] == {"launches": sorted(PLANTED), "collectives": sorted(REDUCED)}
    for reentrant in ("False", "True"):
        expected = {"launches": sorted(PLANTED + RECOMPUTED), "collectives": sorted(REDUCED_AGAIN)}
        assert answer["paper"][reentrant] == expected, reentrant
