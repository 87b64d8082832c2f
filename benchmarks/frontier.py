"""Rules for the pairs of a session that were tried, on the same simulated sessions of the typical node.

    python benchmarks/frontier.py [--sessions 8000]

All rules are judged on arrays of many sessions at once. *Now* is the shipped rule; the script first checks on some
sessions that ``sequential_test`` decides the same. Slow launches and luck are left out. Peers with a fixed number of
runs have no statement about a pass. Wald's bound is the smallest mean number of pairs of any sequential test of a known
standard deviation with the errors of the test between 1% and 2%.
"""

import argparse
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import log, log1p

import numpy as np
from before import judge_before
from nodes import TYPICAL, Array, Flags, levels, steps_of_runs
from paired_sessions import (
    PAIRS,
    PLACEBO_PAIRS,
    PLACEBO_SESSIONS,
    PRIMARY,
    SESSIONS_PER_CLASS,
    STEADY,
    THRESHOLDS,
    Decisions,
    Levels,
    judge_shipped,
    noisier,
    simulate_sessions,
)
from scipy import stats

from regbot.records.calibration_summary import PairNoise
from regbot.stats.paired import CLASS_LOOKS, LOOKS, NOISE_CHANCE, PRIOR_DF, correlation_factor, look_alpha

SEED = 20261129
SESSIONS = 8000
CHECKED_SESSIONS = 200
BATCH = 10
"""Runs of each arm of the rules with a fixed number of runs."""
NOISE_DF = PLACEBO_SESSIONS * PLACEBO_PAIRS - 1
EFFECTS_PCT = (0.0, 1.0, 2.0, 3.0)
SPRT_ERROR = 0.025


@dataclass(frozen=True)
class Scene:
    """Sessions without an effect, and the stored standard deviation of a pair, (sessions, summaries)."""

    sessions: Levels
    class_sds: Array


HalfWidths = Callable[[Scene, int], Array]
"""Half widths of the intervals after so many pairs, (sessions, summaries)."""


@dataclass(frozen=True)
class Rule:
    name: str
    looks: tuple[int, ...]
    half_widths: HalfWidths
    fails_from: int = LOOKS[0]

    def judge(self, scene: Scene, effect_pct: float) -> Decisions:
        effect, count = log1p(effect_pct / 100), len(scene.class_sds)
        slower, passed, covered = np.zeros((3, count), dtype=bool)
        used = np.zeros(count)
        for pairs in self.looks:
            is_open = ~(slower | passed)
            mean, half_width = scene.sessions.ratios[:, :pairs].mean(axis=1) + effect, self.half_widths(scene, pairs)
            low, high = mean - half_width, mean + half_width
            is_slower = (low > THRESHOLDS.eps).any(axis=1)
            is_improved = (high < -THRESHOLDS.eps).any(axis=1) & (high < THRESHOLDS.delta).all(axis=1)
            contains_0 = (low <= 0) & (high >= 0)
            is_bound = ((high < THRESHOLDS.delta) & ((low > -THRESHOLDS.delta) | contains_0)).all(axis=1)
            slower |= is_open & is_slower & (pairs >= self.fails_from)
            passed |= is_open & ~is_slower & (is_improved | is_bound)
            used[is_open] = pairs
            covered[is_open] = (np.abs(mean - effect) <= half_width).all(axis=1)[is_open]
        return Decisions(slower, passed, covered, used, np.zeros(count, dtype=bool))


def reach(alpha: float, df: float, pairs: int) -> float:
    return float(stats.t.ppf(1 - alpha / 2, df)) / pairs**0.5


def own_sd(scene: Scene, pairs: int) -> Array:
    return np.asarray(scene.sessions.ratios[:, :pairs].std(axis=1, ddof=1))


def moderated_sd(scene: Scene, pairs: int, prior_df: int) -> Array:
    squares = prior_df * scene.class_sds**2 + (pairs - 1) * own_sd(scene, pairs) ** 2
    return np.asarray(np.sqrt(squares / (prior_df + pairs - 1)))


def shipped(scene: Scene, pairs: int) -> Array:
    alpha = look_alpha(pairs, PRIMARY)
    base = scene.sessions.base[:, :pairs]
    runs = np.stack([base, base + scene.sessions.ratios[:, :pairs]])
    run_variance = runs.var(axis=2, ddof=1).mean(axis=0)
    limit = stats.f.ppf(1 - NOISE_CHANCE / pairs, 2 * (pairs - 1), NOISE_DF) * scene.class_sds**2
    moderated = reach(alpha, PRIOR_DF + pairs - 1, pairs) * moderated_sd(scene, pairs, PRIOR_DF)
    own = reach(alpha, pairs - 1, pairs) * own_sd(scene, pairs)
    is_noisier = (2 * run_variance > limit).any(axis=1, keepdims=True)
    return correlation_factor(pairs) * np.where(is_noisier, own, moderated)


def issue(scene: Scene, pairs: int) -> Array:
    """A moderated t with 8 degrees of freedom, times 1.1; own t alone above 1.5 times the class's deviation."""
    own, alpha = own_sd(scene, pairs), 0.0204 / PRIMARY
    moderated = 1.1 * reach(alpha, 8 + pairs - 1, pairs) * moderated_sd(scene, pairs, 8)
    return np.where(own > 1.5 * scene.class_sds, 1.1 * reach(alpha, pairs - 1, pairs) * own, moderated)


def constant_alpha(scene: Scene, pairs: int) -> Array:
    return (
        shipped(scene, pairs)
        * reach(0.025 / PRIMARY, PRIOR_DF + pairs - 1, pairs)
        / reach(look_alpha(pairs, PRIMARY), PRIOR_DF + pairs - 1, pairs)
    )


def group_sequential(power: float) -> HalfWidths:
    """Bounds of the normal mean with the class's standard deviation: the same at every look with ``power`` 0 (Pocock),
    and wide at early looks with 0.5 (O'Brien and Fleming)."""
    bound = group_sequential_bound(power, 0.05 / PRIMARY)
    return lambda scene, pairs: bound * (PAIRS / pairs) ** power * scene.class_sds / pairs**0.5


def own_t(scene: Scene, pairs: int) -> Array:
    return correlation_factor(pairs) * reach(look_alpha(pairs, PRIMARY), pairs - 1, pairs) * own_sd(scene, pairs)


def group_sequential_bound(power: float, alpha: float, looks: int = len(CLASS_LOOKS), draws: int = 200_000) -> float:
    """Return the bound at the last look with which a path of ``looks`` normal sums is ever outside with probability
    ``alpha``, by simulation."""
    sums = np.random.default_rng(SEED).normal(size=(draws, looks)).cumsum(axis=1)
    share = np.arange(1, looks + 1) / looks
    z = np.abs(sums) / np.sqrt(np.arange(1, looks + 1)) * share**power
    return float(np.quantile(z.max(axis=1), 1 - alpha))


RULES = (
    Rule("moderated t, 8 df, x 1.1, looks 4/8/12", LOOKS, issue),
    Rule("moderated t, same error at every block", CLASS_LOOKS, constant_alpha),
    Rule("Pocock, sd of the class", CLASS_LOOKS, group_sequential(0.0)),
    Rule("O'Brien-Fleming, sd of the class", CLASS_LOOKS, group_sequential(0.5)),
    Rule("own t alone, looks 4/8/12", LOOKS, own_t),
    Rule("now", CLASS_LOOKS, shipped),
)


def simulate_scenes(sessions: int) -> dict[str, Scene]:
    typical = simulate_sessions(TYPICAL, sessions, SEED)
    placebos = simulate_sessions(TYPICAL, sessions // SESSIONS_PER_CLASS * PLACEBO_SESSIONS, SEED + 1, PLACEBO_PAIRS)

    def class_sds(levels: Levels) -> Array:
        of_classes = levels.ratios.reshape(sessions // SESSIONS_PER_CLASS, -1, PRIMARY)
        return np.repeat(of_classes.std(axis=1, ddof=1), SESSIONS_PER_CLASS, axis=0)

    return {
        "independent": Scene(typical, class_sds(placebos)),
        "correlated": Scene(typical.correlate(0.2), class_sds(placebos.correlate(0.2))),
        "twice": Scene(simulate_sessions(noisier(TYPICAL, 2.0), sessions, SEED), class_sds(placebos)),
    }


def check_shipped(scene: Scene, rule: Rule) -> None:
    """Check that ``rule`` decides as ``sequential_test``. Raises AssertionError."""
    few = Scene(scene.sessions.first(CHECKED_SESSIONS), scene.class_sds[:CHECKED_SESSIONS])
    sds = few.class_sds.tolist()
    noise = [PairNoise(df=NOISE_DF, median_sd=median, mean_sd=mean) for median, mean in sds]
    for percent in EFFECTS_PCT:
        own, other = rule.judge(few, percent), judge_shipped(few.sessions, percent, noise)
        if not all(np.array_equal(getattr(own, name), getattr(other, name)) for name in ("slower", "passed", "pairs")):
            raise AssertionError(f"the rule of this script differs from sequential_test at {percent:g}%")


def print_rule(name: str, judge: Callable[[Scene, float], Decisions], scenes: Mapping[str, Scene]) -> None:
    outcomes = {scene: {pct: judge(data, pct).rates() for pct in EFFECTS_PCT} for scene, data in scenes.items()}
    independent = outcomes["independent"]
    runs = " / ".join(f"{independent[percent]['runs']:.1f}" for percent in (0.0, 2.0, 3.0))
    errors = " | ".join(
        " / ".join(f"{by_effect[percent][error]:.3f}" for by_effect in outcomes.values())
        for error, percent in (("slower", 1.0), ("passed", 2.0))
    )
    covered = " / ".join(f"{min(rates['covered'] for rates in rows.values()):.3f}" for rows in outcomes.values())
    print(f"| {name} | {independent[2.0]['slower']:.3f} | {runs} | {errors} | {covered} |", flush=True)


def print_peers(sessions: int) -> None:
    """Print rules of ten base runs and then ten head runs, and the sequential test of a known deviation."""
    shape = (sessions, 2 * BATCH)
    rng = np.random.default_rng(SEED + 2)
    logs = levels(TYPICAL, *shape, rng)[..., None] + steps_of_runs(TYPICAL, shape, STEADY, rng)
    medians = np.median(logs, axis=-1)
    base, head = medians[:, :BATCH], medians[:, BATCH:]
    rules: dict[str, Callable[[Array], Flags]] = {
        "Welch, head above base by 1%": lambda head: is_above(base + THRESHOLDS.eps, head),
        "Welch, head above base": lambda head: is_above(base, head),
        "benchstat: U test": lambda head: is_above_by_rank(base, head),
        "hyperfine: ratio of means above its standard deviation": lambda head: is_above_its_sd(base, head),
    }
    print("\n| 10 runs of base, then 10 of head | called slower at 0 / 1 / 2 / 3% |\n|---|---|")
    for name, rule in rules.items():
        shares = " / ".join(f"{rule(head + log1p(percent / 100)).mean():.3f}" for percent in EFFECTS_PCT)
        print(f"| {name} | {shares} |")


def is_above(base: Array, head: Array) -> Flags:
    p = stats.ttest_ind(head, base, axis=1, equal_var=False, alternative="greater").pvalue
    return np.asarray(p < 0.025)


def is_above_by_rank(base: Array, head: Array) -> Flags:
    p = stats.mannwhitneyu(base, head, axis=1, method="exact").pvalue
    return np.asarray((p < 0.05) & (np.median(head, axis=1) > np.median(base, axis=1)))


def is_above_its_sd(base: Array, head: Array) -> Flags:
    """hyperfine prints the ratio of the means +- its standard deviation. Source: src/benchmark/relative_speed.rs."""
    base_s, head_s = np.exp(base), np.exp(head)
    ratio = head_s.mean(axis=1) / base_s.mean(axis=1)
    relative = [times.std(axis=1, ddof=1) / times.mean(axis=1) for times in (base_s, head_s)]
    return np.asarray(ratio - 1 > ratio * np.hypot(*relative))


def print_known_sd(scene: Scene) -> None:
    """Print Wald's test of 1% against 2% with the true standard deviation of a pair, and his bound."""
    ratios = scene.sessions.ratios[..., 0]
    sd, gap = float(ratios.std()), THRESHOLDS.delta - THRESHOLDS.eps
    limit = log((1 - SPRT_ERROR) / SPRT_ERROR)
    print(f"\n| sd known ({sd:.2%}), 1% against 2%, errors {SPRT_ERROR:.1%} | runs at 0 / 1 / 2 / 3% | slower |")
    print("|---|---|---|")
    more = np.random.default_rng(SEED).normal(0, sd, (len(ratios), 88))  # a test without a last look
    runs, slower, bounds = [], [], []
    for percent in EFFECTS_PCT:
        values = np.concatenate([ratios, more], axis=1) + log1p(percent / 100)
        evidence = (gap / sd**2 * (values - (THRESHOLDS.delta + THRESHOLDS.eps) / 2)).cumsum(axis=1)
        stop = (np.abs(evidence) >= limit).argmax(axis=1)
        runs.append(f"{2 * (stop.mean() + 1):.1f}")
        slower.append(f"{(evidence[np.arange(len(stop)), stop] > 0).mean():.3f}")
        drift = gap / sd**2 * (log1p(percent / 100) - (THRESHOLDS.delta + THRESHOLDS.eps) / 2)
        bounds.append(f"{2 * (1 - 2 * SPRT_ERROR) * limit / abs(drift):.1f}" if percent in (1.0, 2.0) else "-")
    print(f"| sequential probability ratio test | {' / '.join(runs)} | {' / '.join(slower)} |")
    print(f"| Wald's bound | {' / '.join(bounds)} | |")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sessions", type=int, default=SESSIONS)
    sessions = parser.parse_args().sessions
    scenes = simulate_scenes(sessions)
    check_shipped(scenes["independent"], RULES[-1])
    check_shipped(scenes["twice"], RULES[-1])
    print(f"{sessions} sessions, seed {SEED}; errors and coverage: independent / correlated by .2 / twice the noise\n")
    print("| rule | power at 2% | runs at 0 / 2 / 3% | FAIL at 1% | PASS at 2% | coverage |\n|---|---|---|---|---|---|")
    print_rule(
        "before",
        lambda scene, percent: judge_before(scene.sessions.ratios, percent, scene.class_sds, NOISE_DF),
        scenes,
    )
    for rule in RULES:
        print_rule(rule.name, rule.judge, scenes)
    print_peers(sessions)
    print_known_sd(scenes["independent"])
    return 0


if __name__ == "__main__":
    sys.exit(main())
