"""Sessions in which an arm draws part of its speed with its compiler caches, as autotuning does.

A part of ``error_rates.py``. Every simulated session has twelve pairs on a node of ``nodes.py``. Each arm draws its
luck, a factor of all its step times. It draws once for the whole session (*one cache*: the rule before, and the rule
now if the luck is proven to be small), or anew for each look (*three draws*). Calibrations of placebo pairs with the
same luck show how much of it the intervals must contain, and how often they take the gate's vote. The other shares do
not count lost votes.
"""

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from math import log1p

import numpy as np
from disturbed_sessions import (
    MAX_ERROR,
    MIN_COVERAGE,
    NO_PROOF,
    SESSIONS_PER_CALIBRATION,
    Counts,
    simulate_pairs,
)
from gate import DRAWS, LEAST_POWER, PAIRS, PRIMARY, THRESHOLDS, draw_luck
from promises import Promise

from nodes import BIMODAL, NOISY, QUIET, TYPICAL, Array, Node
from regbot.stats.arm_luck import DRAW_PAIRS, SMALL_LUCK, LuckEstimate, SharedLuck, estimate_luck
from regbot.stats.calibration import contradiction, rate_bounds
from regbot.stats.correlation import block_correlation, lag_correlation
from regbot.stats.paired import sequential_test

SEED = 20261124
EFFECTS_PCT = (0.0, 1.0, 2.0, 3.0)
CALIBRATION_PAIRS = (20, 60)
ROWS = tuple((node, luck) for node in (QUIET, TYPICAL) for luck in (0.0, 0.07, 0.3, 0.5)) + tuple(
    (node, luck) for node in (BIMODAL, NOISY) for luck in (0.3, 0.5)
)
"""Nodes, and the standard deviations of the luck of an arm in percent."""

ONE_CACHE, UNKNOWN = "one cache", "three draws, not calibrated"

RowResult = dict[str, tuple[dict[float, Counts], float]]
"""Counts by effect, and the share of calibrations that take the vote, by the rule."""


def arm_luck(sessions: int, jobs: int) -> Iterator[Promise]:
    """Print the table of luck, and yield its promises."""
    print(
        "\nluck of an arm: share called slower / passed, by the true effect. 'one cache': each arm draws once in a"
        f" session. Calibrations\nare of {' or '.join(map(str, CALIBRATION_PAIRS))} placebo pairs"
    )
    header = "".join(f"{f'at {percent:g}%':>16}" for percent in EFFECTS_PCT)
    print(f"{'node':>8} {'luck':>6} {'rule':>28}{header} {'coverage':>9} {'no vote':>8}")
    worst = {"slower": (0.0, ""), "passed": (0.0, "")}
    least_coverage, power = (1.0, ""), 0.0
    with ProcessPoolExecutor(jobs) as pool:
        results = pool.map(simulate_row, *zip(*ROWS, strict=True), [sessions] * len(ROWS), range(len(ROWS)))
        for (node, luck_pct), result in zip(ROWS, results, strict=True):
            for rule, (by_effect, lost) in result.items():
                coverage = min(counts.covered / counts.sessions for counts in by_effect.values())
                cells = "".join(
                    f"{f'{counts.slower / counts.sessions:.3f} / {counts.passed / counts.sessions:.3f}':>16}"
                    for counts in by_effect.values()
                )
                print(f"{node.name:>8} {luck_pct:>5g}% {rule:>28}{cells} {coverage:>9.3f} {lost:>8.3f}")
                is_small = luck_pct <= 100 * SMALL_LUCK
                if rule == UNKNOWN or (rule == ONE_CACHE and not is_small):
                    continue
                where = f"{node.name}, luck {luck_pct:g}%, {rule}"
                least_coverage = min(least_coverage, (coverage, where))
                for error, percent in (("slower", 1.0), ("passed", 2.0)):
                    counts = by_effect[percent]
                    count = counts.slower if error == "slower" else counts.passed
                    worst[error] = max(worst[error], (rate_bounds(count, counts.sessions)[1], where))
                if (node, luck_pct, rule) == (TYPICAL, 0.0, ONE_CACHE):
                    power = by_effect[2.0].slower / by_effect[2.0].sessions
    for error, percent in (("slower", 1), ("passed", 2)):
        high, where = worst[error]
        yield Promise(
            f"luck of an arm, calibrated: {error} at a true {percent}%, upper 95% bound, at most {MAX_ERROR:.1%}",
            f"{high:.2%} ({where})",
            high <= MAX_ERROR,
        )
    yield Promise(
        f"luck of an arm, calibrated: coverage at least {MIN_COVERAGE:.0%}",
        f"{least_coverage[0]:.2%} ({least_coverage[1]})",
        least_coverage[0] >= MIN_COVERAGE,
    )
    text = f"luck of an arm proven small, typical node: at least {LEAST_POWER:.0%} of true 2% losses are found"
    yield Promise(text, f"{power:.2%}", power >= LEAST_POWER)


def simulate_row(node: Node, luck_pct: float, sessions: int, seed: int) -> RowResult:
    """Simulate one node with one luck, and judge it by every rule."""
    rng = np.random.default_rng((SEED, seed))
    luck_sd = luck_pct / 100
    pairs = simulate_pairs(node, sessions, 0.0, rng)
    one_draw, three_draws = rng.normal(0, 2**0.5 * luck_sd, (sessions, 1)), draw_luck(luck_sd, (sessions, PAIRS), rng)
    once = {name: values + one_draw for name, values in pairs.items()}
    drawn = {name: values + three_draws for name, values in pairs.items()}
    result: RowResult = {
        ONE_CACHE: (judge_sessions(once, [None] * sessions), 0.0),
        UNKNOWN: (judge_sessions(drawn, [None] * sessions), 0.0),
    }
    for placebo_pairs in CALIBRATION_PAIRS:
        calibrations = simulate_calibrations(
            node, luck_sd, -(-sessions // SESSIONS_PER_CALIBRATION), placebo_pairs, rng
        )
        lucks = [
            SharedLuck(luck.counted, luck.draws, DRAWS) if luck is not None else None
            for luck, _ in calibrations
            for _ in range(SESSIONS_PER_CALIBRATION)
        ]
        lost = sum(is_lost for _, is_lost in calibrations) / len(calibrations)
        result[f"calibrated by {placebo_pairs} pairs"] = (judge_sessions(drawn, lucks[:sessions]), lost)
    return result


def simulate_calibrations(
    node: Node, luck_sd: float, count: int, pairs: int, rng: np.random.Generator
) -> list[tuple[LuckEstimate | None, bool]]:
    """Return what calibrations of placebo ``pairs`` show of the luck of an arm, and whether they take the vote."""
    sessions = -(-pairs // PAIRS)
    ratios = simulate_pairs(node, count * sessions, 0.0, rng)["median"]
    ratios = (ratios + draw_luck(luck_sd, ratios.shape, rng)).reshape(count, sessions * PAIRS)[:, :pairs]
    calibrations = []
    for values in ratios:
        luck = estimate_luck(values.reshape(-1, DRAW_PAIRS).tolist())
        placebos = [values[start : start + PAIRS].tolist() for start in range(0, pairs, PAIRS)]
        correlations = {"lag": lag_correlation(placebos), "block": block_correlation(placebos)}
        calibrations.append((luck, bool(contradiction(NO_PROOF, NO_PROOF, correlations, luck))))
    return calibrations


def judge_sessions(ratios: Mapping[str, Array], lucks: Sequence[SharedLuck | None]) -> dict[float, Counts]:
    """Judge every session at every effect. ``lucks`` has the luck that the intervals of each session contain."""
    by_effect = {percent: Counts() for percent in EFFECTS_PCT}
    for percent, counts in by_effect.items():
        effect = log1p(percent / 100)
        for session, luck in enumerate(lucks):
            shifted = {name: (values[session] + effect).tolist() for name, values in ratios.items()}
            test = sequential_test(shifted, PRIMARY, THRESHOLDS, luck=luck)
            assert test is not None
            is_covered = all(bounds.low <= effect <= bounds.high for _, bounds in test.tests.values())
            is_passed = test.decision in ("no_change", "improved")
            counts.add(Counts(1, test.decision == "regressed", is_passed, test.withheld, is_covered))
    return by_effect
