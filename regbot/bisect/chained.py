"""A bisection that continues the session of the check that saw the slowdown.

The runs of the check and those of the search then have one level, so the search knows the slowdown and its noise from
the start. A pair of culprit and parent is as informative as two search runs. So the confirmation begins earlier, and
the posterior of all runs may confirm the culprit after any whole block.
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
"""Probability of a commit that confirms it after a whole block. The interval of its slowdown has the same level."""


@dataclass(frozen=True)
class CheckLease:
    """Lease of a check: the machine that it held, and the end of its last run."""

    engine: str
    host: str
    end_unix_s: float
    stratum: str
    """Stratum of the runs of the check."""


def continued_stratum(lease: CheckLease | None, engine: str, host: str, now_unix_s: float) -> str:
    """Return the stratum of the check if a bisection on this engine and host, begun now, continues its session; ''
    otherwise.
    """
    if lease is None or (lease.engine, lease.host) != (engine, host):
        return ""
    return lease.stratum if 0 <= now_unix_s - lease.end_unix_s <= LEASE_GAP_S else ""


def has_check_of_session(observations: Sequence[Observation]) -> bool:
    """Return whether runs of the bisection have the stratum of a check."""
    strata = {run.stratum for run in observations if run.purpose == "reused"}
    return any(run.purpose != "reused" and run.stratum in strata for run in observations)


def posterior_test(
    analysis: SpanAnalysis, blocks: int, thresholds: Thresholds, posterior: float, summary: str
) -> SequentialTest | None:
    """Return the test that the posterior of all runs passes; None if it does not, or if there is no block yet.

    ``blocks`` is the number of complete blocks of culprit and parent. ``posterior`` is the probability that the user
    requested. If it is larger than ``CONFIRMED_POSTERIOR``, it replaces it. The interval is that of the effect.
    """
    needed = max(posterior, CONFIRMED_POSTERIOR)
    if not blocks or analysis.probability < needed:
        return None
    effect, sd, pairs = analysis.posterior.effect, analysis.posterior.effect_sd, blocks * BLOCK_PAIRS
    half_width = NormalDist().inv_cdf((1 + needed) / 2) * sd
    bounds = Interval(effect, effect - half_width, effect + half_width, sd, pairs, 1 - needed)
    decision = decide(bounds, thresholds)
    if decision != "regressed":
        return None
    return SequentialTest(decision, pairs, 0, 1 - needed, {summary: (decision, bounds)}, unused=0)
