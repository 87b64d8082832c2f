"""Mesh axes and the process groups behind them."""

from collections.abc import Sequence
from itertools import pairwise

import torch.distributed as dist


class Axes:
    """Names process groups by mesh axis: by the group object first, by its ranks where the object is unknown.

    Two axes may span the same ranks (EP over the whole world does). A group that was made for one of them has that
    one's name; any other group over these ranks is labelled with both, ``ep|dp``, and is never taken for a move. So is
    one group object that serves several axes, as a framework's world group does.
    """

    def __init__(self) -> None:
        self._by_name: dict[str, str | None] = {}
        self._ranks: dict[str, tuple[int, ...]] = {}

    def add(self, axis: str, group: dist.ProcessGroup) -> None:
        """Register the group of this rank along ``axis``."""
        known = self._by_name.get(group.group_name, axis)
        self._by_name[group.group_name] = axis if known == axis else None
        self._ranks[axis] = tuple(dist.get_process_group_ranks(group))

    def label(self, group: dist.ProcessGroup) -> str:
        """The axis of ``group``, or its ranks in brackets where no axis has them."""
        known = self._by_name.get(group.group_name)
        if known is not None:
            return known
        ranks = tuple(dist.get_process_group_ranks(group))
        axes = [axis for axis, theirs in self._ranks.items() if theirs == ranks]
        return "|".join(axes) if axes else f"[{compact(ranks)}]"

    def as_record(self) -> dict[str, dict[str, object]]:
        return {axis: {"size": len(ranks), "ranks": list(ranks)} for axis, ranks in self._ranks.items()}


def compact(ranks: Sequence[int]) -> str:
    """``0, 1, 2, 3`` as ``0-3``, ``0, 4, 8`` as ``0-8:4``, anything else as a list."""
    if len(ranks) > 2:
        steps: list[int] = [b - a for a, b in pairwise(ranks)]
        if len(set(steps)) == 1:
            return f"{ranks[0]}-{ranks[-1]}" + (f":{steps[0]}" if steps[0] != 1 else "")
    return ",".join(map(str, ranks))
