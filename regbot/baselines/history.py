"""``regbot baseline history``: the trend of one workload, and the text that shows it.

Sessions are read newest first, so that reading the last few sessions takes the same time for any length of the history.
They are read one by one, so that a long history does not fill the memory. The levels come from the index, which is
derived data and not checked. Therefore a trend is only an annotation and decides nothing.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import PurePosixPath
from typing import Any

from regbot.baselines.commands import format_environment
from regbot.baselines.index import TERMS, SessionLevel, make_index_row
from regbot.baselines.names import workload_folder
from regbot.baselines.query import check_not_in_future
from regbot.baselines.store import BaselineError, Store
from regbot.records.baseline import Baseline
from regbot.records.history import History, HistoryChange, HistoryPoint, HistorySeries, HistoryTrend
from regbot.stats.history import MAX_LEVELS, bucket_starts, change_points
from regbot.text.clip import short_commit
from regbot.text.printable import printable
from regbot.text.table import columns
from regbot.text.words import count as count_noun

POINTS = 60
"""Default number of points of a series. This number of bars fits on a terminal line."""

BARS = "▁▂▃▄▅▆▇█"
MIN_SCALE = math.log(1.02)
"""Minimum range of the bars, log scale, so that noise does not look like large changes."""

ANCHOR_SERIES = "anchor"
"""Name of the series of sessions that repeat the anchor's commit. These sessions are not part of the trend of main."""

_FIRST_TERM = SessionLevel._fields.index(TERMS[0])
_TERMS = slice(_FIRST_TERM, _FIRST_TERM + len(TERMS))


@dataclass
class _Bucket:
    """Summary of the levels of neighbouring sessions, on the log scale."""

    oldest: SessionLevel
    newest: SessionLevel
    sessions: int = 0
    total: float = 0.0
    low: float = math.inf
    high: float = -math.inf
    has_anchor: bool = False
    """Whether a session of the anchor's commit is in the bucket."""

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
            anchor=self.has_anchor,
        )


@dataclass
class _SeriesBuckets:
    """Sessions of one series in at most ``MAX_LEVELS`` buckets, oldest first, and totals of the sessions of the
    anchor's commit.
    """

    buckets: list[_Bucket]
    excluded_sessions: int = 0
    anchor_sessions: int = 0
    anchor_total: float = 0.0


def history(
    store: Store,
    workload: str,
    variant: str | None = None,
    node_class: str | None = None,
    *,
    last: int | None = None,
    points: int = POINTS,
    now: datetime | None = None,
) -> History:
    """Return the trends of a workload, filtered by variant and node class.

    ``last`` is the number of newest sessions of each series; None for all sessions. A series is reduced to at most
    ``points`` points. Raises BaselineError if no session matches, or a session is unusable.
    """
    trends = []
    for variant_folder in _variant_folders(store, workload, variant):
        for folder in store.folders(variant_folder):
            trend = _class_trend(store, folder, node_class, last, points, now or datetime.now(UTC))
            trends += [trend] if trend is not None else []
    if not trends:
        filters = f" ({', '.join(name for name in (variant, node_class) if name)})" if variant or node_class else ""
        raise BaselineError(
            store.root, f"no timed session of {workload}{filters} is stored", "see 'regbot baseline list'"
        )
    return History(workload=workload, trends=trends)


def _variant_folders(store: Store, workload: str, variant: str | None) -> list[PurePosixPath]:
    """Return the folders of a workload, one per variant. The name of a variant contains no ``+``, so folders of other
    workloads do not match.
    """
    try:
        pattern = workload_folder(workload, variant or "*")
    except ValueError as error:
        raise BaselineError(store.root, str(error), "see 'regbot baseline list'") from error
    if variant is not None:
        return [PurePosixPath(pattern)]
    start, end = pattern.split("*")
    folders = store.folders(PurePosixPath())
    return [
        folder
        for folder in folders
        if folder.name.startswith(start) and folder.name.endswith(end) and "+" not in folder.name[len(start) :]
    ]


def _class_trend(
    store: Store, folder: PurePosixPath, node_class: str | None, last: int | None, points: int, now: datetime
) -> HistoryTrend | None:
    """Return the trend of one node class; None if it is not ``node_class``, or if it has no timed session."""
    class_series: list[tuple[Baseline, tuple[Any, ...], _SeriesBuckets]] = []
    anchor = None
    for group in store.folders(folder):
        for path in store.index.find_by_name(group, limit=1):
            first = store.session(path)
            if first.tier != "timed" or node_class not in (None, first.node_class):
                continue
            check_not_in_future(store, group, now)
            anchor = store.anchor(first.workload, first.variant, first.node_class)
            counts: dict[tuple[Any, ...], int] = {}
            for (series_name, *term_values), count in store.index.count_by_terms(group).items():
                if series_name != ANCHOR_SERIES:
                    counts[tuple(term_values)] = counts.get(tuple(term_values), 0) + count
            for terms, count in counts.items():
                commit = anchor.commit if anchor else None
                class_series.append(
                    (first, terms, _collect_buckets(store, group, terms, min(count, last or count), commit))
                )
    if not class_series:
        return None
    class_series.sort(key=lambda entry: entry[2].buckets[0].oldest.measured)
    series = [_make_series(*entry, points) for entry in class_series]
    first = class_series[0][0]
    return HistoryTrend(
        variant=first.variant,
        node_class=first.node_class,
        anchor=anchor.commit if anchor else None,
        series=[
            current.model_copy(update={"changed": _changed_fields(previous, current)})
            for previous, current in zip([series[0], *series], series, strict=False)
        ],
    )


def _collect_buckets(
    store: Store, group: PurePosixPath, terms: tuple[Any, ...], limit: int, anchor: str | None
) -> _SeriesBuckets:
    """Collect the newest ``limit`` sessions of one folder and one set of terms."""
    bucket_positions = {*bucket_starts(limit, MAX_LEVELS)}
    collected = _SeriesBuckets([])
    counted, previous_session = 0, ""
    for level in store.index.levels_newest_first(group):
        # If two users stored the same session, it has two entries, one after the other. Count it once.
        if tuple(level)[_TERMS] != terms or level.session == previous_session:
            continue
        if counted == limit and level.series != ANCHOR_SERIES:
            break
        previous_session = level.session
        value = level.log_median
        if value is None:  # the file was invalid when it was indexed; if it still is, reading it raises the error
            value = make_index_row(level.name, store.session(group / level.name)).log_median or 0.0
        if level.commit == anchor:
            collected.anchor_sessions += 1
            collected.anchor_total += value
        if level.series == ANCHOR_SERIES:
            continue
        collected.excluded_sessions += level.series == "held"
        if counted in bucket_positions:
            collected.buckets.append(_Bucket(level, level))
        counted += 1
        bucket = collected.buckets[-1]
        bucket.oldest = level
        bucket.sessions += 1
        bucket.total += value
        bucket.low, bucket.high = min(bucket.low, value), max(bucket.high, value)
        bucket.has_anchor |= level.commit == anchor
    collected.buckets.reverse()
    return collected


def _make_series(first: Baseline, terms: tuple[Any, ...], collected: _SeriesBuckets, points: int) -> HistorySeries:
    buckets = collected.buckets
    changes = change_points([bucket.mean for bucket in buckets])
    stretches = _merge_buckets(buckets, [0, *changes])
    return HistorySeries(
        environment=first.environment,
        changed=[],
        **dict(zip(TERMS, terms, strict=True)),
        sessions=sum(bucket.sessions for bucket in buckets),
        excluded_sessions=collected.excluded_sessions,
        first=buckets[0].oldest.measured,
        last=buckets[-1].newest.measured,
        anchor_sessions=collected.anchor_sessions,
        anchor_s=math.exp(collected.anchor_total / collected.anchor_sessions) if collected.anchor_sessions else None,
        points=[bucket.point() for bucket in _merge_buckets(buckets, bucket_starts(len(buckets), points))],
        stretches=[bucket.point() for bucket in stretches],
        changes=[
            HistoryChange(
                at=later.oldest.measured,
                before=earlier.newest.commit,
                commit=later.oldest.commit,
                grain=buckets[position].sessions,
                change_pct=100 * math.expm1(later.mean - earlier.mean),
            )
            for position, (earlier, later) in zip(changes, pairwise(stretches), strict=True)
        ],
    )


def _merge_buckets(buckets: Sequence[_Bucket], starts: Sequence[int]) -> list[_Bucket]:
    """Merge the buckets of each segment into one bucket. A segment begins at each position in ``starts``."""
    merged = []
    for start, end in pairwise([*starts, len(buckets)]):
        members = buckets[start:end]
        merged.append(
            _Bucket(
                members[0].oldest,
                members[-1].newest,
                sum(bucket.sessions for bucket in members),
                math.fsum(bucket.total for bucket in members),
                min(bucket.low for bucket in members),
                max(bucket.high for bucket in members),
                any(bucket.has_anchor for bucket in members),
            )
        )
    return merged


def _changed_fields(previous: HistorySeries, current: HistorySeries) -> list[str]:
    """Return the names of the fields of environment and terms in which two series differ."""
    previous_fields, fields = (
        series.environment.model_dump() | {name: getattr(series, name) for name in TERMS}
        for series in (previous, current)
    )
    return [name for name in previous_fields if previous_fields[name] != fields[name]]


def history_page(record: History) -> str:
    """Return one paragraph of text for each variant and node class."""
    return "\n\n".join("\n".join(_trend_lines(record.workload, trend)) for trend in record.trends)


def _trend_lines(workload: str, trend: HistoryTrend) -> list[str]:
    lines = [
        f"{workload}  {trend.variant}  usual step time",
        f"  class        {printable(trend.node_class)}",
        f"  anchor       {short_commit(trend.anchor) if trend.anchor else 'none'}",
    ]
    for series in trend.series:
        lines += ["", *_series_lines(series)]
    if any(series.changes for series in trend.series):
        lines += ["", "  Changes of level are detected late, and some are false. They decide nothing."]
    return lines


def _series_lines(series: HistorySeries) -> list[str]:
    terms = f"{series.steps} steps, {series.cut} of them warm-up, on {series.world_size} ranks, by {series.clock}"
    dispatcher = f", {printable(series.dispatcher)} requested" if series.dispatcher else ""
    excluded = f", {series.excluded_sessions} of them held back from the reference" if series.excluded_sessions else ""
    lines = [f"  environment  {format_environment(series.environment)}"]
    if series.changed:
        lines.append(f"  changed      {', '.join(name.replace('_', ' ') for name in series.changed)}")
    lines += [
        f"  timed        {terms}{dispatcher}",
        f"  sessions     {series.sessions}, {series.first} to {series.last}{excluded}",
    ]
    if series.anchor_s is not None:
        lines.append(
            f"  at anchor    {count_noun(series.anchor_sessions, 'session')}, level {_format_time(series.anchor_s)}"
        )
    low, high = min(point.level_s for point in series.points), max(point.level_s for point in series.points)
    lines.append(f"  trend        {_draw_bars(series.points)}  {_format_time(low)} to {_format_time(high)}")
    if marks := _draw_marks(series):
        lines.append(f"               {marks}")
    rows: list[tuple[str, ...]] = [("from", "sessions", "level", "lowest", "highest", "")]
    notes = [
        "",
        *(
            f"{entry.change_pct:+.1f}% between {short_commit(entry.before)} and {short_commit(entry.commit)}"
            for entry in series.changes
        ),
    ]
    rows += [
        (entry.first, str(entry.sessions), *map(_format_time, (entry.level_s, entry.low_s, entry.high_s)), note)
        for entry, note in zip(series.stretches, notes, strict=True)
    ]
    return [*lines, *columns(rows, right=range(1, 5), indent="  ")]


def _format_time(seconds: float) -> str:
    return f"{seconds:#.4g} s" if seconds >= 10 else f"{1000 * seconds:#.4g} ms"


def _draw_bars(points: Sequence[HistoryPoint]) -> str:
    levels = [math.log(point.level_s) for point in points]
    low = min(levels)
    span = max(max(levels) - low, MIN_SCALE)
    return "".join(BARS[min(int(len(BARS) * (level - low) / span), len(BARS) - 1)] for level in levels)


def _draw_marks(series: HistorySeries) -> str:
    """Return the line below the bars: ``A`` for a session of the anchor's commit, ``^`` for the start of a
    new level.
    """
    starts = [change.at for change in series.changes]
    marks = []
    for point in series.points:
        mark = "A" if point.anchor else " "
        marks.append("^" if any(point.first <= at <= point.last for at in starts) else mark)
    legend = [word for mark, word in (("^", "^ new level"), ("A", "A anchor")) if mark in marks]
    return f"{''.join(marks)}  {', '.join(legend)}" if legend else ""
