"""Sparse worktrees: which files they have, which submodules are fetched, and when one is reused."""

import os
import sys
from pathlib import Path

import pytest

from regbot.workloads.checkout import Build, Worktree, check_out
from regbot.workloads.checkout.sparse import make_cone
from support.git_repos import Repository

FILES = {
    "README.md": "a monorepo\n",
    "pyproject.toml": "",
    "libs/__init__.py": "",
    "libs/moe/__init__.py": "",
    "libs/moe/deep/layer.py": "width = 1\n",
    "libs/fast/kernel.py": "speed = 1\n",
    "train/main.py": "import libs\n",
    "web/ü page.html": "<p>\n",
}


@pytest.fixture(autouse=True)
def _no_configuration_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")


@pytest.fixture
def repo(tmp_path: Path) -> Repository:
    repository = Repository.create(tmp_path / "user")
    repository.commit("a monorepo", FILES)
    return repository


def make(repository: Repository, *sparse: str, build: str = "") -> Worktree:
    commands = Build([build] if build else [], sys.executable, 20)
    cache = repository.path.with_name("cache")
    return check_out(repository.path, repository.git("rev-parse", "HEAD"), cache, commands, sparse=sparse)


def files_of(tree: Worktree) -> set[str]:
    return {str(path.relative_to(tree.path)) for path in tree.path.rglob("*") if path.is_file()} - {".git"}


def test_a_sparse_worktree_has_its_folders_and_the_files_of_their_parents(repo: Repository) -> None:
    tree = make(repo, "libs/moe")
    expected = {"README.md", "pyproject.toml", "libs/__init__.py", "libs/moe/__init__.py", "libs/moe/deep/layer.py"}
    assert files_of(tree) == expected
    assert set(tree.absent) == FILES.keys() - expected
    assert (tree.sparse, tree.changed) == (("libs/moe",), ())


def test_the_rule_is_that_of_gits_cone_mode(repo: Repository) -> None:
    clone = repo.clone_to(repo.path.with_name("by-git"))
    for folders in (["libs/moe"], ["train", "libs/moe/deep"], ["web"], ["libs"], ["none"]):
        clone.git("sparse-checkout", "set", "--cone", *folders)
        by_git = {str(path.relative_to(clone.path)) for path in clone.path.rglob("*") if path.is_file()}
        by_git = {path for path in by_git if not path.startswith(".git/")}
        assert {path for path in FILES if make_cone(folders).has(path)} == by_git, folders
        assert files_of(make(repo, *folders)) == by_git, folders


def test_git_finds_no_change_in_a_sparse_worktree(repo: Repository) -> None:
    """Build commands may ask git for a version, which must not end in '-dirty'."""
    tree = make(repo, "train", build="git status --porcelain > status.txt; git describe --always --dirty > version.txt")
    assert (tree.path / "status.txt").read_text() == "?? status.txt\n"
    assert (tree.path / "version.txt").read_text().strip() == repo.git("rev-parse", "--short", "HEAD")


def test_a_worktree_is_reused_only_for_the_same_folders(repo: Repository) -> None:
    first = make(repo, "train", "libs/moe")
    assert not make(repo, "libs/moe", "train").built, "the order does not matter"
    others = [make(repo), make(repo, "train"), make(repo, "libs")]
    assert all(tree.built for tree in others)
    assert len({first.path, *(tree.path for tree in others)}) == 4
    assert files_of(others[0]) == FILES.keys()


@pytest.mark.parametrize("name", ["train/main.py", "libs/fast/kernel.py", "train/new.py", "elsewhere.py"])
def test_a_file_that_was_edited_or_added_is_not_reused(repo: Repository, name: str) -> None:
    """Code under test could leave a file that a sparse worktree lacks. A later check must not import it."""
    tree = make(repo, "train")
    (tree.path / name).parent.mkdir(parents=True, exist_ok=True)
    (tree.path / name).write_text("planted = 1\n")
    again = make(repo, "train")
    assert again.built
    assert files_of(again) == {"README.md", "pyproject.toml", "train/main.py"}


def test_a_file_that_was_added_to_a_folder_of_the_build_is_not_reused(repo: Repository) -> None:
    """The folder is not new, so only the file itself shows that the worktree has changed."""
    tree = make(repo, "train", build="mkdir -p libs/fast")
    (tree.path / "libs/fast/kernel.py").write_text(FILES["libs/fast/kernel.py"])
    assert make(repo, "train", build="mkdir -p libs/fast").built


def test_a_file_that_the_build_changes_is_named_and_an_absent_file_is_not(repo: Repository) -> None:
    assert make(repo, "train", build="echo x >> train/main.py").changed == ("train/main.py",)
    assert make(repo, "libs/moe", build="rm pyproject.toml").changed == ("pyproject.toml",)


def test_a_submodule_outside_of_the_folders_is_not_fetched(repo: Repository, tmp_path: Path) -> None:
    other = Repository.create(tmp_path / "other")
    other.commit("kernels", {"a/kernel.py": "k = 1\n", "b/more.py": ""})
    repo.add_submodule(other, "third_party/kernels")
    repo.add_submodule(other, "web/gone", url="https://unreachable.invalid/gone")
    repo.commit("submodules")
    (repo.path / ".git" / "modules" / "web" / "gone" / "HEAD").unlink()
    tree = make(repo, "train", "third_party/kernels/a")
    assert tree.submodules.keys() == {"third_party/kernels"}
    assert {"third_party/kernels/a/kernel.py", "third_party/kernels/b/more.py"} < files_of(tree), "submodules are whole"
    assert "web/gone" in tree.absent
    assert not make(repo, "train", "third_party/kernels/a").built


def test_the_users_repository_is_only_read(repo: Repository) -> None:
    before = repo.fingerprint()
    make(repo, "train")
    assert repo.fingerprint() == before
