"""The repository that bisections are tried on holds what it is said to hold."""

import ast
import io
import json
import os
import re
import subprocess
import sys
import tarfile
from collections import Counter
from collections.abc import Iterator
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from support.bisect_catalogue import HEADINGS, harmless_edits
from support.bisect_edits import render
from support.bisect_repository import BisectRepository, build, demo_sources

MOE = "src/moetrain/moe.py"
TRACES = {"sharding": ("src/moetrain/dispatch.py", "exchange_for"), "slow": ("src/moetrain/experts.py", "HEADROOM")}
"""By planted change: a file, and a word in it that comes with the change."""

_IMPORT_ALL = """
import importlib, json, sys, torch
sys.dont_write_bytecode = True
found = {}
for folder in sys.argv[1:]:
    sys.path.insert(0, folder + "/src")
    try:
        importlib.import_module("moetrain.moe").build_layer
        found[folder] = ""
    except Exception as error:
        found[folder] = type(error).__name__
    del sys.path[0]
    for name in [name for name in sys.modules if name.partition(".")[0] == "moetrain"]:
        del sys.modules[name]
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> BisectRepository:
    return build(tmp_path_factory.mktemp("bisect") / "straight")


@pytest.fixture(scope="module")
def merged(tmp_path_factory: pytest.TempPathFactory) -> BisectRepository:
    return build(tmp_path_factory.mktemp("bisect") / "merged", seed=4, merges=True)


@pytest.fixture(scope="module")
def trees(straight: BisectRepository, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A folder with the files of every commit."""
    folder = tmp_path_factory.mktemp("trees")
    return {commit: _unpacked(straight, commit, folder / commit) for commit in straight.commits}


def test_the_range_is_a_line_of_200_commits_that_is_checked_out(straight: BisectRepository) -> None:
    assert len(straight.commits) == 201
    assert (straight.commits[0], straight.commits[-1]) == (straight.good, straight.bad)
    assert _git(straight, "rev-list", "--reverse", f"{straight.good}..{straight.bad}").split() == straight.commits[1:]
    assert _git(straight, "rev-list", "--min-parents=2", "--count", "HEAD") == "0"
    assert _git(straight, "rev-parse", "main", "HEAD").split() == [straight.bad] * 2
    assert _git(straight, "status", "--porcelain", "--ignored") == ""
    assert _git(straight, "for-each-ref", "--format=%(refname)") == "refs/heads/main"


def test_every_commit_changes_something(straight: BisectRepository) -> None:
    assert all(_git(straight, "log", "--format=", "--name-only", f"{commit}~..{commit}") for commit in straight.commits)


def test_planted_changes_stand_where_they_were_asked_for(straight: BisectRepository) -> None:
    assert straight.commits.index(straight.sharding or "") == 137
    assert straight.commits.index(straight.slow or "") == 58


@pytest.mark.parametrize(("change", "patch"), [("sharding", "fallback"), ("slow", "slow")])
def test_a_planted_commit_is_the_patch_of_the_demo_and_nothing_else(
    straight: BisectRepository, change: str, patch: str
) -> None:
    planted = getattr(straight, change)
    there = _git(straight, "diff", "--no-renames", f"{planted}~", planted)
    text = (Path(str(files("regbot.demo"))) / "patches" / f"{patch}.patch").read_text()
    assert _changed_lines(there) == _changed_lines(text)


def test_a_planted_change_stays_to_the_end(straight: BisectRepository) -> None:
    for change, (path, word) in TRACES.items():
        place = straight.commits.index(getattr(straight, change))
        assert _that_have(straight, word, path) == straight.commits[place:]


def test_only_what_was_asked_for_is_planted(tmp_path: Path) -> None:
    repository = build(tmp_path / "one", sharding_at=None, slow_at=3, broken=0, commits=12)
    assert (repository.sharding, repository.merge, repository.broken) == (None, None, ())
    assert len(repository.commits) == 13
    assert _that_have(repository, TRACES["sharding"][1], TRACES["sharding"][0]) == []
    assert _that_have(repository, TRACES["slow"][1], TRACES["slow"][0]) == repository.commits[3:]


@pytest.mark.slow
def test_the_broken_commits_cannot_be_imported_and_all_others_can(
    straight: BisectRepository, trees: dict[str, Path]
) -> None:
    command = (sys.executable, "-c", _IMPORT_ALL, *map(str, trees.values()))
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    errors = json.loads(done.stdout)
    failed = {commit: errors[str(folder)] for commit, folder in trees.items() if errors[str(folder)]}
    assert tuple(failed) == straight.broken
    assert set(failed.values()) <= {"SyntaxError", "ModuleNotFoundError", "NameError"}


@pytest.mark.slow
def test_a_broken_commit_fails_before_torch_is_loaded(straight: BisectRepository, trees: dict[str, Path]) -> None:
    for commit in straight.broken:
        done = subprocess.run(
            (sys.executable, "-X", "importtime", "-B", "-c", "import moetrain.moe"),
            env={**os.environ, "PYTHONPATH": str(trees[commit] / "src")},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 1
        assert not re.search(r"\| +torch$", done.stderr, re.MULTILINE)


@pytest.mark.parametrize("seed", range(4))
def test_ten_commits_are_broken_some_next_to_each_other_and_none_where_it_matters(seed: int, tmp_path: Path) -> None:
    repository = build(tmp_path / "again", seed=seed)
    places = [repository.commits.index(commit) for commit in repository.broken]
    assert len(places) == 10
    assert any(place + 1 in places for place in places)
    assert not {0, 57, 58, 136, 137, 200} & set(places)  # nor the parents of planted commits


def test_a_third_are_documents_and_half_of_the_rest_is_code(straight: BisectRepository) -> None:
    counted = Counter(straight.kinds[commit] for commit in straight.commits[1:])
    assert set(counted) == {"docs", "tests", "code", "config", "broken", "fix", "sharding", "slow"}
    assert 50 <= counted["docs"] <= 85
    assert counted["code"] >= 50
    assert min(counted["tests"], counted["config"]) >= 8


def test_only_commits_of_code_change_what_python_runs(straight: BisectRepository, trees: dict[str, Path]) -> None:
    for before, after in zip(straight.commits, straight.commits[1:], strict=False):
        same = _programs(trees[before]) == _programs(trees[after])
        if not {before, after} & set(straight.broken):
            assert same == (straight.kinds[after] in ("docs", "tests", "config")), _git(straight, "show", after)


def test_most_subjects_end_with_a_number_of_their_own(straight: BisectRepository) -> None:
    subjects = _git(straight, "log", "--format=%s", f"{straight.good}..{straight.bad}").splitlines()
    numbers = [found.group(1) for found in (re.search(r" \(#(\d+)\)$", subject) for subject in subjects) if found]
    assert 160 <= len(numbers) < 200
    assert len(set(numbers)) == len(numbers)


def test_authors_are_made_up(straight: BisectRepository) -> None:
    emails = set(_git(straight, "log", "--format=%ae%n%ce").split())
    assert len(emails) > 3
    assert all(email.endswith(".example") for email in emails)


def test_the_same_arguments_give_the_same_commits_whatever_git_is_told(
    straight: BisectRepository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ".gitconfig").write_text(
        "[commit]\n gpgSign = true\n[init]\n defaultBranch = trunk\n[core]\n autocrlf = true\n[user]\n name = Me\n"
    )
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("TZ", "Pacific/Auckland")
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "elsewhere"))
    assert build(tmp_path / "again").commits == straight.commits


def test_another_seed_gives_another_history(straight: BisectRepository, merged: BisectRepository) -> None:
    assert not set(straight.commits) & set(merged.commits)


def test_ten_commits_of_the_line_are_merges_of_short_branches(merged: BisectRepository) -> None:
    line = _git(merged, "rev-list", "--first-parent", "--reverse", f"{merged.good}..{merged.bad}").split()
    assert line == merged.commits[1:]
    merges = _git(merged, "rev-list", "--min-parents=2", f"{merged.good}..{merged.bad}").split()
    assert len(merges) == 10
    assert set(merges) == {commit for commit in line if merged.kinds[commit] == "merge"}
    assert all(2 <= len(_branch(merged, merge)) <= 4 for merge in merges)
    assert any(_git(merged, "merge-base", f"{merge}^1", f"{merge}^2") != _parent(merged, merge) for merge in merges)


def test_the_sharding_change_lies_inside_the_branch_that_its_merge_brings_in(merged: BisectRepository) -> None:
    assert merged.merge == merged.commits[137]
    assert merged.sharding in _branch(merged, merged.merge)[1:-1]
    assert _that_have(merged, TRACES["sharding"][1], TRACES["sharding"][0]) == merged.commits[137:]


def test_a_merge_holds_what_both_of_its_parents_changed(merged: BisectRepository) -> None:
    for merge in [commit for commit in merged.commits if merged.kinds[commit] == "merge"]:
        base = _git(merged, "merge-base", f"{merge}^1", f"{merge}^2")
        theirs = _git(merged, "diff", "--name-only", base, f"{merge}^2").splitlines()
        ours = _git(merged, "diff", "--name-only", base, f"{merge}^1").splitlines()
        brought = set(_git(merged, "diff", "--name-only", f"{merge}^1", merge).splitlines())
        kept = set(_git(merged, "diff", "--name-only", f"{merge}^2", merge).splitlines())
        assert (brought, kept) == (set(theirs), set(ours))


@pytest.mark.parametrize(
    "places", [{"sharding_at": 0}, {"slow_at": 201}, {"sharding_at": 9, "slow_at": 9}, {"broken": 150}]
)
def test_what_does_not_fit_is_refused(places: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"give another place|ask for fewer"):
        build(tmp_path / "none", **places)
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize("number", [1, 2])
def test_all_edits_together_are_python(number: int) -> None:
    gone = [(edit, number if edit.endless else min(number, len(edit.versions))) for edit in harmless_edits()]
    for path, text in render(demo_sources(), gone, HEADINGS).items():
        if path.endswith(".py"):
            compile(text, path, "exec")


def _changed_lines(diff: str) -> Counter[str]:
    return Counter(line for line in diff.splitlines() if re.match(r"[+-](?![+-])", line))


def _that_have(repository: BisectRepository, word: str, path: str) -> list[str]:
    """The commits of the line in whose ``path`` the word stands."""
    done = subprocess.run(
        ("git", "grep", "--name-only", word, *repository.commits, "--", path),
        cwd=repository.path,
        capture_output=True,
        text=True,
    )
    assert done.returncode in (0, 1), done.stderr
    return [line.partition(":")[0] for line in done.stdout.splitlines()]


def _branch(repository: BisectRepository, merge: str) -> list[str]:
    return _git(repository, "rev-list", "--reverse", f"{merge}^1..{merge}^2").split()


def _parent(repository: BisectRepository, commit: str) -> str:
    return _git(repository, "rev-parse", f"{commit}^1")


def _unpacked(repository: BisectRepository, commit: str, folder: Path) -> Path:
    packed = subprocess.run(("git", "archive", commit), cwd=repository.path, capture_output=True, check=True).stdout
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        archive.extractall(folder, filter="data")
    return folder


def _programs(tree: Path) -> dict[str, str]:
    """The modules of the package as Python sees them, without docstrings; as text where they are no Python."""
    return {str(path.relative_to(tree)): _program(path.read_text()) for path in (tree / "src").rglob("*.py")}


@cache
def _program(text: str) -> str:
    try:
        module = ast.parse(text)
    except SyntaxError:
        return text
    for node in ast.walk(module):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
            node.body = list(_without_docstrings(node.body))
    return ast.dump(module)


def _without_docstrings(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    for statement in body:
        if not (isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)):
            yield statement


def _git(repository: BisectRepository, *arguments: str) -> str:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    done = subprocess.run(("git", *arguments), cwd=repository.path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()
