"""Dispatchers: how token rows travel to the ranks that own their experts, and back.

A dispatcher is everything between the router and the expert MLP. ``dispatch`` takes this rank's tokens and returns the
rows that this rank's experts must compute, grouped by expert; ``combine`` takes the experts' output in the same order
and returns one row per token of this rank, the weighted sum over its experts.

    alltoall    every row travels once to the rank of its expert and once back (``dist.all_to_all_single``)
    allgather   every rank gathers all tokens, computes what its own experts owe them, and reduce-scatters the sums
    local       no expert parallelism: all experts live here
    deepep      DeepEP's kernels, see ``deepep.py``
    hybridep    HybridEP's kernels, see ``hybridep.py``

All collectives of this file are the plain ones of ``torch.distributed`` with their transpose as backward, so that what
is written here is what a counter sees.
"""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from regbot_guest.deepep import DeepEP
from regbot_guest.hybridep import HybridEP
from regbot_guest.rows import Dispatcher, Rows, weighted_sum

# torch 2.13 has given these two new names and warns of the old ones.
all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


class AllToAll:
    """Expert parallelism by all-to-all: 1 exchange of counts, 1 of rows there, 1 of rows back."""

    def __init__(self, num_experts: int, group: dist.ProcessGroup | None) -> None:
        assert group is not None
        self.num_experts, self.group, self.ep = num_experts, group, group.size()

    def dispatch(self, x: Tensor, experts: Tensor, weights: Tensor) -> Rows:
        self.tokens, top_k = experts.shape
        order = torch.argsort(experts.flatten(), stable=True)
        self.token_of_row, self.weight_of_row = order // top_k, weights.flatten()[order]

        counts = torch.bincount(experts.flatten(), minlength=self.num_experts)
        arriving = torch.empty_like(counts)
        dist.all_to_all_single(arriving, counts, group=self.group)
        self.sent = counts.view(self.ep, -1).sum(1).tolist()
        arriving = arriving.view(self.ep, -1)  # [source rank, local expert]
        self.received = arriving.sum(1).tolist()
        rows = _AllToAllRows.apply(x[self.token_of_row], self.received, self.sent, self.group)

        # Rows arrive grouped by source rank, then by expert; the grouped MLP wants them by expert alone.
        local = torch.arange(arriving.shape[1], device=x.device).repeat(self.ep)
        self.by_expert = torch.argsort(
            local.repeat_interleave(arriving.flatten(), output_size=rows.shape[0]), stable=True
        )
        return Rows(rows[self.by_expert], arriving.sum(0))

    def combine(self, rows: Tensor) -> Tensor:
        by_source = torch.empty_like(rows).index_copy(0, self.by_expert, rows)
        home = _AllToAllRows.apply(by_source, self.sent, self.received, self.group)
        return weighted_sum(home, self.token_of_row, self.weight_of_row, self.tokens)


class AllGather:
    """Expert parallelism by all-gather and reduce-scatter: simple, and top-k times less clever than it looks.

    Every rank receives every token, needed here or not. With few experts per token it moves more bytes than
    ``AllToAll``; with top-k near the number of ranks, fewer.
    """

    def __init__(self, num_experts: int, group: dist.ProcessGroup | None) -> None:
        assert group is not None
        self.num_experts, self.group, self.ep = num_experts, group, group.size()
        self.local_experts = num_experts // self.ep

    def dispatch(self, x: Tensor, experts: Tensor, weights: Tensor) -> Rows:
        top_k = experts.shape[1]
        everyone = _AllGatherRows.apply(x, self.group)
        experts = _gather(experts, self.group).flatten()
        weights = _AllGatherRows.apply(weights, self.group).flatten()
        self.tokens = everyone.shape[0]

        counts = torch.bincount(experts, minlength=self.num_experts)
        first = self.group.rank() * self.local_experts
        before, mine = torch.stack([counts[:first].sum(), counts[first : first + self.local_experts].sum()]).tolist()
        order = torch.argsort(experts, stable=True)[before : before + mine]
        self.token_of_row, self.weight_of_row = order // top_k, weights[order]
        return Rows(everyone[self.token_of_row], counts[first : first + self.local_experts])

    def combine(self, rows: Tensor) -> Tensor:
        partial = weighted_sum(rows, self.token_of_row, self.weight_of_row, self.tokens)
        return _ReduceScatterRows.apply(partial, self.group)


class Local:
    """No expert parallelism: the reference that the others must equal."""

    def __init__(self, num_experts: int, _: dist.ProcessGroup | None) -> None:
        self.num_experts = num_experts

    def dispatch(self, x: Tensor, experts: Tensor, weights: Tensor) -> Rows:
        self.tokens, top_k = experts.shape
        order = torch.argsort(experts.flatten(), stable=True)
        self.token_of_row, self.weight_of_row = order // top_k, weights.flatten()[order]
        return Rows(x[self.token_of_row], torch.bincount(experts.flatten(), minlength=self.num_experts))

    def combine(self, rows: Tensor) -> Tensor:
        return weighted_sum(rows, self.token_of_row, self.weight_of_row, self.tokens)


NAMES = ("alltoall", "allgather", "deepep", "hybridep")


def new_dispatcher(
    name: str, num_experts: int, group: dist.ProcessGroup | None, buffer: str = "ElasticBuffer"
) -> Dispatcher:
    """The dispatcher called ``name``; ``Local`` where there is no group or it has one rank. Raises ValueError.

    ``buffer`` is the class of deep_ep that ``deepep`` is to use. Whether the library is there at all is not asked here:
    ``availability.resolve`` did.
    """
    if name not in NAMES:
        raise ValueError(f"there is no dispatcher {name!r}; there are {', '.join(NAMES)}")
    if group is None or group.size() == 1:
        return Local(num_experts, group)
    if name == "deepep":
        return DeepEP(num_experts, group, buffer)
    if name == "hybridep":
        return HybridEP(num_experts, group)
    return AllToAll(num_experts, group) if name == "alltoall" else AllGather(num_experts, group)


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
    """Rows to other ranks by split sizes; its backward sends the gradients home."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, receive: list[int], send: list[int], group: dist.ProcessGroup) -> Tensor:
        ctx.receive, ctx.send, ctx.group = receive, send, group
        return _all_to_all(x, receive, send, group)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        return _all_to_all(grads[0], ctx.send, ctx.receive, ctx.group), None, None, None


class _AllGatherRows(torch.autograd.Function):
    """Rows of all ranks on every rank; its backward sums the gradients and scatters them."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        return _gather(x, group)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return _reduce_scatter(grads[0], ctx.group), None


class _ReduceScatterRows(torch.autograd.Function):
    """Sum over ranks, each keeps its own rows; its backward gathers the gradients."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        return _reduce_scatter(x, group)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return _gather(grads[0], ctx.group), None
