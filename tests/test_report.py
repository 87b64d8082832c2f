"""The comment: one golden file for every state a reader can meet, and what hostile text may not do to it.

After a change that is meant, write the golden files anew and read the difference:

    REGBOT_WRITE_GOLDEN=1 pytest tests/test_report.py
"""

import os
import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import cmarkgfm  # type: ignore[import-untyped]
import pytest
from cmarkgfm.cmark import Options  # type: ignore[import-untyped]

import report_cases
from regbot.report import comment, html
from regbot.report.comment import LIMIT, MARKER
from regbot.report.markdown import code, fence, prose, visible
from regbot.report.measured import lines
from report_cases import CASES, HOSTILE, QWEN, Case, ledger

GOLDEN = Path(__file__).parent / "golden" / "comment"
GITHUB_LIMIT = 65_000
TABLE = ("table", "thead", "tbody", "tr", "th", "td")


class Elements(HTMLParser):
    """What a reader's browser would get."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.rows: list[int] = []
        self.words = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag == "tr":
            self.rows.append(0)
        elif tag in ("td", "th"):
            self.rows[-1] += 1

    def handle_data(self, data: str) -> None:
        self.words += data


def rendered(markdown: str) -> Elements:
    """``markdown`` as GitHub's own renderer shows it, with raw HTML let through, which is the harder test."""
    return Elements(cmarkgfm.github_flavored_markdown_to_html(markdown, options=Options.CMARK_OPT_UNSAFE))


@pytest.mark.parametrize("name", CASES)
def test_every_state_reads_as_its_golden_comment(name: str) -> None:
    text = comment(*CASES[name]())
    path = GOLDEN / f"{name}.md"
    if os.environ.get("REGBOT_WRITE_GOLDEN"):
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")


def test_there_is_no_golden_comment_of_a_state_that_is_gone() -> None:
    assert {path.stem for path in GOLDEN.glob("*.md")} == set(CASES)


@pytest.mark.parametrize("name", CASES)
def test_the_first_line_is_the_hidden_marker_and_the_second_the_verdict(name: str) -> None:
    verdict, session = CASES[name]()
    first, second, *_ = comment(verdict, session).splitlines()
    assert first == MARKER
    assert second.startswith("### ")
    word = "SHOWN, NOT JUDGED" if name == "overrides_shown_not_judged" else verdict.verdict
    assert f" {word}: " in second


@pytest.mark.parametrize("name", CASES)
def test_github_renders_every_comment_with_even_tables_and_closed_folds(name: str) -> None:
    page = rendered(comment(*CASES[name]()))
    assert page.tags.count("details") == page.tags.count("summary") >= 2
    assert page.tags.count("h3") == 1
    assert {"a", "img", "h1", "script"}.isdisjoint(page.tags)
    assert all(width in (2, 3, 4, 5, 7, 9) for width in page.rows)


def test_workloads_that_say_the_same_are_one_block_of_rows() -> None:
    text = comment(*CASES["sharding_fail"]())
    table = text[: text.index("#### What changed")]
    assert table.count("`qwen3-30b-a3b@1/ep`<br>`qwen3-30b-a3b@1/ep-dp`") == 1
    assert table.count("\n|  | ") == 4, "three rows for each of two shapes, the first of them named"
    assert "| 5 per layer · 240 | **▼ 0** |" in table
    assert "**▲ 4 per layer · 192**" in table


def test_a_workload_without_change_takes_no_row_beside_one_with() -> None:
    text = comment(*CASES["mixed"]())
    table = [line for line in text[: text.index("#### What changed")].splitlines() if line.startswith("| ")]
    assert not any("mixtral" in line for line in table)
    assert "✅ No collective changed in `qwen3-30b-a3b@1/ep-dp`, `mixtral-8x7b@1/ep`, `mixtral-8x7b@1/ep-dp`." in text


def test_the_rule_that_declares_a_change_covers_it() -> None:
    from regbot.judge import parse_expectation

    for name in ("sharding_fail", "mixed", "review"):
        verdict, session = CASES[name]()
        rules = [parse_expectation(rule) for rule in re.findall(r'--expect "(.*)"', comment(verdict, session))]
        for entry in verdict.workloads:
            for finding in entry.sharding.findings if entry.sharding else []:
                assert any(rule.covers(finding, entry.name) for rule in rules)


def test_counts_are_told_per_layer() -> None:
    def told(*broken: int) -> list[tuple[str, str]]:
        rows = lines(ledger(QWEN), ledger(QWEN, lambda layer: layer in broken))
        return [(row.each(row.base), row.each(row.head)) for row in rows if row.axis == "ep"]

    assert told() == [("5 per layer", "5 per layer")]
    assert told(17) == [("5 per layer", "5 in 47 of 48 layers"), ("", "4 in layers.17"), ("", "3 in layers.17")]
    assert told(1, 2)[1] == ("", "4 in 2 of 48 layers")
    every = lines(ledger(QWEN), ledger(QWEN))
    assert {(row.kind, row.each(row.base), row.base.count) for row in every if row.axis == "dp"} == {
        ("all_gather", "2 per layer + 1", 97),
        ("reduce_scatter", "1 per layer + 1", 49),
    }


def test_equal_totals_in_other_layers_are_a_change() -> None:
    def control(layer: int) -> list[bool]:
        return [row.changed for row in lines(ledger(QWEN, lambda n: n == 3), ledger(QWEN, lambda n: n == layer))]

    assert not any(control(3))
    assert any(control(4))


def test_the_headline_counts_only_the_workloads_it_is_about() -> None:
    broken, runs = CASES["sharding_fail"]()
    crashed = CASES["validity_fail_head_crashes"]()[0].workloads[3]
    verdict = broken.model_copy(update={"workloads": [*broken.workloads[:3], crashed]})
    assert "in 3 of 4 workloads" in comment(verdict, runs).splitlines()[1]


def test_a_verdict_on_nothing_is_told() -> None:
    verdict, session = CASES["invalid_crash_both"]()
    nothing = verdict.model_copy(update={"workloads": []})
    assert "INVALID: there was no workload to measure" in comment(nothing, session)
    assert "there was no workload to measure" in html(nothing, session)


def test_a_planned_workload_without_a_run_is_told_by_its_reason() -> None:
    verdict, session = CASES["invalid_crash_both"]()
    text = comment(verdict, session.model_copy(update={"runs": []}))
    assert "INVALID: could not be measured in all 4 workloads: base crashed" in text


HOSTILE_COMMENTS = {"one finding": report_cases.hostile, "many findings": lambda: report_cases.hostile(500)}


@pytest.mark.parametrize("name", HOSTILE_COMMENTS)
def test_hostile_text_becomes_no_element(name: str) -> None:
    text = comment(*HOSTILE_COMMENTS[name]())
    page = rendered(text)
    allowed = {"h3", "h4", "p", "br", "strong", "ul", "ol", "li", "pre", "code", "sub", "details", "summary", *TABLE}
    assert set(page.tags) <= allowed
    assert page.tags.count("h3") == 1
    assert page.tags.count("details") == text.count("\n<details>\n")
    assert all(width in (3, 4, 5, 7, 9) for width in page.rows)
    assert not re.search("[\u202a-\u202e\u2066\u2067\x00\x1b]", text)


def test_the_unescaped_text_would_have_made_elements() -> None:
    page = rendered(f"x {HOSTILE}")
    assert {"img", "a", "h1"} <= set(page.tags), "the hostile text is not hostile"


@pytest.mark.parametrize(
    "text",
    [
        HOSTILE,
        "`",
        "``a`` b",
        "|",
        "\\",
        "a\\",
        "- x",
        "1. x",
        "+ x",
        "===",
        "www.evil.example",
        "&amp;",
        "@octocat",
        "#1",
        "\n# x",
        "http://evil.example/",
        "mailto:me@evil.example",
        "_a_ *b* ~~c~~ [d](e)",
    ],
)
def test_a_name_and_a_sentence_are_shown_as_they_are(text: str) -> None:
    for cell, limit in ((code(text), 120), (prose(text), 1200)):
        page = rendered(f"| a | b |\n| --- | --- |\n| {cell} | end |\n\n- {cell}\n")
        assert set(page.tags) <= {"ul", "li", "code", *TABLE}
        assert page.rows == [2, 2]
        assert page.words.replace("\u2060", "").count(visible(text, limit)) == 2


def test_no_mention_or_issue_number_is_left_outside_code() -> None:
    text = rendered(str(prose("ask @octocat about #12"))).words
    assert "@octocat" not in text
    assert "#12" not in text


def test_a_log_cannot_close_its_fence() -> None:
    page = rendered(str(fence("a\n```\n# b\n````\n<img src=x>\n    indented")))
    assert page.tags == ["pre", "code"]
    assert "    indented" in page.words


def test_invisible_characters_are_made_visible_and_long_text_is_cut() -> None:
    assert visible("a\u202eb\x00c\u200bd", 20) == "a\ufffdb\ufffdc\ufffdd"
    assert visible("line\nline\ttab", 20) == "line line tab"
    assert visible("x" * 50, 10) == "x" * 9 + "…"
    assert visible("x" * 50 + " " * 1000, 10) == "x" * 9 + "…"
    assert visible("שלום", 10).strip("\u2068\u2069") == "שלום"


def test_a_command_that_cannot_be_typed_is_not_offered() -> None:
    text = comment(*report_cases.hostile())
    assert "--workload" not in text
    assert "--expect" not in text


def _enormous() -> Case:
    """500 findings, 300 workloads, long names of the most expensive characters."""
    verdict, session = report_cases.hostile(500)
    first = verdict.workloads[0]
    entries = [first.model_copy(update={"name": f"{number}{'|' * 400}"}) for number in range(300)]
    runs = [
        run.model_copy(update={"workload": entry.name, "log_tail": "`" * 4000, "reason": "|" * 4000})
        for entry in entries
        for run in session.runs
    ]
    return verdict.model_copy(update={"workloads": entries, "warnings": ["|" * 4000] * 300}), session.model_copy(
        update={"runs": runs}
    )


@pytest.mark.parametrize("case", [lambda: report_cases.hostile(500), _enormous], ids=["findings", "everything"])
def test_the_comment_stays_below_the_limit_and_says_what_it_cut(case: Callable[[], Case]) -> None:
    text = comment(*case())
    assert len(text) < GITHUB_LIMIT
    assert len(text) <= LIMIT + 1000
    assert re.search(r"…and \d+ more findings, see the report", text)
    page = rendered(text)
    assert page.tags.count("h3") == 1
    assert page.tags.count("details") == text.count("\n<details>\n")


def test_the_page_stays_readable_in_size() -> None:
    assert len(html(*_enormous())) < 40_000_000
