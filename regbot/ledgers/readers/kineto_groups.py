"""Which mesh axis a process group of a trace is: from its description, else from its ranks.

A trace names groups by number ('3'), describes those that someone described ('mesh_ep', Megatron's
'EXPERT_MODEL_PARALLEL_GROUP'), and lists their ranks. A group without a description is labelled as the guest labels
it: with the axes that span its ranks, 'ep|dp', or with the ranks themselves, '[0-3]'.
"""

import re
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from regbot.ledgers.readers.events import number

UNKNOWN = "unknown"
"""Axis of a collective whose group the trace does not tell."""
MAX_RANKS = 65536

_NO_DESCRIPTION = {"", "undefined", "default_pg", "none"}
_MEGATRON = {
    "data_parallel": "dp",
    "data_parallel_group_with_cp": "dp_cp",
    "tensor_model_parallel": "tp",
    "pipeline_model_parallel": "pp",
    "context_parallel": "cp",
    "expert_model_parallel": "ep",
    "expert_tensor_parallel": "etp",
    "expert_data_parallel": "edp",
    "expert": "ep",
    "expert_parallel": "ep",
}


class Group(NamedTuple):
    """``ranks`` is empty where the trace does not list them."""

    axis: str
    size: int
    ranks: tuple[int, ...] = ()


class Groups:
    """The groups of one trace, by what its envelope and its rows say of them."""

    def __init__(self, envelope: dict[str, Any]) -> None:
        given = envelope.get("distributedInfo")
        info: dict[str, Any] = given if isinstance(given, dict) else {}
        backend = info.get("backend")
        self.backend = backend.lower() if isinstance(backend, str) else ""
        self.world_size = number(info.get("world_size")) or 0
        self.rank = number(info.get("rank")) or 0
        self._axes: dict[tuple[int, ...], set[str]] = {}
        self._ranks: dict[str, tuple[int, ...]] = {}
        config = info.get("pg_config")
        for group in config if isinstance(config, list) else []:
            if isinstance(group, dict):
                ranks = _ranks(group.get("ranks"))
                self._ranks[str(group.get("pg_name"))[:100]] = ranks
                description = str(group.get("pg_desc", "")).encode("utf-8", "replace").decode()
                self._remember(axis_of(description), ranks)

    def _remember(self, axis: str, ranks: tuple[int, ...]) -> None:
        if ranks:
            known = self._axes.setdefault(ranks, set())
            if axis:
                known.add(axis)

    def named(self, args: dict[str, Any]) -> Group:
        """The group of a row of metadata. Its size is 0 where the row does not tell."""
        name = str(args.get("Process Group Name", ""))[:100]
        ranks = _ranks(args.get("Process Group Ranks")) or self._ranks.get(name, ())
        size = number(args.get("Group size")) or len(ranks)
        start, stride = number(args.get("Global rank start")), number(args.get("Global rank stride"))
        if len(ranks) != size:
            told = start is not None and stride and size <= MAX_RANKS
            ranks = tuple(range(start, start + stride * size, stride)) if told and start is not None and stride else ()
        axis = axis_of(str(args.get("Process Group Description", "")))
        self._remember(axis, ranks)
        return Group(axis or (f"pg {name}" if name and not ranks else ""), size, ranks)

    def of_size(self, size: int = 0) -> Group:
        """The group of a call that does not name it: the ranks of the groups of ``size`` where all have the same.

        Several axes can have these ranks, so the label is the ranks.
        """
        fitting = [ranks for ranks in self._axes if len(ranks) > 1 and size in (0, len(ranks))]
        if len(fitting) == 1:
            return Group(f"[{compact(fitting[0])}]", len(fitting[0]), fitting[0])
        return Group(UNKNOWN, size or self.world_size)

    def experts(self) -> Group:
        """The expert-parallel group, for libraries that leave no group: the one described so."""
        fitting = [ranks for ranks, axes in self._axes.items() if "ep" in axes and len(ranks) > 1]
        return Group("ep", len(fitting[0]), fitting[0]) if len(fitting) == 1 else Group(UNKNOWN, self.world_size)

    def label(self, group: Group) -> str:
        """The axis of ``group``, by everything that was learnt of all groups."""
        if group.axis:
            return group.axis
        if not group.ranks:
            return UNKNOWN
        return "|".join(sorted(self._axes.get(group.ranks, ()))) or f"[{compact(group.ranks)}]"


def axis_of(description: str) -> str:
    """``mesh_ep`` and ``EXPERT_MODEL_PARALLEL_GROUP`` as ``ep``, any other description as it is, '' where none is."""
    name = description.strip()
    if name.lower() in _NO_DESCRIPTION:
        return ""
    short = name.lower().removeprefix("mesh_")
    return _MEGATRON.get(short) or _MEGATRON.get(short.removesuffix("_group")) or short[:200]


def compact(ranks: Sequence[int]) -> str:
    """``0, 1, 2, 3`` as ``0-3``, ``0, 4, 8`` as ``0-8:4``, anything else as a list: the guest's own form."""
    if len(ranks) > 2:
        steps = {b - a for a, b in pairwise(ranks)}
        if len(steps) == 1:
            step = steps.pop()
            return f"{ranks[0]}-{ranks[-1]}" + (f":{step}" if step != 1 else "")
    text = ",".join(map(str, ranks))
    return text if len(text) <= 400 else f"{len(ranks)} ranks from {ranks[0]} to {ranks[-1]}"


def _ranks(given: object) -> tuple[int, ...]:
    """Ranks from a list or from its text, '[0, 1, 2]'. Nothing where the text was shortened with '...'."""
    if isinstance(given, str):
        if "..." in given or not re.fullmatch(r"\[[\d,\s]*\]", given) or len(given) > 2**20:
            return ()
        given = [int(word) for word in re.findall(r"\d{1,9}", given)]
    if not isinstance(given, list) or len(given) > MAX_RANKS:
        return ()
    ranks = tuple(rank for rank in given if number(rank) is not None and isinstance(rank, int))
    return ranks if len(ranks) == len(given) else ()
