"""Which instructions of an HLO program are collectives, and what each of them moves.

Sync operations, their ``-start`` halves (a ``-done`` is never counted), and custom calls that are known to be one. An
operation that looks like a collective and is not in the table is reported, not skipped.

Bytes follow the ledger: the input of all-to-all, reduce-scatter, all-reduce and permute, the output of all-gather. A
``-start`` operation returns its inputs and outputs side by side, so the right half is taken. A ragged all-to-all sends
what its sizes say at run time; its input buffer, an upper bound, is counted.

Phase and place come from ``op_name``, which jax builds from its own transforms and the scopes of the model:
``jit(step)/transpose(jvp(decoder))/while/body/closed_call/checkpoint/layers/moe/dot_general`` is the backward pass of
``decoder/layers/moe/dot_general``. What ``transpose(`` wraps is backward, recomputation included, because it runs
there; else what names an optimizer is; else what ``jvp(`` wraps is forward; anything else is unknown.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from regbot.ledgers.readers.hlo_groups import Group, Groups
from regbot.ledgers.readers.hlo_text import Instruction, Leaf, elements, tensors
from regbot.records.ledger import Kind, Phase, Role
from regbot.text import printable

KINDS: dict[str, Kind] = {
    "all-gather": "all_gather",
    "all-reduce": "all_reduce",
    "reduce-scatter": "reduce_scatter",
    "all-to-all": "all_to_all",
    "ragged-all-to-all": "all_to_all",
    "collective-permute": "permute",
    "collective-broadcast": "broadcast",
    "send": "send_recv",
}
"""``recv`` is the other half of a ``send`` that every device of the permutation issues too; it is not counted again."""

_LIKELY = re.compile(r"(?:all|collective|ragged|reduce-scatter|cross-replica)-.*|.*-to-all|reduce-scatter")
_LIKELY_TARGET = re.compile(
    r"all.?reduce|all.?gather|all.?to.?all|reduce.?scatter|collective|nccl|rccl|nvshmem|deep_?ep|hybrid_?ep", re.I
)
_REMOTE_COPIES = re.compile(r'has_communication\\*":\s*true')
_RAGGED = re.compile(r"ragged.?all.?to.?all", re.I)
_SEND_PAIRS = re.compile(r'[{,]_xla_send_recv_source_target_pairs="?(\{(?:\{[0-9]{1,9},[0-9]{1,9}\},?)*+\})')
_DENSE = re.compile(r"\breplica_groups = dense<[^>]*>")
_GROUPING = ("replica_groups", "device_ids", "use_global_device_ids")
"""``device_ids`` belongs to the groups that are axes of a mesh."""
_CHANNEL = re.compile(r"\bchannel_id\b")
_OPERAND = re.compile(r"\((?:([^%()]*) )?%?([\w.\-]+)(?:#[0-9]+)?[,)]", re.ASCII)

INDEX_TYPES = ("s32", "u32", "s64", "u64", "pred")
BYTE_TYPES = ("s8", "u8", "s16", "u16", "s4", "u4")
CONTROL_INDEX_BYTES = 16 * 2**20
CONTROL_BYTE_BYTES = 64 * 2**10
"""As in ``regbot_guest.collectives``: indices and token counts are small integers, quantised payload is not."""

_WRAPPER = re.compile(r"(?:transpose|jvp|vmap|jit|pjit|remat|checkpoint|custom_jvp|custom_vjp)\(([^()]*)\)")
_SCAFFOLD = frozenset(
    ("closed_call", "core_call", "eval_jaxpr", "checkpoint", "remat", "remat2", "rematted_computation", "pjit")
)
_OPTIMIZER = re.compile(
    r"(?:^|[/(:;_.])(?:optimizer|optax|apply_gradients|apply_updates|adamw?|sgd)(?:$|[/):;_.])", re.I
)
MAX_WHERE = 500
MAX_WRAPPERS = 32
"""Most transforms around one another that are taken off a name."""


@dataclass(frozen=True, slots=True)
class Collective:
    """One instruction that communicates. ``bytes`` are those of one execution."""

    kind: Kind
    bytes: int
    dtype: str
    role: Role
    group: Group
    op_name: str
    ragged: bool = False


@dataclass(frozen=True, slots=True)
class Unknown:
    """An instruction that seems to communicate, and how is not known."""

    name: str


ShapeOf = Callable[[str], str]
"""The shape of an instruction of the same computation, '' where there is none of that name."""


def communicates(opcode: str) -> bool:
    """Whether ``communication`` has to look at an instruction."""
    return opcode == "custom-call" or opcode == "send" or (_LIKELY.fullmatch(opcode) is not None)


def communication(line: Instruction, groups: Groups, shape_of: ShapeOf, scatters: bool) -> Collective | Unknown | None:
    """What an instruction communicates; None where it does nothing of the kind or only waits. ``scatters``: it stands
    in a computation that TPU compilers name ``all-reduce-scatter``. Raises BadShape, BadGroup."""
    opcode, started = line.opcode.removesuffix("-start"), line.opcode.endswith("-start")
    if opcode == "custom-call":
        return _custom_call(line, groups, shape_of)
    attributes = line.attributes
    if opcode.endswith(("-done", "-update")) or (opcode == "send" and attributes.get("is_host_transfer") == "true"):
        return None
    kind = KINDS.get(opcode)
    if kind is None:
        return Unknown(opcode)
    if kind in ("permute", "send_recv"):
        sent = _SEND_PAIRS.search(attributes.get("frontend_attributes", ""))
        pairs = attributes.get("source_target_pairs", sent[1] if sent else None)
        if pairs is None:
            return Unknown(f"{opcode} without source_target_pairs")
        group = groups.permuted(pairs, channel="channel_id" in attributes)
    else:
        group = groups.of(
            _grouping(attributes), reduces_or_gathers=kind in ("all_gather", "all_reduce", "reduce_scatter")
        )
    if opcode == "ragged-all-to-all":
        moved = _first(elements(line.shape)) if started else tensors(_operand_shape(line, shape_of) or line.shape)
        moved = moved[:1]
    elif started:
        moved = _started(kind, line.shape)
    elif kind == "send_recv":
        moved = _first(elements(line.shape))
    else:
        moved = tensors(line.shape)
    times = len(group.ranks) if kind == "reduce_scatter" and not started else 1
    if scatters and kind == "all_reduce":
        kind = "reduce_scatter"
    return _collective(kind, moved, times, group, line.op_name, ragged=opcode == "ragged-all-to-all")


def _grouping(attributes: Mapping[str, str]) -> str:
    """What of the attributes names the group, in one spelling: a program has few different groups in many lines."""
    words = [f"{name}={attributes[name]}" for name in _GROUPING if name in attributes]
    return ", ".join((["channel_id=1"] if "channel_id" in attributes else []) + words)


def _started(kind: Kind, shape: str) -> list[Leaf]:
    """The half of a ``-start`` result that the ledger counts. ``all-reduce-start`` returns its output alone unless it
    was wrapped: ``((inputs), outputs, ...)``."""
    parts = elements(shape)
    if kind == "all_reduce" and not shape.lstrip().startswith("(("):
        return [leaf for part in parts for leaf in part]
    if kind == "all_gather":
        return parts[1] if len(parts) > 1 else _first(parts)
    return _first(parts)


def _first(parts: list[list[Leaf]]) -> list[Leaf]:
    return parts[0] if parts else []


def _operand_shape(line: Instruction, shape_of: ShapeOf) -> str:
    found = _OPERAND.match(line.rest)
    return (found[1] or shape_of(found[2])) if found else ""


def _custom_call(line: Instruction, groups: Groups, shape_of: ShapeOf) -> Collective | Unknown | None:
    attributes = line.attributes
    target, config = attributes.get("custom_call_target", "").strip('"'), attributes.get("backend_config", "")
    if _RAGGED.search(target):
        listed = _DENSE.search(config)
        grouping = _grouping(attributes) if "replica_groups" in attributes else listed[0] if listed else ""
        moved = tensors(_operand_shape(line, shape_of))[:1]
        if moved and grouping:
            channel = "channel_id=1, " if "channel_id" not in grouping and _CHANNEL.search(config) else ""
            group = groups.of(channel + grouping, reduces_or_gathers=False)
            return _collective("all_to_all", moved, 1, group, line.op_name, ragged=True)
    if _LIKELY_TARGET.search(target):
        return Unknown(f"custom-call {target}")
    if _REMOTE_COPIES.search(config):
        return Unknown(f"custom-call {target} with remote copies")
    return None


def _collective(kind: Kind, moved: list[Leaf], times: int, group: Group, op_name: str, *, ragged: bool) -> Collective:
    dtypes = {leaf.dtype for leaf in moved}
    size = times * sum(leaf.bytes for leaf in moved)
    dtype = dtypes.pop() if len(dtypes) == 1 else ("mixed" if dtypes else "none")
    types = {leaf.dtype for leaf in moved}
    return Collective(kind, size, dtype, role(types, size), group, op_name, ragged)


def role(dtypes: set[str], size: int) -> Role:
    """Control where all tensors are small integers, by the thresholds above."""
    if dtypes and dtypes <= {*INDEX_TYPES}:
        return "control" if size <= CONTROL_INDEX_BYTES else "payload"
    return "control" if dtypes and dtypes <= {*INDEX_TYPES, *BYTE_TYPES} and size <= CONTROL_BYTE_BYTES else "payload"


def phase(op_name: str) -> Phase:
    """The phase of a step that an ``op_name`` belongs to; a fused operation has several names and runs in the last."""
    if "transpose(" in op_name:
        return "backward"
    if _OPTIMIZER.search(op_name):
        return "optimizer"
    return "forward" if "jvp(" in op_name else "unknown"


def where(op_name: str) -> str:
    """The scopes of the model and the operation in ``op_name``, without what jax's transforms and loops add."""
    path = op_name.replace('\\"', '"')
    if path.startswith(("jit(", "pjit(")):
        path = path.partition(")/")[2] or path
    path = path[: 4 * MAX_WHERE]
    for _ in range(MAX_WRAPPERS):
        path, unwrapped = _WRAPPER.subn(r"\1", path)
        if not unwrapped:
            break
    parts = [part for part in path.replace("while/body", "").split("/") if part and part not in _SCAFFOLD]
    return printable("/".join(parts))[:MAX_WHERE]
