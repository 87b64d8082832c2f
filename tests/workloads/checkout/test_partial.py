"""Partial clones (``git clone --filter``): missing files are fetched into regbot's cache, or refused by name."""

import os
import sys
from pathlib import Path

import pytest

from regbot.workloads.checkout import (
    Build,
    CheckoutError,
    Worktree,
    check_out,
    find_readable_repository,
    list_changed_files,
)
from regbot.workloads.checkout.git import file_at
from support.git_repos import Repository


@pytest.fixture(autouse=True)
def _no_configuration_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")


class Scene:
    """An origin with two commits, and a partial clone that has the files of the second one only."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.origin = Repository.create(home / "origin")
        self.origin.git("config", "uploadpack.allowFilter", "true")
        self.old = self.origin.commit("old", {"regbot.toml": "old", "train/a.py": "a = 1\n", "web/b.txt": "b\n"})
        self.new = self.origin.commit("new", {"regbot.toml": "new", "train/a.py": "a = 2\n", "web/b.txt": "c\n"})
        self.clone = self.origin.clone_to(home / "clone", "--filter=blob:none")

    def check_out(self, commit: str) -> Worktree:
        return check_out(self.clone.path, commit, self.home / "cache", Build([], sys.executable, 20))

    @property
    def private_clone(self) -> Path:
        (clone,) = (self.home / "cache" / "repos").glob("*.git")
        return clone


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


def test_missing_files_are_fetched_and_the_users_clone_is_only_read(scene: Scene) -> None:
    before = scene.clone.fingerprint()
    tree = scene.check_out(scene.old)
    assert (tree.path / "train/a.py").read_text() == "a = 1\n"
    assert (tree.path / "web/b.txt").read_text() == "b\n"
    assert not scene.check_out(scene.old).built
    assert scene.clone.fingerprint() == before


def test_a_clone_without_trees_is_refused_by_name(scene: Scene) -> None:
    scene.clone = scene.origin.clone_to(scene.home / "treeless", "--filter=tree:0", "--no-checkout")
    scene.clone.git("config", "protocol.file.allow", "always")  # so that git could fetch the trees by itself
    before = scene.clone.fingerprint()
    with pytest.raises(CheckoutError, match="is a partial clone"):
        scene.check_out(scene.old)
    assert scene.clone.fingerprint() == before


def test_a_missing_file_is_not_taken_for_a_file_that_does_not_exist(scene: Scene) -> None:
    """Otherwise a check would use the configuration of head instead of the base's."""
    before = scene.clone.fingerprint()
    with pytest.raises(CheckoutError, match=r"regbot\.toml of .* cannot be read"):
        file_at(scene.clone.path, "regbot.toml", scene.old)
    assert file_at(scene.clone.path, "regbot.toml", scene.new) == "new"
    assert file_at(scene.clone.path, "nothing.toml", scene.old) is None
    assert scene.clone.fingerprint() == before


def test_files_of_both_commits_are_read_from_a_private_clone(scene: Scene) -> None:
    commented = scene.origin.commit("comment", {"train/a.py": "a = 2  # why\n", "web/b.txt": "c\n"})
    scene.clone.git("fetch", "--quiet")
    commits = [scene.new, commented]
    before = scene.clone.fingerprint()
    readable = find_readable_repository(scene.clone.path, scene.home / "cache", commits)
    assert readable == scene.private_clone
    assert file_at(readable, "regbot.toml", scene.new) == "new"
    assert list_changed_files(readable, *commits, []).paths == [], "a comment changes no behaviour"
    assert scene.clone.fingerprint() == before
    complete = scene.origin.path
    assert find_readable_repository(complete, scene.home / "cache", commits) == complete
