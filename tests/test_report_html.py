"""The report page in a real browser: it needs nothing but itself, and its numbers are the ledgers'.

Screenshots go to the folder that REGBOT_SCREENSHOTS names, else to the test's own.
"""

import os
import re
import shutil
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

import report_cases
from regbot.records import Session, Verdict
from regbot.report import html
from report_cases import CASES

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = ("--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking")

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed; the page is tested in no browser")

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


def shown(page: Page, selector: str) -> list[dict[str, str]]:
    """Data attributes and text of every element that matches."""
    script = "elements => elements.map(e => ({...e.dataset, text: e.textContent}))"
    found: list[dict[str, str]] = page.eval_on_selector_all(selector, script)
    return found


@pytest.mark.parametrize("name", ["pass", "sharding_fail", "sharding_fail_one_layer", "mixed"])
def test_the_counts_on_the_page_are_those_of_the_ledgers(browser: Browser, tmp_path: Path, name: str) -> None:
    verdict, session = CASES[name]()
    view = opened(browser, verdict, session, tmp_path)
    table: Counter[Count] = Counter()
    for cell in shown(view.page, "td.count"):
        assert cell["text"] == cell["count"]
        key = (cell["workload"], cell["arm"], cell["kind"], cell["axis"], cell["phase"], cell["role"])
        table[key] += int(cell["count"])
    assert +table == expected(session)


@pytest.mark.parametrize("name", ["sharding_fail", "sharding_fail_one_layer"])
def test_the_picture_draws_every_collective_once(browser: Browser, tmp_path: Path, name: str) -> None:
    verdict, session = CASES[name]()
    view = opened(browser, verdict, session, tmp_path)
    script = """cells => cells.map(cell => ({...cell.parentElement.dataset, n: cell.dataset.count}))"""
    drawn: Counter[tuple[str, ...]] = Counter()
    for cell in view.page.eval_on_selector_all("svg.ledgers rect[data-count]", script):
        drawn[cell["workload"], cell["arm"], cell["kind"], cell["role"]] += int(cell["n"])
    counted: Counter[tuple[str, ...]] = Counter()
    for (workload, arm, kind, _, _, role), number in expected(session).items():
        counted[workload, arm, kind, role] += number
    assert drawn == counted


def test_what_differs_is_framed_in_both_arms(browser: Browser, tmp_path: Path) -> None:
    view = opened(browser, *CASES["sharding_fail_one_layer"](), tmp_path)
    first = view.page.locator("svg.ledgers").first
    assert first.locator("rect.frame").count() == 6, "all-to-all, all-gather and reduce-scatter, in two arms"
    assert first.locator("rect.frame.gone").count() == 3
    assert opened(browser, *CASES["pass"](), tmp_path).page.locator("rect.frame").count() == 0


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", CASES)
def test_every_state_opens_from_a_file_and_asks_for_nothing(
    browser: Browser, tmp_path: Path, shots: Path, name: str, scheme: str
) -> None:
    verdict, session = CASES[name]()
    view = opened(browser, verdict, session, tmp_path, scheme)
    view.page.screenshot(path=shots / f"{name}-{scheme}.png", full_page=True)
    assert view.requests == [view.address]
    assert view.messages == []
    head = view.page.locator("h1").inner_text()
    assert ("SHOWN, NOT JUDGED" if name == "overrides_shown_not_judged" else verdict.verdict) in head
    assert view.page.locator("script").count() == 0
    view.page.close()


def test_a_failing_run_shows_its_log(browser: Browser, tmp_path: Path) -> None:
    view = opened(browser, *CASES["validity_fail_head_crashes"](), tmp_path)
    log = view.page.locator("tr.log pre").last
    assert '    main()\n  File "moe_train/moe.py"' in (log.text_content() or "")


def test_a_workload_with_a_change_is_unfolded_and_one_without_is_folded(browser: Browser, tmp_path: Path) -> None:
    view = opened(browser, *CASES["mixed"](), tmp_path)
    assert [w["workload"] for w in shown(view.page, "details.workload[open]")] == ["qwen3-30b-a3b@1/ep"]
    assert len(shown(view.page, "details.workload")) == 4


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


@pytest.mark.parametrize("width", [360, 1280])
def test_the_page_is_as_wide_as_the_window(browser: Browser, tmp_path: Path, width: int) -> None:
    for case in (CASES["sharding_fail"], CASES["validity_fail_head_crashes"], report_cases.hostile):
        view = opened(browser, *case(), tmp_path)
        view.page.set_viewport_size({"width": width, "height": 900})
        assert view.page.evaluate("document.documentElement.scrollWidth") <= width
        view.page.close()
