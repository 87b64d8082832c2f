"""The noise of a pair that look 0 uses: from placebo pairs and from nightly pairs against the anchor."""

import math
from pathlib import Path

import pytest

from regbot.baselines.reference import load_references, summarise_calibrations
from regbot.baselines.store import Store
from regbot.records.baseline import AnchorComparison, Baseline
from regbot.records.session import Session
from support.baseline_builder import calibration, distilled, placebo, put
from support.baseline_cases import NOW, block_runs, header_of
from support.timed_builder import NODE, PLAN, statics


def night(number: int, *log_ratios: float) -> Baseline:
    """Return a stored session, timed beside the anchor if there are ``log_ratios``."""
    session = Session(header=header_of(number), runs=[*statics(), *block_runs(number, 2)])
    (baseline,) = (baseline for baseline in distilled(session).baselines if baseline.tier == "timed")
    both = {"median": [*log_ratios], "mean": [2 * value for value in log_ratios]}
    against = AnchorComparison(commit="e" * 40, log_ratios=both) if log_ratios else None
    return baseline.model_copy(update={"against": against})


def test_placebo_and_nightly_pairs_give_the_noise(tmp_path: Path) -> None:
    """Placebo pairs of 1, -1, 3 and -3 permille: 3 degrees. Five nights of 2 and 0: one degree each, without their
    mean. The session with an injected slowdown does not count."""
    store = Store(tmp_path)
    nights = [night(n, 0.002, 0.000) for n in range(5)]
    put(store, *nights, night(9))
    sessions = (placebo(1, 0.0, 0.001, -0.001), placebo(2, 0.0, 0.003, -0.003), placebo(3, 5.0, 0.05, 0.09))
    store.add_calibration(calibration(nights[0], *sessions))
    (reference,) = load_references(store, PLAN, NODE.node_class, NOW).references
    noise = reference.noise
    assert noise is not None
    assert noise.df == 3 + 5
    assert noise.median_sd == pytest.approx(math.sqrt((20 + 5 * 2) * 1e-6 / 8))
    assert noise.mean_sd == pytest.approx(2 * noise.median_sd)


def test_pairs_on_other_terms_or_too_few_give_no_noise(tmp_path: Path) -> None:
    store = Store(tmp_path)
    nights = [night(n, 0.002, 0.000) for n in range(4)]
    put(store, *nights)
    store.add_calibration(calibration(nights[0], placebo(1, 0.0, *[0.001, -0.001] * 10), steps=PLAN.steps + 1))
    (reference,) = load_references(store, PLAN, NODE.node_class, NOW).references
    assert reference.noise is None


def test_quiet_nights_do_not_lower_the_noise_of_placebo_pairs(tmp_path: Path) -> None:
    """Placebo pairs of several sessions show what differs from session to session, and nights do not."""
    store = Store(tmp_path)
    nights = [night(n, 0.001, 0.001) for n in range(5)]
    put(store, *nights)
    sessions = [placebo(n, 0.0, value, value) for n, value in enumerate([0.003, -0.003] * 3)]
    store.add_calibration(calibration(nights[0], *sessions))
    (reference,) = load_references(store, PLAN, NODE.node_class, NOW).references
    noise = reference.noise
    assert noise is not None
    assert noise.df == 11
    assert noise.median_sd == pytest.approx(math.sqrt(12 * 9e-6 / 11))


def test_each_day_and_node_of_the_placebo_sessions_is_an_allocation_of_its_own() -> None:
    stored = night(1)
    days = ["2026-01-02T00:00:00Z", "2026-01-02T09:00:00Z", "2026-01-03T00:00:00Z"]
    calibrations = [
        calibration(
            stored,
            placebo(number, 0.0, *[0.001, -0.002, 0.003, -0.001] * 2).model_copy(update={"draws": [1] * 4 + [2] * 4}),
        ).model_copy(update={"measured": day})
        for number, day in enumerate(days)
    ]
    summary = summarise_calibrations(calibrations)
    assert summary is not None
    assert summary.arm_luck is not None
    assert (summary.arm_luck.draws, summary.arm_luck.allocations) == (6, 2)
