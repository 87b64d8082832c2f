"""Mesh axes of the process groups in a trace. A trace names groups by number and lists their ranks; some also have a
description. A group without one is labelled as in the guest: by the axes with the same ranks ('ep|dp'), or else by its
ranks ('[0-3]')."""

from collections import defaultdict
from typing import Any, NamedTuple

from regbot.ledgers.readers.groups import MAX_RANKS, UNKNOWN, format_ranks, parse_axis, parse_ranks
from regbot.ledgers.readers.source import Source
from regbot.ledgers.readers.tally import parse_count
from regbot.records.text.clip import clip, clip_label

EXPERT_AXIS = "ep"

_GROUP_ARGUMENTS = (
    "Process Group Name", "Process Group Description", "Process Group Ranks", "Group size", "Global rank start",
    "Global rank stride",
)  # fmt: skip
"""Arguments of a row that describe its group."""


class ProcessGroup(NamedTuple):
    axis: str
    """Axis label from the group's description, or '' if the group has no description."""
    size: int
    """Number of ranks, or 0 if it is unknown."""
    ranks: tuple[int, ...] = ()
    """The ranks; empty if the trace does not list them."""


class ProcessGroups:
    """The process groups of one trace, read from its ``distributedInfo`` and from its rows."""

    def __init__(self, source: Source, envelope: dict[str, Any]) -> None:
        """``envelope`` has the keys of the trace beside its list of events."""
        distributed_info = envelope.get("distributedInfo")
        info: dict[str, Any] = distributed_info if isinstance(distributed_info, dict) else {}
        backend = info.get("backend")
        self.backend = backend.lower() if isinstance(backend, str) else ""
        self.world_size = parse_count(info.get("world_size")) or 0
        self.rank = parse_count(info.get("rank")) or 0
        self._source = source
        self._axes: dict[tuple[int, ...], set[str]] = {}
        """Axes of the groups that consist of the same ranks, by these ranks."""
        self._ranks_by_size: dict[int, list[tuple[int, ...]]] = defaultdict(list)
        """Ranks of all groups of two ranks or more, once each, by their number; and all of them by 0."""
        self._expert_ranks: list[tuple[int, ...]] = []
        """The ranks among them that form a group on the axis 'ep'."""
        self._ranks: dict[str, tuple[int, ...]] = {}
        """Ranks of each group by the group's name."""
        self._groups: dict[str, ProcessGroup] = {}
        """Groups of the rows, by the arguments that describe the group."""
        self._labels: dict[int, str] = {}
        """Labels of the groups without an axis, by the ``id`` of the group, because hashing thousands of ranks is
        slow.
        """
        group_configs = info.get("pg_config")
        for group_config in group_configs if isinstance(group_configs, list) else []:
            if isinstance(group_config, dict):
                ranks = parse_ranks(group_config.get("ranks"))
                self._ranks[clip(str(group_config.get("pg_name")), 100)] = ranks
                self._add_axis(parse_axis(str(group_config.get("pg_desc", ""))), ranks)

    def _add_axis(self, axis: str, ranks: tuple[int, ...]) -> None:
        if not ranks:
            return
        if ranks not in self._axes:
            self._axes[ranks] = set()
            if len(ranks) > 1:
                self._ranks_by_size[len(ranks)].append(ranks)
                self._ranks_by_size[0].append(ranks)
        axes = self._axes[ranks]
        if axis == EXPERT_AXIS and axis not in axes and len(ranks) > 1:
            self._expert_ranks.append(ranks)
        if axis:
            axes.add(axis)

    def find_group(self, args: dict[str, Any]) -> ProcessGroup:
        """Return the group of a metadata row. Equal groups are the same object. Raises ReadError if the file has too
        many groups for its size."""
        key = repr([args.get(name) for name in _GROUP_ARGUMENTS])
        if key not in self._groups:
            group = self._parse_group(args)
            self._source.expand(len(group.ranks))
            self._groups[key] = group
        return self._groups[key]

    def _parse_group(self, args: dict[str, Any]) -> ProcessGroup:
        """Return the group that the arguments of a row describe. Its size is 0 if they have neither size nor ranks. A
        row that shortens its ranks has their start and stride instead. A group that has neither a description nor ranks
        gets the label 'pg NAME'."""
        name = clip(str(args.get("Process Group Name", "")), 100)
        ranks = parse_ranks(args.get("Process Group Ranks")) or self._ranks.get(name, ())
        size = parse_count(args.get("Group size")) or len(ranks)
        if len(ranks) != size:
            start, stride = parse_count(args.get("Global rank start")), parse_count(args.get("Global rank stride"))
            if start is not None and stride and size <= MAX_RANKS:
                ranks = tuple(range(start, start + stride * size, stride))
            else:
                ranks = ()
        axis = parse_axis(str(args.get("Process Group Description", "")))
        self._add_axis(axis, ranks)
        if not axis and name and not ranks:
            axis = f"pg {name}"
        return ProcessGroup(axis, size, ranks)

    def find_group_of_size(self, size: int = 0) -> ProcessGroup:
        """Return the group of a call that does not name its group, if all groups of ``size`` ranks have the same ranks.
        Size 0 matches groups of any size. If the ranks differ, return a group with the axis 'unknown'. Several axes can
        have the same ranks, so the label of the returned group is its ranks."""
        candidates = self._ranks_by_size.get(size, [])
        if len(candidates) != 1:
            return ProcessGroup(UNKNOWN, size or self.world_size)
        (ranks,) = candidates
        key = f"of size {size}"
        if key not in self._groups:
            self._groups[key] = ProcessGroup(format_ranks(ranks), len(ranks), ranks)
        return self._groups[key]

    def find_expert_group(self) -> ProcessGroup:
        """Return the group on the axis 'ep', for libraries that record no group. If several groups on this axis have
        different ranks, or if there is none, return a group with the axis 'unknown'."""
        if len(self._expert_ranks) != 1:
            return ProcessGroup(UNKNOWN, self.world_size)
        (ranks,) = self._expert_ranks
        return ProcessGroup(EXPERT_AXIS, len(ranks), ranks)

    def find_label(self, group: ProcessGroup) -> str:
        """Return the axis label of ``group``. Call it only after all groups were found, because their descriptions are
        the labels."""
        if group.axis:
            return group.axis
        if not group.ranks:
            return UNKNOWN
        if id(group) not in self._labels:
            axes = self._axes.get(group.ranks, ())
            self._labels[id(group)] = clip_label("|".join(sorted(axes)) or format_ranks(group.ranks))
        return self._labels[id(group)]
