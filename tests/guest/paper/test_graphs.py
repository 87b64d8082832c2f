"""CUDA graphs: each replay repeats the counts of its capture, and the capture itself counts nothing."""

from pathlib import Path

from support.paper_runs import read_answer


def test_a_replay_counts_what_its_capture_ran_and_a_capture_counts_nothing(paper_library: Path) -> None:
    answer = read_answer(paper_library, "graphs.py")
    nothing, replayed = answer["within"]
    assert nothing == {"launches": [], "collectives": [], "capturing": [True, False]}
    assert replayed == {
        "launches": [["aten::erf", "backward", 1], ["aten::erf", "forward", 1]],
        "collectives": [["backward", 1, 12], ["forward", 1, 12]],
    }
    assert "not captured during the counted steps" in answer["before"]
    assert any("a CUDA graph was captured" in note for note in answer["notes"])
