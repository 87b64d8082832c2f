"""Whether a push has anything to compare, and which verdict stops it."""

from pathlib import Path

import pytest

from regbot.check.push import stops_push, why_nothing_to_compare
from support.git_repos import Repository


@pytest.fixture
def repo(tmp_path: Path) -> Repository:
    repository = Repository.create(tmp_path / "repository")
    repository.commit("first", {"regbot.toml": "version = 1\n"})
    repository.git("checkout", "-q", "-b", "pr")
    return repository


def test_only_a_branch_with_commits_of_its_own_is_compared(repo: Repository) -> None:
    def reason(head: str) -> str:
        return why_nothing_to_compare(repo.path, None, head, None)

    assert "HEAD has no commits that the target branch lacks" in reason("HEAD")
    repo.commit("change", {"a.py": "1"})
    assert reason("HEAD") == ""
    repo.git("checkout", "-q", "--orphan", "pages")
    repo.commit("page", {"index.html": ""})
    assert "no history in common" in reason("pages")


def test_without_a_configuration_there_is_nothing_to_compare(repo: Repository, tmp_path: Path) -> None:
    repo.git("rm", "-q", "regbot.toml")
    repo.commit("without")
    assert why_nothing_to_compare(repo.path, None, "HEAD", None) == "", "main has one"
    repo.git("branch", "--force", "main", "HEAD")
    repo.commit("change", {"a.py": "1"})
    reason = why_nothing_to_compare(repo.path, None, "HEAD", None)
    assert reason == "neither HEAD nor the target branch has a regbot.toml"
    assert why_nothing_to_compare(repo.path, None, "HEAD", tmp_path / "other.toml") == ""


def test_only_fail_stops_a_push() -> None:
    statuses = ("PASS", "FAIL", "REVIEW", "INCONCLUSIVE", "INVALID")
    assert [status for status in statuses if stops_push(status)] == ["FAIL"]
