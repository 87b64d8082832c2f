"""Sessions in which an arm draws part of its speed with its compiler caches, as autotuning does.

A part of ``error_rates.py``. Every simulated session has twelve pairs on a node of ``nodes.py``. Each arm draws its
luck, a factor of all its step times. It draws once for the whole session (*one cache*: the rule before, and the rule
now if the luck is proven to be small), or anew for each look (*three draws*, with intervals that contain no luck).
Without a calibration, intervals contain an assumed luck. Calibrations of placebo pairs with the same luck show how much
of it the intervals must contain, and how often they take the gate's vote. The other shares do not count lost votes.
*Withheld* sessions are undecided only because of the assumed luck.
"""

from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace

import numpy as np
from disturbed_sessions import (
    ASSUMED,
    MAX_ERROR,
    MAX_WITHHELD,
    MIN_COVERAGE,
    PROVEN_SMALL,
    SESSIONS_PER_CALIBRATION,
    Counts,
    calibrate_placebos,
    judge_calibrated,
    simulate_pairs,
)
from gate import LEAST_POWER, PAIRS, draw_luck
from nodes import BIMODAL, NOISY, QUIET, TYPICAL, Node
from promises import Promise

from regbot.stats.arm_luck import SMALL_LUCK
from regbot.stats.calibration import rate_bounds

SEED = 20261124
EFFECTS_PCT = (0.0, 1.0, 2.0, 3.0)
CALIBRATION_PAIRS = (20, 60)
ROWS = tuple((node, luck) for node in (QUIET, TYPICAL) for luck in (0.0, 0.07, 0.3, 0.5)) + tuple(
    (node, luck) for node in (BIMODAL, NOISY) for luck in (0.3, 0.5)
)
"""Nodes, and the standard deviations of the luck of an arm in percent."""

ONE_CACHE, THREE_DRAWS, UNKNOWN = "one cache", "three draws, no luck assumed", "not calibrated"
CALIBRATED = "calibrated by {} pairs"

UNLIMITED_LUCK_PCT = 0.3
"""From this luck on, any number of sessions may be withheld."""

RowResult = dict[str, tuple[dict[float, Counts], float]]
"""Counts by effect, and the share of calibrations that take the vote, by the rule."""


def arm_luck(sessions: int, jobs: int) -> Iterator[Promise]:
    """Print the table of luck, and yield its promises."""
    print(
        "\nluck of an arm: share called slower / passed, by the true effect. 'one cache': each arm draws once in a"
        f" session. Calibrations\nare of {' or '.join(map(str, CALIBRATION_PAIRS))} placebo pairs"
    )
    header = "".join(f"{f'at {percent:g}%':>16}" for percent in EFFECTS_PCT)
    print(f"{'node':>8} {'luck':>6} {'rule':>28}{header} {'coverage':>9} {'withheld':>9} {'no vote':>8}")
    worst = {"slower": (0.0, ""), "passed": (0.0, "")}
    least_coverage, most_lost, power = (1.0, ""), (0.0, ""), {}
    with ProcessPoolExecutor(jobs) as pool:
        results = pool.map(simulate_row, *zip(*ROWS, strict=True), [sessions] * len(ROWS), range(len(ROWS)))
        for (node, luck_pct), result in zip(ROWS, results, strict=True):
            for rule, (by_effect, lost) in result.items():
                coverage = min(counts.covered / counts.sessions for counts in by_effect.values())
                cells = "".join(
                    f"{f'{counts.slower / counts.sessions:.3f} / {counts.passed / counts.sessions:.3f}':>16}"
                    for counts in by_effect.values()
                )
                withheld = max(counts.withheld / counts.sessions for counts in by_effect.values())
                line = f"{node.name:>8} {luck_pct:>5g}% {rule:>28}{cells} {coverage:>9.3f} {withheld:>9.3f}"
                print(f"{line} {lost:>8.3f}")
                is_small = luck_pct <= 100 * SMALL_LUCK
                if (node, luck_pct) == (TYPICAL, 0.0):
                    power[rule] = by_effect[2.0].slower / by_effect[2.0].sessions
                if not is_small and rule in (ONE_CACHE, THREE_DRAWS):
                    continue
                where = f"{node.name}, luck {luck_pct:g}%, {rule}"
                least_coverage = min(least_coverage, (coverage, where))
                for error, percent in (("slower", 1.0), ("passed", 2.0)):
                    counts = by_effect[percent]
                    count = counts.slower if error == "slower" else counts.passed
                    worst[error] = max(worst[error], (rate_bounds(count, counts.sessions)[1], where))
                if luck_pct < UNLIMITED_LUCK_PCT and rule != UNKNOWN:
                    most_lost = max(most_lost, (lost, where))
    for error, percent in (("slower", 1), ("passed", 2)):
        high, where = worst[error]
        yield Promise(
            f"luck of an arm: {error} at a true {percent}%, upper 95% bound, at most {MAX_ERROR:.1%}",
            f"{high:.2%} ({where})",
            high <= MAX_ERROR,
        )
    yield Promise(
        f"luck of an arm: coverage at least {MIN_COVERAGE:.0%}",
        f"{least_coverage[0]:.2%} ({least_coverage[1]})",
        least_coverage[0] >= MIN_COVERAGE,
    )
    yield Promise(
        f"luck of an arm below {UNLIMITED_LUCK_PCT:g}%, calibrated: votes lost, at most {MAX_WITHHELD:.0%}",
        f"{most_lost[0]:.1%} ({most_lost[1]})",
        most_lost[0] <= MAX_WITHHELD,
    )
    for rule in (ONE_CACHE, CALIBRATED.format(CALIBRATION_PAIRS[-1])):
        text = f"luck of an arm 0, typical node, {rule}: at least {LEAST_POWER:.0%} of true 2% losses are found"
        yield Promise(text, f"{power[rule]:.2%}", power[rule] >= LEAST_POWER)


def simulate_row(node: Node, luck_pct: float, sessions: int, seed: int) -> RowResult:
    """Simulate one node with one luck, and judge it by every rule."""
    rng = np.random.default_rng((SEED, seed))
    luck_sd = luck_pct / 100
    pairs = simulate_pairs(node, sessions, 0.0, rng)
    one_draw, three_draws = rng.normal(0, 2**0.5 * luck_sd, (sessions, 1)), draw_luck(luck_sd, (sessions, PAIRS), rng)
    once = {name: values + one_draw for name, values in pairs.items()}
    drawn = {name: values + three_draws for name, values in pairs.items()}
    result: RowResult = {
        ONE_CACHE: (judge_calibrated(once, [PROVEN_SMALL], EFFECTS_PCT), 0.0),
        THREE_DRAWS: (judge_calibrated(drawn, [PROVEN_SMALL], EFFECTS_PCT), 0.0),
        UNKNOWN: (judge_calibrated(drawn, [ASSUMED], EFFECTS_PCT), 0.0),
    }
    for placebo_pairs in CALIBRATION_PAIRS:
        count = -(-sessions // SESSIONS_PER_CALIBRATION) * -(-placebo_pairs // PAIRS)
        ratios = simulate_pairs(node, count, 0.0, rng)["median"]
        calibrations = calibrate_placebos(ratios + draw_luck(luck_sd, ratios.shape, rng), placebo_pairs)
        lost = sum(calibration.is_vote_lost for calibration in calibrations) / len(calibrations)
        voting = [replace(calibration, is_vote_lost=False) for calibration in calibrations]
        result[CALIBRATED.format(placebo_pairs)] = judge_calibrated(drawn, voting, EFFECTS_PCT), lost
    return result
