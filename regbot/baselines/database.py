"""A database of things that can be derived again: it may be lost, broken or out of reach at any moment.

It lies in a hidden folder that git does not see, in a file whose name tells its format and where it was made: the ctime
of the ``.gitignore`` beside it, which nobody can set. One that was copied, or checked out by git (which somebody may
have prepared), is of another name, so it is never opened; whatever is not this one is removed when this one is made.

A broken one is thrown away, and a new one takes its place. Where the folder cannot be written, or another process keeps
it busy, or the disk is nearly full, a temporary one does, for this process.
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
IGNORE, IGNORED = ".gitignore", b"*\n"

BUSY_S = 2.0
"""So long another process is waited for. What any of them writes at a time takes milliseconds."""

ROOM_BYTES = 64 * 1024 * 1024
"""Free disk below which none is opened: the last room is for what cannot be derived."""

_OUTSIDE = frozenset(
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
"""Errors that are none of the database's own: it is left as it is."""

T = TypeVar("T")


class Derived:
    """The database in ``folder``, made by the statements of ``schema`` where there is none of this ``form``.

    Any number of processes and threads may use it at a time.
    """

    def __init__(self, folder: Path, form: str, schema: tuple[str, ...]) -> None:
        self._folder, self._form, self._schema = folder, form, schema
        self._open: sqlite3.Connection | None = None
        self._inherited: sqlite3.Connection | None = None
        self._pid = 0
        self._temporary = False
        self._alone = threading.RLock()

    def run(self, ask: Callable[[sqlite3.Connection], T]) -> T:
        """What ``ask`` says, of the database on the disk, of one made anew, or of a temporary one.

        ``ask`` may be called several times. What else it raises than errors of the database goes through.
        """
        with self._alone:
            for _ in range(2):
                db = self._connected()
                if self._temporary:
                    break
                try:
                    return ask(db)
                except sqlite3.Error as error:
                    self._leave(error)
            self._temporary = True
            return ask(self._connected())

    def run_if_open(self, ask: Callable[[sqlite3.Connection], object]) -> None:
        """``ask``, where the database is in use already; what goes wrong with it is left for others to find."""
        with self._alone:
            if self._open is not None and self._pid == os.getpid():
                with suppress(sqlite3.Error):
                    ask(self._open)

    def close(self) -> None:
        if self._open is not None and self._pid == os.getpid():
            with suppress(sqlite3.Error):
                self._open.close()
        self._open = None

    def __del__(self) -> None:
        self.close()

    def _connected(self) -> sqlite3.Connection:
        if self._open is not None and self._pid != os.getpid():
            # This process was forked. The connection is the parent's: it must be neither used nor closed.
            self._inherited, self._open = self._open, None
        if self._open is None:
            self._pid = os.getpid()
            if not self._temporary:
                try:
                    self._open = self._on_disk()
                except (OSError, sqlite3.Error):
                    self._temporary = True
            if self._open is None:
                self._open = _connect("")
                self._create(self._open)
        return self._open

    def _on_disk(self) -> sqlite3.Connection:
        """Raises OSError, sqlite3.Error."""
        for _ in range(2):
            db = _connect(str(self._place() / FILE))
            try:
                # Readers never wait, and a commit is not synced: after a loss of power the last ones are missing,
                # whole, and the stamps of their folders with them.
                db.execute("PRAGMA journal_mode = WAL")
                db.execute("PRAGMA synchronous = NORMAL")
                self._create(db)
                return db
            except sqlite3.Error as error:
                db.close()
                if not _broken(error):
                    raise
                self._drop()
        raise OSError("the database is broken as soon as it is made")

    def _place(self) -> Path:
        """The folder of the database, made where it is not there. Raises OSError."""
        disk = os.statvfs(self._folder.parent)
        if disk.f_bavail * disk.f_frsize < ROOM_BYTES:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self._folder))
        self._folder.mkdir(exist_ok=True)
        if self._folder.is_symlink():
            raise OSError(f"{self._folder} is a link")
        ignore = self._folder / IGNORE
        if not _ignores(ignore):
            ignore.unlink(missing_ok=True)
            descriptor = os.open(ignore, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
            with os.fdopen(descriptor, "wb") as file:
                file.write(IGNORED)
        place = self._folder / f"{self._form}-{ignore.lstat().st_ctime_ns}"
        if not place.is_dir():
            for entry in os.scandir(self._folder):
                if entry.is_dir(follow_symlinks=False):
                    shutil.rmtree(entry, ignore_errors=True)
                elif entry.name != IGNORE:
                    Path(entry).unlink(missing_ok=True)
            place.mkdir(exist_ok=True)
        return place

    def _create(self, db: sqlite3.Connection) -> None:
        if db.execute("PRAGMA user_version").fetchone()[0]:
            return
        with transaction(db):
            if not db.execute("PRAGMA user_version").fetchone()[0]:  # nobody was faster
                for statement in (*self._schema, "PRAGMA user_version = 1"):
                    db.execute(statement)

    def _leave(self, error: sqlite3.Error) -> None:
        """Go on without the database that has failed; one that is broken is thrown away."""
        self.close()
        if _broken(error):
            self._drop()
        else:
            self._temporary = True

    def _drop(self) -> None:
        """In one step, with all files that belong to it: a new database must not find the journal of the old one."""
        with suppress(OSError):
            dropped = self._folder / f"dropped-{secrets.token_hex(8)}"
            self._place().rename(dropped)
            shutil.rmtree(dropped, ignore_errors=True)


@contextmanager
def transaction(db: sqlite3.Connection) -> Iterator[None]:
    """All of it or nothing. Waits for other writers at its beginning, so that it never fails for one later."""
    db.execute("BEGIN IMMEDIATE")
    try:
        yield
    except BaseException:
        with suppress(sqlite3.Error):
            db.execute("ROLLBACK")
        raise
    db.execute("COMMIT")


def _connect(file: str) -> sqlite3.Connection:
    return sqlite3.connect(file, timeout=BUSY_S, isolation_level=None, check_same_thread=False)


def _broken(error: sqlite3.Error) -> bool:
    return (getattr(error, "sqlite_errorcode", 0) & 0xFF) not in _OUTSIDE


def _ignores(path: Path) -> bool:
    """Whether a file tells git to see nothing beside it."""
    try:
        return read_capped(path) == IGNORED
    except RecordError:
        return False
