"""The commits of a bisection, out of real repositories that are only read."""

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import regbot.checkout.git
from regbot.bisect.history import CommitRange, containment_matrix, list_commits, list_merged_commits
from regbot.checkout import CheckoutError, list_changed_files
from regbot.records.bisection import Point
from regbot.text.clip import clip_label
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


def asked(repo: Repository, good: str = "start", bad: str = "main", **options: Any) -> CommitRange:
    """The range, with proof that nothing was written."""
    before = repo.fingerprint()
    result = list_commits(repo.path, good, bad, **options)
    assert repo.fingerprint() == before
    return result


def refused(repo: Repository, good: str, bad: str, **options: Any) -> str:
    before = repo.fingerprint()
    with pytest.raises(CheckoutError) as caught:
        list_commits(repo.path, good, bad, **options)
    assert repo.fingerprint() == before
    assert str(caught.value).startswith(str(repo.path))
    return str(caught.value).removeprefix(f"{repo.path}: ")


def descended(repo: Repository, merge: Point, **options: Any) -> CommitRange | None:
    before = repo.fingerprint()
    result = list_merged_commits(repo.path, merge, **options)
    assert repo.fingerprint() == before
    return result


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


def made_by_hand(repo: Repository, message: str, *parents: str) -> str:
    """A commit with HEAD's tree and any parents; no branch has it."""
    options = [word for parent in parents for word in ("-p", parent)]
    return repo.git("commit-tree", "HEAD^{tree}", *options, "-m", message)


# ---- which commits


def test_a_line_of_commits_is_walked_from_good_to_bad(repo: Repository) -> None:
    made = [change(repo, name) for name in "abc"]
    assert commits(asked(repo)) == [repo.git("rev-parse", "start"), *made]
    assert commits(asked(repo, "start", "main~1", full=True)) == [repo.git("rev-parse", "start"), *made[:2]]


def test_a_point_says_what_git_says_of_its_commit(repo: Repository) -> None:
    change(repo, "a")
    last = asked(repo).points[-1]
    form = repo.git("log", "-1", "--format=%H|%T|%P|%s|%an|%aI")
    assert "|".join((last.commit, last.tree, *last.parents, last.subject, last.author, last.date)) == form
    assert (last.weight, last.pull_request, last.same_as_before) == (1.0, None, False)


def test_a_range_of_one_commit_is_a_range(repo: Repository) -> None:
    change(repo, "a")
    assert subjects(asked(repo)) == subjects(asked(repo, full=True)) == ["start", "a"]


def test_what_merges_brought_in_is_left_out_by_default(merged: Repository) -> None:
    assert subjects(asked(merged)) == ["start", "a", "M1", "b", "M2", "c"]


def test_the_full_history_has_every_commit_after_its_parents(merged: Repository) -> None:
    result = asked(merged, full=True)
    assert sorted(subjects(result)) == sorted(["start", "a", "x1", "x2", "M1", "b", "y1", "z1", "MZ", "y2", "M2", "c"])
    place = {point.commit: number for number, point in enumerate(result.points)}
    assert result.points[0].subject == "start"
    assert result.points[-1].subject == "c"
    assert all(place[parent] < place[point.commit] for point in result.points[1:] for parent in point.parents)


def test_a_good_commit_that_came_in_by_a_merge_is_searched_from_the_fork_with_a_warning(merged: Repository) -> None:
    result = asked(merged, "x", "main")
    assert subjects(result) == ["x2", "M1", "b", "M2", "c"]
    fork = merged.git("rev-parse", "main~4")
    (warning,) = result.warnings
    assert warning == (
        f"the good commit {result.points[0].name} entered main by a merge: the search follows first parents, and "
        f"that line starts at {fork[:12]}. The commits before that merge do not contain the good commit. "
        "--full searches both lines"
    )
    assert asked(merged, "x", "main", full=True).warnings == []


def test_a_cherry_picked_commit_is_a_commit_of_its_own(repo: Repository) -> None:
    repo.git("checkout", "--quiet", "-b", "side")
    picked = change(repo, "a")
    repo.git("checkout", "--quiet", "main")
    change(repo, "b")
    repo.git("cherry-pick", picked)
    merge(repo, "side")
    assert subjects(asked(repo)) == ["start", "b", "a", "merge side"]
    full = asked(repo, full=True)
    assert sorted(subjects(full)) == ["a", "a", "b", "merge side", "start"]
    last = asked(repo).points[-1]
    assert last.same_as_before  # it brings nothing that was not picked before


def test_a_bare_repository_a_linked_worktree_and_a_folder_of_it_are_walked_alike(
    merged: Repository, tmp_path: Path
) -> None:
    bare = merged.clone_to(tmp_path / "bare.git", "--bare")
    merged.git("worktree", "add", "--quiet", "--detach", str(tmp_path / "linked"), "main~1")
    here = asked(merged)
    assert asked(bare) == here
    assert asked(Repository(tmp_path / "linked")) == here
    assert list_commits(merged.path / "src", "start", "main") == here


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
    for full in (False, True):
        result = asked(merged, full=full, paths=["src"], suspects=["x"])
        assert result.warnings[0].startswith("uncommitted changes are not measured (2 files: README.md, model.py)")
    containment_matrix(merged.path, result.points, full=True)
    assert descended(merged, next(point for point in result.points if point.subject == "M2")) is not None
    assert linked.fingerprint() == before
    assert not list(tmp_path.rglob("hook-was-run"))


def test_configuration_of_the_user_changes_nothing(merged: Repository) -> None:
    raw_commit(merged, b"S <s@example.org> 1700000000 +0000", b"signed\n", SIGNATURE)
    merged.git("reset", "--quiet", "--hard")
    change(merged, "d")
    plain = asked(merged, paths=["src"])
    for key, value in {
        "log.follow": "true",
        "log.showSignature": "true",
        "log.date": "relative",
        "color.ui": "always",
        "format.pretty": "oneline",
        "i18n.logOutputEncoding": "latin-1",
        "diff.renames": "copies",
        "diff.external": "false",
        "core.pager": "false",
    }.items():
        merged.git("config", key, value)
    assert asked(merged, paths=["src"]) == plain
    assert subjects(asked(merged, paths=["src/a.py"])) == ["start", "a", "d"]
    assert subjects(asked(merged))[-2:] == ["signed", "d"]


# ---- paths


def test_only_commits_that_touch_a_path_are_walked_and_the_ends(merged: Repository) -> None:
    result = asked(merged, paths=["src/b.py", "src/x2.py"])
    assert subjects(result) == ["start", "M1", "b", "c"]
    (warning,) = result.warnings
    assert warning == (
        "2 of 5 commits are left out, which touch none of src/b.py, src/x2.py; good, bad and suspects always stay"
    )
    full = asked(merged, paths=["src/b.py", "src/x2.py"], full=True)
    assert sorted(subjects(full)) == ["b", "c", "start", "x2"]
    assert full.warnings[0].startswith("8 of 11 commits are left out")


def test_both_branches_that_touch_a_path_are_walked_in_the_full_history(repo: Repository) -> None:
    """By default git prunes a branch where a merge has the other one's content."""
    repo.git("checkout", "--quiet", "-b", "side")
    repo.commit("there", {"src/k.py": "k = 1\n"})
    repo.commit("back", {"src/k.py": ""})
    repo.git("checkout", "--quiet", "main")
    repo.commit("same", {"src/k.py": ""})
    merge(repo, "side")
    repo.commit("after", {"src/k.py": "k = 2\n"})
    result = asked(repo, paths=["src/k.py"], full=True)
    assert {"there", "back", "same", "after"} <= set(subjects(result))


def test_a_path_is_relative_to_the_folder_given_and_may_be_a_pattern(merged: Repository) -> None:
    assert subjects(list_commits(merged.path / "src", "start", "main", paths=["b.py"])) == ["start", "b", "c"]
    assert subjects(asked(merged, paths=[":(glob)**/[ab].py"])) == ["start", "a", "b", "c"]


def test_where_nothing_touches_a_path_a_warning_says_so_and_bad_stands(merged: Repository) -> None:
    result = asked(merged, paths=["srk"])
    assert subjects(result) == ["start", "c"]
    assert result.warnings[0] == "no commit of the range touches srk: check the spelling, or leave the paths out"


@pytest.mark.parametrize("path", [":(bogus)x", "../elsewhere", "", "a\0b"])
def test_a_path_that_is_none_is_an_error(merged: Repository, path: str) -> None:
    assert refused(merged, "start", "main", paths=[path])


# ---- suspects


def weights(found: CommitRange) -> dict[str, float]:
    return {point.subject: point.weight for point in found.points if point.weight != 1}


def test_suspects_weigh_more_by_whatever_name(merged: Repository) -> None:
    merged.git("tag", "-a", "-m", "of a", "marked", "main~4")
    short = merged.git("rev-parse", "--short=7", "main~1")
    assert weights(asked(merged, suspects=["marked", short])) == {"a": 20, "M2": 20}
    assert weights(asked(merged, suspects=["main"], full=True)) == {"c": 20}


def test_a_suspect_that_a_merge_brought_in_makes_the_merge_suspect(merged: Repository) -> None:
    assert weights(asked(merged, suspects=["x~1"])) == {"M1": 20}
    assert weights(asked(merged, suspects=["z", "main"])) == {"M2": 20, "c": 20}
    assert weights(asked(merged, suspects=["z"], full=True)) == {"z1": 20}


def test_a_suspect_stands_whatever_it_touches(merged: Repository) -> None:
    assert subjects(asked(merged, paths=["src/b.py"], suspects=["x"])) == ["start", "M1", "b", "c"]


@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("suspect", ["start", "elsewhere"])
def test_a_suspect_outside_the_range_is_an_error(merged: Repository, suspect: str, full: bool) -> None:
    merged.git("checkout", "--quiet", "-b", "elsewhere")
    change(merged, "e")
    message = refused(merged, "start", "main", suspects=[suspect], full=full)
    commit = merged.git("rev-parse", suspect)
    assert message == (
        f"suspect '{suspect}' ({commit[:12]}) is outside the range: name a commit that BAD 'main' contains and "
        "GOOD 'start' does not"
    )


def test_a_suspect_that_is_nothing_is_an_error(merged: Repository) -> None:
    assert refused(merged, "start", "main", suspects=["nix"]).startswith("suspect 'nix' names no commit here")


# ---- the same code


def same(found: CommitRange) -> list[str]:
    return [point.subject for point in found.points if point.same_as_before]


@pytest.mark.parametrize("full", [False, True])
def test_commits_that_change_no_code_run_the_code_before_them(repo: Repository, full: bool) -> None:
    repo.commit("nothing")
    repo.commit("comment", {"model.py": '"""About."""\n\nwidth = 0  # wide\n'})
    repo.commit("docs", {"README.md": "Two.\n", "docs/a.md": "A.\n"})
    repo.commit("tests", {"tests/test_a.py": "assert 1\n"})
    repo.commit("docs and code", {"README.md": "Three.\n", "model.py": "width = 1\n"})
    repo.commit("shell", {"run.sh": "# a comment\n"})
    repo.commit("data", {"config.yaml": "# a comment\n"})
    repo.commit("back to one", {"model.py": "width = (1)\n"})
    assert same(asked(repo, full=full)) == ["nothing", "comment", "docs", "back to one"]
    assert "tests" in same(asked(repo, full=full, inert=["tests/**"]))


def test_a_moved_submodule_is_other_code(repo: Repository, tmp_path: Path) -> None:
    library = Repository.create(tmp_path / "library")
    library.commit("first", {"kernel.cu": "// 1\n"})
    repo.add_submodule(library, "third_party/lib")
    repo.git("config", "--file", ".gitmodules", "submodule.third_party/lib.ignore", "all")
    repo.commit("with a library")
    newer = library.commit("second", {"kernel.cu": "// 2\n"})
    repo.git("update-index", "--cacheinfo", f"160000,{newer},third_party/lib")
    repo.git("commit", "--quiet", "--message", "a newer library")
    repo.git("commit", "--quiet", "--allow-empty", "--message", "nothing")
    assert same(asked(repo, bad="HEAD")) == ["nothing"]


def test_what_a_left_out_commit_changed_counts_for_the_next_point(repo: Repository) -> None:
    change(repo, "a")
    repo.commit("left out", {"model.py": "width = 1\n"})
    repo.commit("comment", {"src/a.py": "a = 1  # one\n"})
    repo.commit("another", {"src/a.py": "a = 1  # two\n"})
    repo.commit("to and", {"model.py": "width = 2\n"})
    repo.commit("fro", {"model.py": "width = 1\n"})
    repo.commit("a third", {"src/a.py": "a = 1  # three\n"})
    assert same(asked(repo)) == ["comment", "another", "a third"]
    assert same(asked(repo, paths=["src"])) == ["another", "a third"]


def test_bad_may_run_the_code_of_good(repo: Repository) -> None:
    repo.commit("there", {"model.py": "width = 1\n"})
    repo.commit("back", {"model.py": "width = 0\n"})
    assert same(asked(repo)) == []
    assert same(asked(repo, bad="main", good="main~1")) == []
    repo.commit("docs", {"README.md": "More.\n"})
    assert same(asked(repo, good="main~1")) == ["docs"]


def test_in_a_history_that_is_no_line_only_a_parent_with_the_same_tree_counts(repo: Repository) -> None:
    repo.git("checkout", "--quiet", "-b", "twin")
    repo.commit("twin of a", {"src/a.py": "a = 1\n"})
    repo.git("checkout", "--quiet", "main")
    change(repo, "a")
    repo.commit("docs", {"README.md": "More.\n"})
    repo.commit("no docs", {"README.md": "A model.\n"})
    merge(repo, "twin")
    repo.commit("nothing")
    result = asked(repo, full=True)
    assert subjects(result) in (
        ["start", "a", "docs", "no docs", "twin of a", "merge twin", "nothing"],
        ["start", "twin of a", "a", "docs", "no docs", "merge twin", "nothing"],
    )
    assert same(result) == ["merge twin", "nothing"]


def test_the_points_agree_with_the_comparison_of_a_pair(repo: Repository) -> None:
    texts = [
        "x = 1\n",
        "x = 1 # c\n",
        "y = 1\n",
        "def f(:\n",
        "def f(: # c\n",
        "'doc'\nx = 1\n",
        "x = '1'\n",
        "x = 0x1\n",
    ]
    for number, text in enumerate(texts * 2):
        repo.commit(f"n{number}", {f"src/{'ab'[number % 2]}.py": text, "docs/log.md": str(number)})
    points = asked(repo).points
    for before, after in pairwise(points):
        changed = list_changed_files(repo.path, before.commit, after.commit, [])
        assert after.same_as_before == (changed.paths == changed.inert), after.subject


def test_a_partial_clone_is_not_filled(repo: Repository, tmp_path: Path) -> None:
    repo.commit("comment", {"model.py": "width = 0  # wide\n"})
    repo.commit("docs", {"README.md": "More.\n"})
    repo.git("config", "uploadpack.allowFilter", "true")
    clone = repo.clone_to(tmp_path / "partial", "--filter=blob:none", "--no-checkout", "--bare")
    assert same(asked(clone)) == ["docs"]  # what is in model.py cannot be told


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
        ("Fuse the router (#0)", None),
        ("Fuse the router (#٣)", None),
        ("Fuse the router(#12)", None),
        ("(#12)", None),
        ("Fuse the router (!123)", None),
        ("#12: fuse", None),
        ("Fixes #12", None),
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


SIGNATURE = b"gpgsig -----BEGIN PGP SIGNATURE-----\n \n iQ==\n -----END PGP SIGNATURE-----\n"


def raw_commit(repo: Repository, author: bytes, message: bytes, headers: bytes = b"") -> str:
    """A commit as a broken tool writes it, on top of main."""
    lines = [
        b"tree " + repo.git("rev-parse", "main^{tree}").encode(),
        b"parent " + repo.git("rev-parse", "main").encode(),
        b"author " + author,
        b"committer C <c@example.org> 1700000000 +0000",
    ]
    path = repo.path.parent / "commit"
    path.write_bytes(b"\n".join(lines) + b"\n" + headers + b"\n" + message)
    made = repo.git("hash-object", "-t", "commit", "-w", "--literally", str(path))
    repo.git("update-ref", "refs/heads/main", made)
    return made


def test_commits_of_broken_tools_are_points_like_others(repo: Repository) -> None:
    made = [
        raw_commit(repo, b"J\xff\xfe <j@example.org> 1700000000 +0000", b"caf\xe9 \xff\n"),
        raw_commit(repo, b"K <k@example.org> 99999999999999999999 +9999", b"no date\n"),
        raw_commit(repo, b"nobody", b"no author\n"),
        raw_commit(repo, b"L <l@example.org> 1700000000 +0100", b"caf\xe9\n", b"encoding ISO-8859-1\n"),
        raw_commit(repo, b"N <n@example.org> 1700000000 +0100", b"before\0after\n"),
    ]
    result = asked(repo)
    assert commits(result)[1:] == made
    assert subjects(result)[1:] == ["caf ", "no date", "no author", "café", "before"]
    assert result.points[1].author == "J"
    assert result.points[4].date == "2023-11-14T23:13:20+01:00"


# ---- who is affected


def by_asking(repo: Repository, points: Sequence[Point]) -> list[list[bool]]:
    def has(point: Point, culprit: Point) -> bool:
        return not subprocess.run(
            ["git", "merge-base", "--is-ancestor", culprit.commit, point.commit], cwd=repo.path, check=False
        ).returncode

    return [[has(point, culprit) for point in points] for culprit in points[1:]]


@pytest.mark.parametrize("paths", [(), ("src/z1.py", "src/x1.py", "src/y2.py")])
def test_in_the_full_history_those_are_affected_that_have_the_culprit(merged: Repository, paths: Sequence[str]) -> None:
    points = asked(merged, full=True, paths=paths).points
    before = merged.fingerprint()
    told = containment_matrix(merged.path, points, full=True)
    assert merged.fingerprint() == before
    assert told.dtype == np.bool_
    assert told.shape == (len(points) - 1, len(points))
    assert told.tolist() == by_asking(merged, points)


def test_an_octopus_has_what_all_its_parents_have(repo: Repository) -> None:
    for name in "pqr":
        repo.git("checkout", "--quiet", "-b", name, "start")
        change(repo, name)
    repo.git("checkout", "--quiet", "main")
    merge(repo, "p", "q", "r")
    points = asked(repo, full=True).points
    assert containment_matrix(repo.path, points, full=True).tolist() == by_asking(repo, points)


def test_on_a_line_every_later_point_is_affected(merged: Repository, tmp_path: Path) -> None:
    points = asked(merged).points
    told = containment_matrix(tmp_path / "no repository is needed", points)
    assert told.tolist() == by_asking(merged, points)
    assert told.tolist() == containment_matrix(merged.path, points, full=True).tolist()


# ---- descending into a merge


def point_of(found: CommitRange, subject: str) -> Point:
    return next(point for point in found.points if point.subject == subject)


def test_a_merge_is_descended_into_from_where_its_branch_left(merged: Repository) -> None:
    result = descended(merged, point_of(asked(merged), "M1"))
    assert result is not None
    assert subjects(result) == ["a", "x1", "x2"]
    assert result.warnings == []


def test_a_merge_within_a_merged_branch_is_descended_into_in_turn(merged: Repository) -> None:
    outer = descended(merged, point_of(asked(merged), "M2"), suspects=["z", "x"])
    assert outer is not None
    assert subjects(outer) == ["M1", "y1", "MZ", "y2"]
    assert weights(outer) == {"MZ": 20}
    inner = descended(merged, point_of(outer, "MZ"))
    assert inner is not None
    assert subjects(inner) == ["start", "z1"]


def test_the_paths_hold_within_a_merge_too(merged: Repository) -> None:
    result = descended(merged, point_of(asked(merged), "M1"), paths=["src/x1.py"])
    assert result is not None
    assert subjects(result) == ["a", "x1", "x2"]
    result = descended(merged, point_of(asked(merged), "M2"), paths=["src/y1.py"])
    assert result is not None
    assert subjects(result) == ["M1", "y1", "y2"]


def test_a_branch_that_had_merged_main_is_walked_with_a_warning(repo: Repository) -> None:
    repo.git("checkout", "--quiet", "-b", "side")
    change(repo, "s1")
    repo.git("checkout", "--quiet", "main")
    change(repo, "a")
    repo.git("checkout", "--quiet", "side")
    merge(repo, "main")
    change(repo, "s2")
    repo.git("checkout", "--quiet", "main")
    change(repo, "b")
    merge(repo, "side")
    result = descended(repo, asked(repo).points[-1])
    assert result is not None
    assert subjects(result) == ["a", "s1", "merge main", "s2"]
    assert "by a merge" in result.warnings[0]


def test_of_an_octopus_the_first_branch_is_descended_into_with_a_warning(repo: Repository) -> None:
    for name in "pqr":
        repo.git("checkout", "--quiet", "-b", name, "start")
        change(repo, name)
    repo.git("checkout", "--quiet", "main")
    change(repo, "a")
    merge(repo, "p", "q", "r")
    last = asked(repo).points[-1]
    result = descended(repo, last)
    assert result is not None
    assert subjects(result) == ["start", "p"]
    (warning,) = result.warnings
    assert warning == (
        f"{last.name} merges 3 branches at once: only the first of them, with tip {last.parents[1][:12]}, is searched; "
        "if the culprit is not on it, bisect the other branches by hand"
    )


def test_there_is_nothing_to_descend_into_without_a_branch(repo: Repository, tmp_path: Path) -> None:
    change(repo, "a")
    assert descended(repo, asked(repo).points[-1]) is None
    of_an_ancestor = made_by_hand(repo, "merges its past", "main", "start")
    assert descended(repo, asked(repo, bad=of_an_ancestor).points[-1]) is None
    orphan = made_by_hand(repo, "from nowhere")
    of_a_stranger = made_by_hand(repo, "merges a stranger", "main", orphan)
    result = asked(repo, bad=of_a_stranger)
    assert subjects(result) == ["start", "a", "merges a stranger"]
    assert descended(repo, result.points[-1]) is None


# ---- what cannot be walked


def test_the_same_commit_twice_leaves_nothing_between(merged: Repository) -> None:
    commit = merged.git("rev-parse", "main")
    assert refused(merged, "main", "HEAD") == (
        f"no commit lies between GOOD 'main' and BAD 'HEAD': both are commit {commit[:12]}; "
        "name an older commit as GOOD"
    )


def test_good_and_bad_swapped_are_told_from_each_other(merged: Repository) -> None:
    assert refused(merged, "main", "start") == (
        "good and bad seem to be swapped: BAD 'start' is an ancestor of GOOD 'main'; write them the other way round: "
        "'start' as GOOD and 'main' as BAD"
    )


def test_a_good_commit_beside_bad_is_told_the_merge_base(merged: Repository) -> None:
    base = merged.git("rev-parse", "start")
    merged.git("checkout", "--quiet", "-b", "side", "start")
    change(merged, "s")
    assert refused(merged, "side", "main") == (
        "GOOD 'side' is not an ancestor of BAD 'main', so no commits lie between them; they share their history up to "
        f"{base[:12]}: check that this commit is good, and name it as GOOD"
    )


def test_strangers_share_nothing(merged: Repository) -> None:
    orphan = made_by_hand(merged, "from nowhere")
    assert refused(merged, orphan, "main") == (
        f"GOOD '{orphan}' and BAD 'main' have unrelated histories; name an ancestor of BAD as GOOD"
    )


@pytest.mark.parametrize("name", ["nix", "", "--all", "start..main", "model.py", "start^{tree}", "a\0b", "\u202enix"])
def test_what_names_no_commit_is_an_error(merged: Repository, name: str) -> None:
    assert refused(merged, name, "main").startswith(f"GOOD {name!r} names no commit here; check its spelling")
    assert refused(merged, "start", name).startswith(f"BAD {name!r} names no commit here; check its spelling")


def test_a_folder_without_a_repository_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(CheckoutError, match="cannot be used as a git repository"):
        list_commits(tmp_path, "a", "b")
    with pytest.raises(CheckoutError, match="is not a folder"):
        list_commits(tmp_path / "missing", "a", "b")


DEEPER = "fetch the rest of the history: git fetch --unshallow, or fetch-depth: 0 of actions/checkout"


def test_a_shallow_clone_without_good_says_how_to_deepen_it(merged: Repository, tmp_path: Path) -> None:
    clone = merged.clone_to(tmp_path / "shallow", "--depth=2")
    good = merged.git("rev-parse", "start")
    assert refused(clone, good, "main") == f"GOOD {good!r} names no commit here; the repository is shallow, {DEEPER}"


def test_a_shallow_clone_without_a_way_to_good_says_how_to_deepen_it(merged: Repository, tmp_path: Path) -> None:
    clone = merged.clone_to(tmp_path / "shallow", "--depth=2", "--no-single-branch")
    assert refused(clone, "start", "main") == (
        "the history between BAD 'main' and GOOD 'start' is missing, because the repository is shallow; " + DEEPER
    )


def test_a_shallow_clone_with_a_gap_in_the_range_says_how_to_deepen_it(merged: Repository, tmp_path: Path) -> None:
    """b is cut off; good is reached through y alone."""
    clone = merged.clone_to(tmp_path / "whole")
    (clone.path / ".git" / "shallow").write_text(merged.git("rev-parse", "main~2") + "\n")
    good, cut = merged.git("rev-parse", "y~2"), merged.git("rev-parse", "main~2")
    assert refused(clone, good, "main") == (
        f"some commits between GOOD '{good}' and BAD 'main' are missing: the repository is shallow, cut at "
        f"{cut[:12]}; {DEEPER}"
    )


def test_a_shallow_clone_that_has_the_range_is_enough(merged: Repository, tmp_path: Path) -> None:
    clone = merged.clone_to(tmp_path / "shallow", "--depth=3")
    assert subjects(asked(clone, "main~2", "main")) == ["b", "M2", "c"]
    (merge_point,) = (point for point in asked(clone, "main~2", "main").points if point.subject == "M2")
    with pytest.raises(CheckoutError, match=r"repository is shallow; .*git fetch --unshallow"):
        list_merged_commits(clone.path, merge_point)


# ---- large ranges


def long_history(repo: Repository, count: int) -> None:
    """Commits on main, each with another line in one of ten Python files; every fifth changes only a comment."""
    lines = []
    for number in range(count):
        comment = number % 5 == 4
        name = f"src/f{number % 10}.py"
        text = f"x = {number - number % 10 if comment else number}  # {number}\n"
        if comment:
            name, text = "model.py", f"width = 0  # {number}\n"
        lines += [
            "commit refs/heads/main",
            f"committer T <t@example.org> {1_700_000_000 + number} +0000",
            f"data {len(str(number))}",
            str(number),
            *(["from refs/heads/main^0"] if number == 0 else []),
            f"M 644 inline {name}",
            f"data {len(text)}",
            text,
        ]
    script = "\n".join(lines) + "\n"
    subprocess.run(["git", "fast-import", "--quiet"], cwd=repo.path, input=script.encode(), check=True)
    repo.git("reset", "--quiet", "--hard")


def git_commands(repo: Repository, monkeypatch: pytest.MonkeyPatch, **options: Any) -> tuple[CommitRange, int]:
    started = []

    class Counted(subprocess.Popen[bytes]):
        def __init__(self, command: Sequence[str], **settings: Any) -> None:
            started.append(command)
            super().__init__(command, **settings)

    with monkeypatch.context() as patched:
        patched.setattr(regbot.checkout.git.subprocess, "Popen", Counted)
        result = list_commits(repo.path, "start", "main", **options)
    return result, len(started)


@pytest.mark.parametrize("options", [{}, {"full": True}, {"paths": ["src"], "suspects": ["main~3", "main~200"]}])
def test_a_long_range_takes_a_few_git_commands(
    repo: Repository, monkeypatch: pytest.MonkeyPatch, options: Mapping[str, Any]
) -> None:
    long_history(repo, 300)
    result, started = git_commands(repo, monkeypatch, **options)
    assert started <= 40
    if "paths" in options:
        assert len(result.points) == 240 + 3  # good, a suspect, and bad, which stand
    else:
        assert [point.subject for point in result.points if point.same_as_before] == [str(n) for n in range(4, 300, 5)]
    assert (
        containment_matrix(repo.path, result.points, full=True).sum()
        == np.triu(np.ones((len(result.points) - 1,) * 2)).sum()
    )
