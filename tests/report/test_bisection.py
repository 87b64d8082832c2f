"""The reports of a bisection: one golden text for each answer and each plan, the page, and the picture of both.

After a change that is meant, write the golden files anew and read the difference:

    REGBOT_WRITE_GOLDEN=1 pytest tests/report/test_bisection.py
"""

import os
import random
import re
import shutil
import xml.etree.ElementTree as ET
from collections.abc import Iterator, Sequence
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path

import pytest
from playwright.sync_api import Browser, sync_playwright

from regbot.records.bisection import Bisection, PointSummary
from regbot.report import bisection_words
from regbot.report.bisection import MAX_OBSERVATIONS, html
from regbot.report.bisection_text import bisection_page, plan_page
from regbot.report.posterior import PROMINENT_PROBABILITY, posterior_rows, posterior_svg, regions, share
from regbot.text.wrap import PIPED_COLUMNS
from support import bisection_cases
from support.bisection_cases import CASES, PLANS
from support.required import lacking

GOLDEN = Path(__file__).parents[1] / "golden" / "bisect"
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = ("--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking")
ORDINARY = [name for name in CASES if name != "hostile"]
SVG = "{http://www.w3.org/2000/svg}"


class Page(HTMLParser):
    """What a reader's browser would get: elements with their attributes, and the words of each."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.said: dict[str, str] = {}
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        for tag in dict.fromkeys(self.open):
            self.said[tag] = self.said.get(tag, "") + data

    def those(self, tag: str, sort: str = "") -> list[dict[str, str | None]]:
        return [seen for name, seen in self.elements if name == tag and sort in (seen.get("class") or "")]


@pytest.mark.parametrize("name", CASES)
def test_every_answer_reads_as_its_golden_text(name: str) -> None:
    golden(name, bisection_page(CASES[name](), Path("out")))


@pytest.mark.parametrize("name", PLANS)
def test_every_plan_reads_as_its_golden_text(name: str) -> None:
    golden(name, plan_page(PLANS[name]()))


def golden(name: str, text: str) -> None:
    path = GOLDEN / f"{name}.txt"
    if os.environ.get("REGBOT_WRITE_GOLDEN"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"{text}\n", encoding="utf-8")
    assert f"{text}\n" == path.read_text(encoding="utf-8")


def test_there_is_no_golden_text_of_an_answer_that_is_gone() -> None:
    assert {path.stem for path in GOLDEN.glob("*.txt")} == {*CASES, *PLANS}


@pytest.mark.parametrize("name", [*CASES, *PLANS])
def test_no_line_is_wider_than_a_terminal_but_the_command(name: str) -> None:
    made = CASES[name]() if name in CASES else None
    text = bisection_page(made, None) if made else plan_page(PLANS[name]())
    lines = text.splitlines()
    if made:
        at = lines.index("reproduce with")
        del lines[at + 1]
    assert max(map(len, lines)) <= PIPED_COLUMNS


def test_no_text_of_an_author_reaches_the_terminal_as_an_escape() -> None:
    text = bisection_page(CASES["hostile"](), None)
    assert "<script>" in text, "what can be seen is shown as it is"
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f\u200b-\u200f\u202a-\u202e\u2066-\u2069]", text)
    assert "\n- item" not in text
    assert "\n# heading" not in text


@pytest.mark.parametrize("name", ORDINARY)
def test_the_page_says_what_the_terminal_says_first(name: str) -> None:
    made = CASES[name]()
    first = " ".join(bisection_page(made, None).split("\n\n")[0].split())
    said = " ".join(Page(html(made)).said["h1"].replace("−", "-").split())
    assert said[1:] == first.replace(":", "", 1), "after its sign"


@pytest.mark.parametrize("name", CASES)
def test_the_page_is_well_formed_and_needs_nothing_else(name: str) -> None:
    page = Page(html(CASES[name]()))
    assert page.open == []
    assert {"script", "img", "a", "link", "iframe", "object", "form"}.isdisjoint(tag for tag, _ in page.elements)
    assert not any(key.startswith("on") or key in ("href", "src") for _, seen in page.elements for key in seen)
    assert [seen["content"] for seen in page.those("meta") if "http-equiv" in seen] == [
        "default-src 'none'; style-src 'unsafe-inline'"
    ]


@pytest.mark.parametrize("name", ORDINARY)
def test_the_page_shows_every_candidate_and_every_measurement(name: str) -> None:
    made = CASES[name]()
    page = Page(html(made))
    shown = page.said["main"]
    for change in made.changes:
        for candidate in change.candidates:
            assert candidate.point.name in shown
            assert candidate.point.version or (candidate.point.subject in shown and candidate.point.author in shown)
            assert candidate.reason in shown
    assert made.reproduce == page.said["pre"]
    rows = [seen for seen in page.those("tr") if "data-point" in seen]
    assert [seen["data-point"] for seen in rows] == [observation.point for observation in made.observations]
    assert [seen.get("class") == "void" for seen in rows] == [
        not observation.usable for observation in made.observations
    ]
    assert all(observation.reason in shown for observation in made.observations)


def test_the_words_of_others_are_made_visible_on_the_page() -> None:
    text = html(CASES["hostile"]())
    assert not re.search("[\u202a-\u202e\x00\x1b]", text)
    assert "\ufffd" in text
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in text


def test_a_page_says_what_it_left_out() -> None:
    made = CASES["time_culprit"]()
    observation = made.observations[0]
    long = made.model_copy(
        update={"observations": [observation] * (MAX_OBSERVATIONS + 3), "warnings": ["careful"] * 101}
    )
    page = Page(html(long))
    assert len([seen for seen in page.those("tr") if "data-point" in seen]) == MAX_OBSERVATIONS
    assert "…and 3 more measurements" in page.said["main"]
    assert "…and 1 more warning," in page.said["main"]
    text = bisection_page(long, None)
    assert text.count("warning: careful") == 8
    assert "…and 93 more lines, in the report" in text


@pytest.mark.parametrize(
    ("name", "words"),
    [
        (
            "ledger_culprit",
            "(pull request 441) changed the collectives: all-to-all replaced by gather and sum (axis ep)",
        ),
        ("ledger_two_one_undone", "undone by a later commit of the range"),
        ("time_culprit", "raised the step time: +48.1% [+40.2, +56.9], confirmed against its parent by 4 pairs"),
        (
            "time_set",
            "one of the 3 commits a0da0d19bc38, 30f793d1dc7b, 7746c1ba1c3c (two of them cannot be measured)",
        ),
        ("time_not_confirmed", "+2.10% [−0.60, +4.90], not confirmed: 12 pairs against its parent did not decide"),
        ("time_two", "2 changes of the step time: "),
        ("none", "with probability 97%, no commit raised the step time by 2% or more"),
        ("undecided_budget", "; undecided after 14 search runs"),
        ("unmeasurable_end", "bad cannot be measured (its build failed"),
        ("in_a_merge", ", with probability 98.2%, as a part of merge "),
        ("on_a_dependency", "grouped-gemm 1.2.0 raised the printed number: +12.4%"),
        ("command_exact", "changed the value from 48 to 96"),
    ],
)
def test_the_headline_gives_the_result(name: str, words: str) -> None:
    assert words in "".join(bisection_words.headline(CASES[name]()))


def test_the_results_own_sentence_is_used_if_the_facts_do_not_cover_it() -> None:
    def extra_text(name: str, **more: object) -> str:
        return bisection_words.select_extra_text(CASES[name]().changes[0].model_copy(update=more))

    assert extra_text("time_culprit") == extra_text("ledger_culprit") == extra_text("command_exact") == ""
    assert "by an estimate from the search runs only" in extra_text("in_a_merge")
    assert "may or may not be slower" in extra_text("time_not_confirmed")
    made = CASES["time_culprit"]().changes[0].candidates[0]
    parents = [made.point.commit, made.point.tree]
    merge = made.model_copy(update={"point": made.point.model_copy(update={"parents": parents})})
    assert "slower" in extra_text("time_culprit", candidates=[merge]), "what a merge merged in may be acquitted in it"


def test_why_a_candidate_was_not_measured_may_stand_in_the_list_of_them() -> None:
    made = CASES["time_set"]()
    assert [bisection_words.explain_missing_measurement(candidate, made) for candidate in made.candidates] == [
        "",
        bisection_cases.BUILD_FAILED,
        bisection_cases.BUILD_FAILED,
    ]


def test_measurable_commits_that_cannot_be_told_apart_are_named_so() -> None:
    made = CASES["time_set"]()
    first = made.changes[0]
    apart = [candidate.model_copy(update={"measurable": True, "reason": ""}) for candidate in first.candidates]
    same = made.model_copy(update={"changes": [first.model_copy(update={"candidates": apart})]})
    assert "(the runs cannot distinguish them)" in "".join(bisection_words.headline(same))


@pytest.mark.parametrize(
    ("probability", "words"),
    [(0, "0%"), (1e-9, "<0.1%"), (0.004, "0.4%"), (0.621, "62.1%"), (0.97, "97%"), (0.9999, ">99.9%"), (1, "100%")],
)
def test_a_probability_is_never_rounded_to_certainty(probability: float, words: str) -> None:
    assert share(probability) == words


def posterior(points: int, seed: int, peak: float = 0.0) -> list[PointSummary]:
    """A posterior of plateaus, as a search leaves it, with one ``peak`` somewhere inside."""
    source = random.Random(seed)
    weights, level = [], 1.0
    for _ in range(points):
        level = source.choice([level] * 9 + [source.random() ** 6])
        weights.append(level)
    at = source.randrange(points)
    total = sum(weights)
    return [
        PointSummary(
            key=f"{number:040x}",
            probability=(1 - peak) * weight / total * 0.98 + (peak * 0.98 if number == at else 0.0),
            runs=(runs := source.choice([0, 0, 0, 3])),
            mean=float(number) if runs else None,
            measurable=source.random() < 0.95,
        )
        for number, weight in enumerate(weights)
    ]


@pytest.mark.parametrize("most", [2, 3, 6, 12])
@pytest.mark.parametrize("points", [1, 2, 3, 9, 17, 64, 300, 1025])
def test_the_picture_never_has_more_lines_and_leaves_no_point_out(points: int, most: int) -> None:
    for seed in range(4):
        places = posterior(points, seed)
        found = regions(places, most)
        assert len(found) <= most
        assert [number for region in found for number in range(region.first, region.last + 1)] == list(range(points))
        assert sum(region.probability for region in found) == pytest.approx(0.98)
        assert sum(region.runs for region in found) == sum(place.runs for place in places)
        assert sum(region.broken for region in found) == sum(not place.measurable for place in places)
        rows = posterior_rows(places, names(places), 0.02, most)
        assert len(rows) <= most
        assert rows[-1].startswith("no culprit")
        assert max(map(len, rows)) <= 106


def names(places: Sequence[PointSummary]) -> list[str]:
    return [bisection_words.point_name(place.key) for place in places]


@pytest.mark.parametrize("points", [9, 64, 1025])
def test_a_probable_point_has_a_line_of_its_own(points: int) -> None:
    for seed in range(10):
        places = posterior(points, seed, peak=0.4)
        best = max(range(points), key=lambda number: places[number].probability)
        assert any(region.first == region.last == best for region in regions(places, 6))


def test_the_ends_stay_alone_and_a_plateau_is_one_line() -> None:
    places = [
        PointSummary(key=f"{number:040x}", probability=0.03 if 10 <= number < 40 else 0.001) for number in range(65)
    ]
    assert [(region.first, region.last) for region in regions(places, 11)] == [
        (0, 0),
        (1, 9),
        (10, 39),
        (40, 63),
        (64, 64),
    ]


def test_probable_neighbours_keep_their_own_lines() -> None:
    places = [
        PointSummary(key=f"{number:040x}", probability=0.31 if 20 <= number < 23 else 0.001) for number in range(65)
    ]
    assert {(20, 20), (21, 21), (22, 22)} <= {(region.first, region.last) for region in regions(places, 11)}
    assert PROMINENT_PROBABILITY < 0.31


def test_the_mean_of_a_region_is_over_its_runs() -> None:
    places = [PointSummary(key=f"{number:040x}") for number in range(9)]
    places[3] = places[3].model_copy(update={"runs": 3, "mean": 10.0})
    places[4] = places[4].model_copy(update={"runs": 1, "mean": 50.0})
    row = posterior_rows(places, names(places), None)[1]
    assert "· 7 commits" in row
    assert "4 runs    +20.0%" in row


def test_without_the_hypothesis_none_there_is_no_line_for_it() -> None:
    places = posterior(20, 1)
    assert "none" not in "".join(posterior_rows(places, names(places), None))
    assert len(posterior_rows([], [], 0.5)) == 1
    assert posterior_rows([], [], None) == []


def test_a_name_can_do_nothing_to_the_live_picture() -> None:
    places = [PointSummary(key=f"{'0' * 40}+x", probability=0.3) for _ in range(3)]
    rows = posterior_rows(places, ["\x1b[31m1.0\n", "\u202e2.0", "x" * 400], None)
    assert [row.split("  ")[0] for row in rows] == ["1.0", "2.0", "x" * 23 + "…"]


@pytest.fixture(scope="module")
def drawing() -> ET.Element:
    made = CASES["time_set"]()
    return drawn(made.places, names(made.places), made.none_probability)


def drawn(places: Sequence[PointSummary], called: Sequence[str], none: float | None) -> ET.Element:
    text = str(posterior_svg(places, called, none)).replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1)
    return ET.fromstring(text)


def test_the_drawing_has_a_dot_for_every_measured_point_and_a_bar_for_every_probable_one(drawing: ET.Element) -> None:
    places = CASES["time_set"]().places
    dots = {dot.get("data-name"): int(dot.get("data-runs") or 0) for dot in drawing.iter(f"{SVG}circle")}
    assert dots == {place.key[:12]: place.runs for place in places if place.runs}
    bars = {bar.get("data-name"): bar for bar in drawing.iter(f"{SVG}rect")}
    assert {place.key[:12] for place in places if place.probability > 0.01} <= set(bars)
    first, second = (bars[places[number].key[:12]] for number in (42, 41))
    heights = [float(bar.get("height") or 0) for bar in (first, second)]
    assert heights[0] / heights[1] == pytest.approx(0.352 / 0.31, abs=0.01)
    broken = [mark.get("data-name") for mark in drawing.iter(f"{SVG}path")]
    assert broken == [place.key[:12] for place in places if not place.measurable]


def test_the_drawing_names_the_probable_points_good_bad_and_none(drawing: ET.Element) -> None:
    places = CASES["time_set"]().places
    said = [text.text or "" for text in drawing.iter(f"{SVG}text")]
    for number, probability in ((42, "35.2%"), (41, "31%"), (40, "31%")):
        assert f"{places[number].key[:12]} {probability}" in said
    assert {f"good {places[0].key[:12]}", f"bad {places[64].key[:12]}", "no culprit"} <= set(said)
    labels = [text for text in drawing.iter(f"{SVG}text") if text.get("class") == "name"]
    heights = sorted(float(label.get("y") or 0) for label in labels if label.text != "0.1%")
    assert all(lower - upper >= 11 for upper, lower in pairwise(heights)), "no label stands on another"


def test_a_slower_point_is_drawn_higher(drawing: ET.Element) -> None:
    places = CASES["time_set"]().places
    heights = {dot.get("data-name"): float(dot.get("cy") or 0) for dot in drawing.iter(f"{SVG}circle")}
    assert heights[places[64].key[:12]] < heights[places[32].key[:12]]


def test_a_drawing_of_a_thousand_points_is_small_and_escapes_their_names() -> None:
    places = posterior(1025, 3, peak=0.9)
    places = [place if place.probability > 0.5 else place.model_copy(update={"runs": 0}) for place in places]
    text = str(posterior_svg(places, ["<script>&"] * 1025, 0.02))
    assert len(text) < 40_000
    assert "<script>" not in text
    assert drawn(places, ["<script>&"] * 1025, None).tag == f"{SVG}svg"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    if CHROMIUM is None:
        lacking("BROWSER", "chromium is not installed; the page is tested in no browser")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS))
        yield browser
        browser.close()


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"][: 2 if os.environ.get("REGBOT_SCREENSHOTS") else 1])
def test_every_page_opens_from_a_file_asks_for_nothing_and_fits(browser: Browser, tmp_path: Path, scheme: str) -> None:
    page = browser.new_page(color_scheme="dark" if scheme == "dark" else "light")
    requests: list[str] = []
    messages: list[str] = []
    page.on("request", lambda request: requests.append(request.url))
    page.on("console", lambda message: messages.append(message.text))
    page.on("pageerror", lambda error: messages.append(str(error)))
    shots = os.environ.get("REGBOT_SCREENSHOTS")
    opened = list(CASES) if shots else ["time_set", "ledger_two_one_undone", "undecided_budget", "hostile"]
    for name in opened:
        file = tmp_path / f"{name}.html"
        file.write_text(html(CASES[name]()), encoding="utf-8")
        page.set_viewport_size({"width": 1280, "height": 900})
        page.goto(file.as_uri())
        if shots:
            page.screenshot(path=Path(shots) / f"bisect-{name}-{scheme}.png", full_page=True)
        page.set_viewport_size({"width": 360, "height": 900})
        assert page.evaluate("document.documentElement.scrollWidth") <= 360
    assert requests == [(tmp_path / f"{name}.html").as_uri() for name in opened]
    assert messages == []


def test_the_values_of_runs_are_times_of_a_workload_and_numbers_of_a_command() -> None:
    def values(made: Bisection) -> str:
        return Page(html(made)).said["td"]

    assert " ms" in values(CASES["time_culprit"]())
    assert " ms" not in values(CASES["on_a_dependency"]())
    assert "96" in values(CASES["command_exact"]())
    traced = CASES["ledger_culprit"]()
    assert f"{traced.observations[0].state[:15]}…" in values(traced)
