"""The screen: is a new session like the stored ones? Levels of sessions, never runs, are the samples.

All runs of a session share a node and a day, and what those add does not cancel here as it does in a pair. So a session
becomes one number, its level, and head's level is held against the scatter of the stored levels: the prediction
interval of one more session. Welch's test of three head runs against 120 stored ones takes the shared part for an
effect of the code: it calls 8 to 22% of harmless changes slower, where it means to call 2.5%.

It assumes that stored levels are roughly normal, and that head's session is drawn as they were: the same class of node
and environment, the same number of runs, no node that is new to the class. It does not know which sessions those are;
the caller chooses them. It cannot see a creep that the stored sessions have themselves.

Everything is on the log scale, positive means slower. ``benchmarks/gate.py`` measures what the screen costs and misses.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from scipy.special import stdtrit

from regbot.records.verdict import Decision
from regbot.stats.paired import Thresholds, combine, decide

SCREEN_RUNS = 3
"""Head runs of a screen; one discarded warm launch comes before them. More runs hardly narrow the interval: on most
nodes a session's level scatters more by its node and day than by its runs."""

LEAST_SESSIONS = 8
"""Stored sessions below which there is no screen. The interval is calibrated for any two or more, if levels are normal;
but with fewer than eight their standard deviation is not known to a factor of two (95%), and whether they are normal,
or all of one node, cannot be seen at all."""

SCREEN_ALPHA = 0.05
"""Two-sided: a harmless change goes on to pairs in 5% of checks by each summary, and a bound errs in 2.5%."""


@dataclass(frozen=True)
class Prediction:
    """Two-sided interval of head's effect against the mean of the stored sessions, at level 1 - ``alpha``."""

    estimate: float
    low: float
    high: float
    sd: float
    """Of the level of one session, not of a pair."""
    sessions: int
    """Stored ones."""
    alpha: float


@dataclass(frozen=True)
class Screened:
    """Whether a screen passed. It can pass or go on to pairs; it can never fail a change."""

    passed: bool
    bound: float
    """Head is at most this much slower: the largest upper end, log scale. Infinite where there is no interval."""
    tests: dict[str, Prediction]
    """By summary; empty where fewer than two sessions are stored."""
    why: str
    """One sentence: why it did not pass. Empty where it did."""


def level(run_values: Sequence[float]) -> float:
    """A session's level: the mean of one summary over its first ``SCREEN_RUNS`` runs, log scale.

    Stored sessions have more runs than head's. They count with as many as head has, because a mean over more runs
    scatters less than head's will, and the interval would be too narrow. The first runs, because a node that warms up
    or drifts over a session is then caught at the same place. Raises ValueError for fewer runs (their mean scatters
    more, and head's would be found outside too often), or a value that is not finite.
    """
    if len(run_values) < SCREEN_RUNS:
        raise ValueError(f"a session of {len(run_values)} runs has no level; {SCREEN_RUNS} are needed")
    mean = math.fsum(run_values[:SCREEN_RUNS]) / SCREEN_RUNS
    if not math.isfinite(mean):
        raise ValueError("the summary of a run is not finite")
    return mean


def prediction(stored: Sequence[float], head: float, alpha: float = SCREEN_ALPHA) -> Prediction:
    """The interval of head - mean(stored): +- t(1 - alpha/2, n - 1) s sqrt(1 + 1/n), s and n of the stored levels.

    1 stands for the scatter of head's own session, 1/n for that of the stored mean. Raises ValueError for fewer than
    two sessions, or a level that is not finite.
    """
    sessions = len(stored)
    if sessions < 2:
        raise ValueError(f"{sessions} stored sessions have no scatter; 2 are needed")
    mean = math.fsum(stored) / sessions
    if not (math.isfinite(mean) and math.isfinite(head)):
        raise ValueError("the level of a session is not finite")
    # As in the paired test: the mean can miss equal values by a rounding error.
    same = min(stored) == max(stored)
    sd = 0.0 if same else math.sqrt(math.fsum((x - mean) ** 2 for x in stored) / (sessions - 1))
    estimate = head - (stored[0] if same else mean)
    half = float(stdtrit(sessions - 1, 1 - alpha / 2)) * sd * math.sqrt(1 + 1 / sessions)
    return Prediction(estimate, estimate - half, estimate + half, sd, sessions, alpha)


def screen(stored: Mapping[str, Sequence[float]], head: Mapping[str, float], bound: float) -> Screened:
    """Pass where head's session is like the stored ones and proves that head is at most ``bound`` slower.

    ``stored`` and ``head`` hold levels by summary. It passes where every summary's interval holds 0 and no upper end
    exceeds ``bound``. Alpha is not shared among the summaries. The stated bound is the largest upper end; it is false
    only if it lies below the effect of the summary that was slowed most, so that this one summary's upper end does too,
    which has probability alpha / 2 whatever the other does.
    """
    tests = _predictions(stored, head, SCREEN_ALPHA)
    why = _why_not(tests, _sessions(stored), bound)
    return Screened(not why, _largest(tests), tests, why)


def stored_gate(
    stored: Mapping[str, Sequence[float]],
    head: Mapping[str, float],
    primary_tests: int,
    thresholds: Thresholds,
    bound: float,
) -> tuple[Decision, dict[str, tuple[Decision, Prediction]]]:
    """The verdict of stored sessions alone, for those who cannot run pairs. It may fail a change.

    Each interval has alpha ``SCREEN_ALPHA`` / ``primary_tests``, of the whole check, and is judged as a pair's would
    be. Where that leaves it undecided, and the same intervals pass by the screen's rule, the decision is
    ``within_bound``. Below ``LEAST_SESSIONS`` everything is undecided; below two there are no tests. Raises ValueError
    where the primary tests are fewer than the summaries.
    """
    if primary_tests < len(head):
        raise ValueError(f"{primary_tests} primary tests are fewer than the {len(head)} summaries given")
    found = _predictions(stored, head, SCREEN_ALPHA / primary_tests)
    if _sessions(stored) < LEAST_SESSIONS:
        return "undecided", {name: ("undecided", each) for name, each in found.items()}
    tests = {name: (decide(each, thresholds), each) for name, each in found.items()}
    decision = combine(tests.values(), thresholds)
    if decision == "undecided" and not _why_not(found, _sessions(stored), bound):
        decision = "within_bound"
    return decision, tests


def _predictions(
    stored: Mapping[str, Sequence[float]], head: Mapping[str, float], alpha: float
) -> dict[str, Prediction]:
    if not head or stored.keys() != head.keys():
        raise ValueError("stored sessions and head must have the same summaries, and there must be one")
    if _sessions(stored) < 2:
        return {}
    return {name: prediction(stored[name], value, alpha) for name, value in head.items()}


def _sessions(stored: Mapping[str, Sequence[float]]) -> int:
    lengths = {len(values) for values in stored.values()}
    if len(lengths) != 1:
        raise ValueError("the summaries must have the same number of stored sessions, and there must be a summary")
    return lengths.pop()


def _largest(tests: Mapping[str, Prediction]) -> float:
    return max((each.high for each in tests.values()), default=math.inf)


def _why_not(tests: Mapping[str, Prediction], sessions: int, bound: float) -> str:
    if sessions < LEAST_SESSIONS:
        return f"{sessions} stored sessions of this class and environment are too few; a screen needs {LEAST_SESSIONS}"
    for name, each in tests.items():
        if not each.low <= 0 <= each.high:
            word = "slower" if each.estimate > 0 else "faster"
            return (
                f"by the {name} step time head is {_percent(each.estimate)} {word} than the mean of {sessions} stored "
                f"sessions, which differ by less among themselves"
            )
    if _largest(tests) > bound:
        return (
            f"stored sessions differ so much that head may be up to {_percent(_largest(tests))} slower, and a screen "
            f"passes up to {_percent(bound)}"
        )
    return ""


def _percent(log_ratio: float) -> str:
    return f"{abs(100 * math.expm1(min(log_ratio, 20.0))):.2g}%"
