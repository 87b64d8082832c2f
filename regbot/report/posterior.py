"""The picture of a bisection's posterior: where the culprit may be, how often each point was measured, how slow it was.

As lines of text for a terminal, where it is drawn again after every run, and as SVG for the page. Only drawn here: the
probabilities are the search's.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from regbot.records.bisection import Place
from regbot.report.plots import LABEL_GAP, LEFT, RIGHT, WIDTH
from regbot.report.quantities import count, percent
from regbot.report.scale import Scale, around
from regbot.text import printable

ALONE = 0.05
"""A point as probable as this is never merged while there are lines left."""

ALIKE = 0.02
"""Neighbours whose probabilities differ by this part say nothing by being two lines."""

NEGLIGIBLE = 0.02
"""Neighbours that have no more together are one line."""

ROUGH = 4
"""So many times the lines that there are may be weighed against each other; more would be slow after every run."""

LABEL_CHARACTERS, BAR_CHARACTERS = 34, 20
NAME_CHARACTERS, END_CHARACTERS = 24, 8
BLOCKS = " ▏▎▍▌▋▊▉█"

NONE = "none of them"
DRAWN = 0.001
"""A bar of less is not to be seen."""

TOP, MIDDLE, GAP, MASS = 20.0, 170.0, 34.0, 130.0
NONE_WIDTH = 96.0
CHARACTER = 6.4
"""Pixels, about: of the means' panel, of what is between it and the bars, of the bars, of 'none', of a letter."""


@dataclass(frozen=True)
class Region:
    """Neighbouring points from ``first`` to ``last``, both among them. ``mean`` is over its runs."""

    first: int
    last: int
    probability: float
    runs: int
    mean: float | None
    broken: int

    @property
    def points(self) -> int:
        return self.last - self.first + 1

    @property
    def each(self) -> float:
        return self.probability / self.points


def posterior_rows(places: Sequence[Place], names: Sequence[str], none: float | None, most: int = 12) -> list[str]:
    """The picture as text: a line a region, in the order of the axis, then one for ``none`` unless that is None.

    ``names`` has a name for every place. At most ``most`` lines (2 or more), each at most 106 characters wide.
    """
    rows = [
        _row(_label(region, places, names), region) for region in regions(places, max(1, most - (none is not None)))
    ]
    return rows if none is None else [*rows, _line(NONE, none)]


def share(probability: float) -> str:
    """``0.621`` -> ``62.1%``; never 0% or 100% of what is not quite that."""
    if 0 < probability < 0.0005:
        return "<0.1%"
    if 0.9995 <= probability < 1:
        return ">99.9%"
    return f"{100 * probability:.1f}%".replace(".0%", "%")


def regions(places: Sequence[Place], most: int) -> list[Region]:
    """At most ``most`` regions that keep as much of the posterior's shape as they can.

    The first and the last point, good and bad, stay alone as long as possible; so do points that are probable.
    """
    found = [
        Region(number, number, place.probability, place.runs, place.mean, int(not place.measurable))
        for number, place in enumerate(places)
    ]
    limit = NEGLIGIBLE
    found = _merged(found, limit, ALONE)
    while len(found) > ROUGH * most:
        limit *= 2
        found = _merged(found, limit, max(limit, ALONE))
    while len(found) > most:
        at = min(range(len(found) - 1), key=lambda left: _loss(found, left))
        found[at : at + 2] = [_joined(found[at], found[at + 1])]
    return found


def _merged(found: Sequence[Region], negligible: float, alone: float) -> list[Region]:
    """Neighbours that are alike or negligible together as one, but not the ends, nor points of ``alone`` and more."""
    kept: list[Region] = []
    for number, here in enumerate(found):
        before = kept[-1] if kept else here
        most = max(here.each, before.each)
        alike = abs(here.each - before.each) <= ALIKE * most or here.probability + before.probability <= negligible
        if number in (0, 1, len(found) - 1) or most >= alone or not alike:
            kept.append(here)
        else:
            kept[-1] = _joined(before, here)
    return kept


def _joined(left: Region, right: Region) -> Region:
    known = [(region.mean, region.runs) for region in (left, right) if region.mean is not None and region.runs]
    runs = sum(weight for _, weight in known)
    return Region(
        left.first,
        right.last,
        left.probability + right.probability,
        left.runs + right.runs,
        sum(mean * weight for mean, weight in known) / runs if runs else None,
        left.broken + right.broken,
    )


def _loss(found: Sequence[Region], at: int) -> tuple[bool, float, float]:
    """What the picture loses if the regions at ``at`` and after it are merged: Ward's criterion; the ends come last."""
    left, right = found[at], found[at + 1]
    weight = left.points * right.points / (left.points + right.points)
    joined = left.probability + right.probability
    return at == 0 or at == len(found) - 2, round(weight * (left.each - right.each) ** 2, 9), joined


def _label(region: Region, places: Sequence[Place], names: Sequence[str]) -> str:
    if region.points == 1:
        return _cut(names[region.first], NAME_CHARACTERS)
    ends = [names[region.first], names[region.last]]
    if "+" in places[region.first].key:
        return f"· {region.points} versions {'..'.join(_cut(end, END_CHARACTERS) for end in ends)}"
    return f"· {region.points} commits {'..'.join(printable(end)[:END_CHARACTERS] for end in ends)}"


def _row(label: str, region: Region) -> str:
    if not region.broken:
        told = ""
    elif region.points == 1:
        told = "cannot be measured"
    else:
        told = f"{region.broken} not measurable"
    mean = "" if region.mean is None else percent(region.mean, 1).replace("−", "-")
    runs = count(region.runs, "run") if region.runs else ""
    return _line(label, region.probability, f"{runs:>8}  {mean:>8}  {told}")


def _line(label: str, probability: float, told: str = "") -> str:
    figure = share(probability)
    figure = figure if "." in figure else figure.replace("%", ".0%")
    return f"{_cut(label, LABEL_CHARACTERS):<{LABEL_CHARACTERS}}  {_bar(probability)}  {figure:>6}  {told}".rstrip()


def _bar(probability: float) -> str:
    eighths = round(8 * BAR_CHARACTERS * min(max(probability, 0.0), 1.0))
    eighths = max(eighths, int(probability >= DRAWN))
    return ("█" * (eighths // 8) + BLOCKS[eighths % 8].strip()).ljust(BAR_CHARACTERS)


def _cut(name: str, limit: int) -> str:
    name = printable(name)
    return name if len(name) <= limit else name[: limit - 1] + "…"


def posterior_svg(places: Sequence[Place], names: Sequence[str], none: float | None) -> Markup:
    """The same as a drawing: above, the mean of the runs of each point that has any; below, a bar for its probability.

    Where no place has a mean there is no upper part. What cannot be seen is not drawn, so that a thousand points are
    a small file.
    """
    right = WIDTH - RIGHT - (0 if none is None else NONE_WIDTH)
    column = (right - LEFT) / max(len(places), 1)
    xs = [round(LEFT + (number + 0.5) * column, 2) for number in range(len(places))]
    known = [place.mean for place in places if place.mean is not None and place.runs]
    level = around([*known, 0.0], MIDDLE, TOP, least=1.0) if known else None
    floor = (MIDDLE + GAP if known else TOP) + MASS
    mass = Scale(0.0, 1.0, floor, floor - MASS)
    width = round(min(max(0.7 * column, 1.5), 40.0), 2)
    told = [_cut(name, NAME_CHARACTERS) for name in names]
    parts = [
        Markup('<svg class="posterior" viewBox="0 0 {} {}" role="img" aria-label="{}">').format(
            WIDTH, floor + 26, "Probability of every point to be the culprit, and the mean of its runs"
        ),
        *(_means(level, right) if level else ()),
        *_grid(mass, (0.0, 0.5, 1.0), right, places_=0),
        *(_text(LEFT, TOP - 8, "runs: percent slower than good", "title") if level else ()),
        *_text(LEFT, floor - MASS - 8, "probability to be the culprit", "title"),
        *(_mass(xs[n], width, mass, place.probability, told[n]) for n, place in enumerate(places) if _seen(place)),
        *(_runs(xs[n], level, floor, place, told[n]) for n, place in enumerate(places) if place.runs),
        *(_broken(xs[n], floor, told[n]) for n, place in enumerate(places) if not place.measurable),
        *_labels(xs, mass, places, told),
        *_ends(xs, floor, told),
        *(() if none is None else _none(right, mass, floor, none)),
        Markup("</svg>"),
    ]
    return Markup("\n").join(parts)


def _seen(place: Place) -> bool:
    return place.probability >= DRAWN


def _means(level: Scale, right: float) -> Iterator[Markup]:
    ticks = level.ticks(4)
    step = ticks[1] - ticks[0] if len(ticks) > 1 else 1.0
    yield from _grid(level, ticks, right, places_=0 if float(step).is_integer() else 1, signed=True)
    zero = level(0.0)
    yield Markup('<line class="mark zero" x1="{}" x2="{}" y1="{}" y2="{}"/>').format(LEFT, right, zero, zero)


def _grid(scale: Scale, ticks: Iterable[float], right: float, places_: int, signed: bool = False) -> Iterator[Markup]:
    for tick in ticks:
        y = scale(tick)
        label = percent(tick, places_) if signed else share(tick)
        yield Markup('<line class="grid" x1="{}" x2="{}" y1="{}" y2="{}"/>').format(LEFT, right, y, y)
        yield from _text(LEFT - 8, y + 3.5, label, "tick", "end")


def _text(x: float, y: float, words: str, sort: str, anchor: str = "start") -> Iterator[Markup]:
    form = Markup('<text class="{}" x="{}" y="{}" text-anchor="{}">{}</text>')
    yield form.format(sort, round(x, 2), round(y, 2), anchor, words)


def _mass(x: float, width: float, mass: Scale, probability: float, name: str, sort: str = "mass") -> Markup:
    y = mass(probability)
    form = Markup(
        '<rect class="{}" x="{}" y="{}" width="{}" height="{}" data-name="{}" data-probability="{}">'
        "<title>{}: {}</title></rect>"
    )
    left, height = round(x - width / 2, 2), round(mass.start - y, 2)
    return form.format(sort, left, y, width, height, name, probability, name, share(probability))


def _runs(x: float, level: Scale | None, floor: float, place: Place, name: str) -> Markup:
    """A dot at the mean of a point's runs, larger for more; on the axis where they have none."""
    drawn = level is not None and place.mean is not None
    y = level(place.mean) if level is not None and place.mean is not None else floor + 4
    radius = round(min(2.6 + place.runs**0.5, 8.0), 2) if drawn else 2.4
    mean = "" if place.mean is None else f", {percent(place.mean, 1)}"
    form = Markup(
        '<circle class="run" cx="{}" cy="{}" r="{}" data-name="{}" data-runs="{}"><title>{}: {}{}</title></circle>'
    )
    return form.format(x, y, radius, name, place.runs, name, count(place.runs, "run"), mean)


def _broken(x: float, floor: float, name: str) -> Markup:
    form = Markup('<path class="broken" d="M{} {}l6 6m0 -6l-6 6" data-name="{}"><title>{}: {}</title></path>')
    return form.format(round(x - 3, 2), floor + 2, name, name, "cannot be measured")


def _labels(xs: Sequence[float], mass: Scale, places: Sequence[Place], told: Sequence[str]) -> Iterator[Markup]:
    """The probable points by name, each above its bar, and above the bars and labels that it would cover."""
    taken: list[tuple[float, float, float]] = []
    for number in sorted(range(len(places)), key=lambda n: -places[n].probability):
        if places[number].probability < ALONE:
            return
        label = f"{told[number]} {share(places[number].probability)}"
        half = CHARACTER * len(label) / 2
        middle = min(max(xs[number], LEFT + half), WIDTH - RIGHT - half)
        beside = [y for left, end, y in taken if middle + half >= left - LABEL_GAP and middle - half <= end + LABEL_GAP]
        under = (place for x, place in zip(xs, places, strict=True) if abs(x - middle) <= half + LABEL_GAP)
        y = min(mass(place.probability) for place in under) - 5
        while any(abs(y - other) < LABEL_GAP for other in beside):
            y -= LABEL_GAP / 4
        if y > mass.end - LABEL_GAP:
            taken.append((middle - half, middle + half, y))
            yield from _text(middle, y, label, "name", "middle")


def _ends(xs: Sequence[float], floor: float, told: Sequence[str]) -> Iterator[Markup]:
    if told:
        yield from _text(LEFT, floor + 22, f"good {told[0]}", "tick")
    if len(told) > 1:
        yield from _text(max(xs[-1] + 20, LEFT + 200), floor + 22, f"bad {told[-1]}", "tick", "end")


def _none(right: float, mass: Scale, floor: float, none: float) -> Iterator[Markup]:
    middle = right + NONE_WIDTH / 2 + 10
    yield _mass(middle, 40.0, mass, none, NONE, "mass none-of-them")
    yield from _text(middle, mass(none) - 5, share(none), "name", "middle")
    yield from _text(middle, floor + 22, NONE, "tick", "middle")
