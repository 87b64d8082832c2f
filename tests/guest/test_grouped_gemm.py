"""Which implementation computes the experts' grouped products, and errors of its kernel on a GPU."""

from types import SimpleNamespace

import pytest
import torch

from regbot_guest.grouped_gemm import describe_grouped_gemm, path_in_torch
from regbot_guest.paper.gpus import GPUS

GPU = torch.device("cuda", 0)
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
