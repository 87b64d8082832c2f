"""The tables of a view: what changed in the collectives, and the step times. Workloads with equal rows share them.

A workload is *judged* (``entry.judged``) if its ledgers were compared. ``entry.lines`` has its collectives by kind and
axis, and ``entry.changed`` the lines that differ between the arms.
"""

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar, get_args

from regbot.records.ledger import Kind
from regbot.records.settings import ThroughputThresholds as Thresholds
from regbot.records.text.clip import clip, clip_ends
from regbot.records.text.units import binary_bytes
from regbot.records.verdict import Throughput
from regbot.report.headline import ICONS
from regbot.report.markdown import STRONG, Name, UntrustedText, Words
from regbot.report.notes import list_names
from regbot.report.quantities import estimate_and_interval, milliseconds
from regbot.report.state import Check, State
from regbot.report.throughput import (
    ThroughputAnswer,
    classify_throughput,
    describe_decision,
    describe_expert_shares,
    describe_setup,
    explain_entry,
    format_change,
    has_times,
    select_mean_only_test,
)
from regbot.report.workload_section import CollectiveCounts, CollectiveLine, WorkloadSection, kind_words

MAX_NAMES_IN_CELL = 4
MAX_LISTED = 8
"""Maximum number of explanations below a table."""
MAX_SETUPS = 2
"""Largest number of sentences about nodes. Workloads that were timed on the same node share a sentence."""
AXIS_CHARACTERS = 40


@dataclass(frozen=True)
class Table:
    """A table. A line end in a trusted part of a cell begins a new line within the cell."""

    columns: tuple[str, ...]
    rows: Sequence[tuple[Words, ...]]


@dataclass(frozen=True)
class Items:
    """A list. A line end in a trusted part of an item begins a new line within the item."""

    items: Sequence[Words]


@dataclass(frozen=True)
class Log:
    """The end of a log, untrusted."""

    text: str


Block = Words | Table | Items | Log
"""A part of a view. Words alone are a paragraph."""

Key = TypeVar("Key", bound=Hashable)


def share(keys_and_names: Iterable[tuple[Key, str]]) -> list[tuple[Key, list[str]]]:
    """Return each key once, with the names of the workloads that have it. Empty keys are left out."""
    names_by_key: dict[Key, list[str]] = {}
    for key, name in keys_and_names:
        if key:
            names_by_key.setdefault(key, []).append(name)
    return list(names_by_key.items())


def name_axis(axis: str, group_size: int) -> Words:
    """Return a mesh axis with the size of its groups."""
    return (Name(clip(axis, AXIS_CHARACTERS)), f" ({group_size})")


def compare_collectives(check: Check) -> list[Block]:
    """Return the table of collectives, and sentences that say what the table leaves out."""
    # ``check.changed`` also has workloads with a finding and equal collectives. The table leaves these out.
    changed = [entry for entry in check.changed if entry.changed]
    unmeasured = [entry for entry in check.entries if not entry.judged]
    if not check.entries:
        return []
    if not changed and not unmeasured:
        return [_tabulate_unchanged(check.entries)]
    reasons = share(((entry.status, (entry.reasons or ["no reason was given"])[0]), entry.name) for entry in unmeasured)
    if not changed and len(unmeasured) == len(check.entries):
        rows: list[tuple[Words, ...]] = [
            (_join_names(names), (status,), (UntrustedText(clip_ends(reason, 400)),))
            for (status, reason), names in reasons
        ]
        return [Table(("workload", "verdict", "why"), rows)]
    rows = []
    is_mixed = len({entry.status for entry in check.entries}) > 1 and check.state is not State.NOT_JUDGED
    signs = {status: f"{icon} " if is_mixed else "" for status, icon in ICONS.items()}
    changes = share(((entry.status, tuple(map(_list_change_cells, entry.changed))), entry.name) for entry in changed)
    for (status, lines), names in changes:
        rows += [(_join_names(names, signs[status]) if n == 0 else (), *cells) for n, cells in enumerate(lines)]
    for (status, reason), names in reasons:
        why = ("not measured: ", UntrustedText(clip_ends(reason, 200)))
        rows.append((_join_names(names, signs[status]), why, (), (), ()))
    table = Table(("workload", "collective", "base", "head", "bytes per step"), rows)
    return [table, *_name_unchanged_lines(changed), *_name_unchanged_workloads(check)]


def _list_change_cells(line: CollectiveLine) -> tuple[Words, ...]:
    kind = (f"{kind_words(line.kind)} ", *name_axis(line.axis, line.group_size))
    return (kind, format_volume(line, line.base), _format_head_volume(line), _format_bytes(line))


def format_volume(line: CollectiveLine, tally: CollectiveCounts) -> Words:
    """Return one arm's count in total and per layer, as ``240 (5 per layer)`` or ``4 (all in layers.3)``."""
    if len(tally.layers) == 1 and line.reach > 1 and not tally.outside:
        return (f"{tally.count} (all in ", Name(next(iter(tally.layers))), ")")
    per_layer = line.describe_count(tally)
    return (f"{tally.count} (", *per_layer, ")") if per_layer else (str(tally.count),)


def _format_head_volume(line: CollectiveLine) -> Words:
    """Return head's count, in bold if it differs from base's. A few layers that lost all collectives are named."""
    head_volume = format_volume(line, line.head)
    if line.base.count == line.head.count:
        return head_volume if format_volume(line, line.base) == head_volume else (STRONG, *head_volume, STRONG)
    if missing := line.list_missing_layers():
        # If every layer of base has the same count, "5 per layer" is shorter than "5 in 47 of 48 layers".
        is_uniform = len(line.base.layers) == line.reach and len(set(line.base.layers.values())) == 1
        count = line.describe_count(line.base if is_uniform else line.head)
        head_volume = (f"{line.head.count} (", *count, ", 0 in ", *list_names(missing), ")")
    return (STRONG, "▲ " if line.head.count > line.base.count else "▼ ", *head_volume, STRONG)


def _format_bytes(line: CollectiveLine) -> Words:
    """Return the bytes of both arms. If both round to the same text, return base's bytes and the difference."""
    base_bytes, head_bytes = binary_bytes(line.base.bytes), binary_bytes(line.head.bytes)
    if line.base.bytes == line.head.bytes:
        return (base_bytes,)
    if base_bytes != head_bytes:
        return (f"{base_bytes} → ", STRONG, head_bytes, STRONG)
    difference = line.head.bytes - line.base.bytes
    return (f"{base_bytes} ", STRONG, f"{'+' if difference > 0 else '−'}{binary_bytes(abs(difference))}", STRONG)


def _tabulate_unchanged(entries: Sequence[WorkloadSection]) -> Table:
    """Return the table for a check without changes. It has one column per kind of collective."""
    present = {line.kind for entry in entries for line in entry.lines}
    kinds = [kind for kind in get_args(Kind) if kind in present]
    cells = [(tuple(_format_unchanged_cell(entry, kind) for kind in kinds), entry.name) for entry in entries]
    rows = [(_join_names(names), *row) for (row,), names in share(((row,), name) for row, name in cells)]
    return Table(("workload", *map(kind_words, kinds)), rows)


def _format_unchanged_cell(entry: WorkloadSection, kind: Kind) -> Words:
    """Return a line for each axis; ``0`` for a workload without such collectives."""
    words: list[str] = []
    for line in entry.lines:
        if line.kind == kind:
            words += ["\n", *format_volume(line, line.base), " on ", *name_axis(line.axis, line.group_size)]
    return tuple(words[1:]) or ("0",)


def _name_unchanged_lines(entries: Sequence[WorkloadSection]) -> list[Words]:
    """Return a sentence that names the unchanged collectives of ``entries``, which are workloads with changes."""
    lines = [line for entry in entries for line in entry.lines if not line.changed]
    names = list(dict.fromkeys(f"{kind_words(line.kind)} {clip(line.axis, AXIS_CHARACTERS)}" for line in lines))
    scope = "this workload" if len(entries) == 1 else "these workloads"
    return [(f"Unchanged in {scope}: ", *list_names(names), ".")] if names else []


def _name_unchanged_workloads(check: Check) -> list[Words]:
    """Return a sentence for each status: the workloads with this status whose collectives did not change."""
    unchanged = share((entry.status, entry.name) for entry in check.entries if entry.judged and not entry.changed)
    return [(f"{ICONS[status]} No collective changed in ", *list_names(names), ".") for status, names in unchanged]


def _join_names(names: Sequence[str], sign: str = "") -> Words:
    """Return the names for a cell, each on a line of its own after ``sign``."""
    words: list[str] = []
    for name in names[:MAX_NAMES_IN_CELL]:
        words += [f"\n{sign}" if words else sign, Name(clip(name, 80))]
    if len(names) > MAX_NAMES_IN_CELL:
        words.append(f"\nand {len(names) - MAX_NAMES_IN_CELL} more")
    return tuple(words)


def tabulate_step_times(check: Check) -> list[Block]:
    """Return the table of step times and the explanations below it; [] if no workload has a throughput section."""
    timed = [(entry, entry.throughput) for entry in check.entries if entry.throughput is not None]
    thresholds = check.session.header.throughput
    with_times = [(entry, throughput) for entry, throughput in timed if has_times(throughput)]
    blocks: list[Block] = []
    if with_times:
        columns = ("workload", "base step", "head step", "change [interval]", "pairs", "throughput")
        blocks.append(Table(columns, [_format_cells(entry, section, thresholds) for entry, section in with_times]))
    explained = share((explain_entry(entry, section), entry.name) for entry, section in with_times)
    if explained:
        blocks.append(Items([(*list_names(names), ": ", *why) for why, names in explained[:MAX_LISTED]]))
    answers = share(
        ((ICONS[section.status], describe_decision(section, thresholds), explain_entry(entry, section)), entry.name)
        for entry, section in timed
        if not has_times(section)
    )
    for (icon, answer, why), names in answers[:MAX_LISTED]:
        end: Words = (": ", *why) if why else (".",)
        blocks.append((f"{icon} ", STRONG, "Throughput", STRONG, " of ", *list_names(names), f": {answer}", *end))
    setups = dict.fromkeys(describe_setup(entry, section) for entry, section in timed if entry.timed)
    shares = describe_expert_shares([(entry.name, section) for entry, section in with_times])
    return [*blocks, *list(setups)[:MAX_SETUPS], *([shares] if shares else [])]


def _format_cells(entry: WorkloadSection, throughput: Throughput, thresholds: Thresholds) -> tuple[Words, ...]:
    """The step times are medians. A comparison with stored sessions has no pairs, and main's step time as base's."""
    pairs = "none" if throughput.by == "stored" else ""
    if throughput.pairs or throughput.void_pairs:
        pairs = str(throughput.pairs) + (f", and {throughput.void_pairs} void" if throughput.void_pairs else "")
    note = " (median)" if select_mean_only_test(throughput) else ""
    base_note = " (of main)" if throughput.by == "stored" else note
    return (
        (Name(entry.name),),
        ("" if throughput.base_step_s is None else milliseconds(throughput.base_step_s), base_note),
        ("" if throughput.head_step_s is None else milliseconds(throughput.head_step_s), note),
        _format_change_cell(throughput),
        (pairs,),
        (f"{ICONS[throughput.status]} {describe_decision(throughput, thresholds)}",),
    )


def _format_change_cell(throughput: Throughput) -> Words:
    """Return the cell with the change of the median step time. If only the mean decided, its change is added below."""
    change, interval = format_change(throughput)
    if mean := select_mean_only_test(throughput):
        mean_change, mean_interval = estimate_and_interval(mean.estimate_pct, mean.low_pct, mean.high_pct)
        return (f"median {change} {interval}\nmean ", STRONG, mean_change, STRONG, f" {mean_interval}")
    if change and classify_throughput(throughput) in (ThroughputAnswer.SLOWER, ThroughputAnswer.FASTER):
        return (STRONG, change, STRONG, f" {interval}")
    return (f"{change} {interval}".strip(),)
