"""A comparison of a router's scores with zero keeps the routing known on a paper GPU, as DeepEP's users need it."""

from pathlib import Path
from typing import Any

import pytest

from support.paper_runs import read_answer

POSITIVE = ("sigmoid", "softmax")


@pytest.fixture(scope="module")
def answer(paper_library: Path) -> dict[str, Any]:
    return read_answer(paper_library, "router_scores.py")


@pytest.mark.slow
def test_only_scores_that_are_positive_for_sure_are_taken_not_to_be_zero(answer: dict[str, Any]) -> None:
    assert {name for name, flags in answer["known"].items() if flags == [True, True]} == {*POSITIVE}
    assert {name for name, flags in answer["known"].items() if any(flags)} == {*POSITIVE}
    assert answer["zeros"] == [False, True]
    assert [kind for note, kind in answer["notes"].items() if "not to be zero" in note] == ["value"]


@pytest.mark.slow
def test_the_calls_of_torchtitan_s_deepep_dispatcher_get_the_rows_of_balanced_routing(answer: dict[str, Any]) -> None:
    """16 tokens choose 2 of 8 experts on 4 ranks. So each of the 2 experts here receives 4 rows of each rank."""
    layer = answer["exchange"]
    assert layer["tokens per expert"] == [16, 16]
    assert layer["local choices"] == sum(layer["tokens per expert"])
    rows, received, weights, back, again = layer["rows"]
    assert rows[0] == received[0] == weights[0] == again[0]
    assert back == [16, 4]
    size, buffer_size, tokens = layer["size"]
    assert 0 < size <= buffer_size
    assert tokens == 16
