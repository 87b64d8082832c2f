"""The headline of a check: the icon and the word of the verdict, and one sentence with the reason.

Every state of a check has its own small function, which returns the sentence for that state. The comment on the pull
request and the report (report.html) use the same sentences. A sentence is a tuple of text parts (``Words``). Untrusted
parts have the type ``Name`` or ``UntrustedText``.

``check.entries`` are the workloads that were run. Among them, ``check.decisive`` are those that cause the state, and
``check.changed`` are those with changed collectives or findings. ``check.unconcerned`` are workloads that were not run.
"""

import re
from collections.abc import Callable, Sequence

from regbot.records.run import Arm, Outcome, Run
from regbot.records.text.clip import clip
from regbot.records.text.percentages import round_up_percent
from regbot.records.verdict import Finding, Status, WallKind
from regbot.report.markdown import Name, UntrustedText, Words
from regbot.report.state import Check, State
from regbot.report.throughput import (
    ThroughputAnswer,
    describe_bound,
    describe_change,
    describe_reference,
    describe_undecided,
    explain_mean_only,
    has_times,
    is_undecided_by_noise,
    select_mean_only_test,
)
from regbot.report.workload_section import CollectiveLine, WorkloadSection, kind_words

ICONS: dict[Status, str] = {"PASS": "✅", "FAIL": "❌", "INVALID": "⛔", "REVIEW": "⚠️", "INCONCLUSIVE": "❔"}

PATTERN_CHARACTERS = 120
REASON_CHARACTERS = 300

_WALL_NAMES: dict[WallKind, str] = {"not one wall": "no single part of the step"}
"""Names of the walls whose kind does not say enough by itself. A wall is the part of a step that explains a change."""
_STALL_PLACES: dict[WallKind, str] = {
    "communication": "communication",
    "compute or host": "compute or host time",
    "not one wall": "no single part of the step",
}
"""The part of the step in which a few steps stall."""

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


def _sharding_fail_headline(check: Check) -> Words:
    failing = check.decisive
    return (*_describe_worst_change(failing, "FAIL"), f" in {_count_workloads(failing, check)}")


def _both_fail_headline(check: Check) -> Words:
    return (*_sharding_fail_headline(check), "; and ", *_describe_slowest(check))


def _throughput_fail_headline(check: Check) -> Words:
    return (*_describe_slowest(check), *_append_wall(check.slower))


def _head_breaks_headline(check: Check) -> Words:
    """Return how head fails, the reason if head ended without an error, and what base does instead."""
    failing = check.decisive
    run = _find_failed_head(failing[0]) if failing else None
    failure = _describe_failure(failing[0], run) if failing else "fails"
    detail: Words = ()
    if run is not None and run.outcome in QUIET_OUTCOMES and run.reason:
        detail = (": ", UntrustedText(clip(run.reason, REASON_CHARACTERS)))
    base = _BASE_OUTCOMES.get(run.outcome, "does not") if run is not None else "does not"
    separator = "; " if detail else ", "
    return (f"the head {failure} in {_count_workloads(failing, check)}", *detail, f"{separator}the base {base}")


def _neither_runs_headline(check: Check) -> Words:
    """Return that both arms fail. If their traces ran, only the timed runs fail, and the sentence says so."""
    entries = check.decisive
    traces_ran = all(run is not None and run.outcome == "ok" for entry in entries for run in (entry.base, entry.head))
    condition = " when they are timed" if traces_ran else ""
    return (
        f"base and head both fail to run{condition} in {_count_workloads(entries, check)}, so nothing can be compared",
    )


def _base_breaks_headline(check: Check) -> Words:
    total = len(check.entries)
    if len(check.decisive) == total > 1:
        return (f"the base cannot be measured in any of the {total} workloads, so there is nothing to compare with",)
    scope = _count_workloads(check.decisive, check)
    return (f"the base cannot be measured in {scope}, so there is nothing to compare with",)


def _foreign_code_headline(check: Check) -> Words:
    entries = check.decisive
    packages = [name for entry in entries for name in entry.foreign]
    return (
        "the code that ran is not the code of the commit: ",
        Name(packages[0] if packages else ""),
        f" was imported from outside the checkout in {_count_workloads(entries, check)}",
    )


def _doubtful_crash_headline(check: Check) -> Words:
    scope = _count_workloads(check.decisive, check)
    if check.is_unsupported:
        return (f"the trace of the head crashes in {scope}, because regbot does not support this revision",)
    return (f"the head crashes in {scope}, and nothing shows that the change is the cause",)


def _no_record_headline(check: Check) -> Words:
    """Return which arm of the first decisive workload ended without a usable record."""
    entries = check.decisive
    runs = (("base", entries[0].base), ("head", entries[0].head))
    arm = next((name for name, run in runs if run is None or run.outcome != "ok"), "")
    scope = _count_workloads(entries, check)
    return (f"the {arm} ended without a usable result in {scope}, so its collectives are unknown",)


def _environment_headline(check: Check) -> Words:
    """Return that the requested dispatcher did not run, and which dispatcher ran instead."""
    runs = [timed_run.run for entry in check.decisive for timed_run in entry.timed.runs]
    backend = next((run.backends["dispatcher"] for run in runs if "dispatcher" in run.backends), None)
    requested: Words = (" ", Name(backend.requested)) if backend else ()
    executed = Name(backend.executed) if backend else "another one"
    did_not_run = f" did not run on this machine in {_count_workloads(check.decisive, check)}; the runs used "
    return ("the requested dispatcher", *requested, did_not_run, executed, ", so their times cannot be used")


def _untimed_headline(check: Check) -> Words:
    entries = check.decisive
    return (
        "no usable step times were measured in ",
        _count_workloads(entries, check),
        *_append_first_reason(entries),
    )


def _unmeasured_headline(check: Check) -> Words:
    entries = check.decisive
    if not check.entries:
        return ("there was no workload to measure",)
    return ("there is no valid result in ", _count_workloads(entries, check), *_append_first_reason(entries))


def _trains_differently_headline(check: Check) -> Words:
    reasons = [reason for entry in check.decisive for reason in entry.verdict.validity.reasons]
    cause: Words = (
        (UntrustedText(reasons[0][:REASON_CHARACTERS].rstrip(". ")),) if reasons else ("head trains differently",)
    )
    scope = _count_workloads(check.decisive, check)
    return (f"in {scope}, ", *cause, "; a reviewer has to decide whether this is intended")


def _review_headline(check: Check) -> Words:
    waiting = check.decisive
    return (
        *_describe_worst_change(waiting, "REVIEW"),
        f" in {_count_workloads(waiting, check)}; a reviewer has to decide whether this is intended",
    )


def _inconclusive_headline(check: Check) -> Words:
    """Return in how many workloads throughput is undecided, with a cause. Without any step times, return that nothing
    has been timed.

    If all of them are undecided because of noise, the cause is the range of their smallest detectable slowdowns.
    Otherwise it is the cause of the first workload that has one.
    """
    undecided = check.decisive
    unchanged = "" if check.changed else "the sharding is unchanged; "
    timed = [entry.throughput for entry in undecided if entry.throughput]
    if not any(has_times(section) for section in timed):
        planned = sum(entry.throughput is not None for entry in check.entries)
        scope = f" in {_format_count(len(timed), planned, 'workload')}" if planned > 1 else ""
        return (f"{unchanged}nothing has been timed yet{scope}",)
    causes = [describe_undecided(section) for section in timed]
    cause = next((f": {text}" for text in causes if text), "")
    detectable = [section.mde_pct for section in timed if section.mde_pct is not None]
    if len(detectable) > 1 and all(is_undecided_by_noise(section) for section in timed):
        smallest, largest = round_up_percent(min(detectable)), round_up_percent(max(detectable))
        cause = (
            f": the smallest slowdown that the pairs can detect is {smallest} to {largest}, depending on the workload"
        )
    return (f"{unchanged}throughput is undecided in {_count_timed_workloads(undecided, check)}{cause}",)


def _not_judged_headline(check: Check) -> Words:
    """Return the overrides of both arms, which are one commit, and whether the collectives differ."""
    base, head = (overrides(arm) or "as configured" for arm in (check.verdict.base, check.verdict.head))
    if not check.changed:
        return (Name(base), " against ", Name(head), ", and the collectives are the same", *_append_throughput(check))
    differ = f", and the collectives differ in {_count_workloads(check.changed, check)}"
    return (Name(base), " against ", Name(head), differ, *_append_throughput(check))


def _accepted_headline(check: Check) -> Words:
    declared = [entry for entry in check.entries if any(finding.accepted for finding in entry.findings)]
    scope = f" in {_count_workloads(declared, check)}, declared as intended"
    return (*_describe_worst_change(declared, status=None), scope, *_append_throughput(check))


def _improved_headline(check: Check) -> Words:
    changed = [entry for entry in check.entries if entry.findings]
    scope = f" in {_count_workloads(changed, check)}; this is no regression"
    return (*_describe_worst_change(changed, status=None), scope, *_append_throughput(check))


def _faster_headline(check: Check) -> Words:
    faster = check.with_answer(ThroughputAnswer.FASTER)
    best = min(faster, key=_get_estimate_pct)
    return (
        *_describe_step_change(best, faster, check),
        *_append_wall([best]),
        "; the sharding is unchanged",
    )


def _get_estimate_pct(entry: WorkloadSection) -> float:
    """Return the change of the median step time in percent; 0 if unknown. It is negative if head is faster."""
    return (entry.throughput.estimate_pct or 0.0) if entry.throughput else 0.0


def _identical_headline(check: Check) -> Words:
    sentence = f"base and head run the same operators and collectives in {_count_workloads(check.entries, check)}"
    return (sentence, *_append_throughput(check))


def _unchanged_headline(check: Check) -> Words:
    """Return that the sharding is unchanged, and what is known about throughput."""
    sentence = f"the sharding is unchanged in {_count_workloads(check.entries, check)}"
    throughput = _append_throughput(check)
    if throughput or check.is_passing_but_unproven:  # then the headline already has its reason
        return (sentence, *throughput)
    return (sentence, _describe_untimed_difference(check))


def _describe_untimed_difference(check: Check) -> str:
    """Return that nothing was timed, and in how many workloads head's step runs other operators than base's step."""
    differing = [entry for entry in check.entries if entry.has_other_operators]
    if not differing:
        return "; step times were not measured"
    scope = "" if len(differing) == len(check.entries) else f" in {_count_workloads(differing, check)}"
    return f"; head runs other operators than base{scope}, and step times were not measured"


def _unconcerned_headline(check: Check) -> Words:
    proven = check.verdict.verdict == "PASS"
    end = ", and stored runs of the base loaded none of the changed files" if proven else ", so nothing was measured"
    return (f"no changed file matches the paths of a workload{end}",)


def _describe_slowest(check: Check) -> Words:
    return _describe_step_change(check.slower[0], check.slower, check)


def _describe_step_change(worst: WorkloadSection, changed: Sequence[WorkloadSection], check: Check) -> Words:
    """Return text like ``a training step is 46.7% slower [+38.2, +55.9] than base in 1 of 2 timed workloads``.

    ``worst`` is the workload with the largest change, whose numbers are given. ``changed``: all workloads that are
    counted.
    """
    section = worst.throughput
    change_text = f"{describe_change(section)} than {describe_reference(section)}" if section else "slower"
    up_to = "up to " if len(changed) > 1 else ""
    scope = _count_timed_workloads(changed, check)
    if section and select_mean_only_test(section):
        return (f"a training step is on average {up_to}{change_text} in {scope}, {explain_mean_only(section)}",)
    untimed_base = " (base was not timed)" if section and section.by == "stored" else ""
    return (f"a training step is {up_to}{change_text} in {scope}{untimed_base}",)


def _append_wall(entries: Sequence[WorkloadSection]) -> Words:
    """Return the wall that explains the change of the first entry, such as ``(cause: communication)``; () if the wall
    is unknown.

    If only a few steps are slow, the wall is the part of the step in which they stall. The line below the table of step
    times shows how much of the change the wall explains.
    """
    section = entries[0].throughput if entries else None
    if section is None or section.wall_kind is None:
        return ()
    if select_mean_only_test(section):
        return (f" (in {_STALL_PLACES[section.wall_kind]})",)
    return (f" (cause: {_WALL_NAMES.get(section.wall_kind, section.wall_kind)})",)


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


_HEADLINES: dict[State, Callable[[Check], Words]] = {
    State.SHARDING_FAIL: _sharding_fail_headline,
    State.BOTH_FAIL: _both_fail_headline,
    State.THROUGHPUT_FAIL: _throughput_fail_headline,
    State.HEAD_BREAKS: _head_breaks_headline,
    State.NEITHER_RUNS: _neither_runs_headline,
    State.BASE_BREAKS: _base_breaks_headline,
    State.FOREIGN_CODE: _foreign_code_headline,
    State.DOUBTFUL_CRASH: _doubtful_crash_headline,
    State.NO_RECORD: _no_record_headline,
    State.ENVIRONMENT: _environment_headline,
    State.UNTIMED: _untimed_headline,
    State.UNMEASURED: _unmeasured_headline,
    State.TRAINS_DIFFERENTLY: _trains_differently_headline,
    State.REVIEW: _review_headline,
    State.INCONCLUSIVE: _inconclusive_headline,
    State.NOT_JUDGED: _not_judged_headline,
    State.ACCEPTED: _accepted_headline,
    State.IMPROVED: _improved_headline,
    State.FASTER: _faster_headline,
    State.IDENTICAL: _identical_headline,
    State.UNCHANGED: _unchanged_headline,
    State.UNCONCERNED: _unconcerned_headline,
}
"""State of a check -> function that returns its headline."""


def _describe_worst_change(entries: Sequence[WorkloadSection], status: Status | None) -> Words:
    """Return text like ``all-to-all replaced by gather and sum (all-to-all on `ep`: 5 per layer → 0)``.

    It is about the first finding with ``status``, or about the first finding if ``status`` is None. Without such a
    finding, it is the first reason.
    """
    for entry in entries:
        for finding in entry.findings:
            if status is None or finding.status == status:
                line = _select_clearest_line(entry, finding)
                return (
                    UntrustedText(clip(finding.pattern, PATTERN_CHARACTERS)),
                    *((" (", *_describe_line_change(line), ")") if line else ()),
                )
    return ("the program has changed", *_append_first_reason(entries))


def _select_clearest_line(entry: WorkloadSection, finding: Finding) -> CollectiveLine | None:
    """Return the line of collectives that shows a finding best; None if no collective changed.

    Lines on the axes of the finding are preferred, then lines whose count decreased, then the line with the largest
    change in bytes.
    """
    axes = _AXIS_SEPARATOR.split(finding.axis)
    candidates = [line for line in entry.changed if line.axis in axes] or entry.changed

    def sort_key(line: CollectiveLine) -> tuple[bool, int]:
        is_decreased = line.head.count < line.base.count
        return not is_decreased, -abs(line.head.bytes - line.base.bytes)

    return min(candidates, key=sort_key, default=None)


def _describe_line_change(line: CollectiveLine) -> Words:
    """Return how the count of a collective changed, such as ``all-to-all on `ep`: 5 per layer → 0``.

    If only a few layers lost the collective, these layers are named. If the texts of the counts do not differ, the
    total counts are given.
    """
    if missing := line.list_missing_layers():
        names: list[str] = []
        for layer in missing:
            names += [", ", Name(layer)] if names else [Name(layer)]
        usual_count = line.describe_count(line.base)
        return (kind_words(line.kind), " on ", Name(line.axis), f": {usual_count} → 0 in ", *names)
    base_count, head_count = line.describe_count(line.base), line.describe_count(line.head)
    if line.base.count == line.head.count or base_count == head_count:
        base_count, head_count = str(line.base.count), str(line.head.count)
    if line.base.count == line.head.count:
        return (kind_words(line.kind), " on ", Name(line.axis), f": still {head_count}, but with other bytes or layers")
    return (
        kind_words(line.kind),
        " on ",
        Name(line.axis),
        f": {base_count or line.base.count} → {head_count or line.head.count}",
    )


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
    return (": ", UntrustedText(reasons[0][:REASON_CHARACTERS].rstrip(". "))) if reasons else ()


QUIET_OUTCOMES: tuple[Outcome, ...] = ("short", "diverged")
"""Outcomes of a head that ended without an error. The headline then has the reason, because no log has one."""
_BASE_OUTCOMES: dict[Outcome, str] = {"short": "runs all its steps", "diverged": "trains"}
"""Outcome of head -> what base does instead. For the other outcomes, base "does not" crash or hang."""
OUTCOMES: dict[Outcome, str] = {
    "crashed": "crashes",
    "hung": "hangs",
    "no_record": "ends without a result",
    "bad_record": "ends without a result",
    "short": "stops before its last step",
    "diverged": "does not train",
}
"""Outcome of head -> how head fails, as a predicate."""


def _find_failed_head(entry: WorkloadSection) -> Run | None:
    """Return head's failed static run, else head's last failed timed run; None if no run of head failed."""
    return next((run for run in entry.failed if run.arm.name == "head"), None)


def _describe_failure(entry: WorkloadSection, run: Run | None) -> str:
    """Return how the head of ``entry`` fails. ``run``: head's failed run; None if no run of head failed."""
    if run is None:
        return "fails" if entry.head or entry.timed.runs else "was not run"
    return OUTCOMES.get(run.outcome, "fails")


def overrides(arm: Arm) -> str:
    """Return the overrides of an arm, such as ``dispatcher=allgather``; '' if the arm has none."""
    return " ".join(f"{key}={value}" for key, value in arm.overrides.items())
