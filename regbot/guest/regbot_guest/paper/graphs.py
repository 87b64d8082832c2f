"""CUDA graphs on a paper GPU. A capture runs its region eagerly, and is not counted, because on a real GPU it launches
nothing. A replay repeats the counts of the capture and computes nothing, which the ledger states.
"""

from typing import Any

import torch

from regbot_guest.guesses import EXECUTION
from regbot_guest.paper.cuda import replace_everywhere
from regbot_guest.paper.device import Device

NOTE = (
    "a CUDA graph was captured: its region ran eagerly, each replay counts what the capture counted, and integers that "
    "the region computes keep their values of the capture"
)


def install_functions(device: Device) -> None:  # noqa: C901 (a class of small methods)
    pools = iter(range(1, 2**31))  # numbers of memory pools, which torch identifies by a pair of numbers

    class CUDAGraph:
        def __init__(self, **_: Any) -> None:
            self._content: Any = None
            """The ``GraphContent`` of the capture. None before the capture, and for a capture that no counter saw."""
            self._pool = (0, next(pools))

        def capture_begin(self, pool: Any = None, **_: Any) -> None:
            if device.is_capturing:
                raise RuntimeError("a CUDA graph is already being captured")
            self._pool = pool or self._pool
            device.is_capturing = True
            device.assumptions[NOTE] = EXECUTION  # the kind of this guess
            if device.counter is not None:
                device.counter.begin_capture()

        def capture_end(self) -> None:
            device.is_capturing = False
            self._content = device.counter.end_capture() if device.counter is not None else None

        def replay(self) -> None:
            if self._content is None:
                device.refuse("a CUDA graph was replayed that was not captured during the counted steps")
            elif device.counter is not None:
                device.counter.replay(self._content)

        def reset(self) -> None:
            self._content = None

        def pool(self) -> tuple[int, int]:
            return self._pool

        def instantiate(self) -> None: ...

        def enable_debug_mode(self) -> None: ...

        def debug_dump(self, debug_path: str) -> None: ...

        def register_generator_state(self, generator: Any) -> None: ...

    replace_everywhere(
        torch.cuda,
        {
            "CUDAGraph": CUDAGraph,
            "graph_pool_handle": lambda: (0, next(pools)),
            "is_current_stream_capturing": lambda: device.is_capturing,
        },
    )
    # Transformer Engine imports torch's compiled function by its own name.
    setattr(torch._C, "_graph_pool_handle", lambda: (0, next(pools)))  # noqa: B010
    if not hasattr(torch._C, "_host_emptyCache"):
        setattr(torch._C, "_host_emptyCache", lambda: None)  # noqa: B010
