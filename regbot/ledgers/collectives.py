"""The table of collective names, and the rule that separates payload from control exchanges.

The guest has the same table and the same rule by operator (``regbot_guest.collectives``); a test holds the two equal.
"""

from regbot.records.ledger import Kind, Role

_NAMES: dict[Kind, tuple[str, ...]] = {
    "all_gather": (
        "allgather", "allgatherv", "allgatherbase", "allgathersingle", "allgathercoalesced", "allgatherintotensor",
        "allgatherintotensorcoalesced", "allgatherintotensorout", "multimemallgatherout",
    ),
    "reduce_scatter": (
        "reducescatter", "reducescatterv", "reducescatterbase", "reducescattersingle", "reducescattertensor",
        "reducescattertensorcoalesced", "reducescattertensorout", "reducescatterout",
    ),
    "all_reduce": (
        "allreduce", "allreducecoalesced", "allreducesparse", "allreduceoop", "multimemallreduce",
        "multimemoneshotallreduce", "oneshotallreduce", "twoshotallreduce",
    ),
    "all_to_all": (
        "alltoall", "alltoallv", "alltoallbase", "alltoallsingle", "alltoallvsingle", "raggedalltoall",
        "sharddimalltoall", "nvshmemalltoall", "alltoallvdev", "alltoallvdev2d", "alltoallvdev2doffset",
    ),
    "broadcast": ("broadcast", "broadcastoop", "bcast", "collectivebroadcast", "nvshmembroadcast"),
    "reduce": ("reduce", "reduceoop"),
    "gather": ("gather",),
    "scatter": ("scatter",),
    "permute": ("collectivepermute",),
    "send_recv": ("send", "isend", "recv", "irecv", "recvanysource", "sendrecv", "batchp2pops"),
    "barrier": ("barrier", "allreducebarrier", "monitoredbarrier"),
}  # fmt: skip
"""Names that torch, NCCL and XLA give to each kind, without case, underscores and hyphens."""
_KINDS = {name: kind for kind, names in _NAMES.items() for name in names}
SCALED_BY_RANKS = frozenset(("all_gather", "reduce_scatter", "all_to_all"))
"""Kinds for which NCCL's tools log one rank's piece. Their bytes in the ledger are that times the number of ranks."""

MAX_CONTROL_INDEX_BYTES = 16 * 2**20
MAX_CONTROL_SMALL_BYTES = 64 * 2**10
"""Largest size of a control exchange of indices or counts, and of smaller integers, which may be a quantized payload.
"""
_INDEX_TYPES = frozenset(("int32", "int64", "bool", "s32", "u32", "s64", "u64", "pred"))
_SMALL_TYPES = frozenset(("uint8", "int8", "int16", "s8", "u8", "s16", "u16", "s4", "u4"))


def normalize_name(name: str) -> str:
    return name.lower().replace("_", "").replace("-", "")


def find_kind(name: str) -> Kind | None:
    return _KINDS.get(normalize_name(name))


def classify_role(kind: Kind, size_bytes: int | None, *dtypes: str) -> Role:
    """Return control for barriers, token counts and indices, else payload. Calls of unknown size are payload."""
    if kind == "barrier":
        return "control"
    types = {*dtypes}
    if size_bytes is None or not types or not types <= _INDEX_TYPES | _SMALL_TYPES:
        return "payload"
    limit = MAX_CONTROL_INDEX_BYTES if types <= _INDEX_TYPES else MAX_CONTROL_SMALL_BYTES
    return "control" if size_bytes <= limit else "payload"
