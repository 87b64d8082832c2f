"""Classifies GPU kernels by name: whether a kernel communicates, and how.

NCCL names the device function that runs, not the collective that was requested: ``SendRecv`` is any grouped exchange,
and ``Generic`` can be any collective. So the name of an NCCL kernel is mainly a check of better evidence. Libraries for
expert-parallel dispatch leave nothing but kernel names in a trace, so their kernels are counted: ``payload`` kernels,
and ``control`` kernels, which exchange token counts. ``sync`` kernels (barriers) are not collectives. ``unknown``
kernels have a name that suggests communication but is in no table. The names are those of NCCL 2.30, RCCL, DeepEP 1.2
and 2.1, its hybrid-ep branch, nccl-ep 0.1, UCCL, MORI, the all-to-alls of TensorRT-LLM (FlashInfer has the same), and
symmetric memory of torch 2.13."""

import re
from functools import lru_cache
from typing import Literal, NamedTuple, get_args

from regbot.ledgers.readers.groups import UNKNOWN
from regbot.ledgers.readers.tally import EntryKey
from regbot.records.ledger import CollectiveBackend, Kind

Category = Literal["nccl", "payload", "control", "sync", "unknown"]


class Communication(NamedTuple):
    category: Category
    via: CollectiveBackend | None
    """The library; None if it is unknown."""
    kind: Kind | None = None
    """The collective of a payload or control kernel; None for the other categories."""
    possible_kinds: frozenset[Kind] = frozenset()
    """The collectives that an NCCL kernel with this name can run; empty for kernels of other libraries."""

    def make_key(self, axis: str, group_size: int) -> EntryKey | None:
        """Return the entry of a kernel that counts as a call of its own; None for the other categories."""
        if self.category not in ("payload", "control") or self.kind is None or self.via is None:
            return None
        return EntryKey(self.kind, axis, group_size, UNKNOWN, "unknown", self.category, self.via)


_ALL_KINDS: frozenset[Kind] = frozenset(get_args(Kind))
_NCCL = re.compile(
    r"nccl(?:Dev|SymDev|SymkDev)?Kernel_?"
    r"(AllReduce|AllGatherV|AllGather|ReduceScatter|Broadcast|Reduce|SendRecv|Generic)(?![a-z])|(mscclKernel)"
)
_POSSIBLE_KINDS: dict[str, frozenset[Kind]] = {
    "AllReduce": frozenset(("all_reduce", "barrier")),
    "AllGather": frozenset(("all_gather",)),
    "AllGatherV": frozenset(("all_gather",)),
    "ReduceScatter": frozenset(("reduce_scatter",)),
    # For lists of tensors with uneven sizes, NCCL runs an all-gather as broadcasts and a reduce-scatter as reductions.
    "Broadcast": frozenset(("broadcast", "all_gather")),
    "Reduce": frozenset(("reduce", "reduce_scatter")),
    "SendRecv": frozenset(("all_to_all", "send_recv", "gather", "scatter", "permute")),
    "Generic": _ALL_KINDS,
}


def _deepep_kernels(namespace: str, via: CollectiveBackend) -> "tuple[tuple[str, Communication | None], ...]":
    """Kernels of DeepEP, or of a library that was made from it and has another C++ namespace."""
    prefix = rf"\b{namespace}::(?:legacy::)?"
    return (
        (
            prefix + r"(?:(?:intranode|internode|internode_ll)::(?:dispatch|combine)|"
            r"elastic::(?:hybrid_)?(?:dispatch|combine)_impl)\b",
            Communication("payload", via, "all_to_all"),
        ),
        (prefix + r"\w+::notify_dispatch\b", Communication("control", via, "all_to_all")),
        (prefix + r"\w+::(?:cached_notify\w*|barrier(?:_impl)?)\b", Communication("sync", via)),
        (prefix + r"(?:layout::|\w+::(?:clean_low_latency_buffer|\w+_epilogue_impl)\b)", None),
    )


_LIBRARIES: tuple[tuple[str, Communication | None], ...] = (
    *_deepep_kernels("deep_ep", "deepep"),
    *_deepep_kernels("uccl", "uccl"),
    (r"\bEp(?:Dispatch|Combine)\w*(?:Recv|Sync|Barrier)", Communication("sync", "mori")),
    (r"\bEp(?:Dispatch|Combine)CopyToStaging", None),
    (r"\bEp(?:Dispatch|Combine)\w*(?:Kernel|Send|All)", Communication("payload", "mori", "all_to_all")),
    (r"\bmoeA2A(?:Dispatch|Combine)Kernel\b|\bmoeAllToAllKernel\b", Communication("payload", "trtllm", "all_to_all")),
    (r"\bmoeA2A(?:Prepare\w*|SanitizeExpertIds)Kernel\b", None),
    (r"\bhybrid_ep::(?:dispatch|combine)_kernel\b", Communication("payload", "hybridep", "all_to_all")),
    (r"\bag_nvl_kernel\b", Communication("control", "hybridep", "all_gather")),
    (r"\b(?:device_sync|rdma_sync|update_expected_value)_kernel\b", Communication("sync", "hybridep")),
    (
        r"\bhybrid_ep::(?:scan|permute_kernel|unpermute_kernel|pad_tokens_per_expert_kernel|restripe_prob_kernel)\b",
        None,
    ),
    (r"\bnccl_ep(?>\w*?_prob)\w*_kernel\b", Communication("control", "nccl-ep", "all_to_all")),
    (
        r"\bnccl_ep(?:\w*_(?:dispatch|combine)_kernel|(?:::\w+){0,8}::(?:dispatch|combine))\b",
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
    (r"\bsymmetric_memory::\S{0,200}(?:barrier|signal)_kernel\b", Communication("sync", "symm-mem")),
)
"""Pattern of a kernel name, and how such a kernel communicates, or None if it uses only local memory. The first pattern
that matches decides. A part of unlimited length must not be able to begin a match itself, nor be followed by another
one. Otherwise the time to search a long name would grow with the square of its length."""
_LIBRARY_PATTERNS = tuple((re.compile(pattern), communication) for pattern, communication in _LIBRARIES)
_COMMUNICATION_NAME = re.compile(
    r"nccl|rccl|msccl|nvshmem|rocshmem|deep_ep|hybrid_ep|userbuffers|cross_device_reduce|symmetric_memory|multimem|"
    r"all_?reduce|all_?gather|reduce_?scatter|all_?to_?all",
    re.IGNORECASE,
)
"""Words that suggest communication."""
_EXCHANGE_WORD = re.compile(r"dispatch|combine|a2a|all_?to_?all", re.IGNORECASE)
_EXPERT_WORD = re.compile(r"(?<![A-Za-z])(?:ep|EP|Ep)(?![a-z])|(?<=[a-z])E[Pp](?![a-z])|(?i:moe|expert)")
"""A kernel with a word of each kind in its name may exchange tokens, or may only arrange them on one GPU."""
_FUSED = re.compile(r"triton_|cutlass|void cutlass")
"""Names of compute kernels that can look like communication. A compiler names a fused kernel after every operator in
it, and such an operator can be the wait for a collective."""


@lru_cache(maxsize=2**14)
def classify(name: str) -> Communication | None:
    """Return how a kernel with this name communicates, or None for a compute kernel."""
    for pattern, communication in _LIBRARY_PATTERNS:
        if pattern.search(name):
            return communication
    if nccl := _NCCL.search(name):
        function = nccl[1] or "Generic"  # a kernel of MSCCL has no function name, and can run any collective
        return Communication("nccl", "nccl", possible_kinds=_POSSIBLE_KINDS.get(function, _ALL_KINDS))
    suggests_exchange = _EXCHANGE_WORD.search(name) and _EXPERT_WORD.search(name)
    if (_COMMUNICATION_NAME.search(name) or suggests_exchange) and not _FUSED.match(name):
        return Communication("unknown", via=None)
    return None
