"""A stand-in for deep_ep on CPU ranks: the published signatures (a test compares them), and the documented exchange.

What the real library does in GPU kernels is done here with messages through the ranks' store, so that, like the real
ones, no exchange passes torch.distributed. Rows arrive in an order of their own, as they may. What is refused here, the
real library refuses or gets wrong.
"""

import functools
import io
import itertools
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

__version__ = "2.1.0"
topk_idx_t = torch.int64

CALLS: set[tuple[str, str, tuple[str, ...]]] = set()
"""Class, method and the parameters given, of every call."""

_number = itertools.count()


def kernel(method: Callable[..., Any]) -> Callable[..., Any]:
    """Nothing inside is seen by a dispatch mode, and the call is noted."""
    names = method.__code__.co_varnames[: method.__code__.co_argcount]

    @functools.wraps(method)
    def run(*args: Any, **kwargs: Any) -> Any:
        given = tuple(sorted({*names[: len(args)], *kwargs} - {"self"}))
        CALLS.add((*method.__qualname__.split("."), given))  # type: ignore[arg-type]
        with _disable_current_modes(), torch.no_grad():
            return method(*args, **kwargs)

    return run


def swap(group: Any, messages: list[tuple[Tensor, ...]]) -> list[tuple[Tensor, ...]]:
    """One message to every rank of the group, one from each."""
    store, me, number = dist.distributed_c10d._get_default_store(), group.rank(), next(_number)
    for rank, message in enumerate(messages):
        data = io.BytesIO()
        torch.save([part.clone() for part in message], data)
        store.set(f"deep_ep/{number}/{me}/{rank}", data.getvalue())
    arrived = [store.get(f"deep_ep/{number}/{rank}/{me}") for rank in range(group.size())]
    return [tuple(torch.load(io.BytesIO(data), weights_only=True)) for data in arrived]


def there(group: Any, in_rank: Tensor, *parts: Tensor) -> tuple[list[Tensor], list[int]]:
    """Rows of ``parts`` to every rank that needs their token; what arrived, last rank first, and how much of each."""
    arrived = swap(group, [tuple(part[in_rank[:, rank]] for part in parts) for rank in range(group.size())])[::-1]
    return [torch.cat(column) for column in zip(*arrived, strict=True)], [message[0].shape[0] for message in arrived]


def home(group: Any, in_rank: Tensor, counts: list[int], rows: Tensor) -> Tensor:
    """Rows in the order of ``there`` back to their ranks, summed for each token."""
    arrived = swap(group, [(part,) for part in rows.split(counts)][::-1])
    out = rows.new_zeros(in_rank.shape[0], *rows.shape[1:])
    for rank, (part,) in enumerate(arrived):
        out[in_rank[:, rank]] += part
    return out


def route(group: Any, experts: Tensor, weights: Tensor, num_experts: int) -> Tensor:
    """Which tokens each rank needs ``[tokens, ranks]``."""
    assert experts.dtype == topk_idx_t
    assert weights.dtype == torch.float32
    assert experts.is_contiguous()
    assert weights.is_contiguous()
    assert experts.shape == weights.shape
    holder = experts // (num_experts // group.size())
    return torch.stack([(holder == rank).any(1) for rank in range(group.size())], 1)


def localised(group: Any, experts: Tensor, weights: Tensor, num_experts: int) -> tuple[Tensor, Tensor]:
    """Expert numbers as their holder counts them, -1 and no weight for those of other ranks."""
    local = num_experts // group.size()
    experts = experts - group.rank() * local
    mine = (experts >= 0) & (experts < local)
    return experts.masked_fill(~mine, -1), weights * mine


class Config:
    def get_nvl_buffer_size_hint(self, hidden_bytes: int, num_ranks: int) -> int:
        return 1024 * hidden_bytes * num_ranks

    def get_rdma_buffer_size_hint(self, hidden_bytes: int, num_ranks: int) -> int:
        return 0


class Buffer:
    @kernel
    def __init__(
        self, group: Any, num_nvl_bytes: int = 0, num_rdma_bytes: int = 0, low_latency_mode: bool = False,
        num_qps_per_rank: int = 24, allow_nvlink_for_low_latency_mode: bool = True, allow_mnnvl: bool = False,
        explicitly_destroy: bool = False, enable_shrink: bool = False, comm: Any = None,
    ) -> None:  # fmt: skip
        assert num_nvl_bytes > 0
        self.group = group

    @staticmethod
    @kernel
    def get_dispatch_config(num_ranks: int) -> Config:
        return Config()

    @staticmethod
    @kernel
    def get_combine_config(num_ranks: int) -> Config:
        return Config()

    @kernel
    def get_dispatch_layout(
        self, topk_idx: Tensor, num_experts: int, previous_event: Any = None, async_finish: bool = False,
        allocate_on_comm_stream: bool = False,
    ) -> tuple[Any, ...]:  # fmt: skip
        in_rank = route(self.group, topk_idx, torch.ones_like(topk_idx, dtype=torch.float32), num_experts)
        per_expert = torch.bincount(topk_idx.flatten(), minlength=num_experts)
        return in_rank.sum(0).int(), None, per_expert.int(), in_rank, None

    @kernel
    def dispatch(
        self, x: Tensor, handle: Any = None, num_tokens_per_rank: Any = None, num_tokens_per_rdma_rank: Any = None,
        is_token_in_rank: Any = None, num_tokens_per_expert: Any = None, topk_idx: Any = None, topk_weights: Any = None,
        expert_alignment: int = 1, num_worst_tokens: int = 0, config: Any = None, previous_event: Any = None,
        async_finish: bool = False, allocate_on_comm_stream: bool = False,
    ) -> tuple[Any, ...]:  # fmt: skip
        assert x.is_contiguous()
        if handle is not None:
            assert topk_idx is None
            assert topk_weights is None
            rows, _ = there(self.group, handle[0], x)
            return rows[0], None, None, None, None, None
        assert num_tokens_per_rank is not None
        num_experts = num_tokens_per_expert.numel()
        (rows, experts, weights), counts = there(self.group, is_token_in_rank, x, topk_idx, topk_weights)
        experts, weights = localised(self.group, experts, weights, num_experts)
        per_expert = torch.bincount(experts[experts >= 0], minlength=num_experts // self.group.size()).tolist()
        return rows, experts, weights, per_expert, (is_token_in_rank, counts), None

    @kernel
    def combine(
        self, x: Tensor, handle: Any, topk_weights: Any = None, bias: Any = None, config: Any = None,
        previous_event: Any = None, async_finish: bool = False, allocate_on_comm_stream: bool = False,
    ) -> tuple[Any, ...]:  # fmt: skip
        assert x.is_contiguous()
        assert x.shape[0] == sum(handle[1])
        weights = home(self.group, *handle, topk_weights) if topk_weights is not None else None
        return home(self.group, *handle, x), weights, None


class EPHandle:
    def __init__(self, in_rank: Tensor, counts: list[int], num_experts: int) -> None:
        self.ways, self.num_experts = (in_rank, counts), num_experts


class ElasticBuffer:
    @kernel
    def __init__(
        self, group: Any, num_bytes: Any = None, num_cpu_bytes: int = 0, num_max_tokens_per_rank: int = 0,
        hidden: int = 0, num_topk: int = 0, use_fp8_dispatch: bool = False, deterministic: bool = False,
        allow_hybrid_mode: bool = True, allow_multiple_reduction: bool = True, prefer_overlap_with_compute: bool = True,
        sl_idx: int = 3, num_allocated_qps: int = 0, num_cpu_timeout_secs: int = 300, num_gpu_timeout_secs: int = 100,
        explicitly_destroy: bool = False,
    ) -> None:  # fmt: skip
        assert num_bytes is not None or (num_max_tokens_per_rank > 0 and hidden > 0)
        self.group, self.tokens = group, num_max_tokens_per_rank

    @kernel
    def get_theoretical_num_sms(
        self, num_experts: int, num_topk: int, num_scaleout_topk: int = 0, rdma_gbs: float = 0, nvlink_gbs: float = 0,
        sm_read_gbs: float = 200, sm_write_gbs: float = 50,
    ) -> int:  # fmt: skip
        assert num_experts % self.group.size() == 0
        return 24 // int(nvlink_gbs)  # as on a machine whose bandwidth is not known

    @kernel
    def dispatch(
        self, x: Tensor, topk_idx: Any = None, topk_weights: Any = None, cumulative_local_expert_recv_stats: Any = None,
        num_experts: Any = None, num_max_tokens_per_rank: Any = None, expert_alignment: Any = None, num_sms: int = 0,
        num_qps: int = 0, previous_event: Any = None, previous_event_before_epilogue: Any = None,
        async_with_compute_stream: bool = False, allocate_on_comm_stream: bool = False, handle: Any = None,
        do_handle_copy: bool = True, do_cpu_sync: Any = None, do_expand: bool = False, do_zero_padding: bool = False,
        use_tma_aligned_col_major_sf: bool = False,
    ) -> tuple[Any, ...]:  # fmt: skip
        assert x.is_contiguous()
        assert x.shape[0] <= self.tokens
        num_sms = num_sms or self.get_theoretical_num_sms(num_experts, 1)  # before the handle is asked, as published
        if handle is not None:
            assert topk_idx is None
            assert not do_cpu_sync
            rows, _ = there(self.group, handle.ways[0], x)
            return rows[0], None, None, handle, None
        in_rank = route(self.group, topk_idx, topk_weights, num_experts)
        (rows, experts, weights), counts = there(self.group, in_rank, x, topk_idx, topk_weights)
        experts, weights = localised(self.group, experts, weights, num_experts)
        return rows, experts, weights, EPHandle(in_rank, counts, num_experts), None

    @kernel
    def combine(
        self, x: Tensor, handle: Any, topk_weights: Any = None, bias: Any = None, num_sms: int = 0, num_qps: int = 0,
        previous_event: Any = None, previous_event_before_epilogue: Any = None, async_with_compute_stream: bool = False,
        allocate_on_comm_stream: bool = False,
    ) -> tuple[Any, ...]:  # fmt: skip
        assert x.is_contiguous()
        assert x.shape[0] == sum(handle.ways[1])
        weights = home(self.group, *handle.ways, topk_weights) if topk_weights is not None else None
        return home(self.group, *handle.ways, x), weights, None


class HybridEPBuffer:
    @kernel
    def __init__(
        self, group: Any, hidden_dim: int, max_num_of_tokens_per_rank: int, num_local_experts: int,
        use_fp8: bool = False, num_sms_dispatch_api: Any = None, num_sms_combine_api: Any = None,
        num_sms_preprocessing_api: Any = None, num_blocks_permute: Any = None, num_blocks_unpermute: Any = None,
        load_cached_kernels: bool = False, use_shared_buffer: bool = True, enable_custom_allgather: bool = False,
        num_of_hybrid_ep_ranks_per_nvlink_domain: Any = None, use_mnnvl: Any = None,
    ) -> None:  # fmt: skip
        assert group.size() > 1
        self.group, self.tokens, self.local = group, max_num_of_tokens_per_rank, num_local_experts

    @kernel
    def dispatch_with_permute(
        self, *, hidden: Tensor, topk_idx: Any = None, topk_weights: Any = None, num_of_experts_per_rank: Any = None,
        num_of_experts: Any = None, use_fp8: Any = None, routing_map: Any = None, probs: Any = None,
        scaling_factor: Any = None, num_permuted_tokens: Any = None, pad_multiple: Any = None,
        num_of_tokens_per_rank: Any = None, handle: Any = None, non_blocking: bool = False,
        fuse_permute_dispatch: bool = False, num_dispatched_tokens: Any = None, use_host_meta: Any = None,
    ) -> tuple[Any, ...]:  # fmt: skip
        assert hidden.is_contiguous()
        assert hidden.shape[0] <= self.tokens
        if handle is not None:
            in_rank, _, row, _, wanted = handle[:5]
            rows, _ = there(self.group, in_rank, hidden)
            assert num_permuted_tokens == row.numel()
            return rows[0][row], None, None, wanted.sum(0).int(), handle
        assert routing_map.dtype == torch.bool
        assert probs.dtype == torch.float32
        assert num_of_experts_per_rank == self.local
        ranks = self.group.size()
        in_rank = routing_map.view(-1, ranks, self.local).any(2)
        (rows, everything, weights), counts = there(self.group, in_rank, hidden, routing_map, probs)
        mine = slice(self.group.rank() * self.local, (self.group.rank() + 1) * self.local)
        wanted, weights = everything[:, mine], weights[:, mine]
        expert, row = wanted.t().nonzero(as_tuple=True)  # grouped by expert
        handle = (in_rank, counts, row, torch.tensor(rows.shape[0]), wanted, expert, None, None, None, None, None, None)
        return rows[row], weights[row, expert], None, wanted.sum(0).int(), handle

    @kernel
    def combine_with_unpermute(
        self, *, hidden: Tensor, probs: Any = None, handle: Any = None, pad_multiple: Any = None,
        fuse_unpermute_combine: bool = False, num_dispatched_tokens: Any = None,
    ) -> tuple[Any, ...]:  # fmt: skip
        assert hidden.is_contiguous()
        in_rank, counts, row, arrived, _, expert = handle[:6]
        rows = hidden.new_zeros(int(arrived), hidden.shape[1]).index_add_(0, row, hidden)
        dense = None
        if probs is not None:
            assert probs.dtype == torch.float32
            mine = probs.new_zeros(int(arrived), self.group.size(), self.local)
            mine[row, self.group.rank(), expert] = probs
            dense = home(self.group, in_rank, counts, mine.flatten(1))
        return home(self.group, in_rank, counts, rows), dense
