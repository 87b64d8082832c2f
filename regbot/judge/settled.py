"""Were the runs of both arms steady, and may the pairs vote at all?

On a node with GPUs a run that never settles says nothing of its speed. Single runs are not left out for it, because
leaving out would choose the result; where half of an arm, or one arm more than the other, never settles, the pairs
decide nothing. On a CPU other work makes steps wander, and it is a warning.
"""

from collections.abc import Iterable, Sequence
from statistics import median

from regbot.judge.pairs import Pair
from regbot.records.calibrated import Calibrated
from regbot.records.run import Run
from regbot.stats.launch import steadiness
from regbot.stats.steady import unsettled


def no_vote(pairs: Sequence[Pair], calibrated: Calibrated | None) -> str:
    """Why the pairs' own answer decides nothing, '' where it does."""
    if calibrated is not None and calibrated.contradicted:
        return f"the gate has no vote on this node class: {calibrated.contradicted}; see 'regbot calibrate'"
    if has_gpus(pairs[-1].head) and (told := unsettled_arms(pairs)):
        return f"no steady state: {told[0]}; let the runs have more steps (session.steps), or find what drifts"
    return ""


def unsettled_arms(pairs: Sequence[Pair]) -> tuple[str, ...]:
    """What the runs without a steady state say of the pairs; () where nothing."""
    return unsettled(*([_steady(run) for run in runs] for runs in zip(*((p.base, p.head) for p in pairs), strict=True)))


def warmup_steps(runs: Iterable[Run]) -> float | None:
    """Median over runs of the steps until the last change of level; None where it was not measured."""
    found = [steady.warmup_steps for run in runs if run.timing is not None and (steady := steadiness(run.timing))]
    known = [steps for steps in found if steps is not None]
    return float(median(known)) if known else None


def has_gpus(run: Run) -> bool:
    """Whether the run was timed on a node with GPUs."""
    return run.node is not None and bool(run.node.gpus)


def _steady(run: Run) -> bool:
    found = steadiness(run.timing) if run.timing is not None else None
    return found is None or found.steady
