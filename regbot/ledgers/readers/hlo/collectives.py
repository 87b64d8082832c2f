"""Recognises the collectives among HLO instructions, with their bytes, phase and module.

Collectives are the synchronous operations, the ``-start`` operations (the matching ``-done`` is never counted), and
known custom calls. An operation that looks like a collective but has no known name is reported as unknown. A ``send``
counts as a permutation. Its ``recv`` is not counted, because each device of the permutation issues both. A ``-start``
operation returns inputs and outputs together, so the half that the ledger counts is selected. The sizes of a ragged
all-to-all are known only at run time, so its whole input buffer is counted as an upper bound.

Phase and module come from ``op_name``, which jax builds from its transforms and the scopes of the model. A name with
``transpose(`` is backward (recomputation too), a name with an optimizer is optimizer, a name with ``jvp(`` is forward,
in this order."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from regbot.ledgers.collectives import classify_role, find_kind
from regbot.ledgers.dtypes import join_dtypes
from regbot.ledgers.readers.hlo.groups import ReplicaGroup, ReplicaGroups, find_group, find_permute_group
from regbot.ledgers.readers.hlo.text import Instruction, Tensor, parse_elements, parse_tensors
from regbot.records.ledger import Kind, Phase, Role
from regbot.records.text.printable import printable

_LIKELY_COLLECTIVE = re.compile(r"(?:all|collective|ragged|reduce-scatter|cross-replica)-.*|.*-to-all|reduce-scatter")
_LIKELY_CALL_TARGET = re.compile(
    r"all.?reduce|all.?gather|all.?to.?all|reduce.?scatter|collective|nccl|rccl|nvshmem|deep_?ep|hybrid_?ep", re.I
)
_REMOTE_COPIES = re.compile(r'has_communication\\*":\s*true')
"""Mark of a custom call whose kernel copies to other devices."""
_RAGGED = re.compile(r"ragged.?all.?to.?all", re.I)
_SEND_PAIRS = re.compile(r'[{,]_xla_send_recv_source_target_pairs="?(\{(?:\{[0-9]{1,9},[0-9]{1,9}\},?)*+\})')
_DENSE_GROUPS = re.compile(r"\breplica_groups = dense<[^<>]*+>")
_GROUP_ATTRIBUTES = ("replica_groups", "device_ids", "use_global_device_ids")
"""Attributes that define the groups. ``device_ids`` occurs together with groups that are given as mesh axes."""
_CHANNEL = re.compile(r"\bchannel_id\b")
_ANY_CHANNEL = "channel_id=1"
"""Stands for any channel id. Only the presence of a channel id matters: without one, the numbers in a group mean
replicas."""
_OPERAND = re.compile(r"\((?:([^%()]*) )?%?([\w.\-]+)(?:#[0-9]+)?[,)]", re.ASCII)
"""The first operand: its shape, if the text has shapes, and its name."""

SENT_OPERANDS = 1
"""Of a ragged all-to-all, only the first operand is sent. The others are its output buffer, offsets and sizes."""
_WRAPPER = re.compile(r"(?:transpose|jvp|vmap|jit|pjit|remat|checkpoint|custom_jvp|custom_vjp)\(([^()]*)\)")
"""A transform of jax around a scope: the scope in brackets remains."""
_JAX_SCOPES = frozenset(
    ("closed_call", "core_call", "eval_jaxpr", "checkpoint", "remat", "remat2", "rematted_computation", "pjit")
)
_OPTIMIZER = re.compile(
    r"(?:^|[/(:;_.])(?:optimizer|optax|apply_gradients|apply_updates|adamw?|sgd)(?:$|[/):;_.])", re.I
)
MAX_MODULE_CHARS = 500
MAX_WRAPPERS = 32


@dataclass(frozen=True, slots=True)
class HloCollective:
    kind: Kind
    bytes: int
    dtype: str
    role: Role
    group: ReplicaGroup
    op_name: str
    """jax's name of the operation, with transforms and scopes; '' if the program has none."""
    metadata: str
    """Attribute of the instruction with its source line."""
    is_ragged: bool = False
    """Whether the sizes are known only at run time, so that ``bytes`` is an upper bound."""


TensorLookup = Callable[[str], list[Tensor]]
"""Function from an instruction's name to its tensors. It returns [] if the computation has no instruction with that
name."""


def may_communicate(opcode: str) -> bool:
    return opcode == "custom-call" or opcode == "send" or (_LIKELY_COLLECTIVE.fullmatch(opcode) is not None)


def parse_communication(
    instruction: Instruction, groups: ReplicaGroups, find_tensors: TensorLookup, is_scatter: bool
) -> HloCollective | str | None:
    """Return the collective of ``instruction``, or None if it does not communicate or only waits for an earlier one.
    Return its name if the instruction seems to communicate but is not in the table. ``groups`` parses the
    groups of the instruction, and ``find_tensors`` gives the tensors of an operand by its name. ``is_scatter`` says
    whether the instruction is in a computation that TPU compilers name ``all-reduce-scatter``. An all-reduce there
    counts as a reduce-scatter. Raises BrokenProgram."""
    opcode, is_start = instruction.opcode.removesuffix("-start"), instruction.opcode.endswith("-start")
    if opcode == "custom-call":
        return _parse_custom_call(instruction, groups, find_tensors)
    attributes = instruction.attributes
    only_waits = opcode.endswith(("-done", "-update"))
    is_host_transfer = opcode == "send" and attributes.get("is_host_transfer") == "true"
    if only_waits or is_host_transfer:
        return None
    kind = find_kind(opcode)
    if kind is None:
        return opcode
    if kind in ("permute", "send_recv"):
        pairs_match = _SEND_PAIRS.search(attributes.get("frontend_attributes", ""))
        pairs = attributes.get("source_target_pairs") or (pairs_match[1] if pairs_match else None)
        if pairs is None:
            return f"{opcode} without source_target_pairs"
        group = groups.find(find_permute_group, pairs, "channel_id" in attributes)
    else:
        reduces_or_gathers = kind in ("all_gather", "all_reduce", "reduce_scatter")
        group = groups.find(find_group, _join_group_attributes(attributes), reduces_or_gathers)
    is_ragged = opcode == "ragged-all-to-all"
    counted_tensors = _select_counted(instruction, kind, is_start)
    if is_ragged:
        if not is_start:
            counted_tensors = _find_operand_tensors(instruction, find_tensors) or counted_tensors
        counted_tensors = counted_tensors[:SENT_OPERANDS]
    # The result of a reduce-scatter is the share of one device, and the ledger counts the input. The result of a
    # ``-start`` operation contains the input itself.
    rank_factor = len(group.ranks) if kind == "reduce_scatter" and not is_start else 1
    if is_scatter and kind == "all_reduce":
        kind = "reduce_scatter"
    elif kind == "send_recv":
        kind = "permute"
    return _make_collective(kind, counted_tensors, rank_factor, group, instruction, is_ragged=is_ragged)


def _join_group_attributes(attributes: Mapping[str, str]) -> str:
    parts = [f"{name}={attributes[name]}" for name in _GROUP_ATTRIBUTES if name in attributes]
    if "channel_id" in attributes:  # all channel ids look alike here, because only their presence matters
        parts.insert(0, _ANY_CHANNEL)
    return ", ".join(parts)


def _select_counted(instruction: Instruction, kind: Kind, is_start: bool) -> list[Tensor]:
    """Return the tensors in the result that the ledger counts. A ``-start`` operation returns inputs and outputs. A
    plain ``all-reduce-start`` returns only its output, so all its tensors are counted. A wrapped one returns
    ``((inputs), outputs, ...)``."""
    elements = parse_elements(instruction.shape)
    is_plain_reduce = kind == "all_reduce" and not instruction.shape.lstrip().startswith("((")
    if kind != "send_recv" and (not is_start or is_plain_reduce):
        return [tensor for element in elements for tensor in element]
    position = 1 if kind == "all_gather" and len(elements) > 1 else 0
    return elements[position] if elements else []


def _find_operand_tensors(instruction: Instruction, find_tensors: TensorLookup) -> list[Tensor]:
    match = _OPERAND.match(instruction.rest)  # the text after the opcode, which begins with the operands
    if match is None:
        return []
    printed_shape, name = match.groups()
    return parse_tensors(printed_shape) if printed_shape else find_tensors(name)


def _parse_custom_call(
    instruction: Instruction, groups: ReplicaGroups, find_tensors: TensorLookup
) -> HloCollective | str | None:
    """Return the collective of a custom call. Only a ragged all-to-all is counted. A call that looks like another
    collective, or like a ragged all-to-all without groups, gives its name. All other calls return None."""
    attributes = instruction.attributes
    target, config = attributes.get("custom_call_target", "").strip('"'), attributes.get("backend_config", "")
    if _RAGGED.search(target):
        group_text = _find_ragged_groups(attributes, config)
        counted_tensors = _find_operand_tensors(instruction, find_tensors)[:SENT_OPERANDS]
        if counted_tensors and group_text:
            group = groups.find(find_group, group_text, False)
            return _make_collective("all_to_all", counted_tensors, 1, group, instruction, is_ragged=True)
    if _LIKELY_CALL_TARGET.search(target):
        return f"custom-call {target}"
    if _REMOTE_COPIES.search(config):
        return f"custom-call {target} with remote copies"
    return None


def _find_ragged_groups(attributes: Mapping[str, str], config: str) -> str:
    """Return the text of the groups of a ragged all-to-all that is a custom call, or '' if the call has no groups. The
    groups are in the attributes of the call or in its ``backend_config``. If only ``backend_config`` has a channel id,
    one is put in front of the text."""
    if "replica_groups" in attributes:
        group_text = _join_group_attributes(attributes)
    else:
        dense_match = _DENSE_GROUPS.search(config)
        group_text = dense_match[0] if dense_match else ""
    needs_channel = "channel_id" not in group_text and _CHANNEL.search(config) is not None
    return f"{_ANY_CHANNEL}, {group_text}" if group_text and needs_channel else group_text


def _make_collective(
    kind: Kind,
    counted_tensors: list[Tensor],
    rank_factor: int,
    group: ReplicaGroup,
    instruction: Instruction,
    *,
    is_ragged: bool,
) -> HloCollective:
    dtypes = {tensor.dtype for tensor in counted_tensors}
    size_bytes = rank_factor * sum(tensor.bytes for tensor in counted_tensors)
    role, metadata = classify_role(kind, size_bytes, *dtypes), instruction.attributes.get("metadata", "")
    return HloCollective(kind, size_bytes, join_dtypes(dtypes), role, group, instruction.op_name, metadata, is_ragged)


def find_phase(op_name: str) -> Phase:
    if "transpose(" in op_name:
        return "backward"
    if _OPTIMIZER.search(op_name):
        return "optimizer"
    return "forward" if "jvp(" in op_name else "unknown"


def find_module(op_name: str) -> str:
    """Return the model scopes and the operation in ``op_name``, without the names of jax's transforms and loops. For
    example, ``jit(step)/transpose(jvp(decoder))/while/body/moe/dot_general`` is ``decoder/moe/dot_general``."""
    path = op_name.replace('\\"', '"')
    if path.startswith(("jit(", "pjit(")):  # the name of the compiled function, such as 'jit(step)/'
        _, _, path_in_function = path.partition(")/")
        path = path_in_function or path
    path = path[: 4 * MAX_MODULE_CHARS]  # limits the work; transforms and loops are removed from this part
    for _ in range(MAX_WRAPPERS):
        path, unwrapped = _WRAPPER.subn(r"\1", path)
        if not unwrapped:
            break
    parts = [part for part in path.replace("while/body", "").split("/") if part and part not in _JAX_SCOPES]
    return printable("/".join(parts))[:MAX_MODULE_CHARS]
