"""From a compiled program that a guest left behind to the ledger of a step: the trusted half of compiling adapters.

The guest's claim names two files in its record folder and the mesh it compiled for. Both files are read here, by the
reader of HLO text; the guest counts nothing. What the program says of itself has to agree with what was asked for, and
the planted program, whose collectives are known, shows that the reader understands what this XLA writes.

A program knows devices, not axes: its groups get the names of the mesh axes that connect the same devices, ``fsdp+ep``
where they are those of two axes together.
"""

import math
import stat
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import combinations, product
from pathlib import Path

from regbot.ledgers.readers import ReadError, Source, hlo
from regbot.records.ledger import Axis, Kind, Ledger, Liveness
from regbot.records.run import Compiled, MeshAxis
from regbot.workloads.task import Task

PLANTED: Mapping[Kind, int] = {"all_to_all": 1, "all_gather": 1, "all_reduce": 3}
"""Executions in the planted program, on all devices; see ``regbot_guest.frameworks.maxtext_planted``."""
EXPERT_AXIS = "ep"


class BadProgram(Exception):
    """A compiled program cannot be used. The message says which file and why."""


def ledger_of_program(claim: Compiled, task: Task, folder: Path, max_bytes: int) -> Ledger:
    """The ledger of the program that ``claim`` names in ``folder``. Raises BadProgram."""
    _check_mesh(claim.mesh, task)
    counted = _read(folder / claim.program, task, max_bytes)
    planted = _read(folder / claim.planted, task, max_bytes)
    groups = _groups(claim.mesh)
    names = {label: groups.get(tuple(axis.ranks), label) for label, axis in counted.axes.items()}
    used = {axis.name for axis in claim.mesh} | set(names.values())
    axes = {name: Axis(size=len(ranks), ranks=list(ranks)) for ranks, name in groups.items() if name in used}
    return counted.model_copy(
        update={
            "workload": task.entry,
            "variant": task.variant.name,
            "axes": {names[label]: axis for label, axis in counted.axes.items()} | axes,
            "entries": [
                entry.model_copy(update={"axis": names.get(entry.axis, entry.axis)}) for entry in counted.entries
            ],
            "liveness": _liveness(planted),
            "config": claim.config,
            "software": claim.software,
            "patches": claim.patches,
            "warnings": [*counted.warnings, *claim.warnings],
        }
    )


def _check_mesh(mesh: Sequence[MeshAxis], task: Task) -> None:
    sizes = {axis.name: axis.size for axis in mesh}
    if len(sizes) != len(mesh):
        raise BadProgram("the record names a mesh axis twice")
    asked = task.parallelism
    if math.prod(sizes.values()) != asked.world_size or sizes.get(EXPERT_AXIS, 1) != asked.ep:
        raise BadProgram(
            f"the record's mesh is {sizes}, but {asked.world_size} ranks with expert-parallel groups of {asked.ep} "
            "were asked for"
        )


def _read(path: Path, task: Task, max_bytes: int) -> Ledger:
    """The counts in one file of the guest: a regular file of its own, of at most ``max_bytes``, unpacked too."""
    try:
        status = path.lstat()
    except OSError as error:
        raise BadProgram(f"{path.name}: named in the record, but it cannot be read: {error.strerror}") from error
    if not stat.S_ISREG(status.st_mode) or status.st_nlink != 1:
        raise BadProgram(f"{path.name}: is a link or no regular file; it was not read")
    if status.st_size > max_bytes:
        raise BadProgram(f"{path.name}: {status.st_size:,} bytes, more than the {max_bytes:,} of local.max_record_mb")
    try:
        found = hlo.read(Source(path, max_bytes))
    except ReadError as error:
        raise BadProgram(str(error).replace(str(path), path.name)) from error
    if found.world_size != task.parallelism.world_size:
        raise BadProgram(
            f"{path.name}: is compiled for {found.world_size} devices, but {task.parallelism.world_size} were asked for"
        )
    return found


def _groups(mesh: Sequence[MeshAxis]) -> dict[tuple[int, ...], str]:
    """The devices that device 0 meets along every axis and every combination of axes, by name."""
    strides = [math.prod(axis.size for axis in mesh[place + 1 :]) for place in range(len(mesh))]
    spans = [range(0, axis.size * stride, stride) for axis, stride in zip(mesh, strides, strict=True)]
    found = {}
    for count in range(1, len(mesh) + 1):
        for chosen in combinations(range(len(mesh)), count):
            ranks = tuple(sum(steps) for steps in product(*(spans[place] for place in chosen)))
            found[ranks] = "+".join(mesh[place].name for place in chosen)
    return found


def _liveness(planted: Ledger) -> Liveness:
    """A kind was seen if it was counted exactly, on all devices: counted twice is as blind as not at all."""
    counts: Counter[Kind] = Counter()
    for entry in planted.entries:
        if entry.group_size == planted.world_size:
            counts[entry.kind] += entry.count
    seen = sum(number for kind, number in PLANTED.items() if counts[kind] == number)
    return Liveness(planted=sum(PLANTED.values()), seen=seen)
