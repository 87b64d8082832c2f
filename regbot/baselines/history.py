"""``regbot baseline history``: the trend of one workload, and the page that it prints.

Sessions come newest first, so that the last few cost no more however long the history is, and they come one by one, so
that no history is too long for the memory. Levels are the index's, which is derived: a trend annotates, and decides
nothing.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import PurePosixPath
from typing import Any

from regbot.baselines.commands import environment_words
from regbot.baselines.index import TERMS, Level, row_of
from regbot.baselines.names import workload_folder
from regbot.baselines.query import none_of_the_future
from regbot.baselines.store import BaselineError, Store
from regbot.records.baseline import Baseline
from regbot.records.history import History, HistoryChange, HistoryPoint, HistorySeries, HistoryTrend
from regbot.stats.history import MOST_LEVELS, bucket_starts, change_points
from regbot.text import printable

POINTS = 60
"""Points of a series: what a line of a terminal has room for."""

BARS = "▁▂▃▄▅▆▇█"
LEAST_SCALE = math.log(1.02)
"""Log scale that the bars span at least: noise is not to look like a mountain range."""

RERUN = "anchor"
"""The series of sessions in which the anchor's commit was run once more: no part of how main went."""

_FIRST_TERM = Level._fields.index(TERMS[0])
_TERMS = slice(_FIRST_TERM, _FIRST_TERM + len(TERMS))


@dataclass
class _Bucket:
    """Neighbouring sessions, by their levels on the log scale."""

    oldest: Level
    newest: Level
    sessions: int = 0
    total: float = 0.0
    low: float = math.inf
    high: float = -math.inf
    anchor: bool = False

    @property
    def mean(self) -> float:
        return self.total / self.sessions

    def point(self) -> HistoryPoint:
        return HistoryPoint(
            first=self.oldest.measured,
            last=self.newest.measured,
            sessions=self.sessions,
            level_s=math.exp(self.mean),
            low_s=math.exp(self.low),
            high_s=math.exp(self.high),
            anchor=self.anchor,
        )


@dataclass
class _Collected:
    """The sessions of one series, as at most ``MOST_LEVELS`` buckets, oldest first; and its anchor's."""

    buckets: list[_Bucket]
    held: int = 0
    anchor_sessions: int = 0
    anchor_total: float = 0.0


def history(
    store: Store,
    workload: str,
    variant: str | None = None,
    node_class: str | None = None,
    last: int | None = None,
    points: int = POINTS,
    now: datetime | None = None,
) -> History:
    """The trends of a workload, of the variant and class asked for: the ``last`` sessions of each series, or all.

    A series is thinned into at most ``points`` points. Raises BaselineError where nothing is stored of what was asked,
    and where a session cannot be used.
    """
    trends = []
    for top in _tops(store, workload, variant):
        for folder in store.folders(top):
            found = _trend(store, folder, node_class, last, points, now or datetime.now(UTC))
            trends += [found] if found is not None else []
    if not trends:
        asked = f" ({', '.join(each for each in (variant, node_class) if each)})" if variant or node_class else ""
        raise BaselineError(
            store.root, f"no timed session of {workload}{asked} is stored", "see 'regbot baseline list'"
        )
    return History(workload=workload, trends=trends)


def _tops(store: Store, workload: str, variant: str | None) -> list[PurePosixPath]:
    """The folders of a workload, one for each variant. No part of a folder's name but their number says how many."""
    try:
        pattern = workload_folder(workload, variant or "*")
    except ValueError as error:
        raise BaselineError(store.root, str(error), "see 'regbot baseline list'") from error
    if variant is not None:
        return [PurePosixPath(pattern)]
    start, end = pattern.split("*")
    tops = store.folders(PurePosixPath())
    return [
        top
        for top in tops
        if top.name.startswith(start) and top.name.endswith(end) and "+" not in top.name[len(start) :]
    ]


def _trend(
    store: Store, folder: PurePosixPath, node_class: str | None, last: int | None, points: int, now: datetime
) -> HistoryTrend | None:
    """The trend of one class; None where it is not the one asked for, or holds no timed session."""
    dated: list[tuple[Baseline, tuple[Any, ...], _Collected]] = []
    anchor = None
    for group in store.folders(folder):
        for path in store.index.named(group, most=1):
            first = store.session(path)
            if first.tier != "timed" or node_class not in (None, first.node_class):
                continue
            none_of_the_future(store, group, now)
            anchor = store.anchor(first.workload, first.variant, first.node_class)
            counts: dict[tuple[Any, ...], int] = {}
            for (series, *terms), count in store.index.counts(group).items():
                if series != RERUN:
                    counts[tuple(terms)] = counts.get(tuple(terms), 0) + count
            for on, count in counts.items():
                commit = anchor.commit if anchor else None
                dated.append((first, on, _collect(store, group, on, min(count, last or count), commit)))
    if not dated:
        return None
    dated.sort(key=lambda each: each[2].buckets[0].oldest.measured)
    series = [_series(*each, points) for each in dated]
    first = dated[0][0]
    return HistoryTrend(
        variant=first.variant,
        node_class=first.node_class,
        anchor=anchor.commit if anchor else None,
        series=[
            found.model_copy(update={"changed": _differs(before, found)})
            for before, found in zip([series[0], *series], series, strict=False)
        ],
    )


def _collect(store: Store, group: PurePosixPath, terms: tuple[Any, ...], most: int, anchor: str | None) -> _Collected:
    """The newest ``most`` sessions of one folder and one set of terms."""
    starts = {*bucket_starts(most, MOST_LEVELS)}
    found = _Collected([])
    seen, previous = 0, ""
    for level in store.index.levels(group):
        if tuple(level)[_TERMS] != terms or level.session == previous:  # stored twice, by two people: it counts once
            continue
        if seen == most and level.series != RERUN:
            break
        previous = level.session
        value = level.log_median
        if value is None:  # it was broken when the index met it; reading it whole says how
            value = row_of(level.name, store.session(group / level.name)).log_median or 0.0
        if level.commit == anchor:
            found.anchor_sessions += 1
            found.anchor_total += value
        if level.series == RERUN:
            continue
        found.held += level.series == "held"
        if seen in starts:
            found.buckets.append(_Bucket(level, level))
        seen += 1
        bucket = found.buckets[-1]
        bucket.oldest = level
        bucket.sessions += 1
        bucket.total += value
        bucket.low, bucket.high = min(bucket.low, value), max(bucket.high, value)
        bucket.anchor |= level.commit == anchor
    found.buckets.reverse()
    return found


def _series(first: Baseline, terms: tuple[Any, ...], found: _Collected, points: int) -> HistorySeries:
    buckets = found.buckets
    changes = change_points([bucket.mean for bucket in buckets])
    stretches = _joined(buckets, [0, *changes])
    return HistorySeries(
        environment=first.environment,
        changed=[],
        **dict(zip(TERMS, terms, strict=True)),
        sessions=sum(bucket.sessions for bucket in buckets),
        held=found.held,
        first=buckets[0].oldest.measured,
        last=buckets[-1].newest.measured,
        anchor_sessions=found.anchor_sessions,
        anchor_s=math.exp(found.anchor_total / found.anchor_sessions) if found.anchor_sessions else None,
        points=[bucket.point() for bucket in _joined(buckets, bucket_starts(len(buckets), points))],
        stretches=[bucket.point() for bucket in stretches],
        changes=[
            HistoryChange(
                at=after.oldest.measured,
                before=before.newest.commit,
                commit=after.oldest.commit,
                grain=buckets[at].sessions,
                change_pct=100 * math.expm1(after.mean - before.mean),
            )
            for at, (before, after) in zip(changes, pairwise(stretches), strict=True)
        ],
    )


def _joined(buckets: Sequence[_Bucket], starts: Sequence[int]) -> list[_Bucket]:
    """One bucket for each stretch that begins at one of ``starts``."""
    found = []
    for start, end in pairwise([*starts, len(buckets)]):
        own = buckets[start:end]
        found.append(
            _Bucket(
                own[0].oldest,
                own[-1].newest,
                sum(each.sessions for each in own),
                math.fsum(each.total for each in own),
                min(each.low for each in own),
                max(each.high for each in own),
                any(each.anchor for each in own),
            )
        )
    return found


def _differs(before: HistorySeries, found: HistorySeries) -> list[str]:
    """Fields of environment and terms in which one series is not the other."""
    one, other = (
        each.environment.model_dump() | {name: getattr(each, name) for name in TERMS} for each in (before, found)
    )
    return [name for name in one if one[name] != other[name]]


def history_page(found: History) -> str:
    """A paragraph for each class, in it one for each series."""
    return "\n\n".join("\n".join(_trend_lines(found.workload, trend)) for trend in found.trends)


def _trend_lines(workload: str, trend: HistoryTrend) -> list[str]:
    lines = [
        f"{workload}  {trend.variant}  usual step time",
        f"  class        {printable(trend.node_class)}",
        f"  anchor       {trend.anchor[:12] if trend.anchor else 'none'}",
    ]
    for series in trend.series:
        lines += ["", *_series_lines(series)]
    if any(series.changes for series in trend.series):
        lines += ["", "  A change of level is seen after the fact, and some are none. It decides nothing."]
    return lines


def _series_lines(series: HistorySeries) -> list[str]:
    terms = f"{series.steps} steps, {series.cut} of them warm-up, on {series.world_size} ranks, by {series.clock}"
    dispatcher = f", {printable(series.dispatcher)} asked for" if series.dispatcher else ""
    held = f", {series.held} of them held back from the reference" if series.held else ""
    lines = [f"  environment  {environment_words(series.environment)}"]
    if series.changed:
        lines.append(f"  changed      {', '.join(name.replace('_', ' ') for name in series.changed)}")
    lines += [
        f"  timed        {terms}{dispatcher}",
        f"  sessions     {series.sessions}, {series.first} to {series.last}{held}",
    ]
    if series.anchor_s is not None:
        lines.append(f"  of anchor    {series.anchor_sessions}, level {_time(series.anchor_s)}")
    low, high = min(point.level_s for point in series.points), max(point.level_s for point in series.points)
    lines.append(f"  trend        {_bars(series.points)}  {_time(low)} to {_time(high)}")
    if marks := _marks(series):
        lines.append(f"               {marks}")
    rows: list[tuple[str, ...]] = [("from", "sessions", "level", "lowest", "highest", "")]
    notes = [
        "",
        *(f"{each.change_pct:+.1f}% after {each.before[:12]}, from {each.commit[:12]}" for each in series.changes),
    ]
    rows += [
        (each.first, str(each.sessions), *map(_time, (each.level_s, each.low_s, each.high_s)), note)
        for each, note in zip(series.stretches, notes, strict=True)
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(5)]
    lines += [
        "  ".join(["", row[0].ljust(widths[0]), *map(str.rjust, row[1:5], widths[1:]), row[5]]).rstrip() for row in rows
    ]
    return lines


def _time(seconds: float) -> str:
    return f"{seconds:#.4g} s" if seconds >= 10 else f"{1000 * seconds:#.4g} ms"


def _bars(points: Sequence[HistoryPoint]) -> str:
    levels = [math.log(point.level_s) for point in points]
    low = min(levels)
    span = max(max(levels) - low, LEAST_SCALE)
    return "".join(BARS[min(int(len(BARS) * (level - low) / span), len(BARS) - 1)] for level in levels)


def _marks(series: HistorySeries) -> str:
    """What stands under the bars: ``A`` where the anchor's commit was measured, ``^`` where a new level begins."""
    starts = [change.at for change in series.changes]
    marks = [
        "^" if any(point.first <= at <= point.last for at in starts) else "A" if point.anchor else " "
        for point in series.points
    ]
    legend = [word for mark, word in (("^", "^ new level"), ("A", "A anchor")) if mark in marks]
    return f"{''.join(marks)}  {', '.join(legend)}" if legend else ""
