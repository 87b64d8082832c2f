"""Estimates on the log scale, formatted as percentages of a ratio, and what they are tested against."""

from collections.abc import Sequence

from regbot.records.session import SessionHeader
from regbot.records.settings import ThroughputThresholds
from regbot.records.verdict import Decision, PrimaryTest
from regbot.stats.launch import SUMMARIES
from regbot.stats.paired import Interval, Thresholds
from regbot.stats.summary import percent


def percent_fields(estimate: Interval) -> dict[str, float]:
    """Return an estimate and its interval as the fields of a record."""
    return {f"{name}_pct": percent(getattr(estimate, name)) for name in ("estimate", "low", "high")}


def format_estimate(estimate: Interval) -> str:
    """Return an estimate with its interval: ``+46.70% (+38.20% to +55.90%)``."""
    return f"{percent(estimate.estimate):+.2f}% ({percent(estimate.low):+.2f}% to {percent(estimate.high):+.2f}%)"


def primary_test(name: str, decision: Decision, estimate: Interval, ratios: Sequence[float]) -> PrimaryTest:
    fields = {"summary": name, "decision": decision, "sd_pct": 100 * estimate.sd, "log_ratios": list(ratios)}
    return PrimaryTest.model_validate({**fields, **percent_fields(estimate)})


def count_primary_tests(header: SessionHeader) -> int:
    """Return the number of primary tests of the whole check, among which its error rate is divided."""
    return max(1, len(header.timed)) * len(SUMMARIES)


def thresholds(settings: ThroughputThresholds) -> Thresholds:
    return Thresholds.from_percent(settings.threshold_pct, settings.indifference_pct)
