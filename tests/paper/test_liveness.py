"""What is planted in a phase is seen there: operators and collectives, also on autograd's thread and recomputed."""

from pathlib import Path

from paper.paper_runs import read_answer

BLOCKS = ("blocks.0", "blocks.1")
PLANTED = [
    *(["aten::erf", "forward", block, 1] for block in BLOCKS),
    *(["aten::erfc", "backward", block, 1] for block in BLOCKS),
    ["aten::erfinv", "optimizer", "", 4],
]
RECOMPUTED = [["aten::erf", "backward", block, 1] for block in BLOCKS]


def test_what_is_planted_is_seen_in_its_phase_and_module(paper_library: Path) -> None:
    answer = read_answer(paper_library, "liveness.py")
    assert answer["threads"] == ["autograd"]
    assert answer["None"] == {"launches": sorted(PLANTED), "collectives": 5}
    for reentrant in ("False", "True"):
        assert answer[reentrant] == {"launches": sorted(PLANTED + RECOMPUTED), "collectives": 7}, reentrant
