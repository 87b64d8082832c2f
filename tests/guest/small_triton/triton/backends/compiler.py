from typing import NamedTuple


class GPUTarget(NamedTuple):
    backend: str
    arch: int | str
    warp_size: int
