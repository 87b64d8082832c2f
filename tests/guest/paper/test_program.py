"""The Program of a step on a paper GPU: its FLOPs, peak of memory, and waits of the host. FLOPs are compared with
the closed formula of docs/paper-gpu.md and with torch's own counter, the peak with the same step on host tensors.
"""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from regbot.workloads.shapes import load_shape
from support.guest_runs import QWEN, ask
from support.paper_runs import read_answer

CPU = load_shape(QWEN).variant("cpu").geometry
FLOAT_BYTES = 4
Flops = dict[tuple[str, str], int]
"""FLOPs by class and phase."""


@pytest.fixture(scope="module")
def answer(tmp_path_factory: pytest.TempPathFactory, paper_library: Path) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("step-program")
    ask(folder, "one", world=1, ep=1, dispatcher="alltoall")
    ask(folder, "half", world=4, ep=2, dispatcher="alltoall", dtype="bfloat16")
    answer: dict[str, Any] = read_answer(paper_library, "step_program.py", folder)
    return answer


def forward_flops(dtype: str) -> dict[str, int]:
    """The formula of docs/paper-gpu.md. float32 has neither flash attention nor a grouped product."""
    tokens, query, key = CPU.tokens, CPU.heads * CPU.head_dim, CPU.kv_heads * CPU.head_dim
    attention = 4 * tokens * CPU.sequence * query * CPU.layers
    grouped = 6 * tokens * CPU.top_k * CPU.hidden * CPU.expert_width * CPU.layers
    projections = 2 * tokens * CPU.hidden * (2 * query + 2 * key)
    router_and_sum = 2 * tokens * CPU.hidden * (CPU.experts + CPU.top_k)
    matmul = CPU.layers * (projections + router_and_sum) + 2 * tokens * CPU.hidden * CPU.vocabulary
    if dtype == "float32":
        return {"matmul": matmul + attention + grouped}
    return {"matmul": matmul, "attention": attention, "grouped": grouped}


def step_flops(dtype: str) -> Flops:
    """Backward has two products for each of forward. Flash attention computes the scores once more."""
    flops: Flops = {}
    for name, forward in forward_flops(dtype).items():
        flops[name, "forward"] = forward
        flops[name, "backward"] = 2 * forward + (forward // 2 if name == "attention" else 0)
    return flops


def sum_flops(program: dict[str, Any], field: str = "flops") -> Flops:
    sums: Counter[tuple[str, str]] = Counter()
    for row in program["rows"]:
        sums[row["flop_class"], row["phase"]] += row[field]
    return {key: flops for key, flops in sums.items() if flops}


@pytest.mark.parametrize(("name", "dtype"), [("one", "float32"), ("half", "bfloat16")])
def test_flops_equal_the_closed_formula_by_class_and_phase(answer: dict[str, Any], name: str, dtype: str) -> None:
    program = answer["traces"][name]
    assert sum_flops(program) == step_flops(dtype)
    assert program["flops"] == sum(program["flops_by"].values()) == sum(step_flops(dtype).values())
    assert (program["recomputed_flops"], program["without_formula"]) == (0, {})


@pytest.mark.parametrize("name", ["reentrant", "checkpoint"])
def test_recompute_adds_the_forward_of_the_blocks_to_backward(answer: dict[str, Any], name: str) -> None:
    program, expected = answer["traces"][name], step_flops("bfloat16")
    repeated = forward_flops("bfloat16")
    repeated["matmul"] -= 2 * CPU.tokens * CPU.hidden * CPU.vocabulary  # the head is in no block
    if name == "checkpoint":  # it stops at the last tensor that backward needs, before the sum of each token's rows
        repeated["matmul"] -= 2 * CPU.tokens * CPU.hidden * CPU.top_k * CPU.layers
    for flop_class, flops in repeated.items():
        expected[flop_class, "backward"] += flops
    assert sum_flops(program) == expected
    assert sum_flops(program, "recomputed_flops") == {(key, "backward"): flops for key, flops in repeated.items()}
    assert program["recomputed_flops"] == sum(repeated.values())


def test_flops_of_products_and_of_a_real_step_equal_those_of_torch_s_own_counter(answer: dict[str, Any]) -> None:
    assert {name: ours for name, (ours, _) in answer["products"].items()} == {
        name: theirs for name, (_, theirs) in answer["products"].items()
    }
    assert 0 not in answer["products"]["mm"]
    assert answer["traces"]["one"]["flops"] == answer["host"]["flops"]


def test_the_peak_equals_that_of_the_same_step_on_host_tensors(answer: dict[str, Any]) -> None:
    """A host decomposes the RMSNorms, and keeps the normalised rows of each for backward."""
    widths = 2 * CPU.hidden + (CPU.heads + CPU.kv_heads) * CPU.head_dim  # before attention and MoE; query and key
    normalised = CPU.layers * CPU.tokens * widths * FLOAT_BYTES
    program = answer["traces"]["one"]
    assert program["peak_bytes"] + normalised == answer["host"]["peak_bytes"]
    assert sum(program["live_by"].values()) == program["peak_bytes"] == max(size for _, size in program["live_curve"])
    assert program["peak_phase"] == "backward"
    assert program["peak_where"] == "layers.1.moe.experts"


WAITS = {
    "item": "read", "tolist": "read", "cpu": "read", "nonzero": "size", "where of a mask": "size",
    "rows of a mask": "size", "write of rows by a mask": "size", "masked_select": "size", "unique": "size",
    "bincount": "size", "repeat_interleave": "size", "synchronize": "synchronize", "tensor of the host": "synchronize",
    "synchronize a stream": "synchronize", "synchronize an event": "event",
}  # fmt: skip
"""Kind of the single wait of each operation. The others do not wait."""


def test_what_an_earlier_program_has_left_is_none_of_the_next_ones_memory(answer: dict[str, Any]) -> None:
    first, again = answer["traces"]["half"], answer["traces"]["again"]
    assert again["live_by"] == first["live_by"]
    assert again["peak_bytes"] == first["peak_bytes"]


def test_every_wait_of_the_host_is_counted_once_with_its_kind(answer: dict[str, Any]) -> None:
    expected = {name: [[WAITS[name], "forward", 1]] if name in WAITS else [] for name in answer["waits"]}
    assert answer["waits"] == expected


def test_more_work_and_more_waits_than_the_layer_needs_are_seen(answer: dict[str, Any]) -> None:
    program, good = answer["traces"]["mistakes"], answer["traces"]["half"]
    assert program["flops_by"]["grouped"] == 8 * good["flops_by"]["grouped"]
    added = Counter({(wait["kind"], wait["where"]): wait["count"] for wait in program["waits"]})
    added.subtract({(wait["kind"], wait["where"]): wait["count"] for wait in good["waits"]})
    experts = [f"layers.{layer}.moe.experts" for layer in range(CPU.layers)]
    assert {key: count for key, count in added.items() if count} == {
        **{("size", where): 2 for where in experts},
        **{("synchronize", where): 1 for where in experts},
    }
    assert program["launches"] > good["launches"]
    assert program["peak_bytes"] > good["peak_bytes"]
