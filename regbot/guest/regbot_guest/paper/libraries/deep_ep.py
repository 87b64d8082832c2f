"""``deep_ep`` on a paper GPU: DeepEP's ``Buffer`` and ``ElasticBuffer``, and HybridEP's ``HybridEPBuffer``, with the
published signatures (``tests/contracts``).

Each call announces its exchange to the counter. The numbers of rows follow from the routing. Every other rank is
assumed to send the same rows as this rank. If the routing is unknown, the call is refused.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from regbot_guest.paper.device import Device
from regbot_guest.paper.libraries.stand_in import Refusing, StandIn
from regbot_guest.tally import announce

NAME, UTILS = "deep_ep", "deep_ep.utils"
DEEPEP, HYBRIDEP = "deepep", "hybridep"
BUFFER_BYTES, NUM_SMS = 1 << 20, 20
"""Bytes of a buffer, if the program does not choose a size, and number of multiprocessors that an exchange uses."""

WITHOUT_EFFECT = frozenset((
    "allocate_on_comm_stream", "allow_hybrid_mode", "allow_mnnvl", "allow_multiple_reduction",
    "allow_nvlink_for_low_latency_mode", "async_finish", "async_with_compute_stream", "comm", "config",
    "deterministic", "do_cpu_sync", "do_handle_copy", "enable_custom_allgather", "explicitly_destroy", "hidden",
    "load_cached_kernels", "num_allocated_qps", "num_blocks_permute", "num_blocks_unpermute", "num_cpu_timeout_secs",
    "num_dispatched_tokens", "num_gpu_timeout_secs", "num_of_hybrid_ep_ranks_per_nvlink_domain",
    "num_of_ranks_per_nvlink_domain", "num_of_tokens_per_rank", "num_qps", "num_qps_per_rank", "num_sms",
    "num_sms_combine_api", "num_sms_dispatch_api", "num_sms_permute_api", "num_sms_preprocessing_api", "num_topk",
    "pad_multiple", "prefer_overlap_with_compute", "previous_event", "previous_event_before_epilogue", "sl_idx",
    "use_mnnvl", "use_shared_buffer",
))  # fmt: skip
"""Arguments that change neither shapes nor exchanges: order, resources, sizes of buffers. Fingerprints include them."""


class EventOverlap(Refusing):
    """Replacement for the library's event, and for its class that overlaps an exchange with other work. All work is
    complete at once, so waiting does nothing.
    """

    __module__ = NAME

    def __init__(self, event: Any = None, extra_tensors: Any = None) -> None:
        self.event = event

    def current_stream_wait(self) -> None: ...

    def __enter__(self) -> "EventOverlap":
        return self

    def __exit__(self, *_: object) -> None: ...


class BufferConfig(Refusing):
    """Sizes of the buffer in DeepEP's version 1. The buffer takes no memory of the paper GPU."""

    __module__ = NAME

    def __init__(self, *_: Any) -> None: ...

    def get_nvl_buffer_size_hint(self, hidden_bytes: int, num_ranks: int) -> int:
        return BUFFER_BYTES

    def get_rdma_buffer_size_hint(self, hidden_bytes: int, num_ranks: int) -> int:
        return BUFFER_BYTES


@dataclass(frozen=True)
class Route:
    """``experts`` is a boolean host tensor ``[tokens, experts]``: whether the token goes to the expert. All ``ranks``
    have equally many experts, and rank 0 has the first ones.
    """

    experts: Tensor
    ranks: int

    @property
    def local_experts(self) -> int:
        return self.experts.shape[1] // self.ranks

    @property
    def in_rank(self) -> Tensor:
        """Boolean tensor ``[tokens, ranks]``: whether the rank has one of the token's experts."""
        return self.experts.view(-1, self.ranks, self.local_experts).any(2)

    @property
    def rows_sent(self) -> int:
        """Number of rows that this rank sends. A token is sent once to each rank that holds one of its experts."""
        return int(self.in_rank.sum())

    @property
    def rows_received(self) -> int:
        """Every rank is assumed to send as many rows to this rank, rank 0, as this rank sends to itself."""
        return int(self.in_rank[:, 0].sum()) * self.ranks

    @property
    def tokens_per_expert(self) -> Tensor:
        """Number of received rows for each local expert, ``[local experts]``."""
        return self.experts[:, : self.local_experts].sum(0) * self.ranks


def stand_in(name: str, device: Device) -> StandIn:
    """Return the stand-in for ``deep_ep`` or a submodule. Submodules other than ``deep_ep.utils`` have no contents."""
    contents: dict[str, Any] = {}
    if name in (NAME, UTILS):
        contents = {"EventHandle": EventOverlap, "EventOverlap": EventOverlap}
    if name == f"{NAME}.hybrid_ep_buffer":
        contents = {"indices_to_map": _indices_to_map}
    if name == NAME:
        contents |= {
            "__version__": "2.1.0",
            "utils": stand_in(UTILS, device),
            "topk_idx_t": torch.int64,
            "Config": BufferConfig,
            "Buffer": _buffer(device),
            "ElasticBuffer": _elastic_buffer(device),
            "HybridEPBuffer": _hybrid_buffer(device),
        }
    return StandIn(name, device, {}, contents)


def _indices_to_map(experts: Tensor, weights: "Tensor | None", tokens: int, num_experts: int) -> tuple[Tensor, Any]:
    """Return the experts and weights of each token as tensors ``[tokens, num_experts]``, as HybridEP does."""
    indices = experts.long()
    routing = torch.zeros(tokens, num_experts, dtype=torch.bool, device=experts.device).scatter(1, indices, 1)
    return routing, None if weights is None else weights.new_zeros(tokens, num_experts).scatter(1, indices, weights)


def _route(device: Device, experts: "Tensor | None", num_experts: int, ranks: int) -> Route:
    """``experts`` is ``[tokens, top_k]``, where -1 means no expert. Unknown experts are refused."""
    chosen = device.values(experts) if experts is not None else None
    if chosen is None:
        device.refuse("DeepEP's dispatch was given expert indices that are not known")
        raise AssertionError("refuse returned")
    # The additional last column receives the choices that name no expert, and is cut off again.
    routing = torch.zeros(chosen.shape[0], num_experts + 1, dtype=torch.bool)
    routing.scatter_(1, chosen.long().where(chosen >= 0, num_experts), True)
    return Route(routing[:, :num_experts].contiguous(), ranks)


def _announce(via: str, group: Any, rows: int, like: Tensor) -> None:
    announce(via, group, like.dtype, lambda: rows * like.shape[-1] * like.element_size())


def _received_experts(route: Route, experts: Tensor, device: Device) -> Tensor:
    """Return local expert indices, ``[rows, top_k]``. Experts on other ranks are -1."""
    chosen = device.values(experts)
    # Every rank is assumed to send this rank, rank 0, the same rows as this rank sends to itself.
    received = chosen[route.in_rank[:, 0]].repeat(route.ranks, 1)
    return received.where(received < route.local_experts, -1).to(experts.dtype).to(experts.device, non_blocking=True)


def _padded_rows_per_expert(route: Route, alignment: "int | None") -> list[int]:
    multiple = alignment or 1
    return [-(-int(rows) // multiple) * multiple for rows in route.tokens_per_expert]


def _accept(device: Device, call: str, positional: tuple[Any, ...], settings: dict[str, Any]) -> dict[str, Any]:
    """Return ``settings``, the remaining arguments of a call. Those that are not modelled are refused by name."""
    unknown = {**{f"positional argument {value!r}": value for value in positional}, **settings}
    for name, value in unknown.items():
        if name not in WITHOUT_EFFECT and value is not None and value is not False:
            device.refuse(f"deep_ep.{call} was called with {name}, which its stand-in does not model")
    return settings


def _buffer(device: Device) -> type:
    class Buffer(Refusing):
        __module__ = NAME

        num_sms = NUM_SMS

        def __init__(
            self, group: Any, num_nvl_bytes: int = 0, num_rdma_bytes: int = 0, *more: Any, **settings: Any
        ) -> None:
            self.group, self.num_nvl_bytes, self.num_rdma_bytes = group, num_nvl_bytes, num_rdma_bytes
            self.settings = _accept(device, "Buffer", more, settings)

        @staticmethod
        def set_num_sms(count: int) -> None:
            Buffer.num_sms = count

        @staticmethod
        def get_dispatch_config(num_ranks: int) -> BufferConfig:
            return BufferConfig()

        get_combine_config = get_dispatch_config

        @staticmethod
        def capture() -> EventOverlap:
            return EventOverlap()

        def get_dispatch_layout(
            self, topk_idx: Tensor, num_experts: int, *more: Any, **settings: Any
        ) -> tuple[Any, ...]:
            """Return the tokens for each rank, node and expert, whether each token goes to each rank, and an event."""
            route = _route(device, topk_idx, num_experts, self.group.size())
            device.launch(
                "deep_ep::get_dispatch_layout",
                [topk_idx, _accept(device, "Buffer.get_dispatch_layout", more, settings)],
            )
            per_rank = route.in_rank.sum(0, dtype=torch.int32).to(topk_idx.device, non_blocking=True)
            per_expert = route.experts.sum(0, dtype=torch.int32).to(topk_idx.device, non_blocking=True)
            # Only groups that span several nodes of 8 GPUs have a count per node.
            per_node = per_rank.new_empty(-(-self.group.size() // 8)) if self.group.size() > 8 else None
            is_in_rank = route.in_rank.to(topk_idx.device, non_blocking=True)
            return per_rank, per_node, per_expert, is_in_rank, EventOverlap()

        def dispatch(
            self, x: Tensor, handle: Any = None, num_tokens_per_rank: Any = None, num_tokens_per_rdma_rank: Any = None,
            is_token_in_rank: Any = None, num_tokens_per_expert: Any = None, topk_idx: "Tensor | None" = None,
            topk_weights: "Tensor | None" = None, expert_alignment: int = 1, num_worst_tokens: int = 0, **settings: Any,
        ) -> tuple[Any, ...]:  # fmt: skip
            """Return received rows, their experts and weights, padded rows per local expert, the handle and an event.
            With a handle, which is the route, or without experts or weights, all but the rows and the event are None.
            """
            has_handle = handle is not None
            route = handle or _route(device, topk_idx, num_tokens_per_expert.numel(), self.group.size())
            _launch_dispatch(device, "Buffer", self.group, x, route, [self.num_sms, self.settings], settings)
            # The caller may set an upper limit, which is then the number of rows of the output. 0 means no limit: the
            # host waits for the number.
            if not has_handle and not num_worst_tokens:
                device.on_host_wait("size")
            rows = x.new_empty(num_worst_tokens or route.rows_received, x.shape[1])
            if has_handle or topk_idx is None or topk_weights is None:
                return rows, None, None, None, None, EventOverlap()
            experts = _received_experts(route, topk_idx, device)
            weights = topk_weights.new_empty(experts.shape)
            return rows, experts, weights, _padded_rows_per_expert(route, expert_alignment), route, EventOverlap()

        def combine(
            self, x: Tensor, handle: Route, topk_weights: "Tensor | None" = None, **settings: Any
        ) -> tuple[Any, ...]:
            accepted = [self.num_sms, self.settings, _accept(device, "Buffer.combine", (), settings)]
            return (*_combine(device, self.group, x, handle, topk_weights, accepted), EventOverlap())

    return Buffer


def _launch_dispatch(
    device: Device, buffer: str, group: Any, x: Any, route: Route, of_buffer: list[Any], settings: dict[str, Any]
) -> None:
    if not isinstance(x, Tensor):
        device.refuse(f"deep_ep.{buffer}.dispatch was called with FP8 rows, which its stand-in does not model")
    device.launch("deep_ep::dispatch", [x, *of_buffer, _accept(device, f"{buffer}.dispatch", (), settings)])
    _announce(DEEPEP, group, route.rows_sent, x)


def _combine(
    device: Device, group: Any, x: Tensor, route: Route, weights: "Tensor | None", accepted: list[Any]
) -> tuple[Tensor, "Tensor | None"]:
    """Return the summed rows of this rank's tokens, and their weights, or None without ``weights``."""
    device.launch("deep_ep::combine", [x, *accepted])
    _announce(DEEPEP, group, route.rows_received, x)
    tokens = route.experts.shape[0]
    return x.new_empty(tokens, x.shape[1]), weights.new_empty(tokens, weights.shape[1]) if weights is not None else None


@dataclass(frozen=True)
class _ElasticHandle:
    route: Route
    num_sms: int
    num_recv_tokens_per_expert_list: list[int]


def _elastic_buffer(device: Device) -> type:
    class ElasticBuffer(Refusing):
        """DeepEP's version 2, in its compact layout (``do_expand=False``)."""

        __module__ = NAME

        def __init__(
            self, group: Any, num_bytes: "int | None" = None, num_cpu_bytes: int = 0, num_max_tokens_per_rank: int = 0,
            *more: Any, **settings: Any,
        ) -> None:  # fmt: skip
            self.group, self.num_max_tokens_per_rank = group, num_max_tokens_per_rank
            self.num_bytes = num_bytes or BUFFER_BYTES
            self.settings = _accept(device, "ElasticBuffer", more, settings)

        @staticmethod
        def get_buffer_size_hint(*_: Any, **__: Any) -> int:
            return BUFFER_BYTES

        def get_theoretical_num_sms(self, *_: Any, **__: Any) -> int:
            return NUM_SMS

        def dispatch(
            self, x: Tensor, topk_idx: "Tensor | None" = None, topk_weights: "Tensor | None" = None,
            cumulative_local_expert_recv_stats: Any = None, num_experts: int = 0,
            num_max_tokens_per_rank: "int | None" = None, expert_alignment: "int | None" = None, num_sms: int = 0,
            *more: Any, handle: Any = None, **settings: Any,
        ) -> tuple[Any, ...]:  # fmt: skip
            """Return received rows, their experts and weights (None with a handle), the handle and an event."""
            statistics = {"cumulative_local_expert_recv_stats": cumulative_local_expert_recv_stats}
            _accept(device, "ElasticBuffer.dispatch", more, statistics)
            has_handle = handle is not None
            if handle is None:
                route = _route(device, topk_idx, num_experts, self.group.size())
                handle = _ElasticHandle(route, num_sms or NUM_SMS, _padded_rows_per_expert(route, expert_alignment))
                device.on_host_wait("size")
            route = handle.route
            _launch_dispatch(device, "ElasticBuffer", self.group, x, route, [num_sms, self.settings], settings)
            rows = x.new_empty(route.rows_received, x.shape[1])
            if has_handle or topk_idx is None or topk_weights is None:
                return rows, None, None, handle, EventOverlap()
            experts = _received_experts(route, topk_idx, device)
            return rows, experts, topk_weights.new_empty(experts.shape), handle, EventOverlap()

        def combine(
            self, x: Tensor, handle: _ElasticHandle, topk_weights: "Tensor | None" = None, **settings: Any
        ) -> tuple[Any, ...]:
            accepted = [self.settings, _accept(device, "ElasticBuffer.combine", (), settings)]
            return (*_combine(device, self.group, x, handle.route, topk_weights, accepted), EventOverlap())

    return ElasticBuffer


@dataclass(frozen=True)
class _HybridHandle:
    route: Route
    padded_rows: Sequence[int]
    """Number of received rows for each local expert, padded to the requested multiple."""


def _hybrid_buffer(device: Device) -> type:
    class HybridEPBuffer(Refusing):
        __module__ = NAME

        def __init__(
            self, group: Any, hidden_dim: int, max_num_of_tokens_per_rank: int, num_local_experts: int,
            *more: Any, **settings: Any,
        ) -> None:  # fmt: skip
            self.group, self.local_experts = group, num_local_experts
            self.settings = _accept(device, "HybridEPBuffer", more, settings)
            sizes = SimpleNamespace(
                hidden_dim=hidden_dim, max_num_of_tokens_per_rank=max_num_of_tokens_per_rank,
                num_of_experts_per_rank=num_local_experts,
            )  # fmt: skip
            self.configurer = SimpleNamespace(buffer_config=sizes)

        def dispatch_with_permute(
            self, *, hidden: Tensor, topk_idx: "Tensor | None" = None, topk_weights: "Tensor | None" = None,
            num_of_experts_per_rank: Any = None, num_of_experts: "int | None" = None,
            routing_map: "Tensor | None" = None, probs: "Tensor | None" = None,
            num_permuted_tokens: "int | None" = None, pad_multiple: "int | None" = None, handle: Any = None,
            non_blocking: bool = False, fuse_permute_dispatch: bool = False, use_host_meta: "bool | None" = None,
            **settings: Any,
        ) -> tuple[Any, ...]:  # fmt: skip
            """Return the rows for local experts, their weights, None for scales, the rows per expert, and the handle.
            With a handle, the rows travel over its route and have no weights.
            """
            has_handle = handle is not None
            if handle is None:
                route = self._route(topk_idx, routing_map, num_of_experts)
                handle = _HybridHandle(route, _padded_rows_per_expert(route, pad_multiple))
            if use_host_meta is not None:
                non_blocking = not use_host_meta
            accepted = [self.settings, _accept(device, "HybridEPBuffer.dispatch_with_permute", (), settings)]
            device.launch("hybrid_ep::dispatch_with_permute", [hidden, *accepted, fuse_permute_dispatch])
            _announce(HYBRIDEP, self.group, handle.route.rows_sent, hidden)
            num_rows = num_permuted_tokens or sum(handle.padded_rows)
            per_expert = torch.tensor(handle.padded_rows, dtype=torch.int32)
            if non_blocking:  # the blocking mode returns counts in pinned memory
                per_expert = per_expert.to(hidden.device, non_blocking=True)
            elif not has_handle:
                device.on_host_wait("size")
            sent_weights = probs if probs is not None else topk_weights
            weights = None if has_handle or sent_weights is None else sent_weights.new_empty(num_rows)
            return hidden.new_empty(num_rows, hidden.shape[1]), weights, None, per_expert, handle

        def combine_with_unpermute(
            self, *, hidden: Tensor, probs: "Tensor | None" = None, handle: Any = None,
            fuse_unpermute_combine: bool = False, **settings: Any,
        ) -> tuple[Tensor, "Tensor | None"]:  # fmt: skip
            route = handle.route
            accepted = [self.settings, _accept(device, "HybridEPBuffer.combine_with_unpermute", (), settings)]
            device.launch("hybrid_ep::combine_with_unpermute", [hidden, *accepted, fuse_unpermute_combine])
            _announce(HYBRIDEP, self.group, route.rows_received, hidden)
            tokens, experts = route.experts.shape
            dense_weights = probs.new_empty(tokens, experts) if probs is not None else None
            return hidden.new_empty(tokens, hidden.shape[1]), dense_weights

        def _route(self, experts: "Tensor | None", routing: "Tensor | None", num_experts: "int | None") -> Route:
            ranks = self.group.size()
            if routing is None:
                return _route(device, experts, num_experts or self.local_experts * ranks, ranks)
            routing_values = device.values(routing)
            if routing_values is None:
                device.refuse("HybridEP's dispatch was given a routing map whose values are not known")
            return Route(routing_values.bool(), ranks)

    return HybridEPBuffer
