"""What a reader sees of the Program: a row for every changed wall, the details folded, and the plot of live bytes."""

import pytest

from regbot.cli.terminal import verdict_page
from regbot.judge import judge
from regbot.records.config import Config
from regbot.records.ledger import Program
from regbot.report import comment, html
from support.ledger_builder import smoke_arm, smoke_ledger, smoke_run, smoke_session
from support.program_builder import GB, LAYERS, holder, program_of, step_rows, wait, with_program

KEPT = [holder("activation", f"layers.{layer}.moe", 3 * GB, "dispatch.py:41") for layer in range(4)]
LOUD = program_of(
    [row.model_copy(update={"flops": 8 * row.flops}) if "experts" in row.where else row for row in step_rows()],
    live={"activation": 37 * GB},
    holders=KEPT,
    waits=[wait("synchronize", f"layers.{layer}") for layer in range(4)],
)

LOUDER = program_of([row.model_copy(update={"flops": 8 * row.flops}) for row in step_rows()])


def pages(head: Program) -> tuple[str, str, str]:
    """The comment, the report and the terminal's page of a check whose head has this Program."""
    ledgers = {"base": with_program(program_of()), "head": with_program(head)}
    session = smoke_session(*(smoke_run(smoke_arm(name), ledger) for name, ledger in ledgers.items()))  # type: ignore[arg-type]
    verdict = judge(session, Config())
    return comment(verdict, session), html(verdict, session), verdict_page(verdict, None)


def test_a_changed_wall_is_in_headline_answers_and_table() -> None:
    text, page, terminal = pages(LOUD)
    assert text.splitlines()[1].startswith("### ❌ FAIL: peak memory no longer fits the device (70.0 GB → 82.0 GB)")
    assert "**Program** ❌ regressed (compute, memory)" in text
    table = [line for line in text.splitlines() if line.startswith("|") and "GB" in line]
    assert any("memory: peak memory no longer fits the device" in row and "+17.1%" in row for row in table)
    assert "85.0 GB of H100" in text
    assert "dispatch.py:41" in text.partition("<details>")[0]
    assert "live-bytes" in page
    assert "FAIL  peak memory no longer fits the device (axis memory)" in terminal


def test_the_headline_counts_the_workloads_of_the_change_that_it_names() -> None:
    heads = {"qwen3-30b-a3b@1/ep": program_of(live={"activation": 37 * GB}), "mixtral-8x7b@1/ep": LOUDER}
    runs = [
        smoke_run(smoke_arm(arm), with_program(program, smoke_ledger(layers=LAYERS, workload=name)))  # type: ignore[arg-type]
        for name, head in heads.items()
        for arm, program in (("base", program_of()), ("head", head))
    ]
    session = smoke_session(*runs, workloads=list(heads))
    assert comment(judge(session, Config()), session).splitlines()[1].endswith(" in 1 of 2 workloads")


@pytest.mark.parametrize("part", [0, 2], ids=["comment", "terminal"])
def test_equal_programs_add_no_row_and_no_answer(part: int) -> None:
    text = pages(program_of())[part]
    assert "what changed in a step" not in text
    assert "**Program**" not in text


def test_the_report_shows_the_totals_also_of_equal_programs() -> None:
    assert "peak of live bytes" in pages(program_of())[1]
