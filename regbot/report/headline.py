"""The headline of a check.

A sentence is a tuple of text parts (``Words``). Untrusted parts have the type ``Name`` or ``UntrustedText``.
``check.entries`` are the workloads that were run. Among them, ``check.decisive`` are those that cause the state, and
``check.changed`` are those with changed collectives or findings.
"""

import re
from collections.abc import Callable, Sequence

from regbot.records.run import Arm, Outcome
from regbot.records.text.clip import clip, clip_ends
from regbot.records.text.units import format_amount
from regbot.records.verdict import Finding, Status
from regbot.report.markdown import Name, UntrustedText, Words
from regbot.report.source_lines import find_first_in_diff, name_place
from regbot.report.state import Check, State
from regbot.report.throughput import (
    ThroughputAnswer,
    describe_bound,
    describe_change,
    describe_reference,
    describe_undecided,
    explain_mean_only,
    has_times,
    select_mean_only_test,
)
from regbot.report.workload_section import CollectiveLine, WorkloadSection, kind_words

ICONS: dict[Status, str] = {"PASS": "✅", "FAIL": "❌", "INVALID": "⛔", "REVIEW": "⚠️", "INCONCLUSIVE": "❔"}

PATTERN_CHARACTERS = 120
REASON_CHARACTERS = 300

_AXIS_SEPARATOR = re.compile(r" -> |, ")
"""Separators between the axes of a finding."""


def headline(check: Check) -> Words:
    """Return the sentence of the headline, without the icon and the word. If the verdict is INCONCLUSIVE only because
    of workloads that were not run, the sentence begins with this reason."""
    words = _HEADLINES[check.state](check)
    if not check.entries or not check.is_passing_but_unproven:
        return words
    untraced, total = len(check.unconcerned), len(check.unconcerned) + len(check.entries)
    was, its, them = ("was", "its", "it") if untraced == 1 else ("were", "their", "them")
    reason = (
        f"{untraced} of {total} workloads {was} not measured (no changed file matches {its} paths), and it is not "
        f"known whether the change affects {them}; "
    )
    return (reason, *words)


def word(check: Check) -> str:
    """Return the word of the verdict."""
    return "SHOWN, NOT JUDGED" if check.state is State.NOT_JUDGED else check.verdict.verdict


def icon(check: Check) -> str:
    """Return the icon of the verdict."""
    return "🔎" if check.state is State.NOT_JUDGED else ICONS[check.verdict.verdict]


def overrides(arm: Arm) -> str:
    """Return the overrides of an arm, such as ``dispatcher=allgather``; '' if the arm has none."""
    return " ".join(f"{key}={value}" for key, value in arm.overrides.items())


def _changed_headline(check: Check) -> Words:
    """Return the worst change of the sharding, and what it means. A slowdown or the bound of a PASS follows."""
    entries, status, meaning = check.decisive, check.verdict.verdict, ""
    if check.state is State.REVIEW:
        meaning = "; a reviewer has to decide whether this is intended"
    elif check.state is State.ACCEPTED:
        entries = [entry for entry in check.entries if any(finding.accepted for finding in entry.findings)]
        meaning = ", declared as intended"
    elif check.state is State.IMPROVED:
        entries = [entry for entry in check.entries if entry.findings]
        meaning = "; this is no regression"
    if check.state in (State.ACCEPTED, State.IMPROVED):
        change, throughput = _describe_worst_change(entries, None), _append_throughput(check)
    else:
        change, throughput = _describe_worst_change(entries, status), ()
        patterns_by_entry = [
            (entry, [each.pattern for each in entry.findings if each.status == status]) for entry in entries
        ]
        worst = next((patterns[0] for _, patterns in patterns_by_entry if patterns), None)
        entries = [entry for entry, patterns in patterns_by_entry if worst is None or worst in patterns]
        if check.slower:
            throughput = ("; and ", *_describe_step_change(check.slower[0], check.slower, check))
    cost = _append_cost(entries, status)
    return (
        *change,
        f" in {_count_workloads(entries, check)}",
        *_append_line(entries, status),
        cost,
        meaning,
        *throughput,
    )


def _throughput_fail_headline(check: Check) -> Words:
    slowest = check.slower[0]
    return (*_describe_step_change(slowest, check.slower, check), *_append_wall(slowest))


def _head_breaks_headline(check: Check) -> Words:
    """Return how head fails, the reason if head ended without an error, and what base does instead."""
    entry = check.decisive[0]
    scope = _count_workloads(check.decisive, check)
    run = next((run for run in entry.failed if run.arm.name == "head"), None)
    failure = _OUTCOMES.get(run.outcome, "fails") if run else "fails"
    base = _QUIET_OUTCOMES.get(run.outcome) if run else None
    if run is None or base is None or not run.reason:
        return (f"the head {failure} in {scope}, the base {base or 'does not'}",)
    return (
        f"the head {failure} in {scope}: ",
        UntrustedText(clip_ends(run.reason, REASON_CHARACTERS)),
        f"; the base {base}",
    )


_OUTCOMES: dict[Outcome, str] = {
    "crashed": "crashes",
    "hung": "hangs",
    "no_record": "ends without a result",
    "bad_record": "ends without a result",
    "short": "stops before its last step",
    "diverged": "does not train",
}
"""Outcome of head -> how head fails, as a predicate."""
_QUIET_OUTCOMES: dict[Outcome, str] = {"short": "runs all its steps", "diverged": "trains"}
"""Outcome of a head that ended without an error -> what base does instead. The headline then has the reason, because no
log has one."""


def _neither_runs_headline(check: Check) -> Words:
    """Return that both arms fail. If their traces ran, only the timed runs fail, and the sentence says so."""
    entries = check.decisive
    traces_ran = all(run is not None and run.outcome == "ok" for entry in entries for run in (entry.base, entry.head))
    condition = " when they are timed" if traces_ran else ""
    scope = _count_workloads(entries, check)
    return (f"base and head both fail to run{condition} in {scope}, so nothing can be compared",)


def _base_breaks_headline(check: Check) -> Words:
    total = len(check.entries)
    is_everywhere = len(check.decisive) == total > 1
    scope = f"any of the {total} workloads" if is_everywhere else _count_workloads(check.decisive, check)
    return (f"the base cannot be measured in {scope}, so there is nothing to compare with",)


def _doubtful_crash_headline(check: Check) -> Words:
    scope = _count_workloads(check.decisive, check)
    if check.is_unsupported:
        return (f"the trace of the head crashes in {scope}, because regbot does not support this revision",)
    return (f"the head crashes in {scope}, and nothing shows that the change is the cause",)


def _invalid_headline(check: Check) -> Words:
    """Return what is missing in the decisive workloads, and the first reason."""
    missing = {
        State.FOREIGN_CODE: "the code that ran is not the code of the commit in ",
        State.ENVIRONMENT: "the requested dispatcher did not run on this machine in ",
        State.UNTIMED: "no usable step times were measured in ",
    }.get(check.state, "there is no valid result in ")
    if not check.entries:
        return ("there was no workload to measure",)
    return (missing, _count_workloads(check.decisive, check), *_append_first_reason(check.decisive))


def _trains_differently_headline(check: Check) -> Words:
    reasons = [reason for entry in check.decisive for reason in entry.verdict.validity.reasons]
    cause = UntrustedText((reasons or ["head trains differently"])[0][:REASON_CHARACTERS].rstrip(". "))
    scope = _count_workloads(check.decisive, check)
    return (f"in {scope}, ", cause, "; a reviewer has to decide whether this is intended")


def _inconclusive_headline(check: Check) -> Words:
    """Return in how many workloads throughput is undecided, with the cause of the first workload that has one."""
    unchanged = "" if check.changed else "the sharding is unchanged; "
    timed = [entry.throughput for entry in check.decisive if entry.throughput]
    if not any(has_times(section) for section in timed):
        return (f"{unchanged}nothing has been timed yet",)
    cause = next((f": {text}" for section in timed if (text := describe_undecided(section))), "")
    return (f"{unchanged}throughput is undecided in {_count_timed_workloads(check.decisive, check)}{cause}",)


def _not_judged_headline(check: Check) -> Words:
    """Return the overrides of both arms, which are one commit, and whether the collectives differ."""
    base, head = (overrides(arm) or "as configured" for arm in (check.verdict.base, check.verdict.head))
    scope = f"differ in {_count_workloads(check.changed, check)}" if check.changed else "are the same"
    return (Name(base), " against ", Name(head), f", and the collectives {scope}", *_append_throughput(check))


def _faster_headline(check: Check) -> Words:
    faster = check.with_answer(ThroughputAnswer.FASTER)
    best = min(faster, key=lambda entry: (entry.throughput and entry.throughput.estimate_pct) or 0.0)
    return (*_describe_step_change(best, faster, check), *_append_wall(best), "; the sharding is unchanged")


def _unchanged_headline(check: Check) -> Words:
    is_identical = check.state is State.IDENTICAL
    same = "base and head run the same operators and collectives" if is_identical else "the sharding is unchanged"
    sentence = f"{same} in {_count_workloads(check.entries, check)}"
    throughput = _append_throughput(check)
    if throughput or is_identical or check.is_passing_but_unproven:  # then the headline already has its reason
        return (sentence, *throughput)
    differing = [entry for entry in check.entries if entry.has_other_operators]
    if not differing:
        return (sentence, "; step times were not measured")
    scope = "" if len(differing) == len(check.entries) else f" in {_count_workloads(differing, check)}"
    return (sentence, f"; head runs other operators than base{scope}, and step times were not measured")


def _unconcerned_headline(check: Check) -> Words:
    proven = check.verdict.verdict == "PASS"
    end = ", and stored runs of the base loaded none of the changed files" if proven else ", so nothing was measured"
    return (f"no changed file matches the paths of a workload{end}",)


_HEADLINES: dict[State, Callable[[Check], Words]] = {
    State.SHARDING_FAIL: _changed_headline,
    State.THROUGHPUT_FAIL: _throughput_fail_headline,
    State.HEAD_BREAKS: _head_breaks_headline,
    State.NEITHER_RUNS: _neither_runs_headline,
    State.BASE_BREAKS: _base_breaks_headline,
    State.FOREIGN_CODE: _invalid_headline,
    State.DOUBTFUL_CRASH: _doubtful_crash_headline,
    State.ENVIRONMENT: _invalid_headline,
    State.UNTIMED: _invalid_headline,
    State.UNMEASURED: _invalid_headline,
    State.TRAINS_DIFFERENTLY: _trains_differently_headline,
    State.REVIEW: _changed_headline,
    State.INCONCLUSIVE: _inconclusive_headline,
    State.NOT_JUDGED: _not_judged_headline,
    State.ACCEPTED: _changed_headline,
    State.IMPROVED: _changed_headline,
    State.FASTER: _faster_headline,
    State.IDENTICAL: _unchanged_headline,
    State.UNCHANGED: _unchanged_headline,
    State.UNCONCERNED: _unconcerned_headline,
}


def _describe_step_change(worst: WorkloadSection, changed: Sequence[WorkloadSection], check: Check) -> Words:
    """Return text like ``a training step is 46.7% slower [+38.2, +55.9] than base in 1 of 2 timed workloads``."""
    section = worst.throughput
    change_text = f"{describe_change(section)} than {describe_reference(section)}" if section else "slower"
    up_to = "up to " if len(changed) > 1 else ""
    scope = _count_timed_workloads(changed, check)
    if section and select_mean_only_test(section):
        return (f"a training step is on average {up_to}{change_text} in {scope}, {explain_mean_only(section)}",)
    untimed_base = " (base was not timed)" if section and section.by == "stored" else ""
    return (f"a training step is {up_to}{change_text} in {scope}{untimed_base}",)


def _append_wall(entry: WorkloadSection) -> Words:
    """Return the part of the step that explains the change, ``(cause: communication)``; () if no single part does."""
    kind = entry.throughput.wall_kind if entry.throughput else None
    return (f" (cause: {kind})",) if kind not in (None, "not one wall") else ()


def _append_throughput(check: Check) -> Words:
    """Return the words about throughput in the headline of a passing check; () if nothing was timed.

    A faster workload comes first, then the slowdowns that the timed runs rule out. The largest bound is given for the
    workloads that are compared with the same reference.
    """
    if faster := check.with_answer(ThroughputAnswer.FASTER):
        return ("; ", *_describe_step_change(faster[0], faster, check))
    passed = [*check.with_answer(ThroughputAnswer.NO_CHANGE), *check.with_answer(ThroughputAnswer.WITHIN_BOUND)]
    bounded: dict[str, list[tuple[float, WorkloadSection]]] = {}  # reference -> bounds in percent, and workloads
    for entry in passed:
        if entry.throughput and entry.throughput.bound_pct is not None:
            reference = describe_reference(entry.throughput)
            bounded.setdefault(reference, []).append((entry.throughput.bound_pct, entry))
    if bounded:
        clauses = [
            f"head is {describe_bound(max(bound for bound, _ in group))} than {reference} in "
            f"{_count_timed_workloads([entry for _, entry in group], check)}"
            for reference, group in bounded.items()
        ]
        return (f"; {', and '.join(clauses)}",)
    if passed:
        return (f"; no change of throughput in {_count_timed_workloads(passed, check)}",)
    if check.with_answer(ThroughputAnswer.IDENTICAL):
        return ("; packages, configuration and the code that runs are the same, so nothing was timed",)
    return ()


def _describe_worst_change(entries: Sequence[WorkloadSection], status: Status | None) -> Words:
    """Return text like ``all-to-all replaced by gather and sum (all-to-all on `ep`: 5 per layer → 0)``.

    It is about the first finding with ``status``, or about the first finding if ``status`` is None. Without such a
    finding, it is the first reason.
    """
    for entry in entries:
        for finding in entry.findings:
            if status is None or finding.status == status:
                pattern = UntrustedText(clip(finding.pattern, PATTERN_CHARACTERS))
                if finding.amounts is not None:
                    unit, before, after = finding.amounts.unit, finding.amounts.base, finding.amounts.head
                    return (pattern, f" ({format_amount(before, unit)} → {format_amount(after, unit)})")
                line = _select_clearest_line(entry, finding)
                return (pattern, *((" (", *_describe_line_change(line), ")") if line else ()))
    return ("the program has changed", *_append_first_reason(entries))


def _append_line(entries: Sequence[WorkloadSection], status: Status) -> Words:
    """Return the first line in the diff of the findings that the headline is about, such as `` at `moe.py:30` ``; ()
    without one."""
    findings = [finding for entry in entries for finding in entry.findings]
    decisive = [finding for finding in findings if finding.status == status] or findings
    line = find_first_in_diff(decisive)
    return (" at ", name_place(line)) if line is not None else ()


def _append_cost(entries: Sequence[WorkloadSection], status: Status) -> str:
    """Return the cost of the headline's sharding, such as ``, +487 ms a step by model``; '' if it is unknown."""
    entry = next((entry for entry in entries if any(finding.status == status for finding in entry.findings)), None)
    sharding = entry.verdict.sharding if entry is not None else None
    if sharding is None or sharding.status != status or sharding.wire is None:
        return ""
    extra_s = sharding.wire.head_s - sharding.wire.base_s
    amount = f"{extra_s:+.3g} s" if abs(extra_s) >= 1 else f"{1000 * extra_s:+.3g} ms"
    return f", {amount} a step by model" if abs(extra_s) >= 1e-5 else ""


def _select_clearest_line(entry: WorkloadSection, finding: Finding) -> CollectiveLine | None:
    """Return the line of collectives that shows a finding best; None if no collective changed.

    Lines on the axes and of the kinds of the finding are preferred, then lines whose count decreased, then the kind of
    the largest change in bytes. Of several lines of this kind, it is the one whose change of the count is nearest to
    the finding's.
    """
    axes = _AXIS_SEPARATOR.split(finding.axis)
    candidates = [line for line in entry.changed if line.axis in axes] or entry.changed
    candidates = [line for line in candidates if line.kind in finding.head] or candidates

    def sort_key(line: CollectiveLine) -> tuple[bool, int]:
        return line.head.count >= line.base.count, -abs(line.head.bytes - line.base.bytes)

    largest = min(candidates, key=sort_key, default=None)
    if largest is None or not {largest.kind} <= finding.base.keys() & finding.head.keys():
        return largest
    growth = finding.head[largest.kind].count - finding.base[largest.kind].count
    same_kind = [line for line in candidates if line.kind == largest.kind]
    return min(same_kind, key=lambda line: (abs(line.head.count - line.base.count - growth), *sort_key(line)))


def _describe_line_change(line: CollectiveLine) -> Words:
    """Return how the count of a collective changed, such as ``all-to-all on `ep`: 5 per layer → 0``.

    If only a few layers lost the collective, these layers are named. If the texts of the counts do not differ, the
    total counts are given.
    """
    start = (kind_words(line.kind), " on ", Name(line.axis), ": ")
    base_count, head_count = line.describe_count(line.base), line.describe_count(line.head)
    if missing := line.list_missing_layers():
        return (*start, *base_count, " → 0 in ", Name(", ".join(missing)))
    if line.base.count == line.head.count:
        return (*start, f"still {line.head.count}, but with other bytes or layers")
    if base_count == head_count:
        base_count = head_count = ()
    return (*start, *(base_count or (str(line.base.count),)), " → ", *(head_count or (str(line.head.count),)))


def _count_workloads(entries: Sequence[WorkloadSection], check: Check) -> str:
    """Return the number of ``entries`` among all workloads: ``1 of 4 workloads`` or ``the one checked workload``.

    If only timed runs show the state of the check, the number is given among the timed workloads.
    """
    if check.is_about_timed_runs and all(entry.throughput is not None for entry in entries):
        return _count_timed_workloads(entries, check)
    total = len(check.entries)
    return _format_count(len(entries), total, "checked workload" if total == 1 else "workload")


def _count_timed_workloads(entries: Sequence[WorkloadSection], check: Check) -> str:
    """Return the number of ``entries`` among all workloads with a throughput section: ``1 of 2 timed workloads``."""
    return _format_count(len(entries), sum(entry.throughput is not None for entry in check.entries), "timed workload")


def _format_count(number: int, total: int, noun: str) -> str:
    """Return text like ``both workloads``, ``all 4 workloads``, ``1 of 4 workloads`` or ``the one timed workload``."""
    if number != total:
        return f"{number} of {total} {noun}s"
    return {1: f"the one {noun}", 2: f"both {noun}s"}.get(total, f"all {total} {noun}s")


def _append_first_reason(entries: Sequence[WorkloadSection]) -> Words:
    """Return a colon and the first reason of the first workload with a reason; () if there is none."""
    reasons = [reason for entry in entries for reason in entry.reasons]
    return (": ", UntrustedText(clip_ends(reasons[0], REASON_CHARACTERS).rstrip(". "))) if reasons else ()
