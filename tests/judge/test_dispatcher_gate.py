"""Requested, resolved and executed dispatchers: what a request for DeepEP or HybridEP becomes."""

import sys
from pathlib import Path
from typing import Any, Literal

import pytest
import torch

from regbot.judge.backends import dispatcher_change, dispatcher_problems
from regbot.records.run import Backend, Run
from regbot_guest.availability import Resolution, resolve
from regbot_guest.deepep_installation import DeepEPInstallation, inspect_deep_ep
from regbot_guest.routing import forced_experts
from support.guest_runs import TINY, Shared, answer, ask, run_all, run_script
from support.ledger_builder import smoke_arm, smoke_ledger, smoke_run

pytestmark = pytest.mark.slow

CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)
STAND_IN = Path(__file__).parents[1] / "contracts" / "stand_in"
TOKENS, EXPERTS, TOP_K, RANKS, HIDDEN = 16, 8, 2, 2, 32


@pytest.fixture(autouse=True)
def _clear_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clear the gate's answers, which it caches for the life of a process."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (9, 0))
    for kept in (inspect_deep_ep, resolve):
        kept.cache_clear()


# Trying it out


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("raise AssertionError('set CUDA_HOME')", "AssertionError: set CUDA_HOME"),
        ("import no_such_extension", "ModuleNotFoundError: No module named 'no_such_extension'"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "the import ended the process with exit code -11"),
        ("import os; print('{}', flush=True); os._exit(0)", "the import ended the process with exit code 0"),
    ],
)
def test_whatever_an_import_does_becomes_a_reason(
    source: str, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "deep_ep.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    assert inspect_deep_ep() == DeepEPInstallation(False, why)
    assert "deep_ep" not in sys.modules


# Choosing

BFLOAT, FLOAT = torch.bfloat16, torch.float32
NO_HYBRIDEP = "deep_ep 2.1.0: its HybridEPBuffer does not run on compute capability 12.0"


@pytest.mark.parametrize(
    ("requested", "capability", "dtype", "pinned", "executed", "by_or_why"),
    [
        ("deepep", (9, 0), BFLOAT, "", "deepep", "ElasticBuffer"),
        ("deepep", (9, 0), BFLOAT, "Buffer", "deepep", "Buffer"),
        ("deepep", (8, 0), BFLOAT, "", "deepep", "Buffer"),
        ("hybridep", (10, 0), BFLOAT, "", "hybridep", "HybridEPBuffer"),
        ("hybridep", (12, 0), BFLOAT, "", "alltoall", NO_HYBRIDEP),
        ("deepep", (9, 0), BFLOAT, "Bufer", "alltoall", "deep_ep 2.1.0: it offers no Bufer"),
        ("deepep", (9, 0), FLOAT, "", "alltoall", "it moves bfloat16, and this run is in float32"),
    ],
)
def test_the_newest_class_that_this_gpu_and_dtype_run_is_taken(
    requested: str, capability: tuple[int, int], dtype: torch.dtype, pinned: str, executed: str, by_or_why: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.syspath_prepend(STAND_IN)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    expected = Resolution(executed, *(("", by_or_why) if executed == "alltoall" else (by_or_why,)))
    assert resolve(requested, GPU, dtype, pinned) == expected


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        ((2, 30, 3), "deep_ep 2.1.0: its ElasticBuffer needs NCCL 2.30.4, and torch has loaded 2.30.3"),
        ((2, 30, 4), ""),
    ],
)
def test_version_2_is_refused_with_an_nccl_that_is_too_old(
    version: tuple[int, ...], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(STAND_IN)
    monkeypatch.setattr(torch.distributed, "is_nccl_available", lambda: True)
    monkeypatch.setattr(torch.cuda.nccl, "version", lambda: version)
    assert resolve("deepep", GPU, BFLOAT, "ElasticBuffer", 8).reason == expected
    fallback = Resolution("deepep", "Buffer" if expected else "ElasticBuffer")
    assert resolve("deepep", GPU, BFLOAT, "", 8) == fallback, "version 1 serves an older NCCL"


# Counting a step


@pytest.fixture
def stepped(shared: Shared) -> Path:
    def run(folder: Path) -> None:
        for name, dispatcher in (("deepep", "deepep"), ("hybridep", "hybridep"), ("halved", "deepep")):
            small = TINY | {"experts": EXPERTS, "top_k": TOP_K, "sequence": TOKENS}
            asked: dict[str, Any] = {"routing": "skewed", "dispatcher": dispatcher, "mode": "timed", "dtype": "float32"}
            request = ask(folder, name, geometry=small, **asked)
            run_script("announced.py", request, *(["1"] if name == "halved" else []), ranks=RANKS)

    return shared("announced", run)


@pytest.mark.parametrize("dispatcher", ["deepep", "hybridep"])
def test_exchanges_that_no_mode_can_see_are_in_the_ledger(stepped: Path, dispatcher: str) -> None:
    for rank in range(RANKS):
        record = answer(stepped, dispatcher, rank)
        announced = [entry for entry in record["ledger"]["entries"] if entry["via"] == dispatcher]
        assert {(e["kind"], e["axis"], e["group_size"], e["dtype"], e["role"], e["where"]) for e in announced} == {
            ("all_to_all", "ep", RANKS, "float32", "payload", "layers.0.moe")
        }
        assert {entry["phase"]: entry["count"] for entry in announced} == {"forward": 2, "backward": 2}
        sent, came = _copies(rank)
        assert {entry["phase"]: entry["bytes"] for entry in announced} == dict.fromkeys(
            ("forward", "backward"), (sent + came) * HIDDEN * 4
        )


def _copies(rank: int) -> tuple[int, int]:
    """Return the rows that one rank sends and receives if a token travels once to each rank that it needs."""
    experts = forced_experts(TOKENS, EXPERTS, TOP_K, "skewed", 1234, CPU)
    ranks = [set((row // (EXPERTS // RANKS)).tolist()) for row in experts]
    return sum(map(len, ranks)), RANKS * sum(rank in needed for needed in ranks)


@pytest.mark.parametrize(
    ("dispatcher", "permute", "by"),
    [("deepep", "unfused", "ElasticBuffer"), ("hybridep", "hybridep", "HybridEPBuffer")],
)
def test_a_library_that_returned_from_its_exchanges_was_executed(
    stepped: Path, dispatcher: str, permute: str, by: str
) -> None:
    backends = answer(stepped, dispatcher)["backends"]
    assert _words(backends["dispatcher"]) == (dispatcher, dispatcher, dispatcher)
    assert backends["dispatcher"]["evidence"].startswith(f"4 exchanges returned by {dispatcher} ({by}); ")
    assert _words(backends["fused_permute"]) == (permute, permute, permute)


@pytest.fixture
def missing(shared: Shared) -> Path:
    return shared(
        "missing",
        lambda to: run_all([ask(to, name, geometry=TINY, dispatcher=name) for name in ("deepep", "hybridep")]),
    )


@pytest.mark.parametrize("dispatcher", ["deepep", "hybridep"])
def test_a_library_that_is_missing_leaves_alltoall_labelled_as_such(missing: Path, dispatcher: str) -> None:
    record = answer(missing, dispatcher)
    backend = record["backends"]["dispatcher"]
    assert _words(backend) == (dispatcher, "alltoall", "alltoall")
    assert backend["evidence"].startswith(
        f"{dispatcher} is not usable here, alltoall ran instead: deep_ep cannot be imported: ModuleNotFoundError: "
        "No module named 'deep_ep'; it runs on GPUs, and this run is on the CPU; payload collectives on axis ep: "
    )
    assert record["backends"]["fused_permute"]["executed"] == "unfused"
    base, head = _arms(backend, backend)
    problems = list(dispatcher_problems(base, head))
    assert len(problems) == 2
    assert problems[0].startswith(
        f"base requested dispatcher {dispatcher!r} and executed 'alltoall' ({dispatcher} is not"
    )


def test_a_library_that_only_base_had_is_a_dispatcher_silently_off(stepped: Path) -> None:
    ran, replaced = (answer(stepped, name)["backends"]["dispatcher"] for name in ("deepep", "halved"))
    base, head = _arms(ran, replaced)
    change = dispatcher_change(base, head)
    assert change is not None
    assert (change.requested, change.base_executed, change.head_executed) == ("deepep", "deepep", "alltoall")
    assert list(dispatcher_problems(base, head)) == []


def _arms(*backends: dict[str, Any]) -> list[Run]:
    """Return base and head runs with these dispatcher backends."""
    names: tuple[Literal["base", "head"], ...] = ("base", "head")
    return [
        smoke_run(smoke_arm(name), smoke_ledger(), backends={"dispatcher": Backend(**backend)})
        for name, backend in zip(names, backends, strict=True)
    ]


def _words(backend: dict[str, Any]) -> tuple[str, str, str]:
    return backend["requested"], backend["resolved"], backend["executed"]
