"""Overlap lost or restored: the same collectives, of which compute hides less or more than before.

The one finding that is a measurement: it comes from the times of one trace on each side, so it is never more than a
reason to look, and never FAIL. Only collectives whose calls and bytes did not change are compared; where those differ,
another finding tells of them. Seconds are interval unions (``overlap.py``): summed kernel time is not wall time.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence

from regbot.ledgers.catalogue import OVERLAP_LOST, OVERLAP_RESTORED
from regbot.ledgers.rows import by_kind, template
from regbot.ledgers.wording import KIND_NAMES, seconds
from regbot.records.ledger import Entry, Kind, Ledger
from regbot.records.verdict import Finding

HIDDEN_POINTS = 10.0
"""Percentage points by which the hidden share must change. A lost overlap is not subtle: one real switch took it from
0.1 to 36.6% of the communication of a step, and steps of one run differ by a few points."""
EXPOSED_RATIO = 1.1
"""By how much exposed time must change too: a share alone also moves where compute got faster."""
EXPOSED_FLOOR_S = 50e-6
"""Below this much change in a step nobody would see it in the step time: launch jitter."""

Group = tuple[Kind, str]


def exposure(base: Ledger, head: Ledger) -> list[Finding]:
    """Findings of overlap for each kind and axis that both ledgers have times for and whose traffic is the same."""
    span = "a step" if base.scope == "step" else "all that was recorded"
    return list(_findings(_groups(base), _groups(head), span))


def _groups(ledger: Ledger) -> dict[Group, list[Entry]]:
    groups: dict[Group, list[Entry]] = defaultdict(list)
    for entry in ledger.entries:
        groups[entry.kind, entry.axis].append(entry)
    return groups


def _findings(base: dict[Group, list[Entry]], head: dict[Group, list[Entry]], span: str) -> Iterator[Finding]:
    for (kind, axis), ours in sorted(base.items()):
        theirs = head.get((kind, axis), [])
        if not theirs or _traffic(ours) != _traffic(theirs):
            continue
        before, after = _times(ours), _times(theirs)
        if before is None or after is None:
            continue
        if _fell(before, after):
            yield _finding(OVERLAP_LOST, kind, axis, (ours, theirs), (before, after), span)
        elif _fell(after, before):
            yield _finding(OVERLAP_RESTORED, kind, axis, (ours, theirs), (before, after), span)


def _traffic(entries: Sequence[Entry]) -> tuple[int, int]:
    return sum(e.count for e in entries), sum(e.bytes for e in entries)


def _times(entries: Sequence[Entry]) -> tuple[float, float] | None:
    """Exposed and hidden seconds; None where any entry has none."""
    exposed = [e.exposed_s for e in entries if e.exposed_s is not None]
    hidden = [e.hidden_s for e in entries if e.hidden_s is not None]
    if not len(exposed) == len(hidden) == len(entries) or not sum(exposed) + sum(hidden):
        return None
    return sum(exposed), sum(hidden)


def _fell(before: tuple[float, float], after: tuple[float, float]) -> bool:
    longer = after[0] > EXPOSED_RATIO * before[0] and after[0] - before[0] > EXPOSED_FLOOR_S
    return longer and _share(before) - _share(after) > HIDDEN_POINTS


def _share(times: tuple[float, float]) -> float:
    """Percent hidden."""
    return 100 * times[1] / sum(times)


def _finding(
    pattern: str,
    kind: Kind,
    axis: str,
    entries: tuple[Sequence[Entry], Sequence[Entry]],
    times: tuple[tuple[float, float], tuple[float, float]],
    span: str,
) -> Finding:
    (before, after), (ours, theirs) = times, entries
    volumes = [by_kind(Ledger(source="", scope="step", steps=1, entries=list(side))) for side in (ours, theirs)]
    return Finding(
        pattern=pattern,
        status="REVIEW" if pattern == OVERLAP_LOST else "PASS",
        axis=axis,
        base=volumes[0],
        head=volumes[1],
        text=(
            f"The same {KIND_NAMES.get(kind, kind)} on {axis}, {volumes[1][kind].count} in all, are exposed for "
            f"{seconds(after[0])} of {span} where it was {seconds(before[0])}: compute hides {_share(after):.0f}% of "
            f"them, {_share(before):.0f}% before. Measured in one trace of each side, not tested."
        ),
        modules=sorted({template(e.where) for e in theirs if e.where})[:5],
    )
