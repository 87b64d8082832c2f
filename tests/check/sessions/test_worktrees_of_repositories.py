"""Several repositories on one node: with equal workloads, commits and even paths, they share nothing in the cache.

A runner checks out every repository into the same folder, so the tests do too.
"""

import shutil
import sys
from pathlib import Path

from regbot.check.sessions.worktrees import Worktree, Worktrees
from support.costs import line
from support.git_repos import Repository


def test_worktrees_of_one_tree_are_built_for_each_repository(tmp_path: Path) -> None:
    source, commits = line(tmp_path / "source", 1)
    code = tmp_path / "code"

    def check_out(name: str) -> Worktree:
        shutil.rmtree(code, ignore_errors=True)
        shutil.copytree(source.path, code)
        Repository(code).git("remote", "add", "origin", f"https://forge.example/{name}")
        tree = Worktrees(code, tmp_path / "cache", lambda _: None).check_out(commits[0], [], sys.executable)
        assert isinstance(tree, Worktree)
        return tree

    acme, other, again = (check_out(name) for name in ("acme/moe", "other/moe", "acme/moe"))
    assert (acme.built, other.built, again.built) == (True, True, False)
    assert acme.path == again.path != other.path
    assert acme.environment["TRITON_CACHE_DIR"] != other.environment["TRITON_CACHE_DIR"]
