"""The answer of a search on exact values: every change, the commits that brought it, what the ledgers say of it."""

from collections.abc import Sequence

from regbot.bisect import blame, counting
from regbot.bisect.counting import Stretch
from regbot.bisect.outline import outline, run_of
from regbot.bisect.site import Site
from regbot.judge.sharding import NotComparable, judge_ledgers
from regbot.records.bisection import Bisection, Candidate, Change, Found, Observation, Place
from regbot.records.run import Run
from regbot.records.verdict import GRAVITY, Finding


def exact_answer(site: Site, observations: Sequence[Observation]) -> Bisection:
    """What the values say, finished or not."""
    header, stretch = site.header, site.stretch
    entries = header.entries or [""]
    reasons: list[str] = []
    measurable = []
    for entry in entries:
        _, broken = counting.values_of(stretch, entry, observations)
        failed = [end for end in (stretch.of[0], stretch.of[-1]) if end in broken]
        for end in failed:
            name = "good" if end == stretch.of[0] else "bad"
            of = f" of {entry}" if entry else ""
            reasons.append(f"{name}{of} cannot be measured: {broken[end].reason}")
        measurable += [entry] if not failed else []
    if not measurable:
        places = _plain(site, observations)
        return outline(header, observations, "unmeasurable", reasons).model_copy(update={"places": places})
    entries = measurable
    traced = [each for entry in entries for each in counting.changes(stretch, entry, observations, site.expand)]
    changes = _merged(site, observations, traced)
    left = counting.next_wanted(stretch, entries, observations, (), site.expand, 2**31)
    differ = _ends_differ(stretch, entries, observations)
    status: Found = "undecided" if left else "culprit" if changes else "undecided" if differ or reasons else "none"
    if left:
        reasons.append(
            f"the search was ended before its end, at {header.most_runs} measurements at most; go on with --resume"
        )
    elif not changes and differ:
        reasons.append("no single commit of this history explains the values; leave out --full to walk one line of it")
    elif not changes and reasons:
        reasons.append("good and bad are the same in all else that was compared: whether they differ could not be told")
    elif not changes:
        same = (
            "the ledgers of good and bad are the same" if header.on == "ledger" else "good and bad have the same value"
        )
        hint = "; where only the time changed, use --on time" if header.on == "ledger" else ""
        reasons.append(f"{same}: there is nothing to find{hint}")
    if not left:
        reasons += _unresolved(site, observations, traced)
    first = changes[0] if changes else None
    sole = first is not None and len(first.candidates) == 1
    return outline(header, observations, status, reasons).model_copy(
        update={
            "culprit": first.candidates[0].point.commit if first is not None and sole else None,
            "version": first.candidates[0].point.version if first is not None and sole else "",
            "candidates": first.candidates if first is not None else [],
            "changes": changes,
            "places": _plain(site, observations),
            "blame": blame.exact_words(header, observations, status),
        }
    )


def _ends_differ(stretch: Stretch, entries: Sequence[str], observations: Sequence[Observation]) -> bool:
    ends = (stretch.of[0], stretch.of[-1])
    values = [counting.values_of(stretch, entry, observations)[0] for entry in entries]
    return any(states.get(ends[0]) != states.get(ends[1]) for states in values)


def _unresolved(site: Site, observations: Sequence[Observation], traced: Sequence[counting.Found]) -> list[str]:
    """Of merges that are to blame: those whose branch could not be searched. One that it did not change is innocent."""
    found = []
    for last in (deep for each in traced for deep in each.last() if len(deep.candidates) == 1):
        merge = last.stretch.points[last.candidates[0]]
        branch = site.expand(merge)
        if branch is None:
            continue
        states, broken = counting.values_of(branch, last.entry, observations)
        ends = (branch.of[0], branch.of[-1])
        if all(end in states for end in ends) and states[ends[0]] == states[ends[1]]:
            continue
        why = "; ".join(f"{branch.points[end].name}: {broken[end].reason}" for end in ends if end in broken)
        text = f"which of the commits that {merge.name} merged it was could not be told"
        found.append(f"{text} ({why})" if why else text)
    return list(dict.fromkeys(found))


def _merged(site: Site, observations: Sequence[Observation], traced: Sequence[counting.Found]) -> list[Change]:
    """One change for each commit, with all workloads that it changed; the gravest that stayed first."""
    together: dict[tuple[str, ...], list[counting.Found]] = {}
    for found in (deep for each in traced for deep in each.last()):
        keys = tuple(found.stretch.points[place].key for place in found.candidates)
        together.setdefault(keys, []).append(found)
    changes = [_change(site, observations, group) for group in together.values()]
    worst = {
        id(change): min((GRAVITY.index(f.status) for f in change.findings), default=len(GRAVITY)) for change in changes
    }
    return sorted(changes, key=lambda change: (change.undone, worst[id(change)]))


def _change(site: Site, observations: Sequence[Observation], group: Sequence[counting.Found]) -> Change:
    first = group[0]
    states, broken = counting.values_of(first.stretch, first.entry, observations)
    measured = max((place for place in first.candidates if place in states), default=first.stretch.of[-1])
    before, after = states[first.before], states[measured]
    undone = all(_undone(observations, found) for found in group)
    findings: list[Finding] = []
    for found in group:
        for finding in _findings(site, observations, found):
            if (finding.pattern, finding.axis) not in {(each.pattern, each.axis) for each in findings}:
                findings.append(finding)
    candidates = [
        Candidate(
            point=first.stretch.points[place],
            measurable=place in states,
            reason=broken[place].reason if place in broken else "",
        )
        for place in sorted(first.candidates, key=lambda place: place not in states)
    ]
    entries = [found.entry for found in group if found.entry]
    what = ", ".join(dict.fromkeys(f"{each.pattern} ({each.status})" for each in findings))
    if site.header.on == "command":
        what = f"{before} before it, {after} with it"
    text = what or "the ledger changed, and no pattern has a name for it"
    text += "; a later commit took it back" if undone else ""
    return Change(
        candidates=candidates,
        parent=first.stretch.points[first.before].key,
        merge=first.stretch.merge or None,
        entries=entries,
        findings=findings,
        before=before,
        after=after,
        undone=undone,
        confirmed="exact",
        text=text[:4000],
    )


def _undone(observations: Sequence[Observation], found: counting.Found) -> bool:
    """Whether a later point has the value from before the change again."""
    states, _ = counting.values_of(found.stretch, found.entry, observations)
    measured = max((place for place in found.candidates if place in states), default=found.stretch.of[-1])
    return any(state == states[found.before] for place, state in states.items() if place > measured)


def _findings(site: Site, observations: Sequence[Observation], found: counting.Found) -> list[Finding]:
    """What the ledgers before and after it differ by."""
    if site.header.on != "ledger":
        return []
    states, _ = counting.values_of(found.stretch, found.entry, observations)
    measured = max((place for place in found.candidates if place in states), default=found.stretch.of[-1])
    runs = [_run(site, observations, found, place) for place in (found.before, measured)]
    base, head = (run.ledger if run is not None else None for run in runs)
    if base is None or head is None:
        return []
    try:
        return judge_ledgers(base, head, site.config).findings
    except NotComparable:
        return []


def _run(site: Site, observations: Sequence[Observation], found: counting.Found, place: int) -> Run | None:
    for each in observations:
        if each.entry == found.entry and each.usable and found.stretch.number.get(each.point) == place:
            return run_of(site.options.out, each)
    return None


def _plain(site: Site, observations: Sequence[Observation]) -> list[Place]:
    """The picture of an exact search: what was measured, and who is to blame."""
    stretch = site.stretch
    entries = site.header.entries or [""]
    blamed: dict[int, float] = {}
    for entry in entries:
        for each in counting.changes(stretch, entry, observations, site.expand):
            for place in each.candidates:
                blamed[place] = max(blamed.get(place, 0.0), 1 / len(each.candidates))
    counts: dict[int, int] = {}
    broken: set[int] = set()
    for made in observations:
        number = stretch.number.get(made.point)
        if number is not None:
            counts[number] = counts.get(number, 0) + 1
            if not made.usable:
                broken.add(number)
    firsts = sorted(set(stretch.of))
    return [
        Place(
            key=stretch.points[of].key,
            probability=blamed.get(of, 0.0),
            runs=counts.get(of, 0),
            measurable=of not in broken,
        )
        for of in firsts
    ]
