"""A bisection that continues the session of the check that saw the slowdown.

The runs of the check and the runs of the search then belong to one stratum, so their step times can be compared. The
search knows the slowdown and its noise from the start. A pair of culprit and parent is as informative as two search
runs. So the confirmation begins at a lower probability than in other searches (``HANDOVER_POSTERIOR``). After any whole
block, the posterior of all runs may confirm the culprit.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

from regbot.bisect.span import SpanAnalysis
from regbot.records.bisection import Observation
from regbot.sessions.blocks import BLOCK_PAIRS
from regbot.stats.paired import Interval, SequentialTest, Thresholds, decide

LEASE_GAP_S = 30 * 60.0
"""A bisection continues the session of a check if it begins at most this many seconds after the last run of the check,
on the same machine.
"""

HANDOVER_POSTERIOR = 0.85
"""Probability of a commit at which its confirmation begins."""

CONFIRMED_POSTERIOR = 0.99
"""Probability at which a commit is confirmed after a whole block. It is also the confidence of the interval of the
commit's slowdown.
"""


@dataclass(frozen=True)
class CheckLease:
    """The machine that a check used, and the time of its last run."""

    engine: str
    """Name of the engine."""
    host: str
    """Name of the machine."""
    end_unix_s: float
    """End of the last run of the check, in seconds since 1970."""
    stratum: str
    """Stratum of the runs of the check."""


def continued_stratum(lease: CheckLease | None, engine: str, host: str, now_unix_s: float) -> str:
    """Return the stratum of the check if the bisection continues the check's session; '' otherwise.

    The bisection continues it on the same engine and host, within ``LEASE_GAP_S`` of the last run of the check.
    """
    if lease is None or (lease.engine, lease.host) != (engine, host):
        return ""
    return lease.stratum if 0 <= now_unix_s - lease.end_unix_s <= LEASE_GAP_S else ""


def has_check_of_session(observations: Sequence[Observation]) -> bool:
    """Return whether the bisection continues the session of a check: its own runs have the stratum of reused runs."""
    check_strata = {run.stratum for run in observations if run.purpose == "reused"}
    return any(run.purpose != "reused" and run.stratum in check_strata for run in observations)


def posterior_test(
    analysis: SpanAnalysis, blocks: int, thresholds: Thresholds, posterior: float, summary: str
) -> SequentialTest | None:
    """Return the confirmation of the culprit by the posterior of all runs; None if the posterior does not confirm it.

    ``blocks`` is the number of complete blocks of culprit and parent. At least one is needed. ``posterior`` is the
    probability that the user requested. The culprit needs this probability or ``CONFIRMED_POSTERIOR``, whichever is
    larger. The interval of the result is the posterior interval of the effect. ``thresholds`` are those of the paired
    gate, and ``summary`` is the name of the compared summary, such as "median".
    """
    needed_probability = max(posterior, CONFIRMED_POSTERIOR)
    if not blocks or analysis.probability < needed_probability:
        return None
    effect, sd, pairs = analysis.posterior.effect, analysis.posterior.effect_sd, blocks * BLOCK_PAIRS
    half_width = NormalDist().inv_cdf((1 + needed_probability) / 2) * sd
    alpha = 1 - needed_probability
    bounds = Interval(effect, effect - half_width, effect + half_width, sd, pairs, alpha)
    decision = decide(bounds, thresholds)
    if decision != "regressed":
        return None
    # Look 0 here stands for a decision outside of the planned looks of the gate. ``unused`` is 0, because no pair was
    # measured after the decision.
    return SequentialTest(decision, pairs, look=0, alpha=alpha, tests={summary: (decision, bounds)}, unused=0)
