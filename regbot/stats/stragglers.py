"""Which rank do the others wait for? From what each did itself in each step: its step less its wait in collectives.

Collectives make all ranks step alike, so step times show nothing: the slow rank waits least, and the others wait for
it. Own work is held against the median of the other ranks' in the same step, which one or two slow ones do not move.
Of two ranks the slower is held against the faster.

It assumes that ranks have the same to do. Pipeline stages have not; see ``docs/stragglers.md``.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

THRESHOLD = 0.10
"""A rank is late whose own work takes this much longer. Two ranks of the smoke model on two shared cores are apart by
less in 19 of 20 runs without cause; ``docs/stragglers.md`` has the figures."""
MOST_STEPS = 0.75
"""Of the steady steps, in which it must be the slower one: by chance 30 of 40 are once in 1000 runs."""
LEAST_STEPS = 10
"""Fewer steady steps name nobody."""
LEAST_OWN = 0.05
"""Own work that is a smaller part of the step than this is lost in how coarse the clocks of collectives are."""

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Lateness:
    """One rank's own work against the others', over the steady steps of one run."""

    rank: int
    log_ratio: float
    """log(own / median of the other ranks' own), median over steps. Positive: slower."""
    seconds: float
    """Own less the others', of a step, median over steps."""
    steps_share: float
    """Of the steps in which it took longer than the others, in [0, 1]."""
    step_ratio: float
    """``seconds`` over the median step: what the step would lose without it, at most."""

    @property
    def slower(self) -> float:
        """By which share its own work takes longer."""
        return float(np.expm1(self.log_ratio))

    def late(self, threshold: float = THRESHOLD) -> bool:
        """Whether this rank is one that the others wait for."""
        return self.slower > threshold and self.steps_share >= MOST_STEPS and self.step_ratio > threshold * LEAST_OWN


def lateness(
    step_s: Sequence[Sequence[float]], wait_s: Sequence[Sequence[float]], together: Sequence[Sequence[int]] = ()
) -> list[Lateness]:
    """Every rank of one run: ``step_s`` and ``wait_s`` are [rank][steady step], seconds.

    ``together`` asks about these sets of ranks in place of each rank alone: the median of a set against that of all
    other ranks, and ``rank`` is the number of the set. Empty for one rank, for fewer than ``LEAST_STEPS`` steps, and
    where the ranks wait nearly all the time.
    """
    steps, waits = np.asarray(step_s, dtype=float), np.asarray(wait_s, dtype=float)
    if steps.ndim != 2 or steps.shape != waits.shape or steps.shape[0] < 2 or steps.shape[1] < LEAST_STEPS:
        return []
    own: Array = np.maximum(steps - waits, 0.0)
    whole = float(np.median(steps))
    if whole <= 0 or float(np.median(own)) < LEAST_OWN * whole:
        return []
    own = np.maximum(own, 1e-3 * LEAST_OWN * whole)  # a step that was all wait has no logarithm
    found = []
    for number, ranks in enumerate(together or [[rank] for rank in range(own.shape[0])]):
        mine = np.median(own[list(ranks)], axis=0)
        others = np.median(np.delete(own, list(ranks), axis=0), axis=0)
        found.append(
            Lateness(
                rank=number,
                log_ratio=float(np.median(np.log(mine / others))),
                seconds=float(np.median(mine - others)),
                steps_share=float(np.mean(mine > others)),
                step_ratio=float(np.median(mine - others)) / whole,
            )
        )
    return found


def late_ranks(
    step_s: Sequence[Sequence[float]], wait_s: Sequence[Sequence[float]], threshold: float = THRESHOLD
) -> list[Lateness]:
    """The ranks that the others wait for, the latest first."""
    late = [each for each in lateness(step_s, wait_s) if each.late(threshold)]
    return sorted(late, key=lambda each: -each.log_ratio)
