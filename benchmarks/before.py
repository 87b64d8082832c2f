"""The throughput rule of the commit before, on many sessions at once, as the peer of the shipped rule.

After two pairs, *look 0* passes a session if the interval with the larger of the class's and the session's own standard
deviation contains 0 and ends below 2%, and if its own variance is not above a quantile of F. After 4, 8 and 12 pairs, a
t interval decides, 1.3, 1.2 and 1.05 times as wide as Student's. From 8 pairs on, a session with a slow launch gets the
trimmed t interval (Yuen 1974).
"""

from math import log1p

import numpy as np
from nodes import Array, Flags
from paired_sessions import PRIMARY, THRESHOLDS, Decisions
from scipy.stats import f as f_distribution
from scipy.stats import t as student

from regbot.stats.arm_luck import DRAW_PAIRS
from regbot.stats.slow_launches import MAX_DEVIATION, SD_PER_MAD, WITHHOLDING_PAIRS

LOOK_ALPHA = 0.0204
WIDENINGS = {4: 1.3, 8: 1.2, 12: 1.05}
LOOK0_PAIRS, LOOK0_LEVEL = 2, 0.8


def judge_before(
    ratios: Array,
    effect_pct: float,
    class_sds: Array | None = None,
    noise_df: int = 0,
    primary_tests: int = PRIMARY,
    luck: Array | None = None,
) -> Decisions:
    """Judge sessions of the log-ratios ``ratios``, (sessions, pairs, summaries), at an effect. ``class_sds``: stored
    standard deviation of a pair, (sessions, summaries). ``luck``: the standard deviation of the luck of an arm and its
    degrees of freedom, (2, sessions)."""
    effect, sessions = log1p(effect_pct / 100), len(ratios)
    shifted, alpha = ratios + effect, LOOK_ALPHA / primary_tests
    result = Decisions(*np.zeros((3, sessions), dtype=bool), np.full(sessions, 12.0), np.zeros(sessions, dtype=bool))

    def conclude(
        pairs: int, is_open: Flags, slower: Flags, passed: Flags, mean: Array, half_width: Array, withheld: Flags
    ) -> None:
        """Store the decisions of one look on the open sessions."""
        result.slower |= is_open & slower
        result.passed |= is_open & passed
        result.withheld[is_open] = withheld[is_open]
        result.pairs[is_open] = pairs
        result.covered[is_open] = (np.abs(mean - effect) <= half_width).all(axis=1)[is_open]

    def add_luck(half_width: Array, pairs: int) -> Array:
        if luck is None:
            return half_width
        sd, df = luck
        counts = np.bincount(np.arange(pairs) // DRAW_PAIRS)
        luck_sd = np.sqrt(2 * (counts**2).sum()) / pairs * sd
        return np.hypot(half_width, (student.ppf(1 - alpha / 2, df) * luck_sd)[:, None])

    none = np.zeros(sessions, dtype=bool)
    if class_sds is not None:
        used = shifted[:, :LOOK0_PAIRS]
        mean, sd = used.mean(axis=1), np.maximum(used.std(axis=1, ddof=1), class_sds)
        half_width = add_luck(student.ppf(1 - alpha / 2, noise_df) * sd / LOOK0_PAIRS**0.5, LOOK0_PAIRS)
        is_quiet = used.var(axis=1, ddof=1) <= f_distribution.ppf(LOOK0_LEVEL, 1, noise_df) * class_sds**2
        is_inside = (mean - half_width <= 0) & (mean + half_width >= 0) & (mean + half_width < THRESHOLDS.delta)
        conclude(LOOK0_PAIRS, ~none, none, (is_quiet & is_inside).all(axis=1), mean, half_width, none)
    for pairs, widening in WIDENINGS.items():
        is_open = ~(result.slower | result.passed)
        used = shifted[:, :pairs]
        reach = widening * student.ppf(1 - alpha / 2, pairs - 1)
        mean, half_width = used.mean(axis=1), reach * used.std(axis=1, ddof=1) / pairs**0.5
        half_width = add_luck(half_width, pairs)
        passes_untrimmed = _decide(mean, half_width)[1]
        withheld = none
        if pairs > 4:
            deviations = used - np.median(used, axis=1, keepdims=True)
            limit = MAX_DEVIATION * SD_PER_MAD * np.median(np.abs(deviations), axis=1, keepdims=True)
            of_head, of_base = ((sign * deviations > limit).any(axis=2).sum(axis=1) for sign in (1, -1))
            trimmed, trimmed_half_width = _trimmed(used, alpha, widening)
            is_trimmed = (of_head + of_base > 0)[:, None]
            mean = np.where(is_trimmed, trimmed, mean)
            half_width = np.where(is_trimmed, add_luck(trimmed_half_width, pairs), half_width)
            has_more = (WITHHOLDING_PAIRS * of_head > pairs) & (WITHHOLDING_PAIRS * (of_head - of_base) >= pairs)
            withheld = has_more & ~passes_untrimmed & _decide(mean, half_width)[1]
        slower, passed = _decide(mean, half_width)
        conclude(pairs, is_open, slower, passed & ~withheld, mean, half_width, withheld)
    return result


def _decide(mean: Array, half_width: Array) -> tuple[Flags, Flags]:
    low, high = mean - half_width, mean + half_width
    slower = (low > THRESHOLDS.eps).any(axis=1)
    no_change = ((low > -THRESHOLDS.delta) & (high < THRESHOLDS.delta)).all(axis=1)
    improved = (high < -THRESHOLDS.eps).any(axis=1) & (high < THRESHOLDS.delta).all(axis=1)
    return slower, ~slower & (no_change | improved)


def _trimmed(used: Array, alpha: float, widening: float) -> tuple[Array, Array]:
    pairs = used.shape[1]
    cut = pairs // 6
    kept = np.sort(used, axis=1)[:, cut : pairs - cut]
    count = kept.shape[1]
    nearest = np.concatenate([kept[:, :1].repeat(cut, 1), kept, kept[:, -1:].repeat(cut, 1)], axis=1)
    error = nearest.std(axis=1, ddof=1) * ((pairs - 1) / (count * (count - 1))) ** 0.5
    return kept.mean(axis=1), widening * student.ppf(1 - alpha / 2, count - 1) * error
