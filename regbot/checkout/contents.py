"""What a worktree holds, as a digest: by it one that was changed since is told from one that can be used again."""

import hashlib
import os
import stat
import tempfile
from collections.abc import Iterator, Sequence, Set
from pathlib import Path

from pydantic import Field

from regbot.checkout.clones import disarm
from regbot.checkout.git import ALONE, TRANSFER_TIMEOUT_S, git
from regbot.checkout.places import Place
from regbot.records.base import Record
from regbot.records.run import Commit
from regbot.text import printable

_DIFF = ("--no-ext-diff", "--no-textconv", "--no-color", "--no-renames", "--ignore-submodules=all")


class Part(Record):
    """The top of a worktree or one of its submodules."""

    path: str = Field(description="from the top, '' for the top itself")
    clone: str = Field(description="private clone that holds its objects")
    commit: Commit


def state_of(place: Place, parts: Sequence[Part]) -> tuple[str, list[str]]:
    """A digest of how the worktree differs from its commits, and the tracked files that do.

    Guests run in the worktree. What one leaves there, ignored or not, could be imported in place of the commit's code
    by every later check, so untracked files count as much as tracked ones.

    With an index of its own: the worktree's may have been told to overlook a file. And without a look at the .git file
    in the worktree: code that ran there could have it point to a configuration that runs commands.
    """
    digest, changed = hashlib.sha256(), []
    tracked: set[str] = set()
    with tempfile.TemporaryDirectory() as folder:
        for number, part in enumerate(parts):
            at = place.path / part.path
            disarm(place.clone(part.clone), part.commit)
            env = {**ALONE, "GIT_INDEX_FILE": f"{folder}/{number}"}
            where = (f"--git-dir={place.clone(part.clone)}", f"--work-tree={at}")
            diff = (*where, "diff", *_DIFF)
            git(at, *where, "read-tree", part.commit, env=env)
            text = git(at, *diff, "--binary", part.commit, env=env, timeout_s=TRANSFER_TIMEOUT_S)
            digest.update(f"{part.path}\0{text}\0".encode("utf-8", "surrogateescape"))
            if text:
                names = git(at, *diff, "--name-only", "-z", part.commit, env=env, timeout_s=TRANSFER_TIMEOUT_S)
                changed += [printable(str(Path(part.path, name))) for name in names.split("\0") if name]
            names = git(at, *where, "ls-files", "-z", env=env)
            tracked.update(f"{part.path}/{name}" if part.path else name for name in names.split("\0"))
    for entry in _untracked(place.path, tracked):
        digest.update(f"{entry}\0".encode("utf-8", "surrogateescape"))
    return digest.hexdigest(), changed


def _untracked(top: Path, tracked: Set[str]) -> Iterator[str]:
    """A line for each folder below ``top`` and each file that is not in ``tracked``, in a fixed order.

    By a walk, since git would not look into a repository that a guest made there. Files are known by their status, not
    their content, which takes too long to read where a virtual environment lies inside. The time of the last status
    change is part of it because, unlike the other times, nobody can set it. It says nothing of a file with several
    names (package caches link theirs into every environment): there it changes whenever a name comes or goes.
    """
    folders = [""]
    while folders:
        at = folders.pop()
        try:
            with os.scandir(top / at) as listing:
                entries = sorted(listing, key=lambda entry: entry.name)
            for entry in entries:
                name, status = f"{at}{entry.name}", entry.stat(follow_symlinks=False)
                if stat.S_ISDIR(status.st_mode):
                    folders.append(f"{name}/")
                    yield f"{status.st_mode:o} {name}"
                elif name not in tracked:
                    status_changed_ns = status.st_ctime_ns if status.st_nlink == 1 else 0
                    yield f"{status.st_mode:o} {status.st_size} {status.st_mtime_ns} {status_changed_ns} {name}"
        except OSError as error:  # unreadable for the guest too, or gone meanwhile: then it differs from what was there
            yield f"{error.errno} {at}"
