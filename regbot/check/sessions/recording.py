"""Session of a running check: each run is written to the session file when it ends."""

import errno
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

from regbot.check.sessions.pooled_pairs import save_pool
from regbot.check.sessions.run_log import RunLog
from regbot.check.sessions.worktrees import Worktrees
from regbot.engines import Engine
from regbot.records.run import Run, Tier
from regbot.records.session import Session
from regbot.records.text.progress import Watcher
from regbot.workloads.guest import Scratch

FULL_DISK_BYTES = 16 * 2**20
"""If a disk has less free space than this, the full disk may be the reason for a failed run."""
MIN_FILES = 256
"""The same for the number of files that can still be made."""


class SessionRecorder:
    """Header and runs of a session, which ``log`` writes. ``cache`` is the cache folder of this machine."""

    def __init__(self, log: RunLog[Session], session: Session, cache: Path) -> None:
        self.header, self.runs = session.header, list(session.runs)
        self.cache, self._log = cache, log
        self._pools: dict[str, Path] = {}  # by entry: the file that shares its runs with sessions of the same code

    def add(self, run: Run) -> None:
        """Write a run, also to the pool of its entry. Raises OSError if a disk is full: a run that failed for that
        says nothing about the code and must not be stored.
        """
        for folder in (self._log.folder, self.cache, Path(tempfile.gettempdir())) if run.outcome != "ok" else ():
            if not folder.exists():
                continue
            state = os.statvfs(folder)
            has_few_files = state.f_files > 0 and state.f_favail < MIN_FILES  # f_files is 0 if there is no limit
            if has_few_files or state.f_bavail * state.f_frsize < FULL_DISK_BYTES:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder))
        self._log.append(run)
        self.runs.append(run)
        if run.tier == "timed" and run.workload in self._pools:
            entry_runs = [other for other in self.runs if other.workload == run.workload]
            save_pool(self._pools[run.workload], self.header, entry_runs)

    def share(self, entry: str, pool: Path) -> None:
        """Also store the timed runs of ``entry`` in ``pool`` from now on, for later sessions of the same code."""
        self._pools[entry] = pool

    def select(self, entry: str, tier: Tier) -> list[Run]:
        return [run for run in self.runs if (run.workload, run.tier) == (entry, tier)]

    def session(self) -> Session:
        return Session(header=self.header, runs=list(self.runs))


@dataclass(frozen=True)
class RunSetup:
    """Where the runs of a check are launched and recorded."""

    trees: Worktrees
    engine: Engine
    scratch: Scratch
    recorder: SessionRecorder
    watch: Watcher
