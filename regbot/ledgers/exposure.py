"""The patterns "overlap lost" and "overlap restored": compute hides less or more of the same collectives than before.

These findings compare times from one trace per side, without a statistical test. So their status is at most REVIEW,
never FAIL. All other findings compare counts. Only collectives with equal calls and bytes are compared here, because
other findings report changed calls and bytes. Times are lengths of interval unions (``overlap.py``), because summed
kernel time is not wall time.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence

from regbot.ledgers.catalogue import OVERLAP_LOST, OVERLAP_RESTORED
from regbot.ledgers.rows import sum_by_kind, template
from regbot.ledgers.wording import KIND_NAMES, format_seconds
from regbot.records.ledger import Entry, Kind, Ledger
from regbot.records.verdict import Finding

MIN_HIDDEN_CHANGE_POINTS = 10.0
"""Minimum change of the hidden share, in percentage points. The share differs by a few points between steps of one run.
In a real job, one configuration switch changed the hidden share from 0.1% to 36.6% of the communication time of a step.
"""
MIN_EXPOSED_RATIO = 1.1
"""Minimum ratio of the longer to the shorter exposed time. The hidden share alone is not enough, because it also
changes when compute gets faster.
"""
MIN_EXPOSED_CHANGE_S = 50e-6
"""Minimum change of the exposed time per step, in seconds. Smaller changes can be jitter of kernel launches."""

KindAxis = tuple[Kind, str]


def find_overlap_changes(base: Ledger, head: Ledger) -> list[Finding]:
    """Return the overlap findings, at most one per kind and axis.

    The collectives of one kind and axis are compared only if their calls and bytes are equal in both ledgers, and all
    of them have times.
    """
    span = "a step" if base.scope == "step" else "all that was recorded"
    return list(_compare_groups(_group_entries(base), _group_entries(head), span))


def _group_entries(ledger: Ledger) -> dict[KindAxis, list[Entry]]:
    groups: dict[KindAxis, list[Entry]] = defaultdict(list)
    for entry in ledger.entries:
        groups[entry.kind, entry.axis].append(entry)
    return groups


def _compare_groups(
    base: dict[KindAxis, list[Entry]], head: dict[KindAxis, list[Entry]], span: str
) -> Iterator[Finding]:
    for (kind, axis), base_entries in sorted(base.items()):
        head_entries = head.get((kind, axis), [])
        if not head_entries or _sum_traffic(base_entries) != _sum_traffic(head_entries):
            continue
        before, after = _sum_times(base_entries), _sum_times(head_entries)
        if before is None or after is None:
            continue
        if _has_lost_overlap(before, after):
            yield _make_finding(OVERLAP_LOST, kind, axis, (base_entries, head_entries), (before, after), span)
        elif _has_lost_overlap(after, before):
            yield _make_finding(OVERLAP_RESTORED, kind, axis, (base_entries, head_entries), (before, after), span)


def _sum_traffic(entries: Sequence[Entry]) -> tuple[int, int]:
    return sum(entry.count for entry in entries), sum(entry.bytes for entry in entries)


def _sum_times(entries: Sequence[Entry]) -> tuple[float, float] | None:
    """Return the exposed and the hidden seconds of ``entries``, or None if an entry has no times or all times are 0."""
    exposed = [entry.exposed_s for entry in entries if entry.exposed_s is not None]
    hidden = [entry.hidden_s for entry in entries if entry.hidden_s is not None]
    if not len(exposed) == len(hidden) == len(entries) or not sum(exposed) + sum(hidden):
        return None
    return sum(exposed), sum(hidden)


def _has_lost_overlap(before: tuple[float, float], after: tuple[float, float]) -> bool:
    is_exposed_longer = after[0] > MIN_EXPOSED_RATIO * before[0] and after[0] - before[0] > MIN_EXPOSED_CHANGE_S
    return is_exposed_longer and _hidden_pct(before) - _hidden_pct(after) > MIN_HIDDEN_CHANGE_POINTS


def _hidden_pct(times: tuple[float, float]) -> float:
    """Return the hidden share of ``times`` (exposed, hidden) in percent."""
    return 100 * times[1] / sum(times)


def _make_finding(
    pattern: str,
    kind: Kind,
    axis: str,
    entries: tuple[Sequence[Entry], Sequence[Entry]],
    times: tuple[tuple[float, float], tuple[float, float]],
    span: str,
) -> Finding:
    (before, after), (base_entries, head_entries) = times, entries
    volumes = [
        sum_by_kind(Ledger(source="", scope="step", steps=1, entries=list(side)))
        for side in (base_entries, head_entries)
    ]
    return Finding(
        pattern=pattern,
        status="REVIEW" if pattern == OVERLAP_LOST else "PASS",
        axis=axis,
        base=volumes[0],
        head=volumes[1],
        text=(
            f"The same {KIND_NAMES.get(kind, kind)} on {axis}, {volumes[1][kind].count} in all, are exposed for "
            f"{format_seconds(after[0])} of {span}, {format_seconds(before[0])} before. Compute hides "
            f"{_hidden_pct(after):.0f}% of their time, {_hidden_pct(before):.0f}% before. Measured in one trace of "
            "each side, without a statistical test."
        ),
        modules=sorted({template(entry.where) for entry in head_entries if entry.where})[:5],
    )
