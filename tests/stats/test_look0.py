"""Look 0 by hand-worked examples, at its limits, and on simulated sessions with a known effect."""

import math
import random

import pytest
from scipy import stats

from regbot.records.calibration_summary import PairNoise
from regbot.stats.look0 import NOISE_LEVEL, look0, max_own_variance, pool_noise
from regbot.stats.paired import LOOK_ALPHA, Thresholds, sequential_test

THRESHOLDS = Thresholds.from_percent(2.0, 1.0)
NOISE = PairNoise(df=19, median_sd=0.005, mean_sd=0.006)


def both(*values: float) -> dict[str, list[float]]:
    return {"median": [*values], "mean": [*values]}


def decide(*values: float, noise: PairNoise = NOISE) -> str:
    return look0(both(*values), noise, 2, THRESHOLDS).decision


def half_width(sd: float, df: int) -> float:
    return float(stats.t.ppf(1 - LOOK_ALPHA / 4, df)) * sd / math.sqrt(2)


def test_the_interval_is_wider_by_the_larger_sd_with_the_degrees_of_freedom_of_the_class() -> None:
    quiet = look0(both(0.001, 0.002), NOISE, 2, THRESHOLDS)
    assert (quiet.pairs, quiet.look, quiet.alpha) == (2, 0, LOOK_ALPHA / 2)
    for name, sd in (("median", 0.005), ("mean", 0.006)):
        bounds = quiet.tests[name][1]
        assert (bounds.estimate, bounds.sd) == pytest.approx((0.0015, sd))
        assert bounds.high - bounds.estimate == pytest.approx(half_width(sd, 19))
    wide = look0(both(-0.004, 0.004), NOISE, 2, THRESHOLDS).tests["median"][1]
    assert wide.sd == pytest.approx(math.sqrt(2) * 0.004)
    assert wide.high == pytest.approx(half_width(wide.sd, 19))


def test_a_harmless_change_passes_and_a_slowdown_goes_on() -> None:
    assert decide(0.0, 0.001) == "within_bound"
    assert decide(0.02, 0.021) == "undecided"
    assert decide(0.3, 0.301) == "undecided", "look 0 never fails a change"


def test_an_interval_that_excludes_0_goes_on_to_the_looks() -> None:
    quiet = PairNoise(df=100, median_sd=0.001, mean_sd=0.001)
    assert decide(0.0, 0.0005, noise=quiet) == "within_bound"
    assert decide(0.006, 0.0065, noise=quiet) == "undecided", "a slowdown below 2% may still be a regression"
    assert decide(-0.02, -0.0205, noise=quiet) == "undecided", "an improvement is proven by more pairs"


def test_the_upper_end_must_be_below_the_threshold() -> None:
    limit = THRESHOLDS.delta - half_width(0.006, 19)
    assert decide(limit - 1e-6, limit - 1e-6) == "within_bound"
    assert decide(limit + 1e-6, limit + 1e-6) == "undecided"


def test_one_summary_over_the_limit_is_enough_to_go_on() -> None:
    for name in ("median", "mean"):
        assert look0({**both(0.0, 0.0), name: [0.012, 0.012]}, NOISE, 2, THRESHOLDS).decision == "undecided"


def test_a_session_noisier_than_its_class_goes_on() -> None:
    """The variance of two values is half of their squared difference."""
    limit = math.sqrt(2 * max_own_variance(0.005, 19))
    assert limit == pytest.approx(0.005 * math.sqrt(2 * stats.f.ppf(NOISE_LEVEL, 1, 19)))
    noise = PairNoise(df=19, median_sd=0.005, mean_sd=0.005)
    assert decide(-limit / 2 + 1e-6, limit / 2 - 1e-6, noise=noise) == "within_bound"
    assert decide(-limit / 2 - 1e-6, limit / 2 + 1e-6, noise=noise) == "undecided"


def test_the_noise_is_pooled_within_groups() -> None:
    """Deviations 1, 0, -1 and 2, -2 (five times): 2 + 40 over 2 + 5 degrees; shifts of a group do not count."""
    groups = [both(0.02, 0.01, 0.0), *[both(0.5 + 0.02, 0.5 - 0.02)] * 5, {"median": [], "mean": []}]
    assert pool_noise(groups) is None, "seven degrees of freedom are too few"
    noise = pool_noise([*groups, both(0.3, 0.3)])
    assert noise is not None
    assert noise.df == 8
    assert (noise.median_sd, noise.mean_sd) == pytest.approx([math.sqrt((0.0002 + 5 * 0.0008) / 8)] * 2)
    assert pool_noise([]) is None


@pytest.mark.parametrize(("df", "noisier"), [(19, 1.0), (19, 2.0), (59, 2.0), (59, 3.0)])
def test_a_true_2_percent_slowdown_seldom_passes_even_in_a_noisier_session(df: int, noisier: float) -> None:
    """4000 sessions of a typical node, with a class sd that is itself estimated. Two looks at a false PASS: look 0,
    and the later looks of sessions that go on. The standard error is .003."""
    random.seed(df)
    passed = 0
    for _ in range(4000):
        sds = [0.0074 * math.sqrt(random.gammavariate(df / 2, 2) / df) for _ in range(2)]
        common = [random.gauss(0, 0.0070) for _ in range(12)]
        pairs = [[THRESHOLDS.delta + noisier * (x + random.gauss(0, own)) for x in common] for own in (0.0024, 0.0027)]
        ratios = dict(zip(("median", "mean"), pairs, strict=True))
        noise = PairNoise(df=df, median_sd=sds[0], mean_sd=sds[1])
        first = look0({name: values[:2] for name, values in ratios.items()}, noise, 2, THRESHOLDS)
        result = first if first.decision == "within_bound" else sequential_test(ratios, 2, THRESHOLDS)
        assert result is not None
        passed += result.decision not in ("regressed", "undecided")
    assert passed / 4000 < 0.035
