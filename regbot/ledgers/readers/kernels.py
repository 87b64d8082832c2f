"""What the name of a GPU kernel says about communication. Used for libraries that leave no other trace, and as a check.

A name is a weak witness: NCCL's says which device function runs, not which collective was asked for (``SendRecv`` is
any grouped exchange, ``Generic`` anything at all), so an NCCL name is only compared with the metadata. The libraries of
expert-parallel dispatch leave nothing but names; their payload kernels are counted. Names: NCCL 2.30, RCCL, DeepEP 1.2
and 2.1, its hybrid-ep branch, nccl-ep 0.1, torch 2.13's symmetric memory.

What is kept apart from payload: ``control`` exchanges token counts between ranks and is counted with that role;
``sync`` (barriers) is communication time but no collective; kernels of these libraries that only work on local memory
(layout, permutation, epilogues) are compute, so no verdict is given on them.
"""

import re
from functools import lru_cache
from typing import Literal, NamedTuple, get_args

from regbot.records.ledger import Kind, Via

What = Literal["nccl", "payload", "control", "sync", "unknown"]


class Communication(NamedTuple):
    """``kind``: of payload and control. ``may_be``: the collectives that an NCCL kernel of this name can serve."""

    what: What
    via: Via | None
    kind: Kind | None = None
    may_be: frozenset[Kind] = frozenset()


_ANY: frozenset[Kind] = frozenset(get_args(Kind))
_NCCL = re.compile(
    r"nccl(?:Dev|SymDev|SymkDev)?Kernel_?"
    r"(AllReduce|AllGatherV|AllGather|ReduceScatter|Broadcast|Reduce|SendRecv|Generic)(?![a-z])|(mscclKernel)"
)
_MAY_BE: dict[str, frozenset[Kind]] = {
    "AllReduce": frozenset(("all_reduce", "barrier")),
    "AllGather": frozenset(("all_gather",)),
    "AllGatherV": frozenset(("all_gather",)),
    "ReduceScatter": frozenset(("reduce_scatter",)),
    # lists of uneven tensors are gathered by broadcasts and reduce-scattered by reductions
    "Broadcast": frozenset(("broadcast", "all_gather")),
    "Reduce": frozenset(("reduce", "reduce_scatter")),
    "SendRecv": frozenset(("all_to_all", "send_recv", "gather", "scatter", "permute")),
    "Generic": _ANY,
}

_DEEPEP = r"\bdeep_ep::(?:legacy::)?"
_LIBRARIES: tuple[tuple[str, Communication | None], ...] = (
    (
        _DEEPEP + r"(?:(?:intranode|internode|internode_ll)::(?:dispatch|combine)|"
        r"elastic::(?:hybrid_)?(?:dispatch|combine)_impl)\b",
        Communication("payload", "deepep", "all_to_all"),
    ),
    (_DEEPEP + r"\w+::notify_dispatch\b", Communication("control", "deepep", "all_to_all")),
    (_DEEPEP + r"\w+::(?:cached_notify\w*|barrier(?:_impl)?)\b", Communication("sync", "deepep")),
    (_DEEPEP + r"(?:layout::|\w+::(?:clean_low_latency_buffer|\w+_epilogue_impl)\b)", None),
    (r"\bhybrid_ep::(?:dispatch|combine)_kernel\b", Communication("payload", "hybridep", "all_to_all")),
    (r"\bag_nvl_kernel\b", Communication("control", "hybridep", "all_gather")),
    (r"\b(?:device_sync|rdma_sync|update_expected_value)_kernel\b", Communication("sync", "hybridep")),
    (
        r"\bhybrid_ep::(?:scan|permute_kernel|unpermute_kernel|pad_tokens_per_expert_kernel|restripe_prob_kernel)\b",
        None,
    ),
    (r"\bnccl_ep\w*_prob\w*_kernel\b", Communication("control", "nccl-ep", "all_to_all")),
    (
        r"\bnccl_ep(?:\w*_(?:dispatch|combine)_kernel|(?:::\w+)*::(?:dispatch|combine))\b",
        Communication("payload", "nccl-ep", "all_to_all"),
    ),
    (r"\bnccl_ep\w*_scan_kernel\b|\bconvert_topk_to_routing_map_kernel\b", None),
    (r"\ballToAllV(?:_2d)?(?:_offset)?\b", Communication("payload", "symm-mem", "all_to_all")),
    (r"\bexchangeSplitAndOffset(?:_2d)?\b", Communication("control", "symm-mem", "all_to_all")),
    (
        r"\b(?:multimem_(?:one_shot_)?|one_shot_|two_shot_)all_reduce_kernel\w*",
        Communication("payload", "symm-mem", "all_reduce"),
    ),
    (r"\bmultimem_all_gather_kernel\b", Communication("payload", "symm-mem", "all_gather")),
    (r"\bsymmetric_memory::\S*(?:barrier|signal)_kernel\b", Communication("sync", "symm-mem")),
)
_COMPILED = tuple((re.compile(pattern), found) for pattern, found in _LIBRARIES)
_SUSPECT = re.compile(
    r"nccl|rccl|msccl|nvshmem|rocshmem|deep_ep|hybrid_ep|userbuffers|cross_device_reduce|symmetric_memory|multimem|"
    r"all_?reduce|all_?gather|reduce_?scatter|all_?to_?all",
    re.IGNORECASE,
)
_FUSED = re.compile(r"triton_|cutlass|void cutlass")
"""Kernels that a compiler names after every operator it fused, a wait for a collective among them: they compute."""


@lru_cache(maxsize=2**14)
def classify(name: str) -> Communication | None:
    """What a kernel of this name does between ranks, None where it computes."""
    for pattern, found in _COMPILED:
        if pattern.search(name):
            return found
    if nccl := _NCCL.search(name):
        return Communication("nccl", "nccl", may_be=_MAY_BE.get(nccl[1] or "Generic", _ANY))
    if _SUSPECT.search(name) and not _FUSED.match(name):
        return Communication("unknown", None)
    return None
