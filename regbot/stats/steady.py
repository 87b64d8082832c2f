"""Steady state of a run: the step from which its step times have a constant level, if there is one.

A *level* is the mean log step time over a part of the run without a change. The steps after the last change of level
are steady, if they are at least half of the log. The *change point* search (PELT, Killick 2012) finds several changes;
the *tail* search compares the mean before a step with the mean after it, and finds smaller ones. The later result
counts. A run has a *drift* if a straight line explains the steps as well as any single change. All searches account for
autocorrelation.

Changes below 1% are ignored, because they occur in both arms of a pair. A single slow step is replaced during the
search and stays in the run. A run that never settles is a valid outcome, because leaving out single runs would bias the
result. Constants without a source come from ``benchmarks/steady.py``, which prints the error rates.
"""

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from regbot.stats.slow_launches import SD_PER_MAD
from regbot.stats.unpaired import fisher

Array = NDArray[np.float64]
Method = Literal["changes-and-tail", "short-log", "none"]
"""How a run was judged: by the two searches, by the trend test of a short log, or not at all ("none"), because it has
too few steps or too many artefacts."""

MIN_CUT = 10
"""Number of leading steps that are always left out of a long log; most warm-ups of real jobs end within them."""

SHORT_LOG_STEPS = 40
"""A log with fewer steps is short: its other steps are only tested for a rise or fall."""
SHORT_LOG_CUT_DIVISOR = 5
"""The first fifth of a short log is left out."""

MIN_KEPT_STEPS = 6
"""Minimum number of kept steps. With five steps, even a rise at every step would not be significant at ``SHORT_ALPHA``.
"""

TOLERANCE = math.log(1.01)
"""Changes of level below this value are ignored, log scale."""

PENALTY = 4.0
"""PELT's penalty per change point is this times log(n) times the (long-run) variance. With 4.0, one in 250 flat
histories of 200 sessions shows a change; with 3.0, one in 60."""

WARM_UP_Z, TAIL_Z = 2.0, 3.0
"""Thresholds of the tail search, in standard errors. ``WARM_UP_Z`` is for a fall in the first quarter, which looks like
a warm-up, and ``TAIL_Z`` for any other change."""

MIN_DRIFT, DRIFT_Z = 1.5 * TOLERANCE, 2.1
"""A fitted line is a drift only if it rises or falls by more than ``MIN_DRIFT``, log scale, and by more than
``DRIFT_Z`` standard errors. A single change of level raises the line by up to 1.5 times the change."""

RISING_SHARE, FALLING_SHARE = 0.75, 1.0
"""A line is a drift if its z is at least this share of the z of the best single change. The share for falling lines is
higher, because step times fall during a warm-up."""

MIN_SEGMENT = 5
"""Minimum number of points between two change points."""

MIN_TAIL_STEPS, MIN_TAIL_SHARE = 10, 0.1
"""Minimum length of the tail, in steps and as a share of the log, because the end of a log may be one slow moment."""

HAMPEL_WINDOW, HAMPEL_SDS = 10, 4.0
"""Hampel's filter (1974): steps on each side of the neighbourhood, and the distance from its median, in robust standard
deviations, beyond which the median replaces a step."""

USUAL_RHO, RHO_WEIGHT = 0.4, 20
"""Prior autocorrelation of neighbouring steps, and its weight in steps. Real jobs have -0.3 to 0.5."""

STEP_FIT_STEPS = 20
"""The noise is estimated from residuals around the best single change, which also fits noise: the residuals of n steps
show only n / (n + ``STEP_FIT_STEPS``) of it."""

MAX_POINTS = 2000
"""Longer logs are averaged in blocks first, because the change point search takes quadratic time."""

ARTEFACT_GAP = math.log(4.0)
"""A step this far below the median is an artefact, log scale: asynchronous dispatch returned before the device
finished."""

MAX_ARTEFACT_SHARE = 0.25
"""If the share of artefacts reaches this value, the clock measured the dispatch and not the device."""

RESTART_GAP = math.log(3.0)
"""A step this far above the median, followed by slow steps, is the restart of a process. Log scale."""

SHORT_ALPHA = 0.02
"""Error of the trend test for a short log, for independent steps. It is the smallest that detects the trend in the
first 20 steps of a real job that settles for 300."""

MAX_SCATTER = math.log(1.1)
"""Robust standard deviation of the kept steps, log scale, above which a run gets a warning. Good nodes have 0.3 to 1%.
"""

MIN_BETWEEN_SHARE = 0.8
"""Two groups of steps are reported if the split between them explains at least this share of the variance. The best
split of a single group explains 0.64 if it is normal, and 0.75 if it is uniform."""
MIN_GROUP_SHARE, MIN_GROUP_GAP, MIN_GROUPED_STEPS = 0.1, math.log(1.02), 20
"""Further conditions: the smallest share of a group, the smallest gap of their means (log scale), the fewest steps."""

MAX_UNSETTLED_SHARE = 0.5
"""An arm gets a warning if at least this share of its runs is not steady, and no run of the other."""
FISHER_ALPHA, GROWTH_ALPHA = 0.01, 0.05
"""Significance levels of the tests whether the arms differ in the share of steady runs, and of runs that grow."""


@dataclass(frozen=True)
class SteadyState:
    """Whether a run is steady, and from which step on."""

    cut: int
    """Number of leading steps to leave out, in 1..steps - 1. If ``steady`` is false, use it only to display the run."""
    steady: bool
    reason: str
    """A phrase: the evidence for the steady state, or why there is none."""
    method: Method
    restart: int = 0
    """Step of the last restart of the process; 0 if there is none."""
    rise: float = 0.0
    """Rise over the steps that count, log scale, if the run is not steady because of it; negative if they fall."""
    warnings: tuple[str, ...] = ()


class LevelChange(NamedTuple):
    """The best single change of level in an array. ``position`` is where the later level starts. ``z`` is the t
    statistic of the change, and ``falls`` says whether the later level is lower."""

    position: int
    z: float
    falls: bool


def steady_state(step_s: ArrayLike) -> SteadyState:
    """Return the steady state of one run. ``step_s`` has the seconds of each step, of at least two. Everything before
    the last restart of the process is left out. Raises ValueError for a time that is not positive and finite."""
    logs = _log_times(step_s)
    steps = len(logs)
    start = max(_find_restarts(logs), default=0)
    process = _judge_process(logs[start:])
    cut = min(start + process.cut, steps - 1)
    warnings = [*_warn_of_kept_steps(logs[start:], cut - start)]
    if start:
        warnings.insert(0, f"the process started again at step {start}; the {start} steps before it are left out")
    if process.method == "short-log":
        suffix = " after that" if start else ""
        warnings.append(f"a short log: {steps - start} steps{suffix}; the end of its warm-up was not searched for")
    reason = f"after the restart at step {start}, {process.reason}" if start else process.reason
    return replace(process, cut=cut, reason=reason, restart=start, warnings=tuple(warnings))


def unsettled_warnings(base: Sequence[SteadyState | None], head: Sequence[SteadyState | None]) -> tuple[str, ...]:
    """Return warnings if half of an arm's runs are not steady, and none of the other's, or if chance does not explain
    how the arms differ. What both arms do alike cancels in pairs, unless half of an arm's runs cannot be judged. None
    stands for a run that is not judged.

    Fisher's exact test decides about chance: at 1%, and at 5% for growth, which four runs of each arm can show.
    """
    arms = (("base", base), ("head", head))
    growing = [[state.rise for state in states if state is not None and state.rise > 0] for _, states in arms]
    unsteady = [sum(state is not None and not state.steady for state in states) for _, states in arms]
    warnings = []
    if any(growing) and fisher(len(growing[0]), len(base), len(growing[1]), len(head)) < GROWTH_ALPHA:
        more = int(len(growing[1]) * len(base) > len(growing[0]) * len(head))  # the arm with the larger share
        (name, states), (other_name, other_states) = arms[more], arms[1 - more]
        warnings.append(
            f"the step time grows within {len(growing[more])} of {len(states)} {name} runs, by "
            f"{100 * math.expm1(statistics.median(growing[more])):.1f}%, and within {len(growing[1 - more])} of "
            f"{len(other_states)} {other_name} runs"
        )
    shares = [count / max(len(states), 1) for (_, states), count in zip(arms, unsteady, strict=True)]
    for (name, states), count, share in zip(arms, unsteady, shares, strict=True):
        unjudged = sum(state is not None and state.method == "none" for state in states)
        cancels = min(shares) > 0 and unjudged < MAX_UNSETTLED_SHARE * len(states)
        if share >= MAX_UNSETTLED_SHARE and not cancels:
            warnings.append(f"{count} of {len(states)} {name} runs have no steady state")
    if any(unsteady) and fisher(unsteady[0], len(base), unsteady[1], len(head)) < FISHER_ALPHA:
        counts = f"base {unsteady[0]} of {len(base)}, head {unsteady[1]} of {len(head)}"
        warnings.append(f"the arms differ in how many runs have no steady state: {counts}")
    return tuple(warnings)


def _log_times(step_s: ArrayLike) -> Array:
    """Return log step times minus their median. They are rounded, because their last digits depend on the unit of
    time."""
    seconds = np.asarray(step_s, dtype=np.float64)
    bad_steps = np.flatnonzero(~(np.isfinite(seconds) & (seconds > 0)))
    if len(bad_steps):
        raise ValueError(f"step {bad_steps[0]} took {seconds[bad_steps[0]]} s; a step time must be positive and finite")
    logs = np.log(seconds)
    centred: Array = np.round(logs - np.median(logs), 9)
    return centred


def _judge_process(logs: Array) -> SteadyState:
    steps = len(logs)
    middle = steps // 2
    is_artefact = logs < np.median(logs[middle:]) - ARTEFACT_GAP
    min_cut = MIN_CUT if steps >= SHORT_LOG_STEPS else math.ceil(steps / SHORT_LOG_CUT_DIVISOR)
    # Also cut the artefacts of the first half: steps so short that the clock measured the dispatch, not the device.
    early_artefacts = np.flatnonzero(is_artefact[:middle])
    if len(early_artefacts):
        min_cut = max(min_cut, int(early_artefacts[-1]) + 1)
    if steps - min_cut < MIN_KEPT_STEPS:
        cut = min(min_cut, max(steps - 1, 0))
        kept = f"{steps - min_cut} remain after the first {min_cut}, and {MIN_KEPT_STEPS} are needed"
        return _not_steady(cut, f"{steps} steps are too few: {kept}", "none")
    late_artefacts = is_artefact[min_cut:]
    if late_artefacts.mean() >= MAX_ARTEFACT_SHARE:
        share = f"{late_artefacts.sum()} of {steps - min_cut} steps took less than a quarter of the usual time"
        return _not_steady(min_cut, f"{share}: the clock measured the dispatch, not the device", "none")
    return _judge_short_log(logs, min_cut) if steps < SHORT_LOG_STEPS else _judge_long_log(logs, min_cut)


def _judge_short_log(logs: Array, min_cut: int) -> SteadyState:
    """The test for a trend is Mann's (1945) and Kendall's; its size is Sen's slope. Ranks, because one slow step in
    fifteen would dominate any other statistic."""
    kept_steps = logs[min_cut:]
    earlier, later = np.triu_indices(len(kept_steps), 1)  # indices of every two steps
    differences = kept_steps[later] - kept_steps[earlier]
    slope = float(np.median(differences / (later - earlier)))
    rise = slope * (len(kept_steps) - 1)
    has_trend = mann_kendall(kept_steps, np.sign(differences)) < SHORT_ALPHA
    if has_trend and abs(rise) > TOLERANCE:
        reason = f"{_describe_rise(rise)} over the {len(kept_steps)} steps after {min_cut}"
        return _not_steady(min_cut, reason, "short-log", rise)
    reason = f"the {len(kept_steps)} steps after {min_cut} neither rise nor fall"
    return SteadyState(min_cut, steady=True, reason=reason, method="short-log")


def mann_kendall(values: Array, signs: Array) -> float:
    """Return the two-sided p-value of "no trend". ``signs`` has the sign of later value - earlier value, for every two
    values."""
    n = len(values)
    _, ties = np.unique(values, return_counts=True)
    # Variance of the sum of ``signs`` if there is no trend.
    variance = (n * (n - 1) * (2 * n + 5) - np.sum(ties * (ties - 1) * (2 * ties + 5))) / 18
    if variance <= 0:
        return 1.0
    return math.erfc(max(abs(float(signs.sum())) - 1, 0) / math.sqrt(2 * variance))


def _judge_long_log(logs: Array, min_cut: int) -> SteadyState:
    """The search works on points, the means of blocks of steps; up to ``MAX_POINTS`` steps, each step is a point."""
    steps = len(logs)
    # The first step compiles. Leave it out, so that the search does not report the end of compilation as a change.
    point_steps = math.ceil((steps - 1) / MAX_POINTS)  # number of steps in a point
    first = 1 + (steps - 1) % point_steps  # step at which the first point begins; the points then end with the log
    # The filter runs twice, because the first pass can leave one step of a cluster of slow steps.
    points = hampel_filter(hampel_filter(logs[first:].reshape(-1, point_steps).mean(axis=1)))
    # The following positions are counted in points.
    min_start = max(math.ceil((min_cut - first) / point_steps), 0)
    middle = (steps // 2 - first) // point_steps
    min_tail = math.ceil(max(MIN_TAIL_STEPS, MIN_TAIL_SHARE * steps) / point_steps)
    search = _search_steady_start(points, min_start, middle, min_tail)
    # Back to steps.
    cut = max(first + point_steps * search.start, min_cut)
    last_change = first + point_steps * search.last_change
    if search.drift is not None:
        reason = f"{_describe_rise(search.drift)} from step {cut} to the end"
        return _not_steady(cut, reason, "changes-and-tail", search.drift)
    if search.last_change > middle:
        reason = f"the step time still changes at step {last_change} of {steps}, past the middle; run it twice as long"
        before, after = points[search.start : search.last_change], points[search.last_change :]
        rise = float(after.mean() - before.mean()) if len(before) else 0.0
        return _not_steady(cut, reason, "changes-and-tail", rise)
    reason = f"no change of level of 1% or more after step {cut}"
    return SteadyState(cut, steady=True, reason=reason, method="changes-and-tail")


def _not_steady(cut: int, reason: str, method: Method, rise: float = 0.0) -> SteadyState:
    return SteadyState(cut, steady=False, reason=reason, method=method, rise=rise)


class SteadySearch(NamedTuple):
    """Result of the search over points. The run is not steady if ``drift`` is set or ``last_change`` is past the
    middle."""

    start: int
    """The first point to keep. The points before a rise past the middle are kept, because a rise is no warm-up."""
    last_change: int
    """Point of the last change of level; 0 if there is none."""
    drift: float | None = None
    """Rise of the points from ``start`` on if they never reach a constant level; otherwise None."""


def _search_steady_start(points: Array, min_start: int, middle: int, min_tail: int) -> SteadySearch:
    """All arguments are in points: ``min_start`` is the first point that may be kept, ``min_tail`` the minimum tail."""
    # Estimate the noise after the middle first, where a warm-up cannot be mistaken for noise.
    noise = _long_run_sd(points[middle:])
    last_change, falls = _find_last_change(points, noise)
    if last_change <= middle:
        # More points may be steady, so estimate the noise from all of them and search again.
        noise = _long_run_sd(points[max(last_change, min_start) :])
        last_change, falls = _find_last_change(points, noise)
    if last_change > middle:
        return SteadySearch(middle if falls else min_start, last_change)
    # Look for a drift and a tail from ``min_start``, then from the last change point, then from each change that the
    # tail search finds.
    start = min_start
    while True:
        change = _find_level_change(points[start:], noise, min_tail)
        rise, z = _fit_line(points[start:], noise)
        min_share = RISING_SHARE if rise > 0 else FALLING_SHARE
        if abs(rise) > MIN_DRIFT and z > DRIFT_Z and z >= min_share * change.z:
            return SteadySearch(start, last_change, drift=rise)
        if start < last_change:
            start = last_change
            continue
        position = start + change.position
        is_like_warmup = change.falls and position <= middle // 2
        if change.z <= (WARM_UP_Z if is_like_warmup else TAIL_Z):
            return SteadySearch(start, last_change)
        if position > middle:
            return SteadySearch(middle if change.falls else start, last_change=position)
        start = last_change = position


def _describe_rise(rise: float) -> str:
    return f"the step time {'rises' if rise > 0 else 'falls'} by {100 * math.expm1(abs(rise)):.1f}%"


def hampel_filter(values: Array, window: int = HAMPEL_WINDOW) -> Array:
    """Return ``values`` with outliers replaced by the median of their neighbourhood, ``window`` values on each side."""
    padded = np.pad(values, window, mode="reflect")
    neighbourhoods = np.lib.stride_tricks.sliding_window_view(padded, 2 * window + 1)
    medians = np.median(neighbourhoods, axis=1)
    distance = np.abs(values - medians)
    robust_sd = SD_PER_MAD * np.median(distance)
    return np.where(distance > HAMPEL_SDS * robust_sd, medians, values)


def _long_run_sd(points: Array) -> float:
    """Return sd(mean of n points) sqrt(n). For AR(1) noise its square is s^2 (1 + rho) / (1 - rho). s and rho come from
    the residuals around the best single change of level, which would otherwise look like autocorrelation."""
    n = len(points)
    position = _find_level_change(points, noise=1.0, min_after=1, min_before=1, tolerance=0.0).position
    segments = [segment for segment in (points[:position], points[position:]) if len(segment)]
    residuals = np.concatenate([segment - segment.mean() for segment in segments])
    squares = max(float(residuals @ residuals), 1e-8 * n)
    observed_rho = float(residuals[1:] @ residuals[:-1]) / squares
    observed_rho += (1 + 3 * observed_rho) / n  # correct the bias of the estimate (Kendall 1954)
    rho = min(max((n * observed_rho + RHO_WEIGHT * USUAL_RHO) / (n + RHO_WEIGHT), 0.0), 0.9)
    return math.sqrt(squares / n * (1 + rho) / (1 - rho)) * (1 + STEP_FIT_STEPS / n)


def find_segments(points: Array, noise: float, min_size: int) -> list[int]:
    """Return where the segments of constant mean begin (PELT, Killick 2012): 0 and the change points. ``noise`` is the
    standard deviation of a point."""
    from ruptures import KernelCPD  # type: ignore[import-untyped]  # imported late: it is slow

    search = KernelCPD(kernel="linear", min_size=min_size).fit(points[:, None])
    ends: list[int] = search.predict(pen=PENALTY * math.log(len(points)) * noise**2)
    return [0, *map(int, ends[:-1])]  # a segment ends where the next one begins


def _find_last_change(points: Array, noise: float) -> tuple[int, bool]:
    """Return the point at which the last level begins (0 without a change of level), and whether the level falls there.

    A segment that differs from the last one by at most ``TOLERANCE`` belongs to the last level.
    """
    starts = find_segments(points, noise, MIN_SEGMENT)
    means = [float(points[start:end].mean()) for start, end in pairwise([*starts, len(points)])]
    first_of_level = len(means) - 1  # the first segment of the last level
    while first_of_level > 0 and abs(means[first_of_level - 1] - means[-1]) <= TOLERANCE:
        first_of_level -= 1
    falls = first_of_level > 0 and means[first_of_level] < means[first_of_level - 1]
    return starts[first_of_level], falls


def _find_level_change(
    points: Array, noise: float, min_after: int, min_before: int = MIN_SEGMENT, tolerance: float = TOLERANCE
) -> LevelChange:
    """Return the change of level with the largest t statistic; its z is 0 if there is none."""
    n = len(points)
    positions = np.arange(min_before, n - max(min_after, 1) + 1)
    if not len(positions):
        return LevelChange(position=0, z=0.0, falls=False)
    sums = np.cumsum(points)
    sums_before = sums[positions - 1]
    gaps = sums_before / positions - (sums[-1] - sums_before) / (n - positions)  # mean before - mean after
    standard_errors = noise * np.sqrt(1 / positions + 1 / (n - positions))
    z = np.where(np.abs(gaps) > tolerance, np.abs(gaps) / standard_errors, 0.0)
    best = int(np.argmax(z))
    return LevelChange(position=int(positions[best]), z=float(z[best]), falls=bool(gaps[best] > 0))


def _fit_line(points: Array, noise: float) -> tuple[float, float]:
    """Return the rise of the least-squares line over all points, and the size of this rise in standard errors."""
    n = len(points)
    position = np.arange(n) - (n - 1) / 2  # centred, so that the slope is sum(position x point) / sum(position^2)
    rise = n * float(position @ points) / float(position @ position)
    standard_error = noise * math.sqrt(12 / n)
    return rise, abs(rise) / standard_error


def _find_restarts(logs: Array) -> list[int]:
    """Return the steps that look like the first step of a process. After a single slow step, normal steps follow; after
    a restart, another very slow step or three slow steps, because caches are cold again."""
    median = float(np.median(logs))
    robust_sd = SD_PER_MAD * float(np.median(np.abs(logs - median)))
    is_slow = logs > median + max(3 * robust_sd, 2 * TOLERANCE)
    is_very_slow = logs > median + max(RESTART_GAP, 4 * robust_sd)

    def is_restart(step: int) -> bool:
        very_slow_follows = bool(is_very_slow[step + 1 : step + 2].any())
        three_slow_follow = bool(is_slow[step + 1 : step + 4].sum() == 3)
        return step >= MIN_CUT and (very_slow_follows or three_slow_follow)

    return [step for step in np.flatnonzero(is_very_slow).tolist() if is_restart(step)]


def _warn_of_kept_steps(logs: Array, cut: int) -> Iterable[str]:
    kept_steps = logs[cut:]
    median = float(np.median(kept_steps))
    artefacts = int((kept_steps < median - ARTEFACT_GAP).sum())
    if artefacts:
        yield (
            f"{artefacts} of {len(kept_steps)} kept steps took less than a quarter of the usual time: the clock "
            "measured the dispatch, not the device; trust the median, but not single steps"
        )
    scatter = SD_PER_MAD * float(np.median(np.abs(kept_steps - median)))
    if scatter > MAX_SCATTER:
        yield f"the kept steps scatter by {100 * math.expm1(scatter):.0f}%; such a run cannot show small differences"
    if (groups := _find_two_speeds(kept_steps)) is not None:
        share, gap = groups
        yield (
            f"{100 * share:.0f}% of the kept steps are {100 * math.expm1(gap):.0f}% slower than the others: stalls, or "
            "two speeds; the median reflects only one of them"
        )


def _find_two_speeds(kept_steps: Array) -> tuple[float, float] | None:
    """Return the best split of the steps into fast and slow ones (Otsu 1979): the share of slow steps, and the
    log-scale gap between the means; None if a single group explains the steps."""
    n = len(kept_steps)
    total_squares = float(np.var(kept_steps)) * n
    if n < MIN_GROUPED_STEPS or total_squares == 0:
        return None
    # Try every split of the sorted steps into the ``fast_counts[i]`` fastest and the others.
    sums = np.cumsum(np.sort(kept_steps))
    fast_counts = np.arange(1, n)
    slow_counts = n - fast_counts
    gaps = (sums[-1] - sums[:-1]) / slow_counts - sums[:-1] / fast_counts  # mean of slow steps - mean of fast steps
    squares_between = gaps**2 * fast_counts * slow_counts / n
    best = int(np.argmax(squares_between))
    slow_share, gap = float(slow_counts[best]) / n, float(gaps[best])
    explains_variance = squares_between[best] >= MIN_BETWEEN_SHARE * total_squares
    are_both_large = min(slow_share, 1 - slow_share) >= MIN_GROUP_SHARE
    if explains_variance and are_both_large and gap > MIN_GROUP_GAP:
        return slow_share, gap
    return None
