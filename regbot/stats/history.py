"""Change points in the stored history of a workload. They annotate a trend and never decide a verdict.

A session is one number, its step time on the log scale. Outliers are replaced first (Hampel's filter over seven
sessions), then PELT (Killick 2012) finds change points. The search assumes independent sessions: if the level wanders,
it reports changes that no commit made. ``benchmarks/history.py --rates`` prints its error rates.
"""

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

from regbot.stats.slow_launches import SD_PER_MAD
from regbot.stats.steady import find_segments, hampel_filter

Array = NDArray[np.float64]

MIN_SEGMENT = 3
"""Minimum number of sessions between two change points."""

MIN_SESSIONS = 8
"""With fewer sessions nothing is searched, because the scatter of so few sessions is not known well enough."""

SMALL_SAMPLE_FACTOR = 6
"""The scatter, which few sessions underestimate, is multiplied by 1 + ``SMALL_SAMPLE_FACTOR`` / sessions."""

MAX_LEVELS = 1000
"""Maximum number of levels in one search. The caller averages neighbouring sessions of longer histories."""

HAMPEL_WINDOW = 3
"""Number of neighbouring sessions on each side in Hampel's filter. A new level is kept from its fourth session on."""

_MIN_SCATTER = 1e-6
"""Lower bound of the scatter, log scale, for series whose levels are all equal."""


def change_points(levels: ArrayLike) -> list[int]:
    """Return the positions in ``levels`` at which the step time changes. ``levels`` has the mean log step time of each
    session, oldest first, at most ``MAX_LEVELS``. Returns [] for fewer than ``MIN_SESSIONS``."""
    samples = np.asarray(levels, dtype=np.float64)
    if len(samples) < MIN_SESSIONS:
        return []
    filtered_levels = hampel_filter(samples, HAMPEL_WINDOW)
    noise = max(_scatter(filtered_levels), _MIN_SCATTER)
    return find_segments(filtered_levels, noise, MIN_SEGMENT)[1:]


def _scatter(session_levels: Array) -> float:
    """Robust standard deviation of the sessions of one level, from differences of neighbouring sessions."""
    differences = np.diff(session_levels)
    sd_of_difference = SD_PER_MAD * float(np.median(np.abs(differences - np.median(differences))))
    return sd_of_difference / math.sqrt(2) * (1 + SMALL_SAMPLE_FACTOR / len(session_levels))
