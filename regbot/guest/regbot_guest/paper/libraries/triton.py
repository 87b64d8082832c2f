"""Triton on a paper GPU: a launch is counted, but computes nothing. The caller has allocated the outputs, so all shapes
are right. Afterwards the values of all GPU tensors among the arguments are unknown.
"""

import importlib
from typing import Any

import torch

from regbot_guest.paper.device import Device


def replace_launches(device: Device) -> None:
    """Replace ``run`` of Triton's classes that launch kernels. A class that the version lacks is skipped."""
    launcher_classes = (("triton.runtime.jit", "JITFunction"), ("triton.runtime.autotuner", "Autotuner"),
                ("triton.runtime.autotuner", "Heuristics"))  # fmt: skip

    def run(self: Any, *args: Any, **kwargs: Any) -> None:
        tensors = [value for value in (*args, *kwargs.values()) if isinstance(value, torch.Tensor) and value.is_cuda]
        device.launch(f"triton::{kernel_name(self)}", tensors)
        for tensor in tensors:
            device.write(tensor, None)  # None: the values are unknown now

    for module, name in launcher_classes:
        launcher = getattr(importlib.import_module(module), name, None)
        if launcher is not None:
            launcher.run = run


def kernel_name(function: Any) -> str:
    while not hasattr(function, "__name__") and hasattr(function, "fn"):
        function = function.fn
    return str(getattr(function, "__name__", "kernel"))
