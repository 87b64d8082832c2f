"""The GPUs that a paper GPU can be, one row each. Numbers from the vendors' data sheets."""

from typing import NamedTuple

PAPER = "paper"
"""Part of every name, so that nobody takes it for the real one."""

PER_NODE = 8


class Gpu(NamedTuple):
    """``memory_bytes`` is what the driver reports, ``capability`` the compute capability (gfx numbers on AMD)."""

    name: str
    memory_bytes: int
    capability: tuple[int, int]
    multiprocessors: int


GPUS = {
    "h100": Gpu(f"NVIDIA H100 80GB HBM3 ({PAPER})", 85_031_124_992, (9, 0), 132),
    "h200": Gpu(f"NVIDIA H200 ({PAPER})", 150_110_011_392, (9, 0), 132),
    "b200": Gpu(f"NVIDIA B200 ({PAPER})", 191_500_000_000, (10, 0), 148),
    "a100": Gpu(f"NVIDIA A100-SXM4-80GB ({PAPER})", 85_097_971_712, (8, 0), 108),
    "mi300x": Gpu(f"AMD Instinct MI300X ({PAPER})", 206_141_652_992, (9, 4), 304),
}
DEFAULT = "h100"
