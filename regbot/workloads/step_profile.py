"""Ledger of profiled steps, for timed runs whose step is compiled or captured in CUDA graphs.

The guest writes two Kineto traces: of three steps, and of planted collectives. This module reads both; the guest
reports no counts. A profile gives a ledger only if the trace is of rank 0 of the requested world, its steps are alike,
and all its communication is a collective of a known kind and group. Those in a replayed CUDA graph have no call, so
their sizes are unknown. gloo records no group, so its collectives need groups that all have the same ranks.

The ledger does not say how much of the communication was exposed. That is a time, and three steps of one run say too
little about times. Pairs of timed runs measure them.
"""

from collections import defaultdict
from pathlib import Path

from regbot.ledgers.readers import kineto
from regbot.ledgers.readers.groups import UNKNOWN
from regbot.records.ledger import CollectiveBackend, Ledger, Liveness
from regbot.records.run import Backend, RawProfile
from regbot.records.text.clip import clip_message
from regbot.records.text.words import listed
from regbot.workloads.guest_file import GuestFileError, complete_ledger, read_ledgers
from regbot.workloads.task import Task

NUM_STEPS = 3
"""Number of steps that the guest profiles."""
MAX_EXPANSION = 5
"""Largest accepted size of a decompressed trace, in multiples of the limit for a record."""
PROCESS_GROUP_VIAS: tuple[CollectiveBackend, ...] = ("nccl", "gloo", "symm-mem")
"""Backends whose collectives have sequence numbers."""
DISPATCH_LIBRARIES: tuple[CollectiveBackend, ...] = ("deepep", "hybridep", "nccl-ep")
"""Libraries whose exchanges of token counts may be of an unknown group. Their payload is known to be exchanged in the
expert-parallel group.
"""
EXPERT_AXIS = "ep"
MAX_NAMES = 3


def ledger_of_profile(claim: RawProfile, task: Task, folder: Path, max_bytes: int) -> Ledger:
    """Return the ledger of one of the profiled steps. Raises GuestFileError.

    ``claim`` is the part of the guest's record about the profile. ``folder`` has the traces that ``claim`` names.
    Each of them may have ``max_bytes`` bytes, and ``MAX_EXPANSION`` times as many when it is decompressed.
    """
    if claim.problem:  # the guest's reason why it has no profile; '' if it has one
        raise GuestFileError(claim.problem)
    if claim.trace is None or claim.planted_trace is None:
        raise GuestFileError("the record names no trace")
    paths = [folder / claim.planted_trace, folder / claim.trace]
    world = task.parallelism.world_size
    planted_ledger, step_ledger = read_ledgers(kineto, paths, world, max_bytes, MAX_EXPANSION, accepts_unlinked=False)
    if step_ledger.scope != "step":  # the other scope is the whole file
        reasons = "; ".join(step_ledger.warnings)
        raise GuestFileError(f"{claim.trace}: its steps cannot be counted one by one: {reasons}")
    advances = claim.sequence_advances or []
    is_middle_step_usual = len(advances) == NUM_STEPS and advances[1] in (advances[0], advances[2])
    has_only_middle_step = step_ledger.steps == 1  # the reader left out the first and the last step
    if has_only_middle_step and not is_middle_step_usual:
        raise GuestFileError(f"{claim.trace}: its steps are not alike, so none of them is the usual one")
    if step_ledger.unclassified:
        unknown = listed([repr(item.name) for item in step_ledger.unclassified], MAX_NAMES)
        reason = "has communication without a call of a known kind, as in a replayed CUDA graph"
        raise GuestFileError(f"{claim.trace}: {reason}, so its collectives are unknown: {unknown}")
    for entry in step_ledger.entries:
        may_be_unknown = entry.via in DISPATCH_LIBRARIES and entry.role == "control"  # an exchange of token counts
        if entry.axis == UNKNOWN and not may_be_unknown:
            group = f"the group of {entry.kind} cannot be named: {entry.group_size} ranks, via {entry.via}"
            reason = "The trace does not record it, and groups with different ranks would be added up"
            raise GuestFileError(f"{claim.trace}: {group}. {reason}")
    # An axis that the trace labels ``[RANKS]`` has the names of the guest's axes with the same ranks, joined by |.
    names_by_ranks: dict[tuple[int, ...], list[str]] = defaultdict(list)
    for name, claimed_axis in claim.axes.items():
        names_by_ranks[tuple(claimed_axis.ranks)].append(name)
    names = {
        label: "|".join(names_by_ranks[ranks])
        for label, axis in step_ledger.axes.items()
        if label.startswith("[") and (ranks := tuple(axis.ranks)) in names_by_ranks
    }
    no_times = {"exposed_s": None, "hidden_s": None}  # the module's docstring says why
    entries = [entry.model_copy(update=no_times) for entry in step_ledger.entries]
    update = {"device": task.timed_device, "entries": entries}
    liveness = _check_liveness(claim, planted_ledger, step_ledger)
    return complete_ledger(step_ledger.model_copy(update=update), claim, task, names, claim.axes, liveness)


def _check_liveness(claim: RawProfile, planted_ledger: Ledger, step_ledger: Ledger) -> Liveness:
    """Compare the planted all-reduces with their number, and the counted steps with the advance of the process groups'
    sequence numbers, which the guest reports.
    """
    # On NCCL a planted collective counts only if the trace has its kernels too, which give it an exposed time.
    counted = [entry for entry in planted_ledger.entries if entry.via != "nccl" or entry.exposed_s is not None]
    seen = sum(entry.count for entry in counted if entry.kind == "all_reduce")
    advances = claim.sequence_advances  # one number for each profiled step
    if advances is None:  # the backend keeps no sequence numbers
        return Liveness(planted=claim.planted, seen=seen)
    excludes_outer_steps = len(advances) == step_ledger.steps + 2  # the reader left out the first and the last step
    collectives_per_step = sum(entry.count for entry in step_ledger.entries if entry.via in PROCESS_GROUP_VIAS)
    return Liveness(
        planted=claim.planted,
        seen=seen,
        sequence_advance=sum(advances[1:-1] if excludes_outer_steps else advances),
        sequence_counted=collectives_per_step * step_ledger.steps,
    )


def describe_dispatcher(ledger: Ledger, task: Task) -> dict[str, Backend]:
    """Return the dispatcher that ran, under the key ``dispatcher``; {} if none is requested or the ledger shows none.

    If a data-parallel group has the same ranks, the axis has both names, as in ``ep|dp``, and an all-gather can be
    FSDP's. So an all-gather counts only if its axis is ``ep`` alone.
    """
    requested = task.workload.dispatcher
    payload = [entry for entry in ledger.entries if entry.role == "payload" and EXPERT_AXIS in entry.axis.split("|")]
    entries_by_dispatcher = {
        "deepep": [entry for entry in payload if entry.via == "deepep"],
        "hybridep": [entry for entry in payload if entry.via == "hybridep"],
        "alltoall": [entry for entry in payload if entry.kind == "all_to_all"],
        "allgather": [entry for entry in payload if entry.kind == "all_gather" and entry.axis == EXPERT_AXIS],
    }
    for executed, matching in entries_by_dispatcher.items():
        if requested and matching:
            calls = sum(entry.count for entry in matching)
            evidence = f"{calls} {matching[0].kind} per profiled step on axis {matching[0].axis}, via {matching[0].via}"
            fields = {"requested": requested, "resolved": requested, "executed": executed}
            return {"dispatcher": Backend(**fields, evidence=clip_message(evidence))}
    return {}
