"""The answer of a search on exact values: every change, its commits, and the findings of the ledgers.

Neighbouring points that run the same code form a place, which is the number of its first point. ``states`` maps a place
to its measured value, and ``broken`` maps a place that could not be measured to its last failure. An entry is a
workload on its mesh; '' if a command is measured.
"""

from collections import Counter
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

_UNLIMITED = 2**31
"""A number of measurements that no search reaches."""


def exact_answer(setup: BisectionSetup, observations: Sequence[Observation]) -> Bisection:
    """Return the answer that the values give, whether or not the search has finished.

    The outcome is "unmeasurable" if good or bad failed in every workload. It is "culprit" if a change was found and no
    measurement is left, and "none" if good and bad agree in all workloads. Otherwise it is "undecided".
    """
    header, span = setup.header, setup.exact_span
    reasons: list[str] = []
    # The workloads whose good and bad commit can both be measured.
    entries = []
    for entry in exact_search.compared_entries(header):
        _, broken = exact_search.place_values(span, entry, observations)
        failed_ends = [end for end in span.ends if end in broken]
        for end in failed_ends:
            name = "good" if end == span.ends[0] else "bad"
            workload = f" of {entry}" if entry else ""
            reasons.append(f"{name}{workload} cannot be measured: {broken[end].reason}")
        if not failed_ends:
            entries.append(entry)
    if not entries:
        places = _build_places(setup, observations)
        return build_outline(header, observations, "unmeasurable", reasons).model_copy(update={"places": places})
    value_changes = [
        change
        for entry in entries
        for change in exact_search.find_changes(span, entry, observations, setup.expand_merge_exact)
    ]
    changes = _group_changes(setup, observations, value_changes)
    # The requests are those without a limit of measurements. A search that reached its limit is not finished.
    remaining_requests = exact_search.next_requests(
        span, entries, observations, pending=(), expand_merge=setup.expand_merge_exact, most_runs=_UNLIMITED
    )
    outcome: BisectionOutcome
    if remaining_requests:
        outcome = "undecided"
        reasons += _explain_open_search(setup, entries, observations)
    elif changes:
        outcome = "culprit"
    elif _ends_differ(span, entries, observations):
        outcome = "undecided"
        reasons.append(
            "no single commit of this history explains the values; leave out --full to search the first parents only"
        )
    elif reasons:  # some workloads could not be measured at good or bad
        outcome = "undecided"
        reasons.append(
            "good and bad agree in everything else that was compared, so it is not known whether they differ"
        )
    else:
        outcome = "none"
        same = (
            "the ledgers of good and bad are the same" if header.on == "ledger" else "good and bad have the same value"
        )
        hint = "; if only the step time changed, search with --on time" if header.on == "ledger" else ""
        reasons.append(f"{same}: there is nothing to find{hint}")
    if not remaining_requests:
        reasons += _explain_unresolved_merges(setup, observations, value_changes)
    first_change = changes[0] if changes else None
    candidates = first_change.candidates if first_change is not None else []
    culprit = candidates[0].point if len(candidates) == 1 else None
    return build_outline(header, observations, outcome, reasons).model_copy(
        update={
            "culprit": culprit.commit if culprit is not None else None,
            "version": culprit.version if culprit is not None else "",
            "candidates": candidates,
            "changes": changes,
            "places": _build_places(setup, observations),
            "blame": blame.exact_blame(header, observations, outcome),
        }
    )


def _explain_open_search(
    setup: BisectionSetup, entries: Sequence[str], observations: Sequence[Observation]
) -> list[str]:
    """Return the reasons for a search that stopped before its end.

    They say what is left to search, and whether the maximum number of measurements ended the search.
    """
    span, most_runs = setup.exact_span, setup.header.most_runs
    may_continue = exact_search.next_requests(
        span, entries, observations, pending=(), expand_merge=setup.expand_merge_exact, most_runs=most_runs
    )
    limit = "" if may_continue else f" (limit: {most_runs} measurements)"
    reasons = [f"the search stopped before its end{limit}; continue it with --resume"]
    if span.affected is not None:  # in a history with branches, a change has no neighbour before and after it
        return reasons
    for entry in entries:
        states, broken = exact_search.place_values(span, entry, observations)
        for step in exact.differing_neighbours(span.place_of_point, states):
            if len(step.candidates) > 1:
                failures = sum(place in broken for place in step.candidates)
                name_before, last_name = span.points[step.before].name, span.points[step.candidates[-1]].name
                reasons.append(
                    f"the change is after {name_before}, in one of {len(step.candidates)} points up to {last_name}; "
                    f"{failures} of them could not be measured"
                )
    return list(dict.fromkeys(reasons))


def _ends_differ(span: ExactSpan, entries: Sequence[str], observations: Sequence[Observation]) -> bool:
    """Return whether good and bad have different values in any of the workloads."""
    good, bad = span.ends
    for entry in entries:
        states, _ = exact_search.place_values(span, entry, observations)
        if states.get(good) != states.get(bad):
            return True
    return False


def _explain_unresolved_merges(
    setup: BisectionSetup, observations: Sequence[Observation], value_changes: Sequence[ValueChange]
) -> list[str]:
    """Return a reason for each culprit merge whose branch could not be searched.

    If the two ends of a branch have the same value, the branch did not make the change, and no reason is needed.
    """
    reasons = []
    for change in _innermost_changes(value_changes):
        merge = change.sole_point
        branch = setup.expand_merge_exact(merge) if merge is not None else None
        if merge is None or branch is None:
            continue
        states, broken = exact_search.place_values(branch, change.entry, observations)
        fork, tip = branch.ends
        if fork in states and tip in states and states[fork] == states[tip]:
            continue
        failures = "; ".join(f"{branch.points[end].name}: {broken[end].reason}" for end in branch.ends if end in broken)
        text = f"the culprit among the commits that {merge.name} merged is not known"
        reasons.append(f"{text} ({failures})" if failures else text)
    return list(dict.fromkeys(reasons))


def _innermost_changes(value_changes: Sequence[ValueChange]) -> list[ValueChange]:
    """Return the changes inside merged branches, and the changes that no merge brought in."""
    return [innermost for change in value_changes for innermost in change.innermost()]


def _group_changes(
    setup: BisectionSetup, observations: Sequence[Observation], value_changes: Sequence[ValueChange]
) -> list[Change]:
    """Return one change for each culprit, with all workloads that it changed.

    Changes that a later commit undid come last. The other changes are ordered by severity, the most severe first.
    """
    groups: dict[tuple[str, ...], list[ValueChange]] = {}
    for change in _innermost_changes(value_changes):
        candidate_keys = tuple(change.span.points[place].key for place in change.candidates)
        groups.setdefault(candidate_keys, []).append(change)
    changes = [_build_change(setup, observations, group) for group in groups.values()]
    return sorted(changes, key=lambda change: (change.undone, _severity_rank(change)))


def _severity_rank(change: Change) -> int:
    """Return the position of the change's most severe finding in ``GRAVITY``; 0 is the most severe.

    A change without findings gets the position after the last one.
    """
    return min((GRAVITY.index(finding.status) for finding in change.findings), default=len(GRAVITY))


def _build_change(setup: BisectionSetup, observations: Sequence[Observation], group: Sequence[ValueChange]) -> Change:
    """Build one change from the value changes of a group: the same commits, in several workloads.

    The values before and after are those of the group's first workload. A finding that several workloads share is
    listed once.
    """
    first_change = group[0]
    states, broken = exact_search.place_values(first_change.span, first_change.entry, observations)
    before, after = states[first_change.before], states[_place_with_new_value(first_change, states)]
    undone = all(_is_undone(observations, change) for change in group)
    finding_by_pattern: dict[tuple[str, str], Finding] = {}
    for change in group:
        for finding in _list_findings(setup, observations, change):
            finding_by_pattern.setdefault((finding.pattern, finding.axis), finding)
    findings = list(finding_by_pattern.values())
    candidates = [
        Candidate(
            point=first_change.span.points[place],
            measurable=place in states,
            reason=broken[place].reason if place in broken else "",
        )
        for place in sorted(first_change.candidates, key=lambda place: place not in states)  # measured ones first
    ]
    entries = [change.entry for change in group if change.entry]
    description = ", ".join(dict.fromkeys(f"{finding.pattern} ({finding.status})" for finding in findings))
    if setup.header.on == "command":
        description = f"{before} before it, {after} with it"
    text = description or "the ledger changed, but it matches no named pattern"
    text += "; a later commit undid it" if undone else ""
    span = first_change.span
    earliest, point_before = span.points[min(first_change.candidates)], span.points[first_change.before]
    # ``left_out`` is the number of commits between parent and culprit that are no points of the search.
    parent, left_out = find_parent(setup.options.repo, earliest, point_before, span.place_by_key)
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
        confirmed="exact",  # exact values need no confirmation by pairs of runs
        text=clip_message(text),
    )


def _is_undone(observations: Sequence[Observation], change: ValueChange) -> bool:
    """Return whether a later point has the same value as the point before the change."""
    states, _ = exact_search.place_values(change.span, change.entry, observations)
    changed_place = _place_with_new_value(change, states)
    return any(state == states[change.before] for place, state in states.items() if place > changed_place)


def _place_with_new_value(change: ValueChange, states: Mapping[int, str]) -> int:
    """Return the last measured candidate of a change.

    If no candidate is measured, return the end of the range (bad). On a line the last candidate is always measured. In
    a history with branches, the values of other points can identify a culprit that cannot be measured.
    """
    _, bad = change.span.ends
    return max((place for place in change.candidates if place in states), default=bad)


def _list_findings(setup: BisectionSetup, observations: Sequence[Observation], change: ValueChange) -> list[Finding]:
    """Return the findings of the ledger diff between the place before the change and the place with the new value.

    Returns [] if the search compares no ledgers, or if one of the two ledgers is missing.
    """
    if setup.header.on != "ledger":
        return []
    states, _ = exact_search.place_values(change.span, change.entry, observations)
    runs = [
        _load_run(setup, observations, change, place)
        for place in (change.before, _place_with_new_value(change, states))
    ]
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
    """Return the first usable run at ``place`` of the workload that changed; None if its file is missing."""
    for observation in observations:
        if (
            observation.entry == change.entry
            and observation.usable
            and change.span.place_by_key.get(observation.point) == place
        ):
            return load_run(setup.options.out, observation)
    return None


def _build_places(setup: BisectionSetup, observations: Sequence[Observation]) -> list[PointSummary]:
    """Return the places for the picture: how often each was measured, and the culprit probability of each candidate.

    The candidates of one change are equally probable. If workloads differ, the largest probability counts.
    """
    span = setup.exact_span
    probabilities: dict[int, float] = {}
    for entry in exact_search.compared_entries(setup.header):
        for change in exact_search.find_changes(span, entry, observations, setup.expand_merge_exact):
            for place in change.candidates:
                probabilities[place] = max(probabilities.get(place, 0.0), 1 / len(change.candidates))
    run_counts: Counter[int] = Counter()
    failed_places: set[int] = set()
    for observation in observations:
        measured_place = span.place_by_key.get(observation.point)
        if measured_place is not None:
            run_counts[measured_place] += 1
            if not observation.usable:
                failed_places.add(measured_place)
    return [
        PointSummary(
            key=span.points[place].key,
            probability=probabilities.get(place, 0.0),
            runs=run_counts[place],
            measurable=place not in failed_places,
        )
        for place in span.places
    ]
