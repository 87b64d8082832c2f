"""Meshes that a workload defines: their entries, the sizes of their axes, and how a framework gets them."""

from pathlib import Path

import pytest

from regbot.check.static_trace import TraceOptions, choose_task
from regbot.records.config import Config, ConfigError, parse_config
from regbot.workloads.task import plan, timed_tasks


def config(meshes: str, adapter: str = "megatron", more: str = "timed = []") -> Config:
    text = (
        f'version = 1\n[workloads.moe]\nadapter = "{adapter}"\nshapes = ["mixtral-8x7b"]\nmeshes = {meshes}\n{more}\n'
    )
    return parse_config(text, "regbot.toml")


def test_an_own_mesh_is_an_entry_of_its_own_and_its_axes_reach_the_framework() -> None:
    named, own = plan(config('["ep", {world = 16, ep = 4, tp = 2, cp = 2}]'))
    assert (named.entry, named.workload.config) == ("mixtral-8x7b@1/ep", {})
    assert own.entry == "mixtral-8x7b@1/world16-ep4-tp2-cp2"
    assert own.workload.config == {
        "tensor_model_parallel_size": 2,
        "context_parallel_size": 2,
        "expert_tensor_parallel_size": 1,
    }, "Megatron's ETP is TP unless it is set"
    assert (own.parallelism.world_size, own.parallelism.dp, own.parallelism.edp) == (16, 4, 4)


OWN_AXIS = "timed = []\nconfig = {context_parallel_size = 2}"


@pytest.mark.parametrize(
    ("meshes", "adapter", "more", "message"),
    [
        ("[{world = 9, ep = 2}]", "megatron", "timed = []", "9 ranks do not divide into groups of ETP x EP = 2"),
        ("[{world = 8, ep = 1, tp = 3}]", "megatron", "timed = []", "groups of TP x CP = 3 ranks"),
        ("[{world = 8, ep = 8, tp = 2}]", "smoke", "", "adapter 'smoke' has no axis 'tp'; it has world, ep"),
        ("[{world = 8, ep = 8}]", "command", "command = ['a', '{steps}']", "adapter 'command' is not traced"),
        ("[{world = 8, ep = 8}]", "smoke", "timed = ['mixtral-8x7b']", "are only traced; add 'ep' or 'ep-dp'"),
        (
            "[{world = 8, ep = 1, cp = 2}]",
            "megatron",
            OWN_AXIS,
            "config.context_parallel_size: a mesh of this workload sets",
        ),
    ],
)
def test_a_mesh_that_cannot_be_is_refused_by_name(meshes: str, adapter: str, more: str, message: str) -> None:
    with pytest.raises(ConfigError) as error:
        config(meshes, adapter, more)
    assert message in f"{error.value}"


def test_an_own_mesh_is_traced_and_not_timed() -> None:
    both = config("[{world = 2, ep = 2}, 'ep']", "smoke", "variant = 'cpu'")
    assert [task.entry for task in timed_tasks(both, plan(both), gpus=0)] == ["mixtral-8x7b@1/ep"]


def test_ledger_trace_selects_an_own_mesh_by_its_name(tmp_path: Path) -> None:
    (tmp_path / "regbot.toml").write_text(
        'version = 1\n[workloads.moe]\nadapter = "smoke"\nshapes = ["mixtral-8x7b"]\nmeshes = [{world = 4, ep = 4}]\n'
    )
    for name in ("moe/world4-ep4", "moe"):
        assert choose_task(TraceOptions(name), tmp_path).parallelism.world_size == 4
    with pytest.raises(ConfigError, match="there is no mesh 'world8-ep8'"):
        choose_task(TraceOptions("moe/world8-ep8"), tmp_path)
    with pytest.raises(ConfigError, match="has its own number of ranks"):
        choose_task(TraceOptions("moe/world4-ep4", world=8), tmp_path)
