"""The answer of a search on exact values: every change, its commits, and the findings of the ledgers."""

from collections.abc import Sequence
from pathlib import Path

from regbot.bisect.exact import ValueChange, compared_entries, find_changes, innermost, measured_states, next_request
from regbot.bisect.prepare import BisectionSetup
from regbot.bisect.span import Span, find_broken
from regbot.judge.program import judge_program
from regbot.judge.sharding import NotComparable, judge_ledgers
from regbot.records.bisection import BisectionOutcome, Candidate, Change, Observation
from regbot.records.files import RecordError, read_record
from regbot.records.run import Run
from regbot.records.verdict import GRAVITY, Finding
from regbot.workloads.checkout.changed_lines import list_changed_lines


def exact_answer(
    setup: BisectionSetup, observations: Sequence[Observation]
) -> tuple[BisectionOutcome, list[str], list[Change]]:
    """Return the outcome, the reasons, and the changes, the most severe first.

    The outcome is "unmeasurable" if good or bad failed in every workload. It is "culprit" if a change was found and no
    measurement is left, and "none" if good and bad agree in all workloads. Otherwise it is "undecided".
    """
    entries, reasons = _split_entries(setup, observations)
    if not entries:
        return "unmeasurable", reasons, []
    value_changes = [
        change
        for entry in entries
        for change in innermost(find_changes(setup.span, entry, observations, setup.expand_merge))
    ]
    changes = _group_changes(setup, observations, value_changes)
    if next_request(setup.span, entries, observations, setup.expand_merge) is not None:
        limit = ""
        if len(observations) >= setup.header.most_runs:
            limit = f" (limit: {setup.header.most_runs} measurements, see --runs)"
        return "undecided", [*reasons, f"the search stopped before its end{limit}; continue it with --resume"], changes
    if changes:
        return "culprit", [*reasons, *_explain_unresolved_merges(setup, observations, value_changes)], changes
    if reasons:  # some workloads could not be measured at good or bad
        reasons.append("good and bad agree in everything else, so it is not known whether they differ")
        return "undecided", reasons, []
    if setup.header.on != "ledger":
        return "none", ["good and bad have the same value: there is nothing to find"], []
    same = "the ledgers of good and bad are the same: there is nothing to find"
    return "none", [f"{same}; if only the step time changed, search with --on time"], []


def _split_entries(setup: BisectionSetup, observations: Sequence[Observation]) -> tuple[list[str], list[str]]:
    """Return the workloads whose good and bad commit can be measured, and why the others cannot."""
    entries, reasons = [], []
    for entry in compared_entries(setup.header):
        broken = find_broken(setup.span, observations, entry)
        failed_ends = [(name, end) for name, end in (("good", 0), ("bad", setup.span.last)) if end in broken]
        workload = f" of {entry}" if entry else ""
        reasons += [f"{name}{workload} cannot be measured: {broken[end].reason}" for name, end in failed_ends]
        if not failed_ends:
            entries.append(entry)
    return entries, reasons


def _explain_unresolved_merges(
    setup: BisectionSetup, observations: Sequence[Observation], value_changes: Sequence[ValueChange]
) -> list[str]:
    """Return a reason for each culprit merge whose branch could not be measured at its fork or its tip."""
    reasons = []
    for change in value_changes:
        branch = setup.expand_merge(change.sole_point) if change.sole_point is not None else None
        if branch is None or change.sole_point is None:
            continue
        broken = find_broken(branch, observations, change.entry)
        for end in {0, branch.last} & broken.keys():
            text = f"the culprit among the commits that {change.sole_point.name} merged is not known"
            reasons.append(f"{text} ({branch.points[end].name}: {broken[end].reason})")
    return list(dict.fromkeys(reasons))


def _group_changes(
    setup: BisectionSetup, observations: Sequence[Observation], value_changes: Sequence[ValueChange]
) -> list[Change]:
    """Return one change for each culprit, with all workloads that it changed."""
    groups: dict[tuple[str, ...], list[ValueChange]] = {}
    for change in value_changes:
        keys = tuple(change.span.points[place].key for place in change.candidates)
        groups.setdefault(keys, []).append(change)
    changes = [_build_change(setup, observations, group) for group in groups.values()]
    return sorted(changes, key=_severity_rank)


def _severity_rank(change: Change) -> int:
    """Return the position of the change's most severe finding in ``GRAVITY``; a change without findings comes last."""
    return min((GRAVITY.index(finding.status) for finding in change.findings), default=len(GRAVITY))


def _build_change(setup: BisectionSetup, observations: Sequence[Observation], group: Sequence[ValueChange]) -> Change:
    """Build one change from the same commits in several workloads. A finding of several workloads is listed once."""
    first = group[0]
    span = first.span
    states = measured_states(span, first.entry, observations)
    broken = find_broken(span, observations, first.entry)
    findings: dict[tuple[str, str], Finding] = {}
    for change in group:
        for finding in _list_findings(setup, observations, change):
            findings.setdefault((finding.pattern, finding.axis), finding)
    candidates = [
        Candidate(
            point=span.points[place], measurable=place in states, reason=broken[place].reason if place in broken else ""
        )
        for place in reversed(first.candidates)  # the measured one first
    ]
    return Change(
        candidates=candidates,
        parent=parent_key(span, candidates[-1], span.points[first.before].key),
        merge=span.merge or None,
        entries=[change.entry for change in group if change.entry],
        findings=list(findings.values()),
        before=states[first.before],
        after=states[first.after],
        confirmed="exact",  # exact values need no confirmation by pairs of runs
    )


def parent_key(span: Span, earliest: Candidate, before: str) -> str:
    """Return the key of the point that a culprit is compared with: its first parent if that runs the code of the point
    ``before``, else ``before``."""
    parents = earliest.point.parents if not earliest.point.version else []
    is_same = bool(parents) and span.place_by_key.get(parents[0]) == span.place_by_key[before]
    return parents[0] if is_same else before


def _list_findings(setup: BisectionSetup, observations: Sequence[Observation], change: ValueChange) -> list[Finding]:
    """Return the findings of the ledger diff of the two places around the change; [] if no ledgers are compared."""
    if setup.header.on != "ledger":
        return []
    runs = [_load_run(setup.options.out, observations, change, place) for place in (change.before, change.after)]
    base, head = (run.ledger if run is not None else None for run in runs)
    if base is None or head is None:
        return []
    points = [change.span.points[place] for place in (change.before, change.after)]
    try:
        changed_lines = list_changed_lines(setup.options.repo, points[0].commit, points[1].commit)
        sharding = judge_ledgers(base, head, setup.config, changed_lines)
    except NotComparable:
        return []
    program = judge_program(base, head, setup.config, changed_lines=changed_lines)
    return [*sharding.findings, *(program.findings if program is not None else ())]


def _load_run(out: Path, observations: Sequence[Observation], change: ValueChange, place: int) -> Run | None:
    """Return the run at ``place`` of the workload that changed; None if its file is missing."""
    for observation in observations:
        is_at_place = change.span.place_by_key.get(observation.point) == place
        if observation.usable and observation.entry == change.entry and is_at_place:
            return load_run(out, observation)
    return None


def load_run(out: Path, observation: Observation) -> Run | None:
    """Load the run of an observation from its file ``record``; None if there is no such file or it cannot be read."""
    try:
        return read_record(out / observation.record, Run) if observation.record else None
    except RecordError:
        return None
