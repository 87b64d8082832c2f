"""What is asked most of stored sessions, kept beside them in a database, so that no question opens every file.

The files are the truth, and this is derived from them: of every session the scalars that its file begins with, and its
levels. It finds and lists sessions and gives their trend. It decides nothing: a session that decides is read whole by
the store, and its content is checked.

It catches up by itself, whoever wrote: ``add``, a merge, somebody who deletes files. A folder whose names change has
another ctime, which nobody can set; then its names are listed, and only the files that are new are read. A ctime is no
finer than a tick of the clock, so one that was young when the names were listed is not relied upon. Files that stay
where they are never change; one that is changed all the same is found by whoever reads it.
"""

import hashlib
import math
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from regbot.baselines.database import Derived, transaction
from regbot.records.baseline import Baseline, RunSummary
from regbot.records.run import Tier
from regbot.stats.screen import SCREEN_RUNS

FOLDER = ".index"

SETTLED_NS = 2 * 10**9
"""Age of a folder's last change at which no later change can have the same ctime: the coarsest clock of a file system
has ticks of two seconds."""

ROWS = 500
"""Files read between two writes of an index that catches up."""

PAGE = 64
"""Rows read at a time where it is not known how many will be needed."""

SCALARS = tuple(
    name for name in Baseline.model_fields if name not in ("schema_id", "environment", "provenance", "runs", "against")
)
"""What the file of a stored session begins with, one a line."""

_COLUMNS = ("name", "sound", *SCALARS, "run_count", "log_median", "log_mean", "first_log_median", "first_log_mean")
TERMS = ("world_size", "steps", "cut", "clock", "dispatcher")
"""What has to be the same for times to be comparable, within one folder."""

_LIST = ", ".join(f'"{name}"' for name in _COLUMNS)
_SCHEMA = (
    "CREATE TABLE folders (id INTEGER PRIMARY KEY, path TEXT NOT NULL UNIQUE, stamp TEXT, settled INTEGER NOT NULL)",
    f"CREATE TABLE sessions (folder INTEGER NOT NULL, {_LIST})",
    "CREATE UNIQUE INDEX by_name ON sessions (folder, name)",
    "CREATE INDEX by_session ON sessions (folder, session)",
    "CREATE INDEX by_time ON sessions (folder, measured, session)",
    'CREATE INDEX by_commit ON sessions (folder, "commit", measured)',
)
_FORM = hashlib.sha256("\n".join(_SCHEMA).encode()).hexdigest()[:8]
_LAST = "\U0010ffff"
"""Text that no text of a store comes after."""


class Row(NamedTuple):
    """What is kept of one session."""

    name: str
    """Of its file."""
    sound: bool
    """Whether its content was right when it was read. If not, it has no levels."""
    scalars: dict[str, Any]
    runs: int
    log_median: float | None
    """Mean over its runs of the log of a usual step. None for a trace."""
    log_mean: float | None
    """Mean over its runs of the log of the time per step."""
    first_log_median: float | None
    """The same over its first runs, as the screen takes a session's level. None where it has too few."""
    first_log_mean: float | None


class Level(NamedTuple):
    """What a trend needs of one session."""

    measured: str
    session: str
    name: str
    sound: bool
    tier: str
    series: str
    commit: str
    world_size: int
    steps: int
    cut: int
    clock: str
    dispatcher: str
    log_median: float | None


class Span(NamedTuple):
    """The sessions of a folder: how many, and when the oldest and the newest were measured."""

    sessions: int
    first: str
    last: str


def row_of(name: str, found: Baseline) -> Row:
    """What is kept of a session that was read whole."""
    runs, first = found.runs, found.runs[:SCREEN_RUNS]
    levels = (_mean(runs, "log_median"), _mean(runs, "log_mean"))
    of_first = (_mean(first, "log_median"), _mean(first, "log_mean")) if len(first) == SCREEN_RUNS else (None, None)
    return Row(name, True, {scalar: getattr(found, scalar) for scalar in SCALARS}, len(runs), *levels, *of_first)


_LEVEL_LIST = ", ".join(f'"{name}"' for name in Level._fields)


class Index:
    """The index of the store under ``root``.

    ``names`` lists the files of sessions in a folder, in order; ``read`` tells what is kept of one, None where it is
    gone. What they raise, a question raises; what is wrong with the database never shows.
    """

    def __init__(
        self,
        root: Path,
        names: Callable[[PurePosixPath], Sequence[str]],
        read: Callable[[PurePosixPath], Row | None],
    ) -> None:
        self._root, self._names, self._read = root, names, read
        self._db = Derived(root / FOLDER, _FORM, _SCHEMA)

    def named(self, group: PurePosixPath, start: str = "", most: int = -1) -> list[PurePosixPath]:
        """Files of a folder whose names begin with ``start``, in order; the first ``most`` where that is not negative.

        Opens no file: where the index is behind, the folder's names are listed.
        """

        def ask(db: sqlite3.Connection) -> list[PurePosixPath]:
            row = _folder(db, group)
            if row is None or not row[2] or row[1] != _stamp(self._root / group)[0]:
                found = [name for name in self._names(group) if name.startswith(start)]
                return [group / name for name in found[: most if most >= 0 else None]]
            sql = "SELECT name FROM sessions WHERE folder = ? AND name >= ? AND name < ? ORDER BY name LIMIT ?"
            return [group / name for (name,) in db.execute(sql, (row[0], start, start + _LAST, most))]

        return self._db.run(ask) if (self._root / group).is_dir() else []

    def holding(self, group: PurePosixPath, session: str) -> list[PurePosixPath]:
        """Where in a folder a session lies. It may miss a file that came within the last tick of the clock."""
        sql = "SELECT name FROM sessions WHERE folder = ? AND session = ? ORDER BY name"
        return [group / name for (name,) in self._asked(group, sql, (session,), lax=True)]

    def span(self, group: PurePosixPath) -> Span | None:
        """None where there is no session."""
        sql = "SELECT count(*), min(measured), max(measured) FROM sessions WHERE folder = ?"
        return next((Span(*row) for row in self._asked(group, sql) if row[0]), None)

    def after(self, group: PurePosixPath, measured: str) -> Row | None:
        """The newest session, where it was measured after a moment."""
        sql = f"SELECT {_LIST} FROM sessions WHERE folder = ? AND measured > ? ORDER BY measured DESC LIMIT 1"
        return next(map(_row, self._asked(group, sql, (measured,))), None)

    def commits(self, group: PurePosixPath, start: str) -> list[tuple[str, PurePosixPath]]:
        """The commits that begin with ``start``, in order, each with a session of it."""
        sql = (
            'SELECT "commit", min(name) FROM sessions WHERE folder = ? AND "commit" >= ? AND "commit" < ? '
            'GROUP BY "commit" ORDER BY "commit"'
        )
        return [(commit, group / name) for commit, name in self._asked(group, sql, (start, start + _LAST))]

    def newest_counted(self, group: PurePosixPath, tier: Tier, commit: str | None = None) -> Row | None:
        """The newest session of a tier that has a ledger; of ``commit``, where one is given."""
        of_commit, values = ("", (tier,)) if commit is None else (' AND "commit" = ?', (commit, tier))
        sql = (
            f"SELECT {_LIST} FROM sessions WHERE folder = ?{of_commit} AND tier = ? AND ledger IS NOT NULL "
            "ORDER BY measured DESC, name DESC LIMIT 1"
        )
        return next(map(_row, self._asked(group, sql, values)), None)

    def newest(self, group: PurePosixPath) -> Iterator[Row]:
        """All sessions of a folder, newest first, read as far as they are asked for."""
        return (_row(values[3:]) for values in self._pages(group, f"measured, session, name, {_LIST}", PAGE))

    def levels(self, group: PurePosixPath) -> Iterator[Level]:
        """The levels of all sessions of a folder, newest first, read as far as they are asked for."""
        return map(Level._make, self._pages(group, _LEVEL_LIST, 1000))

    def counts(self, group: PurePosixPath) -> dict[tuple[Any, ...], int]:
        """How many sessions of a folder were timed, by their series and the terms on which they were."""
        names = ", ".join(f'"{name}"' for name in ("series", *TERMS))
        sql = f"SELECT count(*), {names} FROM sessions WHERE folder = ? AND tier = 'timed' GROUP BY {names}"
        return {tuple(key): count for count, *key in self._asked(group, sql)}

    def add(self, group: PurePosixPath, rows: Iterable[Row]) -> None:
        """Tell of sessions that have just been written into a folder. Nothing is lost where that cannot be kept."""
        given = list(rows)

        def put(db: sqlite3.Connection) -> None:
            with transaction(db):
                number = _folder_number(db, group)
                _put(db, number, given)
                stamp = _stamp(self._root / group)[0]
                db.execute("UPDATE folders SET stamp = ?, settled = 0 WHERE id = ?", (stamp, number))

        self._db.run_if_open(put)

    def close(self) -> None:
        self._db.close()

    def _asked(
        self, group: PurePosixPath, sql: str, values: Sequence[object] = (), lax: bool = False
    ) -> list[tuple[Any, ...]]:
        """What ``sql`` selects; its first parameter is the folder. Nothing where there is no such folder."""
        if not (self._root / group).is_dir():
            return []
        return self._db.run(lambda db: db.execute(sql, (self._caught_up(db, group, lax), *values)).fetchall())

    def _pages(self, group: PurePosixPath, columns: str, size: int) -> Iterator[tuple[Any, ...]]:
        """Sessions newest first. ``columns`` begin with when a session was measured, its identity, its name."""
        sql = (
            f"SELECT {columns} FROM sessions WHERE folder = ? AND (measured, session, name) < (?, ?, ?) "
            f"ORDER BY measured DESC, session DESC, name DESC LIMIT {size}"
        )
        start: tuple[Any, ...] = (_LAST, _LAST, _LAST)
        while rows := self._asked(group, sql, start):
            yield from rows
            if len(rows) < size:
                return
            start = rows[-1][:3]

    def _caught_up(self, db: sqlite3.Connection, group: PurePosixPath, lax: bool) -> int:
        """The number of a folder, everything in it known; ``lax``: but for what changed within the last tick."""
        stamp: str | None
        stamp, changed_ns = _stamp(self._root / group)
        row = _folder(db, group)
        if row is not None and row[1] == stamp and (row[2] or lax):
            return int(row[0])
        settled = time.time_ns() - changed_ns > SETTLED_NS
        with transaction(db):
            number = _folder_number(db, group)
        # What is kept is read before the names are listed: another process may keep a file that came in between.
        kept = dict(db.execute("SELECT name, sound FROM sessions WHERE folder = ?", (number,)))
        listed = self._names(group)
        rows: list[Row] = []
        for name in (name for name in listed if not kept.get(name)):
            if (told := self._read(group / name)) is not None:
                rows.append(told)
            if told is None or not told.sound:
                stamp = None  # it is looked at again: it may be restored, and the folder's names stay the same
            if len(rows) == ROWS:
                with transaction(db):
                    _put(db, number, rows)
                rows = []
        with transaction(db):
            _put(db, number, rows)
            gone = [(number, name) for name in kept.keys() - listed]
            db.executemany("DELETE FROM sessions WHERE folder = ? AND name = ?", gone)
            db.execute("UPDATE folders SET stamp = ?, settled = ? WHERE id = ?", (stamp, settled, number))
        return number


def _folder(db: sqlite3.Connection, group: PurePosixPath) -> tuple[Any, ...] | None:
    """Number and stamp of a folder, and whether the stamp can be relied upon."""
    found: tuple[Any, ...] | None = db.execute(
        "SELECT id, stamp, settled FROM folders WHERE path = ?", (str(group),)
    ).fetchone()
    return found


def _folder_number(db: sqlite3.Connection, group: PurePosixPath) -> int:
    db.execute("INSERT OR IGNORE INTO folders (path, settled) VALUES (?, 0)", (str(group),))
    (number,) = db.execute("SELECT id FROM folders WHERE path = ?", (str(group),)).fetchone()
    return int(number)


def _put(db: sqlite3.Connection, number: int, rows: Sequence[Row]) -> None:
    values = [(number, row.name, row.sound, *(_plain(row.scalars[name]) for name in SCALARS), *row[3:]) for row in rows]
    db.executemany(f"INSERT OR REPLACE INTO sessions VALUES ({', '.join('?' * (1 + len(_COLUMNS)))})", values)


def _plain(value: object) -> object:
    """A scalar as a database can hold it. A number or a text that it cannot is of no use to anybody."""
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        return str(value)
    return value.encode("utf-8", "replace").decode() if isinstance(value, str) else value


def _row(values: Sequence[Any]) -> Row:
    end = 2 + len(SCALARS)
    return Row(values[0], bool(values[1]), dict(zip(SCALARS, values[2:end], strict=True)), *values[end:])


def _stamp(folder: Path) -> tuple[str, int]:
    """What is another after any change of the names in a folder; and the moment of the last."""
    found = folder.stat()
    return f"{found.st_ino}:{found.st_ctime_ns}", found.st_ctime_ns


def _mean(runs: Sequence[RunSummary], name: str) -> float | None:
    return math.fsum(getattr(run, name) for run in runs) / len(runs) if runs else None
