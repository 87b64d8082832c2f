"""Find the share of the routed experts in the model FLOPs of a step. If it is 0.2 and the experts become 10% slower,
the step becomes about 2% slower, so a small share hides a regression of the MoE layers."""

from collections.abc import Sequence

from regbot.records.baseline import ENTRY_PATTERN
from regbot.records.run import Run
from regbot.records.session import TimedPlan
from regbot.workloads.shapes import ShapeError, load_shape

SHAPE_ADAPTERS = ("smoke", "module")
"""Adapters that run exactly the model of the shape. The other adapters (training frameworks, commands) may run another
model."""


def find_expert_share(plan: TimedPlan, runs: Sequence[Run]) -> float | None:
    """Return the share of the routed experts in the model FLOPs of a step, in (0, 1). None for a variant without
    experts, for a model that is not a shape, and for a shape that this version of regbot does not have."""
    match = ENTRY_PATTERN.fullmatch(plan.entry)
    if match is None or any(run.adapter not in SHAPE_ADAPTERS for run in runs):
        return None
    _label, shape_name, shape_version, _mesh = match.groups()
    try:
        variant = load_shape(f"{shape_name}@{shape_version}").variant(plan.variant)
    except ShapeError:
        return None
    return variant.geometry.expert_flops_share if variant.mlp == "moe" else None
