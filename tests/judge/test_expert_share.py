"""The share of the routed experts in a timed step."""

import pytest

from regbot.judge.expert_share import find_expert_share
from regbot.workloads.shapes import load_shape
from support.timed_builder import PLAN, slot, timed_run


def share(variant: str = "cpu", entry: str = PLAN.entry, adapter: str = "smoke") -> float | None:
    run = timed_run(slot(1, 0, "base"), 0.1, adapter=adapter)
    return find_expert_share(PLAN.model_copy(update={"variant": variant, "entry": entry}), [run])


@pytest.mark.parametrize("variant", ["cpu", "cpu-skewed", "smoke", "smoke-moe"])
def test_it_is_the_number_of_the_shape_and_variant(variant: str) -> None:
    assert share(variant) == load_shape("qwen3-30b-a3b@1").variant(variant).geometry.expert_flops_share


@pytest.mark.parametrize(
    "case",
    [
        {"variant": "cpu-dense"},
        {"adapter": "command"},
        {"entry": "qwen3-30b-a3b@99/ep"},
        {"entry": "some/thing"},
    ],
)
def test_it_is_unknown_for_models_without_experts_or_without_a_shape(case: dict[str, str]) -> None:
    assert share(**case) is None
