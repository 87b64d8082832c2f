"""The picture of two ledgers. For every kind of collective, axis, phase and role, base and head have a strip of cells.

A cell is a layer. It is coloured if the layer issues such collectives, and empty otherwise. Differences are framed in
both arms. If a dispatcher falls back to another kind of collective, the strips of one kind end in head and the strips
of another kind begin. Both arms have the same scale. The style sheet defines the colours.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import get_args

from regbot.ledgers.rows import find_unit, template
from regbot.records.ledger import Entry, Kind, Ledger, Phase, Role
from regbot.records.verdict import Volume
from regbot.report.workload_section import CollectiveLine, in_layer, kind_words
from regbot.text.units import binary_bytes

MAX_DRAWN_COLUMNS = 160
MAX_DRAWN_BANDS = 48
"""Maximum numbers of layers and of bands in the picture. Text below the picture says how many bands are left out. The
table contains all of them."""

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
"""Width in pixels of the space before that column."""

BandKey = tuple[Kind, str, int, Phase, Role]
"""Kind, axis, group size, phase and role."""


@dataclass(frozen=True)
class LayerCell:
    """A layer of a strip that issues collectives. ``strength`` is its opacity, in (0, 1]."""

    x: float
    column: str
    count: int
    size: str
    strength: float


@dataclass(frozen=True)
class ChangeFrame:
    """A frame around adjacent layers and strips that differ between the arms. ``gone``: arms that issue no collective
    there."""

    x: float
    y: float
    width: float
    height: float
    gone: tuple[str, ...]


@dataclass(frozen=True)
class LayerStrip:
    """One kind, axis, phase and role of one arm."""

    cells: tuple[LayerCell, ...]
    count: int
    changed: bool


@dataclass(frozen=True)
class Band:
    """The strips of base and head for one kind, axis, phase and role. ``title`` is set only on the first band of a kind
    and axis."""

    y: float
    kind: Kind
    title: str
    axis: str
    label: str
    role: Role
    base: LayerStrip
    head: LayerStrip
    differences: tuple[tuple[float, float], ...]
    """Start and width, in pixels, of each group of adjacent columns that differ between the arms."""


@dataclass(frozen=True)
class Picture:
    """Everything that the template draws. All lengths are in pixels. ``strip``, ``cell``: widths of a strip and of a
    cell. ``rest_x``: x of the column ``OUTSIDE_LAYERS`` in a strip, None without this column."""

    width: float
    height: float
    base_x: float
    head_x: float
    strip: float
    cell: float
    rest_x: float | None
    ticks: tuple[tuple[float, str], ...]
    bands: tuple[Band, ...]
    frames: tuple[ChangeFrame, ...]
    left_out: int


def draw_ledgers(base: Ledger, head: Ledger) -> Picture:
    """Return the picture of two comparable ledgers."""
    layers = _list_layers([*base.entries, *head.entries])[:MAX_DRAWN_COLUMNS]
    has_outside = any(not in_layer(entry.where) for entry in (*base.entries, *head.entries))
    column_count = len(layers) + (1 if has_outside else 0)
    cell = (STRIP_WIDTH - (OUTSIDE_GAP if has_outside else 0)) / max(column_count, 1)
    cell = min(cell, ROW_HEIGHT)
    xs = {name: number * cell for number, name in enumerate(layers)}
    if has_outside:
        xs[OUTSIDE_LAYERS] = len(layers) * cell + (OUTSIDE_GAP if layers else 0)
    strip = max(xs.values(), default=0) + cell
    keys, sides = _group_entries(base, head)
    max_count = max(
        (volume.count for side in sides for columns in side.values() for volume in columns.values()), default=1
    )
    bands = []
    y, previous = TOP_HEIGHT, None
    for key in keys[:MAX_DRAWN_BANDS]:
        kind, axis, size, phase, role = key
        is_first = previous != key[:3]
        y += GROUP_GAP if is_first and previous is not None else 0
        base_columns, head_columns = sides[0].get(key, {}), sides[1].get(key, {})
        differing = [name for name in xs if base_columns.get(name) != head_columns.get(name)]
        bands.append(
            Band(
                y=y,
                kind=kind,
                title=kind_words(kind) if is_first else "",
                axis=f"{_shorten_axis(axis)} ({size})" if is_first else "",
                label=f"{phase} {role}",
                role=role,
                base=_build_strip(base_columns, xs, max_count, base_columns != head_columns),
                head=_build_strip(head_columns, xs, max_count, base_columns != head_columns),
                differences=_join_columns(differing, xs, cell),
            )
        )
        y += ROW_HEIGHT
        previous = key[:3]
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


def _group_entries(base: Ledger, head: Ledger) -> tuple[list[BandKey], list[dict[BandKey, dict[str, Volume]]]]:
    """Return the keys in drawing order, and for each arm the volumes by key and column. Changed keys come first, and
    phases are in the order of a step."""
    sides: list[dict[BandKey, dict[str, Volume]]] = []
    bytes_by_group: dict[tuple[Kind, str, int], int] = defaultdict(int)
    for ledger in (base, head):
        columns: dict[BandKey, dict[str, Volume]] = defaultdict(dict)
        for entry in ledger.entries:
            name = find_unit(entry.where) if in_layer(entry.where) else OUTSIDE_LAYERS
            columns_of_key = columns[entry.kind, entry.axis, entry.group_size, entry.phase, entry.role]
            volume = columns_of_key.get(name, Volume(count=0, bytes=0))
            columns_of_key[name] = Volume(count=volume.count + entry.count, bytes=volume.bytes + entry.bytes)
            bytes_by_group[entry.kind, entry.axis, entry.group_size] += entry.bytes
        sides.append(columns)
    changed = {key[:3] for key in sides[0].keys() | sides[1].keys() if sides[0].get(key) != sides[1].get(key)}
    phases = ("forward", "backward", "optimizer", "unknown")

    def rank(key: BandKey) -> tuple[object, ...]:
        return (
            key[:3] not in changed,
            KINDS.index(key[0]),
            -bytes_by_group[key[:3]],
            key[:3],
            phases.index(key[3]),
            key[4] == "payload",
        )

    return sorted(sides[0].keys() | sides[1].keys(), key=rank), sides


def _build_strip(columns: dict[str, Volume], xs: dict[str, float], max_count: int, changed: bool) -> LayerStrip:
    cells = tuple(
        LayerCell(
            x,
            name,
            columns[name].count,
            binary_bytes(columns[name].bytes),
            round(0.45 + 0.55 * columns[name].count / max_count, 2),
        )
        for name, x in xs.items()
        if name in columns
    )
    return LayerStrip(cells, sum(volume.count for volume in columns.values()), changed)


def _join_columns(names: Iterable[str], xs: dict[str, float], cell: float) -> tuple[tuple[float, float], ...]:
    """Join adjacent columns into groups. Return the start and the width of each group in pixels."""
    column_numbers = {name: number for number, name in enumerate(xs)}
    groups = []
    ordered = enumerate(sorted(names, key=column_numbers.__getitem__))
    for _, pairs in groupby(ordered, key=lambda pair: (column_numbers[pair[1]] - pair[0], pair[1] == OUTSIDE_LAYERS)):
        group = [name for _, name in pairs]
        groups.append((xs[group[0]], xs[group[-1]] + cell - xs[group[0]]))
    return tuple(groups)


def _frame_differences(bands: Sequence[Band]) -> list[ChangeFrame]:
    """Return the frames around differences. Adjacent strips of one kind and axis that differ in the same layers share a
    frame."""
    frames = []
    stacks: list[list[Band]] = []
    for band in bands:
        if stacks and not band.title and stacks[-1][0].differences == band.differences:
            stacks[-1].append(band)
        else:
            stacks.append([band])
    for stack in stacks:
        y, bottom = stack[0].y, stack[-1].y + ROW_HEIGHT
        for x, width in stack[0].differences:
            arms = (("base", [band.base for band in stack]), ("head", [band.head for band in stack]))
            empty_arms = tuple(
                arm
                for arm, strips in arms
                if not any(x <= cell.x < x + width for strip in strips for cell in strip.cells)
            )
            frames.append(ChangeFrame(x, y, width, bottom - y, empty_arms))
    return frames


def _list_layers(entries: Sequence[Entry]) -> list[str]:
    """Return every layer once, grouped by stack and ordered by number."""
    names = {find_unit(entry.where) for entry in entries if in_layer(entry.where)}
    return sorted(names, key=lambda name: (template(name), [int(number) for number in re.findall(r"\d+", name)[-1:]]))


def _place_ticks(layers: Sequence[str], xs: dict[str, float]) -> tuple[tuple[float, str], ...]:
    step = next((step for step in (1, 2, 4, 8, 16, 32) if len(layers) <= 8 * step), 64)
    return tuple((xs[name], name.rpartition(".")[2][:6]) for name in layers[::step])


def _shorten_axis(axis: str) -> str:
    return axis if len(axis) <= 14 else f"{axis[:13]}…"


@dataclass(frozen=True)
class Segment:
    """One kind of collective on one axis, as a part of a bar of bytes. ``x`` and ``width`` are in percent of the longer
    bar."""

    kind: Kind
    axis: str
    x: float
    width: float
    size: str
    bytes: int


@dataclass(frozen=True)
class Bar:
    """The bytes of one arm as a stacked bar."""

    arm: str
    total: str
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
    segments, x = [], 0.0
    for line, size in sizes:
        width = 100 * size / longest
        if size:
            segments.append(Segment(line.kind, line.axis, round(x, 3), round(width, 3), binary_bytes(size), size))
        x += width
    return Bar(arm, binary_bytes(sum(size for _, size in sizes)), tuple(segments))
