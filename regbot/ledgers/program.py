"""Changes between the Programs of two ledgers: what a step computes, holds, launches and waits for.

``find_changes`` looks for rises, once from base to head and once from head to base. A rise from head to base is a fall,
and gets the name of the inverse pattern. Every amount is one of the whole step. Modules only explain a change, so that
a renamed module changes nothing."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

from regbot.ledgers import catalogue as names
from regbot.ledgers.dtypes import width
from regbot.ledgers.rows import MAX_MODULES, template
from regbot.records.ledger import ComputeRow, FlopClass, Holder, HolderKind, Phase, Program, WaitKind
from regbot.records.settings import ProgramThresholds as Thresholds
from regbot.records.text.clip import clip_message
from regbot.records.text.units import format_amount
from regbot.records.verdict import Amounts, ProgramTotals

PRODUCTS: tuple[FlopClass, ...] = ("matmul", "grouped", "attention")
WIDER = (2, 4)
"""Ratios of the widths of two element types."""
MAX_PARTS = 3
"""A text names at most this many modules."""
HOLDER_NAMES: dict[HolderKind, str] = {
    "parameter": "parameters",
    "gradient": "gradients",
    "optimizer": "optimizer state",
    "activation": "activations",
    "temporary": "temporary buffers",
    "other": "storages of earlier steps",
}
WAIT_NAMES: dict[WaitKind, str] = {
    "read": "values read (.item(), .tolist(), a branch)",
    "size": "sizes that depend on data (nonzero, a boolean index)",
    "synchronize": "calls of synchronize",
    "event": "events that the host waits for",
}


@dataclass(frozen=True)
class ProgramChange:
    """One change between two Programs."""

    pattern: str
    wall: str
    """compute, memory or host."""
    amounts: Amounts
    rises: bool = True
    modules: tuple[str, ...] = ()
    """Templates of the modules that ``PRODUCT_WIDENED`` and ``FUSED_LOST`` are about."""
    dtypes: tuple[str, ...] = ()
    """The wider types of ``PRODUCT_WIDENED``, each after the narrower one."""

    def flip(self) -> "ProgramChange":
        """Return the change with base and head swapped."""
        amounts = Amounts(unit=self.amounts.unit, base=self.amounts.head, head=self.amounts.base)
        return replace(self, pattern=names.INVERSE[self.pattern], amounts=amounts, rises=not self.rises)


def count_totals(program: Program) -> ProgramTotals:
    return ProgramTotals(
        flops=program.flops,
        recomputed_flops=program.recomputed_flops,
        bytes_moved=program.bytes_moved,
        launches=program.launches,
        host_waits=program.host_waits,
        peak_bytes=program.peak_bytes,
        without_formula=sum(program.without_formula.values()),
    )


def find_changes(base: Program, head: Program, thresholds: Thresholds, device_bytes: int | None) -> list[ProgramChange]:
    """Return the changes that reach their threshold. ``device_bytes``: the memory that the peak must fit; None if there
    is no GPU."""
    falls = (change.flip() for change in _find_rises(head, base, thresholds, device_bytes))
    return [*_find_rises(base, head, thresholds, device_bytes), *falls]


def rise_pct(amounts: Amounts) -> float:
    """Return the rise in percent, negative for a fall. It is infinite if base has nothing."""
    if not amounts.base:
        return float("inf") if amounts.head else 0.0
    return 100 * (amounts.head / amounts.base - 1)


def _find_rises(low: Program, high: Program, limits: Thresholds, device_bytes: int | None) -> Iterator[ProgramChange]:
    recomputed = Amounts(unit="flops", base=low.recomputed_flops, head=high.recomputed_flops)
    own = Amounts(unit="flops", base=low.flops - recomputed.base, head=high.flops - recomputed.head)
    total = Amounts(unit="flops", base=low.flops, head=high.flops)
    smallest_rise = limits.flops_pct / 100 * min(low.flops, high.flops)
    is_recompute = _is_rise(recomputed, smallest_rise)
    if is_recompute:
        yield ProgramChange(names.RECOMPUTE_ADDED, "compute", recomputed)
    if _is_rise(own, smallest_rise):
        yield ProgramChange(names.FLOPS_UP, "compute", own)
    elif _is_rise(total, smallest_rise) and not is_recompute:
        yield ProgramChange(names.FLOPS_UP, "compute", total)
    yield from _find_wider_products(low, high)

    peak = Amounts(unit="bytes", base=low.peak_bytes, head=high.peak_bytes)
    if device_bytes is not None and low.peak_bytes <= device_bytes < high.peak_bytes:
        yield ProgramChange(names.DOES_NOT_FIT, "memory", peak)
    elif _is_rise(peak, limits.peak_pct / 100 * low.peak_bytes):
        yield ProgramChange(_name_peak_rise(low, high), "memory", peak)

    # The kernels of a recompute belong to that finding. They are at most those of forward.
    added = _count_launches(high, "backward") - _count_launches(low, "backward")
    repeated = max(0, min(added, _count_launches(high, "forward"))) if is_recompute else 0
    low_launches, high_launches = low.launches, high.launches - repeated
    launches = Amounts(unit="launches", base=low_launches, head=high_launches)
    if _is_rise(launches, limits.launches_pct / 100 * low_launches):
        module = _find_fused_module(low, high, (high_launches - low_launches) / 2)
        pattern = names.LAUNCHES_UP if module is None else names.FUSED_LOST
        yield ProgramChange(pattern, "host", launches, modules=() if module is None else (module,))
    waits = Amounts(unit="waits", base=low.host_waits, head=high.host_waits)
    if _is_rise(waits, 0):
        yield ProgramChange(names.WAITS_ADDED, "host", waits)


def _count_launches(program: Program, phase: Phase) -> int:
    return sum(row.launches for row in program.rows if row.phase == phase)


def _is_rise(amounts: Amounts, smallest: float) -> bool:
    return amounts.head > amounts.base and amounts.head - amounts.base >= smallest


def _group_rows(low: Program, high: Program) -> dict[str, tuple[list[ComputeRow], list[ComputeRow]]]:
    """Return the rows of both Programs by module template. Modules that only one of them has may be renamed, so they
    are one group, with the key '?'."""
    sides = [{template(row.where) for row in program.rows} for program in (low, high)]
    shared = sides[0] & sides[1]
    groups: dict[str, tuple[list[ComputeRow], list[ComputeRow]]] = defaultdict(lambda: ([], []))
    for side, program in enumerate((low, high)):
        for row in program.rows:
            module = template(row.where)
            groups[module if module in shared else "?"][side].append(row)
    return groups


def _find_wider_products(low: Program, high: Program) -> Iterator[ProgramChange]:
    """Yield at most one change: the FLOPs of products that move to a wider type. The group '?' comes last. It has what
    the modules of both Programs leave unexplained too, because a product may move to another module."""
    before = after = 0
    modules, types = [], []
    groups = _group_rows(low, high)
    groups["?"] = groups.pop("?", ([], []))
    left_over: tuple[Counter[str], Counter[str]] = (Counter(), Counter())
    for module, sides in groups.items():
        low_flops, high_flops = (_sum_flops_by_dtype(rows) for rows in sides)
        if module == "?":
            low_flops += left_over[0]
            high_flops += left_over[1]
        growth = {dtype: high_flops[dtype] - low_flops[dtype] for dtype in {*low_flops, *high_flops}}
        widths = {dtype: bytes_each for dtype in growth if (bytes_each := width(dtype)) is not None}
        lost = min(
            (dtype for dtype in widths if growth[dtype] < 0), key=lambda dtype: (widths[dtype], dtype), default=None
        )
        gained = max(
            (dtype for dtype in widths if growth[dtype] > 0), key=lambda dtype: (widths[dtype], dtype), default=None
        )
        if lost is not None and gained is not None and widths[lost] < widths[gained]:
            moved = min(-growth[lost], growth[gained])
            before += low_flops[gained]
            after += low_flops[gained] + moved
            modules.append(module)
            types += [lost, gained]
            low_flops[lost] -= moved
            high_flops[gained] -= low_flops.pop(gained, 0) + moved
        left_over[0].update(low_flops)
        left_over[1].update(high_flops)
    if modules:
        amounts = Amounts(unit="flops", base=before, head=after)
        dtypes = tuple(dict.fromkeys(types))
        yield ProgramChange(names.PRODUCT_WIDENED, "compute", amounts, modules=tuple(sorted(modules)), dtypes=dtypes)


def _sum_flops_by_dtype(rows: Iterable[ComputeRow]) -> Counter[str]:
    flops: Counter[str] = Counter()
    for row in rows:
        if row.flop_class in PRODUCTS:
            flops[row.dtype] += row.flops
    return flops


def _name_peak_rise(low: Program, high: Program) -> str:
    """Return the pattern of the kind of storage that explains at least half of the rise."""
    half = (high.peak_bytes - low.peak_bytes) / 2
    growth = {kind: high.live_by.get(kind, 0) - low.live_by.get(kind, 0) for kind in HOLDER_NAMES}
    for kind in ("gradient", "optimizer"):
        before = low.live_by.get(kind, 0)
        is_wider = any(abs(growth[kind] - (ratio - 1) * before) <= 0.01 * before for ratio in WIDER)
        if before and is_wider and growth[kind] >= half and not growth["parameter"]:
            return names.STATE_WIDENED
    return names.TEMPORARY_ADDED if growth["temporary"] >= half else names.PEAK_UP


def _find_fused_module(low: Program, high: Program, half: float) -> str | None:
    """Return the module that explains at least ``half`` of the rise of launches, if it moves more bytes for the same
    FLOPs of products in the same types; else None."""
    for module, (low_rows, high_rows) in _group_rows(low, high).items():
        if sum(row.launches for row in high_rows) - sum(row.launches for row in low_rows) >= half:
            before, after = (_sum_flops_by_dtype(rows) for rows in (low_rows, high_rows))
            has_same_flops = all(abs(after[dtype] - before[dtype]) <= 0.01 * before[dtype] for dtype in before | after)
            moves_more = sum(row.bytes for row in high_rows) > sum(row.bytes for row in low_rows)
            return module if has_same_flops and moves_more else None
    return None


def write_text(change: ProgramChange, base: Program, head: Program) -> str:
    """Return what changed, in one or two sentences: the amounts, and the modules that change most."""
    before, after = (format_amount(value, change.amounts.unit) for value in (change.amounts.base, change.amounts.head))
    modules = ", ".join(module or "the model itself" for module in change.modules[:MAX_PARTS])
    modules = modules.replace("?", "modules that differ between the arms")
    dtypes = ", ".join(change.dtypes)
    comparison = f"{after}, {before} before{format_rise(change.amounts)}"
    if change.wall == "memory":
        return clip_message(f"{_describe_peak(change, base, head)}.")
    match change.pattern:
        case names.PRODUCT_WIDENED | names.PRODUCT_NARROWED:
            dtype = "wider" if change.rises else "narrower"
            sentence = f"Products run in a {dtype} type ({dtypes}) in {modules}: {comparison} in the wider one"
            return clip_message(f"{sentence}.")
        case names.RECOMPUTE_ADDED | names.RECOMPUTE_REMOVED:
            sentence = (
                f"Backward repeats work of forward: {comparison}, with {head.launches - base.launches:+,} kernels"
            )
        case names.FLOPS_UP | names.FLOPS_DOWN:
            sentence = f"The step computes {comparison}"
        case names.FUSED_LOST | names.FUSED_RESTORED:
            sentence = f"In {modules}, {'more' if change.rises else 'fewer'} kernels do the same products: {comparison}"
        case names.WAITS_ADDED | names.WAITS_REMOVED:
            sentence = f"A step has {comparison}"
        case _:
            sentence = f"The step launches {comparison}"
    parts = _list_parts(change, base, head)
    return clip_message(f"{sentence}{f': {parts}' if parts else ''}.")


def _describe_peak(change: ProgramChange, base: Program, head: Program) -> str:
    before, after = (format_amount(value, "bytes") for value in (change.amounts.base, change.amounts.head))
    place = f" in {head.peak_phase} of {template(head.peak_where) or 'the model itself'}"
    sentence = f"The peak of allocated memory is {after}, {before} before{format_rise(change.amounts)}, reached{place}"
    growth = {kind: head.live_by.get(kind, 0) - base.live_by.get(kind, 0) for kind in HOLDER_NAMES}
    # A list of holders ends after the largest, so a holder that one arm lacks may only be small there. The amounts are
    # those of ``live_by``, which are exact.
    parts = []
    for kind, size in sorted(growth.items(), key=lambda item: -abs(item[1]))[:MAX_PARTS]:
        if size:
            holders = [[holder for holder in program.holders if holder.kind == kind] for program in (base, head)]
            owner = _name_largest_growth(*(holders if size > 0 else holders[::-1]))
            parts.append(f"{format_amount(size, 'bytes', sign='+')} {HOLDER_NAMES[kind]}{owner}")
    return f"{sentence}: {', '.join(parts)}" if parts else sentence


def _name_largest_growth(low: list[Holder], high: list[Holder]) -> str:
    """Return the module and the line whose storages grow most; '' if no module is known."""
    growth: Counter[str] = Counter()
    for sign, holders in ((-1, low), (1, high)):
        for holder in holders:
            growth[template(holder.where)] += sign * holder.bytes
    module, size = max(growth.items(), key=lambda item: item[1], default=("", 0))
    if size <= 0:
        return ""
    line = max((holder for holder in high if template(holder.where) == module), key=lambda holder: holder.bytes).line
    return f" held by {module or 'the model itself'}{f' from {line}' if line else ''}"


class Part(NamedTuple):
    """A part of the amount that changed."""

    module: str
    """Template."""
    noun: str
    line: str
    amount: int


def count_by_line(change: ProgramChange, program: Program) -> Counter[str]:
    """Return the amounts that the change is about, by source line."""
    amounts: Counter[str] = Counter()
    for part in _list_amounts(change, program):
        amounts[part.line] += part.amount
    return amounts


def _list_amounts(change: ProgramChange, program: Program) -> Iterator[Part]:
    match change.amounts.unit:
        case "flops" if change.dtypes:  # products that change their type, counted where they run in the wider one
            widest = max(change.dtypes, key=lambda dtype: width(dtype) or 0)
            for row in program.rows:
                if row.flop_class in PRODUCTS and row.dtype == widest:
                    yield Part(template(row.where), "", row.line, row.flops)
        case "flops":
            is_recompute = change.pattern in (names.RECOMPUTE_ADDED, names.RECOMPUTE_REMOVED)
            for row in program.rows:
                amount = row.recomputed_flops if is_recompute else row.flops - row.recomputed_flops
                yield Part(template(row.where), "", row.line, amount)
        case "bytes":
            for holder in program.holders:
                yield Part(template(holder.where), HOLDER_NAMES[holder.kind], holder.line, holder.bytes)
        case "launches":
            for row in program.rows:
                yield Part(template(row.where), "kernels", row.line, row.launches)
        case "waits":
            for wait in program.waits:
                yield Part(template(wait.where), WAIT_NAMES[wait.kind], wait.line, wait.count)


def _list_parts(change: ProgramChange, base: Program, head: Program) -> str:
    """Return the modules whose amounts change most, such as '+86.1 TFLOP in layers.*.moe (moe.py:41)'."""
    growth: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)  # by module and noun, then by line
    for sign, program in ((-1, base), (1, head)):
        for part in _list_amounts(change, program):
            growth[part.noun, part.module][part.line] += sign * part.amount
    largest = sorted(
        (owner for owner in growth if growth[owner].total()), key=lambda owner: -abs(growth[owner].total())
    )
    parts = []
    for noun, module in largest[:MAX_PARTS]:
        by_line = growth[noun, module]
        size = by_line.total()
        line = max(by_line, key=lambda line: (by_line[line] * size, line))
        amount = f"{size:+,} {noun}" if noun else format_amount(size, change.amounts.unit, sign="+")
        parts.append(f"{amount} in {module or 'the model itself'}{f' ({line})' if line else ''}")
    return ", ".join(parts)


def changed_modules(change: ProgramChange, base: Program, head: Program) -> list[str]:
    """Return templates of the modules that change most in the direction of the change."""
    if change.modules:
        return [module for module in change.modules if module != "?"][:MAX_MODULES]
    growth: Counter[str] = Counter()
    for program, sign in ((base, -1), (head, 1)) if change.rises else ((base, 1), (head, -1)):
        for part in _list_amounts(change, program):
            growth[part.module] += sign * part.amount
    return [module for module, size in growth.most_common(MAX_MODULES) if size > 0]


def format_rise(amounts: Amounts) -> str:
    """Return the change in brackets, such as ' (+700%)'; '' if nothing changes or base has nothing."""
    pct = rise_pct(amounts)
    return "" if pct in (0.0, float("inf")) else f" ({pct:+.{0 if abs(pct) >= 100 else 1}f}%)"
