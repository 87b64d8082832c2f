"""The table of collectives in the comment, which shows for each workload what changed.

Workloads with identical rows share these rows. If nothing changed, the table has no columns for base and head. It then
has one row for all workloads with the same collectives.

A workload is *judged* (``entry.judged``) if its ledgers were compared. ``entry.lines`` has its collectives by kind and
axis, and ``entry.changed`` the lines that differ between the arms.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import get_args

from regbot.records.ledger import Kind
from regbot.records.text.table import markdown_head, markdown_row
from regbot.records.text.units import binary_bytes
from regbot.records.text.words import listed
from regbot.records.verdict import Status
from regbot.report.headline import ICONS
from regbot.report.markdown import Markdown, code, fit, prose
from regbot.report.state import Check, State
from regbot.report.workload_section import CollectiveCounts, CollectiveLine, WorkloadSection, kind_words

MAX_KINDS = 4
"""Maximum number of kinds of collectives with a column of their own. Further kinds share the column "others"."""
NAMES_IN_CELL = 4
"""Maximum number of workloads that a cell names."""
MAX_LISTED = 8
"""Maximum number of names in a sentence."""

CellTexts = tuple[str, ...]
"""The cells of one row, without the names of the workloads."""


def compare_workloads(check: Check, characters: int) -> Markdown:
    """Return the table, and lines below it that say what the table leaves out. Return '' if there are no workloads.

    ``characters``: largest length of all rows together.
    """
    # ``check.changed`` also has workloads with a finding and equal collectives. The table leaves these out.
    changed = [entry for entry in check.changed if entry.changed]
    unmeasured = [entry for entry in check.entries if not entry.judged]
    if not check.entries:
        return Markdown("")
    if not changed and not unmeasured:
        return _write_unchanged_table(check.entries, characters)
    if not changed and len(unmeasured) == len(check.entries):
        return _write_reason_table(check, unmeasured, characters)
    table = markdown_head("workload", "collective", "base", "head", "bytes per step")
    rows = []
    for group in _group_by_key(changed, _list_change_cells):
        rows += _format_workload_rows(check, group)
    rows += [
        markdown_row(
            (_name_workloads(check, group), f"not measured: {prose(_select_first_reason(group[0]), 200)}", "", "", "")
        )
        for group in _group_by_key(unmeasured, _select_first_reason)
    ]
    fitting_rows, cut = fit(rows, characters)
    notes = [_note_cut_rows(cut)] if cut else []
    notes += [*_name_unchanged_lines(changed), *_name_unchanged_workloads(check)]
    return Markdown("\n".join([*table, *fitting_rows, *(f"\n{note}" for note in notes)]))


def volume(line: CollectiveLine, tally: CollectiveCounts) -> str:
    """Return one arm's count of collectives in total and per layer: ``240 (5 per layer)`` or ``4 (all in layers.17)``.

    ``tally``: counts of the arm. ``line.reach``: number of layers that have this collective in either arm, or of all
    layers if base has it in none.
    """
    if len(tally.layers) == 1 and line.reach > 1 and not tally.outside:
        return f"{tally.count} (all in {next(iter(tally.layers))})"
    per_layer = line.describe_count(tally)
    return f"{tally.count} ({per_layer})" if per_layer else str(tally.count)


def axis(line: CollectiveLine) -> str:
    """Return the mesh axis, formatted as code, with the size of its groups."""
    return f"{code(line.axis, 40)} ({line.group_size})"


def _format_workload_rows(check: Check, group: Sequence[WorkloadSection]) -> list[str]:
    """Return a row for each changed collective of ``group``, which has workloads with equal changes. The first row
    names the workloads."""
    first_entry = group[0]
    rows = [
        (
            f"{kind_words(line.kind)} {axis(line)}",
            volume(line, line.base),
            _format_head_volume(line),
            _format_bytes(line),
        )
        for line in first_entry.changed
    ]
    return [
        markdown_row((_name_workloads(check, group) if number == 0 else "", *cells))
        for number, cells in enumerate(rows)
    ]


def _format_head_volume(line: CollectiveLine) -> str:
    """Return head's count, in bold if it differs from base's count, with an arrow for the direction.

    If a few layers lost all collectives of the line, these layers are named.
    """
    head_volume = volume(line, line.head)
    if line.base.count == line.head.count:
        return head_volume if volume(line, line.base) == head_volume else f"**{head_volume}**"
    if missing := line.list_missing_layers():
        layers = listed([code(layer, 40) for layer in missing], MAX_LISTED)
        # If every layer of base has the same count, "5 per layer" is shorter than "5 in 47 of 48 layers". ``reach`` is
        # the number of layers that issue the collective in either arm.
        is_uniform = len(line.base.layers) == line.reach and len(set(line.base.layers.values())) == 1
        described_arm = line.base if is_uniform else line.head
        head_volume = f"{line.head.count} ({line.describe_count(described_arm)}, 0 in {layers})"
    return f"**{'▲' if line.head.count > line.base.count else '▼'} {head_volume}**"


def _format_bytes(line: CollectiveLine) -> str:
    """Return the bytes of both arms. If both round to the same text, return base's bytes and the difference."""
    base_bytes, head_bytes = binary_bytes(line.base.bytes), binary_bytes(line.head.bytes)
    if line.base.bytes == line.head.bytes:
        return base_bytes
    if base_bytes != head_bytes:
        return f"{base_bytes} → **{head_bytes}**"
    difference = line.head.bytes - line.base.bytes
    return f"{base_bytes} **{'+' if difference > 0 else '−'}{binary_bytes(abs(difference))}**"


def _write_unchanged_table(entries: Sequence[WorkloadSection], characters: int) -> Markdown:
    """Return the table for a check without changes. It has one column per kind of collective. Workloads with the same
    collectives share a row."""
    present = {line.kind for entry in entries for line in entry.lines}
    kinds = [kind for kind in get_args(Kind) if kind in present]
    column_kinds, other_kinds = kinds[:MAX_KINDS], kinds[MAX_KINDS:]
    column_heads = ["workload", *map(kind_words, column_kinds), *(["others"] if other_kinds else [])]
    names_by_cells: dict[CellTexts, list[str]] = {}
    for entry in entries:
        cells = [
            _join_cell_lines(_format_volume_on_axis(line) for line in entry.lines if line.kind == kind)
            for kind in column_kinds
        ]
        other_lines = [
            f"{kind_words(line.kind)} {_format_volume_on_axis(line)}"
            for line in entry.lines
            if line.kind in other_kinds
        ]
        cells += [_join_cell_lines(other_lines)] if other_kinds else []
        names_by_cells.setdefault(tuple(cells), []).append(entry.name)
    rows = [markdown_row((_join_names(names), *cells)) for cells, names in names_by_cells.items()]
    fitting_rows, cut = fit(rows, characters)
    note = ["", _note_cut_rows(cut)] if cut else []
    return Markdown("\n".join([*markdown_head(*column_heads), *fitting_rows, *note]))


def _join_cell_lines(lines: Iterable[str]) -> str:
    """Return a cell with a line for each axis; ``0`` for a workload without such collectives."""
    return "<br>".join(lines) or "0"


def _format_volume_on_axis(line: CollectiveLine) -> str:
    return f"{volume(line, line.base)} on {axis(line)}"


def _write_reason_table(check: Check, entries: Sequence[WorkloadSection], characters: int) -> Markdown:
    """Return the table for a check in which no ledgers were compared. Workloads with the same status and first reason
    share a row."""
    rows = [
        markdown_row((_name_workloads(check, group), f"{group[0].status}", prose(_select_first_reason(group[0]), 400)))
        for group in _group_by_key(entries, _select_first_reason)
    ]
    fitting_rows, cut = fit(rows, characters)
    note = ["", _note_cut_rows(cut)] if cut else []
    return Markdown("\n".join([*markdown_head("workload", "verdict", "why"), *fitting_rows, *note]))


def _name_unchanged_lines(entries: Sequence[WorkloadSection]) -> list[str]:
    """Return a sentence that names the unchanged collectives of ``entries``, which are workloads with changes. A folded
    section shows the counts of these collectives."""
    unchanged = dict.fromkeys(
        f"{kind_words(line.kind)} {code(line.axis, 40)}"
        for entry in entries
        for line in entry.lines
        if not line.changed
    )
    scope = "this workload" if len(entries) == 1 else "these workloads"
    return [f"Unchanged in {scope}: {listed(list(unchanged), MAX_LISTED)}."] if unchanged else []


def _name_unchanged_workloads(check: Check) -> list[str]:
    """Return a sentence for each status: the workloads with this status whose collectives did not change."""
    unchanged = [entry for entry in check.entries if entry.judged and not entry.changed]
    names_by_status: dict[Status, list[str]] = {}
    for entry in unchanged:
        names_by_status.setdefault(entry.status, []).append(code(entry.name))
    return [
        f"{ICONS[status]} No collective changed in {listed(names, MAX_LISTED)}."
        for status, names in names_by_status.items()
    ]


def _group_by_key(
    entries: Sequence[WorkloadSection], key: Callable[[WorkloadSection], object]
) -> list[list[WorkloadSection]]:
    """Return groups of workloads with equal status and equal ``key``."""
    groups: dict[object, list[WorkloadSection]] = {}
    for entry in entries:
        groups.setdefault((entry.status, key(entry)), []).append(entry)
    return list(groups.values())


def _list_change_cells(entry: WorkloadSection) -> tuple[CellTexts, ...]:
    """Return the texts of the changed collectives of a workload. Workloads with equal texts can share their rows."""
    return tuple(
        (
            line.kind,
            line.axis,
            str(line.group_size),
            volume(line, line.base),
            volume(line, line.head),
            _format_bytes(line),
        )
        for line in entry.changed
    )


def _select_first_reason(entry: WorkloadSection) -> str:
    return entry.reasons[0] if entry.reasons else "no reason was given"


def _name_workloads(check: Check, group: Sequence[WorkloadSection]) -> str:
    """Return the names of ``group``, one per line. If the workloads of the check differ in status, each name has the
    icon of its status."""
    is_mixed = len({entry.status for entry in check.entries}) > 1 and check.state is not State.NOT_JUDGED
    sign = f"{ICONS[group[0].status]} " if is_mixed else ""
    return _join_names([entry.name for entry in group], sign)


def _join_names(names: Sequence[str], sign: str = "") -> str:
    """Return the first ``NAMES_IN_CELL`` names for a cell, each on a line of its own after ``sign``."""
    lines = [f"{sign}{code(name, 80)}" for name in names[:NAMES_IN_CELL]]
    return "<br>".join([*lines, f"and {len(names) - NAMES_IN_CELL} more"] if len(names) > NAMES_IN_CELL else lines)


def _note_cut_rows(number: int) -> str:
    return f"…and {number} more rows, see the report."
