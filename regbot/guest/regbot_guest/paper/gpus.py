"""GPU models that a paper GPU can imitate. The numbers are from the vendors' data sheets."""

from typing import NamedTuple

PAPER = "paper"
"""Word in the name of every GPU model here, so that nobody mistakes a paper GPU for a real one."""

GPUS_PER_NODE = 8


class GpuModel(NamedTuple):
    """One GPU model."""

    name: str
    memory_bytes: int  # as the driver reports it
    capability: tuple[int, int]  # NVIDIA's compute capability, or the numbers in AMD's gfx name
    multiprocessors: int
    architecture: str  # such as sm_90 or gfx942
    l2_bytes: int
    shared_bytes: int  # shared memory of one multiprocessor
    shared_bytes_per_block: int  # the part of it that one block can have
    warp_size: int = 32


_KIB, _MIB = 1 << 10, 1 << 20
_HOPPER = (228 * _KIB, 227 * _KIB)
"""Shared memory of a multiprocessor, and the part that one block can have. Blackwell has the same."""

GPUS = {
    "h100": GpuModel(f"NVIDIA H100 80GB HBM3 ({PAPER})", 85_031_124_992, (9, 0), 132, "sm_90", 50 * _MIB, *_HOPPER),
    "h200": GpuModel(f"NVIDIA H200 ({PAPER})", 150_110_011_392, (9, 0), 132, "sm_90", 50 * _MIB, *_HOPPER),
    "b200": GpuModel(f"NVIDIA B200 ({PAPER})", 191_500_000_000, (10, 0), 148, "sm_100", 126 * _MIB, *_HOPPER),
    "a100": GpuModel(
        f"NVIDIA A100-SXM4-80GB ({PAPER})", 85_097_971_712, (8, 0), 108, "sm_80", 40 * _MIB, 164 * _KIB, 163 * _KIB
    ),
    "mi300x": GpuModel(
        f"AMD Instinct MI300X ({PAPER})", 206_141_652_992, (9, 4), 304, "gfx942", 4 * _MIB, 64 * _KIB, 64 * _KIB, 64
    ),
}
DEFAULT = "h100"
