"""Count the collectives of one step in a compiled program that a guest wrote, for adapters that run no step.

The guest's record names two files in the record folder, and the mesh that the program was compiled for. This module
counts the collectives in both files itself; the guest reports no counts. The first file is the program of the workload.
It must fit the request. The second file is a planted program with known collectives. Its counts show whether the
reader of HLO text understands what this version of XLA writes.

A compiled program has devices, but no mesh axes. So each group of devices gets the name of the mesh axes that connect
the same devices. A group along two axes gets a name such as ``fsdp+ep``.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import combinations, product
from pathlib import Path

from regbot.ledgers.readers import ReadError, hlo
from regbot.records.ledger import Axis, Kind, Ledger, Liveness
from regbot.records.run import CompiledProgram, MeshAxis
from regbot.workloads.guest_file import GuestFileError, open_guest_file
from regbot.workloads.task import Task

PLANTED: Mapping[Kind, int] = {"all_to_all": 1, "all_gather": 1, "all_reduce": 3}
"""Number of executions of each collective in the planted program, summed over all devices. The program is in
``regbot_guest.frameworks.maxtext_planted``."""
EXPERT_AXIS = "ep"


class BadProgram(Exception):
    """A compiled program cannot be used. The message names the file and the reason."""


def ledger_of_program(claim: CompiledProgram, task: Task, folder: Path, max_bytes: int) -> Ledger:
    """Return the ledger of the compiled program that ``claim`` names. Its file is in ``folder``. Raises BadProgram."""
    _check_mesh(claim.mesh, task)
    counted = _read(folder / claim.program, task, max_bytes)
    planted = _read(folder / claim.planted, task, max_bytes)
    groups = _name_groups(claim.mesh)
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
            "liveness": _check_liveness(planted),
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
    requested = task.parallelism
    if math.prod(sizes.values()) != requested.world_size or sizes.get(EXPERT_AXIS, 1) != requested.ep:
        raise BadProgram(
            f"the record's mesh is {sizes}, but {requested.world_size} ranks with expert-parallel groups of "
            f"{requested.ep} were requested"
        )


def _read(path: Path, task: Task, max_bytes: int) -> Ledger:
    """Count the collectives in one file of the guest. It must have at most ``max_bytes``, also after decompression.

    Raises BadProgram if the file cannot be used.
    """
    try:
        ledger = hlo.read(open_guest_file(path, max_bytes))
    except GuestFileError as error:
        raise BadProgram(str(error)) from error
    except ReadError as error:
        raise BadProgram(str(error).replace(str(path), path.name)) from error
    if ledger.world_size != task.parallelism.world_size:
        raise BadProgram(
            f"{path.name}: is compiled for {ledger.world_size} devices, "
            f"but {task.parallelism.world_size} were requested"
        )
    return ledger


def _name_groups(mesh: Sequence[MeshAxis]) -> dict[tuple[int, ...], str]:
    """Return the names of the groups of devices that contain device 0, by the group's devices.

    There is one group for each mesh axis and each combination of axes.
    """
    strides = [math.prod(axis.size for axis in mesh[position + 1 :]) for position in range(len(mesh))]
    spans = [range(0, axis.size * stride, stride) for axis, stride in zip(mesh, strides, strict=True)]
    names = {}
    for count in range(1, len(mesh) + 1):
        for selected in combinations(range(len(mesh)), count):
            ranks = tuple(sum(steps) for steps in product(*(spans[position] for position in selected)))
            names[ranks] = "+".join(mesh[position].name for position in selected)
    return names


def _check_liveness(planted: Ledger) -> Liveness:
    """Compare the planted program's counts with PLANTED. A count that is too high is as wrong as one that is too
    low."""
    counts: Counter[Kind] = Counter()
    for entry in planted.entries:
        if entry.group_size == planted.world_size:
            counts[entry.kind] += entry.count
    matching = sum(number for kind, number in PLANTED.items() if counts[kind] == number)
    return Liveness(planted=sum(PLANTED.values()), seen=matching)
