"""The Program of one step as a JSON document (``Program`` in ``regbot/records/ledger.py``), from what the device has
recorded: the kernels and the allocations of the step.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Mapping
from typing import Any, NamedTuple

PHASES = ("unknown", "forward", "backward", "optimizer")
"""Names of the phases. The device knows a phase by its position in this tuple."""
HOLDER_KINDS = ("parameter", "gradient", "optimizer", "activation", "temporary", "other")
"""As in ``cpp/holders.h``."""
CURVE_PARTS = 200
HOLDERS = 10

_DTYPES = {
    "Double": "float64", "Float": "float32", "Half": "float16", "Long": "int64", "Int": "int32", "Short": "int16",
    "Char": "int8", "Byte": "uint8", "Undefined": "none",
}  # fmt: skip
"""Names of dtypes that C++ writes in another way than in lower case."""
_NUMBER = re.compile(r"(?<![^.])\d+(?![^.])")


class Wait(NamedTuple):
    kind: str  # read, size, synchronize or event
    phase: str
    where: str
    line: str


class Kernels(NamedTuple):
    """The kernels of a step that agree in all fields but the numbers ``launches``, ``flops`` and ``bytes``."""

    operator: str  # such as aten::mm
    phase: int
    module: int
    dtype: str
    flop_class: str  # matmul, grouped, attention, other, or unknown: it multiplies and has no formula
    is_recompute: bool
    launches: int
    flops: int
    bytes: int
    line: str

    @staticmethod
    def parse(text: str) -> "Kernels":
        operator, phase, module, dtype, flop_class, is_recompute, count, flops, num_bytes, line = text.split("\t")
        return Kernels(
            operator, int(phase), int(module), _DTYPES.get(dtype, dtype.lower()), flop_class, is_recompute == "1",
            int(count), int(flops), int(num_bytes), line,
        )  # fmt: skip


def build_program(device: Any, modules: Mapping[int, str], waits: Counter[Wait]) -> dict[str, Any]:
    """Return the Program of the step that ``device`` has recorded. ``modules`` has the paths of modules by number."""
    kernels = device.kernels()
    flops_by: Counter[str] = Counter()
    without_formula: Counter[str] = Counter()
    rows: defaultdict[tuple[str, ...], Counter[str]] = defaultdict(Counter)
    for group in kernels:
        is_unknown = group.flop_class == "unknown"
        if is_unknown:
            without_formula[group.operator] += group.launches
        flop_class = "other" if is_unknown else group.flop_class
        flops_by[flop_class] += group.flops
        key = (flop_class, group.dtype, PHASES[group.phase], modules.get(group.module, ""), group.line)
        recomputed_flops = group.flops if group.is_recompute else 0
        rows[key].update(
            flops=group.flops, recomputed_flops=recomputed_flops, bytes=group.bytes, launches=group.launches
        )
    names = ("flop_class", "dtype", "phase", "where", "line")
    return {
        "flops": sum(flops_by.values()),
        "flops_by": dict(flops_by),
        "bytes_moved": sum(group.bytes for group in kernels),
        "launches": sum(group.launches for group in kernels),
        "recomputed_flops": sum(group.flops for group in kernels if group.is_recompute),
        "without_formula": dict(without_formula),
        **_describe_memory(device.ops.describe_memory(CURVE_PARTS), modules),
        "rows": [{**dict(zip(names, key, strict=True)), **numbers} for key, numbers in sorted(rows.items())],
        "waits": [{**wait._asdict(), "count": count} for wait, count in sorted(waits.items())],
    }


def _describe_memory(lines: list[str], modules: Mapping[int, str]) -> dict[str, Any]:
    peak_bytes, phase, module, num_parts = map(int, lines[0].split("\t"))
    curve = [tuple(map(int, line.split("\t"))) for line in lines[1 : 1 + num_parts]]
    live_by: Counter[str] = Counter()
    holders: defaultdict[tuple[str, str, str], Counter[str]] = defaultdict(Counter)
    for text in lines[1 + num_parts :]:
        kind_number, module_number, num_bytes, count, line = text.split("\t")
        kind = HOLDER_KINDS[int(kind_number)]
        live_by[kind] += int(num_bytes)
        # All layers together, because a layer's share is small.
        where = _NUMBER.sub("*", modules.get(int(module_number), ""))
        holders[kind, where, line].update(bytes=int(num_bytes), count=int(count))
    largest = sorted(holders.items(), key=lambda item: (-item[1]["bytes"], item[0]))[:HOLDERS]
    return {
        "peak_bytes": peak_bytes,
        "peak_phase": PHASES[phase],
        "peak_where": modules.get(module, ""),
        "live_by": dict(live_by),
        "holders": [{"kind": kind, "where": where, "line": line, **sums} for (kind, where, line), sums in largest],
        "live_curve": [(PHASES[number], num_bytes) for number, num_bytes in curve],
    }
