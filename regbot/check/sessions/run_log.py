"""Log of a measurement: a header, then one line per record, appended when its run ends.

If the process is killed, at most the current record is lost, and the next process resumes the log.
"""

import errno
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from filelock import FileLock, Timeout

from regbot.records.base import Record
from regbot.records.config import ConfigError
from regbot.records.files import RecordError, append_line, drop_torn_line, write_text

UNWRITABLE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EACCES, errno.EROFS)


class LogContent(Protocol):
    @property
    def header(self) -> Record: ...


C = TypeVar("C", bound=LogContent)


@dataclass(frozen=True)
class RunLog(Generic[C]):
    """A log file, whose first line is the header with the plan, and the folder that belongs to it."""

    path: Path
    activity: str
    """The kind of measurement that writes the log, for messages: "check", "bisection"."""
    read: Callable[[Path], C]
    may_differ: dict[str, Any]
    """Header fields that may differ between two starts of one measurement, in the form of pydantic's ``exclude``."""
    results: tuple[str, ...] = ()
    """Names of files beside the log that are computed from the log."""

    @property
    def folder(self) -> Path:
        return self.path.parent

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Lock the folder for this process. Raises ConfigError if another process has the lock, and RecordError if a
        file cannot be written in this context.
        """
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except FileExistsError as error:
            raise ConfigError(f"--out {self.folder}: is a file", "give a folder for the log and the report") from error
        lock = FileLock(self.folder / ".lock", timeout=0)
        try:
            lock.acquire()
        except Timeout as error:
            raise ConfigError(
                f"{self.folder}: another {self.activity} is writing there", "wait until it ends, or give another --out"
            ) from error
        try:
            yield
        except OSError as error:
            if error.errno not in UNWRITABLE:
                raise
            raise RecordError(
                f"{error.filename or self.folder}: {error.strerror or error}",
                f"{self.path} has every finished run: free space or mend the permissions, then continue with --resume",
            ) from error
        finally:
            lock.release()

    def resume(self, planned: Record) -> C | None:
        """Return the content of the log, without a torn last line; None if no line is left. Raises RecordError."""
        if not self.path.exists():
            return None
        drop_torn_line(self.path)
        if not self.path.stat().st_size:
            return None
        content = self.read(self.path)
        logged, expected = (header.model_dump(exclude=self.may_differ) for header in (content.header, planned))
        for name in expected:
            if logged[name] != expected[name]:
                raise RecordError(
                    f"{self.path}: is of another {self.activity} ({name.replace('_', ' ')} differs)",
                    "leave out --resume to begin anew, or give another --out",
                )
        return content

    def create(self, header: Record, records: Iterable[Record] = ()) -> None:
        """Begin a new log. An earlier log may contain hours of runs, so it becomes ``*.previous.jsonl``."""
        self.remove_results()
        if self.path.exists() and self.path.stat().st_size:
            self.path.replace(self.path.with_suffix(".previous.jsonl"))
        write_text(self.folder / ".gitignore", "*\n")
        for record in (header, *records):
            append_line(self.path, record)

    def append(self, record: Record) -> None:
        """Write one record and wait until it is on the disk."""
        append_line(self.path, record)

    def remove_results(self) -> None:
        for name in self.results:
            (self.folder / name).unlink(missing_ok=True)
