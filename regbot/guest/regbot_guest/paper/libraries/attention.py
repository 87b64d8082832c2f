"""FLOPs of attention kernels, as ``torch.utils.flop_counter`` counts them: a causal mask saves nothing."""

from typing import Any

from torch import Tensor

from regbot_guest.paper.device import Device

Work = tuple[str, int]


def count_scores(device: Device, query: Tensor, key: Tensor, starts: Any = None, key_starts: Any = None) -> int:
    """Return the number of scores of one head. Query and key are ``[batch, sequence, heads, width]``, or packed: ``[all
    tokens, heads, width]`` with the start of each sequence, and the end of the last one.
    """
    if starts is None or key_starts is None:
        return int(query.shape[0] * query.shape[1] * key.shape[1])
    ends, key_ends = device.values(starts), device.values(key_starts)
    if ends is None or key_ends is None:
        return int(query.shape[0] * key.shape[0])
    return int((ends.diff().long() * key_ends.diff().long()).sum())


def forward_work(query: Tensor, value: Tensor, scores: int) -> Work:
    """The scores, and their product with the values. ``scores`` is the number of scores of one head."""
    return "attention", 2 * query.shape[-2] * scores * (query.shape[-1] + value.shape[-1])


def backward_work(query: Tensor, value: Tensor, scores: int) -> Work:
    """The scores again, and the gradients of scores and values, queries and keys."""
    return "attention", 2 * query.shape[-2] * scores * (3 * query.shape[-1] + 2 * value.shape[-1])
