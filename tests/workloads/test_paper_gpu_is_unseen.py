"""A paper GPU in the cache changes nothing but static traces: no command takes it for a GPU of this machine."""

import json
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from regbot.check.preflight import examine_configuration
from regbot.cli.doctor.diagnosis import examine
from regbot.engines import NO_GPUS, Launch, LaunchResult, LocalEngine
from regbot.engines.health import NoNvmlError
from regbot.engines.health.machine import this_node
from regbot.records.config import load_config
from regbot.workloads import plan, plan_of, timed_tasks
from regbot.workloads.paper import readiness
from support.layers import TIMED_CONFIG, write_repository

GPU_NAMES = ("H100", "H200", "B200", "A100", "MI300X")
"""Models that a paper GPU can imitate."""


class EngineWithoutGpus(LocalEngine):
    """The local engine of a machine without GPUs. Its guests get ``variables`` too."""

    def __init__(self, **variables: str) -> None:
        self.variables = variables

    def run(self, launch: Launch) -> LaunchResult:
        return super().run(replace(launch, env={**launch.env, **NO_GPUS, **self.variables}))


def refuse_nvml() -> None:
    raise NoNvmlError("NVML is not available")


def describe_machine(folder: Path, paper: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Return what regbot says about a machine that has neither GPUs nor a compiler.

    ``paper`` is the folder of the built paper GPUs.
    """
    tools, git = folder / "tools", shutil.which("git")
    tools.mkdir(parents=True)
    assert git is not None
    (tools / "git").symlink_to(git)
    repository = write_repository(folder / "repository", config=TIMED_CONFIG)
    config = load_config(repository / "regbot.toml")
    with monkeypatch.context() as patch:
        patch.setenv("PATH", str(tools))
        patch.delenv("CXX", raising=False)
        patch.setenv("REGBOT_PAPER_CACHE", str(paper))
        patch.setattr("regbot.cli.doctor.diagnosis.snapshot_gpus", refuse_nvml)
        this_node.cache_clear()
        try:
            preflight = examine_configuration("moe", repository, folder / "cache")
            diagnosis = examine(sys.executable, EngineWithoutGpus(REGBOT_PAPER_CACHE=str(paper)))
            timed = timed_tasks(config, plan(config), LocalEngine().gpus)
            return {
                "library": readiness(sys.executable, folder / "cache"),
                "doctor": [check.model_dump() for check in diagnosis.checks],
                "node": this_node().model_dump(),
                "preflight": {"record": preflight.record().model_dump(), "unknown": preflight.unknown},
                "timed": [[task.timed_device, plan_of(task, config.session).model_dump()] for task in timed],
            }
        finally:
            this_node.cache_clear()


@pytest.mark.slow
def test_with_a_built_paper_gpu_regbot_says_the_same_about_the_machine_as_without(
    tmp_path: Path, paper_library: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_paper = describe_machine(tmp_path / "with", paper_library.parents[1], monkeypatch)
    without = describe_machine(tmp_path / "without", tmp_path / "empty", monkeypatch)
    assert (with_paper.pop("library"), without.pop("library")) == ("built", "missing")
    assert with_paper == without
    assert with_paper["node"]["gpus"] == []
    (gpus,) = (check for check in with_paper["doctor"] if check["name"] == "GPUs")
    assert (gpus["ok"], gpus["detail"]) == (False, "none visible to torch")
    assert with_paper["preflight"]["unknown"] == "GPU not known: hardware rules did not apply"
    assert [device for device, _ in with_paper["timed"]] == ["cpu"]
    assert not [name for name in GPU_NAMES if name in json.dumps(with_paper)]
