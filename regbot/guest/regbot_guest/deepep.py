"""Expert parallelism by DeepEP. Its kernels send a token once to each rank that holds one of the token's experts.

Written from the documented interface of deepseek-ai/DeepEP 2.x (``tests/contracts`` has the signatures), and tested
with a stand-in but not yet on GPUs. ``ElasticBuffer`` is version 2 (Hopper and newer), ``Buffer`` version 1 (Ampere and
newer).

Both return one row per token and rank. This module copies each row once per expert, then weights and sums the copies.
So the library's combine is a plain sum, whose transpose is its dispatch with the same handle.
"""

import importlib
from abc import ABC, abstractmethod
from functools import cache
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from regbot_guest.availability import explain_missing_adapters
from regbot_guest.contract import ContractError
from regbot_guest.exchange import Exchange
from regbot_guest.rows import Rows, count_rows, weighted_sum

VIA = "deepep"

DEFAULT_SMS = 20
"""Number of multiprocessors for version 2 if the library cannot estimate it: the default of version 1."""


class DispatchResult(NamedTuple):
    """One row for each token with an expert on this rank: ``x [rows, hidden]``, ``experts`` and ``weights [rows,
    top_k]``. ``experts`` has indices of this rank's experts, or -1 where the expert is on another rank.
    """

    x: Tensor
    experts: Tensor
    weights: Tensor
    handle: Any


class BufferWrapper(ABC):
    """The calls that this module makes into one version of the library, through its ``_buffer``."""

    _buffer: Any

    @abstractmethod
    def dispatch(self, x: Tensor, experts: Tensor, weights: Tensor) -> DispatchResult:
        """Start a new exchange. ``x`` is ``[tokens, hidden]``. ``experts`` and ``weights`` are ``[tokens, top_k]``."""

    @abstractmethod
    def redispatch(self, x: Tensor, handle: Any) -> Tensor:
        """Send other rows of the same tokens over the routes of ``handle``: ``[tokens, hidden] -> [rows, hidden]``."""

    def combine(self, rows: Tensor, handle: Any, weights: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Return the sum of each token's rows. If ``weights`` are given, also return them on the token's own rank."""
        x, weights, _ = self._buffer.combine(rows, handle, topk_weights=weights)
        return x, weights


class LegacyWrapper(BufferWrapper):
    """Version 1, ``deep_ep.Buffer``. ``hidden_bytes`` is the number of bytes of one row."""

    def __init__(self, group: dist.ProcessGroup, num_experts: int, hidden_bytes: int) -> None:
        buffer_class = importlib.import_module("deep_ep").Buffer
        ranks = group.size()
        configs = (buffer_class.get_dispatch_config(ranks), buffer_class.get_combine_config(ranks))
        nvlink = max(config.get_nvl_buffer_size_hint(hidden_bytes, ranks) for config in configs)
        rdma = max(config.get_rdma_buffer_size_hint(hidden_bytes, ranks) for config in configs)
        # ``nvlink`` and ``rdma`` are the sizes in bytes of the buffers for the two kinds of links.
        # The destructor of the buffer waits for the other ranks. It is not needed, because the end of the process frees
        # everything.
        self._buffer = buffer_class(group, nvlink, rdma, explicitly_destroy=True)
        self._num_experts = num_experts

    def dispatch(self, x: Tensor, experts: Tensor, weights: Tensor) -> DispatchResult:
        per_rank, per_rdma_rank, per_expert, in_rank, _ = self._buffer.get_dispatch_layout(experts, self._num_experts)
        # The ignored results are the numbers of rows by expert, and the event of the exchange.
        x, experts, weights, _, handle, _ = self._buffer.dispatch(
            x,
            topk_idx=experts,
            topk_weights=weights,
            num_tokens_per_rank=per_rank,
            num_tokens_per_rdma_rank=per_rdma_rank,
            is_token_in_rank=in_rank,
            num_tokens_per_expert=per_expert,
        )
        return DispatchResult(x, experts, weights, handle)

    def redispatch(self, x: Tensor, handle: Any) -> Tensor:
        rows: Tensor = self._buffer.dispatch(x, handle=handle)[0]
        return rows


class ElasticWrapper(BufferWrapper):
    """Version 2, ``deep_ep.ElasticBuffer``, in its compact layout: the expanding one has no backward."""

    def __init__(self, group: dist.ProcessGroup, num_experts: int, tokens: int, hidden: int, top_k: int) -> None:
        buffer_class = importlib.import_module("deep_ep").ElasticBuffer
        # The buffer uses the communicator of the group. Up to version 2.1 it does not check that the communicator
        # exists, so a barrier creates it.
        dist.barrier(group=group)
        try:
            self._buffer = buffer_class(
                group, num_max_tokens_per_rank=tokens, hidden=hidden, num_topk=top_k, explicitly_destroy=True
            )
        except Exception as error:  # the library may raise anything
            if not (advice := explain_missing_adapters()):
                raise
            raise ContractError("config", f"deep_ep cannot create its ElasticBuffer: {error}; {advice}") from error
        self._num_experts = num_experts
        try:
            self._sms = self._buffer.get_theoretical_num_sms(num_experts, top_k)
        except ZeroDivisionError:  # the library divides by the bandwidth of a link, which is 0 if it is unknown
            self._sms = DEFAULT_SMS

    def dispatch(self, x: Tensor, experts: Tensor, weights: Tensor) -> DispatchResult:
        x, experts, weights, handle, _ = self._buffer.dispatch(
            x, topk_idx=experts, topk_weights=weights, num_experts=self._num_experts, num_sms=self._sms
        )
        return DispatchResult(x, experts, weights, handle)

    def redispatch(self, x: Tensor, handle: Any) -> Tensor:
        # Without num_sms, the library would estimate it from num_experts before it reads num_experts from the handle.
        rows: Tensor = self._buffer.dispatch(x, handle=handle, num_sms=self._sms)[0]
        return rows


# A buffer takes gigabytes, and all ranks must create it together. So all layers and steps share one buffer until the
# process ends.
_legacy_wrapper, _elastic_wrapper = cache(LegacyWrapper), cache(ElasticWrapper)


class DeepEP:
    """Dispatcher that uses DeepEP's kernels. ``buffer`` is the name of the class of deep_ep to use."""

    def __init__(self, num_experts: int, group: dist.ProcessGroup, buffer: str) -> None:
        self.num_experts, self.group, self.buffer = num_experts, group, buffer
        self.local_experts = num_experts // group.size()

    def dispatch(self, x: Tensor, experts: Tensor, weights: Tensor) -> Rows:
        (tokens, hidden), top_k = x.shape, experts.shape[1]
        buffer: BufferWrapper
        if self.buffer == "ElasticBuffer":
            buffer = _elastic_wrapper(self.group, self.num_experts, tokens, hidden, top_k)
        else:
            # DeepEP's examples also take at least 2 bytes per element for the size of a row.
            buffer = _legacy_wrapper(self.group, self.num_experts, hidden * max(x.element_size(), 2))
        self.exchange = Exchange(VIA, buffer, self.group, self.num_experts, experts)
        received, expert_of_slot, weight_of_slot = _DeepEPDispatch.apply(x, weights, self.exchange)

        # A received row is copied once for each of its experts on this rank. The host waits for the number of copies.
        # Slot ``row * top_k + j`` stands for expert j of a received row.
        expert_of_slot = expert_of_slot.flatten().long()
        local_slots = (expert_of_slot >= 0).nonzero()[:, 0]
        experts_of_slots = expert_of_slot.index_select(0, local_slots)
        slots = local_slots.index_select(0, torch.argsort(experts_of_slots, stable=True))
        self.num_received, self.row_of_copy = received.shape[0], slots // top_k
        self.weight_of_copy = weight_of_slot.flatten().index_select(0, slots)
        return Rows(received.index_select(0, self.row_of_copy), count_rows(experts_of_slots, self.local_experts))

    def combine(self, rows: Tensor) -> Tensor:
        sums = weighted_sum(rows, self.row_of_copy, self.weight_of_copy, self.num_received)
        out: Tensor = _DeepEPCombine.apply(sums, self.exchange)
        return out


class _DeepEPDispatch(torch.autograd.Function):
    """Both directions announce their exchange to regbot's counter, which cannot see the library's kernels."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weights: Tensor, exchange: Exchange) -> tuple[Tensor, Tensor, Tensor]:
        ctx.exchange = exchange
        received = exchange.library.dispatch(x.contiguous(), exchange.experts, weights.float().contiguous())
        exchange.handle = received.handle
        exchange.announce_dispatch(x, has_new_routes=True)
        ctx.mark_non_differentiable(received.experts)
        return received.x, received.experts, received.weights

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor | None, None]:
        # The gradients are those of the received rows, of their experts (without gradient) and of their weights.
        exchange, rows = ctx.exchange, grads[0].contiguous()
        x, weights = exchange.library.combine(rows, exchange.handle, grads[2].float().contiguous())
        exchange.announce_combine(rows, lambda: rows.shape[0])
        return x.to(rows.dtype), weights, None


class _DeepEPCombine(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, exchange: Exchange) -> Tensor:
        ctx.exchange = exchange
        out, _ = exchange.library.combine(rows.contiguous(), exchange.handle, None)
        exchange.announce_combine(rows, lambda: rows.shape[0])
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        exchange, grad = ctx.exchange, grads[0].contiguous()
        rows = exchange.library.redispatch(grad, exchange.handle)
        exchange.announce_dispatch(grad, has_new_routes=False)
        return rows, None
