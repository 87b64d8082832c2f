"""Check whether the timed runs reached a steady state, and whether the pairs may decide at all.

Single runs are not excluded, because exclusion would bias the result. On GPUs, the pairs decide nothing if half of an
arm's runs have no steady state, or if the arms differ significantly in their number. On a CPU, other work makes step
times drift, so this is only a warning.
"""

from collections.abc import Sequence

from regbot.judge.pairs import Pair
from regbot.records.run import Run
from regbot.stats.launch import launch_steady_state
from regbot.stats.steady import unsettled_warnings


def describe_unsteady(pairs: Sequence[Pair]) -> str:
    """Return why pairs on GPUs without a steady state must not decide; '' if they may."""
    if has_gpus(pairs[-1].head) and (warnings := warn_of_unsteady_arms(pairs)):
        return f"no steady state: {warnings[0]}; raise the number of steps (session.steps), or find what drifts"
    return ""


def warn_of_unsteady_arms(pairs: Sequence[Pair]) -> tuple[str, ...]:
    """Return warnings if too many runs of the pairs have no steady state, else ()."""
    base, head = (
        [launch_steady_state(run.timing) if run.timing is not None else None for run in runs]
        for runs in ([pair.base for pair in pairs], [pair.head for pair in pairs])
    )
    return unsettled_warnings(base, head)


def has_gpus(run: Run) -> bool:
    """Whether the run was timed on a node with GPUs."""
    return run.node is not None and bool(run.node.gpus)
