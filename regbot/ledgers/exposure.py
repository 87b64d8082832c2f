"""The patterns "overlap lost" and "overlap restored": compute hides less or more of the same collectives than before.

These findings compare times from one trace per side, without a statistical test. So their status is at most REVIEW,
never FAIL. All other findings compare counts. Only collectives with equal calls and bytes are compared here, because
other findings report changed calls and bytes. Times are lengths of interval unions (``overlap.py``), because summed
kernel time is not wall time.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from regbot.ledgers.catalogue import OVERLAP_LOST, OVERLAP_RESTORED
from regbot.ledgers.overlap import Overlap
from regbot.ledgers.rows import sum_entries, template
from regbot.ledgers.wording import KIND_NAMES, format_seconds
from regbot.records.ledger import Entry, Kind, Ledger
from regbot.records.verdict import Finding, Volume

MAX_MODULES = 5
"""Largest number of module templates in a finding. A template is a path such as ``layers.*.moe``."""
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
"""Kind of collective and name of the axis."""


def find_overlap_changes(base: Ledger, head: Ledger) -> list[Finding]:
    """Return the overlap findings, at most one per kind and axis.

    The collectives of one kind and axis are compared only if their calls and bytes are equal in both ledgers, and all
    of them have times.
    """
    scope_text = "a step" if base.scope == "step" else "all that was recorded"
    return list(_compare_groups(_group_entries(base), _group_entries(head), scope_text))


def _group_entries(ledger: Ledger) -> dict[KindAxis, list[Entry]]:
    """Return the entries of a ledger by kind and axis."""
    groups: dict[KindAxis, list[Entry]] = defaultdict(list)
    for entry in ledger.entries:
        groups[entry.kind, entry.axis].append(entry)
    return groups


@dataclass(frozen=True)
class _TimedGroup:
    """The collectives of one kind and axis in one arm, with their exposed and hidden seconds."""

    kind: Kind
    axis: str
    entries: Sequence[Entry]
    times: Overlap

    @property
    def volumes(self) -> dict[Kind, Volume]:
        return {self.kind: sum_entries(self.entries)}


def _compare_groups(
    base: dict[KindAxis, list[Entry]], head: dict[KindAxis, list[Entry]], scope_text: str
) -> Iterator[Finding]:
    """Yield the findings on the groups of both ledgers. A group is all entries of one kind and axis. ``scope_text``
    says what the times cover: 'a step' or 'all that was recorded'.
    """
    for (kind, axis), base_entries in sorted(base.items()):
        head_entries = head.get((kind, axis), [])
        if not head_entries or sum_entries(base_entries) != sum_entries(head_entries):
            continue
        base_times, head_times = _sum_times(base_entries), _sum_times(head_entries)
        if base_times is None or head_times is None:  # an entry of the group has no times
            continue
        base_group = _TimedGroup(kind, axis, base_entries, base_times)
        head_group = _TimedGroup(kind, axis, head_entries, head_times)
        if _has_lost_overlap(base_times, head_times):
            yield _make_finding(OVERLAP_LOST, base_group, head_group, scope_text)
        elif _has_lost_overlap(head_times, base_times):
            yield _make_finding(OVERLAP_RESTORED, base_group, head_group, scope_text)


def _sum_times(entries: Sequence[Entry]) -> Overlap | None:
    """Return the exposed and the hidden seconds of ``entries``, or None if an entry has no times or all times are 0."""
    exposed = [entry.exposed_s for entry in entries if entry.exposed_s is not None]
    hidden = [entry.hidden_s for entry in entries if entry.hidden_s is not None]
    all_have_times = len(exposed) == len(hidden) == len(entries)
    if not all_have_times or not sum(exposed) + sum(hidden):
        return None
    return Overlap(exposed=sum(exposed), hidden=sum(hidden))


def _has_lost_overlap(before: Overlap, after: Overlap) -> bool:
    """Whether the exposed time rises and the hidden share falls, each by more than the limits above."""
    rises_by_ratio = after.exposed > MIN_EXPOSED_RATIO * before.exposed
    rises_by_seconds = after.exposed - before.exposed > MIN_EXPOSED_CHANGE_S
    share_falls = _hidden_pct(before) - _hidden_pct(after) > MIN_HIDDEN_CHANGE_POINTS
    return rises_by_ratio and rises_by_seconds and share_falls


def _hidden_pct(times: Overlap) -> float:
    """Return the hidden share of the communication time in percent."""
    return 100 * times.hidden / (times.exposed + times.hidden)


def _make_finding(pattern: str, base: _TimedGroup, head: _TimedGroup, scope_text: str) -> Finding:
    """Return the finding that the same collectives overlap less or more. ``scope_text`` is what the times cover: a step
    or the whole recording.
    """
    return Finding(
        pattern=pattern,
        status="REVIEW" if pattern == OVERLAP_LOST else "PASS",
        axis=head.axis,
        base=base.volumes,
        head=head.volumes,
        text=(
            f"The same {KIND_NAMES.get(head.kind, head.kind)} on {head.axis}, {head.volumes[head.kind].count} in all, "
            f"are exposed for {format_seconds(head.times.exposed)} of {scope_text}, "
            f"{format_seconds(base.times.exposed)} before. Compute hides {_hidden_pct(head.times):.0f}% of their time, "
            f"{_hidden_pct(base.times):.0f}% before. Measured in one trace of each side, without a statistical test."
        ),
        modules=sorted({template(entry.where) for entry in head.entries if entry.where})[:MAX_MODULES],
    )
