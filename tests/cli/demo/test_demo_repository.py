"""The demo's repository is the same on every machine, and each pull request has its stated effect."""

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any, get_args

import pytest
import torch.multiprocessing as mp

from regbot.cli.demo import PullRequest, build_repository
from regbot.cli.demo.repository import DemoRepository
from regbot.records.config import load_config
from regbot_guest import process
from support.guest_runs import MIXTRAL, answer, ask, counts, rows

PULL_REQUESTS: tuple[PullRequest, ...] = get_args(PullRequest)


@pytest.fixture(scope="module")
def repositories(tmp_path_factory: pytest.TempPathFactory) -> dict[str, DemoRepository]:
    folder = tmp_path_factory.mktemp("demo")
    return {name: build_repository(folder / name, name) for name in PULL_REQUESTS}


@pytest.fixture(scope="module")
def arms(repositories: dict[str, DemoRepository], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Folders with the code of the base and of each pull request."""
    base = tmp_path_factory.mktemp("arms") / "base"
    fallback = repositories["fallback"]
    _git(fallback.path, "worktree", "add", "--quiet", str(base), fallback.base)
    return {"base": base, **{name: repository.path for name, repository in repositories.items()}}


@pytest.fixture(scope="module")
def traces(arms: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The static record of every arm, traced on Mixtral's ``cpu`` variant as in the demo's regbot.toml."""
    folder = tmp_path_factory.mktemp("traces")
    workload = load_config(arms["base"] / "regbot.toml").workloads["moe"]

    about = {name: getattr(workload, name) for name in ("entry", "source_roots", "dispatcher")}
    requests = [ask(folder, arm, MIXTRAL, root=str(root), **about) for arm, root in arms.items()]
    mp.spawn(_trace, args=(requests,), nprocs=1)
    return {arm: answer(folder, arm) for arm in arms}


@pytest.mark.parametrize("name", PULL_REQUESTS)
def test_commit_ids_do_not_depend_on_the_users_configuration(
    name: PullRequest, repositories: dict[str, DemoRepository], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _be_hostile(tmp_path, monkeypatch)
    again = build_repository(tmp_path / "again", name)
    first = repositories[name]
    assert (again.base, again.head, again.branch) == (first.base, first.head, first.branch)


@pytest.mark.parametrize("name", PULL_REQUESTS)
def test_the_branch_of_the_pull_request_is_checked_out_one_commit_ahead_of_main(
    name: PullRequest, repositories: dict[str, DemoRepository]
) -> None:
    repository = repositories[name]
    assert _git(repository.path, "branch", "--show-current") == repository.branch
    assert _git(repository.path, "rev-parse", repository.base_branch, "HEAD", "HEAD~") == "\n".join(
        (repository.base, repository.head, repository.base)
    )
    assert _git(repository.path, "log", "-1", "--format=%s") == repository.title
    assert _git(repository.path, "status", "--porcelain") == ""


def test_every_source_is_committed_and_nothing_else(repositories: dict[str, DemoRepository]) -> None:
    repository = repositories["fallback"]
    sources = Path(str(files("regbot.cli.demo"))) / "sources"
    carried = {str(path.relative_to(sources)) for path in sources.rglob("*") if path.is_file()}
    committed = _git(repository.path, "ls-tree", "-r", "--name-only", repository.base).splitlines()
    assert set(committed) == {name for name in carried if "__pycache__" not in name}


def test_a_folder_that_is_not_empty_is_refused(tmp_path: Path) -> None:
    (tmp_path / "work").write_text("mine")
    with pytest.raises(FileExistsError, match="not empty"):
        build_repository(tmp_path, "harmless")
    assert [path.name for path in tmp_path.iterdir()] == ["work"]


def test_fallback_gathers_and_scatters_instead(traces: dict[str, Any]) -> None:
    collectives = counts(traces["fallback"], "kind", "axis", "role")
    assert not [key for key in collectives if key[0] == "all_to_all"]
    assert collectives[("all_gather", "ep", "payload")] == 2 * 3  # layers x (tokens and weights; backward of the sum)
    assert collectives[("reduce_scatter", "ep", "payload")] == 2 * 3


def test_harmless_keeps_the_device_program(traces: dict[str, Any]) -> None:
    base, head = traces["base"]["ledger"], traces["harmless"]["ledger"]
    assert head["fingerprint"] == base["fingerprint"]
    assert rows(traces["harmless"]) == rows(traces["base"])


def test_slow_keeps_the_collectives_but_not_the_program(traces: dict[str, Any]) -> None:
    assert rows(traces["slow"]) == rows(traces["base"])
    assert traces["slow"]["ledger"]["fingerprint"] != traces["base"]["ledger"]["fingerprint"]


def _trace(_: int, requests: list[Path]) -> None:
    """Run the guest on each request, as its own process would."""
    sys.dont_write_bytecode = True
    for request in requests:
        with _forgotten():
            assert process.main([str(request)]) == 0


@contextlib.contextmanager
def _forgotten() -> Iterator[None]:
    """Remove the demo's package from ``sys.modules`` and restore ``sys.path``, because every arm has its own copy."""
    path = list(sys.path)
    try:
        yield
    finally:
        sys.path[:] = path
        for name in [name for name in sys.modules if name.partition(".")[0] == "moetrain"]:
            del sys.modules[name]


def _be_hostile(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Set every user configuration that git would follow."""
    home, hooks = folder / "home", folder / "hooks"
    for path in (home, hooks):
        path.mkdir()
    for hook in ("pre-commit", "commit-msg"):
        (hooks / hook).write_text("#!/bin/sh\nexit 1\n")
        (hooks / hook).chmod(0o755)
    (home / "ignore").write_text("*.md\n*.py\n")
    (home / ".gitconfig").write_text(
        f"""
        [user]\n name = Someone Else\n email = someone@else.example\n signingKey = none
        [commit]\n gpgSign = true
        [core]\n hooksPath = {hooks}\n autocrlf = true\n excludesFile = {home}/ignore
        [init]\n defaultBranch = trunk
        [i18n]\n commitEncoding = ISO-8859-1
        """
    )
    monkeypatch.delenv("GIT_CONFIG_GLOBAL", raising=False)
    for name, value in {
        "HOME": str(home),
        "TZ": "Pacific/Auckland",
        "GIT_DIR": str(folder / "elsewhere"),
        "GIT_AUTHOR_DATE": "2001-01-01T00:00:00Z",
    }.items():
        monkeypatch.setenv(name, value)


def _git(at: Path, *arguments: str) -> str:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    done = subprocess.run(
        ("git", *arguments),
        cwd=at,
        env={**environment, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()
