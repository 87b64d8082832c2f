"""Triton on a paper GPU: a launch of a kernel is counted, but computes nothing.

A Triton kernel writes into tensors that its caller has allocated, so all shapes are right without running the kernel.
After a launch, the values of all GPU tensors among the kernel's arguments are unknown, because the kernel may have
written them.
"""

import importlib
from typing import Any

import torch

from regbot_guest.paper.device import Device


def replace_launches(device: Device) -> None:
    """Replace the method ``run`` of Triton's classes that launch kernels. A class that the version lacks is skipped.

    The replacement counts the launch, and makes the values of all GPU tensors among the arguments unknown.
    """
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
    """Return the name of the Python function inside Triton's objects such as JITFunction and Autotuner."""
    while not hasattr(function, "__name__") and hasattr(function, "fn"):
        function = function.fn
    return str(getattr(function, "__name__", "kernel"))
