"""Confirmation of a culprit that a noisy search found: ABBA blocks of the culprit and its parent, in the paired gate.

If the bisection continues the session of the check that saw the slowdown, the posterior of all runs may confirm the
culprit after any whole block, because the runs of the check then have the same level as those of the search.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

from regbot.bisect.driver import MeasurementRequest
from regbot.check.sessions.blocks import BLOCK_PAIRS, BLOCK_SLOTS, MAX_ATTEMPTS, block_count, draw_order, pair_slots
from regbot.records.bisection import Observation, Point
from regbot.stats.culprit import Posterior
from regbot.stats.paired import LOOKS, PASSING, Interval, SequentialTest, Thresholds, decide, sequential_test

SLOWER_SHARE, CLEARED_SHARE = 1 / 4, 1 / 2
"""Shares of the effect that the search estimates. The gate confirms a culprit by proving a slowdown above the first
share, and clears it by ruling out a slowdown of the second share.
"""

CONFIRMED_POSTERIOR = 0.99
"""Probability at which the posterior confirms a commit after a whole block. It is also the confidence of the interval
of the commit's slowdown.
"""


@dataclass(frozen=True)
class Confirmation:
    """State of the comparison of a culprit and its parent after the runs so far."""

    gate: SequentialTest | None = None
    """Result so far; None before the first look."""
    request: MeasurementRequest | None = None
    """The next run; None if the comparison is decided, has all its pairs, or has failed."""
    failure: str = ""
    """Why the comparison cannot be finished; '' if it can."""
    blocks: int = 0
    """Number of complete blocks."""

    @property
    def is_cleared(self) -> bool:
        """Whether the gate shows no slowdown: the two points are equally fast, or the culprit is faster."""
        return self.request is None and self.gate is not None and self.gate.decision in PASSING


def confirm(
    parent: Point, culprit: Point, observations: Sequence[Observation], stratum: str, seed: int, thresholds: Thresholds
) -> Confirmation:
    """Evaluate the blocks of two points at the planned looks of the paired gate.

    ``seed`` decides the order of the runs in each block. ``stratum`` is the stratum of the next run; '' if only the
    result is needed. The runs of a block must come from one stratum, so a block that another one has begun begins anew.
    """
    runs = [run for run in observations if run.purpose == "confirm" and run.contrast == culprit.key]
    log_ratios: dict[str, list[float]] = {}  # by summary: culprit against parent, pair by pair
    gate: SequentialTest | None = None
    blocks = block_count(LOOKS[-1])
    for block in range(1, blocks + 1):
        order = draw_order(seed, culprit.key, block)  # "ABBA" or "BAAB"; A is the parent
        block_runs = [run for run in runs if run.block == block]
        failures = [run for run in block_runs if not run.usable and not run.void]
        attempt = _current_attempt(block_runs)
        if len(attempt) < BLOCK_SLOTS:
            if len(failures) >= MAX_ATTEMPTS:
                return Confirmation(gate, failure=failures[-1].reason, blocks=block - 1)
            begins_anew = bool(stratum and attempt) and attempt[-1].stratum != stratum
            index = 0 if begins_anew else len(attempt)
            point = parent if order[index] == "A" else culprit
            request = MeasurementRequest(point, "confirm", contrast=culprit.key, block=block, index_in_block=index)
            return Confirmation(gate, request, blocks=block - 1)
        for base_index, head_index in pair_slots(order):
            base, head = attempt[base_index], attempt[head_index]
            for summary in base.values.keys() & head.values.keys():  # the values are logarithms
                log_ratios.setdefault(summary, []).append(head.values[summary] - base.values[summary])
        gate = sequential_test(log_ratios, primary_tests=len(log_ratios), thresholds=thresholds)
        if gate is not None and gate.final:
            return Confirmation(gate, blocks=block)
    return Confirmation(gate, blocks=blocks)


def _current_attempt(block_runs: Sequence[Observation]) -> list[Observation]:
    """Return the runs of a block after its last failure that come from the stratum of the last run."""
    failures = [number for number, run in enumerate(block_runs) if not run.usable]
    attempt = list(block_runs[failures[-1] + 1 :] if failures else block_runs)
    return [run for run in attempt if run.stratum == attempt[-1].stratum]


def effect_thresholds(effect: float, indifference: float) -> Thresholds:
    """Return the thresholds of a confirmation. All are log-ratios: ``effect`` is the slowdown that the search
    estimates, and ``indifference`` the gate's threshold, below which slowdowns do not matter."""
    return Thresholds(delta=CLEARED_SHARE * effect, eps=min(indifference, SLOWER_SHARE * effect))


def posterior_test(
    posterior: Posterior, probability: float, blocks: int, thresholds: Thresholds, summary: str
) -> SequentialTest | None:
    """Return the confirmation of the culprit by the posterior of all runs; None if the posterior does not confirm it.

    ``probability`` is the culprit's, and ``blocks`` the number of complete blocks, of which at least one is needed. The
    interval of the result is the posterior interval of the effect.
    """
    if not blocks or probability < CONFIRMED_POSTERIOR:
        return None
    effect, sd, alpha = posterior.effect, posterior.effect_sd, 1 - CONFIRMED_POSTERIOR
    half_width = NormalDist().inv_cdf(1 - alpha / 2) * sd
    bounds = Interval(effect, effect - half_width, effect + half_width, sd, blocks * BLOCK_PAIRS, alpha)
    decision = decide(bounds, thresholds)
    if decision != "regressed":
        return None
    return SequentialTest(decision, bounds.count, alpha=alpha, tests={summary: (decision, bounds)}, unused=0)
