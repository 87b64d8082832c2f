"""Simulated sessions of pairs with a known true effect, and what the shipped rule decides on them.

Used by the benchmarks of the throughput verdict. A session has twelve pairs of runs on one node of ``nodes.py``, in
ABBA or BAAB blocks. Sessions are simulated without an effect, as levels of runs on the log scale. An effect is a log
that is added to all levels of head, so one session serves for all effects. Summaries: median and mean step time.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import log1p

import numpy as np
from nodes import Array, Flags, Node, abba, levels, steps_of_runs

from regbot.records.calibration_summary import PairNoise
from regbot.stats.arm_luck import DRAW_PAIRS, SharedLuck
from regbot.stats.calibration import rate_bounds
from regbot.stats.paired import LOOKS, PASSING, ClassNoise, SequentialTest, Thresholds, sequential_test

STEADY = 40
"""Steady steps of a run."""
PAIRS = LOOKS[-1]
SUMMARIES = ("median", "mean")
PRIMARY = len(SUMMARIES)
THRESHOLDS = Thresholds.from_percent(2.0, 1.0)
DRAWS = [pair // DRAW_PAIRS for pair in range(PAIRS)]
"""Draw of the compiler caches of each pair of a session."""

PLACEBO_SESSIONS, PLACEBO_PAIRS = 5, 8
"""Sessions of one commit against itself, and their pairs, that show the noise of the node class."""
SESSIONS_PER_CLASS = 4
"""Sessions that are judged with the same placebo pairs."""

CHUNK = 500
"""Number of sessions whose step times are simulated at once."""
SLOW_BY_PCT = 30.0
STALL_STEPS, STALL_EVERY = 4, 25

MAX_ERROR = 0.035
"""Largest share called slower at a true 1%, and passed at a true 2% (upper 95% bounds)."""
MIN_COVERAGE = 0.95
MAX_WITHHELD = 0.10


def noisier(node: Node, factor: float) -> Node:
    """Return ``node`` with ``factor`` times the noise of its steps and runs."""
    return replace(node, step_sd=factor * node.step_sd, run_sd=factor * node.run_sd)


@dataclass(frozen=True)
class Levels:
    """Levels of the runs of sessions, (sessions, pairs, summaries)."""

    base: Array
    ratios: Array
    """Levels of head minus those of base."""

    def first(self, sessions: int) -> "Levels":
        return Levels(self.base[:sessions], self.ratios[:sessions])

    def correlate(self, correlation: float) -> "Levels":
        """Correlate neighbouring pairs (AR(1)). Their variance stays."""
        ratios = self.ratios.copy()
        for pair in range(1, ratios.shape[1]):
            ratios[:, pair] = correlation * ratios[:, pair - 1] + (1 - correlation**2) ** 0.5 * self.ratios[:, pair]
        return replace(self, ratios=ratios)

    def correlate_blocks(self, correlation: float) -> "Levels":
        """Correlate the two pairs of each block. Their variance stays."""
        ratios = self.ratios.copy()
        ratios[:, 1::2] = correlation * ratios[:, ::2] + (1 - correlation**2) ** 0.5 * ratios[:, 1::2]
        return replace(self, ratios=ratios)

    def shift(self, added: Array) -> "Levels":
        """Add to the log-ratios, (sessions, pairs)."""
        return replace(self, ratios=self.ratios + added[..., None])


@dataclass
class Decisions:
    """What a rule decides on sessions with one effect: arrays with one value for each session."""

    slower: Flags
    passed: Flags
    covered: Flags
    """Whether every interval of the last look contains the effect."""
    pairs: Array
    withheld: Flags
    """Undecided because of slow launches of head, or only because of a luck of the arms that is assumed."""

    def group(self, workloads: int) -> "Decisions":
        """Return the decisions of checks. A check errs if any of its ``workloads`` sessions errs."""
        slower, passed, covered, pairs, withheld = (
            values.reshape(-1, workloads)
            for values in (self.slower, self.passed, self.covered, self.pairs, self.withheld)
        )
        return Decisions(slower.any(1), passed.any(1), covered.all(1), pairs.mean(1), withheld.any(1))

    def rates(self) -> dict[str, float]:
        runs = 2 * float(self.pairs.mean())
        flags = {"slower": self.slower, "passed": self.passed, "covered": self.covered, "withheld": self.withheld}
        return {"runs": runs, **{name: float(values.mean()) for name, values in flags.items()}}


def upper_bound(flags: Flags) -> float:
    """Return the upper 95% bound of a rate (Clopper and Pearson)."""
    return rate_bounds(int(flags.sum()), len(flags))[1]


def summarise_runs(logs: Array) -> Array:
    """Summarise many runs at once as ``regbot.stats.summarise`` does: (..., steps) -> (..., summaries)."""
    return np.stack([np.median(logs, axis=-1), np.log(np.exp(logs).mean(axis=-1))], axis=-1)


def arms_of(runs: Array, is_head: Flags) -> Levels:
    """Return the levels of both arms from those of runs in launch order, (sessions, 2 pairs, summaries)."""
    first, second = runs[:, 0::2], runs[:, 1::2]
    is_second = is_head[:, 1::2, None]
    base, head = np.where(is_second, first, second), np.where(is_second, second, first)
    return Levels(base, head - base)


@lru_cache(maxsize=16)
def simulate_sessions(
    node: Node,
    sessions: int,
    seed: int,
    pairs: int = PAIRS,
    slow_launches: tuple[float, float] = (0.0, 0.0),
    second_pct: float = 0.0,
    abba_order: bool = True,
    stalls: bool = False,
) -> Levels:
    """Simulate sessions. ``slow_launches``: shares of the launches of base and head that take ``SLOW_BY_PCT`` longer.
    The second run of a pair is slower by ``second_pct``. Without ``abba_order``, head always runs second. With
    ``stalls``, ``STALL_STEPS`` of every ``STALL_EVERY`` steps take three times as long; each run has its own phase."""
    rng, simulated = np.random.default_rng(seed), []
    for start in range(0, sessions, CHUNK):
        shape = (min(CHUNK, sessions - start), 2 * pairs)
        is_head = abba(shape[0], pairs, rng) if abba_order else np.tile([False, True], (shape[0], pairs))
        run_levels = levels(node, *shape, rng)
        is_slow = rng.random(shape) < np.where(is_head, slow_launches[1], slow_launches[0])
        run_levels += log1p(SLOW_BY_PCT / 100) * is_slow
        run_levels[:, 1::2] += log1p(second_pct / 100)
        steps = run_levels[..., None] + steps_of_runs(node, shape, STEADY, rng)
        if stalls:
            phase = rng.integers(0, STALL_EVERY, (*shape, 1))
            steps += np.log(3) * ((np.arange(STEADY) + phase) % STALL_EVERY < STALL_STEPS)
        simulated.append(arms_of(summarise_runs(steps), is_head))
    return Levels(*(np.concatenate([getattr(part, name) for part in simulated]) for name in ("base", "ratios")))


def draw_luck(luck_sd: float, sessions: int, pairs: int, rng: np.random.Generator, draw_pairs: int) -> Array:
    """Return the difference of the luck of two arms, (sessions, pairs). ``draw_pairs`` pairs share a draw."""
    draws = rng.normal(0, 2**0.5 * luck_sd, (sessions, -(-pairs // draw_pairs)))
    return np.repeat(draws, draw_pairs, axis=1)[:, :pairs]


def pooled_noise(placebo_ratios: Array) -> list[PairNoise]:
    """Return the noise of each class as ``regbot.stats.calibration.pool_noise`` does: all placebo pairs are one sample.
    ``placebo_ratios``: (classes, pairs, summaries)."""
    df = placebo_ratios.shape[1] - 1
    deviations = placebo_ratios - placebo_ratios.mean(axis=1, keepdims=True)
    sds = np.sqrt((deviations**2).sum(axis=1) / df)
    return [PairNoise(df=df, median_sd=float(median), mean_sd=float(mean)) for median, mean in sds]


def judge_shipped(
    sessions: Levels,
    effect_pct: float,
    noise: Sequence[PairNoise] | None = None,
    primary_tests: int = PRIMARY,
    luck: Sequence[SharedLuck | None] | None = None,
    may_decide: Callable[[int, int], bool] | None = None,
) -> Decisions:
    """Judge every session by ``regbot.stats.paired.sequential_test``. ``noise`` and ``luck`` have one value for each
    class, and the sessions are divided among them in order. ``may_decide`` takes a session and its number of pairs."""
    effect, count = log1p(effect_pct / 100), len(sessions.base)
    ratios = np.moveaxis(sessions.ratios + effect, 2, 1).tolist()
    base = np.moveaxis(sessions.base, 2, 1).tolist()
    tests: list[SequentialTest] = []
    withheld = np.zeros(count, dtype=bool)
    for session in range(count):
        values = dict(zip(SUMMARIES, ratios[session], strict=True))
        class_noise = session_luck = None
        if noise is not None:
            class_levels = dict(zip(SUMMARIES, base[session], strict=True))
            class_noise = ClassNoise.from_record(noise[session * len(noise) // count], class_levels)
        if luck is not None:
            session_luck = luck[session * len(luck) // count]
        may = None if may_decide is None else lambda pairs, session=session: may_decide(session, pairs)
        test = sequential_test(values, primary_tests, THRESHOLDS, luck=session_luck, noise=class_noise, may_decide=may)
        assert test is not None
        withheld[session] = test.withheld
        if session_luck is not None and session_luck.is_assumed and test.decision == "undecided":
            retest = sequential_test(values, primary_tests, THRESHOLDS, noise=class_noise, may_decide=may)
            withheld[session] |= retest is not None and retest.decision != "undecided"
        tests.append(test)
    return Decisions(
        slower=np.array([test.decision == "regressed" for test in tests]),
        passed=np.array([test.decision in PASSING for test in tests]),
        covered=np.array([covers(test, effect) for test in tests]),
        pairs=np.array([float(test.pairs) for test in tests]),
        withheld=withheld,
    )


def covers(test: SequentialTest, effect: float) -> bool:
    """Whether every interval of the last look contains the log ``effect``."""
    return all(bounds.low <= effect <= bounds.high for _, bounds in test.tests.values())
