"""Which implementation computes the experts' grouped matrix products. torch's ``_grouped_mm`` chooses silently, by the
conditions of ``aten/src/ATen/native/cuda/GroupedBlas.cpp`` (torch 2.10 to August 2026):

- a CUTLASS kernel, for bfloat16 on compute capability 9 or 10; in a build for ROCm it is not known here;
- a loop of matrix products, in all other cases. On a GPU it also reads the offsets back to the host.

Before version 2.9, torch had no such loop, and the calling code looped over the experts itself.
"""

from collections.abc import Mapping

import torch

LOOP_IN_TORCH = "loop_in_torch"
LOOP_OVER_EXPERTS = "loop_over_experts"
"""A loop in the calling code, which is regbot's own layer or torchtitan's."""
UNNAMED = "grouped_mm"
"""torch's operator, if it is not known which implementation it chooses."""
KERNELS = {9: "sm90_kernel", 10: "sm100_kernel"}
"""The kernel of torch's operator by the first number of the compute capability."""


def path_in_torch(dtype: torch.dtype, device: torch.device) -> str:
    """Return torch's implementation for ``dtype`` on ``device``. For AMD GPUs it is not known: ``UNNAMED``."""
    if device.type != "cuda":
        return LOOP_IN_TORCH
    if _is_rocm(device):
        return UNNAMED
    if dtype != torch.bfloat16:
        return LOOP_IN_TORCH
    major, _ = torch.cuda.get_device_capability(device)
    return KERNELS.get(major, LOOP_IN_TORCH)


def describe_grouped_gemm(
    operators: Mapping[str, int], dtype: torch.dtype, device: torch.device, is_usable: bool = True
) -> dict[str, str]:
    """Return what should run (``resolved``) and what ran (``executed``) in a step with these ``operators``.
    ``is_usable`` says whether torch's grouped operator runs on ``device``.
    """
    path = path_in_torch(dtype, device)
    num_calls = sum(n for operator, n in operators.items() if _is_grouped_mm(operator))
    return {
        "requested": "grouped_mm",
        "resolved": path if is_usable else LOOP_OVER_EXPERTS,
        "executed": path if num_calls else LOOP_OVER_EXPERTS,
        "evidence": f"dispatched aten::_grouped_mm x{num_calls} with {_describe_inputs(dtype, device)}",
    }


def _is_grouped_mm(operator: str) -> bool:
    _, _, name = operator.partition("::")
    return name.strip("_").startswith("grouped_mm")


def _is_rocm(device: torch.device) -> bool:
    architecture: str = getattr(torch.cuda.get_device_properties(device), "gcnArchName", "")
    return torch.version.hip is not None or architecture.startswith("gfx")


def _describe_inputs(dtype: torch.dtype, device: torch.device) -> str:
    name = str(dtype).removeprefix("torch.")
    if device.type != "cuda" or _is_rocm(device):
        return f"{name} on {device.type}"
    major, minor = torch.cuda.get_device_capability(device)
    return f"{name} on compute capability {major}.{minor}"
