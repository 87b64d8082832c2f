"""Dispatchers: how token rows travel to the ranks that own their experts, and back. ``rows.py`` has the interface.

    alltoall    every row travels once to the rank of its expert and once back (``dist.all_to_all_single``)
    allgather   every rank gathers all tokens, computes its own experts' outputs, and reduce-scatters the sums
    local       no expert parallelism: this rank has all experts
    deepep      DeepEP's kernels, see ``deepep.py``
    hybridep    HybridEP's kernels, see ``hybridep.py``

All collectives here are plain ``torch.distributed`` calls, and the backward of each is the transposed collective.
"""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from regbot_guest.deepep import DeepEP
from regbot_guest.hybridep import HybridEP
from regbot_guest.rows import (
    Dispatcher,
    Rows,
    copy_tokens,
    count_rows,
    invert,
    permute_rows,
    sort_slots,
    sum_slots,
    weighted_sum,
)

# torch 2.13 renamed these two functions and deprecates the old names.
all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


class AllToAllDispatcher:
    """Three all-to-alls exchange row counts, send rows to the experts, and send rows back."""

    def __init__(self, num_experts: int, group: dist.ProcessGroup | None) -> None:
        assert group is not None
        self.num_experts, self.group, self.ep = num_experts, group, group.size()

    def dispatch(self, x: Tensor, experts: Tensor, weights: Tensor) -> Rows:
        self.slots, self.weights = sort_slots(experts, self.num_experts), weights
        counts = self.slots.counts
        received_counts = torch.empty_like(counts)
        dist.all_to_all_single(received_counts, counts, group=self.group)
        sent_counts = counts.view(self.ep, -1)  # dimensions: target rank, local expert of the target rank
        received_counts = received_counts.view(self.ep, -1)  # dimensions: source rank, local expert of this rank
        # The host waits for the device only once, for both lists together.
        self.send_splits, self.receive_splits = torch.stack([sent_counts, received_counts]).sum(2).tolist()
        rows = _AllToAllRows.apply(copy_tokens(x, self.slots), self.receive_splits, self.send_splits, self.group)

        # Rows arrive grouped by source rank, then by expert. The grouped MLP needs them grouped by expert only. So the
        # expert of each received row is computed, and the rows are sorted by it.
        # ``local_experts`` has the expert that each of the received counts is for.
        local_experts = torch.arange(received_counts.shape[1], device=x.device).repeat(self.ep)
        self.order_by_expert = torch.argsort(
            local_experts.repeat_interleave(received_counts.flatten(), output_size=rows.shape[0]), stable=True
        )
        self.order_by_source = invert(self.order_by_expert)
        return Rows(permute_rows(rows, self.order_by_expert, self.order_by_source), received_counts.sum(0))

    def combine(self, rows: Tensor) -> Tensor:
        rows_by_source = permute_rows(rows, self.order_by_source, self.order_by_expert)
        returned = _AllToAllRows.apply(rows_by_source, self.send_splits, self.receive_splits, self.group)
        return sum_slots(returned, self.weights, self.slots)


class AllGatherDispatcher:
    """Every rank receives every token. With few experts per token, this moves more bytes than ``AllToAllDispatcher``;
    with a top-k near the number of ranks, fewer. A rank sums only some of a token's rows, by atomic additions.
    """

    def __init__(self, num_experts: int, group: dist.ProcessGroup | None) -> None:
        assert group is not None
        self.num_experts, self.group, self.ep = num_experts, group, group.size()
        self.local_experts = num_experts // self.ep

    def dispatch(self, x: Tensor, experts: Tensor, weights: Tensor) -> Rows:
        top_k = experts.shape[1]
        all_rows = _AllGatherRows.apply(x, self.group)
        experts = _gather(experts, self.group).flatten()
        weights = _AllGatherRows.apply(weights, self.group).flatten()
        self.tokens = all_rows.shape[0]

        counts = count_rows(experts, self.num_experts)
        first_expert = self.group.rank() * self.local_experts
        # Sorted by expert, the rows of this rank's experts are one range. The host reads its start and its length.
        num_rows_before, num_own_rows = torch.stack(
            [counts[:first_expert].sum(), counts[first_expert : first_expert + self.local_experts].sum()]
        ).tolist()
        # ``order`` has the slot of each of these rows, and ``slot // top_k`` is the slot's token.
        order = torch.argsort(experts, stable=True)[num_rows_before : num_rows_before + num_own_rows]
        # The backward of index_select adds. The backward of indexing would sort.
        self.token_of_row, self.weight_of_row = order // top_k, weights.index_select(0, order)
        return Rows(
            all_rows.index_select(0, self.token_of_row), counts[first_expert : first_expert + self.local_experts]
        )

    def combine(self, rows: Tensor) -> Tensor:
        partial_sums = weighted_sum(rows, self.token_of_row, self.weight_of_row, self.tokens)
        return _ReduceScatterRows.apply(partial_sums, self.group)


class LocalDispatcher:
    """Dispatcher without expert parallelism. Its results are the reference for the other dispatchers."""

    def __init__(self, num_experts: int, _: dist.ProcessGroup | None) -> None:
        self.num_experts = num_experts

    def dispatch(self, x: Tensor, experts: Tensor, weights: Tensor) -> Rows:
        self.slots, self.weights = sort_slots(experts, self.num_experts), weights
        return Rows(copy_tokens(x, self.slots), self.slots.counts)

    def combine(self, rows: Tensor) -> Tensor:
        return sum_slots(rows, self.weights, self.slots)


NAMES = ("alltoall", "allgather", "deepep", "hybridep")


def new_dispatcher(
    name: str, num_experts: int, group: dist.ProcessGroup | None, buffer: str = "ElasticBuffer"
) -> Dispatcher:
    """Return the dispatcher ``name``, or ``LocalDispatcher`` for a group of one rank. ``num_experts`` is that of all
    ranks together. Whether the library is available is checked by ``availability.resolve``. Raises ValueError.
    """
    if name not in NAMES:
        raise ValueError(f"there is no dispatcher {name!r}; there are {', '.join(NAMES)}")
    if group is None or group.size() == 1:
        return LocalDispatcher(num_experts, group)
    if name == "deepep":
        return DeepEP(num_experts, group, buffer)
    if name == "hybridep":
        return HybridEP(num_experts, group)
    return AllToAllDispatcher(num_experts, group) if name == "alltoall" else AllGatherDispatcher(num_experts, group)


def _gather(x: Tensor, group: dist.ProcessGroup) -> Tensor:
    out = x.new_empty(x.shape[0] * group.size(), *x.shape[1:])
    all_gather(out, x.contiguous(), group=group)
    return out


def _reduce_scatter(x: Tensor, group: dist.ProcessGroup) -> Tensor:
    out = x.new_empty(x.shape[0] // group.size(), *x.shape[1:])
    reduce_scatter(out, x.contiguous(), group=group)
    return out


def _all_to_all(x: Tensor, receive: list[int], send: list[int], group: dist.ProcessGroup) -> Tensor:
    out = x.new_empty(sum(receive), *x.shape[1:])
    dist.all_to_all_single(out, x.contiguous(), receive, send, group=group)
    return out


class _AllToAllRows(torch.autograd.Function):
    """``receive`` and ``send`` are the numbers of rows that this rank receives from each rank and sends to it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, receive: list[int], send: list[int], group: dist.ProcessGroup) -> Tensor:
        ctx.receive, ctx.send, ctx.group = receive, send, group
        return _all_to_all(x, receive, send, group)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        return _all_to_all(grads[0], ctx.send, ctx.receive, ctx.group), None, None, None


class _AllGatherRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        return _gather(x, group)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return _reduce_scatter(grads[0], ctx.group), None


class _ReduceScatterRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        return _reduce_scatter(x, group)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return _gather(grads[0], ctx.group), None
