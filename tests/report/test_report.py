"""The comment: a golden text for every state of a check, and that hostile text cannot break it.

After a change that is meant, write the golden files anew and read the difference:

    REGBOT_WRITE_GOLDEN=1 pytest tests/report/test_report.py
"""

import os
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from regbot.records.ledger import Ledger
from regbot.records.run import CodeProof
from regbot.records.text.percentages import round_up_percent
from regbot.records.verdict import Validity
from regbot.report import comment, html
from regbot.report.comment import LIMIT
from regbot.report.markdown import code, fence, prose, visible
from regbot.report.quantities import with_interval
from regbot.report.workload_section import build_workload_sections, fold_collectives
from support import report_cases
from support.hostile import Page
from support.ledger_builder import edited, entry
from support.report_cases import CASES, HOSTILE, WHOLE
from support.sharding_cases import BASE, HEAD, QWEN, Case, Shape, case, compare_same, fallen, ledger, run

GOLDEN = Path(__file__).parents[1] / "golden" / "comment"
GITHUB_LIMIT = 65_000
TABLE = ("table", "thead", "tbody", "tr", "th", "td")


@pytest.mark.parametrize("name", CASES)
def test_every_state_reads_as_its_golden_comment_with_even_tables_and_closed_folds(name: str) -> None:
    whole = comment(*CASES[name]())
    page = Page(whole)
    assert page.tags.count("details") == page.tags.count("summary") >= 1
    assert page.tags.count("h3") == 1
    assert {"a", "img", "h1", "script"}.isdisjoint(page.tags)
    assert all(width in (2, 3, 4, 5, 6, 7, 9) for width in page.rows)
    text = whole if name in WHOLE else whole.partition("<details>")[0]
    path = GOLDEN / f"{name}.md"
    if os.environ.get("REGBOT_WRITE_GOLDEN"):
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")


def labelled(number: int) -> list[Shape]:
    return [replace(QWEN, entry=f"team-{index}:{QWEN.entry}") for index in range(number)]


def test_many_workloads_with_equal_rows_are_one_block() -> None:
    few, many = (comment(*compare_same(labelled(number))) for number in (2, 200))
    head = "| collective | axis (ranks) | phase | role | dtype | module | base | head | bytes |"
    assert few.count(head) == many.count(head) == 1
    table = many[: many.index("<details>")]
    assert len(table) < 1.5 * len(few[: few.index("<details>")])
    assert "and 196 more" in table


def test_many_reasons_of_unconcerned_workloads_are_cut() -> None:
    verdict, session = report_cases.unconcerned(measured=[QWEN])
    reasons = [f"services/{index}{'x' * 3000}.json changed" for index in range(50)]
    entries = [
        verdict.workloads[1].model_copy(
            update={"name": f"team-{index}:x", "validity": Validity(status="INCONCLUSIVE", reasons=[reason])}
        )
        for index, reason in enumerate(reasons)
    ]
    text = comment(verdict.model_copy(update={"workloads": [verdict.workloads[0], *entries]}), session)
    assert text.count("Not measured") == 5
    assert "Not measured for other reasons: 46 more workloads." in text
    assert len(text) < 10_000


def test_the_rule_that_declares_a_change_covers_it() -> None:
    from regbot.judge import parse_expectation

    for name in ("sharding_fail", "mixed", "review"):
        verdict, session = CASES[name]()
        rules = [parse_expectation(rule) for rule in re.findall(r'--expect "(.*)"', comment(verdict, session))]
        for workload in verdict.workloads:
            for finding in workload.sharding.findings if workload.sharding else []:
                assert any(rule.covers(finding, workload.name) for rule in rules)


def test_counts_are_reported_per_layer() -> None:
    def counts(*broken: int) -> list[tuple[str, str]]:
        rows = fold_collectives(ledger(QWEN), ledger(QWEN, lambda layer: layer in broken))
        arms = [(row.describe_count(row.base), row.describe_count(row.head)) for row in rows if row.axis == "ep"]
        return [("".join(base), "".join(head)) for base, head in arms]

    assert counts() == [("5 per layer", "5 per layer")]
    assert counts(17) == [("5 per layer", "5 in 47 of 48 layers"), ("", "4 in layers.17"), ("", "3 in layers.17")]
    assert counts(1, 2)[1] == ("", "4 in 2 of 48 layers")
    every = fold_collectives(ledger(QWEN), ledger(QWEN))
    assert {(row.kind, "".join(row.describe_count(row.base)), row.base.count) for row in every if row.axis == "dp"} == {
        ("all_gather", "2 per layer + 1", 97),
        ("reduce_scatter", "1 per layer + 1", 49),
    }


def test_equal_totals_in_other_layers_are_a_change() -> None:
    def control(layer: int) -> list[bool]:
        return [
            row.changed for row in fold_collectives(ledger(QWEN, lambda n: n == 3), ledger(QWEN, lambda n: n == layer))
        ]

    assert not any(control(3))
    assert any(control(4))


def test_the_headline_counts_only_the_workloads_it_is_about() -> None:
    broken, runs = CASES["sharding_fail"]()
    crashed = CASES["validity_fail_head_crashes"]()[0].workloads[3]
    verdict = broken.model_copy(update={"workloads": [*broken.workloads[:3], crashed]})
    assert "in 3 of 4 workloads" in comment(verdict, runs).splitlines()[1]


def optimized() -> Ledger:
    """A step that sums a statistic outside of any module."""
    statistic = entry("all_reduce", "dp", dtype="float32", phase="optimizer", where="", size=4 * 2**20, count=1)
    return edited(ledger(QWEN), lambda e: e, statistic)


@pytest.mark.parametrize(
    ("files", "place"),
    [
        ({"train/optim.py": "b" * 64, "train/moe.py": "a" * 64}, "Look at `train/optim.py` in this diff"),
        ({"train/optim.py": "b" * 64, "train/clip.py": "a" * 64}, "`train/clip.py`, `train/moe.py`, `train/optim.py`"),
        ({}, "Look at `axis dp` in this diff"),
    ],
)
def test_what_lies_outside_of_modules_is_named_by_the_changed_files_that_ran(files: dict[str, str], place: str) -> None:
    def proof(files: dict[str, str]) -> CodeProof:
        return CodeProof(watched={}, foreign={}, files=files)

    base = proof({"train/optim.py": "a" * 64, "train/moe.py": "a" * 64})
    runs = [
        run(QWEN, BASE, ledger(QWEN), code=base),
        run(QWEN, HEAD, optimized(), code=proof(files)),
    ]
    text = comment(*case(runs))
    assert place in text
    assert "(none)" not in text.partition("<details>")[0]


def test_the_headline_shows_the_row_of_the_finding_and_not_another_row_of_its_kind() -> None:
    other = entry("all_to_all", "ep", 4, phase="forward", where="loss", size=2**45, count=9)
    fewer = other.model_copy(update={"count": 8, "bytes": 2**44})
    base, head = edited(ledger(QWEN), lambda e: e, other), edited(fallen(QWEN), lambda e: e, fewer)
    headline = comment(*case([run(QWEN, BASE, base), run(QWEN, HEAD, head)])).splitlines()[1]
    assert "all-to-all replaced by gather and sum (all-to-all on `ep`: 5 per layer → 0)" in headline


def top(name: str) -> str:
    """The comment of a case up to its folded sections."""
    return comment(*CASES[name]()).partition("<details>")[0]


def test_an_interval_below_zero_excludes_any_slowdown() -> None:
    verdict, session = CASES["pass_no_change"]()
    workloads = [
        entry.model_copy(update={"throughput": entry.throughput.model_copy(update={"bound_pct": -0.3})})
        if entry.throughput is not None
        else entry
        for entry in verdict.workloads
    ]
    text = comment(verdict.model_copy(update={"workloads": workloads}), session)
    assert "head is not slower than base in both timed workloads" in text.splitlines()[1]


def test_a_crash_outside_of_regbots_code_is_not_called_unsupported() -> None:
    verdict, session = CASES["invalid_unknown_revision"]()
    runs = [run.model_copy(update={"crash": None}) for run in session.runs]
    text = comment(verdict, session.model_copy(update={"runs": runs}))
    assert "the head crashes in all 4 workloads, and nothing shows that the change is the cause" in text
    assert "run the head on real ranks" in text
    assert "run the head on real ranks" not in top("invalid_unknown_revision")


def test_ledgers_rows_and_lines_come_from_static_runs_only() -> None:
    verdict, session = CASES["throughput_fail"]()
    other = ledger(QWEN, lambda _: True)
    timed = [
        run.model_copy(update={"ledger": other}) if run.tier == "timed" and run.arm.name == "head" else run
        for run in session.runs
    ]
    entry = build_workload_sections(verdict, session.model_copy(update={"runs": timed}))[0]
    assert entry.head is not None
    assert entry.head.tier == "static"
    assert not entry.changed
    assert {run.tier for run in entry.runs} == {"static"}
    assert [timed_run.run.tier for timed_run in entry.timed] == ["timed"] * 10


def test_the_command_that_repeats_a_check_carries_what_was_declared_and_what_it_may_cost() -> None:
    verdict, session = CASES["throughput_fail"]()
    header = session.header.model_copy(update={"expectations": ["payload bytes down@ep@*: it's half the experts"]})
    text = comment(verdict, session.model_copy(update={"header": header}))
    assert '--expect "payload bytes down@ep@*: it\'s half the experts" --budget 20' in text


def test_a_slower_head_that_also_trains_differently_gets_both_steps() -> None:
    verdict, session = CASES["throughput_fail"]()
    first, *rest = verdict.workloads
    drifting = first.model_copy(update={"validity": Validity(status="REVIEW", reasons=["head drops 3 tokens"])})
    text = comment(verdict.model_copy(update={"workloads": [drifting, *rest]}), session)
    assert "a training step is 49.1% slower" in text.splitlines()[1]
    assert "**Trust** ⚠️ the head trains differently" in text
    assert "Compare the losses step by step in `report.html`" in text


def test_the_headline_gives_each_reference_its_own_bound_and_count() -> None:
    verdict, session = CASES["within_stored_baseline"]()
    by_pairs = next(entry.throughput for entry in CASES["pass_no_change"]()[0].workloads if entry.throughput)
    timed = next(entry for entry in verdict.workloads if entry.throughput)
    workloads = [
        entry.model_copy(update={"throughput": by_pairs}) if entry is timed else entry for entry in verdict.workloads
    ]
    headline = comment(verdict.model_copy(update={"workloads": workloads}), session).splitlines()[1]
    assert headline.endswith(
        "; head is at most 2% slower than base in 1 of 2 timed workloads, and head is at most 3.2% slower than the "
        "last 20 sessions of main in 1 of 2 timed workloads"
    )


@pytest.mark.parametrize(
    ("value", "expected"), [(0.629, "0.7%"), (1.0, "1%"), (1.04, "1.1%"), (7.61, "7.7%"), (0.0, "0%"), (100.0, "100%")]
)
def test_a_bound_is_never_rounded_to_a_better_one(value: float, expected: str) -> None:
    assert round_up_percent(value) == expected


@pytest.mark.parametrize(
    ("numbers", "expected"),
    [
        ((46.72, 38.24, 55.91), "+46.7% [+38.2, +55.9]"),
        ((0.31, -0.416, 1.04), "+0.31% [−0.42, +1.04]"),
        ((-0.001, -1.5, 1.5), "0.00% [−1.50, +1.50]"),
        ((250.4, 120.0, 410.0), "+250% [+120, +410]"),
    ],
)
def test_a_change_has_as_many_places_as_its_interval_needs(numbers: tuple[float, float, float], expected: str) -> None:
    assert with_interval(*numbers) == expected


def test_a_verdict_without_workloads_is_reported() -> None:
    verdict, session = CASES["invalid_crash_both"]()
    nothing = verdict.model_copy(update={"workloads": []})
    assert "INVALID: there was no workload to measure" in comment(nothing, session)
    assert "there was no workload to measure" in html(nothing, session)


def test_a_planned_workload_without_a_run_has_its_reason() -> None:
    verdict, session = CASES["invalid_crash_both"]()
    text = comment(verdict, session.model_copy(update={"runs": []}))
    assert "INVALID: there is no valid result in all 4 workloads: base and head crashed" in text


HOSTILE_COMMENTS = {"one finding": report_cases.hostile, "many findings": lambda: report_cases.hostile(500)}


@pytest.mark.parametrize("name", HOSTILE_COMMENTS)
def test_hostile_text_becomes_no_element(name: str) -> None:
    text = comment(*HOSTILE_COMMENTS[name]())
    page = Page(text)
    allowed = {"h3", "h4", "p", "br", "strong", "ul", "ol", "li", "pre", "code", "sub", "details", "summary", *TABLE}
    assert set(page.tags) <= allowed
    assert page.tags.count("h3") == 1
    assert page.tags.count("details") == text.count("\n<details>\n")
    assert all(width in (3, 4, 5, 6, 7, 9) for width in page.rows)
    assert not re.search("[\u202a-\u202e\u2066\u2067\x00\x1b]", text)


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
def test_a_plain_name_and_sentence_are_unchanged(text: str) -> None:
    for cell, limit in ((code(text), 120), (prose(text), 1200)):
        page = Page(f"| a | b |\n| --- | --- |\n| {cell} | end |\n\n- {cell}\n")
        assert set(page.tags) <= {"ul", "li", "code", *TABLE}
        assert page.rows == [2, 2]
        assert page.words.replace("\u2060", "").count(visible(text, limit)) == 2


REFERENCE = re.compile(r"@\w|#\d|(?:GH|GHSA|CVE)-\d|(?<![0-9a-z])[0-9a-f]{7,}(?![0-9a-z])", re.IGNORECASE)
"""What GitHub links in text after it has decoded entities, but not in code."""


@pytest.mark.parametrize(
    "text",
    [
        "@octocat", "@acme/team", "a@evil.example", "#12", "acme/moe#12", "closes #12", "GH-12", "fixes gh-12",
        "_GH-12_", "GHSA-8hfj-j24r-96c4", "CVE-2021-44228", "a1" * 20, f"octocat@{'a1' * 20}", f"acme/moe@{'a1' * 20}",
        "0123456", "ABCDEF0", "a1b2c3d...d3c2b1a", "x_a1b2c3d_x", "**a1b2c3d**", "é0123456é", "(GH-12)", "א GH-12",
    ],
)  # fmt: skip
def test_a_sentence_refers_to_nobody_and_nothing(text: str) -> None:
    assert REFERENCE.search(text)
    page = Page(f"| {prose(text)} | end |\n| --- | --- |\n| {prose(text)} | end |\n\n- {prose(text)}\n")
    assert not REFERENCE.search(page.prose)
    assert set(page.tags) <= {"ul", "li", "code", *TABLE}


def test_ordinary_words_and_numbers_are_no_references() -> None:
    text = "feedback of 123456 tokens, top-2 of 8 experts, gpt-oss-120b, 0xfeedfacecafe, deadbeefs"
    assert prose(text) == text


def test_a_log_cannot_close_its_fence() -> None:
    page = Page(str(fence("a\n```\n# b\n````\n<img src=x>\n    indented")))
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


@pytest.mark.parametrize(
    "case",
    [lambda: report_cases.hostile(500), pytest.param(_enormous, marks=pytest.mark.slow)],
    ids=["findings", "everything"],
)
def test_the_comment_stays_below_the_limit_and_says_what_it_cut(case: Callable[[], Case]) -> None:
    text = comment(*case())
    assert len(text) < GITHUB_LIMIT
    assert len(text) <= LIMIT + 1000
    assert re.search(r"…and \d+ more findings, see the report", text)
    page = Page(text)
    assert page.tags.count("h3") == 1
    assert page.tags.count("details") == text.count("\n<details>\n")


def test_a_full_session_on_64_ranks_fits_the_page_and_the_comment() -> None:
    case = report_cases.large()
    assert sum(run.tier == "timed" for run in case[1].runs) == 52
    assert len(html(*case)) < 3_000_000
    assert len(comment(*case)) < GITHUB_LIMIT


def test_parts_that_do_not_fit_together_are_cut() -> None:
    """Each part is within its limit, and all of them together are not."""
    verdict, session = _enormous()
    first = verdict.workloads[0]
    assert first.throughput is not None
    entries = []
    for number in range(80):
        text = f"{number}{'|' * 400}"
        throughput = {"decision": None, "status": "INVALID", "reasons": [text]}
        untimed = {"base_step_s": None, "head_step_s": None} if number % 4 == 1 else {}
        update = {
            "name": text,
            "throughput": first.throughput.model_copy(update={**throughput, **untimed}),
            "unconcerned": number % 4 == 0,
            "validity": Validity(status="PASS", reasons=[text]),
        }
        entries.append(first.model_copy(update=update))
    warnings = [f"{number}{'|' * 400}" for number in range(20)]
    text = comment(verdict.model_copy(update={"workloads": entries, "warnings": warnings}), session)
    assert len(text) < GITHUB_LIMIT
    assert re.search(r"and \d+ more parts, see the report", text)
