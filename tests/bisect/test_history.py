"""The commits of a bisection, out of real repositories that are only read."""

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

from regbot.bisect.history import CommitRange, list_commits, list_merged_commits, match_trees
from regbot.records.bisection import Point
from regbot.records.text.clip import clip_label
from regbot.workloads.checkout.git import CheckoutError
from support.git_repos import Repository


@pytest.fixture(autouse=True)
def _no_configuration_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")


@pytest.fixture(scope="module")
def first_commit(tmp_path_factory: pytest.TempPathFactory) -> Repository:
    made = Repository.create(tmp_path_factory.mktemp("first") / "user")
    for hook in ("post-checkout", "pre-commit", "reference-transaction", "post-index-change"):
        path = made.path / ".git" / "hooks" / hook
        path.write_text("#!/bin/sh\ntest ! -e .git/watched || date +%N >>hook-was-run\n")
        path.chmod(0o755)
    made.commit("start", {"model.py": "width = 0\n", "README.md": "A model.\n"})
    made.git("tag", "start")
    return made


@pytest.fixture(scope="module")
def merges(first_commit: Repository, tmp_path_factory: pytest.TempPathFactory) -> Repository:
    repo = copied(first_commit, tmp_path_factory.mktemp("merges") / "user")
    change(repo, "a")
    repo.git("checkout", "--quiet", "-b", "x")
    change(repo, "x1")
    change(repo, "x2")
    repo.git("checkout", "--quiet", "main")
    merge(repo, "x", message="M1")
    repo.git("checkout", "--quiet", "-b", "y")
    change(repo, "y1")
    repo.git("checkout", "--quiet", "-b", "z", "start")
    change(repo, "z1")
    repo.git("checkout", "--quiet", "y")
    merge(repo, "z", message="MZ")
    change(repo, "y2")
    repo.git("checkout", "--quiet", "main")
    change(repo, "b")
    merge(repo, "y", message="M2")
    change(repo, "c")
    return repo


@pytest.fixture
def repo(first_commit: Repository, tmp_path: Path) -> Repository:
    """main, tagged 'start', with one commit; hooks that leave a trace where the repository is watched."""
    return copied(first_commit, tmp_path / "user")


@pytest.fixture
def merged(merges: Repository, tmp_path: Path) -> Repository:
    """start, a, M1 (merges x1, x2), b, M2 (merges y1, MZ, y2, where MZ merges z1 into y); then c."""
    return copied(merges, tmp_path / "user")


def copied(repo: Repository, path: Path) -> Repository:
    shutil.copytree(repo.path, path)
    return Repository(path)


def asked(repo: Repository, good: str = "start", bad: str = "main", inert: Sequence[str] = ()) -> CommitRange:
    """The range, with proof that nothing was written."""
    before = repo.fingerprint()
    result = list_commits(repo.path, good, bad, inert)
    assert repo.fingerprint() == before
    return result


def refused(repo: Repository, good: str, bad: str) -> str:
    before = repo.fingerprint()
    with pytest.raises(CheckoutError) as caught:
        list_commits(repo.path, good, bad)
    assert repo.fingerprint() == before
    assert str(caught.value).startswith(str(repo.path))
    return str(caught.value).removeprefix(f"{repo.path}: ")


def descended(repo: Repository, merge: Point) -> CommitRange | None:
    before = repo.fingerprint()
    points = list_merged_commits(repo.path, merge)
    assert repo.fingerprint() == before
    return CommitRange(points, []) if points is not None else None


def commits(found: CommitRange) -> list[str]:
    return [point.commit for point in found.points]


def subjects(found: CommitRange) -> list[str]:
    return [point.subject for point in found.points]


def change(repo: Repository, name: str) -> str:
    """A commit of that name, which adds one file of that name."""
    return repo.commit(name, {f"src/{name}.py": f"{name} = 1\n"})


def merge(repo: Repository, *branches: str, message: str = "") -> str:
    repo.git("merge", "--quiet", "--no-ff", "-m", message or f"merge {' '.join(branches)}", *branches)
    return repo.git("rev-parse", "HEAD")


# ---- which commits


def test_a_point_says_what_git_says_of_its_commit(repo: Repository) -> None:
    change(repo, "a")
    last = asked(repo).points[-1]
    form = repo.git("log", "-1", "--format=%H|%T|%P|%s|%an|%aI")
    assert "|".join((last.commit, last.tree, *last.parents, last.subject, last.author, last.date)) == form
    assert (last.pull_request, last.same_as_before) == (None, False)


def test_what_merges_brought_in_is_left_out_by_default(merged: Repository) -> None:
    assert subjects(asked(merged)) == ["start", "a", "M1", "b", "M2", "c"]


def test_a_good_commit_that_came_in_by_a_merge_is_searched_from_the_fork_with_a_warning(merged: Repository) -> None:
    result = asked(merged, "x", "main")
    assert subjects(result) == ["x2", "M1", "b", "M2", "c"]
    (warning,) = result.warnings
    assert warning.startswith(f"the good commit {result.points[0].name} entered main by a merge")


def test_a_repository_in_use_is_left_as_it_is_and_its_changes_are_a_warning(merged: Repository, tmp_path: Path) -> None:
    (merged.path / "model.py").write_text("width = 5\n")
    merged.git("stash")
    (merged.path / "model.py").write_text("width = 6\n")
    merged.git("add", "model.py")
    (merged.path / "README.md").write_text("Not staged.\n")
    (merged.path / "new.txt").write_text("Not tracked.\n")
    merged.git("worktree", "add", "--quiet", str(tmp_path / "linked"), "x")
    os.utime(merged.path / "src" / "a.py", (1, 1))  # an index that git would like to refresh
    (merged.path / ".git" / "watched").touch()
    linked = Repository(tmp_path / "linked")
    before = linked.fingerprint()
    result = asked(merged)
    assert result.warnings[0].startswith("uncommitted changes are not measured (2 files: README.md, model.py)")
    assert descended(merged, next(point for point in result.points if point.subject == "M2")) is not None
    assert linked.fingerprint() == before
    assert not list(tmp_path.rglob("hook-was-run"))


def test_configuration_of_the_user_changes_nothing(merged: Repository) -> None:
    plain = asked(merged)
    for key, value in {
        "log.follow": "true",
        "log.date": "relative",
        "color.ui": "always",
        "format.pretty": "oneline",
        "i18n.logOutputEncoding": "latin-1",
        "diff.renames": "copies",
        "diff.external": "false",
        "core.pager": "false",
    }.items():
        merged.git("config", key, value)
    assert asked(merged) == plain


# ---- the same code


def same(found: CommitRange) -> list[str]:
    return [point.subject for point in found.points if point.same_as_before]


def test_commits_that_change_no_code_run_the_code_before_them(repo: Repository) -> None:
    repo.commit("nothing")
    repo.commit("comment", {"model.py": '"""About."""\n\nwidth = 0  # wide\n'})
    repo.commit("docs", {"README.md": "Two.\n", "docs/a.md": "A.\n"})
    repo.commit("tests", {"tests/test_a.py": "assert 1\n"})
    repo.commit("docs and code", {"README.md": "Three.\n", "model.py": "width = 1\n"})
    repo.commit("shell", {"run.sh": "# a comment\n"})
    repo.commit("data", {"config.yaml": "# a comment\n"})
    repo.commit("back to one", {"model.py": "width = (1)\n"})
    assert same(asked(repo)) == ["nothing", "comment", "docs", "back to one"]
    assert "tests" in same(asked(repo, inert=["tests/**"]))


def test_commits_of_a_merged_branch_that_change_inert_files_only_run_the_code_before_them(repo: Repository) -> None:
    repo.git("checkout", "--quiet", "-b", "side")
    change(repo, "a")
    repo.commit("tests", {"tests/test_a.py": "assert 1\n"})
    repo.git("checkout", "--quiet", "main")
    merge(repo, "side")
    merge_point = asked(repo).points[-1]
    points = list_merged_commits(repo.path, merge_point, ["tests/**"])
    assert points is not None
    assert same(CommitRange(points, [])) == ["tests"]


# ---- what authors write


@pytest.mark.parametrize(
    ("subject", "number"),
    [
        ("Fuse the router (#123)", 123),
        ('Revert "Fuse the router (#123)" (#130)', 130),
        ("Merge pull request #7 from someone/branch", 7),
        ("Merge pull request #7", None),
        ('Revert "Fuse the router (#123)"', None),
        ("Fuse the router (#123) and more", None),
        ("Fuse the router (#٣)", None),
        ("Fuse (#99999999999999999999)", None),
        ("w" * 600 + " (#8)", 8),
    ],
)
def test_the_number_of_a_pull_request_is_read_as_github_writes_it(
    repo: Repository, subject: str, number: int | None
) -> None:
    repo.commit(subject)
    last = asked(repo).points[-1]
    assert last.pull_request == number
    assert last.subject == clip_label(subject)


def test_what_a_commit_says_of_itself_can_do_nothing_to_a_terminal(repo: Repository) -> None:
    repo.commit("\x1b[31mred\x1b]0;title\x07 \u202eback\u200b\x1e | **md** <b> `x` \t\x7f end")
    repo.commit("one\ntwo\n\nthree")
    repo.git("commit", "--quiet", "--allow-empty", "--allow-empty-message", "--message", "")
    assert subjects(asked(repo)) == ["start", "red back | **md** <b> `x`   end", "one two", ""]


# ---- descending into a merge


def point_of(found: CommitRange, subject: str) -> Point:
    return next(point for point in found.points if point.subject == subject)


def test_a_merge_is_descended_into_from_where_its_branch_left(merged: Repository) -> None:
    result = descended(merged, point_of(asked(merged), "M1"))
    assert result is not None
    assert subjects(result) == ["a", "x1", "x2"]


# ---- what cannot be walked


DEEPER = "fetch the rest of the history: git fetch --unshallow, or fetch-depth: 0 of actions/checkout"


def test_a_shallow_clone_without_a_way_to_good_says_how_to_deepen_it(merged: Repository, tmp_path: Path) -> None:
    clone = merged.clone_to(tmp_path / "shallow", "--depth=2", "--no-single-branch")
    assert refused(clone, "start", "main") == (
        "the history between GOOD and BAD is missing, because the repository is shallow; " + DEEPER
    )


# ---- large ranges


def test_a_command_may_read_documents(repo: Repository) -> None:
    repo.commit("docs", {"README.md": "More.\n"})
    repo.commit("nothing")
    points = asked(repo).points
    assert [point.same_as_before for point in points] == [False, True, True]
    assert [point.same_as_before for point in match_trees(points)] == [False, False, True]
