"""The demo's repository is the same on every machine, and each pull request has its stated effect."""

import contextlib
import importlib
import os
import subprocess
import sys
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.device_mesh import init_device_mesh

from regbot.cli.demo import PullRequest, build_repository
from regbot.cli.demo.repository import DemoRepository
from regbot.records.config import load_config
from regbot_guest import process
from support.guest_runs import MIXTRAL, answer, ask, counts, rows

PULL_REQUESTS: tuple[PullRequest, ...] = get_args(PullRequest)
ARMS = ("base", *PULL_REQUESTS)
LAYER = {"experts": 8, "top_k": 2, "hidden": 32, "expert_width": 48, "seed": 7}
RANKS, TOKENS = 2, 96


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

    requests = [
        ask(
            folder,
            arm,
            MIXTRAL,
            root=str(root),
            entry=workload.entry,
            source_roots=workload.source_roots,
            dispatcher=workload.dispatcher,
        )
        for arm, root in arms.items()
    ]
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


@pytest.mark.slow
def test_the_base_exchanges_tokens_by_all_to_all(traces: dict[str, Any]) -> None:
    collectives = counts(traces["base"], "kind", "axis", "role")
    assert (
        collectives[("all_to_all", "ep", "payload")] == 2 * 4
    )  # layers x (dispatch and combine, forward and backward)
    assert ("all_gather", "ep", "payload") not in collectives


def test_fallback_gathers_and_scatters_instead(traces: dict[str, Any]) -> None:
    collectives = counts(traces["fallback"], "kind", "axis", "role")
    assert not [key for key in collectives if key[0] == "all_to_all"]
    assert collectives[("all_gather", "ep", "payload")] == 2 * 3  # layers x (tokens and weights; backward of the sum)
    assert collectives[("reduce_scatter", "ep", "payload")] == 2 * 3


def test_harmless_keeps_the_device_program(traces: dict[str, Any]) -> None:
    base, head = traces["base"]["ledger"], traces["harmless"]["ledger"]
    assert head["program"] == base["program"]
    assert head["entries"] == base["entries"]


def test_slow_keeps_the_collectives_but_not_the_program(traces: dict[str, Any]) -> None:
    assert rows(traces["slow"]) == rows(traces["base"])
    assert traces["slow"]["ledger"]["program"] != traces["base"]["ledger"]["program"]


@pytest.mark.slow
def test_all_pull_requests_train_alike_on_real_ranks(arms: dict[str, Path], tmp_path: Path) -> None:
    mp.spawn(_train, args=(arms, tmp_path), nprocs=RANKS)
    for rank in range(RANKS):
        trained = torch.load(tmp_path / f"{rank}.pt")
        assert set(trained) == set(ARMS)
        assert set(trained["base"]) == {"loss", "x", "router.weight", "experts.w_in", "experts.w_out"}
        for arm in PULL_REQUESTS:
            torch.testing.assert_close(trained[arm], trained["base"], rtol=1e-5, atol=1e-6)


def _trace(_: int, requests: list[Path]) -> None:
    """Run the guest on each request, as its own process would."""
    sys.dont_write_bytecode = True
    for request in requests:
        with _forgotten():
            assert process.main([str(request)]) == 0


def _train(rank: int, arms: dict[str, Path], folder: Path) -> None:
    """Write loss and gradients of every arm's layer on this rank to ``folder``."""
    sys.dont_write_bytecode = True
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=RANKS)
    mesh = init_device_mesh("cpu", (1, RANKS), mesh_dim_names=("edp", "ep"))
    results = {}
    for arm, root in arms.items():
        with _forgotten():
            sys.path.insert(1, str(root / "src"))
            build_layer = importlib.import_module("moetrain.moe").build_layer
        torch.manual_seed(1)
        layer = build_layer({**LAYER, "routing": "natural"}, mesh, torch.device("cpu"), torch.float32)
        x = torch.randn(TOKENS, LAYER["hidden"], generator=torch.Generator().manual_seed(rank), requires_grad=True)
        loss = (layer(x) - x.detach()).square().sum()
        loss.backward()
        gradients = {name: parameter.grad for name, parameter in layer.named_parameters()}
        results[arm] = {"loss": loss.detach(), "x": x.grad, **gradients}
    torch.save(results, folder / f"{rank}.pt")
    dist.destroy_process_group()


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
    home, hooks = folder / "home", folder / "template" / "hooks"
    for path in (home / ".config" / "git", hooks):
        path.mkdir(parents=True)
    for hook in ("pre-commit", "commit-msg", "applypatch-msg", "post-checkout"):
        (hooks / hook).write_text("#!/bin/sh\nexit 1\n")
        (hooks / hook).chmod(0o755)
    (home / ".config" / "git" / "ignore").write_text("*.md\n*.py\n")
    (home / ".config" / "git" / "attributes").write_text("* text eol=crlf\n")
    (home / ".gitconfig").write_text(
        f"""
        [user]\n name = Someone Else\n email = someone@else.example\n signingKey = none
        [commit]\n gpgSign = true
        [core]\n hooksPath = {hooks}\n autocrlf = true\n excludesFile = {home}/.config/git/ignore
        [init]\n defaultBranch = trunk\n templateDir = {hooks.parent}
        [i18n]\n commitEncoding = ISO-8859-1
        [am]\n messageId = true
        """
    )
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    monkeypatch.delenv("GIT_CONFIG_GLOBAL", raising=False)
    for name, value in {
        "HOME": str(home),
        "TZ": "Pacific/Auckland",
        "GIT_DIR": str(folder / "elsewhere"),
        "GIT_AUTHOR_DATE": "2001-01-01T00:00:00Z",
        "GIT_CONFIG_COUNT": "1",
        "GIT_CONFIG_KEY_0": "user.useConfigOnly",
        "GIT_CONFIG_VALUE_0": "true",
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
