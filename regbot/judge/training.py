"""Compare the training of base and head: the losses, and the number of dropped tokens.

Both arms use the same data, seeds and weights, so the losses of two runs of one commit differ only by rounding and by
the order of sums. A step that is faster but trains differently is no gain. A loss is a sample of its launch, so the
arms are compared by Student's t test over launches. If caches are drawn anew, the launches of a draw share the kernels
that were chosen with it, so the draws are the samples.
"""

from collections.abc import Hashable, Iterator, Sequence
from statistics import fmean
from typing import NamedTuple

from regbot.judge.pairs import Pair
from regbot.records.run import Run
from regbot.stats.unpaired import student

ROUNDING = {"float32": 1e-4, "bfloat16": 2e-3}
"""Relative difference of the loss that a different order of sums can cause within a few dozen steps, by dtype. Chosen,
not derived. On the ``cpu`` variant of Mixtral, without the gradients of the router, the loss differs by 0.006 of 6.16
after 50 steps; without those of the experts, by 0.9."""

ALPHA = 0.01
"""Two-sided error of one test. Two are made: of the mean loss, and of that of the last quarter of the steps."""

MIN_LAUNCHES = 4
MIN_DRAWS = 3
"""Launches, or draws of caches, of each arm that a decision needs. If one of two kernels is drawn, all draws of base
have one and all of head the other in 2 of 2^6 sessions with three draws."""


class TrainingDifferences(NamedTuple):
    proven: list[str]
    """How head trains differently."""
    undecided: list[str]
    """Differences that too few launches cannot tell from chance."""


def compare_training(pairs: Sequence[Pair]) -> TrainingDifferences:
    """Compare the arms of ``pairs``. Nothing differs if base reports too little to compare."""
    base, head = [pair.base for pair in pairs], [pair.head for pair in pairs]
    base_losses, head_losses = _complete_losses(base), _complete_losses(head)
    proven, undecided = list(_drop_differences(base, head)), []
    if base_losses and head_losses and len(base_losses[0]) == len(head_losses[0]):
        draws = [pair.draw if pair.draw[1] is not None else index for index, pair in enumerate(pairs)]
        has_draws = any(pair.draw[1] is not None for pair in pairs)
        enough, unit = (MIN_DRAWS, "draws of compiler caches") if has_draws else (MIN_LAUNCHES, "launches")
        difference = _compare_losses(
            _group(base_losses, draws), _group(head_losses, draws), loss_rounding(base), enough
        )
        if difference and min(len(set(draws)), len(base_losses), len(head_losses)) < enough:
            undecided.append(f"{difference}; {enough} {unit} of each arm would tell it from chance")
        elif difference:
            proven.append(difference)
    elif base_losses and head:
        proven.append("head does not report the loss of every step, but base does")
    return TrainingDifferences(proven, undecided)


def has_other_trajectory(
    stored: Sequence[Sequence[float | None]], head: Sequence[Run], relative_rounding: float
) -> bool:
    """Whether the losses of head differ from the stored losses of base, a list for each run. Incomplete stored losses
    show nothing; incomplete ones of head count as different."""
    stored_losses = [[value for value in losses if value is not None] for losses in stored]
    head_losses = _complete_losses(head)
    step_counts = {len(losses) for losses in stored_losses}
    if len(step_counts) != 1 or step_counts == {0}:
        return False
    if not head_losses or len(head_losses[0]) not in step_counts:
        return True
    return bool(_compare_losses(stored_losses, head_losses, relative_rounding, enough=2))


def _group(losses: Sequence[Sequence[float]], draws: Sequence[Hashable]) -> list[list[float]]:
    """Return the mean trajectory of each draw. Without a loss for every launch, each launch counts for itself."""
    if len(losses) != len(draws):
        return [list(trajectory) for trajectory in losses]
    by_draw: dict[Hashable, list[Sequence[float]]] = {}
    for draw, trajectory in zip(draws, losses, strict=True):
        by_draw.setdefault(draw, []).append(trajectory)
    return [[fmean(values) for values in zip(*members, strict=True)] for members in by_draw.values()]


def _compare_losses(
    base: Sequence[Sequence[float]], head: Sequence[Sequence[float]], relative_rounding: float, enough: int
) -> str:
    """Return how the losses of two arms differ, '' if they do not: by more than rounding, and if there are ``enough``
    trajectories, by more than chance."""
    steps = len(base[0])
    for first, words in ((0, "its mean loss"), (steps - max(1, steps // 4), "its loss over the last quarter")):
        base_values, head_values = ([fmean(values[first:]) for values in arm] for arm in (base, head))
        base_loss, head_loss = fmean(base_values), fmean(head_values)
        has_enough = min(len(base), len(head)) >= enough
        # Without enough launches there is no test, and the difference is only mentioned.
        chance = student(base_values, head_values, ALPHA) if has_enough else 0.0
        if abs(head_loss - base_loss) > max(relative_rounding * abs(base_loss), chance):
            scatter = f", more than the {chance:.2g} that chance explains" if has_enough else ""
            return f"head trains differently: {words} is {head_loss:.5g} and base's is {base_loss:.5g}{scatter}"
    return ""


def _drop_differences(base: Sequence[Run], head: Sequence[Run]) -> Iterator[str]:
    base_dropped, head_dropped = _max_dropped(base), _max_dropped(head)
    if base_dropped is None:
        return
    if head_dropped is None and head:
        yield "head does not report the number of dropped tokens, but base does"
    elif head_dropped is not None and head_dropped > base_dropped:
        # The experts receive only the tokens that are not dropped.
        processed = max((sum(run.timing.tokens_per_expert) for run in head if run.timing is not None), default=0)
        routed = head_dropped + processed
        yield f"head drops {head_dropped} of {routed} routed tokens per step, base {base_dropped or 'none'}"


def _complete_losses(runs: Sequence[Run]) -> list[list[float]]:
    trajectories = [[value for value in run.loss if value is not None] for run in runs if run.loss]
    return trajectories if len({len(losses) for losses in trajectories}) == 1 else []


def _max_dropped(runs: Sequence[Run]) -> int | None:
    dropped = [run.timing.dropped_tokens for run in runs if run.timing is not None]
    return max((count for count in dropped if count is not None), default=None)


def loss_rounding(runs: Sequence[Run]) -> float:
    """Return ``ROUNDING`` for the dtype of these runs; the largest value for an unknown dtype."""
    largest = max(ROUNDING.values())
    dtypes = {str(run.ledger.config.get("dtype")) for run in runs if run.ledger is not None}
    return max((ROUNDING.get(dtype, largest) for dtype in dtypes), default=largest)
