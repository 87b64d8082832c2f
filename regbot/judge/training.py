"""Does the head still train the same? Loss step by step, and tokens that no expert computed.

Data, seeds and weights are those of the base, so the losses of two runs of one commit differ by rounding and by the
order of sums only. What the base's own runs show is the measure: a faster step that learns something else is no gain.
"""

from collections.abc import Iterator, Sequence
from statistics import median

from regbot.records.run import Run

ROUNDING = {"float32": 1e-4, "bfloat16": 2e-3}
"""Relative difference of a loss that another order of the same sums can make within a few dozen steps, by dtype:
chosen, not derived. The steps take two batches in turn, so the loss falls: on the ``cpu`` variant of Mixtral from 7.66
to 6.16, and within the same 50 steps it is off by 0.9 without the gradients of the experts, by 0.006 without the
router's."""
BEYOND_BASE = 3.0
"""How many times the largest difference between two base runs counts as different."""


def differences(base: Sequence[Run], head: Sequence[Run]) -> Iterator[str]:
    """In words, what head trains differently; nothing where it trains the same or where too little is known."""
    ours, theirs = _losses(base), _losses(head)
    if ours and theirs and len(ours[0]) == len(theirs[0]):
        yield from _loss(ours, theirs, rounding(base))
    elif ours and head:
        yield "head does not tell the loss of every step, and base does"
    yield from _dropped(base, head)


def trajectory_differs(stored: Sequence[Sequence[float | None]], head: Sequence[Run], allowed: float) -> bool:
    """Whether head's losses are others than the stored ones; so too where only the stored runs tell all of theirs."""
    ours = [[value for value in losses if value is not None] for losses in stored]
    theirs = _losses(head)
    if not ours or not ours[0] or len({len(losses) for losses in ours}) > 1:
        return False
    return not theirs or len(ours[0]) != len(theirs[0]) or any(True for _ in _loss(ours, theirs, allowed))


def _loss(base: list[list[float]], head: list[list[float]], rounding: float) -> Iterator[str]:
    worst = (0.0, 0, 0.0, 0.0)
    spread = 0.0
    for number, (ours, theirs) in enumerate(zip(zip(*base, strict=True), zip(*head, strict=True), strict=True), 1):
        spread = max(spread, max(ours) - min(ours))
        was, now = median(ours), median(theirs)
        if (distance := abs(now - was) - rounding * abs(was)) > worst[0]:
            worst = (distance, number, was, now)
    distance, number, was, now = worst
    if number and abs(now - was) > BEYOND_BASE * spread:
        yield (
            f"head does not train the same: at step {number} its loss is {now:.5g}, base's {was:.5g}, and runs of base "
            f"differ by {spread:.2g} at most"
        )


def _dropped(base: Sequence[Run], head: Sequence[Run]) -> Iterator[str]:
    was, now = _most_dropped(base), _most_dropped(head)
    if was is not None and now is None and head:
        yield "head does not show how many tokens its experts were sent, and base does"
    if was is not None and now is not None and now > was:
        routed = max((sum(run.timing.tokens_per_expert) for run in head if run.timing is not None), default=0)
        yield f"head drops {now} of {now + routed} routed tokens a step, base {was or 'none'}"


def _losses(runs: Sequence[Run]) -> list[list[float]]:
    """The complete trajectories of equal length; [] where there are none or they do not match."""
    found = [[value for value in run.loss if value is not None] for run in runs if run.loss]
    return found if len({len(losses) for losses in found}) == 1 else []


def _most_dropped(runs: Sequence[Run]) -> int | None:
    dropped = [run.timing.dropped_tokens for run in runs if run.timing is not None]
    return max((n for n in dropped if n is not None), default=None)


def rounding(runs: Sequence[Run]) -> float:
    """The relative difference of a loss that the dtype of these runs leaves room for."""
    dtypes = {str(run.ledger.config.get("dtype")) for run in runs if run.ledger is not None}
    return max((ROUNDING.get(dtype, max(ROUNDING.values())) for dtype in dtypes), default=max(ROUNDING.values()))
