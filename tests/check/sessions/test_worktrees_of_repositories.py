"""Several repositories on one node: with equal workloads, commits and even paths, they share nothing in the cache.

A runner checks out every repository into the same folder, so the tests do too.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from regbot.check.sessions.worktrees import Worktree, Worktrees
from regbot.records.session import read_session
from support.command_cases import CONFIG, train
from support.costs import line
from support.git_repos import Repository

REGBOT = str(Path(sys.executable).with_name("regbot"))
NAMES = ("acme/moe", "other/moe")
FORWARD = "    def forward(self, x):\n"
SUM = "        dist.all_reduce(torch.ones(4, device=x.device), group=self.group)\n"


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

    def regbot(self, name: str, *arguments: str) -> Path:
        """Run a command on the repository ``name``. Return the folder of its results."""
        out = self.folder / "out"
        shutil.rmtree(out, ignore_errors=True)
        done = subprocess.run(
            [REGBOT, *arguments, "--out", str(out)],
            cwd=self.check_out(name),
            env={**os.environ, "REGBOT_CACHE": str(self.cache)},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode in (0, 1, 3), done.stderr
        return out

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


@pytest.mark.slow
def test_earlier_sessions_are_joined_by_the_same_repository_only(tmp_path: Path) -> None:
    source = Repository.create(tmp_path / "source")
    base = source.commit("base", {"regbot.toml": CONFIG, "train.py": train(0.02)})
    source.commit("head", {"train.py": train(0.05)})
    node = Node(tmp_path, source)

    def joined_runs(name: str) -> int:
        out = node.regbot(name, "check", "--base", base, "--budget", "5")
        return sum(run.joined is not None for run in read_session(out / "session.jsonl").runs)

    acme, other, again = (joined_runs(name) for name in (*NAMES, NAMES[0]))
    assert (acme, other) == (0, 0)
    assert again >= 8, "four pairs of the first check"
