"""Timed runs on real gloo ranks: their records, and that timed steps have no instrumentation but clocks."""

from pathlib import Path
from typing import Any

import pytest

from support.guest_runs import MIXTRAL, QWEN, answer, ask, once, rows, run_all
from support.layers import GOOD_LAYER, write_repository

pytestmark = pytest.mark.slow

STEPS = 12

WATCHED_LAYER = """\
import os
import time
import torch
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack
from userpkg.plain import build_layer as plain

CALLS = []


class Watched(torch.nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x):
        CALLS.append(len(_get_current_dispatch_mode_stack()))
        with open(os.environ["REGBOT_TEST_CALLS"], "a") as file:
            print(os.environ["RANK"], CALLS[-1], file=file)
        time.sleep(0.02)
        return self.layer(x)

    def expert_parameters(self):
        return self.layer.expert_parameters()


def build_layer(config, mesh, device, dtype):
    return Watched(plain(config, mesh, device, dtype))
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, monkeypatch_module: pytest.MonkeyPatch) -> Path:
    """The records that these tests read, measured once."""

    def measure(folder: Path) -> None:
        monkeypatch_module.setenv("REGBOT_TEST_CALLS", str(folder / "calls"))
        watched = write_repository(folder / "watched", WATCHED_LAYER)
        (watched / "userpkg" / "plain.py").write_text(GOOD_LAYER)
        timed: dict[str, Any] = {"mode": "timed", "steps": STEPS, "warmup": 2}
        small = {"geometry": {"layers": 2, "sequence": 64}}
        own = {"entry": "userpkg.moe:build_layer", **timed, **small}
        run_all(
            [
                ask(folder, "alltoall", MIXTRAL, dispatcher="alltoall", **timed, **small),
                ask(folder, "allgather", QWEN, dispatcher="allgather", **timed, **small),
            ],
            ranks=2,
        )
        traced = {"alltoall": MIXTRAL, "allgather": QWEN}
        run_all([ask(folder, f"traced.{name}", shape, dispatcher=name, **small) for name, shape in traced.items()])
        run_all([ask(folder, "watched", MIXTRAL, root=str(watched), **own)], ranks=2)

    return once(tmp_path_factory.getbasetemp(), "probe", measure)


@pytest.fixture(scope="module")
def monkeypatch_module() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        yield patch


@pytest.mark.parametrize("rank", [0, 1])
def test_every_rank_records_every_step(folder: Path, rank: int) -> None:
    record = answer(folder, "alltoall", rank)
    steps = record["steps"]
    for name in ("step_s", "cpu_s", "wait_s", "memory_bytes"):
        assert len(steps[name]) == STEPS, name
    assert len(record["loss"]) == STEPS
    assert all(0 < wait < step for wait, step in zip(steps["wait_s"], steps["step_s"], strict=True))
    assert all(seconds > 0 for seconds in steps["cpu_s"])
    assert 50e6 < min(steps["memory_bytes"]) <= max(steps["memory_bytes"]) <= steps["peak_bytes"] < 4e9
    assert (record["clock"], record["skipped_steps"], record["dropped_tokens"]) == ("perf_counter", 0, 0)
    assert {path.name for path in folder.glob("steps.*")} == {"steps.begun", "steps.steady", "steps.ended"}


@pytest.mark.parametrize("dispatcher", ["alltoall", "allgather"])
@pytest.mark.parametrize("rank", [0, 1])
def test_the_counted_step_of_a_timed_run_equals_that_of_a_trace(folder: Path, rank: int, dispatcher: str) -> None:
    timed = answer(folder, dispatcher, rank)
    assert rows(timed) == rows(answer(folder, f"traced.{dispatcher}"))
    liveness = timed["ledger"]["liveness"]
    assert liveness["planted"] == liveness["seen"] > 0
    assert liveness["sequence_advance"] == liveness["sequence_counted"] > 0


@pytest.mark.parametrize(("exchanged", "experts", "top_k"), [("alltoall", 8, 2), ("allgather", 128, 8)])
def test_tokens_per_expert_are_read_from_row_counts_or_expert_indices(
    folder: Path, exchanged: str, experts: int, top_k: int
) -> None:
    tokens = answer(folder, exchanged)["tokens_per_expert"]
    assert tokens == [2 * 2 * 64 * top_k // experts] * experts  # layers x micro-batch x sequence x top-k / experts


def test_no_dispatch_mode_is_active_in_a_timed_step(folder: Path) -> None:
    calls = [line.split() for line in (folder / "calls").read_text().splitlines()]
    for rank in ("0", "1"):
        modes = [int(number) for who, number in calls if who == rank]
        assert modes == [0] * (STEPS * 2) + [1] * 2  # two layers a step; one counted step at the end
