"""Which implementation computes the experts' grouped products, and errors of its kernel on a GPU."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from regbot_guest import moe
from regbot_guest.grouped_gemm import describe_grouped_gemm, path_in_torch
from regbot_guest.paper.gpus import GPUS
from support.guest_runs import MIXTRAL, TINY, ask
from support.paper_runs import read_answer

GPU, CPU = torch.device("cuda", 0), torch.device("cpu")
PATHS = {"h100": "sm90_kernel", "h200": "sm90_kernel", "b200": "sm100_kernel", "a100": "loop_in_torch"}


def on_gpu(monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int], architecture: str = "sm_90") -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: capability)
    properties = SimpleNamespace(gcnArchName=architecture)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device=None: properties)
    monkeypatch.setattr(torch.version, "hip", None)


@pytest.mark.parametrize("gpu", PATHS)
def test_the_capability_of_a_gpu_decides_which_implementation_of_torch_runs(
    gpu: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_gpu(monkeypatch, GPUS[gpu].capability)
    assert path_in_torch(torch.bfloat16, GPU) == PATHS[gpu]
    assert path_in_torch(torch.float16, GPU) == "loop_in_torch", "the kernels are built for bfloat16"
    entry = describe_grouped_gemm({"aten::_grouped_mm": 9, "aten::mm": 4}, torch.bfloat16, GPU)
    assert (entry["requested"], entry["resolved"], entry["executed"]) == ("grouped_mm", PATHS[gpu], PATHS[gpu])
    assert entry["evidence"] == "dispatched aten::_grouped_mm x9 with bfloat16 on compute capability {}.{}".format(
        *GPUS[gpu].capability
    )


def test_a_step_that_dispatched_no_grouped_operator_looped_over_the_experts(monkeypatch: pytest.MonkeyPatch) -> None:
    on_gpu(monkeypatch, (9, 0))
    for is_usable, resolved in ((False, "loop_over_experts"), (True, "sm90_kernel")):
        entry = describe_grouped_gemm({"aten::mm": 48}, torch.bfloat16, GPU, is_usable)
        assert (entry["resolved"], entry["executed"]) == (resolved, "loop_over_experts")


def test_a_paper_gpu_of_amd_does_not_say_it_either(monkeypatch: pytest.MonkeyPatch) -> None:
    """The build of torch is not for ROCm then, and the compute capability 9.4 is no kernel of NVIDIA's."""
    on_gpu(monkeypatch, GPUS["mi300x"].capability, GPUS["mi300x"].architecture)
    entry = describe_grouped_gemm({"aten::_grouped_mm": 9}, torch.bfloat16, GPU)
    assert (entry["resolved"], entry["executed"]) == ("grouped_mm", "grouped_mm")
    assert entry["evidence"] == "dispatched aten::_grouped_mm x9 with bfloat16 on cuda"


def test_on_a_processor_torch_loops_over_products_as_its_profiler_shows() -> None:
    assert moe.runs_grouped_mm(torch.bfloat16, CPU)
    assert path_in_torch(torch.bfloat16, CPU) == "loop_in_torch"
    x, weight = torch.ones(32, 16, dtype=torch.bfloat16), torch.ones(2, 16, 16, dtype=torch.bfloat16)
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        torch._grouped_mm(x, weight, offs=torch.tensor([16, 32], dtype=torch.int32))
    (product,) = [event for event in profiler.events() if event.name == "aten::_grouped_mm"]
    assert [child.name for child in product.cpu_children].count("aten::mm") == 2


@pytest.mark.slow
def test_the_step_of_a_paper_gpu_is_named_by_the_kernel_of_its_model(tmp_path: Path, paper_library: Path) -> None:
    request = ask(tmp_path, "moe", MIXTRAL, "smoke", world=2, ep=2, dispatcher="alltoall", geometry=TINY)
    (step,) = read_answer(paper_library, "smoke_step.py", request)
    assert {step["grouped_gemm"][key] for key in ("resolved", "executed")} == {"sm90_kernel"}
    launched = sum(n for name, n in step["launches"].items() if name.endswith("aten::_grouped_mm"))
    assert step["grouped_gemm"]["evidence"].startswith(f"dispatched aten::_grouped_mm x{launched} with bfloat16")


class FailingGpu:
    """A GPU that reports the error of an earlier kernel when the host waits for it, as CUDA does."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, error_at: int) -> None:
        self.waits, self.error_at = 0, error_at
        for name in ("ones", "tensor"):
            create = getattr(torch, name)
            monkeypatch.setattr(torch, name, lambda *args, create=create, **options: create(*args, **_off_gpu(options)))
        monkeypatch.setattr(torch.cuda, "synchronize", self.synchronize)
        monkeypatch.setattr(moe, "_GROUPED_MM_RUNS", {})

    def synchronize(self, device: torch.device) -> None:
        self.waits += 1
        if self.waits == self.error_at:
            raise RuntimeError("CUDA error: device-side assert triggered")


def _off_gpu(options: dict[str, Any]) -> dict[str, Any]:
    return options | ({"device": CPU} if options.get("device") == GPU else {})


def test_an_error_of_the_kernel_is_reported_where_the_kernel_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    FailingGpu(monkeypatch, error_at=2)
    with pytest.raises(RuntimeError, match="kernel of the grouped product fails on this GPU: CUDA error: device-side"):
        moe.runs_grouped_mm(torch.bfloat16, GPU)
