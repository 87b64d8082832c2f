"""Explain one traced step without comparing it: what each module spends, and what the step has that an MoE step of its
shape does not need.

The needs are those of a dropless MoE layer with expert parallelism: each token goes to its experts and back once in
forward, and the gradients once each way in backward. The host reads the splits of an exchange once a layer. Products
run in the dtype of the parameters, except for the router, whose products are few."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from typing import NamedTuple, TypeVar

from regbot.ledgers.rows import template
from regbot.ledgers.wire import WireModel
from regbot.records.config import WireBandwidths
from regbot.records.explanation import CollectiveShare, Explanation, ModuleShare, Remark
from regbot.records.ledger import GPU_MEMORY_BYTES, Entry, Holder, HostWait, Ledger, Program
from regbot.records.text.units import binary_bytes
from regbot.records.text.words import count

EXPERT_AXIS = "ep"
EXCHANGES = {"forward": 2, "backward": 2}
"""Number of token exchanges that one MoE layer needs, by phase: dispatch and combine, and their gradients."""
WIDE = ("float32", "float64")
MIN_WIDE_SHARE = 0.005
"""Smallest share of the step's FLOPs in a wide dtype that is worth a remark. A router in float32 has less."""
MIN_KEPT_SHARE = 0.02
"""Smallest share of the peak that temporary storages of several layers need for a remark."""
TOKEN_BYTES = 64 * 1024
"""Smaller gathers are counts, not tokens."""


class _Place(NamedTuple):
    where: str
    line: str


Row = TypeVar("Row", Entry, HostWait, Holder)


def explain(ledger: Ledger, wire: WireBandwidths) -> Explanation:
    """Explain the step of ``ledger``. Without a Program, only its collectives are explained."""
    program = ledger.program
    if program is not None:
        program = program.model_copy(update={"rows": [], "waits": _merge_waits(program.waits)})
    return Explanation(
        workload=ledger.workload or "",
        variant=ledger.variant or "",
        world_size=ledger.world_size or 1,
        rank=ledger.rank,
        gpu=ledger.gpu,
        program=program,
        modules=_share_by_module(ledger),
        collectives=_share_collectives(ledger, wire),
        remarks=list(_find_remarks(ledger)),
        patches=ledger.patches,
    )


def _share_by_module(ledger: Ledger) -> list[ModuleShare]:
    sums: defaultdict[str, Counter[str]] = defaultdict(Counter)
    weights_by_line: defaultdict[str, Counter[str]] = defaultdict(Counter)
    rows, waits = (ledger.program.rows, ledger.program.waits) if ledger.program else ([], [])
    for row in rows:
        where = template(row.where)
        sums[where].update(
            flops=row.flops, recomputed_flops=row.recomputed_flops, bytes_moved=row.bytes, launches=row.launches
        )
        if row.line:
            weights_by_line[where][row.line] += row.flops or row.bytes
    for wait in waits:
        sums[template(wait.where)]["waits"] += wait.count
    for entry in ledger.entries:
        sums[template(entry.where)].update(collectives=entry.count, collective_bytes=entry.bytes)
        if entry.line and not rows:
            weights_by_line[template(entry.where)][entry.line] += entry.bytes
    shares = [
        ModuleShare(where=where, line=next((line for line, _ in weights_by_line[where].most_common(1)), ""), **numbers)
        for where, numbers in sums.items()
    ]
    return sorted(shares, key=lambda share: (-share.flops, -share.bytes_moved, -share.collective_bytes, share.where))


def _share_collectives(ledger: Ledger, wire: WireBandwidths) -> list[CollectiveShare]:
    model = WireModel(wire, ledger.axes)
    by_key: defaultdict[tuple[object, ...], list[Entry]] = defaultdict(list)
    for entry in ledger.entries:
        by_key[entry.kind, entry.axis, entry.phase, entry.role, template(entry.where), entry.line].append(entry)
    shares = [
        CollectiveShare(
            kind=entries[0].kind,
            axis=entries[0].axis,
            phase=entries[0].phase,
            where=template(entries[0].where),
            line=entries[0].line,
            count=sum(entry.count for entry in entries),
            bytes=sum(entry.bytes for entry in entries),
            wire_s=sum(model.seconds(entry.kind, entry.axis, entry.group_size, entry.bytes) for entry in entries)
            if entries[0].role == "payload"
            else None,
        )
        for entries in by_key.values()
    ]
    return sorted(shares, key=lambda share: (-share.bytes, share.kind, share.where, share.line))


def _merge_waits(waits: Iterable[HostWait]) -> list[HostWait]:
    counts: Counter[tuple[str, str, str, str]] = Counter()
    for wait in waits:
        counts[wait.kind, wait.phase, template(wait.where), wait.line] += wait.count
    return [
        HostWait.model_validate({"kind": kind, "phase": phase, "where": where, "line": line, "count": number})
        for (kind, phase, where, line), number in counts.most_common()
    ]


def _find_remarks(ledger: Ledger) -> Iterator[Remark]:
    yield from _find_gathered_tokens(ledger)
    yield from _find_extra_exchanges(ledger)
    if ledger.program is not None:
        memory = GPU_MEMORY_BYTES[ledger.gpu] if ledger.gpu is not None else None
        if memory is not None and ledger.program.peak_bytes > memory:
            yield Remark(
                pattern="does not fit",
                where=template(ledger.program.peak_where),
                text=f"the step holds {ledger.program.peak_bytes / 1e9:.1f} GB at its peak, and an "
                f"{(ledger.gpu or '').upper()} has {memory / 1e9:.1f} GB",
            )
        yield from _find_waits(ledger.program)
        yield from _find_wide_products(ledger.program)
        yield from _find_kept_storages(ledger.program)


def _find_gathered_tokens(ledger: Ledger) -> Iterator[Remark]:
    gathers = [
        entry
        for entry in ledger.entries
        if (entry.kind, entry.role, entry.axis, entry.phase) == ("all_gather", "payload", EXPERT_AXIS, "forward")
        and entry.bytes >= TOKEN_BYTES * entry.count
    ]
    for place, entries in _by_place(gathers):
        number, size = sum(entry.count for entry in entries), sum(entry.bytes for entry in entries)
        yield Remark(
            pattern="tokens gathered",
            where=place.where,
            line=place.line,
            text=f"{count(number, 'all-gather')} on {EXPERT_AXIS} in forward, {binary_bytes(size)}: every rank of "
            f"{entries[0].group_size} receives every token, where an all-to-all sends each token to its experts",
        )


def _find_extra_exchanges(ledger: Ledger) -> Iterator[Remark]:
    exchanges = [
        entry
        for entry in ledger.entries
        if (entry.kind, entry.role) == ("all_to_all", "payload") and EXPERT_AXIS in entry.axis.split("|")
    ]
    layers = {entry.where for entry in exchanges if entry.phase == "forward"}
    for phase, needed in EXCHANGES.items():
        of_phase = [entry for entry in exchanges if entry.phase == phase]
        number, expected = sum(entry.count for entry in of_phase), needed * len(layers)
        if layers and number > expected:
            place, _ = max(_by_place(of_phase), key=lambda item: sum(entry.bytes for entry in item[1]))
            cause = ", as where recompute dispatches again" if phase == "backward" else ""
            yield Remark(
                pattern="more exchanges than needed",
                where=place.where,
                line=place.line,
                text=f"{number} all-to-all of tokens in {phase}; {count(len(layers), 'module')} that exchange tokens "
                f"need {expected}, a dispatch and a combine each{cause}",
            )


def _find_waits(program: Program) -> Iterator[Remark]:
    in_layers = [wait for wait in program.waits if "*" in template(wait.where) and wait.phase != "optimizer"]
    reads = Counter(wait.where for wait in in_layers if wait.kind == "read" and wait.phase == "forward")
    for place, waits in _by_place(in_layers):
        number = sum(wait.count for wait in waits)
        modules = len({wait.where for wait in waits})
        is_of_splits = waits[0].kind == "read" and number <= modules and all(reads[wait.where] <= 1 for wait in waits)
        if not is_of_splits:
            yield Remark(
                pattern="host waits in a layer",
                where=place.where,
                line=place.line,
                text=f"the host waits {number} times for the device ({waits[0].kind}), in {count(modules, 'module')}; "
                "the queue of kernels runs empty each time",
            )


def _find_wide_products(program: Program) -> Iterator[Remark]:
    flops_by_dtype: Counter[str] = Counter()
    wide: defaultdict[_Place, Counter[str]] = defaultdict(Counter)
    for row in program.rows:
        flops_by_dtype[row.dtype] += row.flops
        if row.dtype in WIDE and row.flop_class != "other":
            wide[_Place(template(row.where), row.line)][row.dtype] += row.flops
    if not flops_by_dtype or flops_by_dtype.most_common(1)[0][0] in WIDE:
        return
    total = flops_by_dtype.total()
    for place, by_dtype in wide.items():
        if by_dtype.total() >= MIN_WIDE_SHARE * total:
            yield Remark(
                pattern="product in a wide dtype",
                where=place.where,
                line=place.line,
                text=f"{by_dtype.total() / 1e12:.3g} TFLOP of products in {', '.join(by_dtype)}, "
                f"{100 * by_dtype.total() / total:.1f}% of the step, whose other products are in "
                f"{flops_by_dtype.most_common(1)[0][0]}",
            )


def _find_kept_storages(program: Program) -> Iterator[Remark]:
    kept = [holder for holder in program.holders if holder.kind == "temporary" and "*" in template(holder.where)]
    for place, holders in _by_place(kept):
        size, storages = sum(holder.bytes for holder in holders), sum(holder.count for holder in holders)
        if storages > 1 and size >= MIN_KEPT_SHARE * program.peak_bytes:
            yield Remark(
                pattern="buffer held past its use",
                where=place.where,
                line=place.line,
                text=f"{size / 1e9:.2f} GB in {count(storages, 'storage')} of layers, which backward does not need",
            )


def _by_place(rows: Iterable[Row]) -> list[tuple[_Place, list[Row]]]:
    by_place: defaultdict[_Place, list[Row]] = defaultdict(list)
    for row in rows:
        by_place[_Place(template(row.where), row.line)].append(row)
    return list(by_place.items())
