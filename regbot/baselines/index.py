"""Index of the stored sessions in a database beside them, so that a query does not have to open every file.

The files are authoritative, and the index is derived from them. For each session it has the scalar fields at the
beginning of the file, and the level of the session, which is the time of its typical step. The index finds and lists
sessions and supplies trends, but decides nothing. For a decision, the store reads the whole session and checks its
content.

A *group* is the folder of one workload, node class and environment in the store. The index detects a change of a group
by the ctime of the folder (time of the last change of its inode), whoever made the change: ``add``, a merge, or a user
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
LEVEL_PAGE_ROWS = 1000
"""Number of rows per read for a trend, which usually needs all sessions."""
NO_LIMIT = -1
"""Value of ``LIMIT`` with which SQLite returns all rows."""

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
_PAGE_KEY = ("measured", "session", "name")
"""Columns that determine the order of the sessions of a group, when they are read newest first."""
_MAX_TEXT = "\U0010ffff"
"""Text that sorts after every text in a store."""


class IndexRow(NamedTuple):
    """Index entry of one session."""

    name: str
    """Name of the session's file."""
    sound: bool
    """Whether the content of the file was valid when it was read. An invalid session has no level."""
    scalars: dict[str, Any]
    """Values of the fields ``SCALARS`` of the session's ``Baseline`` record, by name."""
    runs: int
    """Number of stored runs; 0 for a trace."""
    log_median: float | None
    """Logarithm of the session's level in seconds. None for a trace, and for an invalid session."""


class SessionLevel(NamedTuple):
    """Fields of one session that a trend needs, as in its ``Baseline`` record.

    ``session`` is the identity of the session, and ``series`` the reference that it belongs to. A run has ``steps``
    steps, and the first ``cut`` of them are planned as warm-up. ``name``, ``sound`` and ``log_median`` are those of
    ``IndexRow``. The first three fields are ``_PAGE_KEY``, by which sessions are sorted.
    """

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
    """Number of sessions in a group, and when the oldest (``first``) and the newest (``last``) were measured."""

    sessions: int
    first: str
    last: str


def make_index_row(name: str, baseline: Baseline) -> IndexRow:
    """Return the index entry of a valid session."""
    return IndexRow(
        name=name,
        sound=True,
        scalars={scalar: getattr(baseline, scalar) for scalar in SCALARS},
        runs=len(baseline.runs),
        log_median=math.log(baseline.level_s["median"]) if baseline.runs else None,
    )


class _FolderRow(NamedTuple):
    """Row of the table ``folders``, which has one row per group."""

    folder_id: int
    stamp: str | None
    """Stamp of the folder when its names were listed (``_folder_stamp``). None if the names must be listed again."""
    is_settled: bool
    """Whether every later change of the folder changes the stamp. False if the stamp was very recent."""


_LEVEL_COLUMN_LIST = ", ".join(f'"{name}"' for name in SessionLevel._fields)


class Index:
    """Index of the store under ``root``.

    ``list_names`` returns the names of the session files of a group in order. ``read_row`` returns the index entry of a
    file, or None if the file is gone. Queries raise the exceptions of ``list_names`` and ``read_row``, but never errors
    of the database.
    """

    def __init__(
        self,
        root: Path,
        list_names: Callable[[PurePosixPath], Sequence[str]],
        read_row: Callable[[PurePosixPath], IndexRow | None],
    ) -> None:
        self._root, self._list_names, self._read_row = root, list_names, read_row
        self._db = DerivedDatabase(root / FOLDER, _FORMAT_DIGEST, _SCHEMA)

    def find_by_name(self, group: PurePosixPath, prefix: str = "", limit: int = NO_LIMIT) -> list[PurePosixPath]:
        """Return the files of a group whose names begin with ``prefix``, in order.

        At most ``limit`` files are returned; all of them with ``NO_LIMIT``. No file is opened. If the index is
        outdated, the names in the folder are listed instead.
        """

        def query(db: sqlite3.Connection) -> list[PurePosixPath]:
            folder_row = _find_folder(db, group)
            is_settled = folder_row is not None and folder_row.is_settled
            # Settled: every later change of the folder changes its stamp, so an equal stamp proves that nothing has
            # changed. ``_folder_stamp`` returns the stamp and a time.
            # The folder is read only if its row is settled, because another process may remove the folder.
            if folder_row is None or not is_settled or folder_row.stamp != _folder_stamp(self._root / group)[0]:
                names = [name for name in self._list_names(group) if name.startswith(prefix)]
                end = None if limit == NO_LIMIT else limit
                return [group / name for name in names[:end]]
            sql = "SELECT name FROM sessions WHERE folder = ? AND name >= ? AND name < ? ORDER BY name LIMIT ?"
            values = (folder_row.folder_id, prefix, prefix + _MAX_TEXT, limit)
            return [group / name for (name,) in db.execute(sql, values)]

        return self._db.run(query) if (self._root / group).is_dir() else []

    def find_by_session(self, group: PurePosixPath, session: str) -> list[PurePosixPath]:
        """Return the files of the session with the identity ``session`` in a group. There are several if several users
        stored it. A file that was added within the last clock tick may be missing.
        """
        sql = "SELECT name FROM sessions WHERE folder = ? AND session = ? ORDER BY name"
        return [group / name for (name,) in self._select(group, sql, (session,), ignore_last_tick=True)]

    def span(self, group: PurePosixPath) -> SessionSpan | None:
        """Return the number of sessions and the times of the oldest and the newest; None if there is no session."""
        sql = "SELECT count(*), min(measured), max(measured) FROM sessions WHERE folder = ?"
        spans = [SessionSpan._make(values) for values in self._select(group, sql)]
        return next((span for span in spans if span.sessions), None)

    def newest_after(self, group: PurePosixPath, measured: str) -> IndexRow | None:
        """Return the newest session of a group if it was measured after the time ``measured``; otherwise None."""
        sql = f"SELECT {_COLUMN_LIST} FROM sessions WHERE folder = ? AND measured > ? ORDER BY measured DESC LIMIT 1"
        return next(map(_parse_row, self._select(group, sql, (measured,))), None)

    def find_commits(self, group: PurePosixPath, prefix: str) -> list[tuple[str, PurePosixPath]]:
        """Return the commits of a group's sessions that begin with ``prefix``, in order, each with the file of one of
        its sessions.
        """
        sql = (
            'SELECT "commit", min(name) FROM sessions WHERE folder = ? AND "commit" >= ? AND "commit" < ? '
            'GROUP BY "commit" ORDER BY "commit"'
        )
        return [(commit, group / name) for commit, name in self._select(group, sql, (prefix, prefix + _MAX_TEXT))]

    def newest_with_ledger(self, group: PurePosixPath, tier: Tier, commit: str | None = None) -> IndexRow | None:
        """Return the newest session of ``tier`` that has a ledger; None if there is none. ``commit`` is the commit of
        the session; None for any commit.
        """
        condition, values = "tier = ?", [str(tier)]
        if commit is not None:
            condition, values = '"commit" = ? AND tier = ?', [commit, tier]
        sql = (
            f"SELECT {_COLUMN_LIST} FROM sessions WHERE folder = ? AND {condition} "
            "AND ledger IS NOT NULL ORDER BY measured DESC, name DESC LIMIT 1"
        )
        return next(map(_parse_row, self._select(group, sql, values)), None)

    def newest_first(self, group: PurePosixPath) -> Iterator[IndexRow]:
        """Yield all sessions of a group, newest first. Rows are read as they are needed."""
        columns = f"{', '.join(_PAGE_KEY)}, {_COLUMN_LIST}"  # the key is removed from the rows below
        return (_parse_row(values[len(_PAGE_KEY) :]) for values in self._read_in_pages(group, columns, PAGE_ROWS))

    def levels_newest_first(self, group: PurePosixPath) -> Iterator[SessionLevel]:
        """Yield the levels of all sessions of a group, newest first. Rows are read as they are needed."""
        return map(SessionLevel._make, self._read_in_pages(group, _LEVEL_COLUMN_LIST, LEVEL_PAGE_ROWS))

    def count_by_terms(self, group: PurePosixPath) -> dict[tuple[Any, ...], int]:
        """Return the number of timed sessions of a group. A key has the series and then the terms (``TERMS``)."""
        names = ", ".join(f'"{name}"' for name in ("series", *TERMS))
        sql = f"SELECT count(*), {names} FROM sessions WHERE folder = ? AND tier = 'timed' GROUP BY {names}"
        return {tuple(key): count for count, *key in self._select(group, sql)}

    def add(self, group: PurePosixPath, rows: Iterable[IndexRow]) -> None:
        """Add sessions that were just written into a group. A failure does no harm, because the index updates itself
        later.
        """
        new_rows = list(rows)

        def insert(db: sqlite3.Connection) -> None:
            with transaction(db):
                folder_id = _ensure_folder(db, group)
                _insert_rows(db, folder_id, new_rows)
                stamp, _ = _folder_stamp(self._root / group)
                # Not settled (0): the stamp is very recent, so a later change of the folder may leave it the same.
                db.execute("UPDATE folders SET stamp = ?, settled = 0 WHERE id = ?", (stamp, folder_id))

        self._db.run_if_open(insert)

    def close(self) -> None:
        self._db.close()

    def _select(
        self, group: PurePosixPath, sql: str, values: Sequence[object] = (), ignore_last_tick: bool = False
    ) -> list[tuple[Any, ...]]:
        """Update the index of a group and return the rows that ``sql`` selects; [] if the folder does not exist.

        The first parameter of ``sql`` is the id of the folder, and ``values`` are the other parameters.
        With ``ignore_last_tick``, changes of the folder within the last clock tick may be missed.
        """
        if not (self._root / group).is_dir():
            return []

        def query(db: sqlite3.Connection) -> list[tuple[Any, ...]]:
            folder_id = self._update_folder(db, group, ignore_last_tick)
            return db.execute(sql, (folder_id, *values)).fetchall()

        return self._db.run(query)

    def _read_in_pages(self, group: PurePosixPath, columns: str, size: int) -> Iterator[tuple[Any, ...]]:
        """Yield ``columns`` of the sessions of a group, newest first, in pages of ``size`` rows.

        ``columns`` must begin with ``_PAGE_KEY``: the next page begins after the key of the last row.
        """
        sql = (
            f"SELECT {columns} FROM sessions WHERE folder = ? AND ({', '.join(_PAGE_KEY)}) < (?, ?, ?) "
            f"ORDER BY measured DESC, session DESC, name DESC LIMIT {size}"
        )
        end_key: tuple[Any, ...] = (_MAX_TEXT, _MAX_TEXT, _MAX_TEXT)
        while rows := self._select(group, sql, end_key):
            yield from rows
            if len(rows) < size:
                return
            end_key = rows[-1][: len(_PAGE_KEY)]

    def _update_folder(self, db: sqlite3.Connection, group: PurePosixPath, ignore_last_tick: bool) -> int:
        """Update the index of a group if its folder has changed. Return the id of the folder.

        With ``ignore_last_tick``, changes within the last clock tick may be missed.
        """
        stamp: str | None
        stamp, changed_ns = _folder_stamp(self._root / group)
        folder_row = _find_folder(db, group)
        if folder_row is not None and folder_row.stamp == stamp and (folder_row.is_settled or ignore_last_tick):
            return folder_row.folder_id
        is_settled = time.time_ns() - changed_ns > STABLE_AGE_NS
        with transaction(db):
            folder_id = _ensure_folder(db, group)
        # Read the index before listing the names, because another process may index a new file in between.
        soundness = dict(db.execute("SELECT name, sound FROM sessions WHERE folder = ?", (folder_id,)))
        file_names = self._list_names(group)
        names_to_read = [name for name in file_names if not soundness.get(name)]  # new files, and invalid ones
        rows: list[IndexRow] = []
        for name in names_to_read:
            index_row = self._read_row(group / name)
            if index_row is not None:
                rows.append(index_row)
            if index_row is None or not index_row.sound:
                stamp = None  # read the file again next time, because it may be restored without a change of names
            if len(rows) == BATCH_ROWS:
                with transaction(db):
                    _insert_rows(db, folder_id, rows)
                rows = []
        with transaction(db):
            _insert_rows(db, folder_id, rows)
            removed = [(folder_id, name) for name in soundness.keys() - file_names]
            db.executemany("DELETE FROM sessions WHERE folder = ? AND name = ?", removed)
            db.execute("UPDATE folders SET stamp = ?, settled = ? WHERE id = ?", (stamp, is_settled, folder_id))
        return folder_id


def _find_folder(db: sqlite3.Connection, group: PurePosixPath) -> _FolderRow | None:
    """Return the row of a group; None if the group is not indexed."""
    values = db.execute("SELECT id, stamp, settled FROM folders WHERE path = ?", (str(group),)).fetchone()
    if values is None:
        return None
    folder_id, stamp, settled = values
    return _FolderRow(int(folder_id), stamp, bool(settled))


def _ensure_folder(db: sqlite3.Connection, group: PurePosixPath) -> int:
    """Return the id of a group's row in the table ``folders``; insert the row if it is missing.

    A new row has no stamp, and ``settled`` is 0, so the names in the folder are listed before the row is used.
    """
    db.execute("INSERT OR IGNORE INTO folders (path, settled) VALUES (?, 0)", (str(group),))
    (folder_id,) = db.execute("SELECT id FROM folders WHERE path = ?", (str(group),)).fetchone()
    return int(folder_id)


def _insert_rows(db: sqlite3.Connection, folder_id: int, rows: Sequence[IndexRow]) -> None:
    """Write index entries of a folder. An entry of a file that is in the index already is replaced."""
    values = []
    for row in rows:
        scalars = [_to_sql_value(row.scalars[name]) for name in SCALARS]
        values.append((folder_id, row.name, row.sound, *scalars, row.runs, row.log_median))
    placeholders = ", ".join("?" * (1 + len(_COLUMNS)))  # the folder, and the columns of the index entry
    db.executemany(f"INSERT OR REPLACE INTO sessions VALUES ({placeholders})", values)


def _to_sql_value(value: object) -> object:
    """Convert a scalar to a value that SQLite can store.

    An integer that does not fit into 64 bits becomes text, and characters that UTF-8 cannot represent are replaced. No
    query needs such values.
    """
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        return str(value)
    return value.encode("utf-8", "replace").decode() if isinstance(value, str) else value


def _parse_row(values: Sequence[Any]) -> IndexRow:
    """Return the index entry in a row of the table ``sessions``. ``values`` are those of ``_COLUMNS``."""
    name, sound, *scalars, runs, log_median = values
    return IndexRow(name, bool(sound), dict(zip(SCALARS, scalars, strict=True)), runs, log_median)


def _folder_stamp(folder: Path) -> tuple[str, int]:
    """Return a stamp that changes with the names in a folder, and the time of the last change in nanoseconds."""
    status = folder.stat()
    return f"{status.st_ino}:{status.st_ctime_ns}", status.st_ctime_ns
