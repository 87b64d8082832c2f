"""Compare the training of base and head: the loss of every step, and the number of dropped tokens.

Both arms use the same data, seeds and weights, so the losses of two runs of one commit differ only by rounding and by
the order of sums. A step that is faster but trains differently is no gain.
"""

from collections.abc import Iterator, Sequence
from statistics import median

from regbot.records.run import Run

ROUNDING = {"float32": 1e-4, "bfloat16": 2e-3}
"""Relative difference of the loss that a different order of sums can cause within a few dozen steps, by dtype. Chosen,
not derived. On the ``cpu`` variant of Mixtral, without the gradients of the router, the loss differs by 0.006 of 6.16
after 50 steps; without those of the experts, by 0.9."""
MAX_BASE_SPREADS = 3.0
"""Head trains differently if its loss differs by more than rounding and by more than this many times the spread: the
largest difference between losses of base runs at one step."""


def training_differences(base: Sequence[Run], head: Sequence[Run]) -> Iterator[str]:
    """Yield how head trains differently from base; nothing if base reports too little to compare."""
    base_losses, head_losses = _complete_losses(base), _complete_losses(head)
    if base_losses and head_losses and len(base_losses[0]) == len(head_losses[0]):
        yield from _loss_differences(base_losses, head_losses, loss_rounding(base))
    elif base_losses and head:
        yield "head does not report the loss of every step, but base does"
    yield from _drop_differences(base, head)


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
    return bool(list(_loss_differences(stored_losses, head_losses, relative_rounding)))


def _loss_differences(base: list[list[float]], head: list[list[float]], relative_rounding: float) -> Iterator[str]:
    """At each step the medians over the runs are compared. The step whose difference exceeds rounding most decides."""
    worst_excess, worst_step, worst_base_loss, worst_head_loss = 0.0, 0, 0.0, 0.0  # step 0: no step exceeds rounding
    spread = 0.0
    base_by_step, head_by_step = zip(*base, strict=True), zip(*head, strict=True)
    for step, (base_losses, head_losses) in enumerate(zip(base_by_step, head_by_step, strict=True), 1):
        spread = max(spread, max(base_losses) - min(base_losses))
        base_loss, head_loss = median(base_losses), median(head_losses)
        excess = abs(head_loss - base_loss) - relative_rounding * abs(base_loss)
        if excess > worst_excess:
            worst_excess, worst_step, worst_base_loss, worst_head_loss = excess, step, base_loss, head_loss
    if worst_step and abs(worst_head_loss - worst_base_loss) > MAX_BASE_SPREADS * spread:
        yield (
            f"head trains differently: at step {worst_step} its loss is {worst_head_loss:.5g} and base's is "
            f"{worst_base_loss:.5g}, while the runs of base differ by at most {spread:.2g}"
        )


def _drop_differences(base: Sequence[Run], head: Sequence[Run]) -> Iterator[str]:
    base_dropped, head_dropped = _max_dropped(base), _max_dropped(head)
    if base_dropped is not None and head_dropped is None and head:
        yield "head does not report the number of dropped tokens, but base does"
    if base_dropped is not None and head_dropped is not None and head_dropped > base_dropped:
        # The experts receive only the tokens that are not dropped.
        processed = max((sum(run.timing.tokens_per_expert) for run in head if run.timing is not None), default=0)
        yield (
            f"head drops {head_dropped} of {head_dropped + processed} routed tokens per step, "
            f"base {base_dropped or 'none'}"
        )


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
