"""The picture of a bisection's posterior. For each point it shows the probability of being the culprit, the number of
runs, and the mean of the runs.

The picture is drawn as text for a terminal, after every run, and as SVG for the report. The probabilities come from the
search. Neighbouring commits that run the same code are one place of the search, and are drawn as one point. The text
has few lines, so neighbouring points with little or similar probability share a line: a region.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from regbot.records.bisection import PointSummary
from regbot.report.plots import LABEL_GAP, LEFT, RIGHT, WIDTH
from regbot.report.quantities import percent
from regbot.report.scale import Scale, scale_around
from regbot.text.clip import clip
from regbot.text.printable import printable
from regbot.text.words import count

PROMINENT_PROBABILITY = 0.05
"""A point with at least this probability gets a line of its own, as long as there are enough lines."""

SIMILAR_SHARE = 0.02
"""Neighbouring regions are merged if their probabilities per point differ by at most this share of the larger one."""

NEGLIGIBLE_PROBABILITY = 0.02
"""Neighbouring regions are also merged if their total probability is at most this value."""

COARSE_FACTOR = 4
"""Merging one pair of regions at a time is slow. It begins when the number of regions is at most this many times the
number of lines. Before that, similar regions are merged with a growing limit."""

LABEL_CHARACTERS, BAR_CHARACTERS = 34, 20
"""Widths of the label and of the bar in a line of text."""
NAME_CHARACTERS, END_CHARACTERS = 24, 8
"""Largest lengths of the name of a single point, and of the name of the first or last point of a region."""
BLOCKS = " ▏▎▍▌▋▊▉█"
"""Bars of 0 to 8 eighths of a character."""

NONE = "no culprit"
"""Label of the probability that no point is the culprit."""
MIN_DRAWN_PROBABILITY = 0.001
"""Bars of a smaller probability are not drawn, because they would not be visible."""

MEANS_TOP, MEANS_BOTTOM, PANEL_GAP, BARS_HEIGHT = 20.0, 170.0, 34.0, 130.0
NONE_WIDTH = 96.0
CHARACTER_WIDTH = 6.4
"""Lengths in pixels: y of the top and of the bottom of the panel of means, gap below that panel, height of the panel of
bars, width of the column for ``NONE``, width of a character."""


@dataclass(frozen=True)
class Region:
    """Neighbouring points that share a line of text."""

    first: int
    """Index of the first point."""
    last: int
    """Index of the last point, which belongs to the region."""
    probability: float
    """Probability that one of the points is the culprit."""
    runs: int
    mean: float | None
    """Mean over the runs of these points, in percent against good; None if it is unknown."""
    broken: int
    """Number of points that cannot be measured."""

    @property
    def points(self) -> int:
        return self.last - self.first + 1

    @property
    def probability_per_point(self) -> float:
        return self.probability / self.points


def posterior_rows(
    places: Sequence[PointSummary], names: Sequence[str], none_probability: float | None, max_rows: int = 12
) -> list[str]:
    """Return the picture as text, with one line per region, from good to bad.

    ``names``: a name for every place. ``none_probability``: probability that no point is the culprit, shown in a last
    line; None omits that line. ``max_rows``: maximum number of lines, at least 2. A line has at most 106 characters.
    """
    max_regions = max_rows if none_probability is None else max_rows - 1
    rows = [
        _format_row(_format_label(region, places, names), region) for region in regions(places, max(1, max_regions))
    ]
    return rows if none_probability is None else [*rows, _format_line(NONE, none_probability)]


def posterior_heading() -> str:
    """Return the headings of the columns of ``posterior_rows``."""
    label, probability, runs, mean = "", "probability", "runs", "against good"
    return f"{label:<{LABEL_CHARACTERS}}  {probability:>{BAR_CHARACTERS + 8}}  {runs:>8}  {mean}"


def share(probability: float) -> str:
    """Return a probability in percent: ``62.1%`` for ``0.621``, ``62%`` for ``0.62``. Only exactly 0 gives 0%, and only
    exactly 1 gives 100%."""
    if 0 < probability < 0.0005:
        return "<0.1%"
    if 0.9995 <= probability < 1:
        return ">99.9%"
    return f"{100 * probability:.1f}%".replace(".0%", "%")


def regions(places: Sequence[PointSummary], max_regions: int) -> list[Region]:
    """Return at most ``max_regions`` regions that keep as much of the posterior's shape as possible.

    The first point (good), the last point (bad) and probable points stay separate as long as possible. Similar
    neighbours are merged first. Then the limit for negligible probabilities doubles until few regions remain. At last
    single pairs are merged, each time the pair whose merge loses least.
    """
    merged = [
        Region(
            first=number,
            last=number,
            probability=place.probability,
            runs=place.runs,
            mean=place.mean,
            broken=int(not place.measurable),
        )
        for number, place in enumerate(places)
    ]
    negligible = NEGLIGIBLE_PROBABILITY
    merged = _merge_similar(merged, negligible, PROMINENT_PROBABILITY)
    while len(merged) > COARSE_FACTOR * max_regions:
        negligible *= 2
        merged = _merge_similar(merged, negligible, max(negligible, PROMINENT_PROBABILITY))
    while len(merged) > max_regions:
        left = min(range(len(merged) - 1), key=lambda index: _merge_loss(merged, index))
        merged[left : left + 2] = [_join_regions(merged[left], merged[left + 1])]
    return merged


def _merge_similar(neighbours: Sequence[Region], negligible: float, prominent: float) -> list[Region]:
    """Merge neighbouring regions that are similar, or whose total probability is at most ``negligible``. The first and
    the last point, and regions with a probability per point of at least ``prominent``, are not merged."""
    merged: list[Region] = []
    for number, region in enumerate(neighbours):
        if number in (0, 1, len(neighbours) - 1):  # region 1 is kept, because it could only be merged with the first
            merged.append(region)
            continue
        previous = merged[-1]
        largest = max(region.probability_per_point, previous.probability_per_point)
        difference = abs(region.probability_per_point - previous.probability_per_point)
        is_similar = difference <= SIMILAR_SHARE * largest
        is_negligible = region.probability + previous.probability <= negligible
        if largest < prominent and (is_similar or is_negligible):
            merged[-1] = _join_regions(previous, region)
        else:
            merged.append(region)
    return merged


def _join_regions(left: Region, right: Region) -> Region:
    """Return one region with the points of two neighbours. Its mean is weighted with the numbers of runs."""
    known = [(region.mean, region.runs) for region in (left, right) if region.mean is not None and region.runs]
    runs = sum(weight for _, weight in known)
    return Region(
        first=left.first,
        last=right.last,
        probability=left.probability + right.probability,
        runs=left.runs + right.runs,
        mean=sum(mean * weight for mean, weight in known) / runs if runs else None,
        broken=left.broken + right.broken,
    )


def _merge_loss(neighbours: Sequence[Region], index: int) -> tuple[bool, float, float]:
    """Return the sort key for merging the region at ``index`` with the next region. The smallest key is merged first.

    The key has three parts. A merge with the first or the last region comes last. Then Ward's criterion counts: the
    increase of the squared deviations from the probability per point. Of equal merges, the less probable one comes
    first.
    """
    left, right = neighbours[index], neighbours[index + 1]
    touches_end = index == 0 or index == len(neighbours) - 2
    weight = left.points * right.points / (left.points + right.points)
    squared_error = weight * (left.probability_per_point - right.probability_per_point) ** 2
    return touches_end, round(squared_error, 9), left.probability + right.probability


def _format_label(region: Region, places: Sequence[PointSummary], names: Sequence[str]) -> str:
    """Return the name of a single point, or the number of points with the names of the first and the last point."""
    if region.points == 1:
        return clip(printable(names[region.first]), NAME_CHARACTERS)
    ends = [names[region.first], names[region.last]]
    if "+" in places[region.first].key:  # the key of a version is "commit+version"
        return f"· {region.points} versions {'..'.join(clip(printable(end), END_CHARACTERS) for end in ends)}"
    return f"· {region.points} commits {'..'.join(printable(end)[:END_CHARACTERS] for end in ends)}"


def _format_row(label: str, region: Region) -> str:
    """Return the line of a region: label, probability, runs, mean, and how many points cannot be measured."""
    if not region.broken:
        note = ""
    elif region.points == 1:
        note = "cannot be measured"
    else:
        note = f"{region.broken} not measurable"
    mean = "" if region.mean is None else percent(region.mean, 1).replace("−", "-")
    runs = count(region.runs, "run") if region.runs else ""
    return _format_line(label, region.probability, f"{runs:>8}  {mean:>8}  {note}")


def _format_line(label: str, probability: float, note: str = "") -> str:
    """Return a line with the columns label, bar, percentage and note."""
    percentage = share(probability)
    if "." not in percentage:  # so that the decimal points of all lines are below each other
        percentage = percentage.replace("%", ".0%")
    label = clip(printable(label), LABEL_CHARACTERS)
    return f"{label:<{LABEL_CHARACTERS}}  {_format_bar(probability)}  {percentage:>6}  {note}".rstrip()


def _format_bar(probability: float) -> str:
    """Return a bar for a probability, in steps of an eighth of a character. A drawn bar has at least one eighth."""
    eighths = round(8 * BAR_CHARACTERS * min(max(probability, 0.0), 1.0))
    eighths = max(eighths, int(probability >= MIN_DRAWN_PROBABILITY))
    return ("█" * (eighths // 8) + BLOCKS[eighths % 8].strip()).ljust(BAR_CHARACTERS)


def posterior_svg(places: Sequence[PointSummary], names: Sequence[str], none_probability: float | None) -> Markup:
    """Return the picture as SVG. The upper panel shows the mean of each point's runs, the lower panel a bar for its
    probability.

    If no place has a mean, there is no upper panel. Bars that would not be visible are not drawn, so that the file
    stays small even with a thousand points.
    """
    right = WIDTH - RIGHT - (0 if none_probability is None else NONE_WIDTH)
    column = (right - LEFT) / max(len(places), 1)
    xs = [round(LEFT + (number + 0.5) * column, 2) for number in range(len(places))]
    known_means = [place.mean for place in places if place.mean is not None and place.runs]
    mean_scale = scale_around([*known_means, 0.0], MEANS_BOTTOM, MEANS_TOP, min_span=1.0) if known_means else None
    axis_y = (MEANS_BOTTOM + PANEL_GAP if known_means else MEANS_TOP) + BARS_HEIGHT  # y of the axis below the bars
    probability_scale = Scale(low=0.0, high=1.0, start=axis_y, end=axis_y - BARS_HEIGHT)
    width = round(min(max(0.7 * column, 1.5), 40.0), 2)  # of a bar
    labels = [clip(printable(name), NAME_CHARACTERS) for name in names]
    parts = [
        Markup('<svg class="posterior" viewBox="0 0 {} {}" role="img" aria-label="{}">').format(
            WIDTH, axis_y + 26, "Probability of every point of being the culprit, and the mean of its runs"
        ),
        *(_draw_mean_grid(mean_scale, right) if mean_scale else ()),
        *_draw_grid(probability_scale, (0.0, 0.5, 1.0), right, decimals=0),
        *(_draw_text(LEFT, MEANS_TOP - 8, "runs: percent slower than good", "title") if mean_scale else ()),
        *_draw_text(LEFT, axis_y - BARS_HEIGHT - 8, "probability of being the culprit", "title"),
        *(
            _draw_probability_bar(xs[n], width, probability_scale, place.probability, labels[n])
            for n, place in enumerate(places)
            if _is_visible(place)
        ),
        *(_draw_run_dot(xs[n], mean_scale, axis_y, place, labels[n]) for n, place in enumerate(places) if place.runs),
        *(_draw_unmeasurable_mark(xs[n], axis_y, labels[n]) for n, place in enumerate(places) if not place.measurable),
        *_draw_point_labels(xs, probability_scale, places, labels),
        *_draw_end_labels(xs, axis_y, labels),
        *(() if none_probability is None else _draw_none_bar(right, probability_scale, axis_y, none_probability)),
        Markup("</svg>"),
    ]
    return Markup("\n").join(parts)


def _is_visible(place: PointSummary) -> bool:
    return place.probability >= MIN_DRAWN_PROBABILITY


def _draw_mean_grid(mean_scale: Scale, right: float) -> Iterator[Markup]:
    """Yield the grid lines of the panel of means, and the line of no change."""
    ticks = mean_scale.ticks(4)
    step = ticks[1] - ticks[0] if len(ticks) > 1 else 1.0
    yield from _draw_grid(mean_scale, ticks, right, decimals=0 if float(step).is_integer() else 1, signed=True)
    zero = mean_scale(0.0)
    yield Markup('<line class="mark zero" x1="{}" x2="{}" y1="{}" y2="{}"/>').format(LEFT, right, zero, zero)


def _draw_grid(
    scale: Scale, ticks: Iterable[float], right: float, decimals: int, signed: bool = False
) -> Iterator[Markup]:
    """Yield a line and a label for each tick. ``signed``: the ticks are changes in percent; else they are
    probabilities. ``decimals`` is for changes only. ``right``: x of the right end."""
    for tick in ticks:
        y = scale(tick)
        label = percent(tick, decimals) if signed else share(tick)
        yield Markup('<line class="grid" x1="{}" x2="{}" y1="{}" y2="{}"/>').format(LEFT, right, y, y)
        yield from _draw_text(LEFT - 8, y + 3.5, label, "tick", "end")


def _draw_text(x: float, y: float, words: str, css_class: str, anchor: str = "start") -> Iterator[Markup]:
    """Yield a text. ``anchor`` says which part of the text is at ``x``: "start", "middle" or "end"."""
    form = Markup('<text class="{}" x="{}" y="{}" text-anchor="{}">{}</text>')
    yield form.format(css_class, round(x, 2), round(y, 2), anchor, words)


def _draw_probability_bar(
    x: float, width: float, probability_scale: Scale, probability: float, name: str, css_class: str = "mass"
) -> Markup:
    """Return the bar of a probability around ``x``. Its tooltip shows ``name``, the name of the point."""
    y = probability_scale(probability)
    form = Markup(
        '<rect class="{}" x="{}" y="{}" width="{}" height="{}" data-name="{}" data-probability="{}">'
        "<title>{}: {}</title></rect>"
    )
    left, height = round(x - width / 2, 2), round(probability_scale.start - y, 2)
    return form.format(css_class, left, y, width, height, name, probability, name, share(probability))


def _draw_run_dot(x: float, mean_scale: Scale | None, axis_y: float, place: PointSummary, name: str) -> Markup:
    """Return a dot at the mean of a point's runs. The dot is larger if there are more runs. Without a mean, a small dot
    lies below the axis."""
    y, radius = axis_y + 4, 2.4
    if mean_scale is not None and place.mean is not None:
        y, radius = mean_scale(place.mean), round(min(2.6 + place.runs**0.5, 8.0), 2)
    mean = "" if place.mean is None else f", {percent(place.mean, 1)}"
    form = Markup(
        '<circle class="run" cx="{}" cy="{}" r="{}" data-name="{}" data-runs="{}"><title>{}: {}{}</title></circle>'
    )
    return form.format(x, y, radius, name, place.runs, name, count(place.runs, "run"), mean)


def _draw_unmeasurable_mark(x: float, axis_y: float, name: str) -> Markup:
    form = Markup('<path class="broken" d="M{} {}l6 6m0 -6l-6 6" data-name="{}"><title>{}: {}</title></path>')
    return form.format(round(x - 3, 2), axis_y + 2, name, name, "cannot be measured")


def _draw_point_labels(
    xs: Sequence[float], probability_scale: Scale, places: Sequence[PointSummary], labels: Sequence[str]
) -> Iterator[Markup]:
    """Yield the labels of the probable points, the most probable first.

    A label is placed above the bar of its point, and moved up until it covers no other label. A label that would then
    lie above the panel is left out.
    """
    occupied: list[tuple[float, float, float]] = []  # left end, right end and y of each label
    for number in sorted(range(len(places)), key=lambda n: -places[n].probability):
        if places[number].probability < PROMINENT_PROBABILITY:
            return
        label = f"{labels[number]} {share(places[number].probability)}"
        half_width = CHARACTER_WIDTH * len(label) / 2
        middle = min(max(xs[number], LEFT + half_width), WIDTH - RIGHT - half_width)
        left, right = middle - half_width, middle + half_width
        ys_of_neighbours = [
            other_y
            for other_left, other_right, other_y in occupied
            if right >= other_left - LABEL_GAP and left <= other_right + LABEL_GAP
        ]
        places_below = (place for x, place in zip(xs, places, strict=True) if abs(x - middle) <= half_width + LABEL_GAP)
        # Above the highest of the bars below the label.
        y = min(probability_scale(place.probability) for place in places_below) - 5
        while any(abs(y - other_y) < LABEL_GAP for other_y in ys_of_neighbours):
            y -= LABEL_GAP / 4
        is_inside_panel = y > probability_scale.end - LABEL_GAP
        if is_inside_panel:
            occupied.append((left, right, y))
            yield from _draw_text(middle, y, label, "name", "middle")


def _draw_end_labels(xs: Sequence[float], axis_y: float, labels: Sequence[str]) -> Iterator[Markup]:
    """Yield the names of the first point (good) and of the last point (bad), below the axis."""
    if labels:
        yield from _draw_text(LEFT, axis_y + 22, f"good {labels[0]}", "tick")
    if len(labels) > 1:
        yield from _draw_text(max(xs[-1] + 20, LEFT + 200), axis_y + 22, f"bad {labels[-1]}", "tick", "end")


def _draw_none_bar(right: float, probability_scale: Scale, axis_y: float, none_probability: float) -> Iterator[Markup]:
    """Yield the bar, the percentage and the label of the probability that no point is the culprit."""
    middle = right + NONE_WIDTH / 2 + 10
    yield _draw_probability_bar(middle, 40.0, probability_scale, none_probability, NONE, "mass none-of-them")
    yield from _draw_text(middle, probability_scale(none_probability) - 5, share(none_probability), "name", "middle")
    yield from _draw_text(middle, axis_y + 22, NONE, "tick", "middle")
