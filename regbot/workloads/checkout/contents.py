"""Find what has changed in a worktree: tracked files during its build, and any file since then. A worktree whose files
have changed since its build is not reused."""

import contextlib
import hashlib
import os
import stat
import tempfile
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path, PurePosixPath

from pydantic import Field

from regbot.records.base import Record
from regbot.records.run import Commit
from regbot.records.text.printable import printable
from regbot.workloads.checkout.cache import CacheEntry
from regbot.workloads.checkout.clones import reset_configuration
from regbot.workloads.checkout.git import NO_MACHINE_CONFIG, TRANSFER_TIMEOUT_S, CheckoutError, git

_DIFF = ("--no-ext-diff", "--no-textconv", "--no-color", "--no-renames", "--ignore-submodules=all")
_MAX_GROWTH_BYTES = 64 * 2**20
"""A tracked file that has grown by more is not read: a build can make it larger than any disk, without content."""


class WorktreePart(Record):
    """One repository in a worktree: the main repository or one of its submodules. Each has a clone and a commit."""

    path: str = Field(description="relative to the worktree; '' for the repository itself")
    clone: str = Field(description="name of the private clone with its objects")
    commit: Commit


def list_changed_files(entry: CacheEntry, parts: Sequence[WorktreePart]) -> list[str]:
    """Return the tracked files of the worktree that differ from its commits.

    Neither the worktree's index nor any .git in it is read: code under test could mark files as unchanged there, or
    name a configuration that runs commands. Raises CheckoutError.
    """
    changed_files = []
    with tempfile.TemporaryDirectory() as index_folder:
        for number, part in enumerate(parts):
            folder, clone = entry.path / part.path, entry.clone(part.clone)
            path = PurePosixPath(part.path)
            if any((entry.path / parent).is_symlink() for parent in (path, *path.parents)):
                raise CheckoutError(f"{printable(str(folder))}: is reached through a link")
            reset_configuration(clone)
            env = {**NO_MACHINE_CONFIG, "GIT_INDEX_FILE": f"{index_folder}/{number}"}
            location_options = (f"--git-dir={clone}", f"--work-tree={folder}")
            git(folder, *location_options, "read-tree", part.commit, env=env)
            lines = git(folder, *location_options, "ls-files", "--stage", "-z", env=env).split("\0")
            fields = {name: words.split() for words, _, name in (line.partition("\t") for line in lines if line)}
            submodules = {name for name, (mode, *_) in fields.items() if mode == "160000"}
            names = fields.keys() - submodules
            changed_names = {name for name in names if _must_not_be_read(folder / name, clone, fields[name][1])}
            _refuse_pipes(folder, names)
            if absent := sorted(submodules | changed_names):  # git must not look at them
                absent_names = "".join(f"{name}\0" for name in absent)
                mark = (*location_options, "update-index", "-z", "--skip-worktree", "--stdin")
                git(folder, *mark, env=env, stdin=absent_names, timeout_s=TRANSFER_TIMEOUT_S)
            command = (*location_options, "diff", *_DIFF, "--name-only", "-z", part.commit)
            output = git(folder, *command, env=env, timeout_s=TRANSFER_TIMEOUT_S)
            changed_names.update(name for name in output.split("\0") if name)
            changed_files += [printable(str(Path(part.path, name))) for name in sorted(changed_names)]
    return changed_files


def _refuse_pipes(top: Path, names: Iterable[str]) -> None:
    """Raise CheckoutError if git would wait for a writer of a named pipe: a .gitattributes for one of the files."""
    for folder in {folder for name in names for folder in PurePosixPath(name).parents}:
        path = top / folder / ".gitattributes"
        with contextlib.suppress(OSError):
            if stat.S_ISFIFO(path.stat().st_mode):
                raise CheckoutError(f"{printable(str(path))}: is a named pipe")


def _must_not_be_read(path: Path, clone: Path, blob: str) -> bool:
    """Return whether a build made a tracked file, whose content was ``blob``, a folder, a pipe, or too large."""
    try:
        status = path.lstat()
    except OSError:  # it was removed, or a folder above it was
        return False
    if not stat.S_ISREG(status.st_mode):
        return not stat.S_ISLNK(status.st_mode)
    if status.st_size <= _MAX_GROWTH_BYTES:
        return False
    return status.st_size > int(git(clone, f"--git-dir={clone}", "cat-file", "-s", blob)) + _MAX_GROWTH_BYTES


def digest_files(top: Path) -> str:
    """Return a digest of the status of all files and folders below ``top``.

    Untracked files count, because a later check could import one instead of the commit's code. Contents are not read,
    because reading a virtual environment takes too long. The status includes the ctime, which cannot be forged, but not
    for a file with hard links outside of ``top``: package caches link their files into many environments, and each new
    link changes the ctime. Code in a sandbox cannot create such links.
    """
    lines: list[tuple[str, os.stat_result | None]] = []  # a status for what is no folder
    links: Counter[int] = Counter()  # number of links below ``top``, by inode number
    folders = [""]
    while folders:
        folder = folders.pop()
        try:
            with os.scandir(top / folder) as listing:
                children = sorted(listing, key=lambda child: child.name)
            for child in children:
                name, status = f"{folder}{child.name}", child.stat(follow_symlinks=False)
                if stat.S_ISDIR(status.st_mode):
                    folders.append(f"{name}/")
                    lines.append((f"{status.st_mode:o} {name}", None))
                else:
                    links[status.st_ino] += 1
                    lines.append((f"{status.st_mode:o} {name}", status))
        except OSError as error:  # the folder was removed meanwhile, or it cannot be read, not even by code under test
            lines.append((f"{error.errno} {folder}", None))
    digest = hashlib.sha256()
    for line, file_status in lines:
        if file_status is not None:
            changed_ns = 0 if file_status.st_nlink > links[file_status.st_ino] else file_status.st_ctime_ns
            line += f"\0{file_status.st_size} {file_status.st_mtime_ns} {changed_ns}"
        digest.update(f"{line}\0".encode("utf-8", "surrogateescape"))
    return digest.hexdigest()
