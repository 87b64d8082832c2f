"""SQLite database of derived data, which may be lost, broken or unavailable at any time.

The database is in a hidden folder that git ignores. It lies in a subfolder whose name contains the digest of the format
and the ctime of the ``.gitignore`` in the hidden folder. No user can set a ctime. If a database was copied, or was
checked out by git and possibly prepared by an attacker, the name of its subfolder does not match, so it is never
opened. Creating a new database removes all other databases in the folder.

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
    """The database in ``folder``.

    ``format_digest`` is a digest of the format. If the folder has no database of this format, the statements of
    ``schema`` create one. Any number of processes and threads may use the database at the same time.
    """

    def __init__(self, folder: Path, format_digest: str, schema: tuple[str, ...]) -> None:
        self._folder, self._format_digest, self._schema = folder, format_digest, schema
        self._database: sqlite3.Connection | None = None
        self._inherited: sqlite3.Connection | None = None
        self._pid = 0
        self._temporary = False
        self._lock = threading.RLock()

    def run(self, query: Callable[[sqlite3.Connection], T]) -> T:
        """Return the result of ``query`` on a database: the one on disk, a new one, or a temporary one.

        If a database fails, ``query`` is called again on the next database. All other exceptions of ``query`` pass
        through.
        """
        with self._lock:
            for _ in range(2):
                db = self._connection()
                if self._temporary:
                    break
                try:
                    return query(db)
                except sqlite3.Error as error:
                    self._handle_failure(error)
            self._temporary = True
            return query(self._connection())

    def run_if_open(self, query: Callable[[sqlite3.Connection], object]) -> None:
        """Run ``query`` if the database is already open. Errors of the database are ignored."""
        with self._lock:
            if self._database is not None and self._pid == os.getpid():
                with suppress(sqlite3.Error):
                    query(self._database)

    def close(self) -> None:
        if self._database is not None and self._pid == os.getpid():
            with suppress(sqlite3.Error):
                self._database.close()
        self._database = None

    def __del__(self) -> None:
        self.close()

    def _connection(self) -> sqlite3.Connection:
        if self._database is not None and self._pid != os.getpid():
            # This process is the child of a fork. The connection belongs to the parent and must be neither used nor
            # closed here.
            self._inherited, self._database = self._database, None
        if self._database is None:
            self._pid = os.getpid()
            if not self._temporary:
                try:
                    self._database = self._open_on_disk()
                except (OSError, sqlite3.Error):
                    self._temporary = True
            if self._database is None:
                self._database = _connect("")
                self._create(self._database)
        return self._database

    def _open_on_disk(self) -> sqlite3.Connection:
        """Open or create the database on disk. Raises OSError, sqlite3.Error."""
        for _ in range(2):
            db = _connect(str(self._database_folder() / FILE))
            try:
                # With WAL, readers never wait. Commits are not synced, so a power loss can remove the last commits.
                # Each of them is then missing as a whole, together with the stamp of its folder, so the index reads
                # that folder again.
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
        """Return the folder of the database; create it if it is missing. Raises OSError."""
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
        if db.execute("PRAGMA user_version").fetchone()[0]:
            return
        with transaction(db):
            # Check again, because another process may have created the tables in the meantime.
            if not db.execute("PRAGMA user_version").fetchone()[0]:
                for statement in (*self._schema, "PRAGMA user_version = 1"):
                    db.execute(statement)

    def _handle_failure(self, error: sqlite3.Error) -> None:
        """Close the failed database. Discard it if it is broken; otherwise use a temporary database from now on."""
        self.close()
        if _is_broken(error):
            self._discard()
        else:
            self._temporary = True

    def _discard(self) -> None:
        """Remove the database atomically with all its files. A new database then cannot find the old journal."""
        with suppress(OSError):
            dropped = self._folder / f"dropped-{secrets.token_hex(8)}"
            self._database_folder().rename(dropped)
            shutil.rmtree(dropped, ignore_errors=True)


@contextmanager
def transaction(db: sqlite3.Connection) -> Iterator[None]:
    """Run the block as one transaction. It waits for other writers first, so it cannot conflict later."""
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


def _is_broken(error: sqlite3.Error) -> bool:
    return (getattr(error, "sqlite_errorcode", 0) & 0xFF) not in _EXTERNAL_ERRORS


def _is_gitignore(path: Path) -> bool:
    """Return whether the file makes git ignore everything in its folder."""
    try:
        return read_capped(path) == IGNORE_TEXT
    except RecordError:
        return False
