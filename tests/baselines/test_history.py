"""The trend of a workload: what it shows, what it leaves out, and that it decides nothing.

After a change of wording that is meant, write the golden page anew and read the difference:

    REGBOT_WRITE_GOLDEN=1 pytest tests/baselines/test_history.py
"""

import math
import os
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from typer.testing import CliRunner

from regbot.baselines import commands
from regbot.baselines.history import history, history_page
from regbot.baselines.store import BaselineError, Store
from regbot.cli import baseline as baseline_commands
from regbot.records.baseline import Baseline
from regbot.records.history import History, HistorySeries
from regbot.stats.history import HAMPEL_WINDOW, MAX_LEVELS, change_points
from regbot.stats.steady import hampel_filter
from support.baseline_builder import BASELINE, CPU, put, timed_baseline
from support.baseline_cases import NOW
from support.ledger_builder import WORKLOAD

GOLDEN = Path(__file__).parents[1] / "golden" / "history" / "page.txt"
NEWER = BASELINE.environment.model_copy(update={"framework": "torch 2.14.0", "python": None})
Array = NDArray[np.float64]


def session(number: int, level_s: float = 0.1, runs: int = 2, **changes: Any) -> Baseline:
    """Return a session with its own commit, whose runs take ``level_s`` per step."""
    run = BASELINE.runs[0]
    result = [run.model_copy(update={"slot": slot % 4, "log_median": math.log(level_s)}) for slot in range(runs)]
    return timed_baseline(number, **({"runs": result, "commit": f"{number + 1:04x}" * 10} | changes))


def noisy(numbers: Sequence[int], level_s: float, **changes: Any) -> list[Baseline]:
    draw = random.Random(numbers[0])
    return [session(number, level_s * (1 + draw.gauss(0, 0.003)), **changes) for number in numbers]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "baselines")


def only_series(result: History) -> HistorySeries:
    (trend,) = result.trends
    (series,) = trend.series
    return series


def load_history(store: Store, **changes: Any) -> History:
    given: dict[str, Any] = {"workload": WORKLOAD, "now": NOW}
    return history(Store(store.root), **(given | changes))


# ---- content


def test_the_page_of_a_workload_with_a_change_an_anchor_and_a_new_environment(store: Store) -> None:
    put(store, *noisy(range(30), 0.1), *noisy(range(30, 54), 0.104), *noisy(range(60, 70), 0.092, environment=NEWER))
    put(store, session(80, 0.1002, series="anchor", commit="0006" * 10))
    commands.move_anchor(store, commands.AnchorMove(WORKLOAD, "0006" * 10, "ada", "release 1"), NOW)
    page = history_page(load_history(store)) + "\n"
    if os.environ.get("REGBOT_WRITE_GOLDEN"):
        GOLDEN.write_text(page, encoding="utf-8")
    assert page == GOLDEN.read_text(encoding="utf-8")


def test_incomparable_sessions_form_separate_series(store: Store) -> None:
    put(store, session(0), session(1, 0.2, dispatcher="deepep"), session(2), session(3, 0.3, node_class="8 x B200"))
    put(store, session(4, 0.4, environment=NEWER))
    result = load_history(store)
    of_class = {trend.node_class: trend.series for trend in result.trends}
    assert {name: [item.sessions for item in series] for name, series in of_class.items()} == {
        BASELINE.node_class: [2, 1, 1],
        "8 x B200": [1],
    }
    assert [item.changed for item in of_class[BASELINE.node_class]] == [
        [],
        ["dispatcher"],
        ["framework", "python", "dispatcher"],
    ]
    (trend,) = load_history(store, node_class="8 x B200").trends
    assert trend.series[0].points[0].level_s == pytest.approx(0.3)


def test_a_rerun_of_the_anchor_is_not_in_the_trend(store: Store) -> None:
    put(store, *(session(number) for number in range(3)), session(9, 0.2, series="anchor", commit="0002" * 10))
    commands.move_anchor(store, commands.AnchorMove(WORKLOAD, "0002" * 10, "ada", "release 1"), NOW)
    (trend,) = load_history(store).trends
    (series,) = trend.series
    assert trend.anchor == "0002" * 10
    assert (series.sessions, series.anchor_sessions) == (3, 2)
    assert series.anchor_s == pytest.approx(math.sqrt(0.1 * 0.2))
    assert [point.anchor for point in series.points] == [False, True, False]


# ---- errors


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"workload": "mixtral-8x7b@1/ep"}, "no timed session of mixtral-8x7b@1/ep is stored: see"),
        ({"node_class": "8 x B200"}, r"no timed session of qwen3-30b-a3b@1/ep \(8 x B200\) is stored"),
    ],
)
def test_missing_sessions_are_an_error(store: Store, changes: dict[str, Any], reason: str) -> None:
    put(store, session(0))
    with pytest.raises(BaselineError, match=reason):
        load_history(store, **changes)


# ---- the command


def test_the_command_prints_the_page_or_one_document_and_a_change_fails_nothing(store: Store) -> None:
    put(store, *noisy(range(20), 0.1), *noisy(range(20, 40), 0.13))
    runner = CliRunner()
    page = runner.invoke(baseline_commands.app, ["history", WORKLOAD, "--store", str(store.root)])
    assert page.exit_code == 0, "a change of level is an annotation"
    assert "+30" in page.stdout
    assert page.stdout == history_page(load_history(store)) + "\n"
    arguments = ["history", WORKLOAD, "--store", str(store.root), "--last", "6", "--points", "3", "--variant", CPU]
    result = runner.invoke(baseline_commands.app, [*arguments, "--class", BASELINE.node_class, "--json"])
    series = only_series(History.model_validate_json(result.stdout))
    assert [point.sessions for point in series.points] == [2, 2, 2]
    assert runner.invoke(baseline_commands.app, ["history", "x@1/ep", "--store", str(store.root)]).exit_code == 2


# ---- change points


def flat(rng: np.random.Generator, sessions: int, sd: float = 0.01) -> Array:
    """Return levels of a quiet history with 2% outliers."""
    return rng.normal(0, sd, sessions) + (rng.random(sessions) < 0.02) * rng.exponential(0.05, sessions)


@pytest.mark.slow
@pytest.mark.parametrize(("sessions", "at_most"), [(10, 0.10), (30, 0.08), (200, 0.02), (MAX_LEVELS, 0.02)])
def test_a_flat_history_seldom_shows_a_change(sessions: int, at_most: float) -> None:
    """``benchmarks/history.py`` prints the rate; this is the bound for 300 series."""
    rng = np.random.default_rng(20260901)
    assert sum(len(change_points(flat(rng, sessions))) for _ in range(300)) / 300 <= at_most


@pytest.mark.parametrize(("step", "old", "at_least"), [(0.02, 100, 0.95), (0.02, 10, 0.8), (0.05, 4, 0.95)])
def test_a_step_is_detected_at_its_position(step: float, old: int, at_least: float) -> None:
    rng = np.random.default_rng(20260901)
    moved = [change_points(flat(rng, 200) + step * (np.arange(200) >= 200 - old)) for _ in range(200)]
    assert sum(any(abs(at - (200 - old)) <= 5 for at in result) for result in moved) / 200 >= at_least


def test_two_steps_are_two_changes_and_a_bad_night_is_no_change() -> None:
    levels = np.repeat([0.0, 0.05, 0.02], 30) + np.random.default_rng(1).normal(0, 0.005, 90)
    levels[[10, 45, 70]] += 0.3
    assert change_points(levels) == [30, 60]
    assert change_points(-levels) == [30, 60]
    assert change_points(levels + 7.0) == [30, 60], "no unit"
    assert {10, 45, 70} <= {*np.flatnonzero(np.abs(hampel_filter(levels, HAMPEL_WINDOW) - levels) > 0.2)}
