"""The report page in a real browser: it needs nothing but itself, and its numbers are the ledgers'."""

import shutil
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from regbot.records.session import Session
from regbot.records.verdict import Verdict
from regbot.report import html
from support import report_cases
from support import verdict_page as parsed
from support.report_cases import CASES, WHOLE
from support.required import needed

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = ("--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking")

in_browser = needed("BROWSER", "" if CHROMIUM else "chromium is not installed; the page is tested in no browser")


@dataclass
class Opened:
    """A page with what its browser did."""

    page: Page
    address: str
    requests: list[str] = field(default_factory=list)
    messages: list[str] = field(default_factory=list)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS))
        yield browser
        browser.close()


def opened(browser: Browser, verdict: Verdict, session: Session, folder: Path, scheme: str = "light") -> Opened:
    file = folder / "report.html"
    file.write_text(html(verdict, session), encoding="utf-8")
    page = browser.new_page(
        viewport={"width": 1280, "height": 2000}, color_scheme="dark" if scheme == "dark" else "light"
    )
    view = Opened(page, file.as_uri())
    page.on("request", lambda request: view.requests.append(request.url))
    page.on("console", lambda message: view.messages.append(message.text))
    page.on("pageerror", lambda error: view.messages.append(str(error)))
    page.goto(view.address)
    return view


def test_the_counts_on_the_page_are_those_of_the_ledgers() -> None:
    verdict, session = CASES["one_workload"]()
    expected: Counter[tuple[str, ...]] = Counter()
    for run in session.runs:
        for entry in run.ledger.entries if run.ledger else []:
            axis = f"{entry.axis} ({entry.group_size})"
            expected[entry.kind.replace("_", "-"), axis, entry.phase, entry.role, run.arm.name] += entry.count
    rows: Counter[tuple[str, ...]] = Counter()
    for kind, axis, phase, role, _, _, base, head, _ in parsed.Page(html(verdict, session)).rows("collective", "bytes"):
        rows[kind, axis, phase, role, "base"] += int(base)
        rows[kind, axis, phase, role, "head"] += int(head)
    assert +rows == expected


@in_browser
@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", WHOLE)
def test_a_report_opens_from_a_file_and_asks_for_nothing(
    browser: Browser, tmp_path: Path, name: str, scheme: str
) -> None:
    verdict, session = CASES[name]()
    view = opened(browser, verdict, session, tmp_path, scheme)
    assert view.requests == [view.address]
    assert view.messages == []
    assert verdict.verdict in view.page.locator("h1").inner_text()
    assert view.page.locator("script").count() == 0
    view.page.close()


def test_a_failing_run_shows_its_log() -> None:
    page = html(*CASES["validity_fail_head_crashes"]())
    assert "    main()\n  File &#34;moe_train/moe.py&#34;" in page


@pytest.mark.parametrize("name", ["throughput_fail", "void_pair"])
def test_every_timed_run_and_every_pair_is_drawn(name: str) -> None:
    verdict, session = CASES[name]()
    page = html(verdict, session)
    runs = [run for entry in verdict.workloads if entry.throughput for run in entry.throughput.runs]
    drawn = [(dot["data-arm"], dot["data-role"], dot.get("data-seconds")) for dot in parsed.Page(page).dots]
    assert drawn == [(run.arm, run.role, None if run.median_s is None else str(run.median_s)) for run in runs]
    tests = [test for entry in verdict.workloads if entry.throughput for test in entry.throughput.tests]
    assert page.count("data-ratio=") == sum(len(test.log_ratios) for test in tests)


def test_the_runs_of_a_void_pair_say_why() -> None:
    rows = parsed.Page(html(*CASES["void_pair"]())).runs
    void = [row[-1] for row in rows if row[-1].startswith("void")]
    assert len(void) == 2
    assert "the other run of its pair does not count" in void[0]
    assert "signal 9" in void[1]


@in_browser
@pytest.mark.slow
def test_the_interval_stands_on_the_right_side_of_the_thresholds(browser: Browser, tmp_path: Path) -> None:
    def ends(name: str) -> tuple[float, float, float, float]:
        plot = opened(browser, *CASES[name](), tmp_path).page.locator("svg.pairs-plot").first
        bar = plot.locator("g.interval line").first
        limits = sorted(float(line.get_attribute("y1") or 0) for line in plot.locator("line.threshold").all())
        upper, lower = sorted(float(bar.get_attribute(end) or 0) for end in ("y1", "y2"))
        return upper, lower, limits[0], limits[1]

    upper, lower, top, bottom = ends("throughput_fail")
    assert lower < top, "slower: the whole bar lies above the zone of no change"
    upper, lower, top, bottom = ends("pass_no_change")
    assert top < upper < lower < bottom, "no change: the whole bar lies inside"
    upper, lower, top, bottom = ends("inconclusive")
    assert upper < top < bottom < lower, "undecided: the bar reaches out of it on both sides"


@in_browser
@pytest.mark.slow
def test_hostile_text_becomes_no_element_and_runs_nothing(browser: Browser, tmp_path: Path) -> None:
    view = opened(browser, *report_cases.hostile(3), tmp_path)
    assert view.requests == [view.address]
    assert view.messages == []
    assert view.page.locator("a, img, script, iframe, object, embed, link").count() == 0


@in_browser
@pytest.mark.slow
@pytest.mark.parametrize("width", [360, 1280])
def test_the_page_is_as_wide_as_the_window(browser: Browser, tmp_path: Path, width: int) -> None:
    names = ("sharding_fail", "validity_fail_head_crashes", "both_fail", "void_pair")
    for case in (*(CASES[name] for name in names), report_cases.hostile):
        view = opened(browser, *case(), tmp_path)
        view.page.set_viewport_size({"width": width, "height": 900})
        assert view.page.evaluate("document.documentElement.scrollWidth") <= width
        view.page.close()
