"""The picture of two ledgers: a strip of layers for every kind, axis, phase and role, base beside head.

A layer that exchanges something is a coloured cell, one that does not is empty; what differs between the arms is framed
in both. A fallback is then seen before anything is read: the strips of one kind end, those of another begin. Both arms
have one scale. Nothing here knows colours: they are the style sheet's.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import get_args

from regbot.ledgers.rows import template, unit
from regbot.records.ledger import Entry, Kind, Ledger, Phase, Role
from regbot.records.verdict import Volume
from regbot.report.measured import Line, in_layer, kind_words
from regbot.units import binary_bytes

COLUMNS_DRAWN = 160
STRIPS_DRAWN = 48
"""More would not be seen; what is left out is said below the picture and stands in the table."""

LABEL, TOTAL, GAP, STRIP = 300.0, 50.0, 24.0, 372.0
"""Widths in pixels of the labels, of a strip's total, of the space between the arms, of a strip."""

KINDS: tuple[Kind, ...] = get_args(Kind)
"""In the order of drawing: what exchanges tokens first."""

ROW, HEAD, GROUP_GAP, AXIS = 17.0, 30.0, 7.0, 22.0
REST_GAP = 5.0
REST = "outside layers"

Key = tuple[Kind, str, int, Phase, Role]


@dataclass(frozen=True)
class Cell:
    """One layer of one strip, where something is issued. ``strength`` is in (0, 1]."""

    x: float
    column: str
    count: int
    size: str
    strength: float


@dataclass(frozen=True)
class Frame:
    """Neighbouring layers of neighbouring strips that differ. ``gone`` names the arms that issue nothing there."""

    x: float
    y: float
    width: float
    height: float
    gone: tuple[str, ...]


@dataclass(frozen=True)
class Strip:
    """One kind, axis, phase and role of one arm."""

    cells: tuple[Cell, ...]
    count: int
    changed: bool


@dataclass(frozen=True)
class Band:
    """The strips of both arms. ``title`` is set on the first band of a kind and axis."""

    y: float
    kind: Kind
    title: str
    axis: str
    label: str
    role: Role
    base: Strip
    head: Strip
    runs: tuple[tuple[float, float], ...]


@dataclass(frozen=True)
class Picture:
    """Everything the template draws; all lengths in pixels."""

    width: float
    height: float
    base_x: float
    head_x: float
    strip: float
    cell: float
    rest_x: float | None
    ticks: tuple[tuple[float, str], ...]
    bands: tuple[Band, ...]
    frames: tuple[Frame, ...]
    left_out: int


def picture(base: Ledger, head: Ledger) -> Picture:
    """The picture of two ledgers that can be compared."""
    layers = _layers([*base.entries, *head.entries])[:COLUMNS_DRAWN]
    rest = any(not in_layer(entry.where) for entry in (*base.entries, *head.entries))
    slots = len(layers) + (1 if rest else 0)
    cell = (STRIP - (REST_GAP if rest else 0)) / max(slots, 1)
    cell = min(cell, ROW)
    xs = {name: number * cell for number, name in enumerate(layers)}
    if rest:
        xs[REST] = len(layers) * cell + (REST_GAP if layers else 0)
    strip = max(xs.values(), default=0) + cell
    keys, sides = _grouped(base, head)
    most = max((v.count for side in sides for columns in side.values() for v in columns.values()), default=1)
    bands = []
    y, previous = HEAD, None
    for key in keys[:STRIPS_DRAWN]:
        kind, axis, size, phase, role = key
        first = previous != key[:3]
        y += GROUP_GAP if first and previous is not None else 0
        ours, theirs = sides[0].get(key, {}), sides[1].get(key, {})
        differing = [name for name in xs if ours.get(name) != theirs.get(name)]
        bands.append(
            Band(
                y=y,
                kind=kind,
                title=kind_words(kind) if first else "",
                axis=f"{_short(axis)} ({size})" if first else "",
                label=f"{phase} {role}",
                role=role,
                base=_strip(ours, xs, most, ours != theirs),
                head=_strip(theirs, xs, most, ours != theirs),
                runs=_runs(differing, xs, cell),
            )
        )
        y += ROW
        previous = key[:3]
    return Picture(
        width=LABEL + 2 * (strip + TOTAL) + GAP,
        height=y + AXIS,
        base_x=LABEL,
        head_x=LABEL + strip + TOTAL + GAP,
        strip=strip,
        cell=cell,
        rest_x=xs.get(REST),
        ticks=_ticks(layers, xs),
        bands=tuple(bands),
        frames=tuple(_frames(bands)),
        left_out=max(0, len(keys) - STRIPS_DRAWN),
    )


def _grouped(base: Ledger, head: Ledger) -> tuple[list[Key], list[dict[Key, dict[str, Volume]]]]:
    """Keys in drawing order (what differs first, phases as they run), and per arm the volume of each column."""
    sides: list[dict[Key, dict[str, Volume]]] = []
    weight: dict[tuple[Kind, str, int], int] = defaultdict(int)
    for ledger in (base, head):
        columns: dict[Key, dict[str, Volume]] = defaultdict(dict)
        for e in ledger.entries:
            name = unit(e.where) if in_layer(e.where) else REST
            here = columns[e.kind, e.axis, e.group_size, e.phase, e.role]
            before = here.get(name, Volume(count=0, bytes=0))
            here[name] = Volume(count=before.count + e.count, bytes=before.bytes + e.bytes)
            weight[e.kind, e.axis, e.group_size] += e.bytes
        sides.append(columns)
    moved = {key[:3] for key in sides[0].keys() | sides[1].keys() if sides[0].get(key) != sides[1].get(key)}
    phases = ("forward", "backward", "optimizer", "unknown")

    def rank(key: Key) -> tuple[object, ...]:
        return (
            key[:3] not in moved,
            KINDS.index(key[0]),
            -weight[key[:3]],
            key[:3],
            phases.index(key[3]),
            key[4] == "payload",
        )

    return sorted(sides[0].keys() | sides[1].keys(), key=rank), sides


def _strip(columns: dict[str, Volume], xs: dict[str, float], most: int, changed: bool) -> Strip:
    cells = tuple(
        Cell(
            x,
            name,
            columns[name].count,
            binary_bytes(columns[name].bytes),
            round(0.45 + 0.55 * columns[name].count / most, 2),
        )
        for name, x in xs.items()
        if name in columns
    )
    return Strip(cells, sum(volume.count for volume in columns.values()), changed)


def _runs(names: Iterable[str], xs: dict[str, float], cell: float) -> tuple[tuple[float, float], ...]:
    """Neighbouring columns joined: where each run begins, and its width."""
    place = {name: number for number, name in enumerate(xs)}
    runs = []
    ordered = enumerate(sorted(names, key=place.__getitem__))
    for _, group in groupby(ordered, key=lambda pair: (place[pair[1]] - pair[0], pair[1] == REST)):
        run = [name for _, name in group]
        runs.append((xs[run[0]], xs[run[-1]] + cell - xs[run[0]]))
    return tuple(runs)


def _frames(bands: Sequence[Band]) -> list[Frame]:
    """One frame around neighbouring strips of one kind and axis that differ in the same layers."""
    frames = []
    stacks: list[list[Band]] = []
    for band in bands:
        if stacks and not band.title and stacks[-1][0].runs == band.runs:
            stacks[-1].append(band)
        else:
            stacks.append([band])
    for stack in stacks:
        y, bottom = stack[0].y, stack[-1].y + ROW
        for x, width in stack[0].runs:
            arms = (("base", [band.base for band in stack]), ("head", [band.head for band in stack]))
            gone = tuple(arm for arm, strips in arms if not any(x <= c.x < x + width for s in strips for c in s.cells))
            frames.append(Frame(x, y, width, bottom - y, gone))
    return frames


def _layers(entries: Sequence[Entry]) -> list[str]:
    """Every layer once, those of one stack together, in the order of their numbers."""
    names = {unit(entry.where) for entry in entries if in_layer(entry.where)}
    return sorted(names, key=lambda name: (template(name), [int(number) for number in re.findall(r"\d+", name)[-1:]]))


def _ticks(layers: Sequence[str], xs: dict[str, float]) -> tuple[tuple[float, str], ...]:
    step = next((step for step in (1, 2, 4, 8, 16, 32) if len(layers) <= 8 * step), 64)
    return tuple((xs[name], name.rpartition(".")[2][:6]) for name in layers[::step])


def _short(axis: str) -> str:
    return axis if len(axis) <= 14 else f"{axis[:13]}…"


@dataclass(frozen=True)
class Segment:
    """One kind on one axis in a bar of bytes, in percent of the longer bar."""

    kind: Kind
    axis: str
    x: float
    width: float
    size: str
    bytes: int


@dataclass(frozen=True)
class Bar:
    """The payload of one arm."""

    arm: str
    total: str
    segments: tuple[Segment, ...]


def bars(lines: Sequence[Line]) -> tuple[Bar, Bar]:
    """Bytes of each kind and axis as one stacked bar an arm, on one scale, what is equal first."""
    ordered = sorted(lines, key=lambda x: (x.base.bytes != x.head.bytes, KINDS.index(x.kind), x.axis, x.group_size))
    longest = max(sum(line.base.bytes for line in lines), sum(line.head.bytes for line in lines), 1)
    return _bar("base", [(x, x.base.bytes) for x in ordered], longest), _bar(
        "head", [(x, x.head.bytes) for x in ordered], longest
    )


def _bar(arm: str, sizes: Sequence[tuple[Line, int]], longest: int) -> Bar:
    segments, x = [], 0.0
    for line, size in sizes:
        width = 100 * size / longest
        if size:
            segments.append(Segment(line.kind, line.axis, round(x, 3), round(width, 3), binary_bytes(size), size))
        x += width
    return Bar(arm, binary_bytes(sum(size for _, size in sizes)), tuple(segments))
