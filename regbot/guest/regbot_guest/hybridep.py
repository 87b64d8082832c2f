"""Expert parallelism by HybridEP: NVIDIA's dispatcher of the ``hybrid-ep`` branch of DeepEP, permutation included.

Written from the documented interface of ``deep_ep/hybrid_ep_buffer.py`` (``tests/contracts`` keeps the signatures) and
checked against a stand-in with the same signatures. Not yet run on GPUs.

``dispatch_with_permute`` brings one row per local expert, grouped by expert, so nothing is left to sort here; the rows
are weighted here, and ``combine_with_unpermute`` sums them on the token's own rank. Each is the transpose of the other
with the same handle. Only the blocking mode is used: in the other one a buffer that is too small drops tokens silently,
which is faster and wrong. Every rank must have the same number of tokens.
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

ARRIVED = 3
"""Place of ``num_dispatched_tokens_tensor`` in the handle, the same in all published versions."""


# One buffer for all layers and steps, as long as the process lives.
@cache
def _buffer(group: dist.ProcessGroup, tokens: int, hidden: int, local_experts: int) -> Any:
    kind = importlib.import_module("deep_ep").HybridEPBuffer
    return kind(group=group, hidden_dim=hidden, max_num_of_tokens_per_rank=tokens, num_local_experts=local_experts)


class HybridEP:
    """Expert parallelism by HybridEP's kernels."""

    def __init__(self, num_experts: int, group: dist.ProcessGroup) -> None:
        self.num_experts, self.group = num_experts, group
        self.local_experts = num_experts // group.size()

    def dispatch(self, x: Tensor, experts: Tensor, weights: Tensor) -> Rows:
        tokens, hidden = x.shape
        buffer = _buffer(self.group, tokens, hidden, self.local_experts)
        self.exchange = Exchange(VIA, buffer, self.group, self.num_experts, experts)
        # The library takes the weight of every expert for every token, zero for most.
        dense = torch.zeros(tokens, self.num_experts, dtype=torch.float32, device=x.device)
        rows, self.weight, counts = _Dispatch.apply(x, dense.scatter(1, experts, weights.float()), self.exchange)
        return Rows(rows, counts)

    def combine(self, rows: Tensor) -> Tensor:
        out: Tensor = _Combine.apply(rows * self.weight.to(rows.dtype).reshape(-1, 1), self.exchange)
        return out


def _arrived(exchange: Exchange) -> int:
    """Rows that came here, before the library made one of them per expert. Only as many go home: it sums them first."""
    return int(exchange.handle[ARRIVED])


class _Dispatch(torch.autograd.Function):
    """Rows to the ranks that hold their experts, grouped by expert; its backward sends the gradients home."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, dense: Tensor, exchange: Exchange) -> tuple[Tensor, Tensor, Tensor]:
        ctx.exchange = exchange
        rows, weights, _, counts, exchange.handle = exchange.library.dispatch_with_permute(
            hidden=x.contiguous(),
            routing_map=torch.zeros_like(dense, dtype=torch.bool).scatter_(1, exchange.experts, True),
            probs=dense,
            num_of_experts_per_rank=exchange.local_experts,
        )
        exchange.went_there(x, routed=True)
        counts = counts.to(x.device, torch.int64)
        ctx.mark_non_differentiable(counts)
        return rows, weights, counts

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None]:
        exchange, rows = ctx.exchange, grads[0].contiguous()
        x, dense = exchange.library.combine_with_unpermute(
            hidden=rows, probs=grads[1].float().contiguous(), handle=exchange.handle
        )
        exchange.went_home(rows, lambda: _arrived(exchange))
        return x.to(rows.dtype), dense, None


class _Combine(torch.autograd.Function):
    """The sum of each token's rows on the token's own rank; its backward sends the gradient to all of them."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, exchange: Exchange) -> Tensor:
        ctx.exchange, ctx.rows = exchange, rows.shape[0]
        out: Tensor = exchange.library.combine_with_unpermute(hidden=rows.contiguous(), handle=exchange.handle)[0]
        exchange.went_home(rows, lambda: _arrived(exchange))
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        exchange, grad = ctx.exchange, grads[0].contiguous()
        rows = exchange.library.dispatch_with_permute(
            hidden=grad, handle=exchange.handle, num_permuted_tokens=ctx.rows
        )[0]
        exchange.went_there(grad, routed=False)
        return rows, None
