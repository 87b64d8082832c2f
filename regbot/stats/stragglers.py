"""Detection of stragglers: which rank do the other ranks wait for?

Collectives synchronise the ranks, so step times do not show which rank is slow: it waits least, and the others wait for
it. A rank's own work, its step time minus its wait, is compared with the median of the other ranks in the same step.
This assumes that all ranks have the same work. Pipeline stages do not; see ``docs/session.md``.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

LATE_SHARE = 0.10
"""A rank is late if its own work takes longer than that of the other ranks by more than this share."""
MIN_SLOWER_SHARE = 0.75
"""Minimum share of the steady steps in which a late rank is slower. By chance a rank reaches it once in 1000 runs."""
MIN_STEPS = 10
"""Minimum number of steady steps for naming a rank."""
MIN_OWN_SHARE = 0.05
"""Minimum share of a step that must be own work. A smaller share is below the resolution of the collectives' clocks."""

Array = NDArray[np.float64]


class Lateness(NamedTuple):
    """One rank's own work compared with that of the other ranks, over the steady steps of one run."""

    slowdown: float
    """Relative slowdown of the rank's own work, as the median over steps; 0.1 is 10% longer."""
    seconds: float
    """Median over steps of own work minus the median own work of the other ranks."""
    steps_share: float
    """Share of steps in which the rank's own work took longer than that of the other ranks, in [0, 1]."""
    is_late: bool
    """Whether the other ranks wait for this rank: its own work takes clearly longer, in most steps, and the delay is a
    noticeable part of the step."""


def rank_lateness(step_s: Sequence[Sequence[float]], wait_s: Sequence[Sequence[float]]) -> list[Lateness]:
    """Return the lateness of every rank of one run, by rank. ``step_s`` and ``wait_s`` have a list for each rank, with
    the seconds of each steady step. Returns [] for one rank, for fewer than ``MIN_STEPS`` steps, and if the ranks wait
    nearly all the time."""
    if len(step_s) < 2 or len({*map(len, step_s), *map(len, wait_s)}) > 1:
        return []
    steps, waits = np.asarray(step_s, dtype=float), np.asarray(wait_s, dtype=float)
    if steps.shape != waits.shape or steps.shape[1] < MIN_STEPS:
        return []
    own_work: Array = np.maximum(steps - waits, 0.0)
    median_step_s = float(np.median(steps))
    if median_step_s <= 0 or float(np.median(own_work)) < MIN_OWN_SHARE * median_step_s:
        return []
    # A step without own work would give the logarithm of 0.
    own_work = np.maximum(own_work, 1e-3 * MIN_OWN_SHARE * median_step_s)
    results = []
    for rank, rank_work in enumerate(own_work):
        others_work = np.median(np.delete(own_work, rank, axis=0), axis=0)  # one value for each step
        slowdown = float(np.expm1(np.median(np.log(rank_work / others_work))))
        delay_s = float(np.median(rank_work - others_work))
        steps_share = float(np.mean(rank_work > others_work))
        delays_the_step = delay_s > LATE_SHARE * MIN_OWN_SHARE * median_step_s
        is_late = slowdown > LATE_SHARE and steps_share >= MIN_SLOWER_SHARE and delays_the_step
        results.append(Lateness(slowdown, delay_s, steps_share, is_late))
    return results
