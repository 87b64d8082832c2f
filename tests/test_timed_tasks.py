"""What of a configuration is timed, and at which size: what this machine can hold, and nothing that it cannot."""

import pytest

from regbot.config import Config, ConfigError, Workload
from regbot.workloads import plan, timed_tasks


def timed(gpus: int = 0, **workload: object) -> list[tuple[str, str, int]]:
    asked = Workload.model_validate({"adapter": "smoke", **workload})
    config = Config(workloads={"moe": asked})
    return [
        (task.entry, task.variant.name, task.parallelism.world_size) for task in timed_tasks(config, plan(config), gpus)
    ]


def test_one_mesh_of_every_shape_is_timed_on_two_ranks_without_gpus() -> None:
    assert timed() == [("qwen3-30b-a3b@1/ep", "cpu", 2), ("mixtral-8x7b@1/ep", "cpu", 2)]


def test_a_node_with_eight_gpus_times_the_smoke_size() -> None:
    assert timed(8) == [("qwen3-30b-a3b@1/ep", "smoke", 8), ("mixtral-8x7b@1/ep", "smoke", 8)]
    assert timed(7) == timed(0)


def test_the_first_mesh_that_is_planned_is_the_one() -> None:
    assert timed(meshes=["ep-dp"], shapes=["mixtral-8x7b"]) == [("mixtral-8x7b@1/ep-dp", "cpu", 4)]


def test_the_configuration_names_what_is_timed() -> None:
    assert timed(timed=["mixtral-8x7b"]) == [("mixtral-8x7b@1/ep", "cpu", 2)]
    assert timed(timed=[]) == []


def test_a_shape_without_a_size_for_it_is_traced_only_unless_it_is_named() -> None:
    assert timed(shapes=["mixtral-8x22b"]) == []
    with pytest.raises(ConfigError, match="no size that can be timed"):
        timed(shapes=["mixtral-8x22b"], timed=["mixtral-8x22b"])


@pytest.mark.parametrize("variant", ["smoke", "full"])
def test_a_size_that_this_machine_cannot_hold_is_refused_before_anything_starts(variant: str) -> None:
    with pytest.raises(ConfigError, match="wants 8 GPUs, and this machine has 2; use the variant cpu"):
        timed(2, timed_variant=variant, shapes=["mixtral-8x7b"])
    assert timed(8, timed_variant=variant, shapes=["mixtral-8x7b"]) == [("mixtral-8x7b@1/ep", variant, 8)]


def test_a_variant_that_is_none_names_the_key() -> None:
    with pytest.raises(ConfigError, match=r"workloads\.moe\.timed_variant: shape"):
        timed(timed_variant="large")


def test_a_shape_that_is_timed_and_not_traced_is_refused() -> None:
    with pytest.raises(ValueError, match="not among the shapes"):
        timed(shapes=["mixtral-8x7b"], timed=["qwen3-30b-a3b"])
