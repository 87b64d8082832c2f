"""``regbot baseline history``: the trend of one workload, and the text that shows it.

A trend is only an annotation and decides nothing.

The *level* of a session is the time of its typical step. A *series* is the sessions of one node class and environment
that were timed on the same terms (``TERMS``), so their levels are comparable. A *bucket* combines neighbouring sessions
of a series, and a *stretch* is all sessions between two changes of level.

A parameter ``workload`` is an entry, such as ``mixtral-8x7b@1/ep``.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import PurePosixPath
from typing import Any, NamedTuple

from regbot.baselines.commands import format_environment
from regbot.baselines.names import workload_folder
from regbot.baselines.query import TERMS, check_not_in_future
from regbot.baselines.store import BaselineError, Store
from regbot.records.baseline import Baseline, EnvironmentKey
from regbot.records.history import History, HistoryChange, HistoryPoint, HistorySeries, HistoryTrend
from regbot.records.text.clip import short_commit
from regbot.records.text.printable import printable
from regbot.records.text.table import columns
from regbot.records.text.words import count as count_noun
from regbot.stats.history import MAX_LEVELS, bucket_starts, change_points

POINTS = 60

BARS = "▁▂▃▄▅▆▇█"
MIN_SCALE = math.log(1.02)
"""Minimum range of the bars, log scale, so that noise does not look like large changes."""

ANCHOR_SERIES = "anchor"
"""Value of ``Baseline.series`` for sessions that repeat the anchor's commit. They are not part of the trend of main."""
WITHHELD_SERIES = "held"

Terms = tuple[Any, ...]


@dataclass
class _Bucket:
    """Summary of neighbouring sessions of one series. Levels are logarithms of seconds."""

    oldest: Baseline
    newest: Baseline
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
        """Return the bucket as a record, with levels in seconds."""
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
    """The sessions of one series, combined into buckets, and totals of the sessions of the anchor's commit."""

    buckets: list[_Bucket]
    """At most ``MAX_LEVELS`` buckets, oldest first. They do not contain sessions of ``ANCHOR_SERIES``."""
    excluded_sessions: int = 0
    anchor_sessions: int = 0
    anchor_total: float = 0.0


class _ClassSeries(NamedTuple):
    """One series of a node class, before the search for changes of level."""

    environment: EnvironmentKey
    terms: Terms
    collected: _SeriesBuckets


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
    ``points`` points. ``now`` is the current time, by default that of the clock. Raises BaselineError if no session
    matches, or if a session is unusable or was measured after ``now``.
    """
    trends = []
    for variant_folder in _variant_folders(store, workload, variant):
        for folder in store.folders(variant_folder):
            trend = _class_trend(store, folder, node_class, last, points, now or datetime.now(UTC))
            if trend is not None:
                trends.append(trend)
    if not trends:
        filters = [name for name in (variant, node_class) if name]
        selection = f" ({', '.join(filters)})" if filters else ""
        raise BaselineError(
            store.root, f"no timed session of {workload}{selection} is stored", "see 'regbot baseline list'"
        )
    return History(workload=workload, trends=trends)


def _variant_folders(store: Store, workload: str, variant: str | None) -> list[PurePosixPath]:
    """Return the folders of a workload, one per variant: only the folder of ``variant``, or of all variants if it is
    None.

    A folder has the name ``[label+]shape+mesh+variant@version``. The name of a variant contains no ``+``, so folders of
    other workloads do not match.
    """
    try:
        pattern = workload_folder(workload, variant or "*")
    except ValueError as error:
        raise BaselineError(store.root, str(error), "see 'regbot baseline list'") from error
    if variant is not None:
        return [PurePosixPath(pattern)]
    start, end = pattern.split("*")
    root_folder = PurePosixPath()
    return [
        folder
        for folder in store.folders(root_folder)
        if folder.name.startswith(start) and folder.name.endswith(end) and "+" not in folder.name.removeprefix(start)
    ]


def _class_trend(
    store: Store, folder: PurePosixPath, node_class: str | None, last: int | None, points: int, now: datetime
) -> HistoryTrend | None:
    """Return the trend of the node class whose folder is ``folder``. Return None if its sessions are traces, or if
    ``node_class`` names another class.

    ``last`` is the number of newest sessions of each series; None for all sessions.
    """
    stored = [session for session in store.read_sessions(folder).values() if session.tier == "timed"]
    sessions = [session for session in stored if node_class in (None, session.node_class)]
    if not any(session.series != ANCHOR_SERIES for session in sessions):
        return None
    check_not_in_future(sessions, now)
    sample = sessions[0]
    anchor = store.anchor(sample.workload, sample.variant, sample.node_class)
    anchor_commit = anchor.commit if anchor else None
    sessions_by_series: dict[tuple[str, Terms], list[Baseline]] = {}
    for session in sessions:
        terms = tuple(getattr(session, name) for name in TERMS)
        sessions_by_series.setdefault((session.environment.model_dump_json(), terms), []).append(session)
    class_series = [
        _ClassSeries(members[0].environment, terms, _collect_buckets(members, last, anchor_commit))
        for (_, terms), members in sessions_by_series.items()
        if any(session.series != ANCHOR_SERIES for session in members)
    ]
    class_series.sort(key=lambda series: series.collected.buckets[0].oldest.measured)
    all_series = [_make_series(series, points) for series in class_series]
    all_previous = [all_series[0], *all_series[:-1]]  # the first series is compared with itself: nothing has changed
    return HistoryTrend(
        variant=sample.variant,
        node_class=sample.node_class,
        anchor=anchor_commit,
        series=[
            series.model_copy(update={"changed": _changed_fields(previous, series)})
            for previous, series in zip(all_previous, all_series, strict=True)
        ],
    )


def _collect_buckets(sessions: Sequence[Baseline], last: int | None, anchor_commit: str | None) -> _SeriesBuckets:
    """Collect the newest ``last`` sessions of one series; None for all. ``sessions`` are oldest first.

    Sessions of ``ANCHOR_SERIES`` do not count for ``last``. Those that are newer than the oldest collected session
    count for the anchor's level. ``anchor_commit`` is the commit of the present anchor; None if there is no anchor.
    """
    # If two users stored the same session, count it once.
    distinct_sessions = list({session.session: session for session in sessions}.values())
    main_sessions = [session for session in distinct_sessions if session.series != ANCHOR_SERIES][-(last or 0) :]
    of_anchor = [
        _level(session)
        for session in distinct_sessions
        if session.commit == anchor_commit and session.measured >= main_sessions[0].measured
    ]
    starts = [*bucket_starts(len(main_sessions), MAX_LEVELS), len(main_sessions)]
    return _SeriesBuckets(
        buckets=[_make_bucket(main_sessions[start:end], anchor_commit) for start, end in pairwise(starts)],
        excluded_sessions=sum(session.series == WITHHELD_SERIES for session in main_sessions),
        anchor_sessions=len(of_anchor),
        anchor_total=math.fsum(of_anchor),
    )


def _make_bucket(sessions: Sequence[Baseline], anchor_commit: str | None) -> _Bucket:
    levels = [_level(session) for session in sessions]
    return _Bucket(
        oldest=sessions[0],
        newest=sessions[-1],
        sessions=len(sessions),
        total=math.fsum(levels),
        low=min(levels),
        high=max(levels),
        has_anchor=any(session.commit == anchor_commit for session in sessions),
    )


def _level(session: Baseline) -> float:
    """Return the logarithm of the session's level in seconds."""
    return math.log(session.level_s["median"])


def _make_series(series: _ClassSeries, points: int) -> HistorySeries:
    """Return the record of a series, with its changes of level and at most ``points`` points."""
    collected = series.collected
    buckets = collected.buckets
    change_positions = change_points([bucket.mean for bucket in buckets])
    stretches = _merge_buckets(buckets, [0, *change_positions])
    buckets_of_points = _merge_buckets(buckets, bucket_starts(len(buckets), points))
    anchor_s = None
    if collected.anchor_sessions:
        anchor_s = math.exp(collected.anchor_total / collected.anchor_sessions)
    return HistorySeries(
        environment=series.environment,
        changed=[],
        **dict(zip(TERMS, series.terms, strict=True)),
        sessions=sum(bucket.sessions for bucket in buckets),
        excluded_sessions=collected.excluded_sessions,
        first=buckets[0].oldest.measured,
        last=buckets[-1].newest.measured,
        anchor_sessions=collected.anchor_sessions,
        anchor_s=anchor_s,
        points=[bucket.point() for bucket in buckets_of_points],
        stretches=[bucket.point() for bucket in stretches],
        changes=[
            _make_change(before, after, buckets[position])
            for position, (before, after) in zip(change_positions, pairwise(stretches), strict=True)
        ],
    )


def _make_change(before: _Bucket, after: _Bucket, first_bucket: _Bucket) -> HistoryChange:
    """Return the change of level between two stretches. ``first_bucket`` is the bucket with which the new level begins.
    Any session of this bucket may be the first at the new level, so the number of its sessions is stored as ``grain``.
    """
    return HistoryChange(
        at=after.oldest.measured,
        before=before.newest.commit,
        commit=after.oldest.commit,
        grain=first_bucket.sessions,
        change_pct=100 * math.expm1(after.mean - before.mean),
    )


def _merge_buckets(buckets: Sequence[_Bucket], starts: Sequence[int]) -> list[_Bucket]:
    merged = []
    for start, end in pairwise([*starts, len(buckets)]):
        members = buckets[start:end]
        merged.append(
            _Bucket(
                oldest=members[0].oldest,
                newest=members[-1].newest,
                sessions=sum(bucket.sessions for bucket in members),
                total=math.fsum(bucket.total for bucket in members),
                low=min(bucket.low for bucket in members),
                high=max(bucket.high for bucket in members),
                has_anchor=any(bucket.has_anchor for bucket in members),
            )
        )
    return merged


def _changed_fields(previous: HistorySeries, current: HistorySeries) -> list[str]:
    previous_fields, current_fields = (
        series.environment.model_dump() | {name: getattr(series, name) for name in TERMS}
        for series in (previous, current)
    )
    return [name for name in previous_fields if previous_fields[name] != current_fields[name]]


def history_page(record: History) -> str:
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
        anchor_sessions = count_noun(series.anchor_sessions, "session")
        lines.append(f"  at anchor    {anchor_sessions}, level {_format_time(series.anchor_s)}")
    levels_s = [point.level_s for point in series.points]
    level_range = f"{_format_time(min(levels_s))} to {_format_time(max(levels_s))}"
    lines.append(f"  trend        {_draw_bars(series.points)}  {level_range}")
    if marks := _draw_marks(series):
        lines.append(f"               {marks}")
    rows: list[tuple[str, ...]] = [("from", "sessions", "level", "lowest", "highest", "")]
    change_notes = [
        f"{change.change_pct:+.1f}% between {short_commit(change.before)} and {short_commit(change.commit)}"
        for change in series.changes
    ]
    # Each change begins a stretch. No change begins the first one, so it has no note.
    for stretch, note in zip(series.stretches, ["", *change_notes], strict=True):
        times = (_format_time(seconds) for seconds in (stretch.level_s, stretch.low_s, stretch.high_s))
        rows.append((stretch.first, str(stretch.sessions), *times, note))
    number_columns = range(1, 5)  # aligned to the right
    return [*lines, *columns(rows, right=number_columns, indent="  ")]


def _format_time(seconds: float) -> str:
    return f"{seconds:#.4g} s" if seconds >= 10 else f"{1000 * seconds:#.4g} ms"


def _draw_bars(points: Sequence[HistoryPoint]) -> str:
    levels = [math.log(point.level_s) for point in points]
    lowest = min(levels)
    scale = max(max(levels) - lowest, MIN_SCALE)
    heights = [int(len(BARS) * (level - lowest) / scale) for level in levels]
    return "".join(BARS[min(height, len(BARS) - 1)] for height in heights)


def _draw_marks(series: HistorySeries) -> str:
    """Return the line below the bars, with a legend; '' if no point has a mark.

    ``A`` marks a point with a session of the anchor's commit, and ``^`` the start of a new level. A point that has both
    gets ``^``.
    """
    change_times = [change.at for change in series.changes]
    marks = []
    for point in series.points:
        if any(point.first <= time <= point.last for time in change_times):
            marks.append("^")
        else:
            marks.append("A" if point.anchor else " ")
    legend = [text for mark, text in (("^", "^: new level"), ("A", "A: anchor")) if mark in marks]
    return f"{''.join(marks).rstrip()}  ({', '.join(legend)})" if legend else ""
