"""The line that compares a workload with its stored baseline. This comparison is no part of the verdict.

The comment, the report (report.html) and the terminal use the same words.
"""

from regbot.records.text.clip import clip, short_commit
from regbot.records.text.words import count
from regbot.records.verdict import StoredCollectives, StoredComparison, StoredTest, StoredTimes
from regbot.report.markdown import Name, UntrustedText, Words
from regbot.report.quantities import estimate_and_interval

REASON_CHARACTERS = 300
MAX_PATTERNS = 4
MIN_P_VALUE = 0.0001
"""Smaller p values are shown as below this value, because the tail of the t distribution is not known better."""


def describe_stored(comparison: StoredComparison) -> Words:
    """Return how the step times of base and head differ from the last sessions of main, and whether head has the
    collectives of the stored ledger."""
    times = describe_stored_times(comparison.times) if comparison.times is not None else ()
    collectives = describe_stored_collectives(comparison.collectives) if comparison.collectives is not None else ()
    return (*times, *(("; ",) if times and collectives else ()), *collectives)


def describe_stored_times(times: StoredTimes) -> Words:
    """Return each arm with its prediction interval, or why no stored session can be compared.

    The interval is that of the median step time. The interval of the mean step time is added only if the mean, and not
    the median, is outside of the range that the stored sessions predict.
    """
    if times.reason:
        return ("no comparison with stored times: ", UntrustedText(clip(times.reason, REASON_CHARACTERS)))
    tests = [test for test in times.tests if test.summary == "median" or _is_outside_alone(test, times)]
    age = f" (newest: {_describe_age(times.age_days)})" if times.age_days is not None else ""
    return (
        f"compared with the last {count(times.sessions, 'session')} of main on this node class and in this "
        f"environment{age}, " + ", ".join(_describe_test(test, times) for test in tests),
    )


def _describe_test(test: StoredTest, times: StoredTimes) -> str:
    """Return an arm with its prediction interval: ``base's step is 0.41% longer [−1.20, +2.02] (p = 0.61)``."""
    p_value = f"p < {MIN_P_VALUE:g}" if test.p_value < MIN_P_VALUE else f"p = {test.p_value:.2g}"
    step = "mean step" if test.summary == "mean" else "step"
    estimate, ends = estimate_and_interval(test.estimate_pct, test.low_pct, test.high_pct)
    # The words "longer" and "shorter" replace the sign.
    change = f"{estimate.lstrip('+−')} {'longer' if test.estimate_pct >= 0 else 'shorter'}"
    note = f"{p_value}, more than these sessions differ from each other" if _is_outside(test, times) else p_value
    return f"{test.arm}'s {step} is {change} {ends} ({note})"


def _is_outside_alone(test: StoredTest, times: StoredTimes) -> bool:
    """Return whether ``test`` is the only test of its arm that is outside of the predicted range."""
    outside = [other.summary for other in times.tests if other.arm == test.arm and _is_outside(other, times)]
    return outside == [test.summary]


def _is_outside(test: StoredTest, times: StoredTimes) -> bool:
    """Return whether the arm's step time is outside of the range that the stored sessions predict. ``times.alpha`` is
    the error probability of this range; None if there is no range."""
    return times.alpha is not None and test.p_value < times.alpha


def describe_stored_collectives(collectives: StoredCollectives) -> Words:
    """Return whether head has the collectives of the stored ledger. If not, name the patterns of the findings."""
    age = f", {_describe_age(collectives.age_days)}" if collectives.age_days is not None else ""
    stored: Words = ("the stored ones of ", Name(short_commit(collectives.commit)), age)
    if collectives.reason:
        reason = UntrustedText(clip(collectives.reason, REASON_CHARACTERS))
        return ("head's collectives cannot be compared with ", *stored, ": ", reason)
    if not collectives.patterns:
        return ("head's collectives equal ", *stored)
    patterns = ", ".join(collectives.patterns[:MAX_PATTERNS])
    return ("head's collectives differ from ", *stored, ": ", UntrustedText(clip(patterns, REASON_CHARACTERS)))


def _describe_age(days: float) -> str:
    return "less than a day old" if days < 1 else f"{count(round(days), 'day')} old"
