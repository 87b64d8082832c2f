"""What of a configuration is timed, and at which size: what this machine can hold, and nothing that it cannot."""

from pathlib import Path

import pytest

from regbot.engines import EngineError, Launch, LaunchResult
from regbot.records.config import Config, ConfigError, Workload
from regbot.records.run import Position
from regbot.workloads.guest import Checkout, Scratch
from regbot.workloads.launch import needs_of, time_run
from regbot.workloads.task import plan, timed_tasks
from regbot.workloads.timed import RunSpec
from support.layers import ARM, LIMITS
from support.timed_builder import NODE


def timed(gpus: int = 0, **workload: object) -> list[tuple[str, str, int]]:
    asked = Workload.model_validate({"adapter": "smoke", **workload})
    config = Config(workloads={"moe": asked})
    return [
        (task.entry, task.variant.name, task.parallelism.world_size) for task in timed_tasks(config, plan(config), gpus)
    ]


def test_one_mesh_of_every_shape_is_timed_on_two_ranks_without_gpus() -> None:
    assert timed() == [("qwen3-30b-a3b@1/ep", "cpu", 2), ("mixtral-8x7b@1/ep", "cpu", 2)]


@pytest.mark.parametrize(("gpus", "ranks"), [(1, 1), (2, 2), (3, 2), (4, 4), (7, 4), (8, 8), (16, 8)])
def test_a_node_with_gpus_times_the_smoke_size_in_one_expert_parallel_group(gpus: int, ranks: int) -> None:
    assert timed(gpus) == [("qwen3-30b-a3b@1/ep", "smoke", ranks), ("mixtral-8x7b@1/ep", "smoke", ranks)]
    config = Config(workloads={"moe": Workload(adapter="smoke")})
    for task in timed_tasks(config, plan(config), gpus):
        assert (task.parallelism.ep, task.parallelism.edp) == (ranks, 1)
        assert (task.timed_device, needs_of(task).gpus) == ("cuda", ranks)


def test_a_framework_and_a_mesh_with_data_groups_need_all_gpus_of_their_mesh() -> None:
    assert timed(4, meshes=["ep-dp"], shapes=["mixtral-8x7b"]) == [("mixtral-8x7b@1/ep-dp", "cpu", 4)]
    assert timed(4, adapter="torchtitan", shapes=["qwen3-30b-a3b"]) == [], "torchtitan has no program for processors"


class RecordingSeat:
    """A seat that keeps the launch and does not run it."""

    node, allocation = NODE, None
    launch: Launch

    def run(self, launch: Launch) -> LaunchResult:
        self.launch = launch
        raise EngineError("not run")


@pytest.mark.parametrize(("gpus", "visible"), [(0, ("", "", "")), (8, ("0", None, "1"))], ids=["processors", "GPUs"])
def test_a_run_that_is_timed_on_processors_sees_no_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gpus: int, visible: tuple[str | None, ...]
) -> None:
    names = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")
    monkeypatch.setenv(names[0], "0")
    monkeypatch.delenv(names[1], raising=False)
    workload = Workload(adapter="smoke", shapes=["mixtral-8x7b"], environment={names[2]: "1"})
    config, seat = Config(workloads={"moe": workload}), RecordingSeat()
    (task,) = timed_tasks(config, plan(config), gpus)
    position = Position(block=1, slot=0, order="BAAB")
    time_run(task, RunSpec(position, 1, 6, 1), Checkout(ARM, tmp_path), seat, Scratch(tmp_path / "scratch", LIMITS))
    assert tuple(seat.launch.env.get(name) for name in names) == visible


def test_a_shape_without_a_size_for_it_is_traced_only_unless_it_is_named() -> None:
    assert timed(shapes=["mixtral-8x22b"]) == []
    with pytest.raises(ConfigError, match="no size that can be timed"):
        timed(shapes=["mixtral-8x22b"], timed=["mixtral-8x22b"])


@pytest.mark.parametrize("variant", ["smoke", "full"])
def test_a_size_that_this_machine_cannot_hold_is_refused_before_anything_starts(variant: str) -> None:
    with pytest.raises(ConfigError, match="needs 8 GPUs, and this machine has 0; use the variant cpu"):
        timed(0, timed_variant=variant, shapes=["mixtral-8x7b"])
    assert timed(8, timed_variant=variant, shapes=["mixtral-8x7b"]) == [("mixtral-8x7b@1/ep", variant, 8)]


@pytest.mark.parametrize("program", ["pretrain_gpt.py", ""])
def test_the_script_of_megatron_is_traced_and_never_timed(program: str) -> None:
    with pytest.raises(ValueError, match=r"timed: pretrain_gpt\.py is traced and not timed; set timed = \[\]"):
        timed(8, adapter="megatron", program=program)
    assert timed(8, adapter="megatron", program=program, timed=[]) == []
