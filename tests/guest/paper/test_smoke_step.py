"""The step of the smoke model waits for the device once per MoE layer, and runs no kernel that sorts or collides."""

from pathlib import Path
from typing import Any

import pytest

from support.guest_runs import MIXTRAL, QWEN, TINY, ask
from support.paper_runs import read_answer

LAYERS = 2
SMALL = TINY | {"layers": LAYERS}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "ep": (QWEN, {"world": 2, "ep": 2, "dispatcher": "alltoall"}),
    "ep-dp": (MIXTRAL, {"world": 4, "ep": 2, "dispatcher": "alltoall"}),
    "natural": (QWEN, {"world": 2, "ep": 2, "dispatcher": "alltoall", "routing": "natural"}),
    "allgather": (QWEN, {"world": 2, "ep": 2, "dispatcher": "allgather"}),
    "one rank": (QWEN, {"world": 1, "ep": 1, "dispatcher": "alltoall"}),
}
READS_PER_LAYER = {"one rank": 0}
"""Host reads of one MoE layer in forward; 1 if the case is not listed. Without an exchange nothing is read."""

WAITING = {"bincount", "nonzero", "masked_select", "_unique2", "unique_consecutive"}
"""Operators for which a GPU's kernels wait until the host knows the size of the result."""
SORTING = {"index_put", "index_put_", "_index_put_impl_"}
"""Operators that sort their indices on a GPU, because indices may repeat."""
COPYING = {"index_copy"}
"""Operators that copy their first argument before they write."""
ATOMIC = {"index_add", "index_add_"}
"""Operators that add with atomic operations on a GPU. Their sums of bf16 values depend on the order of the threads."""
SUMS_OF_PARTS = "allgather"
"""Dispatcher whose ranks have some of a token's rows and not all, so that their number differs between tokens."""


@pytest.fixture(scope="module")
def steps(tmp_path_factory: pytest.TempPathFactory, paper_library: Path) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("smoke-steps")
    requests = [
        ask(folder, name, shape, "smoke", geometry=SMALL, **settings) for name, (shape, settings) in CASES.items()
    ]
    return dict(zip(CASES, read_answer(paper_library, "smoke_step.py", *requests), strict=True))


@pytest.mark.parametrize("case", CASES)
def test_the_host_reads_once_per_layer_in_forward_and_never_in_backward(steps: dict[str, Any], case: str) -> None:
    reads = READS_PER_LAYER.get(case, 1)
    expected = {f"forward layers.{layer}.moe": reads for layer in range(LAYERS)} if reads else {}
    assert {key: n for key, n in steps[case]["host_reads"].items() if not key.startswith("optimizer")} == expected


@pytest.mark.parametrize("case", CASES)
def test_no_operator_waits_sorts_copies_or_adds_atomically(steps: dict[str, Any], case: str) -> None:
    wasteful = WAITING | SORTING | COPYING | (ATOMIC if case != SUMS_OF_PARTS else set())
    names = {key.split("aten::")[-1] for key in steps[case]["launches"] if "aten::" in key}
    assert "_grouped_mm" in names
    assert names & wasteful == set()


def test_gradients_are_added_in_place_as_in_a_cuda_build(steps: dict[str, Any]) -> None:
    """A CPU build runs ``add_`` as ``add.out`` into its own argument."""
    launches = steps["ep"]["launches_by_module"]
    assert launches["backward aten::add_ layers.0.attention"] == 2
    assert "backward aten::add layers.0.attention" not in launches
