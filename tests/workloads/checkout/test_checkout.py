"""Resolving revisions to arms and checking out worktrees, on real repositories."""

import json
import os
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from regbot.workloads.checkout.arms import resolve_arms
from regbot.workloads.checkout.building import Build, BuildError
from regbot.workloads.checkout.cache import lock
from regbot.workloads.checkout.clones import absolute_url
from regbot.workloads.checkout.git import CheckoutError
from regbot.workloads.checkout.worktrees import Worktree, check_out, prune
from support.git_repos import Repository


@pytest.fixture(autouse=True)
def _no_configuration_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")


@pytest.fixture
def repo(tmp_path: Path) -> Repository:
    """main: first, second; a branch 'pr' from first with one commit; 'pr' is checked out."""
    repository = Repository.create(tmp_path / "user")
    repository.commit("first", {"model.py": "width = 1\n"})
    repository.git("branch", "pr")
    repository.commit("second", {"other.py": "depth = 1\n"})
    repository.git("checkout", "--quiet", "pr")
    repository.commit("change the width", {"model.py": "width = 2\n"})
    return repository


def arms(repository: Repository, base: str | None = None, head: str = "HEAD") -> tuple[str, str, list[str]]:
    base_arm, head_arm, warnings = resolve_arms(repository.path, base, head, {}, {})
    return base_arm.commit, head_arm.commit, warnings


def make(repository: Repository, cache: Path, revision: str = "HEAD", *build: str, timeout_s: float = 20) -> Worktree:
    commit = repository.git("rev-parse", revision)
    return check_out(repository.path, commit, cache, Build(build, "python3", timeout_s))


# ---- arms


def test_the_base_arm_is_the_merge_base_and_a_warning_says_how_far_behind_it_is(repo: Repository) -> None:
    first = repo.git("rev-parse", "main~1")
    assert arms(repo, "main") == (
        first,
        repo.git("rev-parse", "pr"),
        [f"compared with the merge base {first[:10]}, 1 commit behind main"],
    )


def test_two_equal_commits_are_refused(repo: Repository) -> None:
    with pytest.raises(CheckoutError, match="nothing to compare: 'pr' and 'HEAD' are both commit"):
        arms(repo, "pr", "HEAD")


@pytest.mark.parametrize(("name", "has_origin"), [("trunk", True), ("main", False), ("master", False)])
def test_the_default_base_is_origin_head_or_else_main_or_master(
    repo: Repository, tmp_path: Path, name: str, has_origin: bool
) -> None:
    repo.git("branch", "--move", "main", name)
    clone = repo
    if has_origin:
        repo.git("checkout", "--quiet", name)
        clone = repo.clone_to(tmp_path / "clone")
        clone.git("checkout", "--quiet", "-b", "work", "origin/pr")
    base, _, _ = resolve_arms(clone.path, None, "HEAD", {}, {})
    assert base.revision == (f"origin/{name}" if has_origin else name)
    assert base.commit == repo.git("rev-parse", f"{name}~1")


@pytest.mark.parametrize("revision", ["nope", "", "--all", "-h", "main..pr", "a\0b", "HEAD:model.py"])
def test_an_unknown_revision_is_reported_with_its_option(repo: Repository, revision: str) -> None:
    with pytest.raises(CheckoutError, match=r"--head .* names no commit here; check its spelling"):
        arms(repo, "main", revision)


def test_git_variables_of_an_outer_process_are_ignored(
    repo: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = Repository.create(tmp_path / "other")
    monkeypatch.setenv("GIT_DIR", str(other.path / ".git"))
    assert arms(repo, "HEAD~1")[1] == repo.git("rev-parse", "HEAD")


# ---- worktrees


def test_a_worktree_holds_the_code_of_its_commit(repo: Repository, tmp_path: Path) -> None:
    tree = make(repo, tmp_path / "cache", "pr")
    assert (tree.path / "model.py").read_text() == "width = 2\n"
    assert (tree.built, tree.changed) == (True, ())
    assert Repository(tree.path).git("rev-parse", "HEAD") == repo.git("rev-parse", "pr")


def test_the_users_repository_is_byte_for_byte_the_same_afterwards(repo: Repository, tmp_path: Path) -> None:
    library = Repository.create(tmp_path / "library")
    library.commit("library", {"a.py": "1\n"})
    repo.add_submodule(library, "third_party/library")
    repo.commit("with a submodule")
    (repo.path / "model.py").write_text("uncommitted\n")
    for path in (repo.path / "other.py", repo.path / "model.py"):
        path.touch()  # the index is out of date: a plain 'git status' would write it anew
    before = repo.fingerprint()
    resolve_arms(repo.path, "main", "HEAD", {}, {})
    make(repo, tmp_path / "cache", "HEAD", "git tag built; git config user.name x")
    make(repo, tmp_path / "cache", "main")
    assert repo.fingerprint() == before


def test_a_complete_worktree_is_used_again_without_building(repo: Repository, tmp_path: Path) -> None:
    build = f"echo built >> {tmp_path}/builds; echo '*.so' > .gitignore; echo product > untracked.so; mkdir -m 0 shut"
    build += f"; ln {tmp_path}/package package.so"
    (tmp_path / "package").touch()
    first = make(repo, tmp_path / "cache", "pr", build)
    (tmp_path / "link").hardlink_to(tmp_path / "package")  # as a package cache does for another environment
    again = make(repo, tmp_path / "cache", "pr", build)
    assert (first.built, again.built, again.path) == (True, False, first.path)
    assert (again.path / "untracked.so").exists()
    assert (tmp_path / "builds").read_text() == "built\n"


def test_commit_build_commands_and_interpreter_are_part_of_the_cache_key(repo: Repository, tmp_path: Path) -> None:
    cache, commit = tmp_path / "cache", repo.git("rev-parse", "pr")
    keys = [
        make(repo, cache, "pr").key,
        make(repo, cache, "main").key,
        make(repo, cache, "pr", "true").key,
        check_out(repo.path, commit, cache, Build([], "another-python", 20)).key,
    ]
    assert len(set(keys)) == 4


PRODUCT = "mkdir lib; echo 1 > lib/product.py; ln -s product.py lib/link.py; echo lib > .gitignore"


@pytest.mark.parametrize(
    "command",
    [
        "mkdir model; echo 'width = 9' > model/__init__.py",
        "echo x > lib/ignored.pth",
        "cp -p lib/product.py kept; echo 9 > lib/product.py; touch -r kept lib/product.py; rm kept",
        "ln -sfn /dev/null lib/link.py",
        "git update-index --assume-unchanged model.py; echo 'width = 9' > model.py",
    ],
)
def test_a_new_or_changed_file_has_the_worktree_created_again(repo: Repository, tmp_path: Path, command: str) -> None:
    first = make(repo, tmp_path / "cache", "HEAD", PRODUCT)
    assert not make(repo, tmp_path / "cache", "HEAD", PRODUCT).built
    subprocess.run(["bash", "-ec", command], cwd=first.path, check=True)
    again = make(repo, tmp_path / "cache", "HEAD", PRODUCT)
    assert again.built
    texts = {name: (again.path / name).read_text() for name in ("model.py", "lib/product.py", "lib/link.py")}
    assert texts == {"model.py": "width = 2\n", "lib/product.py": "1\n", "lib/link.py": "1\n"}
    assert not (again.path / "model").exists()
    assert not (again.path / "lib" / "ignored.pth").exists()


def test_an_incomplete_worktree_of_a_crash_is_created_again(repo: Repository, tmp_path: Path) -> None:
    first = make(repo, tmp_path / "cache")
    (tmp_path / "cache" / "worktrees" / f"{first.key}.json").unlink()
    (first.path / "half-built").write_text("")
    again = make(repo, tmp_path / "cache")
    assert again.built
    assert not (again.path / "half-built").exists()


def test_two_concurrent_callers_share_one_worktree_that_is_built_once(repo: Repository, tmp_path: Path) -> None:
    build = f"echo built >> {tmp_path}/builds; sleep 0.2"
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(lambda _: make(repo, tmp_path / "cache", "pr", build), range(2))
    assert first.path == second.path
    assert sorted([first.built, second.built]) == [False, True]
    assert (tmp_path / "builds").read_text() == "built\n"


# ---- builds


def test_build_commands_run_in_the_worktree_with_private_caches_and_no_secrets(
    repo: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GITHUB_TOKEN", "hush")
    script = "import json, os; json.dump(dict(os.environ), open('environment.json', 'w'))"
    tree = make(repo, tmp_path / "cache", "HEAD", f'python3 -c "{script}"')
    environment = json.loads((tree.path / "environment.json").read_text())
    assert "GITHUB_TOKEN" not in environment
    assert environment["REGBOT_PYTHON"] == "python3"
    assert {name: environment[name] for name in tree.environment} == tree.environment
    for name in ("TRITON_CACHE_DIR", "EP_JIT_CACHE_DIR", "HYBRID_EP_CACHE_DIR"):
        assert environment[name].startswith(f"{tmp_path}/cache/private/{tree.key}/")


def test_a_hanging_build_is_killed_with_its_children(repo: Repository, tmp_path: Path) -> None:
    begun = time.monotonic()
    command = f"(sleep 2; touch {tmp_path}/survived) & sleep 1000"
    with pytest.raises(BuildError, match=r"did not end within 0\.5 s and was ended: "):
        make(repo, tmp_path / "cache", "HEAD", command, timeout_s=0.5)
    assert time.monotonic() - begun < 10
    time.sleep(2)
    assert not (tmp_path / "survived").exists()


# ---- submodules


@pytest.fixture
def family(repo: Repository, tmp_path: Path) -> tuple[Repository, Repository, Repository]:
    """The repository with a submodule 'library', which has a submodule 'core'."""
    core = Repository.create(tmp_path / "core")
    core.commit("core", {"core.py": "1\n"})
    library = Repository.create(tmp_path / "library")
    library.add_submodule(core, "deep/core", "../core")
    library.commit("library", {"library.py": "1\n"})
    repo.add_submodule(library, "library", "../library")
    repo.commit("with submodules")
    return repo, library, core


def test_submodules_including_nested_ones_come_from_the_users_clones(
    family: tuple[Repository, Repository, Repository], tmp_path: Path
) -> None:
    repo, library, core = family
    repo.git("config", "submodule.library.url", str(library.path))
    Repository(repo.path / "library").git("config", "submodule.deep/core.url", str(core.path))
    Repository(repo.path / "library").git("submodule", "--quiet", "init")
    Repository(repo.path / "library").git("config", "submodule.deep/core.url", str(core.path))
    Repository(repo.path / "library").git("submodule", "--quiet", "update")
    for submodule in (library, core):
        submodule.path.rename(submodule.path.with_suffix(".gone"))
    tree = make(repo, tmp_path / "cache")
    assert (tree.path / "library/library.py").exists()
    assert (tree.path / "library/deep/core/core.py").exists()
    assert not make(repo, tmp_path / "cache").built


@pytest.mark.parametrize(
    ("parent", "url", "expected"),
    [
        ("https://host/org/repo.git", "../other.git", "https://host/org/other.git"),
        ("git@host:org/repo.git", "../../else/other", "git@host:else/other"),
    ],
)
def test_relative_urls_are_resolved_as_in_git(parent: str, url: str, expected: str) -> None:
    assert absolute_url(parent, url) == expected


# ---- prune


def test_prune_keeps_the_most_recently_used_worktrees(repo: Repository, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    old, new = make(repo, cache, "pr"), make(repo, cache, "main")
    marker = cache / "worktrees" / f"{old.key}.json"
    os.utime(marker, (1, 1))
    os.utime(cache / "worktrees" / f"{new.key}.json", (2, 2))
    make(repo, cache, "pr")  # used again: now the newest
    new.paper.mkdir(parents=True)
    prune(cache, keep=1, idle_s=0)
    assert (old.path.exists(), new.path.exists(), new.paper.exists()) == (True, False, False)
    assert make(repo, cache, "main").built


def test_prune_removes_incomplete_worktrees_and_keeps_recently_used_ones(repo: Repository, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    used = make(repo, cache)
    half = cache / "worktrees" / "half"
    half.mkdir()
    prune(cache, keep=0)
    assert [path.name for path in (cache / "worktrees").glob("*/")] == [used.key]
    prune(tmp_path / "no-cache-yet", keep=0)


def test_prune_removes_idle_clones_that_no_worktree_needs(repo: Repository, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    make(repo, cache)
    clones = [
        *(cache / "repos").glob("*.git"),
        *(cache / "repos" / name for name in ("idle.git", "busy.git", "new.git")),
    ]
    for clone in clones:
        clone.mkdir(exist_ok=True)
        os.utime(clone, (1, 1))
    os.utime(clones[-1])
    with lock(cache / "repos" / "busy.lock", 1):
        prune(cache, keep=1)
    assert [clone.exists() for clone in clones] == [True, False, True, True]


def test_a_planted_filter_in_the_private_clone_changes_no_checkout_and_hides_no_edit(
    repo: Repository, tmp_path: Path
) -> None:
    first, ran = make(repo, tmp_path / "cache"), tmp_path / "ran"
    (clone,) = (tmp_path / "cache" / "repos").glob("*.git")
    with (clone / "config").open("a") as config:
        config.write(f'[filter "x"]\n\tclean = "touch {ran}; echo width = 2"\n\tsmudge = "touch {ran}; sed s/1/7/"\n')
    (clone / "info").mkdir(exist_ok=True)
    (clone / "info" / "attributes").write_text("*.py filter=x\n")
    (first.path / "model.py").write_text("width = 9\n")
    again = make(repo, tmp_path / "cache")
    assert again.built
    assert (again.path / "model.py").read_text() == "width = 2\n"
    assert (make(repo, tmp_path / "cache", "main").path / "model.py").read_text() == "width = 1\n"
    assert not ran.exists()


def test_a_link_in_place_of_a_cache_folder_is_replaced_and_not_followed(tmp_path: Path) -> None:
    """A sandbox makes the cache folders writable, so a link there could make any folder writable."""
    outside = tmp_path / "outside"
    outside.mkdir()
    repo = Repository.create(tmp_path / "linked")
    commit = repo.commit("Build", {"a.py": "a = 1\n"})
    build = [f'rm -rf "$XDG_CACHE_HOME"; ln -s {outside} "$XDG_CACHE_HOME"']
    first = check_out(repo.path, commit, tmp_path / "cache", Build(build, "python3", 20))
    folder = Path(first.environment["XDG_CACHE_HOME"])
    assert folder.is_dir()
    assert not folder.is_symlink()
    folder.rmdir()
    folder.symlink_to(outside)  # as a run may do, before the next one
    second = check_out(repo.path, commit, tmp_path / "cache", Build(build, "python3", 20))
    assert not second.built
    assert not Path(second.environment["XDG_CACHE_HOME"]).is_symlink()
    assert outside.is_dir()


def test_a_planted_git_file_in_a_worktree_runs_nothing(repo: Repository, tmp_path: Path) -> None:
    first = make(repo, tmp_path / "cache")
    trap = repo.clone_to(tmp_path / "trap")
    trap.git("config", "filter.evil.clean", f"touch {tmp_path}/sprung; cat")
    (trap.path / ".git/info/attributes").write_text("* filter=evil\n")
    (first.path / ".git").write_text(f"gitdir: {trap.path}/.git\n")
    again = make(repo, tmp_path / "cache")
    assert Repository(again.path).git("rev-parse", "--path-format=absolute", "--git-common-dir") != f"{trap.path}/.git"
    assert not (tmp_path / "sprung").exists()
