"""What a reader is told first: the verdict's sign, its word, and one sentence of why.

One small function words each state, so that every sentence of the comment can be found, tested and changed alone. The
same words serve the comment and the page: a sentence is a tuple in which what somebody else wrote is marked.
"""

import re
from collections.abc import Callable, Sequence

from regbot.records.run import Arm, Run
from regbot.records.verdict import Finding, Status
from regbot.report.markdown import Name, Said, Words
from regbot.report.measured import Line, Measured, kind_words
from regbot.report.state import Check, State

ICONS: dict[Status, str] = {"PASS": "✅", "FAIL": "❌", "INVALID": "⛔", "REVIEW": "⚠️", "INCONCLUSIVE": "❔"}

PATTERN_CHARACTERS = 120

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


def _throughput_fail(check: Check) -> Words:
    failing = check.decisive
    return ("a training step is slower in ", _share(failing, check), *_because(failing))


def _head_fails(check: Check) -> Words:
    failing = check.decisive
    how = _outcome(failing[0].head) if failing else "fails"
    return (f"the head {how} in {_share(failing, check)}, the base does not",)


def _both_fail(check: Check) -> Words:
    return (f"base and head both fail to run in {_share(check.of('INVALID'), check)}, so nothing can be compared",)


def _foreign_code(check: Check) -> Words:
    invalid = check.decisive
    packages = [
        name for entry in invalid for run in (entry.base, entry.head) if run and run.code for name in run.code.foreign
    ]
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


def _unmeasured(check: Check) -> Words:
    invalid = check.decisive
    if not check.entries:
        return ("there was no workload to measure",)
    return ("could not be measured in ", _share(invalid, check), *_because(invalid))


def _review(check: Check) -> Words:
    waiting = check.decisive
    return (
        *_worst_change(waiting, "REVIEW"),
        f", in {_share(waiting, check)}; a person has to say whether it is meant",
    )


def _inconclusive(check: Check) -> Words:
    undecided = check.decisive
    return ("measured, not decided, in ", _share(undecided, check), *_because(undecided))


def _shown(check: Check) -> Words:
    base, head = (overrides(arm) or "as configured" for arm in (check.verdict.base, check.verdict.head))
    if not check.changed:
        return (Name(base), " against ", Name(head), ", and the collectives are the same")
    return (Name(base), " against ", Name(head), f", and the collectives differ in {_share(check.changed, check)}")


def _accepted(check: Check) -> Words:
    declared = [entry for entry in check.entries if any(finding.accepted for finding in entry.findings)]
    return (*_worst_change(declared, None), f", in {_share(declared, check)}, declared as intended")


def _improved(check: Check) -> Words:
    noted = [entry for entry in check.entries if entry.findings]
    return (*_worst_change(noted, None), f", in {_share(noted, check)}, and that is no regression")


def _identical(check: Check) -> Words:
    return (f"base and head dispatch the same device program in {_share(check.entries, check)}",)


def _unchanged(check: Check) -> Words:
    return (f"the sharding is unchanged in {_share(check.entries, check)}; the device program differs",)


_HEADLINES: dict[State, Callable[[Check], Words]] = {
    State.SHARDING_FAIL: _sharding_fail,
    State.THROUGHPUT_FAIL: _throughput_fail,
    State.HEAD_FAILS: _head_fails,
    State.BOTH_FAIL: _both_fail,
    State.FOREIGN_CODE: _foreign_code,
    State.NO_RECORD: _no_record,
    State.UNMEASURED: _unmeasured,
    State.REVIEW: _review,
    State.INCONCLUSIVE: _inconclusive,
    State.SHOWN: _shown,
    State.ACCEPTED: _accepted,
    State.IMPROVED: _improved,
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
    total = len(check.entries)
    noun = "workload" if total == 1 else "workloads"
    return f"all {total} {noun}" if len(entries) == total > 1 else f"{len(entries)} of {total} {noun}"


def _because(entries: Sequence[Measured]) -> Words:
    reasons = [reason for entry in entries for reason in entry.reasons]
    return (": ", Said(reasons[0])) if reasons else ()


def _outcome(run: Run | None) -> str:
    words = {
        "crashed": "crashes",
        "hung": "hangs",
        "no_record": "ends without a record",
        "bad_record": "ends without a record",
    }
    return words.get(run.outcome, "fails") if run else "was not run"


def overrides(arm: Arm) -> str:
    """``dispatcher=allgather``: what an arm was told beyond its revision; '' for most."""
    return " ".join(f"{key}={value}" for key, value in arm.overrides.items())
