"""Count the collectives of one step in a compiled program that a guest wrote, for adapters that run no step.

This module counts in two files itself; the guest reports no counts. The first is the program of the workload. The
second is a planted program with known collectives, which shows whether the reader understands this version of XLA. A
compiled program has no mesh axes, so a group of devices gets the name of the mesh axes that connect the same devices,
such as ``fsdp+ep``.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import combinations, product
from pathlib import Path

from regbot.ledgers.readers import hlo
from regbot.records.ledger import Axis, Kind, Ledger, Liveness
from regbot.records.run import CompiledProgram, MeshAxis
from regbot.workloads.guest_file import GuestFileError, complete_ledger, read_ledgers
from regbot.workloads.task import Task

PLANTED: Mapping[Kind, int] = {"all_to_all": 1, "all_gather": 1, "all_reduce": 3}
"""Number of executions of each collective in the planted program. Each execution involves all devices. The program is
in ``regbot_guest.frameworks.maxtext_planted``."""
EXPERT_AXIS = "ep"


def ledger_of_program(claim: CompiledProgram, task: Task, folder: Path, max_bytes: int) -> Ledger:
    """Return the ledger of the program that ``claim``, a part of the guest's record, names in ``folder``.

    Raises GuestFileError if a file cannot be used, has more than ``max_bytes``, or does not fit the task.
    """
    _check_mesh(claim.mesh, task)
    paths = [folder / claim.program, folder / claim.planted]
    ledger, planted_ledger = read_ledgers(hlo, paths, task.parallelism.world_size, max_bytes)
    # The reader labels an axis by its devices. If a mesh axis has the same devices, its name replaces the label.
    names_by_devices = _name_groups(claim.mesh)
    names = {label: names_by_devices.get(tuple(axis.ranks), label) for label, axis in ledger.axes.items()}
    # Mesh axes without collectives are kept too. Combinations of axes are kept only if they have collectives.
    mesh = {axis.name for axis in claim.mesh}
    axes = {
        name: Axis(size=len(devices), ranks=list(devices)) for devices, name in names_by_devices.items() if name in mesh
    }
    update = {"patches": claim.patches, "warnings": [*ledger.warnings, *claim.warnings]}
    return complete_ledger(ledger, claim, task, names, axes, _check_liveness(planted_ledger)).model_copy(update=update)


def _check_mesh(mesh: Sequence[MeshAxis], task: Task) -> None:
    sizes = {axis.name: axis.size for axis in mesh}
    requested = task.parallelism
    has_requested_sizes = (
        math.prod(sizes.values()) == requested.world_size and sizes.get(EXPERT_AXIS, 1) == requested.ep
    )
    if len(sizes) != len(mesh) or not has_requested_sizes:  # an axis may be named twice
        request = f"{requested.world_size} ranks with expert-parallel groups of {requested.ep} were requested"
        raise GuestFileError(f"the record's mesh is {sizes}, but {request}")


def _name_groups(mesh: Sequence[MeshAxis]) -> dict[tuple[int, ...], str]:
    """Return the names of the groups of devices that contain device 0, by the group's devices.

    There is one group for each mesh axis and each combination of axes. For example, the mesh fsdp 2, ep 2 gives
    {(0, 2): "fsdp", (0, 1): "ep", (0, 1, 2, 3): "fsdp+ep"}.
    """
    # Devices are numbered in row-major order: the numbers along an axis differ by the size of all later axes together.
    strides = [math.prod(axis.size for axis in mesh[position + 1 :]) for position in range(len(mesh))]
    devices_by_axis = {
        axis.name: range(0, axis.size * stride, stride) for axis, stride in zip(mesh, strides, strict=True)
    }
    names = {}
    for axis_count in range(1, len(mesh) + 1):
        for axes in combinations(devices_by_axis, axis_count):
            # A device's number is the sum of one number from each of the axes.
            summands = product(*(devices_by_axis[axis] for axis in axes))
            names[tuple(map(sum, summands))] = "+".join(axes)
    return names


def _check_liveness(planted_ledger: Ledger) -> Liveness:
    """Compare the planted program's counts with PLANTED. A kind of collective counts as seen only if its count is
    exact: too many are as wrong as too few.
    """
    counts: Counter[Kind] = Counter()
    for entry in planted_ledger.entries:
        if entry.group_size == planted_ledger.world_size:
            counts[entry.kind] += entry.count
    seen = sum(expected for kind, expected in PLANTED.items() if counts[kind] == expected)
    return Liveness(planted=sum(PLANTED.values()), seen=seen)
