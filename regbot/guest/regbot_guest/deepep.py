"""Expert parallelism by DeepEP: a token travels once to each rank that holds one of its experts, in DeepEP's kernels.

Written from the documented interface of deepseek-ai/DeepEP (``deep_ep/buffers/legacy.py`` and ``elastic.py`` of 2.x;
``tests/contracts`` keeps the signatures) and checked against a stand-in with the same signatures. Not yet run on GPUs.

    ElasticBuffer   version 2: kernels compiled at first use, Hopper and newer
    Buffer          version 1, kept by version 2: Ampere and newer

Both give one row per token and rank, with the experts that are wanted of it. The rows are expanded to one per expert
here, and what the experts return is weighted and summed here before it travels home. So the library's combine is a
plain sum, and its transpose is the library's dispatch with the same handle. The weights travel with the rows, and their
gradients come home through combine.

deep_ep is imported when the first exchange is made, never before: importing it can end the process, and
``availability.py`` tries that elsewhere first.
"""

import importlib
from functools import cache
from typing import Any, NamedTuple, Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from regbot_guest.exchange import Exchange
from regbot_guest.rows import Rows, weighted_sum

VIA = "deepep"

SMS_WITHOUT_BANDWIDTH = 20
"""Multiprocessors for version 2's kernels where its own estimate fails for want of a bandwidth (it divides by it).
Version 1's default, and what torchtitan falls back to."""


class Arrived(NamedTuple):
    """What a dispatch brought: ``x [rows, hidden]``, ``experts`` (local numbers, -1 for none) and ``weights``
    ``[rows, top_k]``, and the handle by which combine finds the way back."""

    x: Tensor
    experts: Tensor
    weights: Tensor
    handle: Any


class Link(Protocol):
    """The calls into one version of the library."""

    def dispatch(self, x: Tensor, experts: Tensor, weights: Tensor) -> Arrived:
        """A new exchange: ``x [tokens, hidden]``, the others ``[tokens, top_k]``."""

    def dispatch_again(self, x: Tensor, handle: Any) -> Tensor:
        """Other rows of the same tokens along the same ways: ``[tokens, hidden] -> [rows, hidden]``."""

    def combine(self, rows: Tensor, handle: Any, weights: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """The sum of each token's rows, and of the weights where they are given."""


class Legacy:
    """Version 1, ``deep_ep.Buffer``. Sizes are the library's own recommendation for this number of ranks."""

    def __init__(self, group: dist.ProcessGroup, num_experts: int, hidden_bytes: int) -> None:
        kind = importlib.import_module("deep_ep").Buffer
        ranks = group.size()
        configs = (kind.get_dispatch_config(ranks), kind.get_combine_config(ranks))
        nvlink = max(config.get_nvl_buffer_size_hint(hidden_bytes, ranks) for config in configs)
        rdma = max(config.get_rdma_buffer_size_hint(hidden_bytes, ranks) for config in configs)
        # Its destructor waits for the other ranks; ended processes give everything back without it.
        self._buffer = kind(group, nvlink, rdma, explicitly_destroy=True)
        self._num_experts = num_experts

    def dispatch(self, x: Tensor, experts: Tensor, weights: Tensor) -> Arrived:
        per_rank, per_rdma_rank, per_expert, in_rank, _ = self._buffer.get_dispatch_layout(experts, self._num_experts)
        x, experts, weights, _, handle, _ = self._buffer.dispatch(
            x,
            topk_idx=experts,
            topk_weights=weights,
            num_tokens_per_rank=per_rank,
            num_tokens_per_rdma_rank=per_rdma_rank,
            is_token_in_rank=in_rank,
            num_tokens_per_expert=per_expert,
        )
        return Arrived(x, experts, weights, handle)

    def dispatch_again(self, x: Tensor, handle: Any) -> Tensor:
        rows: Tensor = self._buffer.dispatch(x, handle=handle)[0]
        return rows

    def combine(self, rows: Tensor, handle: Any, weights: Tensor | None) -> tuple[Tensor, Tensor | None]:
        x, weights, _ = self._buffer.combine(rows, handle, topk_weights=weights)
        return x, weights


class Elastic:
    """Version 2, ``deep_ep.ElasticBuffer``, in its compact layout: the expanding one has no backward."""

    def __init__(self, group: dist.ProcessGroup, num_experts: int, tokens: int, hidden: int, top_k: int) -> None:
        kind = importlib.import_module("deep_ep").ElasticBuffer
        # The buffer takes over the group's communicator; versions up to 2.1 do not ask whether there is one yet.
        dist.barrier(group=group)
        self._buffer = kind(
            group, num_max_tokens_per_rank=tokens, hidden=hidden, num_topk=top_k, explicitly_destroy=True
        )
        self._num_experts = num_experts
        try:
            self._sms = self._buffer.get_theoretical_num_sms(num_experts, top_k)
        except ZeroDivisionError:
            self._sms = SMS_WITHOUT_BANDWIDTH

    def dispatch(self, x: Tensor, experts: Tensor, weights: Tensor) -> Arrived:
        x, experts, weights, handle, _ = self._buffer.dispatch(
            x, topk_idx=experts, topk_weights=weights, num_experts=self._num_experts, num_sms=self._sms
        )
        return Arrived(x, experts, weights, handle)

    def dispatch_again(self, x: Tensor, handle: Any) -> Tensor:
        # Without num_sms the library estimates it from num_experts, before it takes that from the handle.
        rows: Tensor = self._buffer.dispatch(x, handle=handle, num_sms=self._sms)[0]
        return rows

    def combine(self, rows: Tensor, handle: Any, weights: Tensor | None) -> tuple[Tensor, Tensor | None]:
        x, weights, _ = self._buffer.combine(rows, handle, topk_weights=weights)
        return x, weights


# Buffers are gigabytes that all ranks make together: one for all layers and steps, as long as the process lives.


@cache
def _legacy(group: dist.ProcessGroup, num_experts: int, hidden_bytes: int) -> Link:
    return Legacy(group, num_experts, hidden_bytes)


@cache
def _elastic(group: dist.ProcessGroup, num_experts: int, tokens: int, hidden: int, top_k: int) -> Link:
    return Elastic(group, num_experts, tokens, hidden, top_k)


class DeepEP:
    """Expert parallelism by DeepEP's kernels. ``buffer`` is the class of deep_ep to use."""

    def __init__(self, num_experts: int, group: dist.ProcessGroup, buffer: str) -> None:
        self.num_experts, self.group, self.buffer = num_experts, group, buffer
        self.local_experts = num_experts // group.size()

    def dispatch(self, x: Tensor, experts: Tensor, weights: Tensor) -> Rows:
        (tokens, hidden), top_k = x.shape, experts.shape[1]
        if self.buffer == "ElasticBuffer":
            link = _elastic(self.group, self.num_experts, tokens, hidden, top_k)
        else:
            link = _legacy(self.group, self.num_experts, hidden * max(x.element_size(), 2))
        self.exchange = Exchange(VIA, link, self.group, self.num_experts, experts)
        arrived, wanted, row_weights = _Dispatch.apply(x, weights, self.exchange)

        here = wanted >= 0  # one row per token; from here on one per expert that wants it
        row = here.nonzero()[:, 0]
        by_expert = torch.argsort(wanted[here], stable=True)
        self.arrived, self.row = arrived.shape[0], row[by_expert]
        self.weight = row_weights[here][by_expert]
        return Rows(arrived[self.row], torch.bincount(wanted[here], minlength=self.local_experts))

    def combine(self, rows: Tensor) -> Tensor:
        out: Tensor = _Combine.apply(weighted_sum(rows, self.row, self.weight, self.arrived), self.exchange)
        return out


class _Dispatch(torch.autograd.Function):
    """Rows to the ranks that hold their experts; its backward sends the gradients of rows and weights home."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weights: Tensor, exchange: Exchange) -> tuple[Tensor, Tensor, Tensor]:
        ctx.exchange = exchange
        arrived = exchange.library.dispatch(x.contiguous(), exchange.experts, weights.float().contiguous())
        exchange.handle = arrived.handle
        exchange.went_there(x, routed=True)
        ctx.mark_non_differentiable(arrived.experts)
        return arrived.x, arrived.experts, arrived.weights

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor | None, None]:
        exchange, rows = ctx.exchange, grads[0].contiguous()
        x, weights = exchange.library.combine(rows, exchange.handle, grads[2].float().contiguous())
        exchange.went_home(rows, lambda: rows.shape[0])
        return x.to(rows.dtype), weights, None


class _Combine(torch.autograd.Function):
    """The sum of each token's rows on the token's own rank; its backward sends the gradient to all of them."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, exchange: Exchange) -> Tensor:
        ctx.exchange = exchange
        out, _ = exchange.library.combine(rows.contiguous(), exchange.handle, None)
        exchange.went_home(rows, lambda: rows.shape[0])
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        exchange, grad = ctx.exchange, grads[0].contiguous()
        rows = exchange.library.dispatch_again(grad, exchange.handle)
        exchange.went_there(grad, routed=False)
        return rows, None
