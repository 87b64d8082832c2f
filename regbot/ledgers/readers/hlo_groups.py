"""Who takes part in a collective of an HLO program: the group of device 0, in the syntaxes that XLA prints.

Groups of one line can differ in size. Where device 0 stands alone and others do not, theirs is taken, the largest, and
marked: on device 0 the line does nothing, for the step it does.

    replica_groups={{0,1},{2,3}}                                              lists; {} means everyone
    replica_groups=[4,2]<=[2,4]T(1,0)                                         iota: 4 groups of 2, transposed
    replica_groups=mesh['data'=2,'expert'=4] {'expert'}                       axes of a mesh, row-major
    replica_groups=mesh['a'=4,'b'=2], device_ids=([2,4]T(1,0)) {'b':(1)2}     reordered mesh, part of an axis
    source_target_pairs={{0,1},{1,0}}                                         permutes

One group has many spellings, often in one program, and XLA makes up axis names (``axis_0``) that number the dimensions
of whatever tensor was sharded: the same name stands for different devices from line to line. So groups are told apart
by their devices, and an axis is named only where the program carries a name that XLA did not make up.

Which numbers the groups hold, replicas or partitions or both, follows XLA's ``GetCollectiveOpGroupMode``.
"""

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from regbot.ledgers.readers.kineto_groups import compact

MAX_DEVICES = 2**17
MAX_GROUP = 2**16
"""More than any machine has; a number beyond is a broken file."""
MAX_WORK = 2**24
"""Most devices and characters in all the different groups of a program. Programs have a few dozen groups; one that
names other ones in each of its lines would cost as many devices as lines."""

_LIST = re.compile(r"\{([0-9,]*)\}")
_LISTS = re.compile(r"replica_groups=(\{(?:\{[0-9,]*\},?)*+\})")
_IOTA = re.compile(r"replica_groups=\[([0-9,]+)\]<=\[([0-9,]+)\](?:T\(([0-9,]+)\))?")
_MESH = re.compile(
    r"replica_groups=mesh\[([^\]]{0,4096})\]"
    r"(?:, device_ids=\((?:\[([0-9,]+)\](?:T\(([0-9,]+)\))?|([0-9,]+))\))? \{([^}]{0,4096})\}"
)
_AXIS = re.compile(r"['\"]?([^'\"=,]+)['\"]?=([0-9]{1,9})(?:,|$)")
_AXIS_PART = re.compile(r"['\"]?([^'\",:]+)['\"]?(?::\(([0-9]{1,9})\)([0-9]{1,9})|:)?(?:,|$)")
_DENSE = re.compile(r"replica_groups = dense<(\[\[[0-9, \[\]]*\]\])>")
_PAIRS = re.compile(r"\{(?:\{[0-9]{1,9},[0-9]{1,9}\},?)*+\}")
_PAIR = re.compile(r"\{([0-9]{1,9}),([0-9]{1,9})\}")
_MADE_UP = re.compile(r"axis_[0-9]+")


class Group(NamedTuple):
    """The devices that device 0 talks to, itself included, sorted; ``axis`` where the program names the mesh axis;
    ``elsewhere`` where device 0 talks to nobody and these are the largest group of others."""

    ranks: tuple[int, ...]
    axis: str = ""
    elsewhere: bool = False


class BadGroup(Exception):
    """Groups that cannot be read. The message says what they look like."""


class Devices(NamedTuple):
    """Of the module header. Device ``r * partitions + p`` runs partition p of replica r."""

    replicas: int
    partitions: int

    @property
    def all(self) -> int:
        return self.replicas * self.partitions


class Groups:
    """The groups of one program. Each spelling is read once, and equal groups are one object, because a group of
    thousands of devices stands in thousands of lines."""

    def __init__(self, devices: Devices) -> None:
        self.devices = devices
        self._spelt: dict[tuple[str, bool], Group] = {}
        self._groups: dict[Group, Group] = {}
        self._work = 0

    def of(self, attributes: str, *, reduces_or_gathers: bool) -> Group:
        """As ``group_of``. Raises BadGroup."""
        key = (attributes, reduces_or_gathers)
        if key not in self._spelt:
            self._remember(key, group_of(attributes, self.devices, reduces_or_gathers=reduces_or_gathers))
        return self._spelt[key]

    def permuted(self, pairs: str, *, channel: bool) -> Group:
        """As ``permuted``. Raises BadGroup."""
        key = (pairs, channel)
        if key not in self._spelt:
            self._remember(key, permuted(pairs, self.devices, channel=channel))
        return self._spelt[key]

    def _remember(self, key: tuple[str, bool], group: Group) -> None:
        self._work += len(key[0]) + len(group.ranks)
        if self._work > MAX_WORK:
            raise BadGroup("other groups in each of very many lines")
        self._spelt[key] = self._groups.setdefault(group, group)


def group_of(attributes: str, devices: Devices, *, reduces_or_gathers: bool) -> Group:
    """The group of a collective from its ``replica_groups=...`` and what goes with it. ``reduces_or_gathers``:
    all-reduce, all-gather and reduce-scatter, which carry use_global_device_ids. Raises BadGroup."""
    replica = "channel_id=" not in attributes
    spread = reduces_or_gathers and not replica and "use_global_device_ids=true" not in attributes
    least = 1 if spread and devices.partitions > 1 else 2
    group = _listed(attributes, least) or _iota(attributes) or _mesh(attributes) or _dense(attributes, least)
    if group is None:
        if "replica_groups=" in attributes:
            raise BadGroup(f"replica_groups in an unknown syntax: {attributes.partition('replica_groups=')[2][:80]!r}")
        group = Group(())
    if not replica and "use_global_device_ids=true" in attributes:
        return group if group.ranks else _everyone(devices.all)
    if replica:
        ranks = group.ranks or _everyone(devices.replicas).ranks
        return group._replace(ranks=_sorted(rank * devices.partitions for rank in ranks))
    if reduces_or_gathers:
        ranks = group.ranks or _everyone(devices.replicas).ranks
        _allowed(len(ranks) * devices.partitions)
        return group._replace(
            ranks=_sorted(r * devices.partitions + p for r in ranks for p in range(devices.partitions))
        )
    return group if group.ranks else _everyone(devices.partitions)


def permuted(pairs: str, devices: Devices, *, channel: bool) -> Group:
    """The devices that a permute connects with device 0. ``pairs``: ``{{0,1},{1,0}}``. Raises BadGroup."""
    if not _PAIRS.fullmatch(pairs):
        raise BadGroup(f"source_target_pairs in an unknown syntax: {pairs[:80]!r}")
    parent: dict[int, int] = {}

    def root(device: int) -> int:
        while parent.setdefault(device, device) != device:
            parent[device] = parent[parent[device]]
            device = parent[device]
        return device

    for pair in _PAIR.finditer(pairs):
        low, high = sorted((root(int(pair[1])), root(int(pair[2]))))
        parent[high] = low
    connected: dict[int, list[int]] = defaultdict(list)
    for device in list(parent):
        connected[root(device)].append(device)
    group, width = _with_device_0(connected.values(), 2), 1 if channel else devices.partitions
    return group._replace(ranks=tuple(device * width for device in group.ranks))


def label(ranks: Sequence[int]) -> str:
    """Devices in brackets, as the other readers write ranks: ``[0-7]``, ``[0-6:2]``, ``[0,1,4,5]``."""
    return f"[{compact(ranks)}]"


def _allowed(count: int) -> int:
    if count > MAX_GROUP:
        raise BadGroup(f"a group of {count:,} devices")
    return count


def _everyone(count: int) -> Group:
    return Group(tuple(range(_allowed(count))))


def _sorted(ranks: Iterable[int]) -> tuple[int, ...]:
    found = tuple(sorted(set(ranks)))
    _allowed(len(found))
    return found


def _numbers(text: str) -> list[int]:
    words = text.replace(" ", "").split(",")
    if any(len(word) > 9 for word in words):
        raise BadGroup(f"a device number in {text[:80]!r}")
    return [int(word) for word in words if word]


def _with_device_0(groups: Iterable[list[int]], least: int) -> Group:
    """The group of device 0, if it has at least ``least`` members; else the largest that has, the first of equal ones;
    else that of device 0 again."""
    ours: list[int] = []
    largest: list[int] = []
    for ranks in groups:
        if 0 in ranks:
            ours = ranks
            if len(ours) >= least:
                break
        if len(ranks) > len(largest):
            largest = ranks
    elsewhere = len(ours) < least <= len(largest)
    return Group(_sorted(largest if elsewhere else ours or largest), elsewhere=elsewhere)


def _listed(attributes: str, least: int) -> Group | None:
    found = _LISTS.search(attributes)
    return _with_device_0((_numbers(ranks[1]) for ranks in _LIST.finditer(found[1][1:-1])), least) if found else None


def _dense(attributes: str, least: int) -> Group | None:
    """Groups in the MLIR attribute of a custom call."""
    found = _DENSE.search(attributes)
    return _with_device_0(map(_numbers, re.findall(r"\[([0-9, ]+)\]", found[1])), least) if found else None


def _iota(attributes: str) -> Group | None:
    found = _IOTA.search(attributes)
    if found is None:
        return None
    groups, order = _numbers(found[1]), _Order.of(found[2], found[3])
    if len(groups) != 2 or groups[0] * groups[1] != order.number:
        raise BadGroup(f"{found[0][:80]!r} does not come out even")
    return Group(_sorted(order.device(place) for place in range(_allowed(groups[1]))))


class _Order(NamedTuple):
    """Devices in the order of ``[2,4]T(1,0)``: numbers from 0, reshaped, transposed. Device 0 is always the first."""

    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    number: int

    @classmethod
    def of(cls, dimensions: str, transposed: str | None) -> "_Order":
        shape = _numbers(dimensions)
        axes = _numbers(transposed) if transposed else list(range(len(shape)))
        count = math.prod(shape)
        if len(shape) > 32 or not 0 < count <= MAX_DEVICES or sorted(axes) != list(range(len(shape))):
            raise BadGroup(f"[{dimensions[:80]}] with the transposition {transposed}")
        strides = [math.prod(shape[axis + 1 :]) for axis in axes]
        return cls(tuple(shape[axis] for axis in axes), tuple(strides), count)

    def device(self, place: int) -> int:
        device = 0
        for size, stride in zip(reversed(self.sizes), reversed(self.strides), strict=True):
            place, digit = divmod(place, size)
            device += digit * stride
        return device


def _mesh(attributes: str) -> Group | None:
    found = _MESH.search(attributes)
    if found is None:
        return None
    axes = {name: int(size) for name, size in _AXIS.findall(found[1])}
    count = math.prod(axes.values())
    if not axes or len(axes) > 32 or not 0 < count <= MAX_DEVICES:
        raise BadGroup(f"the mesh {found[1][:80]!r}")
    devices = _numbers(found[4]) if found[4] else []
    order = _Order.of(found[2] or str(count), found[3])
    if order.number != count or (devices and sorted(devices) != list(range(count))):
        raise BadGroup(f"the device order of the mesh {found[1][:80]!r}")
    strides: dict[str, int] = {}
    for name in reversed(axes):
        strides[name] = math.prod(axes[other] for other in strides)
    start = devices.index(0) if devices else 0
    places, names = [start], []
    for name, before, part in _AXIS_PART.findall(found[5]):
        size = axes.get(name, 0)
        if not size or (part and (not int(before) or not int(part) or size % (int(before) * int(part)))):
            raise BadGroup(f"the axis {name[:80]!r} of the mesh {found[1][:80]!r}")
        names.append(f"{name}:({before}){part}" if part else name)
        stride = strides[name] * (size // (int(before) * int(part)) if part else 1)
        size = int(part) if part else size
        _allowed(size * len(places))
        here = start // stride % size
        places = [place + (i - here) * stride for place in places for i in range(size)]
    if any(not 0 <= place < count for place in places):
        raise BadGroup(f"the axes {found[5][:80]!r} of the mesh {found[1][:80]!r}")
    ranks = _sorted(devices[place] if devices else order.device(place) for place in places)
    in_order = sorted(names, key=lambda name: list(axes).index(name.partition(":")[0]))
    return Group(ranks, "" if any(_MADE_UP.match(name) for name in names) else "+".join(in_order))
