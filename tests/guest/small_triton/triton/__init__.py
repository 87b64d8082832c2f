"""As much of Triton as a layer needs that launches kernels. Like Triton, it has no driver on a machine without GPUs."""

from triton.runtime.autotuner import Config, autotune, heuristics
from triton.runtime.jit import jit

__all__ = ["Config", "autotune", "heuristics", "jit"]
