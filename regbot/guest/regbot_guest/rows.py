"""The interface of dispatchers, the token rows that they exchange, and the weighted sum of each token's rows.

A *slot* is one of the ``top_k`` choices of a token: expert j of token t has the slot ``t * top_k + j``. No function
here makes the host wait for the device. The backward of a gather by a permutation is a gather by its inverse, so it
neither sorts indices nor adds atomically.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor


@dataclass
class Rows:
    """Token rows ``x [rows, hidden]`` grouped by local expert. ``counts`` has the rows of each, int64 ``[local
    experts]``.
    """

    x: Tensor
    counts: Tensor


class Dispatcher(Protocol):
    """Exchange of token rows in one forward pass of one layer. ``combine`` must be called on the same object."""

    def dispatch(self, x: Tensor, experts: Tensor, weights: Tensor) -> Rows:
        """Send each token's row to the ranks of its experts, and return the rows for this rank's own experts. ``x`` is
        ``[tokens, hidden]``. ``experts`` (int64) and ``weights`` (float32) are ``[tokens, top_k]``.
        """

    def combine(self, rows: Tensor) -> Tensor:
        """Send the experts' output rows back and return the weighted sum for each token, ``[tokens, hidden]``. ``rows``
        is ``[rows, hidden]``, in the order in which ``dispatch`` returned the rows.
        """


class SlotOrder(NamedTuple):
    """Slots sorted by expert, one row each. ``slot_of_row`` and ``row_of_slot`` are inverse permutations, int64
    ``[tokens * top_k]``. ``counts`` has the rows of each expert, int64 ``[experts]``.
    """

    slot_of_row: Tensor
    row_of_slot: Tensor
    counts: Tensor


def sort_slots(experts: Tensor, num_experts: int) -> SlotOrder:
    """Sort the slots of ``experts``, int64 ``[tokens, top_k]``, by expert. Slots of one expert keep their order."""
    slot_of_row = torch.argsort(experts.flatten(), stable=True)
    return SlotOrder(slot_of_row, invert(slot_of_row), count_rows(experts.flatten(), num_experts))


def count_rows(experts: Tensor, num_experts: int) -> Tensor:
    """Return the rows of each expert, int64 ``[num_experts]``. ``torch.bincount`` would read the smallest and the
    largest expert on the host.
    """
    counts = torch.zeros(num_experts, dtype=torch.int64, device=experts.device)
    return counts.scatter_add_(0, experts, torch.ones_like(experts))


def invert(permutation: Tensor) -> Tensor:
    positions = torch.arange(permutation.numel(), device=permutation.device)
    return torch.empty_like(permutation).scatter_(0, permutation, positions)


def permute_rows(rows: Tensor, order: Tensor, inverse: Tensor) -> Tensor:
    out: Tensor = _PermuteRows.apply(rows, order, inverse)
    return out


def copy_tokens(x: Tensor, slots: SlotOrder) -> Tensor:
    """Return one row for each slot, ``[tokens * top_k, hidden]``, sorted by expert. ``x`` is ``[tokens, hidden]``."""
    out: Tensor = _CopyTokens.apply(x, slots.slot_of_row, slots.row_of_slot)
    return out


def sum_slots(rows: Tensor, weights: Tensor, slots: SlotOrder) -> Tensor:
    """Return the weighted sum of each token's rows, ``[tokens, hidden]``, from rows sorted by expert."""
    # [tokens, top_k, hidden]
    by_token = permute_rows(rows, slots.row_of_slot, slots.slot_of_row).view(*weights.shape, -1)
    return torch.bmm(weights.to(rows.dtype).unsqueeze(1), by_token).squeeze(1)


class _PermuteRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, order: Tensor, inverse: Tensor) -> Tensor:
        ctx.save_for_backward(inverse)
        return rows.index_select(0, order)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        (inverse,) = ctx.saved_tensors
        return grads[0].index_select(0, inverse), None, None


class _CopyTokens(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, slot_of_row: Tensor, row_of_slot: Tensor) -> Tensor:
        ctx.save_for_backward(row_of_slot)
        ctx.tokens = x.shape[0]
        # The divisor is top_k: number of slots / number of tokens. The token of a slot is slot // top_k.
        return x.index_select(0, slot_of_row // (slot_of_row.numel() // x.shape[0]))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        (row_of_slot,) = ctx.saved_tensors
        # [tokens, top_k, hidden]
        by_token = grads[0].index_select(0, row_of_slot).view(ctx.tokens, -1, grads[0].shape[1])
        return by_token.sum(1), None, None


def weighted_sum(rows: Tensor, token_of_row: Tensor, weight_of_row: Tensor, tokens: int) -> Tensor:
    """Return the weighted sum of each token's rows, ``[tokens, hidden]``. A token may have any number of rows, which
    are added atomically; ``sum_slots`` needs exactly one row for each slot.
    """
    weighted = rows * weight_of_row.to(rows.dtype).unsqueeze(1)
    return torch.zeros(tokens, rows.shape[1], dtype=rows.dtype, device=rows.device).index_add_(
        0, token_of_row, weighted
    )
