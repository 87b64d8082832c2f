"""Names of the mesh axes that process groups belong to."""

from collections.abc import Sequence
from itertools import pairwise

import torch.distributed as dist


class Axes:
    """Labels process groups by mesh axis.

    A group that was registered for exactly one axis has this label. Any other group has the names of all axes that span
    its ranks, such as ``ep|dp``: a comparison then reports no move between axes.
    """

    def __init__(self) -> None:
        self._axis_by_group: dict[str, str | None] = {}
        """Axis of each registered group, by the group's name. None if the group was registered for several axes."""
        self._ranks_by_axis: dict[str, tuple[int, ...]] = {}

    def add(self, axis: str, group: dist.ProcessGroup) -> None:
        name = group.group_name
        is_of_another_axis = name in self._axis_by_group and self._axis_by_group[name] != axis
        self._axis_by_group[name] = None if is_of_another_axis else axis
        self._ranks_by_axis[axis] = tuple(dist.get_process_group_ranks(group))

    def label(self, group: dist.ProcessGroup) -> str:
        """Return the axis of ``group``, several axes as in 'ep|dp', or its ranks in brackets, such as '[0-3]'."""
        axis = self._axis_by_group.get(group.group_name)
        if axis is not None:
            return axis
        ranks = tuple(dist.get_process_group_ranks(group))
        axes = [name for name, axis_ranks in self._ranks_by_axis.items() if axis_ranks == ranks]
        return "|".join(axes) if axes else f"[{compact(ranks)}]"

    def as_record(self) -> dict[str, dict[str, object]]:
        return {axis: {"size": len(ranks), "ranks": list(ranks)} for axis, ranks in self._ranks_by_axis.items()}


def compact(ranks: Sequence[int]) -> str:
    """Format ``0, 1, 2, 3`` as ``0-3``, ``0, 4, 8`` as ``0-8:4``, and all others as a list such as ``0,1,5``."""
    if len(ranks) > 2:
        distances = {following - rank for rank, following in pairwise(ranks)}
        if len(distances) == 1:
            distance = distances.pop()
            first_to_last = f"{ranks[0]}-{ranks[-1]}"
            return first_to_last if distance == 1 else f"{first_to_last}:{distance}"
    return ",".join(map(str, ranks))
