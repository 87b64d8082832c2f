"""``regbot bisect --command`` over a real history of two hundred commits: what it names, for how many runs, and what it
prints. What commits cost is made up (costs.py); all else is real."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from regbot.records.bisection import Bisection
from support.bisect_repository import BisectRepository, build
from support.costs import BROKEN, Bisecting, state_of
from support.git_repos import Repository

NOISE = 0.03
STEP = 1.2


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> BisectRepository:
    """Two hundred commits, ten of them broken."""
    return build(tmp_path_factory.mktemp("history") / "repository")


@pytest.fixture(scope="module")
def worktrees(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One cache for all tests here: checkouts are made once."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def untouched(history: BisectRepository) -> Iterator[None]:
    """The user's repository, which no bisection may change in any way."""
    before = state_of(Repository(history.path))
    yield
    assert state_of(Repository(history.path)) == before


@pytest.fixture
def case(tmp_path: Path, history: BisectRepository, worktrees: Path) -> Bisecting:
    return Bisecting(tmp_path, Repository(history.path), worktrees)


def stairs(history: BisectRepository, *steps: tuple[int, float]) -> dict[str, float | str]:
    """What every commit costs: from the place of a step on so many times 100; broken ones cannot be measured."""
    costs: dict[str, float | str] = {}
    for place, commit in enumerate(history.commits):
        factor = next((factor for at, factor in reversed(steps) if place >= at), 1.0)
        costs[commit] = 100 * factor
    return costs | dict.fromkeys(history.broken, BROKEN)


def blamed(document: dict[str, Any]) -> list[list[str]]:
    """Of every change the commits that may have brought it and could be measured."""
    return [
        [each["point"]["commit"] for each in change["candidates"] if each["measurable"]]
        for change in document["changes"]
    ]


# ---- who did it


@pytest.mark.slow
def test_a_noisy_cost_names_the_commit_among_two_hundred_with_ten_broken_ones(
    case: Bisecting, history: BisectRepository
) -> None:
    culprit = history.commits[58]
    command = case.costing(stairs(history, (58, STEP)), noise=NOISE)
    code, document = case.answer(history.good, history.bad, "--command", command)
    jsonschema.validate(document, Bisection.model_json_schema())
    assert (code, document["found"]) == (0, "culprit")
    (commits,) = blamed(document)
    assert culprit in commits
    assert len(commits) <= 3
    assert document["search_runs"] <= 60
    (change,) = document["changes"]
    assert change["confirmed"] == "yes"
    assert change["estimate"]["low_pct"] < 20 < change["estimate"]["high_pct"]
    assert {each["point"]["commit"] for each in document["unmeasurable"]} <= set(history.broken)
    made = [each["point"] for each in document["observations"] if each["usable"]]
    assert Counter(made) == Counter(case.runs()), "every run is in the answer, once"


@pytest.mark.slow
def test_a_cost_that_fell_is_no_culprit_and_asks_whether_good_and_bad_are_swapped(
    case: Bisecting, history: BisectRepository
) -> None:
    command = case.costing(stairs(history, (58, 0.7)), noise=0.01)
    result = case.typed(history.good, history.bad, "--command", command, "--effect", "5")
    assert result.exit_code == 3, result.stdout
    assert "NO CULPRIT" in result.stdout
    assert "are good and bad swapped?" in result.stdout


# ---- how it ends


@pytest.mark.parametrize(
    ("costs", "options", "code", "begins"),
    [
        ({58: 1.2}, ("--exact",), 0, "CULPRIT FOUND: "),
        ({}, ("--exact",), 3, "NO CULPRIT: "),
        ({58: 1.2}, ("--exact", "--runs", "4"), 3, "UNDECIDED: "),
        ({0: BROKEN}, ("--exact",), 4, "NOT MEASURABLE: "),
    ],
)
def test_every_end_has_its_exit_code_and_its_first_words(
    case: Bisecting,
    history: BisectRepository,
    costs: dict[int, float | str],
    options: tuple[str, ...],
    code: int,
    begins: str,
) -> None:
    steps = [(at, factor) for at, factor in costs.items() if not isinstance(factor, str)]
    made_up = stairs(history, *steps)
    made_up |= {history.commits[at]: cost for at, cost in costs.items() if isinstance(cost, str)}
    result = case.typed(history.good, history.bad, "--command", case.costing(made_up), *options)
    assert (result.exit_code, begins in result.stdout.splitlines()[0]) == (code, True), result.stdout + result.stderr
    assert {path.name for path in case.out.iterdir()} >= {"bisection.jsonl", "bisection.json", "bisection.md"}
