"""The answer of a search on exact values: every change, its commits, and the findings of the ledgers."""

from collections.abc import Mapping, Sequence

from regbot.bisect import blame, exact, exact_search
from regbot.bisect.context import BisectionSetup
from regbot.bisect.exact_search import ExactSpan, ValueChange
from regbot.bisect.outline import build_outline, find_parent, load_run
from regbot.judge.sharding import NotComparable, judge_ledgers
from regbot.records.bisection import Bisection, BisectionOutcome, Candidate, Change, Observation, PointSummary
from regbot.records.run import Run
from regbot.records.verdict import GRAVITY, Finding
from regbot.text.clip import clip_message


def exact_answer(setup: BisectionSetup, observations: Sequence[Observation]) -> Bisection:
    """Return the answer that the values give, whether or not the search has finished."""
    header, span = setup.header, setup.exact_span
    entries = header.entries or [""]
    reasons: list[str] = []
    measurable = []
    for entry in entries:
        _, broken = exact_search.class_values(span, entry, observations)
        failed_ends = [end for end in (span.classes[0], span.classes[-1]) if end in broken]
        for end in failed_ends:
            name = "good" if end == span.classes[0] else "bad"
            workload = f" of {entry}" if entry else ""
            reasons.append(f"{name}{workload} cannot be measured: {broken[end].reason}")
        measurable += [entry] if not failed_ends else []
    if not measurable:
        places = _build_places(setup, observations)
        return build_outline(header, observations, "unmeasurable", reasons).model_copy(update={"places": places})
    entries = measurable
    value_changes = [
        change
        for entry in entries
        for change in exact_search.find_changes(span, entry, observations, setup.expand_merge_exact)
    ]
    changes = _group_changes(setup, observations, value_changes)
    remaining_requests = exact_search.next_requests(span, entries, observations, (), setup.expand_merge_exact, 2**31)
    ends_differ = _ends_differ(span, entries, observations)
    outcome: BisectionOutcome
    if remaining_requests:
        outcome = "undecided"
    elif changes:
        outcome = "culprit"
    else:
        outcome = "undecided" if ends_differ or reasons else "none"
    if remaining_requests:
        reasons += _explain_open_search(setup, entries, observations)
    elif not changes and ends_differ:
        reasons.append(
            "no single commit of this history explains the values; leave out --full to search the first parents only"
        )
    elif not changes and reasons:
        reasons.append(
            "good and bad agree in everything else that was compared, so it is not known whether they differ"
        )
    elif not changes:
        same = (
            "the ledgers of good and bad are the same" if header.on == "ledger" else "good and bad have the same value"
        )
        hint = "; if only the step time changed, search with --on time" if header.on == "ledger" else ""
        reasons.append(f"{same}: there is nothing to find{hint}")
    if not remaining_requests:
        reasons += _explain_unresolved_merges(setup, observations, value_changes)
    first = changes[0] if changes else None
    is_sole = first is not None and len(first.candidates) == 1
    return build_outline(header, observations, outcome, reasons).model_copy(
        update={
            "culprit": first.candidates[0].point.commit if first is not None and is_sole else None,
            "version": first.candidates[0].point.version if first is not None and is_sole else "",
            "candidates": first.candidates if first is not None else [],
            "changes": changes,
            "places": _build_places(setup, observations),
            "blame": blame.exact_blame(header, observations, outcome),
        }
    )


def _explain_open_search(
    setup: BisectionSetup, entries: Sequence[str], observations: Sequence[Observation]
) -> list[str]:
    """Return the reasons for a search that stopped before its end: what is left to search, and whether a limit ended
    it."""
    span, most_runs = setup.exact_span, setup.header.most_runs
    may_continue = exact_search.next_requests(span, entries, observations, (), setup.expand_merge_exact, most_runs)
    limit = "" if may_continue else f" (limit: {most_runs} measurements)"
    reasons = [f"the search stopped before its end{limit}; continue it with --resume"]
    if span.affected is not None:
        return reasons
    for entry in entries:
        states, broken = exact_search.class_values(span, entry, observations)
        for step in exact.differing_neighbours(span.classes, states):
            if len(step.candidates) > 1:
                failures = sum(place in broken for place in step.candidates)
                first, last = (span.points[place].name for place in (step.before, step.candidates[-1]))
                reasons.append(
                    f"the change is after {first}, in one of {len(step.candidates)} points up to {last}; {failures} of "
                    "them could not be measured"
                )
    return list(dict.fromkeys(reasons))


def _ends_differ(span: ExactSpan, entries: Sequence[str], observations: Sequence[Observation]) -> bool:
    ends = (span.classes[0], span.classes[-1])
    values = [exact_search.class_values(span, entry, observations)[0] for entry in entries]
    return any(states.get(ends[0]) != states.get(ends[1]) for states in values)


def _explain_unresolved_merges(
    setup: BisectionSetup, observations: Sequence[Observation], value_changes: Sequence[ValueChange]
) -> list[str]:
    """Return a reason for each culprit merge whose branch could not be searched.

    If the two ends of a branch have the same value, the branch did not make the change, and no reason is needed.
    """
    reasons = []
    for culprit in (
        innermost for change in value_changes for innermost in change.innermost() if len(innermost.candidates) == 1
    ):
        merge = culprit.span.points[culprit.candidates[0]]
        branch = setup.expand_merge_exact(merge)
        if branch is None:
            continue
        states, broken = exact_search.class_values(branch, culprit.entry, observations)
        ends = (branch.classes[0], branch.classes[-1])
        if all(end in states for end in ends) and states[ends[0]] == states[ends[1]]:
            continue
        failures = "; ".join(f"{branch.points[end].name}: {broken[end].reason}" for end in ends if end in broken)
        text = f"the culprit among the commits that {merge.name} merged is not known"
        reasons.append(f"{text} ({failures})" if failures else text)
    return list(dict.fromkeys(reasons))


def _group_changes(
    setup: BisectionSetup, observations: Sequence[Observation], value_changes: Sequence[ValueChange]
) -> list[Change]:
    """Return one change for each culprit, with all workloads that it changed.

    Changes that a later commit undid come last. The other changes are ordered by severity, the most severe first.
    """
    groups: dict[tuple[str, ...], list[ValueChange]] = {}
    for change in (innermost for value_change in value_changes for innermost in value_change.innermost()):
        keys = tuple(change.span.points[place].key for place in change.candidates)
        groups.setdefault(keys, []).append(change)
    changes = [_build_change(setup, observations, group) for group in groups.values()]
    worst = {
        id(change): min((GRAVITY.index(f.status) for f in change.findings), default=len(GRAVITY)) for change in changes
    }
    return sorted(changes, key=lambda change: (change.undone, worst[id(change)]))


def _build_change(setup: BisectionSetup, observations: Sequence[Observation], group: Sequence[ValueChange]) -> Change:
    """Build one change from the value changes of a group: the same commits, in several workloads."""
    first_change = group[0]
    states, broken = exact_search.class_values(first_change.span, first_change.entry, observations)
    measured = max(
        (place for place in first_change.candidates if place in states), default=first_change.span.classes[-1]
    )
    before, after = states[first_change.before], states[measured]
    undone = all(_is_undone(observations, change) for change in group)
    findings: list[Finding] = []
    for change in group:
        for finding in _list_findings(setup, observations, change):
            if (finding.pattern, finding.axis) not in {(other.pattern, other.axis) for other in findings}:
                findings.append(finding)
    candidates = [
        Candidate(
            point=first_change.span.points[place],
            measurable=place in states,
            reason=broken[place].reason if place in broken else "",
        )
        for place in sorted(first_change.candidates, key=lambda place: place not in states)
    ]
    entries = [change.entry for change in group if change.entry]
    description = ", ".join(dict.fromkeys(f"{finding.pattern} ({finding.status})" for finding in findings))
    if setup.header.on == "command":
        description = f"{before} before it, {after} with it"
    text = description or "the ledger changed, but it matches no named pattern"
    text += "; a later commit undid it" if undone else ""
    span = first_change.span
    earliest, point_before = span.points[min(first_change.candidates)], span.points[first_change.before]
    parent, left_out = find_parent(setup.options.repo, earliest, point_before, span.class_by_key)
    return Change(
        candidates=candidates,
        parent=parent,
        left_out=left_out,
        merge=first_change.span.merge or None,
        entries=entries,
        findings=findings,
        before=before,
        after=after,
        undone=undone,
        confirmed="exact",
        text=clip_message(text),
    )


def _is_undone(observations: Sequence[Observation], change: ValueChange) -> bool:
    """Return whether a later point has the same value as the point before the change."""
    states, _ = exact_search.class_values(change.span, change.entry, observations)
    measured = _place_with_new_value(change, states)
    return any(state == states[change.before] for place, state in states.items() if place > measured)


def _place_with_new_value(change: ValueChange, states: Mapping[int, str]) -> int:
    """Return the measured candidate of a change. If no candidate is measured, return the last place, which is bad."""
    return max((place for place in change.candidates if place in states), default=change.span.classes[-1])


def _list_findings(setup: BisectionSetup, observations: Sequence[Observation], change: ValueChange) -> list[Finding]:
    """Return the findings of the ledger diff between the point before the change and the point after it."""
    if setup.header.on != "ledger":
        return []
    states, _ = exact_search.class_values(change.span, change.entry, observations)
    measured = _place_with_new_value(change, states)
    runs = [_load_run(setup, observations, change, place) for place in (change.before, measured)]
    base, head = (run.ledger if run is not None else None for run in runs)
    if base is None or head is None:
        return []
    try:
        return judge_ledgers(base, head, setup.config).findings
    except NotComparable:
        return []


def _load_run(
    setup: BisectionSetup, observations: Sequence[Observation], change: ValueChange, place: int
) -> Run | None:
    for observation in observations:
        if (
            observation.entry == change.entry
            and observation.usable
            and change.span.class_by_key.get(observation.point) == place
        ):
            return load_run(setup.options.out, observation)
    return None


def _build_places(setup: BisectionSetup, observations: Sequence[Observation]) -> list[PointSummary]:
    """Return the points for the picture: how often each was measured, and the culprit probability of each candidate."""
    span = setup.exact_span
    entries = setup.header.entries or [""]
    probabilities: dict[int, float] = {}
    for entry in entries:
        for change in exact_search.find_changes(span, entry, observations, setup.expand_merge_exact):
            for place in change.candidates:
                probabilities[place] = max(probabilities.get(place, 0.0), 1 / len(change.candidates))
    counts: dict[int, int] = {}
    broken: set[int] = set()
    for observation in observations:
        code_class = span.class_by_key.get(observation.point)
        if code_class is not None:
            counts[code_class] = counts.get(code_class, 0) + 1
            if not observation.usable:
                broken.add(code_class)
    firsts = sorted(set(span.classes))
    return [
        PointSummary(
            key=span.points[code_class].key,
            probability=probabilities.get(code_class, 0.0),
            runs=counts.get(code_class, 0),
            measurable=code_class not in broken,
        )
        for code_class in firsts
    ]
