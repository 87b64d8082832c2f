"""What a reader is told first: the verdict's sign, its word, and one sentence of why.

One small function words each state, so that every sentence of the comment can be found, tested and changed alone. The
same words serve the comment and the page: a sentence is a tuple in which what somebody else wrote is marked.
"""

import re
from collections.abc import Callable, Sequence

from regbot.records.run import Arm, Outcome
from regbot.records.verdict import Finding, Status
from regbot.report.markdown import Name, Said, Words
from regbot.report.measured import Line, Measured, kind_words
from regbot.report.quantities import at_most
from regbot.report.state import Check, State
from regbot.report.throughput import Answer, able, has_times, only_the_mean, slower

ICONS: dict[Status, str] = {"PASS": "✅", "FAIL": "❌", "INVALID": "⛔", "REVIEW": "⚠️", "INCONCLUSIVE": "❔"}

PATTERN_CHARACTERS = 120
WALL_CHARACTERS = 300

_AXES = re.compile(r" -> |, ")
"""Between the axes of a finding that has several."""


def headline(check: Check) -> Words:
    """The verdict in one sentence, without its icon and word."""
    return _HEADLINES[check.state](check)


def word(check: Check) -> str:
    """The verdict in one word."""
    return "SHOWN, NOT JUDGED" if check.state is State.SHOWN else check.verdict.verdict


def icon(check: Check) -> str:
    """The verdict in one sign."""
    return "🔎" if check.state is State.SHOWN else ICONS[check.verdict.verdict]


def _sharding_fail(check: Check) -> Words:
    failing = check.decisive
    return (*_worst_change(failing, "FAIL"), f", in {_share(failing, check)}")


def _both_fail(check: Check) -> Words:
    return (*_sharding_fail(check), "; and ", *_slowest(check))


def _throughput_fail(check: Check) -> Words:
    return (*_slowest(check), *_the_wall(check.slower))


def _head_breaks(check: Check) -> Words:
    failing = check.decisive
    how = _outcome(failing[0]) if failing else "fails"
    return (f"the head {how} in {_share(failing, check)}, the base does not",)


def _neither_runs(check: Check) -> Words:
    invalid = check.decisive
    timed = all(run is not None and run.outcome == "ok" for entry in invalid for run in (entry.base, entry.head))
    when = " when they are timed" if timed else ""
    return (f"base and head both fail to run{when} in {_share(invalid, check)}, so nothing can be compared",)


def _base_breaks(check: Check) -> Words:
    return (f"the base cannot be measured in {_share(check.decisive, check)}, so there is nothing to compare with",)


def _foreign_code(check: Check) -> Words:
    invalid = check.decisive
    packages = [name for entry in invalid for name in entry.foreign]
    return (
        "the code that ran is not the commit's code: ",
        Name(packages[0] if packages else ""),
        f" came from outside the checkout, in {_share(invalid, check)}",
    )


def _no_record(check: Check) -> Words:
    invalid = check.decisive
    first = invalid[0]
    arm = next(
        (name for name, run in (("base", first.base), ("head", first.head)) if run is None or run.outcome != "ok"), ""
    )
    return (f"the {arm} ended without a usable record in {_share(invalid, check)}, so its collectives are unknown",)


def _environment(check: Check) -> Words:
    lacking = f"this machine lacks the dispatcher that was asked for in {_share(check.decisive, check)}"
    return (lacking, "; times of another are shown and decide nothing")


def _untimed(check: Check) -> Words:
    invalid = check.decisive
    return ("the step times could not be measured in ", _share(invalid, check), *_because(invalid))


def _unmeasured(check: Check) -> Words:
    invalid = check.decisive
    if not check.entries:
        return ("there was no workload to measure",)
    return ("could not be measured in ", _share(invalid, check), *_because(invalid))


def _trains_differently(check: Check) -> Words:
    said = [reason for entry in check.decisive for reason in entry.verdict.validity.reasons]
    how: Words = (Said(said[0][:WALL_CHARACTERS].rstrip(". ")),) if said else ("head does not train the same",)
    return (*how, f", in {_share(check.decisive, check)}; a person has to say whether it is meant")


def _review(check: Check) -> Words:
    waiting = check.decisive
    return (
        *_worst_change(waiting, "REVIEW"),
        f", in {_share(waiting, check)}; a person has to say whether it is meant",
    )


def _inconclusive(check: Check) -> Words:
    undecided = check.decisive
    held = "" if check.changed else "the sharding is unchanged; "
    timed = [entry.throughput for entry in undecided if entry.throughput]
    if not any(has_times(section) for section in timed):
        return (f"{held}throughput is not timed yet in {_timed_share(undecided, check)}",)
    power = next((f": {words}" for section in timed if (words := able(section))), "")
    return (f"{held}throughput was measured, not decided, in {_timed_share(undecided, check)}{power}",)


def _shown(check: Check) -> Words:
    base, head = (overrides(arm) or "as configured" for arm in (check.verdict.base, check.verdict.head))
    if not check.changed:
        return (Name(base), " against ", Name(head), ", and the collectives are the same", *_and_throughput(check))
    differ = f", and the collectives differ in {_share(check.changed, check)}"
    return (Name(base), " against ", Name(head), differ, *_and_throughput(check))


def _accepted(check: Check) -> Words:
    declared = [entry for entry in check.entries if any(finding.accepted for finding in entry.findings)]
    told = f", in {_share(declared, check)}, declared as intended"
    return (*_worst_change(declared, None), told, *_and_throughput(check))


def _improved(check: Check) -> Words:
    noted = [entry for entry in check.entries if entry.findings]
    told = f", in {_share(noted, check)}, and that is no regression"
    return (*_worst_change(noted, None), told, *_and_throughput(check))


def _faster(check: Check) -> Words:
    best = min(check.that(Answer.FASTER), key=lambda entry: (entry.throughput and entry.throughput.estimate_pct) or 0.0)
    return (
        *_pace(best, check.that(Answer.FASTER), check),
        *_the_wall([best]),
        "; the sharding is unchanged",
    )


def _identical(check: Check) -> Words:
    told = f"base and head dispatch the same device program in {_share(check.entries, check)}"
    return (told, *_and_throughput(check))


def _unchanged(check: Check) -> Words:
    told = f"the sharding is unchanged in {_share(check.entries, check)}"
    throughput = _and_throughput(check)
    return (told, *(throughput or ("; the device program differs",)))


def _slowest(check: Check) -> Words:
    return _pace(check.slower[0], check.slower, check)


def _pace(worst: Measured, moved: Sequence[Measured], check: Check) -> Words:
    """``a training step is 46.7% slower [+38.2, +55.9] in 1 of 2 timed workloads``."""
    section = worst.throughput
    told = slower(section) if section else "slower"
    upto = "up to " if len(moved) > 1 else ""
    stalls = ", because a few steps stall," if section and only_the_mean(section) else ""
    return (f"a training step is {upto}{told}{stalls} in {_timed_share(moved, check)}",)


def _the_wall(entries: Sequence[Measured]) -> Words:
    """The name of the wall that the change hit; what it is made of stands below the table."""
    wall = entries[0].throughput.wall if entries and entries[0].throughput else ""
    name, colon, _ = wall.partition(":")
    return (": ", Said(name)) if colon and len(name) <= WALL_CHARACTERS else ()


def _and_throughput(check: Check) -> Words:
    """What a passing check adds on throughput; () where nothing was timed."""
    if faster := check.that(Answer.FASTER):
        return ("; ", *_pace(faster[0], faster, check))
    held = [*check.that(Answer.NO_CHANGE), *check.that(Answer.WITHIN_BOUND)]
    bounds = [entry.throughput.bound_pct for entry in held if entry.throughput and entry.throughput.bound_pct]
    if bounds:
        return (f"; a slowdown above {at_most(max(bounds))} is excluded in {_timed_share(held, check)}",)
    if held:
        return (f"; no change of throughput in {_timed_share(held, check)}",)
    if check.that(Answer.IDENTICAL):
        return ("; nothing that could matter differs, so nothing was timed",)
    return ()


_HEADLINES: dict[State, Callable[[Check], Words]] = {
    State.SHARDING_FAIL: _sharding_fail,
    State.BOTH_FAIL: _both_fail,
    State.THROUGHPUT_FAIL: _throughput_fail,
    State.HEAD_BREAKS: _head_breaks,
    State.NEITHER_RUNS: _neither_runs,
    State.BASE_BREAKS: _base_breaks,
    State.FOREIGN_CODE: _foreign_code,
    State.NO_RECORD: _no_record,
    State.ENVIRONMENT: _environment,
    State.UNTIMED: _untimed,
    State.UNMEASURED: _unmeasured,
    State.TRAINS_DIFFERENTLY: _trains_differently,
    State.REVIEW: _review,
    State.INCONCLUSIVE: _inconclusive,
    State.SHOWN: _shown,
    State.ACCEPTED: _accepted,
    State.IMPROVED: _improved,
    State.FASTER: _faster,
    State.IDENTICAL: _identical,
    State.UNCHANGED: _unchanged,
}


def _worst_change(entries: Sequence[Measured], status: Status | None) -> Words:
    """``expert axis mapped twice, all-to-all on `ep` 5 per layer → 0``."""
    for entry in entries:
        for finding in entry.findings:
            if status is None or finding.status == status:
                line = _telling(entry, finding)
                return (Said(finding.pattern[:PATTERN_CHARACTERS]), *((", ", *_movement(line)) if line else ()))
    return ("what ran has changed", *_because(entries))


def _telling(entry: Measured, finding: Finding) -> Line | None:
    """The line that shows a finding best: of the finding's own axis what got less, else what changed most."""
    axes = _AXES.split(finding.axis)
    own = [line for line in entry.changed if line.axis in axes] or entry.changed
    ranked = sorted(own, key=lambda line: (line.head.count >= line.base.count, -abs(line.head.bytes - line.base.bytes)))
    return ranked[0] if ranked else None


def _movement(line: Line) -> Words:
    before, after = line.each(line.base), line.each(line.head)
    if line.base.count == line.head.count or before == after:
        before, after = str(line.base.count), str(line.head.count)
    if line.base.count == line.head.count:
        return (kind_words(line.kind), " on ", Name(line.axis), f" still {after}, but not the same bytes or layers")
    return (
        kind_words(line.kind),
        " on ",
        Name(line.axis),
        f" {before or line.base.count} → {after or line.head.count}",
    )


def _share(entries: Sequence[Measured], check: Check) -> str:
    return _of(len(entries), len(check.entries), "workload")


def _timed_share(entries: Sequence[Measured], check: Check) -> str:
    """The same among the workloads that have a throughput section; the sharding of others says nothing of time."""
    return _of(len(entries), sum(entry.throughput is not None for entry in check.entries), "timed workload")


def _of(number: int, total: int, noun: str) -> str:
    """``both workloads``, ``all 4 workloads``, ``1 of 4 workloads``, ``the workload``."""
    if number != total:
        return f"{number} of {total} {noun}s"
    return {1: f"the {noun}", 2: f"both {noun}s"}.get(total, f"all {total} {noun}s")


def _because(entries: Sequence[Measured]) -> Words:
    reasons = [reason for entry in entries for reason in entry.reasons]
    return (": ", Said(reasons[0][:WALL_CHARACTERS].rstrip(". "))) if reasons else ()


OUTCOMES: dict[Outcome, str] = {
    "crashed": "crashes",
    "hung": "hangs",
    "no_record": "ends without a record",
    "bad_record": "ends without a record",
    "short": "stops before its last step",
    "diverged": "diverges (its loss is not finite, or the optimizer skips steps)",
}


def _outcome(entry: Measured) -> str:
    """How the head of ``entry`` breaks: by its last static run, else by its last timed one."""
    run = next((run for run in entry.failed if run.arm.name == "head"), None)
    if run is None:
        return "fails" if entry.head or entry.timed.runs else "was not run"
    return OUTCOMES.get(run.outcome, "fails")


def overrides(arm: Arm) -> str:
    """``dispatcher=allgather``: what an arm was told beyond its revision; '' for most."""
    return " ".join(f"{key}={value}" for key, value in arm.overrides.items())
