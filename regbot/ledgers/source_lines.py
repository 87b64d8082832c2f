"""The source lines of a finding: those that issued what went from base, and those that issued what came in head.

The lines in the diff come first. These are lines of the calls themselves and of their callers, and changed lines in the
functions around them, from the inside out. If an arm issues nothing that changed, the lines that stand in its place are
those of the same hunks.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from regbot.records.changed_lines import ChangedLines, Side
from regbot.records.ledger import Entry, Frame, Ledger
from regbot.records.verdict import MAX_FINDING_LINES, FindingLine, FindingLines

Calls = Counter[str]
"""Number of calls by source line, 'path:number'."""
MAX_LINES = 100
"""Lines of one arm that are looked up in the diff, those with the most calls."""
MAX_FUNCTIONS = 8
"""Functions around a call in which a change elsewhere counts, from the inside out."""
MAX_HUNKS = 3
"""Hunks of one call or function that count, those nearest to the line of the call."""
MAX_EXTENT = 10_000
"""A call or a function of more lines counts as one whose extent is unknown: a ledger can claim any extent."""


class _Place(NamedTuple):
    """A changed line, and how near it is to a call that changed: 0 is the call itself."""

    distance: int
    origin: Side
    """The arm of the call."""
    side: Side
    """The arm of the line."""
    line: FindingLine


def count_calls(entries: Iterable[Entry]) -> Calls:
    calls: Calls = Counter()
    for entry in entries:
        calls[entry.line] += entry.count
    return calls


def subtract_calls(base_calls: Calls, head_calls: Calls, base: Ledger, head: Ledger) -> tuple[Calls, Calls]:
    """Return the calls that went from base and that came in head. Calls of a function that has as many in both arms are
    the same calls, at whatever line they are. If only the sizes of calls changed, all calls went and came.
    """
    by_function = [_count_by_function(base_calls, base.frames), _count_by_function(head_calls, head.frames)]
    fewer, more = by_function[0] - by_function[1], by_function[1] - by_function[0]
    if not fewer and not more:
        return base_calls, head_calls
    went = {line: count for line, count in base_calls.items() if _name_function(line, base.frames) in fewer}
    came = {line: count for line, count in head_calls.items() if _name_function(line, head.frames) in more}
    return Counter(went), Counter(came)


def find_lines(went: Calls, came: Calls, base: Ledger, head: Ledger, changed: ChangedLines | None) -> FindingLines:
    """Return the source lines of calls that went from base and that came in head. ``changed`` is the diff between the
    arms; None if it is unknown.
    """
    places: list[_Place] = []
    issuers: dict[Side, list[FindingLine]] = {"base": [], "head": []}
    arms: tuple[tuple[Side, Calls, Ledger], ...] = (("base", went, base), ("head", came, head))
    for side, calls, ledger in arms:
        for line in [line for line, _ in calls.most_common(MAX_LINES) if line]:
            issuers[side].append(_make_line(line, ledger.frames))
            if changed is not None:
                places += _find_places(side, line, ledger.frames, changed)
    if went and came:  # each arm is found in the diff by itself
        places = [place for place in places if place.side == place.origin]
    places.sort(key=lambda place: place.distance)

    def select(side: Side) -> list[FindingLine]:
        own = [place.line for place in places if place.side == side]
        known = {(line.path, line.line) for line in own}
        others = [line for line in issuers[side] if (line.path, line.line) not in known]
        return list(dict.fromkeys([*own, *others]))[:MAX_FINDING_LINES]

    return FindingLines(base=select("base"), head=select("head"))


def _find_places(side: Side, line: str, frames: Mapping[str, Frame], changed: ChangedLines) -> Iterator[_Place]:
    """Yield the changed lines around one call, in both arms."""
    callers = frames[line].callers if line in frames else []
    for depth, caller in enumerate((line, *callers)):
        frame = frames.get(caller, _UNKNOWN)
        path, number = _split(caller)
        last = frame.last_line if number < frame.last_line <= number + MAX_EXTENT else number
        for _, hunk in changed.find(side, path, number, last, number, MAX_HUNKS):
            if lines := hunk.lines(side):
                found = FindingLine(path=path, line=max(number, lines.start), function=frame.function, in_diff=True)
                yield _Place(2 * depth, side, side, found)
        first, last = frame.function_lines
        if depth >= MAX_FUNCTIONS or not 0 < last <= first + MAX_EXTENT:
            continue
        for file, hunk in changed.find(side, path, first, last, number, MAX_HUNKS):
            for other in _SIDES:
                if lines := hunk.lines(other):
                    start = max(lines.start, first) if other == side else lines.start
                    found = FindingLine(path=file.path(other), line=start, function=frame.function, in_diff=True)
                    yield _Place(2 * depth + 3, side, other, found)


_SIDES: tuple[Side, Side] = ("base", "head")
_UNKNOWN = Frame(function="")


def _count_by_function(calls: Calls, frames: Mapping[str, Frame]) -> Counter[str]:
    counts: Counter[str] = Counter()
    for line, count in calls.items():
        counts[_name_function(line, frames)] += count
    return counts


def _name_function(line: str, frames: Mapping[str, Frame]) -> str:
    """Return the function around a line. Without a frame, it is the file; '' for an unknown line."""
    return frames[line].function if line in frames else line.rpartition(":")[0]


def _make_line(line: str, frames: Mapping[str, Frame]) -> FindingLine:
    path, number = _split(line)
    return FindingLine(path=path, line=number, function=frames.get(line, _UNKNOWN).function)


def _split(line: str) -> tuple[str, int]:
    path, _, number = line.rpartition(":")
    return path, int(number)
