"""Which files of a commit a sparse worktree has, by the rule of git's cone mode.

A cone is a set of folders. A worktree has all files below these folders, the files directly in their parent folders,
and the files directly in the root of the repository. So no package in a cone lacks the ``__init__.py`` of its parents.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from regbot.workloads.checkout.git import OFFLINE, common_dir, git, try_git


@dataclass(frozen=True)
class Cone:
    """The folders of a sparse worktree, relative to the root of the repository.

    A worktree without such folders is not sparse: it has all files."""

    folders: tuple[str, ...] = ()

    def has(self, path: str) -> bool:
        """Return whether a worktree has the file or submodule ``path`` of its commit."""
        if not self.folders:
            return True
        parents = list_parents(path)
        is_in_deep_folder = not self._deep_folders.isdisjoint(parents)
        is_in_shallow_folder = parents[0] in self._shallow_folders  # directly, not in a subfolder
        return is_in_deep_folder or is_in_shallow_folder

    @cached_property
    def _deep_folders(self) -> frozenset[str]:
        """Folders of which a worktree has all files and subfolders."""
        return frozenset(self.folders)

    @cached_property
    def _shallow_folders(self) -> frozenset[str]:
        """Parents of the deep folders. A worktree has the files directly in them, but not their other subfolders."""
        return frozenset(parent for folder in self.folders for parent in list_parents(folder))


WHOLE = Cone()
"""The cone of a worktree that has all files."""


def make_cone(folders: Iterable[str]) -> Cone:
    """Return the cone of ``folders``. Their order does not matter."""
    return Cone(tuple(sorted(set(folders))))


def list_parents(path: str) -> list[str]:
    """Return the parent folders of a path, the innermost first. The last one is '', the root of the repository."""
    parents = []
    while path:
        path = path.rpartition("/")[0]
        parents.append(path)
    return parents


def list_absent(repo: Path, commit: str, cone: Cone) -> tuple[str, ...]:
    """Return the files and submodules of ``commit`` that a worktree of ``cone`` lacks. Raises CheckoutError."""
    if not cone.folders:
        return ()
    listing = git(repo, f"--git-dir={common_dir(repo)}", "ls-tree", "-r", "-z", "--full-tree", "--name-only", commit)
    return tuple(path for path in listing.split("\0") if path and not cone.has(path))


def has_folder(repo: Path, commit: str, folder: str) -> bool:
    """Return whether ``folder`` is a folder or a submodule of ``commit``."""
    result = try_git(repo, "cat-file", "-t", f"{commit}:{folder}", env=OFFLINE)
    return result.code == 0 and result.out.strip() in ("tree", "commit")  # a submodule has the type commit
