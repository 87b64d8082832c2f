"""What calibrations let the gate decide if pairs depend on each other, or arms have luck.

A part of ``error_rates.py``. Placebo sessions of 8 pairs, on 3 or 12 days, give later sessions the noise of the class
and the luck of an arm, and may take the gate's vote. Neighbouring pairs, or the pairs of a block, are correlated; or
each arm draws part of its speed, anew for each draw of compiler caches or for each session.
"""

from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass

import numpy as np
from nodes import QUIET, TYPICAL, Array, Node
from paired_sessions import (
    DRAWS,
    MAX_ERROR,
    MAX_WITHHELD,
    MIN_COVERAGE,
    PAIRS,
    PRIMARY,
    Levels,
    draw_luck,
    judge_shipped,
    pooled_noise,
    simulate_sessions,
    upper_bound,
)
from promises import Promise

from regbot.judge.interim import luck_in_draws
from regbot.stats.arm_luck import ALLOCATION_PAIRS, DRAW_PAIRS, MIN_ALLOCATIONS, SharedLuck, estimate_luck
from regbot.stats.calibration import contradiction, estimate_rate
from regbot.stats.correlation import block_correlation, lag_correlation

SEED = 20261123
EFFECTS_PCT = (0.0, 1.0, 2.0)
CALIBRATION_PAIRS = (3 * ALLOCATION_PAIRS, MIN_ALLOCATIONS * ALLOCATION_PAIRS)
SESSIONS_PER_CALIBRATION = 20
MAX_CORRELATION, MAX_LUCK_PCT = 0.2, 0.3
"""Above these, any number of calibrations may take the vote, or any number of sessions may be withheld."""
MAX_LOST_VOTES, MIN_LOST_VOTES = 0.02, 0.8
"""Largest share of calibrations that take the vote if pairs are independent, and smallest share of those of most
pairs if they are correlated by .5. By Fisher's approximation, 84 products of neighbours show .5 to be above .2 with
the probability Phi(sqrt(83) (atanh .5 - atanh .2) - 1.96) = .88. In 2000 calibrations, .867 take the vote (95%: .851 to
.882), because the estimate for short sessions is a little low; 200 calibrations scatter by .024 around it."""
NO_PROOF = estimate_rate(0, 0)


@dataclass(frozen=True)
class Case:
    node: Node = TYPICAL
    correlation: float = 0.0
    block_correlation: float = 0.0
    luck_pct: float = 0.0
    draw_pairs: int = DRAW_PAIRS
    """Pairs that share a draw of luck."""

    def __str__(self) -> str:
        what = [f"correlated by {self.correlation:g}"] if self.correlation else []
        what += [f"blocks correlated by {self.block_correlation:g}"] if self.block_correlation else []
        what += [f"luck {self.luck_pct:g}%"] if self.luck_pct else []
        what += ["of whole sessions"] if self.draw_pairs == PAIRS else []
        return ", ".join([self.node.name, *what])

    def simulate(self, sessions: int, seed: int, pairs: int = PAIRS) -> Levels:
        simulated = simulate_sessions(self.node, sessions, seed, pairs)
        simulated = simulated.correlate(self.correlation).correlate_blocks(self.block_correlation)
        rng = np.random.default_rng(seed + 1)
        return simulated.shift(draw_luck(self.luck_pct / 100, sessions, pairs, rng, self.draw_pairs))


CASES = (
    Case(),
    Case(correlation=0.2),
    Case(correlation=0.3),
    Case(correlation=0.5),
    Case(block_correlation=0.5),
    Case(luck_pct=0.07),
    Case(luck_pct=0.3),
    Case(luck_pct=0.5),
    Case(luck_pct=0.3, draw_pairs=PAIRS),
    Case(QUIET, luck_pct=0.07),
    Case(QUIET, luck_pct=0.3),
    Case(QUIET, luck_pct=0.5),
    Case(QUIET, luck_pct=0.3, draw_pairs=PAIRS),
)


def calibrate(ratios: Array) -> tuple[SharedLuck | None, bool]:
    """Return the luck that the placebo pairs show, and whether they take the vote. ``ratios``: (pairs, summaries)."""
    placebos = ratios[:, 0].reshape(-1, ALLOCATION_PAIRS)
    lag, block = lag_correlation(placebos.tolist()), block_correlation(placebos.tolist())
    allocations = np.repeat(np.arange(len(placebos)), ALLOCATION_PAIRS // DRAW_PAIRS).tolist()
    draws = placebos.reshape(-1, DRAW_PAIRS).tolist()
    luck = estimate_luck(draws, lag.value if lag is not None else 0.0, allocations)
    is_contradicted = bool(contradiction(NO_PROOF, NO_PROOF, {"lag": lag, "block": block}, luck))
    return luck_in_draws(luck, DRAWS), is_contradicted


def judge_case(case: Case, pairs: int, sessions: int) -> tuple[float, dict[str, Array]]:
    """Return the share of lost votes, and arrays over sessions: wrong decisions at 1% and 2%, and others. A session
    whose calibration has taken the vote decides nothing."""
    count = sessions // SESSIONS_PER_CALIBRATION
    placebo_levels = case.simulate(count * pairs // ALLOCATION_PAIRS, SEED + 2, ALLOCATION_PAIRS)
    placebos = placebo_levels.ratios.reshape(count, pairs, PRIMARY)
    lucks, lost = zip(*(calibrate(ratios) for ratios in placebos), strict=True)
    simulated = case.simulate(count * SESSIONS_PER_CALIBRATION, SEED)
    noise = pooled_noise(placebos)
    decided = {percent: judge_shipped(simulated, percent, noise, luck=lucks) for percent in EFFECTS_PCT}
    has_vote = ~np.repeat(lost, SESSIONS_PER_CALIBRATION)
    return float(np.mean(lost)), {
        "FAIL at 1%": decided[1.0].slower & has_vote,
        "PASS at 2%": decided[2.0].passed & has_vote,
        "FAIL at 2%": decided[2.0].slower & has_vote,
        "PASS at 0%": decided[0.0].passed & has_vote,
        "covered": np.min([decisions.covered | ~has_vote for decisions in decided.values()], axis=0),
    }


def calibrations(sessions: int, jobs: int) -> Iterator[Promise]:
    """Print the table of calibrations, and yield its promises."""
    columns = ("FAIL at 1%", "PASS at 2%", "FAIL at 2%", "PASS at 0%")
    print(f"\ncalibrations, {SESSIONS_PER_CALIBRATION} sessions each\n")
    print(f"| node class | placebo pairs | {' | '.join(columns)} | coverage | no vote |\n|{'---|' * 8}")
    work = [(case, pairs) for case in CASES for pairs in CALIBRATION_PAIRS]
    made = []
    with ProcessPoolExecutor(jobs) as pool:
        results = pool.map(judge_case, *zip(*work, strict=True), [sessions] * len(work))
        for (case, pairs), (lost, flags) in zip(work, results, strict=True):
            cells = " | ".join(f"{flags[column].mean():.4f}" for column in columns)
            print(f"| {case} | {pairs} | {cells} | {flags['covered'].mean():.3f} | {lost:.3f} |", flush=True)
            where = f"{case}, {pairs} placebo pairs"
            for error in ("FAIL at 1%", "PASS at 2%"):
                high = upper_bound(flags[error])
                text = f"{where}: {error}, upper 95% bound, at most {MAX_ERROR:.1%}"
                made.append(Promise(text, f"{flags[error].mean():.2%}, {high:.2%}", high <= MAX_ERROR))
            covered = float(flags["covered"].mean())
            made.append(
                Promise(f"{where}: coverage at least {MIN_COVERAGE:.0%}", f"{covered:.1%}", covered >= MIN_COVERAGE)
            )
            most = MAX_LOST_VOTES if case == CASES[0] else MAX_WITHHELD
            if max(case.correlation, case.block_correlation) <= MAX_CORRELATION and case.luck_pct < MAX_LUCK_PCT:
                made.append(Promise(f"{where}: no vote, at most {most:.0%}", f"{lost:.1%}", lost <= most))
            if case == CASES[3] and pairs == CALIBRATION_PAIRS[-1]:
                text = f"{where}: no vote, at least {MIN_LOST_VOTES:.0%}"
                made.append(Promise(text, f"{lost:.1%}", lost >= MIN_LOST_VOTES))
    yield from made
