"""Several repositories on one node: with equal workloads, commits and even paths, they share nothing in the cache.

A runner checks out every repository into the same folder, so the tests do too.
"""

import shutil
import sys
from pathlib import Path

from regbot.check.sessions.worktrees import Worktree, Worktrees
from support.costs import line
from support.git_repos import Repository

NAMES = ("acme/moe", "other/moe")


class Node:
    """One node with one cache. Before each job, the checkout of a repository is put into the folder ``code``."""

    def __init__(self, folder: Path, source: Repository) -> None:
        self.folder, self.code, self.cache = folder, folder / "code", folder / "cache"
        self._source = source

    def check_out(self, name: str) -> Path:
        """Put a copy of the source with the origin ``name`` into the folder, and return the folder."""
        shutil.rmtree(self.code, ignore_errors=True)
        shutil.copytree(self._source.path, self.code)
        Repository(self.code).git("remote", "add", "origin", f"https://forge.example/{name}")
        return self.code

    def worktrees(self, name: str) -> Worktrees:
        return Worktrees(self.check_out(name), self.cache, lambda _: None)


def test_worktrees_of_one_tree_are_built_for_each_repository(tmp_path: Path) -> None:
    source, commits = line(tmp_path / "source", 1)
    node = Node(tmp_path, source)
    trees = [node.worktrees(name).check_out(commits[0], [], sys.executable) for name in (*NAMES, NAMES[0])]
    acme, other, again = (tree for tree in trees if isinstance(tree, Worktree))
    assert (acme.built, other.built, again.built) == (True, True, False)
    assert acme.path == again.path != other.path
    assert acme.environment["TRITON_CACHE_DIR"] != other.environment["TRITON_CACHE_DIR"]
