"""Steady state: from which step on do the step times of one run say how fast it is, and do they ever?

A training process begins slowly: compilation, graph capture, the allocator, natural routing that settles. Its steps are
steady from the last change of level on, if that leaves at least half of the log. Two searches look for that change and
the later answer wins. *Change points* (PELT, Killick 2012) see several changes; *the tail* asks whether what comes
before a step agrees with what comes after it, and sees smaller ones. A *drift*, which a straight line explains as well
as any single change, has no last change. All know that neighbouring steps follow each other's noise: taken as
independent, the steps of most runs seem to change all the time.

Changes below 1% are left in, on purpose: both arms of a pair have them. One slow step is no change, however slow it is;
it is set aside while looking for changes and stays in the run. A run that never settles is an outcome, not an error:
leaving single runs out would choose the result.

Nothing is known here of files, of what a step did, or of the unit of the times. Constants without a source come from
``benchmarks/steady.py``, which prints the error rates; ``docs/steady-state.md`` has an example and the limits.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]
Method = Literal["changes-and-tail", "short-log", "none"]

FLOOR = 10
"""Steps that are always left out of a log that is long enough; most warm-ups of real jobs end within them."""

SHORT = 40
"""Steps below which a log is short. A fifth of it is then left out, and no change is looked for in the rest: it is only
asked whether the rest rises or falls."""
SHORT_SHARE = 5

LEAST = 6
"""Kept steps below which nothing can be said: a rise of five steps in a row is no evidence at ``SHORT_ALPHA``."""

TOLERANCE = math.log(1.01)
"""A change of level below this is none."""

PENALTY = 4.0
"""PELT pays this times log(n) times the long-run variance for each change point."""

WARM_UP_Z, TAIL_Z = 2.0, 3.0
"""Standard errors between what comes before a step and what comes after it, at the step where they are most. Fewer are
asked of a fall in the first quarter: that is what a warm-up looks like, and to cut it off in error costs few steps."""

DRIFT, DRIFT_Z = 1.5 * TOLERANCE, 2.1
"""Rise of a straight line over the steps, and its standard errors. A line rises by up to 1.5 times the step of level
that it is laid through, so that a smaller rise may be a change within the tolerance."""

RISING_SHARE, FALLING_SHARE = 0.75, 1.0
"""A line that explains the steps at least so well as the best single step of level does (in standard errors) is a
drift, not a warm-up to cut off. 0.75 is what a line reaches on a level that changes a quarter into the log. What falls
is more readily taken for a warm-up than what rises: nothing warms up by getting slower."""

SEGMENT = 5
"""The shortest stretch with a level of its own."""

TAIL_STEPS, TAIL_SHARE = 10, 0.1
"""The tail has at least so many steps and this share of the log: the end of a log may be one slow moment."""

HAMPEL_WINDOW, HAMPEL_SDS = 10, 4.0
"""A step further from the median of its neighbours (so many on each side) than so many robust standard deviations is
replaced by that median while looking for changes (Hampel 1974)."""

USUAL_RHO, RHO_WEIGHT = 0.4, 20
"""Autocorrelation of neighbouring steps where nothing is known, and how many steps that is worth: real jobs have -0.3
to 0.5, and 40 steps alone estimate it to +-0.15."""

LOST_STEPS = 20
"""The best single change of level takes that much of the noise with it: n steps around it show n / (n + 20) of it."""

MOST_POINTS = 2000
"""Longer logs are averaged in blocks first; the search for change points takes quadratic time."""

ARTEFACT = math.log(4.0)
"""A step this far below the usual one did not take that time. Asynchronous dispatch returns before the device is done;
the time appears in another step."""

ARTEFACTS_SHARE = 0.25
"""With that many such steps the clock measures the dispatch."""

RESUME = math.log(3.0)
"""A step this far above the usual one, with slow steps behind it, is where a process started again."""

SHORT_ALPHA = 0.02
"""Error of the test for a trend in a short log, of steps that do not follow each other's noise; it is the smallest at
which the first 20 logged steps of a real job that settles for 300 are seen to settle."""

SCATTER = math.log(1.1)
"""Robust standard deviation of the kept steps above which a run is said to scatter; good nodes have 0.3 to 1%."""

TWO_SPEEDS = 0.8
"""Share of the variance between two groups of steps. One group split at its best has 0.64 if it is normal, 0.75 if it
is uniform."""
TWO_SPEEDS_SHARE, TWO_SPEEDS_GAP, TWO_SPEEDS_STEPS = 0.1, math.log(1.02), 20

HALF_OF_ARM = 0.5
FISHER_ALPHA = 0.01


@dataclass(frozen=True)
class Steady:
    """From which step on a run is steady, and whether it is."""

    cut: int
    """Steps to leave out, in 1..steps - 1. Where ``steady`` is false it is what to show the run by."""
    steady: bool
    reason: str
    """One sentence: what was found, or why there is no steady state."""
    method: Method
    warmup_steps: int | None
    """Steps from the start of the process to the last change of level, whatever the floor and the other runs' cuts: a
    metric of its own. None where it was not measured: short logs, and runs that are not steady."""
    steps: int
    """Of the log."""
    warnings: tuple[str, ...] = ()


class Found(NamedTuple):
    """What one process's log shows."""

    cut: int
    steady: bool
    reason: str
    method: Method
    warmup_steps: int | None


class Change(NamedTuple):
    """The step of level that explains an array best: where the later level begins, its t statistic, its direction."""

    at: int
    z: float
    falls: bool


def steady_state(step_s: ArrayLike, resumed: Iterable[int] = ()) -> Steady:
    """Where the steady state of one run begins. ``step_s``: seconds of each step, the first step of the log first.

    ``resumed`` are the positions of steps before which the process is known to have been started again; a start that is
    not named is found if it shows (a very slow step with slow steps behind it). Everything before the last one is left
    out, and what comes after is judged as a log of its own.

    Raises ValueError where there are fewer than two steps, a time is not positive and finite, or ``resumed`` names a
    position outside the log.
    """
    logs = _logs(step_s)
    steps = len(logs)
    named = sorted(set(resumed))
    if named and not 0 <= named[0] <= named[-1] < steps:
        raise ValueError(f"the run was resumed at {named}; positions of this log are 0 to {steps - 1}")
    start = max([*named, *_restarts(logs)], default=0)
    found = _process(logs[start:])
    cut = min(start + found.cut, steps - 1)
    warnings = [*_warnings(logs[start:], cut - start)]
    if start:
        warnings.insert(0, f"the process started again at step {start}; the {start} steps before are left out")
    if found.method == "short-log":
        after = " after that" if start else ""
        warnings.append(f"a short log: {steps - start} steps{after}; where its warm-up ends was not looked for")
    reason = f"after the restart at step {start}, {found.reason}" if start else found.reason
    return Steady(cut, found.steady, reason, found.method, found.warmup_steps, steps, tuple(warnings))


def shared_cut(runs: Sequence[Steady]) -> int:
    """The cut of all ``runs`` of a pair: the largest, whatever their order.

    A cut of its own would give each arm another stretch of the thermal rise and of the warm-up's tail, which cancel
    only where both arms have them. Raises ValueError without runs, and where the cut leaves nothing of one of them.
    """
    if not runs:
        raise ValueError("a shared cut needs at least one run")
    cut = max(run.cut for run in runs)
    shortest = min(run.steps for run in runs)
    if cut >= shortest:
        raise ValueError(f"the shared cut of {cut} steps leaves nothing of a run that has {shortest}; run it longer")
    return cut


def unsettled(base: Sequence[bool], head: Sequence[bool]) -> tuple[str, ...]:
    """What the runs without a steady state say of a session; () where nothing. ``base`` and ``head``: run is steady.

    Single runs are never left out for it. An arm is in doubt where half of its runs are not steady, the two arms differ
    where Fisher's exact test says so at 1%: then one of them may be what is unstable.
    """
    flagged = {name: sum(not steady for steady in runs) for name, runs in (("base", base), ("head", head))}
    told = []
    for name, runs in (("base", base), ("head", head)):
        if runs and flagged[name] >= HALF_OF_ARM * len(runs):
            told.append(f"{flagged[name]} of {len(runs)} {name} runs have no steady state")
    if base and head and _fisher(base, head) < FISHER_ALPHA:
        counts = f"base {flagged['base']} of {len(base)}, head {flagged['head']} of {len(head)}"
        told.append(f"runs without a steady state are not alike in the arms: {counts}")
    return tuple(told)


def _logs(step_s: ArrayLike) -> Array:
    """Log step times around their median. Rounded, so that the unit of the times changes no last digit."""
    seconds = np.asarray(step_s, dtype=np.float64)
    if seconds.ndim != 1:
        raise ValueError(f"step times are a list of seconds, not an array of {seconds.ndim} dimensions")
    if len(seconds) < 2:
        raise ValueError(f"{len(seconds)} step times have no steady state; two are the least")
    bad = np.flatnonzero(~(np.isfinite(seconds) & (seconds > 0)))
    if len(bad):
        raise ValueError(f"step {bad[0]} took {seconds[bad[0]]} s; a step time is positive and finite")
    logs = np.log(seconds)
    around: Array = np.round(logs - np.median(logs), 9)
    return around


def _process(logs: Array) -> Found:
    """The log of one process, from its first step."""
    steps = len(logs)
    half = steps // 2
    short = logs < np.median(logs[half:]) - ARTEFACT
    floor = FLOOR if steps >= SHORT else math.ceil(steps / SHORT_SHARE)
    floor = max(floor, 1 + max((int(at) for at in np.flatnonzero(short[:half])), default=-1))
    if steps - floor < LEAST:
        return Found(min(floor, max(steps - 1, 0)), False, _too_few(steps, floor), "none", None)
    if short[floor:].mean() >= ARTEFACTS_SHARE:
        share = f"{short[floor:].sum()} of {steps - floor} steps took less than a quarter of the usual time"
        return Found(floor, False, f"{share}: the clock saw the dispatch, not the device", "none", None)
    return _short(logs, floor) if steps < SHORT else _long(logs, floor)


def _too_few(steps: int, floor: int) -> str:
    return f"{steps} steps are too few: {steps - floor} are left after {floor}, and {LEAST} are the least"


def _short(logs: Array, floor: int) -> Found:
    """A short log: a fixed cut, and no steady state if the rest rises or falls (Mann 1945, Kendall; Sen's slope).

    Ranks, because one slow step in fifteen would decide anything else.
    """
    kept = logs[floor:]
    first, second = np.triu_indices(len(kept), 1)
    gaps = kept[second] - kept[first]
    rise = float(np.median(gaps / (second - first))) * (len(kept) - 1)
    if _mann_kendall(kept, np.sign(gaps)) < SHORT_ALPHA and abs(rise) > TOLERANCE:
        return Found(floor, False, f"{_said(rise)} over the {len(kept)} steps after {floor}", "short-log", None)
    reason = f"the {len(kept)} steps after {floor} neither rise nor fall"
    return Found(floor, True, reason, "short-log", None)


def _mann_kendall(values: Array, signs: Array) -> float:
    """Two-sided p of no trend, normal approximation with continuity correction and the correction for ties."""
    n = len(values)
    _, ties = np.unique(values, return_counts=True)
    variance = (n * (n - 1) * (2 * n + 5) - np.sum(ties * (ties - 1) * (2 * ties + 5))) / 18
    if variance <= 0:
        return 1.0
    return math.erfc(max(abs(float(signs.sum())) - 1, 0) / math.sqrt(2 * variance))


def _long(logs: Array, floor: int) -> Found:
    """Change points, then the tail; the later cut wins. No steady state where it is past the middle of the log."""
    steps = len(logs)
    # The first step compiles. It is left out here too, lest it is what the search for changes finds.
    block = math.ceil((steps - 1) / MOST_POINTS)
    first = 1 + (steps - 1) % block
    points = without_outliers(logs[first:].reshape(-1, block).mean(axis=1))
    least = max(math.ceil((floor - first) / block), 0)
    middle = (steps // 2 - first) // block
    tail = math.ceil(max(TAIL_STEPS, TAIL_SHARE * steps) / block)
    settled = _settle(points, least, middle, tail)
    cut, last = max(first + block * settled.start, floor), first + block * settled.last
    if settled.drift is not None:
        return Found(cut, False, f"{_said(settled.drift)} from step {cut} to the end", "changes-and-tail", None)
    if settled.last > middle:
        reason = f"the step time still changes at step {last} of {steps}, past the middle; run it twice as long"
        return Found(cut, False, reason, "changes-and-tail", None)
    reason = f"no change of level of 1% or more is seen after step {cut}"
    return Found(cut, True, reason, "changes-and-tail", last if settled.last else 1)


class Settled(NamedTuple):
    """How far a search over points came. It found no steady state if there is a drift, or a last change past the
    middle."""

    start: int
    """The first point to keep. A rise past the middle is not cut off: it is no warm-up."""
    last: int
    """Where the last change of level is, 0 where there is none."""
    drift: float | None = None
    """Rise of the points from ``start`` on, where they never keep a level."""


def _settle(points: Array, least: int, middle: int, tail: int) -> Settled:
    # What can be kept lies after the middle; a warm-up cannot be mistaken for noise there.
    noise = _long_run_sd(points[middle:])
    last, falls = _last_change(points, noise)
    if last <= middle:
        noise = _long_run_sd(points[max(last, least) :])
        last, falls = _last_change(points, noise)
    if last > middle:
        return Settled(middle if falls else least, last)
    # From the floor, then from where the change points lead, then from change to change against the tail.
    start = least
    while True:
        change = _change(points[start:], noise, tail)
        rise, z = _line(points[start:], noise)
        share = RISING_SHARE if rise > 0 else FALLING_SHARE
        if abs(rise) > DRIFT and z > DRIFT_Z and z >= share * change.z:
            return Settled(start, last, rise)
        if start < last:
            start = last
            continue
        at = start + change.at
        if change.z <= (WARM_UP_Z if change.falls and at <= middle // 2 else TAIL_Z):
            return Settled(start, last)
        if at > middle:
            return Settled(middle if change.falls else start, at)
        start = last = at


def _said(rise: float) -> str:
    return f"the step time {'rises' if rise > 0 else 'falls'} by {100 * math.expm1(abs(rise)):.1f}%"


def without_outliers(logs: Array) -> Array:
    """Hampel's filter, its scale that of the whole array: a scale per window is too small in one window of ten.

    Twice, because slow steps that crowd leave one of them in the middle.
    """
    for _ in range(2):
        padded = np.pad(logs, HAMPEL_WINDOW, mode="reflect")
        usual = np.median(np.lib.stride_tricks.sliding_window_view(padded, 2 * HAMPEL_WINDOW + 1), axis=1)
        distance = np.abs(logs - usual)
        logs = np.where(distance > HAMPEL_SDS * 1.4826 * np.median(distance), usual, logs)
    return logs


def _long_run_sd(points: Array) -> float:
    """Standard deviation of a mean of many points, times the root of their number: AR(1), s^2 (1 + rho) / (1 - rho).

    From residuals around the best single change of level: around one mean, a change would pass for autocorrelation and
    hide itself.
    """
    n = len(points)
    at, *_ = _change(points, 1.0, 1, least=1, tolerance=0.0)
    residuals = np.concatenate([part - part.mean() for part in (points[:at], points[at:]) if len(part)])
    squares = max(float(residuals @ residuals), 1e-8 * n)
    rho = float(residuals[1:] @ residuals[:-1]) / squares
    rho += (1 + 3 * rho) / n  # Kendall (1954): the estimate is too small by this
    rho = min(max((n * rho + RHO_WEIGHT * USUAL_RHO) / (n + RHO_WEIGHT), 0.0), 0.9)
    return math.sqrt(squares / n * (1 + rho) / (1 - rho)) * (1 + LOST_STEPS / n)


def _last_change(points: Array, noise: float) -> tuple[int, bool]:
    """Where the last stretch of segments within the tolerance begins, 0 where there is no change; and if it falls."""
    from ruptures import KernelCPD  # type: ignore[import-untyped]  # here: it takes longer to import than to judge

    search = KernelCPD(kernel="linear", min_size=SEGMENT).fit(points[:, None])
    ends: list[int] = search.predict(pen=PENALTY * math.log(len(points)) * noise**2)
    starts = [0, *ends[:-1]]
    means = [float(points[start:end].mean()) for start, end in zip(starts, ends, strict=True)]
    last = len(means) - 1
    while last > 0 and abs(means[last - 1] - means[-1]) <= TOLERANCE:
        last -= 1
    return int(starts[last]), means[last] < means[max(last - 1, 0)]


def _change(points: Array, noise: float, tail: int, least: int = SEGMENT, tolerance: float = TOLERANCE) -> Change:
    """The step of level that stands out most from the noise, by its t statistic; a z of 0 where there is none.

    At least ``least`` points stand before it and ``tail`` behind it, and it is larger than ``tolerance``.
    """
    n = len(points)
    at = np.arange(least, n - max(tail, 1) + 1)
    if not len(at):
        return Change(0, 0.0, False)
    sums = np.cumsum(points)
    gaps = sums[at - 1] / at - (sums[-1] - sums[at - 1]) / (n - at)
    z = np.where(np.abs(gaps) > tolerance, np.abs(gaps) / (noise * np.sqrt(1 / at + 1 / (n - at))), 0.0)
    best = int(np.argmax(z))
    return Change(int(at[best]), float(z[best]), bool(gaps[best] > 0))


def _line(points: Array, noise: float) -> tuple[float, float]:
    """Rise of the least-squares line over all points, and its standard errors."""
    n = len(points)
    position = np.arange(n) - (n - 1) / 2
    rise = n * float(position @ points) / float(position @ position)
    return rise, abs(rise) / (noise * math.sqrt(12 / n))


def _restarts(logs: Array) -> list[int]:
    """Steps that look like the first of a process: far slower than usual, and not alone.

    A straggler is followed by usual steps, a start by another very slow step or by three slow ones: caches and
    allocator are cold again.
    """
    usual = float(np.median(logs))
    spread = 1.4826 * float(np.median(np.abs(logs - usual)))
    slow = logs > usual + max(3 * spread, 2 * TOLERANCE)
    starts = logs > usual + max(RESUME, 4 * spread)
    return [
        int(at)
        for at in np.flatnonzero(starts)
        if at >= FLOOR and (starts[at + 1 : at + 2].any() or slow[at + 1 : at + 4].sum() == 3)
    ]


def _warnings(logs: Array, cut: int) -> Iterable[str]:
    """What the kept steps show that no cut mends."""
    kept = logs[cut:]
    usual = float(np.median(kept))
    short = int((kept < usual - ARTEFACT).sum())
    if short:
        yield (
            f"{short} of {len(kept)} kept steps took less than a quarter of the usual time: the clock saw the "
            "dispatch, not the device; the median can be trusted, single steps cannot"
        )
    scatter = 1.4826 * float(np.median(np.abs(kept - usual)))
    if scatter > SCATTER:
        yield f"the kept steps scatter by {100 * math.expm1(scatter):.0f}%; such a run shows no small difference"
    if (found := _two_speeds(kept)) is not None:
        share, gap = found
        yield (
            f"{100 * share:.0f}% of the kept steps are {100 * math.expm1(gap):.0f}% slower than the others: stalls, or "
            "two speeds; the median knows one of them"
        )


def _two_speeds(kept: Array) -> tuple[float, float] | None:
    """The two groups that split the steps best (Otsu 1979): share of the slow one, and how much slower it is.

    None where one group explains the steps.
    """
    n = len(kept)
    total = float(np.var(kept)) * n
    if n < TWO_SPEEDS_STEPS or total == 0:
        return None
    ordered = np.sort(kept)
    at = np.arange(1, n)
    sums = np.cumsum(ordered)
    gaps = (sums[-1] - sums[:-1]) / (n - at) - sums[:-1] / at
    between = gaps**2 * at * (n - at) / n
    best = int(np.argmax(between))
    slow, gap = float(n - at[best]) / n, float(gaps[best])
    clear = between[best] >= TWO_SPEEDS * total and min(slow, 1 - slow) >= TWO_SPEEDS_SHARE and gap > TWO_SPEEDS_GAP
    return (slow, gap) if clear else None


def _fisher(base: Sequence[bool], head: Sequence[bool]) -> float:
    """Fisher's exact two-sided p: tables with these margins that are no more likely than this one."""
    flagged, total = sum(not steady for steady in (*base, *head)), len(base) + len(head)

    def ways(in_base: int) -> int:
        return math.comb(len(base), in_base) * math.comb(len(head), flagged - in_base)

    possible = range(max(0, flagged - len(head)), min(len(base), flagged) + 1)
    seen = ways(sum(not steady for steady in base))
    return sum(ways(count) for count in possible if ways(count) <= seen) / math.comb(total, flagged)
