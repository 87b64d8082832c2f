"""The picture of two ledgers. For every kind of collective, axis, phase and role, base and head have a strip of cells.
The two strips, side by side, are a band.

A cell is a layer. It is coloured if the layer issues collectives of this kind, axis, phase and role, and empty
otherwise. Frames in both arms mark the differences. If a dispatcher falls back to another kind of collective, head has
empty strips of one kind, and base has empty strips of another kind. Both arms have the same scale. The style sheet
defines the colours.

``where`` of a ledger entry is the path of the module that issued the collective. ``find_unit`` returns the layer in it.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import get_args

from regbot.ledgers.rows import find_unit, template
from regbot.records.ledger import Entry, Kind, Ledger, Phase, Role
from regbot.records.text.clip import clip
from regbot.records.text.units import binary_bytes
from regbot.records.verdict import Volume
from regbot.report.workload_section import CollectiveLine, in_layer, kind_words

MAX_DRAWN_COLUMNS = 160
MAX_DRAWN_BANDS = 48
"""Maximum numbers of layers and of bands in the picture. Text below the picture says how many bands are left out. The
table of the report contains all collectives."""

MIN_CELL_OPACITY = 0.45
"""Opacity of a cell with almost no collectives. A cell with the largest count has 1."""

MAX_AXIS_CHARACTERS, TICK_CHARACTERS = 14, 6
"""Largest lengths of the name of a mesh axis and of the label of a tick."""

LABEL_WIDTH, TOTAL_WIDTH, ARM_GAP, STRIP_WIDTH = 300.0, 50.0, 24.0, 372.0
"""Widths in pixels of the labels, of the total beside a strip, of the space between the arms, and of a strip."""

KINDS: tuple[Kind, ...] = get_args(Kind)
"""Kinds of collectives in drawing order. Kinds that exchange tokens come first."""

ROW_HEIGHT, TOP_HEIGHT, GROUP_GAP, AXIS_HEIGHT = 17.0, 30.0, 7.0, 22.0
"""Heights in pixels of a strip, of the heading, of the space between groups of bands, and of the axis with the
layers."""
OUTSIDE_LAYERS = "outside layers"
"""Name of the last column, for collectives of modules outside of layers."""
OUTSIDE_GAP = 5.0
"""Width in pixels of the space before the column ``OUTSIDE_LAYERS``."""

BandKey = tuple[Kind, str, int, Phase, Role]
"""Kind, axis, group size, phase and role."""

Columns = dict[str, Volume]
"""Name of a layer, or ``OUTSIDE_LAYERS`` -> number and bytes of the collectives that it issues."""


@dataclass(frozen=True)
class LayerCell:
    """A layer of a strip that issues collectives."""

    x: float
    """Left edge in pixels, from the left edge of the strip."""
    column: str
    """Name of the layer, or ``OUTSIDE_LAYERS``."""
    count: int
    size: str
    """The bytes as text, such as ``12 MiB``."""
    strength: float
    """Opacity, in (0, 1]. It grows with the count."""


@dataclass(frozen=True)
class ChangeFrame:
    """A frame around adjacent layers and strips that differ between the arms. Lengths are in pixels."""

    x: float
    """Left edge, from the left edge of the strip. Both arms have the frame at the same place of their strips."""
    y: float
    width: float
    height: float
    gone: tuple[str, ...]
    """Arms that issue no collective within the frame."""


@dataclass(frozen=True)
class LayerStrip:
    """The collectives of one kind, axis, phase and role in one arm."""

    cells: tuple[LayerCell, ...]
    count: int
    """Number of collectives in all cells."""
    changed: bool
    """Whether the strips of base and head differ."""


@dataclass(frozen=True)
class Band:
    """The strips of base and head for one kind, axis, phase and role."""

    y: float
    """Top edge in pixels."""
    kind: Kind
    title: str
    """Name of the kind; '' if the band above has the same kind, axis and group size."""
    axis: str
    """Name of the axis with the group size; '' under the same condition as ``title``."""
    label: str
    """Phase and role."""
    role: Role
    base: LayerStrip
    head: LayerStrip
    differences: tuple[tuple[float, float], ...]
    """Start and width, in pixels, of each group of adjacent columns that differ between the arms."""


@dataclass(frozen=True)
class Picture:
    """Everything that the template draws. All lengths are in pixels."""

    width: float
    height: float
    base_x: float
    """Left edge of base's strips."""
    head_x: float
    """Left edge of head's strips."""
    strip: float
    """Width of a strip."""
    cell: float
    """Width of a cell."""
    rest_x: float | None
    """x of the column ``OUTSIDE_LAYERS`` in a strip; None without this column."""
    ticks: tuple[tuple[float, str], ...]
    """x in a strip, and label, of the ticks of the axis with the layers."""
    bands: tuple[Band, ...]
    frames: tuple[ChangeFrame, ...]
    left_out: int
    """Number of bands that are not drawn."""


def draw_ledgers(base: Ledger, head: Ledger) -> Picture:
    """Return the picture of two comparable ledgers."""
    layers = _list_layers([*base.entries, *head.entries])[:MAX_DRAWN_COLUMNS]
    has_outside = any(not in_layer(entry.where) for entry in (*base.entries, *head.entries))
    column_count = len(layers) + (1 if has_outside else 0)
    # The widths of a cell and of a strip, in pixels.
    cell = (STRIP_WIDTH - (OUTSIDE_GAP if has_outside else 0)) / max(column_count, 1)
    cell = min(cell, ROW_HEIGHT)  # a cell is at most a square
    xs = {name: number * cell for number, name in enumerate(layers)}  # x of each column in a strip
    if has_outside:
        xs[OUTSIDE_LAYERS] = len(layers) * cell + (OUTSIDE_GAP if layers else 0)
    strip = max(xs.values(), default=0) + cell
    base_bands, head_bands = _group_by_band(base), _group_by_band(head)
    keys = _order_bands(base_bands, head_bands)
    counts = [volume.count for columns in (*base_bands.values(), *head_bands.values()) for volume in columns.values()]
    max_count = max(counts, default=1)
    bands = []
    y = TOP_HEIGHT
    previous_group: tuple[Kind, str, int] | None = None
    for key in keys[:MAX_DRAWN_BANDS]:
        kind, axis, size, phase, role = key
        is_first_of_group = previous_group != (kind, axis, size)
        if is_first_of_group and previous_group is not None:
            y += GROUP_GAP
        base_columns, head_columns = base_bands.get(key, {}), head_bands.get(key, {})
        changed = base_columns != head_columns
        differing = [name for name in xs if base_columns.get(name) != head_columns.get(name)]
        bands.append(
            Band(
                y=y,
                kind=kind,
                title=kind_words(kind) if is_first_of_group else "",
                axis=f"{_shorten_axis(axis)} ({size})" if is_first_of_group else "",
                label=f"{phase} {role}",
                role=role,
                base=_build_strip(base_columns, xs, max_count, changed),
                head=_build_strip(head_columns, xs, max_count, changed),
                differences=_join_columns(differing, xs, cell),
            )
        )
        y += ROW_HEIGHT
        previous_group = (kind, axis, size)
    return Picture(
        width=LABEL_WIDTH + 2 * (strip + TOTAL_WIDTH) + ARM_GAP,
        height=y + AXIS_HEIGHT,
        base_x=LABEL_WIDTH,
        head_x=LABEL_WIDTH + strip + TOTAL_WIDTH + ARM_GAP,
        strip=strip,
        cell=cell,
        rest_x=xs.get(OUTSIDE_LAYERS),
        ticks=_place_ticks(layers, xs),
        bands=tuple(bands),
        frames=tuple(_frame_differences(bands)),
        left_out=max(0, len(keys) - MAX_DRAWN_BANDS),
    )


def _group_by_band(ledger: Ledger) -> dict[BandKey, Columns]:
    """Return the collectives of a ledger by band and by layer."""
    bands: dict[BandKey, Columns] = defaultdict(dict)
    for entry in ledger.entries:
        name = find_unit(entry.where) if in_layer(entry.where) else OUTSIDE_LAYERS
        columns = bands[entry.kind, entry.axis, entry.group_size, entry.phase, entry.role]
        volume = columns.get(name, Volume(count=0, bytes=0))
        columns[name] = Volume(count=volume.count + entry.count, bytes=volume.bytes + entry.bytes)
    return bands


def _order_bands(base_bands: dict[BandKey, Columns], head_bands: dict[BandKey, Columns]) -> list[BandKey]:
    """Return the keys of all bands in drawing order.

    Bands with the same kind, axis and group size are a group and stay together. Groups with a change come first. Within
    a kind, groups with more bytes come first. Within a group, phases are in the order of a step, and control comes
    before payload.
    """
    bytes_by_group: dict[tuple[Kind, str, int], int] = defaultdict(int)
    for bands in (base_bands, head_bands):
        for (kind, axis, size, _, _), columns in bands.items():
            bytes_by_group[kind, axis, size] += sum(volume.bytes for volume in columns.values())
    keys = base_bands.keys() | head_bands.keys()
    changed_keys = [key for key in keys if base_bands.get(key) != head_bands.get(key)]
    changed_groups = {(kind, axis, size) for kind, axis, size, _phase, _role in changed_keys}
    phases = ("forward", "backward", "optimizer", "unknown")

    def sort_key(key: BandKey) -> tuple[object, ...]:
        kind, axis, size, phase, role = key
        group = (kind, axis, size)
        return (
            group not in changed_groups,
            KINDS.index(kind),
            -bytes_by_group[group],
            group,
            phases.index(phase),
            role == "payload",
        )

    return sorted(keys, key=sort_key)


def _build_strip(columns: Columns, xs: dict[str, float], max_count: int, changed: bool) -> LayerStrip:
    """Return the strip of one arm. ``xs``: x of each column. ``max_count``: largest count of any cell in both arms."""
    cells = []
    for name, x in xs.items():
        if name in columns:
            volume = columns[name]
            strength = MIN_CELL_OPACITY + (1 - MIN_CELL_OPACITY) * volume.count / max_count
            cells.append(
                LayerCell(
                    x=x,
                    column=name,
                    count=volume.count,
                    size=binary_bytes(volume.bytes),
                    strength=round(strength, 2),
                )
            )
    return LayerStrip(tuple(cells), sum(volume.count for volume in columns.values()), changed)


def _join_columns(names: Iterable[str], xs: dict[str, float], cell: float) -> tuple[tuple[float, float], ...]:
    """Join adjacent columns into groups. Return the start and the width of each group in pixels. ``xs``: x of each
    column. ``cell``: width of a column.

    ``OUTSIDE_LAYERS`` is a group of its own, because a gap separates this column from the layers.
    """
    column_numbers = {name: number for number, name in enumerate(xs)}
    groups: list[list[str]] = []
    for name in sorted(names, key=column_numbers.__getitem__):
        # The last name of the last group is the differing column before this one.
        is_adjacent = bool(groups) and column_numbers[name] == column_numbers[groups[-1][-1]] + 1
        if is_adjacent and name != OUTSIDE_LAYERS:
            groups[-1].append(name)
        else:
            groups.append([name])
    return tuple((xs[group[0]], xs[group[-1]] + cell - xs[group[0]]) for group in groups)


def _frame_differences(bands: Sequence[Band]) -> list[ChangeFrame]:
    """Return the frames around differences. Adjacent bands of one kind and axis that differ in the same layers share a
    frame."""
    frames = []
    stacks: list[list[Band]] = []  # bands that share their frames
    for band in bands:
        has_kind_and_axis_of_previous = not band.title
        if stacks and has_kind_and_axis_of_previous and stacks[-1][0].differences == band.differences:
            stacks[-1].append(band)
        else:
            stacks.append([band])
    for stack in stacks:
        y, bottom = stack[0].y, stack[-1].y + ROW_HEIGHT
        for x, width in stack[0].differences:
            arms = (("base", [band.base for band in stack]), ("head", [band.head for band in stack]))
            empty_arms = tuple(arm for arm, strips in arms if _is_empty(strips, x, x + width))
            frames.append(ChangeFrame(x=x, y=y, width=width, height=bottom - y, gone=empty_arms))
    return frames


def _is_empty(strips: Sequence[LayerStrip], left: float, right: float) -> bool:
    """Return whether no strip has a cell between two places."""
    return not any(left <= cell.x < right for strip in strips for cell in strip.cells)


def _list_layers(entries: Sequence[Entry]) -> list[str]:
    """Return every layer once, such as ``layers.17``. Layers of one module list stay together, ordered by number."""
    names = {find_unit(entry.where) for entry in entries if in_layer(entry.where)}

    def sort_key(name: str) -> tuple[str, list[int]]:
        last_number = re.findall(r"\d+", name)[-1:]
        return template(name), [int(number) for number in last_number]

    return sorted(names, key=sort_key)


def _place_ticks(layers: Sequence[str], xs: dict[str, float]) -> tuple[tuple[float, str], ...]:
    """Return x and label of the ticks below the layers. The distance of ticks is a power of two, so that there are
    about 8 ticks or fewer."""
    step = next((step for step in (1, 2, 4, 8, 16, 32) if len(layers) <= 8 * step), 64)
    return tuple((xs[name], name.rpartition(".")[2][:TICK_CHARACTERS]) for name in layers[::step])


def _shorten_axis(axis: str) -> str:
    return clip(axis, MAX_AXIS_CHARACTERS)


@dataclass(frozen=True)
class Segment:
    """The collectives of one kind on one axis, as a part of a bar of bytes."""

    kind: Kind
    axis: str
    x: float
    """Left edge, in percent of the longer bar."""
    width: float
    """Width, in percent of the longer bar."""
    size: str
    """The bytes as text, such as ``12 MiB``."""
    bytes: int


@dataclass(frozen=True)
class Bar:
    """The bytes of one arm as a stacked bar."""

    arm: str
    total: str
    """The bytes of all segments as text."""
    segments: tuple[Segment, ...]


def draw_bars(lines: Sequence[CollectiveLine]) -> tuple[Bar, Bar]:
    """Return one stacked bar of bytes for each arm, divided by kind and axis. Both bars have the same scale. Parts that
    are equal in both arms come first."""
    ordered = sorted(
        lines,
        key=lambda line: (line.base.bytes != line.head.bytes, KINDS.index(line.kind), line.axis, line.group_size),
    )
    longest = max(sum(line.base.bytes for line in lines), sum(line.head.bytes for line in lines), 1)
    base_bar = _build_bar("base", [(line, line.base.bytes) for line in ordered], longest)
    head_bar = _build_bar("head", [(line, line.head.bytes) for line in ordered], longest)
    return base_bar, head_bar


def _build_bar(arm: str, sizes: Sequence[tuple[CollectiveLine, int]], longest: int) -> Bar:
    """Return the bar of one arm. ``sizes``: each line (a kind of collective on an axis), with its bytes in this
    arm. ``longest``: bytes of the longer bar."""
    segments, x = [], 0.0
    for line, size in sizes:
        width = 100 * size / longest
        if size:
            segments.append(
                Segment(
                    kind=line.kind,
                    axis=line.axis,
                    x=round(x, 3),
                    width=round(width, 3),
                    size=binary_bytes(size),
                    bytes=size,
                )
            )
        x += width
    return Bar(arm, binary_bytes(sum(size for _, size in sizes)), tuple(segments))
