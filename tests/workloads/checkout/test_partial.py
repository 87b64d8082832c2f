"""Partial clones (``git clone --filter``) are refused by name if files are missing. Nothing is fetched into them."""

import os
import sys
from pathlib import Path

import pytest

from regbot.workloads.checkout.building import Build
from regbot.workloads.checkout.git import CheckoutError, file_at
from regbot.workloads.checkout.worktrees import check_out
from support.git_repos import Repository


@pytest.fixture
def origin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Repository:
    """A repository with two commits, away from this machine's configuration of git."""
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    origin = Repository.create(tmp_path / "origin")
    origin.git("config", "uploadpack.allowFilter", "true")
    origin.commit("old", {"regbot.toml": "old", "train/a.py": "a = 1\n"})
    origin.commit("new", {"regbot.toml": "new", "train/a.py": "a = 2\n"})
    return origin


@pytest.mark.parametrize("options", [("--filter=blob:none",), ("--filter=tree:0", "--no-checkout")])
def test_a_clone_that_lacks_files_is_refused_by_name_and_only_read(
    origin: Repository, tmp_path: Path, options: tuple[str, ...]
) -> None:
    clone = origin.clone_to(tmp_path / "clone", *options)
    clone.git("config", "protocol.file.allow", "always")  # so that git could fetch the files by itself
    before = clone.fingerprint()
    with pytest.raises(CheckoutError, match="is a partial clone"):
        check_out(clone.path, "HEAD~1", tmp_path / "cache", Build([], sys.executable, 20))
    assert clone.fingerprint() == before


def test_a_missing_file_is_not_taken_for_a_file_that_does_not_exist(origin: Repository, tmp_path: Path) -> None:
    """Otherwise a check would use the configuration of head instead of the base's."""
    clone = origin.clone_to(tmp_path / "clone", "--filter=blob:none")
    before = clone.fingerprint()
    with pytest.raises(CheckoutError, match=r"regbot\.toml of .* cannot be read"):
        file_at(clone.path, "regbot.toml", "HEAD~1")
    assert file_at(clone.path, "regbot.toml", "HEAD") == "new"
    assert file_at(clone.path, "nothing.toml", "HEAD~1") is None
    assert clone.fingerprint() == before
