"""``regbot baseline history``: the trend of one workload, and the text that shows it. It decides nothing.

The *level* of a session is the time of its typical step. A *series* is the sessions of one node class and environment
that were timed on the same terms (``TERMS``). A *stretch* is all sessions between two changes of level.
"""

import math
from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import pairwise

from regbot.baselines.commands import format_environment, matching_classes
from regbot.baselines.names import class_folder
from regbot.baselines.query import TERMS, check_not_in_future, terms_of
from regbot.baselines.store import BaselineError, Store
from regbot.records.baseline import Baseline
from regbot.records.history import History, HistoryChange, HistoryPoint, HistorySeries, HistoryTrend
from regbot.records.text.clip import short_commit
from regbot.records.text.printable import printable
from regbot.records.text.table import columns
from regbot.records.text.words import count as count_noun
from regbot.stats.history import MAX_LEVELS, change_points

POINTS = 60

BARS = "▁▂▃▄▅▆▇█"
MIN_SCALE = math.log(1.02)
"""Minimum range of the bars, log scale, so that noise does not look like large changes."""

ANCHOR_SERIES = "anchor"
"""Value of ``Baseline.series`` for sessions that repeat the anchor's commit. They are not part of the trend of main."""


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
    classes = matching_classes(store, workload, variant, node_class)
    trends = [_class_trend(store, *keys, last=last, points=points, now=now or datetime.now(UTC)) for keys in classes]
    found_trends = [trend for trend in trends if trend is not None]
    if not found_trends:
        filters = [name for name in (variant, node_class) if name]
        selection = f" ({', '.join(filters)})" if filters else ""
        raise BaselineError(
            store.root, f"no timed session of {workload}{selection} is stored", "see 'regbot baseline list'"
        )
    return History(workload=workload, trends=found_trends)


def _class_trend(
    store: Store, workload: str, variant: str, node_class: str, *, last: int | None, points: int, now: datetime
) -> HistoryTrend | None:
    """Return the trend of a variant on a node class. Return None if only sessions of the anchor are stored.

    ``last`` is the number of newest sessions of each series; None for all sessions.
    """
    stored = store.read_sessions(class_folder(workload, variant, node_class)).values()
    sessions = [session for session in stored if (session.tier, session.node_class) == ("timed", node_class)]
    if not any(session.series != ANCHOR_SERIES for session in sessions):
        return None
    check_not_in_future(sessions, now)
    anchor = store.anchor(workload, variant, node_class)
    anchor_commit = anchor.commit if anchor else None
    sessions_by_series: dict[tuple[object, ...], list[Baseline]] = {}
    for session in sessions:
        key = session.environment.model_dump_json(), *terms_of(session).values()
        sessions_by_series.setdefault(key, []).append(session)
    all_series = [
        _make_series(members, last, points, anchor_commit)
        for members in sessions_by_series.values()
        if any(session.series != ANCHOR_SERIES for session in members)
    ]
    all_series.sort(key=lambda series: series.first)
    all_previous = [all_series[0], *all_series[:-1]]  # the first series is compared with itself: nothing has changed
    return HistoryTrend(
        variant=variant,
        node_class=node_class,
        anchor=anchor_commit,
        series=[
            series.model_copy(update={"changed": _changed_fields(previous, series)})
            for previous, series in zip(all_previous, all_series, strict=True)
        ],
    )


def _make_series(
    members: Sequence[Baseline], last: int | None, points: int, anchor_commit: str | None
) -> HistorySeries:
    """Return the record of a series, with its changes of level and at most ``points`` points.

    ``members`` are oldest first; only the newest ``last`` count, None for all. Sessions of ``ANCHOR_SERIES`` do not
    count for ``last``. Those that are newer than the oldest counted session count for the anchor's level.
    """
    distinct = list({session.session: session for session in members}.values())  # two users may have stored one session
    sessions = [session for session in distinct if session.series != ANCHOR_SERIES][-(last or 0) :]
    of_anchor = [
        _level(session)
        for session in distinct
        if session.commit == anchor_commit and session.measured >= sessions[0].measured
    ]
    searched = sessions[-MAX_LEVELS:]
    offset = len(sessions) - len(searched)
    changes = [offset + position for position in change_points([_level(session) for session in searched])]
    stretches = _make_points(sessions, [0, *changes], anchor_commit)
    points = min(points, len(sessions))  # buckets of nearly equal size
    buckets = [bucket * len(sessions) // points for bucket in range(points)]
    return HistorySeries(
        environment=sessions[0].environment,
        changed=[],  # filled in later, because it depends on the series before
        **terms_of(sessions[0]),
        sessions=len(sessions),
        excluded_sessions=sum(session.series == "held" for session in sessions),
        first=sessions[0].measured,
        last=sessions[-1].measured,
        anchor_sessions=len(of_anchor),
        anchor_s=math.exp(math.fsum(of_anchor) / len(of_anchor)) if of_anchor else None,
        points=_make_points(sessions, buckets, anchor_commit),
        stretches=stretches,
        changes=[
            HistoryChange(
                at=sessions[position].measured,
                before=sessions[position - 1].commit,
                commit=sessions[position].commit,
                change_pct=100 * (after.level_s / before.level_s - 1),
            )
            for position, (before, after) in zip(changes, pairwise(stretches), strict=True)
        ],
    )


def _make_points(sessions: Sequence[Baseline], starts: Sequence[int], anchor_commit: str | None) -> list[HistoryPoint]:
    """Combine the sessions of each segment into one point. A segment begins at each position in ``starts``."""
    combined = []
    for start, end in pairwise([*starts, len(sessions)]):
        members = sessions[start:end]
        levels = [_level(session) for session in members]
        combined.append(
            HistoryPoint(
                first=members[0].measured,
                last=members[-1].measured,
                sessions=len(members),
                level_s=math.exp(math.fsum(levels) / len(levels)),
                low_s=math.exp(min(levels)),
                high_s=math.exp(max(levels)),
                anchor=any(session.commit == anchor_commit for session in members),
            )
        )
    return combined


def _level(session: Baseline) -> float:
    """Return the logarithm of the session's level in seconds."""
    return math.log(session.level_s["median"])


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
