"""Index of the stored sessions in a database beside them, so that a query does not have to open every file.

The files are authoritative, and the index is derived from them. For each session it has the scalars at the beginning of
the file, and the level of the step time. The index finds and lists sessions and supplies trends, but decides nothing.
For a decision, the store reads the whole session and checks its content.

The index detects a change of a folder by the ctime of the folder, whoever made the change: ``add``, a merge, or a user
who deletes files. The ctime changes whenever the names in the folder change, and no user can set it. After a change,
the index lists the names and reads only the new files. A ctime has the resolution of a clock tick, so two changes in
quick succession can have the same ctime. Therefore the index does not rely on a ctime that was very recent when the
names were listed. Stored files never change. If somebody changes one, the store detects it when it reads the file.
"""

import hashlib
import math
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from regbot.baselines.database import DerivedDatabase, transaction
from regbot.records.baseline import Baseline
from regbot.records.run import Tier

FOLDER = ".index"

STABLE_AGE_NS = 2 * 10**9
"""If a ctime is at least this old, no later change can have the same ctime. The coarsest file systems have ticks of two
seconds.
"""

BATCH_ROWS = 500
"""Number of files that are read between two writes while the index updates itself."""

PAGE_ROWS = 64
"""Number of rows per read if the number of needed rows is unknown."""

NON_SCALARS = ("schema_id", "environment", "provenance", "runs", "against", "step_s", "loaded_files")
SCALARS = tuple(name for name in Baseline.model_fields if name not in NON_SCALARS)
"""Fields at the beginning of the file of a stored session, one per line."""

_COLUMNS = ("name", "sound", *SCALARS, "run_count", "log_median")
TERMS = ("world_size", "steps", "cut", "clock", "dispatcher")
"""Fields in which two sessions of one folder must be equal. Otherwise their step times are not comparable."""

_COLUMN_LIST = ", ".join(f'"{name}"' for name in _COLUMNS)
# In the table folders, stamp changes with the names in the folder, and settled says whether the stamp is reliable.
_SCHEMA = (
    "CREATE TABLE folders (id INTEGER PRIMARY KEY, path TEXT NOT NULL UNIQUE, stamp TEXT, settled INTEGER NOT NULL)",
    f"CREATE TABLE sessions (folder INTEGER NOT NULL, {_COLUMN_LIST})",
    "CREATE UNIQUE INDEX by_name ON sessions (folder, name)",
    "CREATE INDEX by_session ON sessions (folder, session)",
    "CREATE INDEX by_time ON sessions (folder, measured, session)",
    'CREATE INDEX by_commit ON sessions (folder, "commit", measured)',
)
_FORMAT_DIGEST = hashlib.sha256("\n".join(_SCHEMA).encode()).hexdigest()[:8]
_MAX_TEXT = "\U0010ffff"
"""Text that sorts after every text in a store."""


class IndexRow(NamedTuple):
    """Index entry of one session."""

    name: str
    """Name of the session's file."""
    sound: bool
    """Whether the content of the file was valid when it was read. An invalid session has no level."""
    scalars: dict[str, Any]
    runs: int
    log_median: float | None
    """Logarithm of the session's level, which is the time of a typical step in seconds. None for a trace."""


class SessionLevel(NamedTuple):
    """Fields of one session that a trend needs."""

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


class SessionSpan(NamedTuple):
    """Number of sessions in a folder, and when the oldest and the newest session were measured."""

    sessions: int
    first: str
    last: str


def make_index_row(name: str, baseline: Baseline) -> IndexRow:
    """Return the index entry of a valid session."""
    level = math.log(baseline.level_s["median"]) if baseline.runs else None
    return IndexRow(name, True, {scalar: getattr(baseline, scalar) for scalar in SCALARS}, len(baseline.runs), level)


_LEVEL_COLUMN_LIST = ", ".join(f'"{name}"' for name in SessionLevel._fields)


class Index:
    """Index of the store under ``root``.

    ``names`` lists the session files of a folder in order. ``read`` returns the entry of a file, or None if the file is
    gone. Queries raise the exceptions of ``names`` and ``read``, but never errors of the database.
    """

    def __init__(
        self,
        root: Path,
        names: Callable[[PurePosixPath], Sequence[str]],
        read: Callable[[PurePosixPath], IndexRow | None],
    ) -> None:
        self._root, self._list_names, self._read = root, names, read
        self._db = DerivedDatabase(root / FOLDER, _FORMAT_DIGEST, _SCHEMA)

    def find_by_name(self, group: PurePosixPath, prefix: str = "", limit: int = -1) -> list[PurePosixPath]:
        """Return the files of a folder whose names begin with ``prefix``, in order.

        If ``limit`` is not negative, at most ``limit`` files are returned. No file is opened. If the index is outdated,
        the names in the folder are listed instead.
        """

        def query(db: sqlite3.Connection) -> list[PurePosixPath]:
            row = _find_folder(db, group)
            if row is None or not row[2] or row[1] != _folder_stamp(self._root / group)[0]:
                names = [name for name in self._list_names(group) if name.startswith(prefix)]
                return [group / name for name in names[: limit if limit >= 0 else None]]
            sql = "SELECT name FROM sessions WHERE folder = ? AND name >= ? AND name < ? ORDER BY name LIMIT ?"
            return [group / name for (name,) in db.execute(sql, (row[0], prefix, prefix + _MAX_TEXT, limit))]

        return self._db.run(query) if (self._root / group).is_dir() else []

    def find_by_session(self, group: PurePosixPath, session: str) -> list[PurePosixPath]:
        """Return the files of a session in a folder. A file that was added within the last clock tick may
        be missing.
        """
        sql = "SELECT name FROM sessions WHERE folder = ? AND session = ? ORDER BY name"
        return [group / name for (name,) in self._select(group, sql, (session,), ignore_last_tick=True)]

    def span(self, group: PurePosixPath) -> SessionSpan | None:
        """Return the number of sessions and the times of the oldest and the newest; None if there is no session."""
        sql = "SELECT count(*), min(measured), max(measured) FROM sessions WHERE folder = ?"
        return next((SessionSpan(*row) for row in self._select(group, sql) if row[0]), None)

    def newest_after(self, group: PurePosixPath, measured: str) -> IndexRow | None:
        """Return the newest session if it was measured after ``measured``; otherwise None."""
        sql = f"SELECT {_COLUMN_LIST} FROM sessions WHERE folder = ? AND measured > ? ORDER BY measured DESC LIMIT 1"
        return next(map(_parse_row, self._select(group, sql, (measured,))), None)

    def find_commits(self, group: PurePosixPath, prefix: str) -> list[tuple[str, PurePosixPath]]:
        """Return the commits that begin with ``prefix``, in order. Each commit comes with the file of one of its
        sessions.
        """
        sql = (
            'SELECT "commit", min(name) FROM sessions WHERE folder = ? AND "commit" >= ? AND "commit" < ? '
            'GROUP BY "commit" ORDER BY "commit"'
        )
        return [(commit, group / name) for commit, name in self._select(group, sql, (prefix, prefix + _MAX_TEXT))]

    def newest_with_ledger(self, group: PurePosixPath, tier: Tier, commit: str | None = None) -> IndexRow | None:
        """Return the newest session of ``tier`` that has a ledger; None if there is none. ``commit`` selects the
        sessions of a commit.
        """
        commit_condition, values = ("", (tier,)) if commit is None else (' AND "commit" = ?', (commit, tier))
        sql = (
            f"SELECT {_COLUMN_LIST} FROM sessions WHERE folder = ?{commit_condition} AND tier = ? "
            "AND ledger IS NOT NULL ORDER BY measured DESC, name DESC LIMIT 1"
        )
        return next(map(_parse_row, self._select(group, sql, values)), None)

    def newest_first(self, group: PurePosixPath) -> Iterator[IndexRow]:
        """Yield all sessions of a folder, newest first. Rows are read as they are needed."""
        return (
            _parse_row(values[3:])
            for values in self._read_in_pages(group, f"measured, session, name, {_COLUMN_LIST}", PAGE_ROWS)
        )

    def levels_newest_first(self, group: PurePosixPath) -> Iterator[SessionLevel]:
        """Yield the levels of all sessions of a folder, newest first. Rows are read as they are needed."""
        return map(SessionLevel._make, self._read_in_pages(group, _LEVEL_COLUMN_LIST, 1000))

    def count_by_terms(self, group: PurePosixPath) -> dict[tuple[Any, ...], int]:
        """Return the number of timed sessions of a folder, by series and terms."""
        names = ", ".join(f'"{name}"' for name in ("series", *TERMS))
        sql = f"SELECT count(*), {names} FROM sessions WHERE folder = ? AND tier = 'timed' GROUP BY {names}"
        return {tuple(key): count for count, *key in self._select(group, sql)}

    def add(self, group: PurePosixPath, rows: Iterable[IndexRow]) -> None:
        """Add sessions that were just written into a folder. A failure does no harm, because the index updates itself
        later.
        """
        new_rows = list(rows)

        def insert(db: sqlite3.Connection) -> None:
            with transaction(db):
                folder_id = _ensure_folder(db, group)
                _insert_rows(db, folder_id, new_rows)
                stamp = _folder_stamp(self._root / group)[0]
                db.execute("UPDATE folders SET stamp = ?, settled = 0 WHERE id = ?", (stamp, folder_id))

        self._db.run_if_open(insert)

    def close(self) -> None:
        self._db.close()

    def _select(
        self, group: PurePosixPath, sql: str, values: Sequence[object] = (), ignore_last_tick: bool = False
    ) -> list[tuple[Any, ...]]:
        """Return the rows that ``sql`` selects; [] if the folder does not exist. The first parameter of ``sql`` is the
        folder.
        """
        if not (self._root / group).is_dir():
            return []
        return self._db.run(
            lambda db: db.execute(sql, (self._update_folder(db, group, ignore_last_tick), *values)).fetchall()
        )

    def _read_in_pages(self, group: PurePosixPath, columns: str, size: int) -> Iterator[tuple[Any, ...]]:
        """Yield the sessions of a folder, newest first. ``columns`` must begin with measured, session and name."""
        sql = (
            f"SELECT {columns} FROM sessions WHERE folder = ? AND (measured, session, name) < (?, ?, ?) "
            f"ORDER BY measured DESC, session DESC, name DESC LIMIT {size}"
        )
        start: tuple[Any, ...] = (_MAX_TEXT, _MAX_TEXT, _MAX_TEXT)
        while rows := self._select(group, sql, start):
            yield from rows
            if len(rows) < size:
                return
            start = rows[-1][:3]

    def _update_folder(self, db: sqlite3.Connection, group: PurePosixPath, ignore_last_tick: bool) -> int:
        """Update the index of a folder and return the id of the folder.

        With ``ignore_last_tick``, changes within the last clock tick may be missed.
        """
        stamp: str | None
        stamp, changed_ns = _folder_stamp(self._root / group)
        row = _find_folder(db, group)
        if row is not None and row[1] == stamp and (row[2] or ignore_last_tick):
            return int(row[0])
        settled = time.time_ns() - changed_ns > STABLE_AGE_NS
        with transaction(db):
            folder_id = _ensure_folder(db, group)
        # Read the index before listing the names, because another process may index a new file in between.
        indexed = dict(db.execute("SELECT name, sound FROM sessions WHERE folder = ?", (folder_id,)))
        file_names = self._list_names(group)
        rows: list[IndexRow] = []
        for name in (name for name in file_names if not indexed.get(name)):
            if (index_row := self._read(group / name)) is not None:
                rows.append(index_row)
            if index_row is None or not index_row.sound:
                stamp = None  # read the file again next time, because it may be restored without a change of names
            if len(rows) == BATCH_ROWS:
                with transaction(db):
                    _insert_rows(db, folder_id, rows)
                rows = []
        with transaction(db):
            _insert_rows(db, folder_id, rows)
            removed = [(folder_id, name) for name in indexed.keys() - file_names]
            db.executemany("DELETE FROM sessions WHERE folder = ? AND name = ?", removed)
            db.execute("UPDATE folders SET stamp = ?, settled = ? WHERE id = ?", (stamp, settled, folder_id))
        return folder_id


def _find_folder(db: sqlite3.Connection, group: PurePosixPath) -> tuple[Any, ...] | None:
    """Return the id and the stamp of a folder, and whether the stamp is reliable; None if the folder is not
    indexed.
    """
    folder_row: tuple[Any, ...] | None = db.execute(
        "SELECT id, stamp, settled FROM folders WHERE path = ?", (str(group),)
    ).fetchone()
    return folder_row


def _ensure_folder(db: sqlite3.Connection, group: PurePosixPath) -> int:
    db.execute("INSERT OR IGNORE INTO folders (path, settled) VALUES (?, 0)", (str(group),))
    (folder_id,) = db.execute("SELECT id FROM folders WHERE path = ?", (str(group),)).fetchone()
    return int(folder_id)


def _insert_rows(db: sqlite3.Connection, folder_id: int, rows: Sequence[IndexRow]) -> None:
    values = [
        (folder_id, row.name, row.sound, *(_to_sql_value(row.scalars[name]) for name in SCALARS), *row[3:])
        for row in rows
    ]
    db.executemany(f"INSERT OR REPLACE INTO sessions VALUES ({', '.join('?' * (1 + len(_COLUMNS)))})", values)


def _to_sql_value(value: object) -> object:
    """Convert a scalar to a value that SQLite can store.

    A very large integer becomes text, and characters that UTF-8 cannot represent are replaced. No query needs such
    values.
    """
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        return str(value)
    return value.encode("utf-8", "replace").decode() if isinstance(value, str) else value


def _parse_row(values: Sequence[Any]) -> IndexRow:
    end = 2 + len(SCALARS)
    return IndexRow(values[0], bool(values[1]), dict(zip(SCALARS, values[2:end], strict=True)), *values[end:])


def _folder_stamp(folder: Path) -> tuple[str, int]:
    """Return a stamp that changes with the names in a folder, and the time of the last change in nanoseconds."""
    status = folder.stat()
    return f"{status.st_ino}:{status.st_ctime_ns}", status.st_ctime_ns
