"""The one table of the comment: what changed, workload by workload, equal ones merged.

Workloads whose lines read the same in every word are one block of rows. Where nothing changed there is no base and
head to set side by side: one row a workload says what both issue.
"""

from collections.abc import Callable, Sequence
from typing import get_args

from regbot.records.ledger import Kind
from regbot.records.verdict import Status
from regbot.report.markdown import Markdown, code, fit, prose
from regbot.report.measured import Line, Measured, Tally, kind_words
from regbot.report.state import Check, State
from regbot.report.wording import ICONS
from regbot.units import binary_bytes

KINDS_SHOWN = 4
NAMES_IN_CELL = 4
FEW = 8
"""Workloads that are named one by one in a sentence."""

Row = tuple[str, ...]


def comparison(check: Check, characters: int) -> Markdown:
    """The table with the lines below it that say what it leaves out; '' where there is nothing to compare."""
    changed = [entry for entry in check.changed if entry.changed]
    unmeasured = [entry for entry in check.entries if not entry.judged]
    if not check.entries:
        return Markdown("")
    if not changed and not unmeasured:
        return _same(check.entries, characters)
    if not changed and len(unmeasured) == len(check.entries):
        return _reasons(check, unmeasured, characters)
    table = ["| workload | collective | base | head | bytes per step |", "| --- | --- | --- | --- | --- |"]
    rows = [row for group in _alike(changed, _signature) for row in _block(check, group)]
    rows += [
        _row((_named(check, group), f"not measured: {prose(_why(group[0]), 200)}", "", "", ""))
        for group in _alike(unmeasured, _why)
    ]
    kept, cut = fit(rows, characters)
    below = [_cut(cut)] if cut else []
    below += [*_unchanged_lines(changed), *_unchanged_entries(check)]
    return Markdown("\n".join([*table, *kept, *(f"\n{line}" for line in below)]))


def volume(line: Line, tally: Tally) -> str:
    """``5 per layer · 240``."""
    each = line.each(tally)
    return f"{each} · {tally.count}" if each else str(tally.count)


def axis(line: Line) -> str:
    """The mesh axis as code and the size of its groups."""
    return f"{code(line.axis, 40)} ({line.group_size})"


def _block(check: Check, group: Sequence[Measured]) -> list[str]:
    first = group[0]
    cells = [
        (f"{kind_words(line.kind)} {axis(line)}", volume(line, line.base), _moved(line), _bytes(line))
        for line in first.changed
    ]
    return [_row((_named(check, group) if number == 0 else "", *row)) for number, row in enumerate(cells)]


def _moved(line: Line) -> str:
    after = volume(line, line.head)
    if line.base.count == line.head.count:
        return after if volume(line, line.base) == after else f"**{after}**"
    return f"**{'▲' if line.head.count > line.base.count else '▼'} {after}**"


def _bytes(line: Line) -> str:
    before, after = binary_bytes(line.base.bytes), binary_bytes(line.head.bytes)
    if line.base.bytes == line.head.bytes:
        return before
    if before != after:
        return f"{before} → **{after}**"
    more = line.head.bytes - line.base.bytes
    return f"{before} **{'+' if more > 0 else '−'}{binary_bytes(abs(more))}**"


def _same(entries: Sequence[Measured], characters: int) -> Markdown:
    """One row a workload, one column a kind, for a check in which nothing changed."""
    present = {line.kind for entry in entries for line in entry.lines}
    kinds = [kind for kind in get_args(Kind) if kind in present]
    shown, others = kinds[:KINDS_SHOWN], kinds[KINDS_SHOWN:]
    heads = ["workload", *map(kind_words, shown), *(["others"] if others else [])]
    rows = []
    for entry in entries:
        cells: list[str] = [code(entry.name)]
        cells += ["<br>".join(_on_axis(line) for line in entry.lines if line.kind == kind) or "0" for kind in shown]
        rest = [f"{kind_words(line.kind)} {_on_axis(line)}" for line in entry.lines if line.kind in others]
        cells += ["<br>".join(rest) or "0"] if others else []
        rows.append(_row(tuple(cells)))
    kept, cut = fit(rows, characters)
    note = ["", _cut(cut)] if cut else []
    return Markdown("\n".join([_row(tuple(heads)), _row(("---",) * len(heads)), *kept, *note]))


def _on_axis(line: Line) -> str:
    return f"{volume(line, line.base)} on {axis(line)}"


def _reasons(check: Check, entries: Sequence[Measured], characters: int) -> Markdown:
    """One row for each reason why nothing was compared."""
    rows = [
        _row((_named(check, group), f"{group[0].status}", prose(_why(group[0]), 400)))
        for group in _alike(entries, _why)
    ]
    kept, cut = fit(rows, characters)
    note = ["", _cut(cut)] if cut else []
    return Markdown("\n".join(["| workload | verdict | why |", "| --- | --- | --- |", *kept, *note]))


def _unchanged_lines(entries: Sequence[Measured]) -> list[str]:
    """What else the changed workloads issue, as one sentence: kinds and axes only, the counts are folded."""
    same = dict.fromkeys(
        f"{kind_words(x.kind)} {code(x.axis, 40)}" for entry in entries for x in entry.lines if not x.changed
    )
    return [f"Unchanged in these: {_some(list(same))}."] if same else []


def _unchanged_entries(check: Check) -> list[str]:
    same = [entry for entry in check.entries if entry.judged and not entry.changed]
    groups: dict[Status, list[str]] = {}
    for entry in same:
        groups.setdefault(entry.status, []).append(code(entry.name))
    return [f"{ICONS[status]} No collective changed in {_some(names)}." for status, names in groups.items()]


def _some(words: Sequence[str]) -> str:
    more = f" and {len(words) - FEW} more" if len(words) > FEW else ""
    return ", ".join(words[:FEW]) + more


def _alike(entries: Sequence[Measured], key: Callable[[Measured], object]) -> list[list[Measured]]:
    groups: dict[object, list[Measured]] = {}
    for entry in entries:
        groups.setdefault((entry.status, key(entry)), []).append(entry)
    return list(groups.values())


def _signature(entry: Measured) -> tuple[Row, ...]:
    return tuple(
        (line.kind, line.axis, str(line.group_size), volume(line, line.base), volume(line, line.head), _bytes(line))
        for line in entry.changed
    )


def _why(entry: Measured) -> str:
    return entry.reasons[0] if entry.reasons else "no reason was given"


def _named(check: Check, group: Sequence[Measured]) -> str:
    """The workloads of a block, one a line; with a sign where the check's workloads differ in status."""
    mixed = len({entry.status for entry in check.entries}) > 1 and check.state is not State.SHOWN
    sign = f"{ICONS[group[0].status]} " if mixed else ""
    shown = [f"{sign}{code(entry.name, 80)}" for entry in group[:NAMES_IN_CELL]]
    return "<br>".join([*shown, f"and {len(group) - NAMES_IN_CELL} more"] if len(group) > NAMES_IN_CELL else shown)


def _row(cells: Row) -> str:
    return f"| {' | '.join(cells)} |"


def _cut(number: int) -> str:
    return f"…and {number} more rows, see the report."
