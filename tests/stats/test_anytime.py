"""The always-valid interval: compared with its definition as an integral, by properties, and under repeated looks."""

import math
import random

import numpy as np
import pytest
from scipy import stats
from scipy.integrate import trapezoid

from regbot.stats.anytime import ANYTIME_ALPHA, PRIOR_PAIRS, anytime_interval, decide_anytime
from regbot.stats.paired import Thresholds

THRESHOLDS = Thresholds.from_percent(2.0, 1.0)


def noise(pairs: int, seed: int, sd: float = 0.01) -> list[float]:
    generator = random.Random(seed)
    return [generator.gauss(0, sd) for _ in range(pairs)]


def evidence(values: list[float], mean: float) -> float:
    """Return the evidence against ``mean`` by integration over a grid of mean / sd and log sd, for values of size 1."""
    shifts, log_sd = np.linspace(-8, 8, 801), np.linspace(math.log(0.1), math.log(50), 801)
    scaled = (np.array(values) - mean)[:, None, None] / np.exp(log_sd)[None, None, :]
    # d(sd) / sd is d(log sd): each value has density normal(value / sd - shift) / sd.
    squares = ((scaled - shifts[None, :, None]) ** 2).sum(axis=0)
    over_sd = trapezoid(np.exp(-squares / 2 - len(values) * log_sd), log_sd, axis=1)
    mixture = trapezoid(stats.norm(0, PRIOR_PAIRS**-0.5).pdf(shifts) * over_sd, shifts)
    return float(mixture / over_sd[len(shifts) // 2])


class TestInterval:
    @pytest.mark.parametrize("alpha", [0.05, 0.01])
    def test_interval_ends_have_evidence_one_over_alpha(self, alpha: float) -> None:
        values = noise(10, seed=1, sd=1.0)
        bounds = anytime_interval(values, alpha)
        for end in (bounds.low, bounds.high):
            assert evidence(values, end) == pytest.approx(1 / alpha, rel=1e-3)
        assert evidence(values, bounds.estimate) < 1


class TestDecision:
    def judge(self, effect: float, pairs: int = 20, tests: int = 2) -> str:
        values = [effect + value for value in noise(pairs, seed=3, sd=0.003)]
        return decide_anytime({"median": values, "mean": values}, tests, THRESHOLDS).decision

    def test_decision_follows_the_rule_of_the_paired_test(self) -> None:
        assert self.judge(math.log1p(0.03)) == "regressed"
        assert self.judge(-math.log1p(0.03)) == "improved"
        assert self.judge(0.0) == "no_change"
        assert self.judge(math.log1p(0.015), pairs=8) == "undecided"

    def test_all_pairs_are_used_at_alpha_one_percent_divided_by_the_tests(self) -> None:
        values = noise(26, seed=4)
        result = decide_anytime({"median": values}, 4, THRESHOLDS)
        assert result.alpha == ANYTIME_ALPHA / 4
        assert result.tests["median"][1] == anytime_interval(values, result.alpha)
        assert result.tests["median"][1].count == 26
