"""The verdict in a terminal: one golden text for each kind of throughput answer, and hostile text that does nothing.

REGBOT_WRITE_GOLDEN=1 pytest tests/test_verdict_page.py
"""

import os
import re
from pathlib import Path

import pytest

import report_cases
from regbot.terminal import verdict_page
from report_cases import CASES

GOLDEN = Path(__file__).parent / "golden" / "terminal"
SHOWN = (
    "demo",
    "one_workload",
    "both_fail",
    "throughput_fail",
    "throughput_fail_mean",
    "inconclusive",
    "faster",
    "pass_identical_not_timed",
    "pass_no_change",
    "invalid_environment",
    "validity_fail_head_diverges",
    "trains_differently",
    "void_pair",
)


@pytest.mark.parametrize("name", SHOWN)
def test_every_answer_reads_as_its_golden_text(name: str) -> None:
    verdict, session = CASES[name]()
    text = verdict_page(verdict, Path("out"), session.header) + "\n"
    path = GOLDEN / f"{name}.txt"
    if os.environ.get("REGBOT_WRITE_GOLDEN"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")


def test_the_estimate_stands_in_the_column_of_throughput() -> None:
    lines = verdict_page(CASES["throughput_fail"]()[0], None).splitlines()
    column = lines[2].index("throughput")
    rows = {line.split()[0]: line[column:].split("  ")[0] for line in lines[4:8]}
    assert rows["qwen3-30b-a3b@1/ep"] == "FAIL +47.4% [+36.0, +59.6]"
    assert rows["qwen3-30b-a3b@1/ep-dp"] == "-"


def test_no_text_of_the_author_reaches_the_terminal_as_an_escape() -> None:
    assert not re.search("[\x00-\x09\x0b-\x1f\u202a-\u202e]", verdict_page(report_cases.hostile()[0], None))
