"""Judge the Programs of two ledgers: the walls that a step can hit are compute, memory and the host.

The amounts are exact, so the rules need no statistics. docs/sharding-verdict.md has the table of the rules."""

from collections.abc import Iterable, Sequence

from regbot.judge.expectations import Expectation, accept, list_reasons
from regbot.ledgers import catalogue as names
from regbot.ledgers.program import (
    ProgramChange,
    changed_modules,
    count_by_line,
    count_totals,
    find_changes,
    rise_pct,
    write_text,
)
from regbot.ledgers.rows import sum_by_kind
from regbot.ledgers.rules import is_lower
from regbot.ledgers.source_lines import find_lines, subtract_calls
from regbot.ledgers.wire import wire_s
from regbot.records.changed_lines import ChangedLines
from regbot.records.config import Config
from regbot.records.ledger import DEFAULT_PAPER_GPU, Ledger, Program
from regbot.records.settings import GPU_MEMORY_BYTES, ProgramThresholds
from regbot.records.text.clip import clip_message
from regbot.records.text.units import format_amount
from regbot.records.text.words import listed
from regbot.records.verdict import GRAVITY, Amounts, Finding, ProgramSection, Status

NUMERICS = {names.PRODUCT_NARROWED, names.STATE_NARROWED}
"""Falls that change the numbers that a step computes, so that a person has to judge them."""
MAX_NAMED = 3


def judge_program(
    base: Ledger,
    head: Ledger,
    config: Config,
    *,
    workload: str = "",
    expectations: Iterable[Expectation] = (),
    configurations_only: bool = False,
    changed_lines: ChangedLines | None = None,
) -> ProgramSection | None:
    """Return the program section of two comparable ledgers; None if neither has a Program. ``configurations_only``:
    both arms have the same commit with different overrides, so a difference is no regression."""
    device_bytes = _find_device_bytes(head, config.program)
    totals = [None if ledger.program is None else count_totals(ledger.program) for ledger in (base, head)]
    section = ProgramSection(status="PASS", reasons=[], base=totals[0], head=totals[1], device_bytes=device_bytes)
    if base.program is None or head.program is None:
        if base.program is head.program:
            return None
        reason = f"not compared: the trace of {'base' if base.program is None else 'head'} did not observe its Program"
        return section.model_copy(update={"status": _pass_or("INVALID", configurations_only), "reasons": [reason]})
    if (base.device, base.gpu) != (head.device, head.gpu):
        reason = "not compared: the Programs are for different devices"
        return section.model_copy(update={"status": _pass_or("INVALID", configurations_only), "reasons": [reason]})
    changes = find_changes(base.program, head.program, config.program, device_bytes)
    is_traffic_lower = _is_traffic_lower(base, head, config)
    findings = accept(
        (
            _judge_change(change, changes, base, head, config.program, is_traffic_lower, changed_lines)
            for change in changes
        ),
        expectations,
        workload,
    )
    if configurations_only:
        findings = [
            finding if finding.accepted else finding.model_copy(update={"status": "PASS"}) for finding in findings
        ]
    findings.sort(key=lambda finding: (GRAVITY.index(finding.status), names.PATTERNS.index(finding.pattern)))
    status: Status = findings[0].status if findings else "PASS"
    reasons = list_reasons(findings, status)
    if not findings:
        reasons.append(_describe_unchanged(base.program, head.program))
    elif configurations_only:
        reasons.insert(0, "comparison of two configurations: differences are shown, not judged")
    reasons += _describe_gaps(base.program, head.program)
    return section.model_copy(
        update={"status": status, "reasons": [clip_message(reason) for reason in reasons], "findings": findings}
    )


def _pass_or(status: Status, configurations_only: bool) -> Status:
    return "PASS" if configurations_only else status


def _find_device_bytes(ledger: Ledger, thresholds: ProgramThresholds) -> int | None:
    """Return the memory that the peak must fit; None for a program of a CPU."""
    if ledger.device != "cuda":
        return None
    gpu = thresholds.device or ledger.gpu or DEFAULT_PAPER_GPU
    return max(0, GPU_MEMORY_BYTES[gpu] - int(1e9 * thresholds.reserve_gb))


def _is_traffic_lower(base: Ledger, head: Ledger, config: Config) -> bool:
    """Whether head sends fewer payload bytes, or its modelled wire time is lower."""
    payload = [
        sum(volume.bytes for volume in sum_by_kind(ledger, lambda entry: entry.role == "payload").values())
        for ledger in (base, head)
    ]
    return payload[1] < payload[0] or is_lower(wire_s(head, config.wire), wire_s(base, config.wire))


def _judge_change(
    change: ProgramChange,
    changes: Sequence[ProgramChange],
    base: Ledger,
    head: Ledger,
    thresholds: ProgramThresholds,
    is_traffic_lower: bool,
    changed_lines: ChangedLines | None,
) -> Finding:
    assert base.program is not None
    assert head.program is not None
    fallen = [other for other in changes if not other.rises and other.wall != change.wall]
    text = write_text(change, base.program, head.program)
    if change.wall == "memory" and (device_bytes := _find_device_bytes(head, thresholds)) is not None:
        text += _describe_fit(change, head, thresholds, device_bytes)
    if change.rises and fallen:
        text += f" In return, another wall fell: {', '.join(other.pattern for other in fallen)}."
    before, after = (count_by_line(change, program) for program in (base.program, head.program))
    return Finding(
        pattern=change.pattern,
        status=_decide_status(change, base.program, head.program, thresholds, bool(fallen), is_traffic_lower),
        axis=change.wall,  # stands in place of a mesh axis
        base={},
        head={},
        amounts=change.amounts,
        text=clip_message(text),
        modules=changed_modules(change, base.program, head.program),
        lines=find_lines(*subtract_calls(before, after, base, head), base, head, changed_lines),
    )


def _describe_fit(change: ProgramChange, head: Ledger, thresholds: ProgramThresholds, device_bytes: int) -> str:
    gpu = thresholds.device or head.gpu or DEFAULT_PAPER_GPU
    memory = format_amount(GPU_MEMORY_BYTES[gpu], "bytes")
    fits = "fits" if change.amounts.head <= device_bytes else "will not fit"
    return f" Of {memory} of {gpu.upper()}, {thresholds.reserve_gb:g} GB are kept in reserve: the step {fits}."


def _decide_status(
    change: ProgramChange,
    base: Program,
    head: Program,
    thresholds: ProgramThresholds,
    another_wall_fell: bool,
    is_traffic_lower: bool,
) -> Status:
    if change.pattern == names.DOES_NOT_FIT:
        return "FAIL"
    if not change.rises:
        return "REVIEW" if change.pattern in NUMERICS else "PASS"
    if another_wall_fell:
        return "REVIEW"
    # A small finding is FAIL too if the wall rises by so much in all.
    flops = Amounts(unit="flops", base=base.flops, head=head.flops)
    peak = Amounts(unit="bytes", base=base.peak_bytes, head=head.peak_bytes)
    if change.wall == "compute" and change.pattern != names.PRODUCT_WIDENED:
        if rise_pct(flops) >= thresholds.flops_fail_pct:
            return "FAIL"
    elif change.wall == "memory" and rise_pct(peak) >= thresholds.peak_fail_pct:
        return "FAIL"
    return "PASS" if is_traffic_lower else "REVIEW"


def _describe_unchanged(base: Program, head: Program) -> str:
    amounts = (
        format_amount(head.flops, "flops"),
        f"a peak of {format_amount(head.peak_bytes, 'bytes')}",
        format_amount(head.launches, "launches"),
        format_amount(head.host_waits, "waits"),
    )
    is_same = count_totals(base) == count_totals(head)
    comparison = "both arms have" if is_same else "no change reaches its threshold; head has"
    return f"{comparison} {listed(amounts, len(amounts))} per step"


def _describe_gaps(base: Program, head: Program) -> Iterable[str]:
    operators = sorted({*base.without_formula, *head.without_formula})
    if operators:
        differ = "" if base.without_formula == head.without_formula else ", and not the same ones in both arms"
        yield f"FLOPs are at least these: no formula for {listed(operators, MAX_NAMED)}{differ}"
