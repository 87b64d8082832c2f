"""Find the share of the routed experts in the model FLOPs of a step. If the experts become slower by some percentage,
the step becomes slower by about this share of it. A small share therefore hides a regression of the MoE layers."""

from collections.abc import Sequence

from regbot.records.baseline import ENTRY_PATTERN
from regbot.records.run import Run
from regbot.records.session import TimedPlan
from regbot.shapes import ShapeError, load_shape

SHAPE_ADAPTERS = ("smoke", "module")
"""Adapters whose model is the shape. A recipe or a command may run another model."""


def find_expert_share(plan: TimedPlan, runs: Sequence[Run]) -> float | None:
    """Return the share of the routed experts in the model FLOPs of a step, in (0, 1). None for a variant without
    experts, for a model that is not a shape, and for a shape that this version of regbot does not have."""
    match = ENTRY_PATTERN.fullmatch(plan.entry)
    if match is None or any(run.adapter not in SHAPE_ADAPTERS for run in runs):
        return None
    try:
        variant = load_shape(f"{match[2]}@{match[3]}").variant(plan.variant)
    except ShapeError:
        return None
    return variant.geometry.expert_flops_share if variant.mlp == "moe" else None
