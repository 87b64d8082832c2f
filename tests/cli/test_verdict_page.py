"""The verdict page of the terminal: one golden text per kind of throughput decision, and hostile text.

REGBOT_WRITE_GOLDEN=1 pytest tests/cli/test_verdict_page.py
"""

import os
import re
from pathlib import Path

import pytest

from regbot.cli.terminal import verdict_page
from support import report_cases
from support.report_cases import CASES

GOLDEN = Path(__file__).parents[1] / "golden" / "terminal"
CASE_NAMES = (
    "demo",
    "accepted",
    "one_workload",
    "both_fail",
    "throughput_fail",
    "throughput_fail_mean",
    "inconclusive",
    "faster",
    "pass_identical_not_timed",
    "pass_no_change",
    "drifted_baseline",
    "invalid_environment",
    "validity_fail_head_diverges",
    "trains_differently",
    "void_pair",
)


@pytest.mark.parametrize("name", CASE_NAMES)
def test_every_verdict_page_equals_its_golden_text(name: str) -> None:
    verdict, session = CASES[name]()
    text = verdict_page(verdict, Path("out"), session.header) + "\n"
    path = GOLDEN / f"{name}.txt"
    if os.environ.get("REGBOT_WRITE_GOLDEN"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")


def test_texts_of_a_pull_request_reach_the_terminal_without_escapes() -> None:
    assert not re.search("[\x00-\x09\x0b-\x1f\u202a-\u202e]", verdict_page(report_cases.hostile()[0], None))
