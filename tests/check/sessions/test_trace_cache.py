"""Traces of earlier checks: when they are reused, and who may store them."""

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from regbot.check.sessions import trace_cache
from regbot.check.sessions.trace_cache import TraceCache
from regbot.engines import LocalEngine
from regbot.records.config import SandboxSettings
from regbot.records.run import Arm, Run
from regbot.workloads.shapes import load_shape
from regbot.workloads.task import Task, smoke_task
from support.check_cases import Case
from support.judge_cases import BASE, HEAD
from support.layers import CONFIG, GOOD_LAYER
from support.ledger_builder import smoke_ledger, smoke_run

SANDBOX = SandboxSettings()
TASK = smoke_task(load_shape("qwen3-30b-a3b"), "full")


def cache(
    folder: Path, *, untrusted: bool = False, sandbox: SandboxSettings | None = None, base: Arm = BASE
) -> TraceCache:
    setup: Any = SimpleNamespace(
        trees=SimpleNamespace(repository_cache=folder),
        recorder=SimpleNamespace(header=SimpleNamespace(base=base, head=HEAD)),
        engine=LocalEngine(sandbox=sandbox),
    )
    return TraceCache(setup, untrusted=untrusted)


def traced(arm: Arm, **changes: Any) -> Run:
    run = smoke_run(arm, smoke_ledger().model_copy(update={"device": "cuda"}))
    return run.model_copy(update={"workload": TASK.entry, "warnings": [], **changes})


@pytest.fixture(autouse=True)
def same_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace_cache, "_identify_packages", lambda *_: "packages")


def test_a_trace_is_found_again_with_the_arm_that_asks(tmp_path: Path) -> None:
    cache(tmp_path).keep(BASE, TASK, traced(BASE))
    later = BASE.model_copy(update={"revision": "another name"})
    found = cache(tmp_path, base=later).find(later, TASK)
    assert found is not None
    assert found.arm == later
    assert found.ledger == traced(BASE).ledger


def test_a_head_is_reused_for_its_own_base_alone(tmp_path: Path) -> None:
    cache(tmp_path).keep(HEAD, TASK, traced(HEAD))
    assert cache(tmp_path).find(HEAD, TASK) is not None
    other_base = BASE.model_copy(update={"commit": "c" * 40})
    assert cache(tmp_path, base=other_base).find(HEAD, TASK) is None
    as_base = HEAD.model_copy(update={"name": "base"})
    assert cache(tmp_path, base=as_base).find(as_base, TASK) is None


def another_task(change: str) -> Task:
    return {
        "dispatcher": smoke_task(load_shape("qwen3-30b-a3b"), "full", dispatcher="allgather"),
        "mesh": smoke_task(load_shape("qwen3-30b-a3b"), "full", "ep-dp"),
        "GPU": smoke_task(load_shape("qwen3-30b-a3b"), "full", gpu="b200"),
    }[change]


@pytest.mark.parametrize("change", ["dispatcher", "mesh", "GPU"])
def test_another_configuration_is_traced_anew(tmp_path: Path, change: str) -> None:
    cache(tmp_path).keep(BASE, TASK, traced(BASE))
    assert cache(tmp_path).find(BASE, another_task(change)) is None


@pytest.mark.parametrize("change", ["tree", "packages", "variable", "regbot", "sandbox"])
def test_another_environment_is_traced_anew(tmp_path: Path, change: str, monkeypatch: pytest.MonkeyPatch) -> None:
    cache(tmp_path).keep(BASE, TASK, traced(BASE))
    arm = BASE.model_copy(update={"tree": "e" * 40}) if change == "tree" else BASE
    if change == "packages":
        monkeypatch.setattr(trace_cache, "_identify_packages", lambda *_: "other packages")
    if change == "variable":
        monkeypatch.setenv("NVTE_FUSED_ATTN", "0")
    if change == "regbot":
        monkeypatch.setattr(trace_cache, "_digest_package", lambda: "another version")
    sandbox = SANDBOX if change == "sandbox" else None
    assert cache(tmp_path, sandbox=sandbox).find(arm, TASK) is None


@pytest.mark.parametrize("changes", [{"outcome": "crashed"}, {"ledger": smoke_ledger()}])
def test_what_did_not_end_well_on_the_wanted_device_is_not_stored(tmp_path: Path, changes: dict[str, Any]) -> None:
    cache(tmp_path).keep(BASE, TASK, traced(BASE, **changes))
    assert cache(tmp_path).find(BASE, TASK) is None


@pytest.mark.parametrize(("arm", "sandbox", "stored"), [(BASE, SANDBOX, 1), (BASE, None, 0), (HEAD, SANDBOX, 0)])
def test_an_untrusted_check_stores_a_confined_base_alone(
    tmp_path: Path, arm: Arm, sandbox: SandboxSettings | None, stored: int
) -> None:
    cache(tmp_path, untrusted=True, sandbox=sandbox).keep(arm, TASK, traced(arm))
    assert len(list(tmp_path.rglob("*.json"))) == stored


def test_an_untrusted_check_never_reads_a_head(tmp_path: Path) -> None:
    cache(tmp_path, sandbox=SANDBOX).keep(HEAD, TASK, traced(HEAD))
    assert cache(tmp_path, untrusted=True, sandbox=SANDBOX).find(HEAD, TASK) is None


def test_a_damaged_entry_is_traced_anew(tmp_path: Path) -> None:
    cache(tmp_path).keep(BASE, TASK, traced(BASE))
    (file,) = tmp_path.rglob("*.json")
    file.write_bytes(file.read_bytes()[:-20])
    assert cache(tmp_path).find(BASE, TASK) is None


def test_changed_packages_have_another_identity(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()

    def identity() -> str:
        return trace_cache._identify_packages(sys.executable, {"PYTHONPATH": str(tmp_path)})

    (tmp_path / ".#lock").symlink_to("nowhere")
    identities = {identity()}
    (tmp_path / "module.py").write_text("x = 1\n")
    identities.add(identity())
    (tmp_path / "module.py").write_text("x = 12\n")
    identities.add(identity())
    assert len(identities) == 3
    assert "" not in identities
    (tmp_path / "__editable__.moe.pth").write_text("import __editable___moe_finder\n")
    assert identity() == ""


def test_the_same_commits_are_traced_once_and_another_head_alone(tmp_path: Path) -> None:
    case = Case(tmp_path)
    case.pull_request("# why\n" + GOOD_LAYER, config=CONFIG + 'device = "cpu"\n')
    first, again = case.check(), case.check()
    assert first == again
    assert not list((case.home / "out/runs").glob("*.base.*"))
    assert not list((case.home / "out/runs").glob("*.head.*"))
    case.commit("# why not\n" + GOOD_LAYER, None)
    assert case.check()[0] == 0
    assert not list((case.home / "out/runs").glob("*.base.*"))
    assert list((case.home / "out/runs").glob("*.head.*"))
