"""The patterns "overlap lost" and "overlap restored": compute hides less or more of the same collectives than before.

These findings compare times from one trace per side, without a statistical test. So their status is at most REVIEW,
never FAIL. All other findings compare counts. Only collectives with equal calls and bytes are compared here, because
other findings report changed calls and bytes. Times are lengths of interval unions (``overlap.py``), because summed
kernel time is not wall time."""

from collections import defaultdict
from collections.abc import Sequence

from regbot.ledgers import catalogue as names
from regbot.ledgers.overlap import Overlap
from regbot.ledgers.rows import MAX_MODULES, sum_entries, template
from regbot.ledgers.wording import KIND_NAMES, format_seconds
from regbot.records.ledger import Entry, Kind, Ledger
from regbot.records.verdict import Finding

MIN_HIDDEN_CHANGE_POINTS = 10.0
"""Minimum change of the hidden share, in percentage points. The share differs by a few points between steps of one run.
In a real job, one configuration switch changed the hidden share from 0.1% to 36.6% of the communication time of a step.
"""
MIN_EXPOSED_RATIO = 1.1
"""Minimum ratio of the longer to the shorter exposed time. The hidden share alone is not enough, because it also
changes when compute gets faster."""
MIN_EXPOSED_CHANGE_S = 50e-6
"""Minimum change of the exposed time per step, in seconds. Smaller changes can be jitter of kernel launches."""


def find_overlap_changes(base: Ledger, head: Ledger) -> list[Finding]:
    """Return the overlap findings, at most one per kind and axis. The collectives of one kind and axis are compared
    only if their calls and bytes are equal in both ledgers, and all of them have times."""
    findings = []
    base_groups, head_groups = _group_entries(base), _group_entries(head)
    for (kind, axis), base_entries in sorted(base_groups.items()):
        head_entries = head_groups.get((kind, axis), [])
        volume = sum_entries(head_entries)
        if not head_entries or sum_entries(base_entries) != volume:
            continue
        before, after = _sum_times(base_entries), _sum_times(head_entries)
        if before is None or after is None:
            continue
        is_lost = _has_lost_overlap(before, after)
        if not is_lost and not _has_lost_overlap(after, before):
            continue
        scope = "a step" if base.scope == "step" else "all that was recorded"
        findings.append(
            Finding(
                pattern=names.OVERLAP_LOST if is_lost else names.OVERLAP_RESTORED,
                status="REVIEW" if is_lost else "PASS",
                axis=axis,
                base={kind: volume},
                head={kind: volume},
                text=(
                    f"The same {KIND_NAMES.get(kind, kind)} on {axis}, {volume.count} in all, are exposed for "
                    f"{format_seconds(after.exposed)} of {scope}, {format_seconds(before.exposed)} before. Compute "
                    f"hides {_hidden_pct(after):.0f}% of their time, {_hidden_pct(before):.0f}% before. Measured in "
                    "one trace of each side, without a statistical test."
                ),
                modules=sorted({template(entry.where) for entry in head_entries if entry.where})[:MAX_MODULES],
            )
        )
    return findings


def _group_entries(ledger: Ledger) -> dict[tuple[Kind, str], list[Entry]]:
    groups: dict[tuple[Kind, str], list[Entry]] = defaultdict(list)
    for entry in ledger.entries:
        groups[entry.kind, entry.axis].append(entry)
    return groups


def _sum_times(entries: Sequence[Entry]) -> Overlap | None:
    exposed = [entry.exposed_s for entry in entries if entry.exposed_s is not None]
    hidden = [entry.hidden_s for entry in entries if entry.hidden_s is not None]
    all_have_times = len(exposed) == len(hidden) == len(entries)
    if not all_have_times or not sum(exposed) + sum(hidden):
        return None
    return Overlap(exposed=sum(exposed), hidden=sum(hidden))


def _has_lost_overlap(before: Overlap, after: Overlap) -> bool:
    rises_by_ratio = after.exposed > MIN_EXPOSED_RATIO * before.exposed
    rises_by_seconds = after.exposed - before.exposed > MIN_EXPOSED_CHANGE_S
    share_falls = _hidden_pct(before) - _hidden_pct(after) > MIN_HIDDEN_CHANGE_POINTS
    return rises_by_ratio and rises_by_seconds and share_falls


def _hidden_pct(times: Overlap) -> float:
    return 100 * times.hidden / (times.exposed + times.hidden)
