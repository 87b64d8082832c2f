"""Stand-in for ``flash_attn_2_cuda``, the compiled module of flash-attn 2. It follows the calls in
``flash_attn/flash_attn_interface.py`` of version 2.8.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from regbot_guest.paper.device import Device
from regbot_guest.paper.libraries.attention import Work, backward_work, count_scores, forward_work
from regbot_guest.paper.libraries.stand_in import StandIn

NAME = "flash_attn_2_cuda"
ROWS_OF_A_BLOCK = 128
"""The kernels pad the number of queries to a multiple of this number."""
SEED_WORDS = 2
NEWER = ("FA3", "FA4")
"""torch's names of newer versions, whose kernels it can put in the place of its own."""


class _Activated:
    def remove(self) -> None:
        """torch calls this when another implementation is activated."""


def replace_newer_kernels(report: Callable[[str], None]) -> None:
    """Let torch activate FlashAttention 3 and 4 without their kernels: its own operators, which have the same shapes,
    stay in their place. ``report`` gets the name of what is activated.
    """
    register: Any = getattr(torch.nn.attention, "register_flash_attention_impl", None)

    def activate(name: str) -> _Activated:
        report(f"FlashAttention {name.removeprefix('FA')}")
        return _Activated()

    for name in NEWER if register is not None else ():
        register(name, register_fn=partial(activate, name))


def stand_in(device: Device) -> StandIn:
    """Return the stand-in module. Calls for decoding with a cache of keys and values are refused."""
    kernels: dict[str, Callable[..., Any]] = {
        "fwd": _forward,
        "varlen_fwd": _packed_forward,
        "bwd": _backward,
        "varlen_bwd": _packed_backward,
    }

    def work_of_forward(query: Tensor, key: Tensor, value: Tensor, out: Any = None, *rest: Any) -> Work:
        starts = [tensor for tensor in rest[:2] if isinstance(tensor, Tensor)] if query.dim() == 3 else ()
        return forward_work(query, value, count_scores(device, query, key, *starts))

    def work_of_backward(*args: Any) -> Work:
        query, key, value = args[1:4]
        starts = args[9:11] if query.dim() == 3 else ()
        return backward_work(query, value, count_scores(device, query, key, *starts))

    works = {"fwd": work_of_forward, "varlen_fwd": work_of_forward, "bwd": work_of_backward}
    return StandIn(NAME, device, kernels, {}, works={**works, "varlen_bwd": work_of_backward})


def _forward(query: Tensor, key: Tensor, value: Tensor, *_: object) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return output, log-sum-exp, an empty mask and random state. ``query`` is ``[batch, queries, heads, width]``."""
    batch, queries, heads = query.shape[:3]
    return _results(query, (batch, heads, queries))


def _packed_forward(query: Tensor, key: Tensor, value: Tensor, *_: object) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """As ``_forward``, for sequences of different lengths. ``query`` is ``[all queries, heads, width]``."""
    queries, heads = query.shape[:2]
    return _results(query, (heads, queries))


def _results(query: Tensor, log_sum_exp_shape: tuple[int, ...]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    log_sum_exp = torch.empty(log_sum_exp_shape, dtype=torch.float32, device=query.device)
    mask = query.new_empty(0)  # only tests of flash-attn request the mask
    return torch.empty_like(query), log_sum_exp, mask, torch.empty(SEED_WORDS, dtype=torch.int64, device=query.device)


def _backward(*args: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The arguments are the output's gradient, query, key, value, output, log-sum-exp, and for each of the three
    gradients a tensor to write to, or None.
    """
    query = args[1]
    batch, queries, heads = query.shape[:3]
    padded = -(-queries // ROWS_OF_A_BLOCK) * ROWS_OF_A_BLOCK  # number of queries, rounded up
    sums = torch.empty(batch, heads, padded, dtype=torch.float32, device=query.device)
    return (*_gradients(args[1:4], args[6:9]), sums)


def _packed_backward(*args: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Argument 9 has the start of each sequence, and the end of the last one."""
    query, starts = args[1], args[9]
    queries, heads = query.shape[:2]
    sequences = starts.numel() - 1
    padded = queries + ROWS_OF_A_BLOCK * sequences  # room to pad each sequence to whole blocks
    sums = torch.empty(heads, padded, dtype=torch.float32, device=query.device)
    return (*_gradients(args[1:4], args[6:9]), sums)


def _gradients(inputs: Sequence[Tensor], buffers: "Sequence[Tensor | None]") -> tuple[Tensor, Tensor, Tensor]:
    query, key, value = (
        torch.empty_like(tensor) if gradient is None else gradient
        for tensor, gradient in zip(inputs, buffers, strict=True)
    )
    return query, key, value
