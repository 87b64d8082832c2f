"""Replica groups of HLO collectives: the group of device 0, read from each syntax that XLA prints.

The groups in one line can differ in size. If device 0 is alone in its group, the largest other group is used instead
and marked ``without_device_0``. The collective then does nothing on device 0, but other devices of the step run it. The
syntaxes are:

    replica_groups={{0,1},{2,3}}                                              lists; {} means all devices
    replica_groups=[4,2]<=[2,4]T(1,0)                                         iota: 4 groups of 2, transposed
    replica_groups=mesh['data'=2,'expert'=4] {'expert'}                       axes of a mesh, row-major
    replica_groups=mesh['a'=4,'b'=2], device_ids=([2,4]T(1,0)) {'b':(1)2}     reordered mesh, part of an axis
    source_target_pairs={{0,1},{1,0}}                                         permutes

The same group can be spelled in several ways in one program. XLA also generates axis names (``axis_0``) for the
dimensions of a sharded tensor, so the same generated name means different devices in different lines. Groups are
therefore compared by their devices. A group gets an axis name only if the program contains a name that XLA did not
generate.

The numbers in a group can mean replicas, partitions or both, as XLA's function ``GetCollectiveOpGroupMode`` defines."""

import math
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np

from regbot.ledgers.readers.hlo.text import BrokenProgram
from regbot.ledgers.readers.source import Source
from regbot.records.text.clip import clip

MAX_DEVICES = 2**17
MAX_GROUP_SIZE = 2**16
"""Limits that are larger than any machine. A larger number means that the file is broken."""

_LIST = re.compile(r"[\[{]([0-9, ]*)[\]}]")
_LISTS = re.compile(r"replica_groups=(\{(?:\{[0-9,]*\},?)*+\})")
_IOTA = re.compile(r"replica_groups=\[([0-9,]+)\]<=\[([0-9,]+)\](?:T\(([0-9,]+)\))?")
_MESH = re.compile(
    r"replica_groups=mesh\[([^\[\]]{0,4096}+)\]"
    r"(?:, device_ids=\((?:\[([0-9,]+)\](?:T\(([0-9,]+)\))?|([0-9,]+))\))? \{([^{}]{0,4096}+)\}"
)
"""A mesh. The regex groups are its axes, the reshaped and the transposed device order or a list of devices, and the
axes over which a replica group runs."""
_AXIS = re.compile(r"['\"]?([^'\"=,]+)['\"]?=([0-9]{1,9})")
_AXIS_PART = re.compile(r"['\"]?([^'\",:]+)['\"]?(?::\(([0-9]{1,9})\)([0-9]{1,9})|:)?")
"""An axis or a part of one: ``'b'``, or ``'b':(1)2`` with the outer size 1 and the size of the part 2."""
_DENSE = re.compile(r"replica_groups = dense<(\[\[[0-9, \[\]]*\]\])>")
_PAIRS = re.compile(r"\{(?:\{[0-9]{1,9},[0-9]{1,9}\},?)*+\}")
_PAIR = re.compile(r"\{([0-9]{1,9}),([0-9]{1,9})\}")
_GENERATED_NAME = re.compile(r"axis_[0-9]+")


class ReplicaGroup(NamedTuple):
    ranks: tuple[int, ...]
    axis: str = ""
    without_device_0: bool = False
    """Whether device 0 communicates with no other device, so that this is the largest group of other devices."""


class Devices(NamedTuple):
    """Numbers of replicas and partitions in the module header. Device ``r * partitions + p`` runs partition p of
    replica r."""

    replicas: int
    partitions: int

    @property
    def total(self) -> int:
        return self.replicas * self.partitions


class ReplicaGroups:
    """The groups of one program. A group of thousands of devices can occur in thousands of lines. So each spelling is
    parsed once, and equal groups become the same object."""

    def __init__(self, devices: Devices, source: Source) -> None:
        self.devices, self._source = devices, source
        self._by_spelling: dict[tuple[object, str, bool], ReplicaGroup] = {}
        self._groups: dict[ReplicaGroup, ReplicaGroup] = {}

    def find(self, function: Callable[[str, Devices, bool], ReplicaGroup], text: str, flag: bool) -> ReplicaGroup:
        """Return what ``function``, one of the two below, returns. Raises BrokenProgram, and ReadError if the file has
        too many groups for its size."""
        key = (function, text, flag)
        if key not in self._by_spelling:
            group = function(text, self.devices, flag)
            self._source.expand(len(group.ranks))
            self._by_spelling[key] = self._groups.setdefault(group, group)
        return self._by_spelling[key]


def find_group(attributes: str, devices: Devices, reduces_or_gathers: bool) -> ReplicaGroup:
    """Return the group of a collective from its attributes, such as ``replica_groups=...``. Raises BrokenProgram.

    ``reduces_or_gathers`` is True for all-reduce, all-gather and reduce-scatter. Only these have the attribute
    ``use_global_device_ids``. The numbers in the groups mean one of four things:

    - without a channel id, replicas,
    - with a channel id and ``use_global_device_ids``, devices,
    - with a channel id, in an all-reduce, all-gather or reduce-scatter, replicas with all their partitions,
    - with a channel id, in any other collective, partitions."""
    has_channel = "channel_id=" in attributes
    uses_device_ids = has_channel and "use_global_device_ids=true" in attributes
    spans_all_partitions = has_channel and reduces_or_gathers and not uses_device_ids
    # One replica with several partitions is a group of several devices.
    min_size = 1 if spans_all_partitions and devices.partitions > 1 else 2
    group = _parse_lists(attributes, min_size) or _parse_iota(attributes) or _parse_mesh(attributes)
    if group is None:
        _, has_groups, groups_text = attributes.partition("replica_groups=")
        if has_groups:
            raise BrokenProgram(f"replica_groups in an unknown syntax: {clip(groups_text, 80)!r}")
        group = ReplicaGroup(())
    ranks: Sequence[int] = group.ranks
    if not ranks:  # no groups mean one group of everything
        if uses_device_ids:
            count = devices.total
        else:
            count = devices.replicas if spans_all_partitions or not has_channel else devices.partitions
        ranks = range(_check_size(count))
    if not has_channel or spans_all_partitions:  # partition 0 of each replica, or all of them
        counted = devices.partitions if spans_all_partitions else 1
        _check_size(len(ranks) * counted)
        ranks = [replica * devices.partitions + partition for replica in ranks for partition in range(counted)]
    return group._replace(ranks=_sort_ranks(ranks))  # in replica 0, the numbers of partitions are those of devices


def find_permute_group(pairs: str, devices: Devices, has_channel: bool) -> ReplicaGroup:
    """Return the devices that a permute connects with device 0, directly or not. Raises BrokenProgram. ``pairs`` are
    pairs of source and target such as ``{{0,1},{1,0}}``. ``has_channel`` says whether the permute has a channel id.
    With a channel id the numbers are partitions, and otherwise replicas."""
    if not _PAIRS.fullmatch(pairs):
        raise BrokenProgram(f"source_target_pairs in an unknown syntax: {clip(pairs, 80)!r}")
    parents: dict[int, int] = {}  # a union-find forest: connected devices have the same root, the lowest of them

    def find_root(device: int) -> int:
        while parents.setdefault(device, device) != device:
            parents[device] = parents[parents[device]]  # shortens the path for the next call
            device = parents[device]
        return device

    for source, target in _PAIR.findall(pairs):
        lower_root, higher_root = sorted((find_root(int(source)), find_root(int(target))))
        parents[higher_root] = lower_root
    components: dict[int, list[int]] = defaultdict(list)
    for device in list(parents):
        components[find_root(device)].append(device)
    group = _choose_group(components.values(), min_size=2)
    # Without a channel id, a number is a replica, and the replica stands for its first device.
    devices_per_number = 1 if has_channel else devices.partitions
    return group._replace(ranks=tuple(number * devices_per_number for number in group.ranks))


def _check_size(count: int) -> int:
    """Return ``count``. Raises BrokenProgram if no group can have so many devices."""
    if count > MAX_GROUP_SIZE:
        raise BrokenProgram(f"a group of {count:,} devices is too large")
    return count


def _sort_ranks(ranks: Iterable[int]) -> tuple[int, ...]:
    sorted_ranks = tuple(sorted(set(ranks)))
    _check_size(len(sorted_ranks))
    return sorted_ranks


def _parse_numbers(text: str) -> list[int]:
    words = text.replace(" ", "").split(",")
    if any(len(word) > 9 for word in words):
        raise BrokenProgram(f"a device number in {clip(text, 80)!r} is too large")
    return [int(word) for word in words if word]


def _choose_group(groups: Iterable[list[int]], min_size: int) -> ReplicaGroup:
    """Return the group of device 0 if it has at least ``min_size`` members. Otherwise return the largest group with at
    least ``min_size`` members (the first, if several are equally large). If no group is large enough, return the group
    of device 0, or the largest group if no group contains device 0."""
    group_of_device_0: list[int] = []
    largest: list[int] = []
    for ranks in groups:
        if 0 in ranks:
            group_of_device_0 = ranks
            if len(group_of_device_0) >= min_size:
                break
        if len(ranks) > len(largest):
            largest = ranks
    without_device_0 = len(group_of_device_0) < min_size <= len(largest)
    chosen = largest if without_device_0 else group_of_device_0 or largest
    return ReplicaGroup(_sort_ranks(chosen), without_device_0=without_device_0)


def _parse_lists(attributes: str, min_size: int) -> ReplicaGroup | None:
    """Parse groups such as ``{{0,1},{2,3}}``, or ``dense<[[0, 1], [2, 3]]>`` as custom calls have them. Return None if
    the attributes have another syntax. ``min_size`` is as in ``_choose_group``."""
    match = _LISTS.search(attributes) or _DENSE.search(attributes)
    return _choose_group(map(_parse_numbers, _LIST.findall(match[1])), min_size) if match else None


def _parse_iota(attributes: str) -> ReplicaGroup | None:
    """Parse groups such as ``replica_groups=[4,2]<=[2,4]T(1,0)``: 4 groups of 2 consecutive devices of a device order.

    Device 0 comes first in every order, so its group is the first. Return None if the attributes have another syntax.
    """
    match = _IOTA.search(attributes)
    if match is None:
        return None
    sizes, order = _parse_numbers(match[1]), _DeviceOrder.parse(match[2], match[3])
    if len(sizes) != 2 or math.prod(sizes) != order.number:
        raise BrokenProgram(f"{clip(match[0], 80)!r} has sizes that do not match")
    _, group_size = sizes
    return ReplicaGroup(_sort_ranks(order.list_devices(range(_check_size(group_size)))))


class _DeviceOrder(NamedTuple):
    """A device order such as ``[2,4]T(1,0)``: the numbers from 0, reshaped and transposed. Device 0 always comes
    first.
    """

    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    """Distance of neighbouring devices in each of these dimensions."""
    number: int

    @classmethod
    def parse(cls, dimensions: str, permutation: str | None) -> "_DeviceOrder":
        """Parse an order. ``permutation`` is None if nothing is transposed. Raises BrokenProgram."""
        shape = _parse_numbers(dimensions)
        axes = _parse_numbers(permutation) if permutation else list(range(len(shape)))
        count = math.prod(shape)
        if len(shape) > 32 or not 0 < count <= MAX_DEVICES or sorted(axes) != list(range(len(shape))):
            raise BrokenProgram(f"[{clip(dimensions, 80)}] with the transposition {permutation} is not valid")
        strides = [math.prod(shape[axis + 1 :]) for axis in axes]
        return cls(tuple(shape[axis] for axis in axes), tuple(strides), count)

    def list_devices(self, positions: Sequence[int]) -> list[int]:
        remaining = np.array(positions, dtype=np.int64)
        devices = np.zeros_like(remaining)
        for size, stride in zip(reversed(self.sizes), reversed(self.strides), strict=True):
            remaining, coordinates = np.divmod(remaining, size)
            devices += coordinates * stride
        ranks: list[int] = devices.tolist()
        return ranks


def _parse_items(pattern: re.Pattern[str], text: str) -> list[re.Match[str]]:
    return [match for item in text.split(",") if (match := pattern.fullmatch(item))]


def _parse_mesh(attributes: str) -> ReplicaGroup | None:
    """Parse groups such as ``replica_groups=mesh['data'=2,'expert'=4] {'expert'}``. Return None if the attributes have
    another syntax. The group contains the mesh positions that differ from the position of device 0 only along the
    listed axes. Of an axis, a part can be listed: ``'b':(1)2``."""
    match = _MESH.search(attributes)
    if match is None:
        return None
    axes_text, dimensions, permutation, devices_text, group_axes_text = match.groups()
    axis_sizes = {axis[1]: int(axis[2]) for axis in _parse_items(_AXIS, axes_text)}
    count = math.prod(axis_sizes.values())
    if not axis_sizes or len(axis_sizes) > 32 or not 0 < count <= MAX_DEVICES:
        raise BrokenProgram(f"the mesh {clip(axes_text, 80)!r} is not valid")
    devices = _parse_numbers(devices_text) if devices_text else []  # listed devices by mesh position; [] without a list
    order = _DeviceOrder.parse(dimensions or str(count), permutation)
    is_permutation = not devices or (len(devices) == count and sorted(devices) == list(range(count)))
    if order.number != count or not is_permutation:
        raise BrokenProgram(f"the device order of the mesh {clip(axes_text, 80)!r} is not valid")
    strides: dict[str, int] = {}
    for name in reversed(axis_sizes):  # row-major: the last axis has stride 1
        strides[name] = math.prod(axis_sizes[inner_axis] for inner_axis in strides)
    start = devices.index(0) if devices else 0  # mesh position of device 0
    positions, group_axes = [start], []  # mesh positions of the group, and the axes over which it runs
    for part in _parse_items(_AXIS_PART, group_axes_text):
        name, outer_size, part_size = part.groups()
        if name not in axis_sizes:
            raise BrokenProgram(f"the axis {clip(name, 80)!r} of the mesh {clip(axes_text, 80)!r} is not valid")
        size, stride = axis_sizes[name], strides[name]
        if part_size:  # the axis has outer_size x part_size x inner_size positions, and the group runs over part_size
            split = int(outer_size) * int(part_size)
            if not split or size % split:
                raise BrokenProgram(f"the axis {clip(name, 80)!r} of the mesh {clip(axes_text, 80)!r} is not valid")
            inner_size = size // split
            size, stride = int(part_size), stride * inner_size
        group_axes.append(f"{name}:({outer_size}){part_size}" if part_size else name)
        _check_size(size * len(positions))
        coordinate = start // stride % size  # of device 0 along this axis
        positions = [position + (index - coordinate) * stride for position in positions for index in range(size)]
    if any(not 0 <= position < count for position in positions):
        raise BrokenProgram(f"the axes {clip(group_axes_text, 80)!r} of the mesh {clip(axes_text, 80)!r} are not valid")
    ranks = _sort_ranks([devices[position] for position in positions] if devices else order.list_devices(positions))
    if any(_GENERATED_NAME.match(name) for name in group_axes):  # a name that XLA generated names no axis of the model
        return ReplicaGroup(ranks)
    mesh_order = list(axis_sizes)
    group_axes.sort(key=lambda axis: mesh_order.index(axis.partition(":")[0]))
    return ReplicaGroup(ranks, axis="+".join(group_axes))
