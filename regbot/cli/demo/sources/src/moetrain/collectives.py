"""Collectives with gradients. Each is a linear map over the ranks, and its gradient is the transposed map."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

Collective = Callable[[Tensor], Tensor]

# torch 2.13 renamed these and warns at every call of the old names.
_all_gather_rows = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_reduce_scatter_rows = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


def all_to_all(rows: Tensor, send: list[int], receive: list[int], group: dist.ProcessGroup) -> Tensor:
    """Send ``send[r]`` rows to rank r of the group and receive ``receive[r]`` rows from it, in order of rank."""
    forward_exchange = partial(_all_to_all, send=send, receive=receive, group=group)
    backward_exchange = partial(_all_to_all, send=receive, receive=send, group=group)
    return _Linear.apply(rows, forward_exchange, backward_exchange)


def all_gather(rows: Tensor, group: dist.ProcessGroup) -> Tensor:
    """Return the rows of all ranks, in order of rank. All ranks must pass the same number of rows."""
    return _Linear.apply(rows, partial(_all_gather, group=group), partial(_reduce_scatter, group=group))


def reduce_scatter(rows: Tensor, group: dist.ProcessGroup) -> Tensor:
    """Sum the rows over all ranks. Each rank keeps its own share of the result, in order of rank."""
    return _Linear.apply(rows, partial(_reduce_scatter, group=group), partial(_all_gather, group=group))


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, collective: Collective, transposed: Collective) -> Tensor:
        ctx.transposed = transposed
        return collective(x.contiguous())

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        return ctx.transposed(grad.contiguous()), None, None


def _all_to_all(x: Tensor, send: list[int], receive: list[int], group: dist.ProcessGroup) -> Tensor:
    out = x.new_empty(sum(receive), *x.shape[1:])
    dist.all_to_all_single(out, x, receive, send, group=group)
    return out


def _all_gather(x: Tensor, group: dist.ProcessGroup) -> Tensor:
    out = x.new_empty(x.shape[0] * group.size(), *x.shape[1:])
    _all_gather_rows(out, x, group=group)
    return out


def _reduce_scatter(x: Tensor, group: dist.ProcessGroup) -> Tensor:
    out = x.new_empty(x.shape[0] // group.size(), *x.shape[1:])
    _reduce_scatter_rows(out, x, group=group)
    return out
