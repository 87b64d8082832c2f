"""CUDA graphs: each replay repeats the counts of its capture, and the capture itself counts nothing."""

from pathlib import Path

from support.paper_runs import read_answer


def test_a_graphed_layer_counts_as_an_eager_one(paper_library: Path) -> None:
    answer = read_answer(paper_library, "graphs.py")
    eager = answer["eager"]
    assert ["forward", 1, 8] in eager["collectives"]
    assert ["aten::erf", "forward", 1] in eager["launches"]
    for step in answer["graphed"]:
        assert step["collectives"] == eager["collectives"]
        assert [row for row in step["launches"] if row[1] == "forward"] == [
            row for row in eager["launches"] if row[1] == "forward"
        ]
        assert [row[:2] for row in step["launches"]] == [row[:2] for row in eager["launches"]]
    nothing, twice = answer["within"]
    assert nothing == {"launches": [], "collectives": [], "capturing": [True, False]}
    assert twice == {"launches": [["aten::erf", "forward", 2]], "collectives": [["forward", 2, 24]]}
    assert "not captured during the counted steps" in answer["before"]
    assert any("a CUDA graph was captured" in note for note in answer["notes"])
