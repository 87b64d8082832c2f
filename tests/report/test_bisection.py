"""The page of a bisection: what it says of every answer, and what the text of others cannot do to it."""

import os
import re
from pathlib import Path

import pytest

from regbot.records.bisection import BisectionPlan
from regbot.records.text.printable import printable
from regbot.report.bisection import LIMIT, bisection_page, bisection_text, list_named_points, plan_text
from support.bisection_cases import CASES, point
from support.hostile import Page
from support.report_cases import HOSTILE

GOLDEN = Path(__file__).parents[1] / "golden" / "bisect"


def test_every_answer_reads_as_its_golden_page() -> None:
    """One file has all pages, a section each."""
    path = GOLDEN / "pages.md"
    text = "\n".join(f"<!-- {name} -->\n{bisection_page(case())}" for name, case in CASES.items())
    if os.environ.get("REGBOT_WRITE_GOLDEN"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", CASES)
def test_a_page_links_nothing_and_calls_nobody(name: str) -> None:
    page = Page(bisection_page(CASES[name]()))
    assert (page.found, "a" in page.tags) == ([], False)


@pytest.mark.parametrize("name", CASES)
def test_only_named_points_stand_there_with_all_their_digits(name: str) -> None:
    """GitHub links these, so each of them is compared with the range that was asked for."""
    result = CASES[name]()
    body, _, _ = bisection_page(result).partition("```sh")
    assert set(re.findall(r"\b[0-9a-f]{40}\b", body)) <= {named.commit for named in list_named_points(result)}


@pytest.mark.parametrize("name", CASES)
def test_the_terminal_shows_the_same_page_without_escapes(name: str) -> None:
    text = bisection_text(CASES[name]())
    assert text.splitlines()[0] == bisection_page(CASES[name]()).splitlines()[0]
    visible = re.sub("[\u2066-\u2069\u2060\n]", "", text)
    assert printable(visible) == visible
    if name != "hostile":
        assert "&#" not in text


def test_a_page_of_any_length_fits() -> None:
    long = CASES["hostile"]()
    many = [long.changes[0].model_copy(update={"findings": long.changes[0].findings * 50})] * 50
    text = bisection_page(long.model_copy(update={"changes": many, "warnings": [HOSTILE] * 500}))
    assert len(text) < LIMIT + 100
    assert "cut here" in text


@pytest.mark.parametrize(
    ("plan", "text"),
    [
        (
            BisectionPlan(on="ledger", exact=True, commits=12, different=9, most_runs=200, expected_runs=6.0),
            "PLAN: bisect 12 points, 9 of which change the code that runs, by the collectives: at most 6 traces",
        ),
        (
            BisectionPlan(
                on="time",
                exact=False,
                commits=64,
                different=64,
                most_runs=200,
                ratio=2.0,
                expected_runs=27.6,
                confirm_runs=24,
                expected_min=33.0,
                reasons=["why"],
            ),
            (
                "PLAN: bisect 64 points, by the step time: about 28 search runs and at most 24 runs to confirm the "
                "culprit, about 33 min for the search runs; the slowdown is 2 times the noise of a run\nwhy"
            ),
        ),
    ],
)
def test_a_plan_says_what_it_costs(plan: BisectionPlan, text: str) -> None:
    assert plan_text(plan) == text


def test_points_of_a_result_without_changes_are_its_candidates() -> None:
    assert list_named_points(CASES["undecided"]()) == [point(20), point(21)]
