"""The rules of the Program: what a step computes, holds, launches and waits for."""

from collections.abc import Callable

import pytest

from regbot.judge.expectations import parse_expectation
from regbot.judge.program import judge_program
from regbot.judge.sharding import judge_sharding
from regbot.ledgers import catalogue as names
from regbot.records.config import Config
from regbot.records.ledger import ComputeRow, Ledger, Program
from regbot.records.settings import ProgramThresholds
from regbot.records.verdict import ProgramSection
from support.ledger_builder import smoke_ledger
from support.program_builder import (
    GB,
    compute_row,
    holder,
    program_of,
    step_rows,
    wait,
    with_program,
)

BASE = program_of()
READS = [wait(where=f"layers.{layer}.moe") for layer in range(4)]


def changed_rows(change: Callable[[ComputeRow], ComputeRow], part: str) -> list[ComputeRow]:
    return [change(row) if part in row.where else row for row in step_rows()]


def scaled(factor: float) -> Callable[[ComputeRow], ComputeRow]:
    return lambda row: row.model_copy(update={"flops": round(row.flops * factor)})


def recompute(row: ComputeRow) -> ComputeRow:
    """A backward that repeats forward, which is half of it."""
    if row.phase == "forward":
        return row
    forward = row.flops // 2
    repeated = {"flops": row.flops + forward, "recomputed_flops": forward, "launches": row.launches + 10}
    return row.model_copy(update=repeated)


def unfused(row: ComputeRow) -> ComputeRow:
    return row.model_copy(update={"launches": 8 * row.launches, "bytes": 2 * row.bytes})


def in_float32(row: ComputeRow) -> ComputeRow:
    return row.model_copy(update={"dtype": "float32"})


def moved(row: ComputeRow) -> ComputeRow:
    return row.model_copy(update={"where": row.where.replace("experts", "inner")})


CASES = {
    "eight times the experts' work": (program_of(changed_rows(scaled(8), "experts")), names.FLOPS_UP, "FAIL"),
    "2% more work of the experts": (program_of(changed_rows(scaled(1.02), "experts")), names.FLOPS_UP, "REVIEW"),
    "recompute of everything": (program_of([recompute(row) for row in step_rows()]), names.RECOMPUTE_ADDED, "FAIL"),
    "attention in float32": (program_of(changed_rows(in_float32, "attention")), names.PRODUCT_WIDENED, "REVIEW"),
    "experts in float32 in a new module": (
        program_of([compute_row("layers.0.moe.experts", launches=0), *map(moved, changed_rows(in_float32, "experts"))]),
        names.PRODUCT_WIDENED,
        "REVIEW",
    ),
    "experts in float32 in the attention": (
        program_of(
            [
                compute_row("layers.0.moe.experts", launches=0),
                *(
                    in_float32(row).model_copy(update={"where": row.where.replace("moe.experts", "attention")})
                    if "experts" in row.where
                    else row
                    for row in step_rows()
                ),
            ]
        ),
        names.PRODUCT_WIDENED,
        "REVIEW",
    ),
    "activations kept, fits": (program_of(live={"activation": 31 * GB}), names.PEAK_UP, "FAIL"),
    "a few activations kept": (program_of(live={"activation": 27 * GB}), names.PEAK_UP, "REVIEW"),
    "temporary": (program_of(live={"temporary": 8 * GB}), names.TEMPORARY_ADDED, "REVIEW"),
    "gradients of a new module": (program_of(live={"gradient": 13 * GB}), names.PEAK_UP, "REVIEW"),
    "optimizer state twice as wide": (
        program_of(live={"optimizer": 40 * GB, "activation": 10 * GB}),
        names.STATE_WIDENED,
        "FAIL",
    ),
    "no room left": (program_of(live={"activation": 35 * GB}), names.DOES_NOT_FIT, "FAIL"),
    "experts in a loop": (program_of(changed_rows(unfused, "experts")), names.FUSED_LOST, "REVIEW"),
    "more kernels everywhere": (
        program_of([row.model_copy(update={"launches": 2 * row.launches}) for row in step_rows()]),
        names.LAUNCHES_UP,
        "REVIEW",
    ),
    "reads in every layer": (program_of(waits=READS), names.WAITS_ADDED, "REVIEW"),
    "synchronize": (program_of(waits=[wait("synchronize")]), names.WAITS_ADDED, "REVIEW"),
}


def judged(
    base: Program | Ledger | None, head: Program | Ledger | None, config: Config | None = None, **options: object
) -> ProgramSection:
    ledgers = [item if isinstance(item, Ledger) else with_program(item) for item in (base, head)]
    section = judge_program(*ledgers, config or Config(), **options)  # type: ignore[arg-type]
    assert section is not None
    return section


@pytest.mark.parametrize("case", CASES)
def test_a_wall_that_rises_is_one_finding_and_the_swapped_arms_have_its_inverse(case: str) -> None:
    head, pattern, status = CASES[case]
    section, swapped = judged(BASE, head), judged(head, BASE)
    assert [finding.pattern for finding in section.findings] == [pattern]
    assert section.status == status
    assert [finding.pattern for finding in swapped.findings] == [names.INVERSE[pattern]]
    changes_numerics = pattern in (names.PRODUCT_WIDENED, names.STATE_WIDENED)
    assert swapped.status == ("REVIEW" if changes_numerics else "PASS")


@pytest.mark.parametrize(
    ("head", "what"),
    [
        (program_of(changed_rows(scaled(1.008), "experts")), "FLOPs below the threshold"),
        (program_of(live={"activation": 26 * GB}), "a peak below the threshold"),
        (program_of([*step_rows(), compute_row("norm", launches=20)]), "a few more kernels"),
        (
            program_of([row.model_copy(update={"where": f"model.{row.where}"}) for row in step_rows()]),
            "renamed modules",
        ),
        (program_of([compute_row("layers.0.moe.experts"), *map(moved, step_rows())]), "products in a new module"),
        (program_of([row.model_copy(update={"line": "moved.py:1"}) for row in step_rows()]), "moved lines"),
    ],
)
def test_what_reaches_no_threshold_is_silent(head: Program, what: str) -> None:
    assert judged(BASE, head).findings == [], what
    assert judged(head, BASE).findings == [], what


def test_waits_in_other_places_are_no_change() -> None:
    moved = [wait("size", where="model.moe", count=4)]
    assert judged(program_of(waits=READS), program_of(waits=moved)).findings == []


def test_recompute_that_lowers_the_peak_is_a_trade_for_a_person() -> None:
    section = judged(BASE, program_of([recompute(row) for row in step_rows()], live={"activation": 5 * GB}))
    assert section.status == "REVIEW"
    assert [finding.pattern for finding in section.findings] == [names.RECOMPUTE_ADDED, names.PEAK_DOWN]
    assert "peak memory down" in section.reasons[0]


def test_a_recompute_explains_no_more_kernels_than_forward_has() -> None:
    rows = [recompute(row) for row in step_rows()]
    rows = [row.model_copy(update={"launches": row.launches + 100 * (row.phase == "backward")}) for row in rows]
    patterns = [finding.pattern for finding in judged(BASE, program_of(rows)).findings]
    assert patterns == [names.RECOMPUTE_ADDED, names.LAUNCHES_UP]


def test_a_peak_that_no_longer_fits_is_no_trade() -> None:
    head = program_of(changed_rows(scaled(0.5), "experts"), live={"activation": 35 * GB})
    assert judged(BASE, head).status == "FAIL"


def test_a_small_rise_with_less_traffic_is_a_note() -> None:
    base = with_program(BASE, smoke_ledger(dispatcher="allgather"))
    head = program_of(live={"activation": 27 * GB})
    assert judged(base, with_program(head)).status == "PASS"
    assert judged(base, with_program(program_of(live={"activation": 31 * GB}))).status == "FAIL"


def test_small_parts_that_are_large_together_fail() -> None:
    """2% of recompute and 3.5% of other work."""
    rows = []
    for row in step_rows():
        update = {"flops": round(1.06 * row.flops), "recomputed_flops": round(0.03 * row.flops)}
        rows.append(row.model_copy(update=update if row.phase == "backward" else {}))
    head = program_of([*rows, compute_row("layers.0.moe", round(0.015 * BASE.flops))])
    assert {finding.status for finding in judged(BASE, head).findings} == {"FAIL"}


@pytest.mark.parametrize(("device", "reserve_gb", "fits"), [(None, 6.0, False), ("h200", 6.0, True), (None, 1.0, True)])
def test_the_device_and_the_reserve_decide_what_fits(device: str | None, reserve_gb: float, fits: bool) -> None:
    thresholds = ProgramThresholds.model_validate({"device": device, "reserve_gb": reserve_gb})
    section = judged(BASE, program_of(live={"activation": 35 * GB}), Config(program=thresholds))
    assert ([finding.pattern for finding in section.findings] == [names.DOES_NOT_FIT]) is not fits


def test_a_program_of_a_cpu_has_no_device_to_fit() -> None:
    ledgers = [
        with_program(program, device="cpu", gpu=None) for program in (BASE, program_of(live={"activation": 35 * GB}))
    ]
    section = judged(*ledgers)
    assert section.device_bytes is None
    assert [finding.pattern for finding in section.findings] == [names.PEAK_UP]


def test_an_unknown_program_is_never_zero() -> None:
    section = judged(BASE, None)
    assert (section.status, section.head) == ("INVALID", None)
    assert section.base is not None
    assert judged(BASE, None, configurations_only=True).status == "PASS"
    assert judge_program(with_program(None), with_program(None), Config()) is None


def test_what_no_trace_observed_is_said_where_the_operators_differ() -> None:
    def last_reason(program: Program | None, dispatcher: str, head_program: str) -> str:
        base = with_program(program)
        head = with_program(program, smoke_ledger(layers=4, dispatcher=dispatcher, program=head_program))
        return judge_sharding(base, head, Config()).reasons[-1]

    unobserved = "FLOPs, memory and waits are not compared"
    assert last_reason(None, "alltoall", "b" * 64).endswith(f"; {unobserved}")
    assert last_reason(None, "allgather", "b" * 64) == unobserved
    assert unobserved not in last_reason(BASE, "alltoall", "b" * 64)
    assert last_reason(None, "alltoall", "a" * 64).endswith("; waits of the host are not compared")


def test_programs_for_different_devices_are_not_compared() -> None:
    section = judged(with_program(BASE), with_program(program_of(waits=READS), gpu="a100"))
    assert (section.status, section.findings) == ("INVALID", [])


def test_a_declaration_accepts_a_finding_of_the_program() -> None:
    rule = parse_expectation("host waits added@host@*: for the log")
    section = judged(BASE, program_of(waits=READS), expectations=[rule], workload="qwen")
    assert (section.status, section.findings[0].accepted) == ("PASS", "for the log")


def test_two_configurations_are_shown_and_not_judged() -> None:
    section = judged(BASE, program_of(changed_rows(scaled(8), "experts")), configurations_only=True)
    assert (section.status, len(section.findings)) == ("PASS", 1)


def test_the_text_names_amounts_module_and_line_of_what_is_held() -> None:
    kept = [holder("activation", f"layers.{layer}.moe", 2 * GB, "dispatch.py:41") for layer in range(4)]
    head = program_of(live={"activation": 33 * GB}, holders=kept)
    (finding,) = judged(program_of(holders=[holder("activation", "layers.0.attention", GB)]), head).findings
    assert "78.0 GB, 70.0 GB before (+11.4%)" in finding.text
    assert "+8.00 GB activations held by layers.*.moe from dispatch.py:41" in finding.text
    assert finding.modules == ["layers.*.moe"]


def test_operators_without_a_formula_are_named() -> None:
    section = judged(program_of(without_formula={"my::kernel": 3}), program_of(without_formula={"my::kernel": 3}))
    assert any("my::kernel" in reason for reason in section.reasons)
