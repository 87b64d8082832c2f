"""SQLite database of derived data: all of it can be computed again, so a lost or broken database does no harm.

The database is in a hidden folder that git ignores. It lies in a subfolder whose name contains the digest of the format
and the ctime (time of the last change of the inode) of the ``.gitignore`` in the hidden folder. No user can set a
ctime. In a copy of the hidden folder, the ``.gitignore`` has a new ctime, so the copied subfolder does not have the
expected name and its database is never opened. The same holds for a database that git checked out, which an attacker
may have prepared. Creating a new database removes all other databases in the folder.

A broken database is discarded and replaced by a new one. If the folder is not writable, another process keeps the
database busy, or the disk is nearly full, this process uses a temporary database.
"""

import errno
import os
import secrets
import shutil
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

from regbot.records.files import RecordError, read_capped

FILE = "sessions.sqlite"
TEMPORARY_FILE = ""
"""File name for which SQLite opens a temporary database."""
IGNORE, IGNORE_TEXT = ".gitignore", b"*\n"

BUSY_TIMEOUT_S = 2.0
"""Maximum seconds to wait for another process. Each write takes only milliseconds."""

MIN_FREE_BYTES = 64 * 1024 * 1024
"""Minimum free disk space for a database. With less, the free space is kept for data that cannot be derived."""

_EXTERNAL_ERRORS = frozenset(
    (
        sqlite3.SQLITE_BUSY,
        sqlite3.SQLITE_LOCKED,
        sqlite3.SQLITE_FULL,
        sqlite3.SQLITE_IOERR,
        sqlite3.SQLITE_READONLY,
        sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_PERM,
        sqlite3.SQLITE_NOLFS,
    )
)
"""Errors with an external cause. They do not mean that the database is broken."""

T = TypeVar("T")


class DerivedDatabase:
    """The database in the hidden folder ``folder``.

    ``format_digest`` is a digest of the format of the data. If the folder has no database of this format, the SQL
    statements in ``schema`` create one. Any number of processes and threads may use the database at the same time.
    """

    def __init__(self, folder: Path, format_digest: str, schema: tuple[str, ...]) -> None:
        self._folder, self._format_digest, self._schema = folder, format_digest, schema
        self._database: sqlite3.Connection | None = None
        """The open connection; None before the first use."""
        self._inherited: sqlite3.Connection | None = None
        """A connection of the parent process. The reference keeps it from being closed in a forked child."""
        self._pid = 0
        """Process that opened ``_database``."""
        self._is_temporary = False
        """Whether this object uses only a temporary database from now on."""
        self._lock = threading.RLock()

    def run(self, query: Callable[[sqlite3.Connection], T]) -> T:
        """Return the result of ``query`` on the database.

        If the database on disk fails, ``query`` is called again: on a new database if the old one was broken, and at
        last on a temporary database. Exceptions of ``query`` other than ``sqlite3.Error`` pass through.
        """
        with self._lock:
            for _ in range(2):  # the existing database, then a new one
                db = self._connection()
                if self._is_temporary:
                    break
                try:
                    return query(db)
                except sqlite3.Error as error:
                    self._handle_failure(error)
            self._is_temporary = True
            return query(self._connection())

    def run_if_open(self, query: Callable[[sqlite3.Connection], object]) -> None:
        """Run ``query`` if the database is already open. Errors of the database are ignored."""
        with self._lock:
            if self._database is not None and self._pid == os.getpid():
                with suppress(sqlite3.Error):
                    query(self._database)

    def close(self) -> None:
        """Close the connection. A connection that a forked child has from its parent stays open."""
        if self._database is not None and self._pid == os.getpid():
            with suppress(sqlite3.Error):
                self._database.close()
        self._database = None

    def __del__(self) -> None:
        self.close()

    def _connection(self) -> sqlite3.Connection:
        """Return the connection of this process. Open the database if necessary: a temporary one if there can be none
        on disk.
        """
        if self._database is not None and self._pid != os.getpid():
            # This process is the child of a fork. The connection belongs to the parent and must be neither used nor
            # closed here.
            self._inherited, self._database = self._database, None
        if self._database is None:
            self._pid = os.getpid()
            if not self._is_temporary:
                try:
                    self._database = self._open_on_disk()
                except (OSError, sqlite3.Error):
                    self._is_temporary = True
            if self._database is None:
                self._database = _connect(TEMPORARY_FILE)
                self._create(self._database)
        return self._database

    def _open_on_disk(self) -> sqlite3.Connection:
        """Open or create the database on disk. A broken database is replaced by a new one. Raises OSError,
        sqlite3.Error.
        """
        for _ in range(2):  # the existing database, then a new one
            db = _connect(str(self._database_folder() / FILE))
            try:
                # With WAL (a write-ahead log), readers never wait. Transactions are not synced, so a power loss can
                # undo the last ones. In ``index``, the last transaction about a folder writes the stamp that marks its
                # rows as complete. Without this stamp, the folder is read again.
                db.execute("PRAGMA journal_mode = WAL")
                db.execute("PRAGMA synchronous = NORMAL")
                self._create(db)
                return db
            except sqlite3.Error as error:
                db.close()
                if not _is_broken(error):
                    raise
                self._discard()
        raise OSError("a newly created database is broken")

    def _database_folder(self) -> Path:
        """Return the subfolder of the database. If it is missing, create it and remove all others. Raises OSError, also
        if the disk is nearly full.
        """
        disk = os.statvfs(self._folder.parent)
        if disk.f_bavail * disk.f_frsize < MIN_FREE_BYTES:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self._folder))
        self._folder.mkdir(exist_ok=True)
        if self._folder.is_symlink():
            raise OSError(f"{self._folder} is a link")
        ignore = self._folder / IGNORE
        if not _is_gitignore(ignore):
            ignore.unlink(missing_ok=True)
            descriptor = os.open(ignore, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
            with os.fdopen(descriptor, "wb") as file:
                file.write(IGNORE_TEXT)
        database_folder = self._folder / f"{self._format_digest}-{ignore.lstat().st_ctime_ns}"
        if not database_folder.is_dir():
            for entry in os.scandir(self._folder):
                if entry.is_dir(follow_symlinks=False):
                    shutil.rmtree(entry, ignore_errors=True)
                elif entry.name != IGNORE:
                    Path(entry).unlink(missing_ok=True)
            database_folder.mkdir(exist_ok=True)
        return database_folder

    def _create(self, db: sqlite3.Connection) -> None:
        """Create the tables if the database has none."""
        if _has_tables(db):
            return
        with transaction(db):
            # Check again, because another process may have created the tables in the meantime.
            if not _has_tables(db):
                for statement in (*self._schema, "PRAGMA user_version = 1"):
                    db.execute(statement)

    def _handle_failure(self, error: sqlite3.Error) -> None:
        """Close the failed database. Discard it if it is broken; otherwise use a temporary database from now on."""
        self.close()
        if _is_broken(error):
            self._discard()
        else:
            self._is_temporary = True

    def _discard(self) -> None:
        """Remove the database and its journal in one step, so that no new database uses the old journal."""
        with suppress(OSError):
            dropped = self._folder / f"dropped-{secrets.token_hex(8)}"
            self._database_folder().rename(dropped)
            shutil.rmtree(dropped, ignore_errors=True)


@contextmanager
def transaction(db: sqlite3.Connection) -> Iterator[None]:
    """Run the block as one transaction.

    The transaction waits for other writers before it begins, so it cannot conflict with them when it commits.
    """
    db.execute("BEGIN IMMEDIATE")
    try:
        yield
    except BaseException:
        with suppress(sqlite3.Error):
            db.execute("ROLLBACK")
        raise
    db.execute("COMMIT")


def _connect(file: str) -> sqlite3.Connection:
    return sqlite3.connect(file, timeout=BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False)


def _has_tables(db: sqlite3.Connection) -> bool:
    """Return whether ``_create`` has created the tables. It sets ``user_version``, which is 0 in a new database."""
    return bool(db.execute("PRAGMA user_version").fetchone()[0])


def _is_broken(error: sqlite3.Error) -> bool:
    """Return whether an error means that the database itself is broken. An error without a code means so, too."""
    primary_code = getattr(error, "sqlite_errorcode", 0) & 0xFF  # an extended code has the primary code in its low byte
    return primary_code not in _EXTERNAL_ERRORS


def _is_gitignore(path: Path) -> bool:
    """Return whether the file makes git ignore everything in its folder."""
    try:
        return read_capped(path) == IGNORE_TEXT
    except RecordError:
        return False
