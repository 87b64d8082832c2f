"""Sessions that break an assumption of the paired test: single slow launches, and pairs that depend on each other.

A part of ``error_rates.py``. Every simulated session has twelve pairs on a node of ``nodes.py``, and is judged by the
rule of regbot and by its rule before, Student's t interval at every look. *Slow launches*: one launch in 20 takes 30%
longer; or 15% of head's launches, and 3% of base's. *Dependent pairs*: neighbouring pairs, or the two pairs of a block,
are correlated. Independent placebo sessions of the same node show how often regbot's calibration proves a correlation
above its limit, so that the gate does not vote.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, fields
from math import log1p

import numpy as np
from gate import PAIRS, PRIMARY, STEADY, THRESHOLDS, judge_before, log_ratios, summaries
from promises import Promise

from nodes import NODES, TYPICAL, Array, Node, abba, levels, steps_of_runs
from regbot.stats.calibration import RateEstimate, contradiction, rate_bounds
from regbot.stats.correlation import block_correlation, lag_correlation
from regbot.stats.paired import SequentialTest, sequential_test

SEED = 20261123
SLOW_RATE, SLOW_BY_PCT = 0.05, 30.0
"""Share of launches that are slow, and by how much."""

MORE_OF_HEAD = (0.15, 0.03)
"""Shares of slow launches of head and base, if head causes some of them. Its mean is then 3.2% slower."""

CORRELATIONS = (0.0, 0.1, 0.2, 0.3, 0.5)
CALIBRATION_PAIRS = (20, 60, 200)
SESSIONS_PER_CALIBRATION = 10
"""There is one simulated calibration for so many sessions."""

EFFECTS_PCT = (0.0, 1.0, 2.0, 5.0)
MAX_ERROR = 0.035
"""Largest share called slower at a true 1%, and passed at a true 2% (upper 95% bounds)."""

MIN_COVERAGE = 0.95
MAX_WITHHELD = 0.10
"""Largest share of sessions whose pass is withheld, if base and head have as many slow launches."""

MAX_CORRELATION = 0.2
"""The promises hold up to this correlation of pairs."""

MAX_LOST_VOTES, MIN_LOST_VOTES = 0.02, 0.9
"""Largest share of calibrations that take the vote if pairs are independent, and smallest share if they are strongly
correlated."""

NO_PROOF = RateEstimate.from_counts(0, 0)

Ratios = Mapping[str, Array]
"""Log-ratios by summary, (sessions, pairs)."""


@dataclass
class Counts:
    """Counts over the sessions of one node at one effect."""

    sessions: int = 0
    slower: int = 0
    passed: int = 0
    withheld: int = 0
    """Sessions that would pass if head had no more slow launches than base."""
    covered: int = 0
    """Sessions in which every interval of the last look contains the true effect."""

    def add(self, other: "Counts") -> None:
        for field in fields(self):
            setattr(self, field.name, getattr(self, field.name) + getattr(other, field.name))

    def cell(self) -> str:
        return " / ".join(f"{count / self.sessions:.3f}" for count in (self.slower, self.passed, self.withheld))


Rows = dict[str, dict[float, Counts]]
"""Counts by the rule and by the effect in percent."""


def simulate_pairs(
    node: Node, sessions: int, slow_rate: float, rng: np.random.Generator, slow_rate_of_head: float | None = None
) -> dict[str, Array]:
    """Return log-ratios without an effect. A share ``slow_rate`` of the launches takes ``SLOW_BY_PCT`` longer."""
    shape = (sessions, 2 * PAIRS)
    is_head = abba(sessions, PAIRS, rng)
    rates = np.where(is_head, slow_rate if slow_rate_of_head is None else slow_rate_of_head, slow_rate)
    run_levels = levels(node, *shape, rng) + log1p(SLOW_BY_PCT / 100) * (rng.random(shape) < rates)
    logs = run_levels[..., None] + steps_of_runs(node, shape, STEADY, rng)
    return {name: log_ratios(values, is_head).reshape(sessions, -1) for name, values in summaries(logs).items()}


def judge_now(ratios: Mapping[str, list[float]]) -> SequentialTest:
    """Judge by the rule of regbot."""
    result = sequential_test(ratios, PRIMARY, THRESHOLDS)
    assert result is not None
    return result


def judge_all(ratios: Ratios, judge: Callable[[Mapping[str, list[float]]], SequentialTest]) -> dict[float, Counts]:
    """Judge every session at every effect."""
    by_effect = {percent: Counts() for percent in EFFECTS_PCT}
    for percent, counts in by_effect.items():
        effect = log1p(percent / 100)
        shifted = {name: (values + effect).tolist() for name, values in ratios.items()}
        for session in range(len(next(iter(ratios.values())))):
            result = judge({name: values[session] for name, values in shifted.items()})
            counts.add(
                Counts(
                    1,
                    result.decision == "regressed",
                    result.decision in ("no_change", "improved"),
                    result.withheld,
                    all(bounds.low <= effect <= bounds.high for _, bounds in result.tests.values()),
                )
            )
    return by_effect


def correlate_neighbours(ratios: Ratios, rho: float) -> dict[str, Array]:
    """Return log-ratios with the same variance, in which neighbouring pairs are correlated by ``rho`` (AR(1))."""
    correlated = {}
    for name, values in ratios.items():
        correlated[name] = values.copy()
        for pair in range(1, values.shape[1]):
            correlated[name][:, pair] = rho * correlated[name][:, pair - 1] + (1 - rho**2) ** 0.5 * values[:, pair]
    return correlated


def correlate_blocks(ratios: Ratios, rho: float) -> dict[str, Array]:
    """Return log-ratios with the same variance, in which the two pairs of a block are correlated by ``rho``."""
    correlated = {}
    for name, values in ratios.items():
        second = rho * values[:, ::2] + (1 - rho**2) ** 0.5 * values[:, 1::2]
        correlated[name] = np.stack([values[:, ::2], second], axis=-1).reshape(values.shape)
    return correlated


def share_without_vote(ratios: Array, pairs: int) -> float:
    """Return the share of calibrations of ``pairs`` placebo pairs that prove a correlation above the limit. ``ratios``
    are the log-ratios of placebo sessions, (sessions, 12); the last session of a calibration may be shorter."""
    sessions = -(-pairs // PAIRS)
    calibrations = len(ratios) // sessions
    lost = 0
    for number in range(calibrations):
        rows = ratios[number * sessions : (number + 1) * sessions].tolist()
        rows[-1] = rows[-1][: pairs - PAIRS * (sessions - 1)]
        correlations = {"lag": lag_correlation(rows), "block": block_correlation(rows)}
        lost += bool(contradiction(NO_PROOF, NO_PROOF, correlations))
    return lost / calibrations


def slow_launches(sessions: int, jobs: int) -> Iterator[Promise]:
    """Print the table of sessions with slow launches, and yield its promises."""
    print(
        f"\nslow launches: share called slower / passed / pass withheld, if {SLOW_RATE:.0%} of launches take "
        f"{SLOW_BY_PCT:g}% longer.\n'before': Student's t at every look"
    )
    print(f"{'node':>8} {'rule':>26}" + "".join(f"{f'at {percent:g}%':>24}" for percent in EFFECTS_PCT) + "  coverage")
    worst = {"slower": (0.0, ""), "passed": (0.0, "")}
    least_coverage, most_withheld = (1.0, ""), (0.0, "")
    with ProcessPoolExecutor(jobs) as pool:
        rows_by_node = pool.map(_slow_rows, NODES, [sessions] * len(NODES), range(len(NODES)))
        for node, rows in zip(NODES, rows_by_node, strict=True):
            for rule, by_effect in rows.items():
                coverage = min(counts.covered / counts.sessions for counts in by_effect.values())
                cells = "".join(f"{counts.cell():>24}" for counts in by_effect.values())
                print(f"{node.name:>8} {rule:>26}{cells}  {coverage:.3f}")
                if "before" in rule:
                    continue
                where = f"{node.name}, {rule}"
                worst["passed"] = max(worst["passed"], (rate_bounds(by_effect[2.0].passed, sessions)[1], where))
                if rule.startswith("head"):
                    continue  # head's mean is slower than its usual launch
                most_withheld = max(most_withheld, *((c.withheld / c.sessions, where) for c in by_effect.values()))
                least_coverage = min(least_coverage, (coverage, where))
                worst["slower"] = max(worst["slower"], (rate_bounds(by_effect[1.0].slower, sessions)[1], where))
    for error, percent in (("slower", 1), ("passed", 2)):
        high, where = worst[error]
        yield Promise(
            f"slow launches: {error} at a true {percent}%, upper 95% bound, at most {MAX_ERROR:.1%}",
            f"{high:.2%} ({where})",
            high <= MAX_ERROR,
        )
    yield Promise(
        f"slow launches: coverage at least {MIN_COVERAGE:.0%}",
        f"{least_coverage[0]:.2%} ({least_coverage[1]})",
        least_coverage[0] >= MIN_COVERAGE,
    )
    yield Promise(
        f"slow launches: passes withheld, at most {MAX_WITHHELD:.0%}",
        f"{most_withheld[0]:.1%} ({most_withheld[1]})",
        most_withheld[0] <= MAX_WITHHELD,
    )


def _slow_rows(node: Node, sessions: int, seed: int) -> Rows:
    rng = np.random.default_rng((SEED, seed))
    usual, slowed = (simulate_pairs(node, sessions, rate, rng) for rate in (0.0, SLOW_RATE))
    of_head, of_base = MORE_OF_HEAD
    mostly_head = simulate_pairs(node, sessions, of_base, rng, of_head)
    return {
        "no slow launch": judge_all(usual, judge_now),
        "1 in 20 slow, before": judge_all(slowed, judge_before),
        "1 in 20 slow": judge_all(slowed, judge_now),
        "head 15%, base 3%, before": judge_all(mostly_head, judge_before),
        "head 15%, base 3%": judge_all(mostly_head, judge_now),
    }


def dependent_pairs(sessions: int, jobs: int) -> Iterator[Promise]:
    """Print the table of dependent pairs on the typical node, and yield its promises."""
    print(
        "\ndependent pairs, typical node: error rates before / now while the gate votes, and the share of calibrations"
        f" that take its vote.\n'before': Student's t. Each share is over {_count_calibrations(sessions)} calibrations"
    )
    lost = "".join(f"{f'no vote, {pairs} pairs':>20}" for pairs in CALIBRATION_PAIRS)
    print(f"{'correlated':>11} {'by':>4} {'slower at 1%':>15} {'passed at 2%':>15} {'coverage':>15}{lost}")
    lost_without, lost_with = 0.0, 1.0
    worst, least_coverage = {"slower": 0.0, "passed": 0.0}, 1.0
    work = [(correlate, rho) for correlate in (correlate_neighbours, correlate_blocks) for rho in CORRELATIONS]
    with ProcessPoolExecutor(jobs) as pool:
        results = pool.map(_dependent_row, *zip(*work, strict=True), [sessions] * len(work))
        for (correlate, rho), (before, now, shares) in zip(work, results, strict=True):
            name = "neighbours" if correlate is correlate_neighbours else "in blocks"
            coverages = [
                min(counts.covered / counts.sessions for counts in by_effect.values()) for by_effect in (before, now)
            ]
            errors = (before[1.0].slower, now[1.0].slower), (before[2.0].passed, now[2.0].passed)
            rates = [f"{old / sessions:.3f} / {new / sessions:.3f}" for old, new in errors]
            cells = "".join(f"{share:>20.3f}" for share in shares)
            coverage_cell = f"{coverages[0]:.3f} / {coverages[1]:.3f}"
            print(f"{name:>11} {rho:>4g} {rates[0]:>15} {rates[1]:>15} {coverage_cell:>15}{cells}")
            if rho <= MAX_CORRELATION:
                worst["slower"] = max(worst["slower"], rate_bounds(now[1.0].slower, sessions)[1])
                worst["passed"] = max(worst["passed"], rate_bounds(now[2.0].passed, sessions)[1])
                least_coverage = min(least_coverage, coverages[1])
            if rho == 0:
                lost_without = max(lost_without, *shares)
            elif rho == max(CORRELATIONS):
                lost_with = min(lost_with, shares[-1])
    for error, percent in (("slower", 1), ("passed", 2)):
        yield Promise(
            f"dependent pairs, up to {MAX_CORRELATION:g}: {error} at a true {percent}%, upper 95% bound, at most"
            f" {MAX_ERROR:.1%}",
            f"{worst[error]:.2%}",
            worst[error] <= MAX_ERROR,
        )
    yield Promise(
        f"dependent pairs, up to {MAX_CORRELATION:g}: coverage at least {MIN_COVERAGE:.0%}",
        f"{least_coverage:.2%}",
        least_coverage >= MIN_COVERAGE,
    )
    yield Promise(
        f"independent pairs: calibrations that take the vote, at most {MAX_LOST_VOTES:.0%}",
        f"{lost_without:.1%}",
        lost_without <= MAX_LOST_VOTES,
    )
    yield Promise(
        f"correlation {max(CORRELATIONS):g}: calibrations of {CALIBRATION_PAIRS[-1]} pairs that take the vote, at least"
        f" {MIN_LOST_VOTES:.0%}",
        f"{lost_with:.1%}",
        lost_with >= MIN_LOST_VOTES,
    )


def _count_calibrations(sessions: int) -> int:
    return max(1, sessions // SESSIONS_PER_CALIBRATION)


def _dependent_row(
    correlate: Callable[[Ratios, float], dict[str, Array]], rho: float, sessions: int
) -> tuple[dict[float, Counts], dict[float, Counts], Sequence[float]]:
    """Return the counts of the rule before and of regbot by effect, and the shares of calibrations that take the
    vote."""
    rng = np.random.default_rng(SEED)
    ratios = correlate(simulate_pairs(TYPICAL, sessions, 0.0, rng), rho)
    before, now = judge_all(ratios, judge_before), judge_all(ratios, judge_now)
    shares = []
    for pairs in CALIBRATION_PAIRS:
        placebos = simulate_pairs(TYPICAL, _count_calibrations(sessions) * -(-pairs // PAIRS), 0.0, rng)
        shares.append(share_without_vote(correlate(placebos, rho)["median"], pairs))
    return before, now, shares
