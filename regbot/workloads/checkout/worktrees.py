"""Create and build worktrees from private clones, and keep them in the cache.

The cache key of a worktree is a digest of its tree, its build commands and its interpreter. The tree determines the
submodule commits. If it has submodules, origin (without credentials) and the allowed hosts are part of the key, because
they decide what may be fetched. If files of a cached worktree have changed, it is created again. Otherwise regbot would
measure edited files as the commit's code.
"""

import contextlib
import hashlib
import json
import os
import time
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import Field

from regbot.engines.removal import remove_folder
from regbot.records.base import Record
from regbot.records.files import RecordError, read_record, write_record
from regbot.records.text.printable import printable
from regbot.records.text.progress import Progress, Watcher
from regbot.workloads.checkout import clones
from regbot.workloads.checkout.building import Build, BuildError, run_build
from regbot.workloads.checkout.cache import CacheEntry, create_cache_folders, lock, set_aside_folder
from regbot.workloads.checkout.clones import CommitSource
from regbot.workloads.checkout.contents import WorktreePart, digest_files, list_changed_files
from regbot.workloads.checkout.git import (
    NO_MACHINE_CONFIG,
    OFFLINE,
    TRANSFER_TIMEOUT_S,
    CheckoutError,
    common_dir,
    find_commit,
    git,
    refuse_missing_files,
)

IDLE_S = 24 * 3600.0


@dataclass(frozen=True)
class Worktree:
    """The files of one commit on disk, with submodules, after the build."""

    path: Path
    built: bool
    key: str
    changed: tuple[str, ...]
    """Tracked files that the build commands have changed. The measured code differs from the commit in these files."""
    environment: dict[str, str]
    """Variables that point to private caches of this worktree. Arms must not share compiled kernels."""

    @property
    def paper(self) -> Path:
        """Folder for the paper GPU of a torch in this worktree. No code in the worktree may write to it."""
        return CacheEntry(self.path.parents[1], self.key).paper


class _WorktreeRecord(Record):
    """Content of the marker file of a complete worktree. It is outside of the worktree, so code under test cannot
    change it. The first of ``parts`` is the main repository, the others are submodules.
    """

    parts: Annotated[list[WorktreePart], Field(min_length=1)]
    state: str = Field(description="digest of the status of all files")
    changed: list[str]


def check_out(repo: Path, commit: str, cache_dir: Path, build: Build, hosts: Sequence[str] | None = None) -> Worktree:
    """Return the worktree of ``commit``. Reuse the one in the cache, or create and build it.

    ``cache_dir`` is the cache folder of the repository (``repository_cache``). Submodules may be fetched from the host
    of origin and from ``hosts``, as ``list_addresses`` says; None allows any host. Raises CheckoutError and BuildError.
    """
    common = common_dir(repo)
    commit = find_commit(repo, commit, "commit")
    refuse_missing_files(repo, commit)
    tree = git(repo, "log", "-1", "--no-show-signature", "--format=%T", commit, env=OFFLINE).strip()
    source = clones.find_source(repo)
    addresses = None if hosts is None else clones.list_addresses(source.url, hosts)
    key_inputs: list[object] = [str(common), tree, list(build.commands), build.python]
    modules = git(repo, "ls-tree", "--full-tree", "--name-only", tree, ".gitmodules", env=OFFLINE)
    if modules:
        key_inputs += [source.identity, None if addresses is None else sorted(addresses)]
    key = hashlib.sha256(json.dumps(key_inputs).encode()).hexdigest()[:24]
    entry = CacheEntry(cache_dir.resolve(), key)
    with entry.lock(TRANSFER_TIMEOUT_S + build.timeout_s):
        try:
            record: _WorktreeRecord | None = read_record(entry.marker, _WorktreeRecord)
        except RecordError:
            record = None
        is_reused = record is not None and digest_files(entry.path) == record.state
        if record is not None and is_reused:
            os.utime(entry.marker)  # prune reads this time as the time of the last use
        else:
            record = _create(entry, source, commit, addresses, build)
        # The build, or code of earlier runs, may have replaced these folders by links.
        create_cache_folders(entry.environment)
    return Worktree(entry.path, not is_reused, key, tuple(record.changed), entry.environment)


def prune(cache_dir: Path, keep: int, watch: Watcher = lambda _: None, idle_s: float = IDLE_S) -> None:
    """Remove old and incomplete worktrees, and private clones of none, from a repository's cache folder.

    The ``keep`` most recently used worktrees are kept, and those that were used within ``idle_s`` seconds or are being
    created. ``watch`` shows a warning about each folder that cannot be removed.
    """
    cache_dir = cache_dir.resolve()
    entries = [CacheEntry(cache_dir, path.name) for path in (cache_dir / "worktrees").glob("*/")]
    entries.sort(key=lambda entry: _modification_time(entry.marker), reverse=True)
    kept = [entry for entry in entries if entry.marker.exists()][:keep]
    for entry in (entry for entry in entries if entry not in kept):
        # Do not wait for the lock. If it is taken, another process creates or builds this worktree.
        with contextlib.suppress(CheckoutError), _report_failure(watch, entry.path), entry.lock(timeout_s=0):
            # The time is read again, because only now the entry is locked. It is 0 for an incomplete worktree.
            if _modification_time(entry.marker) <= time.time() - idle_s:
                entry.clear()
    for folder in set_aside_folder(cache_dir).glob("*"):
        with _report_failure(watch, folder):
            remove_folder(folder)
    used_clones = set()
    for marker in (cache_dir / "worktrees").glob("*.json"):
        with contextlib.suppress(RecordError):
            used_clones |= {part.clone for part in read_record(marker, _WorktreeRecord).parts}
    for clone in (cache_dir / "repos").glob("*.git/"):
        clone_lock = lock(clone.with_suffix(".lock"), timeout_s=0)
        with contextlib.suppress(CheckoutError), _report_failure(watch, clone), clone_lock:
            if clone.name not in used_clones and _modification_time(clone) <= time.time() - idle_s:
                remove_folder(clone)


@contextlib.contextmanager
def _report_failure(watch: Watcher, folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        watch(Progress(0, 0, f"warning: {folder}: cannot be removed: {error.strerror}", lasting=True))


def _modification_time(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return 0.0


def _create(
    entry: CacheEntry, source: CommitSource, commit: str, addresses: Set[str] | None, build: Build
) -> _WorktreeRecord:
    entry.clear()
    try:
        parts = _fetch_parts(entry, source, commit, addresses)
        for part in parts:
            _add_part(entry, part)
        create_cache_folders(entry.environment)
        changed: list[str] = []
        if build.commands:
            run_build(entry, commit, build)
            try:
                changed = list_changed_files(entry, parts)
            except CheckoutError as error:
                problem = f"the worktree of commit {commit[:10]} is unreadable after its build: {error}"
                raise BuildError(problem) from error
        record = _WorktreeRecord(parts=parts, state=digest_files(entry.path), changed=changed)
        write_record(entry.marker, record)
    except BaseException:  # a build may have filled the disk
        entry.clear()
        raise
    return record


def _fetch_parts(
    entry: CacheEntry, source: CommitSource, commit: str, addresses: Set[str] | None
) -> list[WorktreePart]:
    """Fetch ``commit`` and its submodules, nested ones included, into private clones. Return a part for each.

    Submodules may be fetched only from ``addresses``; None allows any. Raises CheckoutError.
    """
    parts = []
    pending = [("", commit, source)]  # path in the worktree, commit, and where to fetch it from
    while pending:
        path, part_commit, part_source = pending.pop()
        clone = entry.clone(clones.clone_name(part_source))
        with lock(clone.with_suffix(".lock"), 2 * TRANSFER_TIMEOUT_S):
            clones.fetch_commit(clone, part_source, part_commit)
            os.utime(clone)  # prune reads this time
        parts.append(WorktreePart(path=path, clone=clone.name, commit=part_commit))
        for name, submodule_commit, submodule in clones.list_submodules(clone, part_commit, part_source, addresses):
            pending.append((f"{path}/{name}" if path else name, submodule_commit, submodule))
        if len(parts) + len(pending) > clones.MAX_SUBMODULES + 1:
            raise CheckoutError(f"{source.name}: commit {commit} has more than {clones.MAX_SUBMODULES} submodules")
    return parts


def _add_part(entry: CacheEntry, part: WorktreePart) -> None:
    """Check out ``part`` into the worktree. A hostile tree may have a link in the submodule's path."""
    clone, folder = entry.clone(part.clone), entry.path
    for name in Path(part.path).parts:
        folder /= name
        if folder.is_symlink():
            problem = f"submodule {printable(part.path)}: {printable(name)} is also a link in the same tree"
            raise CheckoutError(problem, "regbot does not follow it; remove one of the two")
    with lock(clone.with_suffix(".lock"), 2 * TRANSFER_TIMEOUT_S):
        entry.path.parent.mkdir(parents=True, exist_ok=True)
        worktree = (f"--git-dir={clone}", "worktree")
        git(clone, *worktree, "prune", "--expire=now")
        command = (*worktree, "add", "--quiet", "--force", "--detach", str(folder), part.commit)
        git(clone, *command, timeout_s=TRANSFER_TIMEOUT_S, env=NO_MACHINE_CONFIG)
