"""Who takes part in a collective of an HLO program: the group of device 0, in the syntaxes that XLA prints.

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
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import NamedTuple

from regbot.ledgers.readers.kineto_groups import compact

MAX_DEVICES = 2**17
MAX_GROUP = 2**16
"""More than any machine has; a number beyond is a broken file."""

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
_PAIRS = re.compile(r"source_target_pairs=(\{(?:\{[0-9]{1,9},[0-9]{1,9}\},?)*+\})")
_PAIR = re.compile(r"\{([0-9]{1,9}),([0-9]{1,9})\}")
_MADE_UP = re.compile(r"axis_[0-9]+")


class Group(NamedTuple):
    """The devices that device 0 talks to, itself included, sorted; ``axis`` where the program names the mesh axis."""

    ranks: tuple[int, ...]
    axis: str = ""


class BadGroup(Exception):
    """Groups that cannot be read. The message says what they look like."""


class Devices(NamedTuple):
    """Of the module header. Device ``r * partitions + p`` runs partition p of replica r."""

    replicas: int
    partitions: int

    @property
    def all(self) -> int:
        return self.replicas * self.partitions


@lru_cache(maxsize=4096)
def group_of(attributes: str, devices: Devices, *, reduces_or_gathers: bool) -> Group:
    """The group of a collective from the text of its attributes. ``reduces_or_gathers``: all-reduce, all-gather and
    reduce-scatter, which carry use_global_device_ids. Raises BadGroup."""
    group = _listed(attributes) or _iota(attributes) or _mesh(attributes) or _dense(attributes)
    if group is None:
        if "replica_groups=" in attributes:
            raise BadGroup(f"replica_groups in an unknown syntax: {attributes.partition('replica_groups=')[2][:80]!r}")
        group = Group(())
    replica = "channel_id=" not in attributes
    if not replica and "use_global_device_ids=true" in attributes:
        return group if group.ranks else _everyone(devices.all)
    if replica:
        ranks = group.ranks or _everyone(devices.replicas).ranks
        return group._replace(ranks=_sorted(rank * devices.partitions for rank in ranks))
    if reduces_or_gathers:
        ranks = group.ranks or _everyone(devices.replicas).ranks
        _allowed(len(ranks) * devices.partitions)
        return Group(_sorted(r * devices.partitions + p for r in ranks for p in range(devices.partitions)))
    return group if group.ranks else _everyone(devices.partitions)


def permuted(attributes: str, devices: Devices) -> Group | None:
    """The devices that a permute connects with device 0, with the lowest device where 0 takes no part; None where the
    attributes have no pairs. Raises BadGroup."""
    found = _PAIRS.search(attributes)
    if found is None:
        return None
    parent: dict[int, int] = {}

    def root(device: int) -> int:
        while parent.setdefault(device, device) != device:
            parent[device] = parent[parent[device]]
            device = parent[device]
        return device

    for pair in _PAIR.finditer(found[1]):
        low, high = sorted((root(int(pair[1])), root(int(pair[2]))))
        parent[high] = low
    if not parent:
        return Group(())
    lowest = min(parent)
    width = 1 if "channel_id=" in attributes else devices.partitions
    return Group(_sorted(device * width for device in list(parent) if root(device) == lowest))


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


def _with_device_0(groups: Iterable[list[int]]) -> Group:
    first: list[int] | None = None
    for ranks in groups:
        if 0 in ranks:
            return Group(_sorted(ranks))
        first = ranks if first is None else first
    return Group(_sorted(first or ()))


def _listed(attributes: str) -> Group | None:
    found = _LISTS.search(attributes)
    return _with_device_0(_numbers(ranks[1]) for ranks in _LIST.finditer(found[1][1:-1])) if found else None


def _dense(attributes: str) -> Group | None:
    """Groups in the MLIR attribute of a custom call."""
    found = _DENSE.search(attributes)
    return _with_device_0(_numbers(row) for row in re.findall(r"\[([0-9, ]+)\]", found[1])) if found else None


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
