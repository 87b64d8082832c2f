"""Signatures that DeepEP has published, copied from its sources without the annotations.

They are what regbot's dispatchers are written against. Where a new version changes one, this file is changed first, and
the tests say what else has to follow. ``*`` stands for keyword-only, as in the sources.
"""

from typing import NamedTuple


class Published(NamedTuple):
    """One class as published: repository, commit and file, and the parameters of each method that regbot calls."""

    repository: str
    commit: str
    file: str
    methods: dict[str, str]


ELASTIC = Published(
    "https://github.com/deepseek-ai/DeepEP",
    "0297fc801788b14b338a46554faca28d419e518a",  # main, version 2.x
    "deep_ep/buffers/elastic.py",
    {
        "__init__": "self, group, num_bytes=None, num_cpu_bytes=0, num_max_tokens_per_rank=0, hidden=0, num_topk=0, "
        "use_fp8_dispatch=False, deterministic=False, allow_hybrid_mode=True, allow_multiple_reduction=True, "
        "prefer_overlap_with_compute=True, sl_idx=3, num_allocated_qps=0, num_cpu_timeout_secs=300, "
        "num_gpu_timeout_secs=100, explicitly_destroy=False",
        "get_theoretical_num_sms": "self, num_experts, num_topk, num_scaleout_topk=0, rdma_gbs=0, nvlink_gbs=0, "
        "sm_read_gbs=200, sm_write_gbs=50",
        "dispatch": "self, x, topk_idx=None, topk_weights=None, cumulative_local_expert_recv_stats=None, "
        "num_experts=None, num_max_tokens_per_rank=None, expert_alignment=None, num_sms=0, num_qps=0, "
        "previous_event=None, previous_event_before_epilogue=None, async_with_compute_stream=False, "
        "allocate_on_comm_stream=False, handle=None, do_handle_copy=True, do_cpu_sync=None, do_expand=False, "
        "do_zero_padding=False, use_tma_aligned_col_major_sf=False",
        "combine": "self, x, handle, topk_weights=None, bias=None, num_sms=0, num_qps=0, previous_event=None, "
        "previous_event_before_epilogue=None, async_with_compute_stream=False, allocate_on_comm_stream=False",
    },
)

LEGACY = Published(
    "https://github.com/deepseek-ai/DeepEP",
    "189df34663dba544367607ff4a9f1916e4a33959",  # main, version 2.x; version 1.2 had it in deep_ep/buffer.py
    "deep_ep/buffers/legacy.py",
    {
        "__init__": "self, group, num_nvl_bytes=0, num_rdma_bytes=0, low_latency_mode=False, num_qps_per_rank=24, "
        "allow_nvlink_for_low_latency_mode=True, allow_mnnvl=False, explicitly_destroy=False, enable_shrink=False, "
        "comm=None",
        "get_dispatch_config": "num_ranks",
        "get_combine_config": "num_ranks",
        "get_dispatch_layout": "self, topk_idx, num_experts, previous_event=None, async_finish=False, "
        "allocate_on_comm_stream=False",
        "dispatch": "self, x, handle=None, num_tokens_per_rank=None, num_tokens_per_rdma_rank=None, "
        "is_token_in_rank=None, num_tokens_per_expert=None, topk_idx=None, topk_weights=None, expert_alignment=1, "
        "num_worst_tokens=0, config=None, previous_event=None, async_finish=False, allocate_on_comm_stream=False",
        "combine": "self, x, handle, topk_weights=None, bias=None, config=None, previous_event=None, "
        "async_finish=False, allocate_on_comm_stream=False",
    },
)

HYBRID = Published(
    "https://github.com/deepseek-ai/DeepEP",
    "81e1ec1a0e0118635919f4439418de98c5f8f9bd",  # branch hybrid-ep
    "deep_ep/hybrid_ep_buffer.py",
    {
        "__init__": "self, group, hidden_dim, max_num_of_tokens_per_rank, num_local_experts, use_fp8=False, "
        "num_sms_dispatch_api=None, num_sms_combine_api=None, num_sms_preprocessing_api=None, "
        "num_blocks_permute=None, num_blocks_unpermute=None, load_cached_kernels=False, use_shared_buffer=True, "
        "enable_custom_allgather=False, num_of_hybrid_ep_ranks_per_nvlink_domain=None, use_mnnvl=None",
        "dispatch_with_permute": "self, *, hidden, topk_idx=None, topk_weights=None, num_of_experts_per_rank=None, "
        "num_of_experts=None, use_fp8=None, routing_map=None, probs=None, scaling_factor=None, "
        "num_permuted_tokens=None, pad_multiple=None, num_of_tokens_per_rank=None, handle=None, non_blocking=False, "
        "fuse_permute_dispatch=False, num_dispatched_tokens=None, use_host_meta=None",
        "combine_with_unpermute": "self, *, hidden, probs=None, handle=None, pad_multiple=None, "
        "fuse_unpermute_combine=False, num_dispatched_tokens=None",
    },
)

OLDER_HYBRID = Published(
    "https://github.com/deepseek-ai/DeepEP",
    "098da2a6dee107028535a5776248891d6e376918",  # branch hybrid-ep, earlier
    "deep_ep/hybrid_ep_buffer.py",
    {
        "__init__": "self, group, hidden_dim, max_num_of_tokens_per_rank, num_local_experts, use_fp8=False, "
        "num_sms_dispatch_api=None, num_sms_combine_api=None, num_sms_preprocessing_api=None, "
        "num_sms_permute_api=None, num_of_ranks_per_nvlink_domain=None, use_mnnvl=None",
        "dispatch_with_permute": "self, *, hidden, topk_idx=None, topk_weights=None, num_of_experts_per_rank=None, "
        "num_of_experts=None, use_fp8=None, routing_map=None, probs=None, scaling_factor=None, "
        "num_permuted_tokens=None, pad_multiple=None, handle=None, non_blocking=False",
        "combine_with_unpermute": "self, *, hidden, probs=None, handle=None, pad_multiple=None",
    },
)


STAND_IN = {"ElasticBuffer": ELASTIC, "Buffer": LEGACY, "HybridEPBuffer": HYBRID}
"""The classes that the stand-in must have exactly like this."""
