"""Sessions that break an assumption of the paired test: single slow launches, and pairs that depend on each other.

A part of ``error_rates.py``. Every simulated session has twelve pairs on a node of ``nodes.py``, and is judged by the
rule of regbot and by its rule before, Student's t interval at every look. *Slow launches*: one launch in 20 takes 30%
longer; or 15% of head's launches, and 3% of base's. *Dependent pairs*: neighbouring pairs, or the two pairs of a block,
are correlated. Independent placebo sessions of the same node give calibrations: how much luck of the arms the intervals
contain, because the pairs of a draw share noise as they share luck, and whether the gate has a vote.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, fields
from math import log1p

import numpy as np
from gate import DRAWS, PAIRS, PRIMARY, STEADY, THRESHOLDS, judge_before, log_ratios, summaries
from nodes import NODES, TYPICAL, Array, Node, abba, levels, steps_of_runs
from promises import Promise

from regbot.stats.arm_luck import DRAW_PAIRS, SharedLuck, estimate_luck
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
"""Above this correlation of pairs, any number of calibrations may take the vote."""

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
    """Sessions that would pass if head had no more slow launches than base, or see ``judge_calibrated``."""
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


@dataclass(frozen=True)
class SimulatedCalibration:
    """What placebo pairs of one calibration show, as ``regbot.baselines.reference`` computes it."""

    luck: SharedLuck | None
    """Luck that the intervals of later sessions contain."""
    is_vote_lost: bool


ASSUMED = SimulatedCalibration(SharedLuck.assume(DRAWS), False)
"""No calibration."""
PROVEN_SMALL = SimulatedCalibration(None, False)
"""The intervals contain no luck, as if a calibration had proven that it is small."""


def calibrate_placebos(ratios: Array, pairs: int) -> list[SimulatedCalibration]:
    """Return calibrations of ``pairs`` placebo pairs each. ``ratios`` are the log-ratios of the medians of placebo
    sessions, (sessions, 12); the last session of a calibration may be shorter."""
    sessions = -(-pairs // PAIRS)
    calibrations = []
    for number in range(len(ratios) // sessions):
        values = ratios[number * sessions : (number + 1) * sessions].ravel()[:pairs]
        placebos = [values[start : start + PAIRS].tolist() for start in range(0, pairs, PAIRS)]
        lag, block = lag_correlation(placebos), block_correlation(placebos)
        luck = estimate_luck(values.reshape(-1, DRAW_PAIRS).tolist(), lag.value if lag is not None else 0.0)
        shared = SharedLuck(luck.counted, luck.draws, DRAWS) if luck is not None else SharedLuck.assume(DRAWS)
        lost = bool(contradiction(NO_PROOF, NO_PROOF, {"lag": lag, "block": block}, luck))
        calibrations.append(SimulatedCalibration(shared, lost))
    return calibrations


def judge_calibrated(
    ratios: Ratios, calibrations: Sequence[SimulatedCalibration], effects_pct: Sequence[float] = EFFECTS_PCT
) -> dict[float, Counts]:
    """Judge every session at every effect. The sessions are divided among ``calibrations``.

    A session is withheld if its calibration takes the vote, or if only an assumed luck leaves it undecided. Its
    interval then counts as one that contains the truth if the vote is lost, because the verdict shows no interval.
    """
    sessions = len(next(iter(ratios.values())))
    by_effect = {percent: Counts() for percent in effects_pct}
    for percent, counts in by_effect.items():
        effect = log1p(percent / 100)
        for session in range(sessions):
            calibration = calibrations[session * len(calibrations) // sessions]
            if calibration.is_vote_lost:
                counts.add(Counts(1, withheld=1, covered=1))
                continue
            shifted = {name: (values[session] + effect).tolist() for name, values in ratios.items()}
            test = sequential_test(shifted, PRIMARY, THRESHOLDS, luck=calibration.luck)
            assert test is not None
            is_withheld = test.withheld
            is_assumed = calibration.luck is not None and calibration.luck.is_assumed
            if is_assumed and test.decision == "undecided":
                is_withheld = is_withheld or judge_now(shifted).decision != "undecided"
            is_covered = all(bounds.low <= effect <= bounds.high for _, bounds in test.tests.values())
            is_passed = test.decision in ("no_change", "improved")
            counts.add(Counts(1, test.decision == "regressed", is_passed, is_withheld, is_covered))
    return by_effect


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


RULES = ("before", "not calibrated", *(f"{pairs} placebo pairs" for pairs in CALIBRATION_PAIRS))


def dependent_pairs(sessions: int, jobs: int) -> Iterator[Promise]:
    """Print the table of dependent pairs on the typical node, and yield its promises."""
    print(
        "\ndependent pairs, typical node: share called slower / passed / withheld. 'before': Student's t. A session is"
        f" withheld if its calibration\ntakes the vote ({_count_calibrations(sessions)} calibrations), or if only an"
        " assumed luck of the arms leaves it undecided"
    )
    effects = "".join(f"{f'at {percent:g}%':>24}" for percent in EFFECTS_PCT)
    print(f"{'correlated':>11} {'by':>4} {'rule':>18}{effects} {'coverage':>9} {'no vote':>8}")
    worst = {(error, is_strong): (0.0, "") for error in ("slower", "passed") for is_strong in (False, True)}
    least_coverage, most_lost = {False: (1.0, ""), True: (1.0, "")}, {0.0: 0.0, MAX_CORRELATION: 0.0}
    lost_with = 1.0
    work = [(correlate, rho) for correlate in (correlate_neighbours, correlate_blocks) for rho in CORRELATIONS]
    with ProcessPoolExecutor(jobs) as pool:
        results = pool.map(_dependent_row, *zip(*work, strict=True), [sessions] * len(work))
        for (correlate, rho), row in zip(work, results, strict=True):
            name = "neighbours" if correlate is correlate_neighbours else "in blocks"
            for rule, (by_effect, lost) in row.items():
                coverage = min(counts.covered / counts.sessions for counts in by_effect.values())
                cells = "".join(f"{counts.cell():>24}" for counts in by_effect.values())
                print(f"{name:>11} {rho:>4g} {rule:>18}{cells} {coverage:>9.3f} {lost:>8.3f}")
                if rule == "before":
                    continue
                where, is_strong = f"{name} {rho:g}, {rule}", rho > MAX_CORRELATION
                for error, percent in (("slower", 1.0), ("passed", 2.0)):
                    count = by_effect[percent].slower if error == "slower" else by_effect[percent].passed
                    high = rate_bounds(count, sessions)[1]
                    worst[error, is_strong] = max(worst[error, is_strong], (high, where))
                least_coverage[is_strong] = min(least_coverage[is_strong], (coverage, where))
                for limit in most_lost:
                    most_lost[limit] = max(most_lost[limit], lost if rho <= limit else 0.0)
                if rho == max(CORRELATIONS) and rule == RULES[-1]:
                    lost_with = min(lost_with, lost)
    for (error, is_strong), (high, where) in worst.items():
        range_text = f"above {MAX_CORRELATION:g}" if is_strong else f"up to {MAX_CORRELATION:g}"
        percent = 1 if error == "slower" else 2
        text = f"dependent pairs, {range_text}: {error} at a true {percent}%, upper 95% bound, at most {MAX_ERROR:.1%}"
        yield Promise(text, f"{high:.2%} ({where})", high <= MAX_ERROR)
    for is_strong, (coverage, where) in least_coverage.items():
        range_text = f"above {MAX_CORRELATION:g}" if is_strong else f"up to {MAX_CORRELATION:g}"
        text = f"dependent pairs, {range_text}: coverage at least {MIN_COVERAGE:.0%}"
        yield Promise(text, f"{coverage:.2%} ({where})", coverage >= MIN_COVERAGE)
    for limit, most in ((0.0, MAX_LOST_VOTES), (MAX_CORRELATION, MAX_WITHHELD)):
        text = f"dependent pairs, up to {limit:g}: calibrations that take the vote, at most {most:.0%}"
        yield Promise(text, f"{most_lost[limit]:.1%}", most_lost[limit] <= most)
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
) -> dict[str, tuple[dict[float, Counts], float]]:
    """Return the counts by effect, and the share of calibrations that take the vote, by the rule."""
    rng = np.random.default_rng(SEED)
    ratios = correlate(simulate_pairs(TYPICAL, sessions, 0.0, rng), rho)
    row = {
        "before": (judge_all(ratios, judge_before), 0.0),
        "not calibrated": (judge_calibrated(ratios, [ASSUMED]), 0.0),
    }
    for pairs, rule in zip(CALIBRATION_PAIRS, RULES[2:], strict=True):
        placebos = simulate_pairs(TYPICAL, _count_calibrations(sessions) * -(-pairs // PAIRS), 0.0, rng)
        calibrations = calibrate_placebos(correlate(placebos, rho)["median"], pairs)
        lost = sum(calibration.is_vote_lost for calibration in calibrations) / len(calibrations)
        row[rule] = judge_calibrated(ratios, calibrations), lost
    return row
