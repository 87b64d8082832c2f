"""Expert parallelism by HybridEP, NVIDIA's dispatcher on the ``hybrid-ep`` branch of DeepEP. It also permutes the rows.

Written from the documented interface of ``deep_ep/hybrid_ep_buffer.py`` (``tests/contracts`` has the signatures), and
tested with a stand-in but not yet on GPUs.

With the same handle, ``dispatch_with_permute`` and ``combine_with_unpermute`` are each other's transpose. In the
non-blocking mode a buffer that is too small silently drops tokens, so it is not used. Every rank must have the same
number of tokens.
"""

import importlib
from functools import cache
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from regbot_guest.exchange import Exchange
from regbot_guest.rows import Rows

VIA = "hybridep"

RECEIVED_ROWS_INDEX = 3
"""Index of ``num_dispatched_tokens_tensor`` in the handle. It is the same in all published versions."""


# All layers and steps share one buffer until the process ends.
@cache
def _shared_buffer(group: dist.ProcessGroup, tokens: int, hidden: int, local_experts: int) -> Any:
    buffer_class = importlib.import_module("deep_ep").HybridEPBuffer
    return buffer_class(
        group=group, hidden_dim=hidden, max_num_of_tokens_per_rank=tokens, num_local_experts=local_experts
    )


class HybridEP:
    def __init__(self, num_experts: int, group: dist.ProcessGroup) -> None:
        self.num_experts, self.group = num_experts, group
        self.local_experts = num_experts // group.size()

    def dispatch(self, x: Tensor, experts: Tensor, weights: Tensor) -> Rows:
        tokens, hidden = x.shape
        buffer = _shared_buffer(self.group, tokens, hidden, self.local_experts)
        self.exchange = Exchange(VIA, buffer, self.group, self.num_experts, experts)
        # The library takes one weight for each token and expert. Most of these weights are zero.
        zero_weights = torch.zeros(tokens, self.num_experts, dtype=torch.float32, device=x.device)
        rows, self.weight, counts = _HybridEPDispatch.apply(
            x, zero_weights.scatter(1, experts, weights.float()), self.exchange
        )
        return Rows(rows, counts)

    def combine(self, rows: Tensor) -> Tensor:
        out: Tensor = _HybridEPCombine.apply(rows * self.weight.to(rows.dtype).reshape(-1, 1), self.exchange)
        return out


def _count_received_rows(exchange: Exchange) -> int:
    """Combine sends as many rows as were received, because the library first sums the rows of a token on this rank."""
    return int(exchange.handle[RECEIVED_ROWS_INDEX])


class _HybridEPDispatch(torch.autograd.Function):
    """``dense_weights`` is ``[tokens, num_experts]``, with zeros for experts that the router did not choose."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, dense_weights: Tensor, exchange: Exchange) -> tuple[Tensor, Tensor, Tensor]:
        ctx.exchange = exchange
        rows, weights, _, counts, exchange.handle = exchange.library.dispatch_with_permute(
            hidden=x.contiguous(),
            routing_map=torch.zeros_like(dense_weights, dtype=torch.bool).scatter_(1, exchange.experts, True),
            probs=dense_weights,
            num_of_experts_per_rank=exchange.local_experts,
        )
        exchange.announce_dispatch(x, has_new_routes=True)
        counts = counts.to(x.device, torch.int64)
        ctx.mark_non_differentiable(counts)
        return rows, weights, counts

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None]:
        # The gradients are those of the received rows, of their weights and of the counts (without gradient). ``x`` and
        # ``dense_weights`` are the gradients of these arguments of forward.
        exchange, rows = ctx.exchange, grads[0].contiguous()
        x, dense_weights = exchange.library.combine_with_unpermute(
            hidden=rows, probs=grads[1].float().contiguous(), handle=exchange.handle
        )
        exchange.announce_combine(rows, lambda: _count_received_rows(exchange))
        return x.to(rows.dtype), dense_weights, None


class _HybridEPCombine(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, exchange: Exchange) -> Tensor:
        ctx.exchange, ctx.rows = exchange, rows.shape[0]  # ctx.rows is the number of rows
        out: Tensor = exchange.library.combine_with_unpermute(hidden=rows.contiguous(), handle=exchange.handle)[0]
        exchange.announce_combine(rows, lambda: _count_received_rows(exchange))
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        exchange, grad = ctx.exchange, grads[0].contiguous()
        rows = exchange.library.dispatch_with_permute(
            hidden=grad, handle=exchange.handle, num_permuted_tokens=ctx.rows
        )[0]
        exchange.announce_dispatch(grad, has_new_routes=False)
        return rows, None
