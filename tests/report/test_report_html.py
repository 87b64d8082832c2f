"""The report page in a real browser: it needs nothing but itself, and its numbers are the ledgers'.

Screenshots go to the folder that REGBOT_SCREENSHOTS names, else to the test's own.
"""

import os
import re
import shutil
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from regbot.records.run import Run
from regbot.records.session import Session
from regbot.records.verdict import Verdict
from regbot.report import html
from support import report_cases
from support.report_cases import CASES, WHOLE
from support.required import needed

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = ("--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking")

pytestmark = needed("BROWSER", "" if CHROMIUM else "chromium is not installed; the page is tested in no browser")

Count = tuple[str, str, str, str, str, str]


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


@pytest.fixture
def shots(tmp_path: Path) -> Path:
    folder = Path(os.environ.get("REGBOT_SCREENSHOTS", tmp_path))
    folder.mkdir(parents=True, exist_ok=True)
    return folder


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


def expected(session: Session) -> Counter[Count]:
    """Counts of the session's ledgers by workload, arm, kind, axis, phase and role."""
    counts: Counter[Count] = Counter()
    for run in session.runs:
        for e in run.ledger.entries if run.ledger else []:
            counts[run.workload, run.arm.name, e.kind, e.axis, e.phase, e.role] += e.count
    return counts


def select_elements(page: Page, selector: str) -> list[dict[str, str]]:
    """Data attributes and text of every element that matches."""
    script = "elements => elements.map(e => ({...e.dataset, text: e.textContent}))"
    elements: list[dict[str, str]] = page.eval_on_selector_all(selector, script)
    return elements


@pytest.mark.slow
@pytest.mark.parametrize("name", ["pass", "sharding_fail", "sharding_fail_one_layer", "mixed", "both_fail"])
def test_the_counts_on_the_page_are_those_of_the_ledgers(browser: Browser, tmp_path: Path, name: str) -> None:
    verdict, session = CASES[name]()
    view = opened(browser, verdict, session, tmp_path)
    table: Counter[Count] = Counter()
    for cell in select_elements(view.page, "td.count"):
        assert cell["text"] == cell["count"]
        key = (cell["workload"], cell["arm"], cell["kind"], cell["axis"], cell["phase"], cell["role"])
        table[key] += int(cell["count"])
    assert +table == expected(session)


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", WHOLE)
def test_a_report_opens_from_a_file_and_asks_for_nothing(
    browser: Browser, tmp_path: Path, shots: Path, name: str, scheme: str
) -> None:
    verdict, session = CASES[name]()
    view = opened(browser, verdict, session, tmp_path, scheme)
    view.page.screenshot(path=shots / f"{name}-{scheme}.png", full_page=True)
    assert view.requests == [view.address]
    assert view.messages == []
    head = view.page.locator("h1").inner_text()
    assert verdict.verdict in head
    assert view.page.locator("script").count() == 0
    view.page.close()


def test_a_failing_run_shows_its_log(browser: Browser, tmp_path: Path) -> None:
    view = opened(browser, *CASES["validity_fail_head_crashes"](), tmp_path)
    log = view.page.locator("tr.log pre").last
    assert '    main()\n  File "moe_train/moe.py"' in (log.text_content() or "")


def test_a_workload_with_a_change_is_unfolded_and_one_without_is_folded(browser: Browser, tmp_path: Path) -> None:
    view = opened(browser, *CASES["mixed"](), tmp_path)
    assert [w["workload"] for w in select_elements(view.page, "details.workload[open]")] == ["qwen3-30b-a3b@1/ep"]
    assert len(select_elements(view.page, "details.workload")) == 4


TIMED_CASES = ["throughput_fail", "void_pair"]


def timed_runs(session: Session) -> dict[str, list[Run]]:
    runs_by_workload: dict[str, list[Run]] = {}
    for run in session.runs:
        if run.tier == "timed":
            runs_by_workload.setdefault(run.workload, []).append(run)
    return runs_by_workload


@pytest.mark.slow
@pytest.mark.parametrize("name", TIMED_CASES)
def test_every_timed_run_of_both_arms_is_drawn_with_its_median(browser: Browser, tmp_path: Path, name: str) -> None:
    verdict, session = CASES[name]()
    view = opened(browser, verdict, session, tmp_path)
    for workload, runs in timed_runs(session).items():
        section = view.page.locator(f'details[data-workload="{workload}"] section.throughput')
        dots = section.locator("svg.runs-plot g[data-run]")
        drawn = dots.evaluate_all("dots => dots.map(dot => [dot.dataset.arm, dot.dataset.seconds || null])")
        assert [arm for arm, _ in drawn] == [run.arm.name for run in runs]
        entry = next(entry for entry in verdict.workloads if entry.name == workload)
        assert entry.throughput is not None
        for (_, seconds), run in zip(drawn, entry.throughput.runs, strict=True):
            assert seconds == (None if run.median_s is None else str(run.median_s))


@pytest.mark.slow
@pytest.mark.parametrize("name", TIMED_CASES)
def test_every_pair_is_drawn_for_median_and_mean(browser: Browser, tmp_path: Path, name: str) -> None:
    verdict, session = CASES[name]()
    view = opened(browser, verdict, session, tmp_path)
    for entry in verdict.workloads:
        for test in entry.throughput.tests if entry.throughput else []:
            panel = f'details[data-workload="{entry.name}"] svg.pairs-plot g[data-summary="{test.summary}"]'
            drawn = [float(pair["ratio"]) for pair in select_elements(view.page, f"{panel} circle.pair")]
            assert drawn == pytest.approx(test.log_ratios)


@pytest.mark.slow
def test_the_interval_stands_on_the_right_side_of_the_thresholds(browser: Browser, tmp_path: Path) -> None:
    def ends(name: str) -> tuple[float, float, float, float]:
        view = opened(browser, *CASES[name](), tmp_path)
        plot = view.page.locator("svg.pairs-plot").first
        bar = plot.locator("g.interval line").first
        zone = plot.locator("rect.zone")
        top, height = float(zone.get_attribute("y") or 0), float(zone.get_attribute("height") or 0)
        upper, lower = sorted(float(bar.get_attribute(end) or 0) for end in ("y1", "y2"))
        return upper, lower, top, top + height

    upper, lower, top, bottom = ends("throughput_fail")
    assert lower < top, "slower: the whole bar lies above the zone of no change"
    upper, lower, top, bottom = ends("pass_no_change")
    assert top < upper < lower < bottom, "no change: the whole bar lies inside"
    upper, lower, top, bottom = ends("inconclusive")
    assert upper < top < bottom < lower, "undecided: the bar reaches out of it on both sides"


def test_void_runs_and_warm_launches_are_marked_and_the_void_ones_say_why(browser: Browser, tmp_path: Path) -> None:
    view = opened(browser, *CASES["void_pair"](), tmp_path)
    roles = Counter(dot["role"] for dot in select_elements(view.page, "svg.runs-plot g[data-run]"))
    assert roles == {"warm-up": 2, "void": 2, "pair": 16}
    void = view.page.locator("table.timed tr.void")
    assert void.count() == 2
    assert "the other run of its pair does not count" in (void.nth(0).text_content() or "")
    assert "signal 9" in (void.nth(1).text_content() or "")
    assert "Killed" in (view.page.locator("table.timed tr.log pre").text_content() or "")


def test_every_run_lists_every_rank(browser: Browser, tmp_path: Path) -> None:
    view = opened(browser, *CASES["throughput_fail"](), tmp_path)
    table = view.page.locator("table.timed").first
    assert table.locator("details.one").count() == 10
    first = table.locator("table.ranks").first
    assert first.locator("tr").count() == 1 + 2
    assert first.locator("tr").nth(1).locator("td").count() == 5
    ranks = view.page.locator("section.throughput").first.locator("table.ranks tbody tr:has(th[scope=row])")
    assert ranks.count() == 2, "and once more over all runs, base beside head"


def test_the_cut_is_drawn_where_the_warm_up_ends(browser: Browser, tmp_path: Path) -> None:
    view = opened(browser, *CASES["throughput_fail"](), tmp_path)
    traces = view.page.locator("svg.traces").first
    assert traces.locator("polyline").count() == 10
    points = (traces.locator("polyline").first.get_attribute("points") or "").split()
    across = [float(point.split(",")[0]) for point in points]
    cut = float(traces.locator("line.cut").first.get_attribute("x1") or 0)
    assert len(points) == 50
    assert across[9] < cut < across[10]


@pytest.mark.slow
def test_a_head_that_trains_differently_leaves_the_band_of_the_base(browser: Browser, tmp_path: Path) -> None:
    def far(name: str) -> bool:
        view = opened(browser, *CASES[name](), tmp_path)
        plot = view.page.locator("svg.losses").first
        band = [float(p.split(",")[1]) for p in (plot.locator(".band").get_attribute("points") or "").split()]
        head = [float(p.split(",")[1]) for p in (plot.locator(".middle").get_attribute("points") or "").split()]
        return min(head) < min(band)

    assert far("trains_differently")
    assert not far("pass_no_change")


@pytest.mark.slow
def test_a_full_session_on_64_ranks_opens(browser: Browser, tmp_path: Path, shots: Path) -> None:
    view = opened(browser, *report_cases.large(ranks=64, pairs=12), tmp_path)
    view.page.screenshot(path=shots / "large.png", full_page=True)
    assert view.messages == []
    assert view.page.locator("svg.runs-plot").first.locator("g[data-run]").count() == 26
    assert view.page.locator("table.ranks tbody tr:has(th[scope=row])").count() == 2 * 64
    dots = view.page.locator("svg.runs-plot").first.locator("g[data-run] .dot").all()
    places = sorted(box["x"] for dot in dots if (box := dot.bounding_box()))
    assert all(after - before > 8 for before, after in pairwise(places)), "runs do not overlap"


@pytest.mark.slow
def test_hostile_text_becomes_no_element_and_runs_nothing(browser: Browser, tmp_path: Path, shots: Path) -> None:
    view = opened(browser, *report_cases.hostile(3), tmp_path)
    view.page.screenshot(path=shots / "hostile.png", full_page=True)
    assert view.requests == [view.address]
    assert view.messages == []
    assert view.page.locator("img, script, iframe, object, embed, link").count() == 0
    assert all(
        re.fullmatch(r"#workload-\d+", href)
        for href in view.page.eval_on_selector_all("a", "a => a.map(x => x.getAttribute('href'))")
    )


@pytest.mark.slow
@pytest.mark.parametrize("width", [360, 1280])
def test_the_page_is_as_wide_as_the_window(browser: Browser, tmp_path: Path, width: int) -> None:
    names = ("sharding_fail", "validity_fail_head_crashes", "both_fail", "void_pair")
    for case in (*(CASES[name] for name in names), report_cases.hostile):
        view = opened(browser, *case(), tmp_path)
        view.page.set_viewport_size({"width": width, "height": 900})
        assert view.page.evaluate("document.documentElement.scrollWidth") <= width
        view.page.close()
