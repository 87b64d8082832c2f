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
from regbot.records.verdict import Decision
from regbot.stats.arm_luck import DRAW_PAIRS, SharedLuck
from regbot.stats.calibration import pool_noise, rate_bounds
from regbot.stats.paired import CLASS_LOOKS, LOOKS, PASSING, ClassNoise, SequentialTest, Thresholds, sequential_test
from regbot.stats.stalls import common_period

STEADY = 40
"""Steady steps of a run."""
BLOCK_PAIRS, PAIRS = CLASS_LOOKS[0], LOOKS[-1]
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
    whole: "Levels | None" = None
    """The same over whole periods of the stalls; None for sessions without stalls."""
    shows_period: Flags | None = None
    """Whether so many pairs show a period, so that ``whole`` is judged, (sessions, pairs)."""

    def first(self, sessions: int) -> "Levels":
        whole = self.whole.first(sessions) if self.whole is not None else None
        shows_period = self.shows_period[:sessions] if self.shows_period is not None else None
        return Levels(self.base[:sessions], self.ratios[:sessions], whole, shows_period)

    def after(self, pairs: int) -> "Levels":
        """Return the levels that regbot finds in the first ``pairs`` pairs."""
        if self.whole is None or self.shows_period is None:
            return Levels(self.base[:, :pairs], self.ratios[:, :pairs])
        shows_period = self.shows_period[:, pairs - 1, None, None]
        base, ratios = (
            np.where(shows_period, getattr(self.whole, name)[:, :pairs], getattr(self, name)[:, :pairs])
            for name in ("base", "ratios")
        )
        return Levels(base, ratios)

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
    rng, simulated = np.random.default_rng(seed), list[Levels]()
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
        chunk = arms_of(summarise_runs(steps), is_head)
        if stalls:
            whole = arms_of(summarise_runs(steps[..., STEADY % STALL_EVERY :]), is_head)
            chunk = replace(chunk, whole=whole, shows_period=find_periods(steps, is_head))
        simulated.append(chunk)
    joined = join_levels(simulated)
    if not stalls:
        return joined
    whole = join_levels([part.whole for part in simulated if part.whole is not None])
    shows_period = np.concatenate([part.shows_period for part in simulated if part.shows_period is not None])
    return replace(joined, whole=whole, shows_period=shows_period)


def join_levels(parts: Sequence[Levels]) -> Levels:
    return Levels(*(np.concatenate([getattr(part, name) for part in parts]) for name in ("base", "ratios")))


def find_periods(steps: Array, is_head: Flags) -> Flags:
    """Return whether the first pairs of each session show the period of the stalls, (sessions, pairs). ``steps``:
    (sessions, 2 pairs, steps)."""
    found = np.zeros((len(steps), is_head.shape[1] // 2), dtype=bool)
    for session, (runs, heads) in enumerate(zip(np.exp(steps), is_head, strict=True)):
        base, head = runs[~heads].tolist(), runs[heads].tolist()
        for pairs in range(2, found.shape[1] + 1, 2):
            period = common_period(base[:pairs], head[:pairs])
            assert period in (0, STALL_EVERY)
            found[session, pairs - 1] = period == STALL_EVERY
    return found


def draw_luck(luck_sd: float, sessions: int, pairs: int, rng: np.random.Generator, draw_pairs: int) -> Array:
    """Return the difference of the luck of two arms, (sessions, pairs). ``draw_pairs`` pairs share a draw."""
    draws = rng.normal(0, 2**0.5 * luck_sd, (sessions, -(-pairs // draw_pairs)))
    return np.repeat(draws, draw_pairs, axis=1)[:, :pairs]


def pooled_noise(placebo_ratios: Array) -> list[PairNoise | None]:
    """Return the noise of each class: all its placebo pairs are one sample, without those of slow launches. None for
    too few pairs. ``placebo_ratios``: (classes, pairs, summaries)."""
    groups = [dict(zip(SUMMARIES, ratios.T.tolist(), strict=True)) for ratios in placebo_ratios]
    return [pool_noise([group]) for group in groups]


def judge_shipped(
    sessions: Levels,
    effect_pct: float,
    noise: Sequence[PairNoise | None] | None = None,
    primary_tests: int = PRIMARY,
    luck: Sequence[SharedLuck | None] | None = None,
    reason_to_go_on: Callable[[int, int], str] | None = None,
    offset: float = 0.0,
) -> Decisions:
    """Judge every session by ``regbot.stats.paired.sequential_test``. ``noise`` and ``luck`` have one value for each
    class, and the sessions are divided among them in order. ``reason_to_go_on`` takes a session and its
    number of pairs."""
    effect, count = log1p(effect_pct / 100), len(sessions.base)
    # With stalls, the number of pairs so far decides which steps of the runs count.
    looks = (PAIRS,) if sessions.whole is None else CLASS_LOOKS
    levels_of_looks = [sessions.after(pairs) for pairs in looks]
    ratios = [np.moveaxis(used.ratios + effect, 2, 1).tolist() for used in levels_of_looks]
    base = [np.moveaxis(used.base, 2, 1).tolist() for used in levels_of_looks]
    tests: list[SequentialTest] = []
    withheld = np.zeros(count, dtype=bool)

    def test_session(session: int, luck: SharedLuck | None) -> SequentialTest:
        pair_noise = noise[session * len(noise) // count] if noise is not None else None

        def reason(pairs: int, _: Decision) -> str:
            return reason_to_go_on(session, pairs) if reason_to_go_on is not None else ""

        test = None
        for ratios_so_far, base_so_far in zip(ratios, base, strict=True):
            values = dict(zip(SUMMARIES, ratios_so_far[session], strict=True))
            class_levels = dict(zip(SUMMARIES, base_so_far[session], strict=True))
            class_noise = ClassNoise.from_record(pair_noise, class_levels) if pair_noise is not None else None
            test = sequential_test(
                values,
                primary_tests,
                THRESHOLDS,
                luck=luck,
                noise=class_noise,
                offset=offset,
                reason_to_go_on=reason,
            )
            if test is not None and test.final:
                break
        assert test is not None
        return test

    for session in range(count):
        session_luck = luck[session * len(luck) // count] if luck is not None else None
        test = test_session(session, session_luck)
        withheld[session] = test.withheld
        if session_luck is not None and session_luck.is_assumed and test.decision == "undecided":
            withheld[session] |= test_session(session, None).decision != "undecided"
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
