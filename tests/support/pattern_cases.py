"""Shared by the tests of patterns and others."""

from collections.abc import Callable
from typing import Any, NamedTuple

from regbot.ledgers import catalogue as names
from regbot.ledgers.expert import DispatcherChange
from regbot.ledgers.patterns import compare_ledgers
from regbot.records.config import ShardingThresholds, WireBandwidths
from regbot.records.ledger import Entry, Ledger, Phase
from regbot.records.verdict import Finding, Status
from support.ledger_builder import (
    doubled,
    edited,
    entry,
    ledger_of,
    renamed,
    smoke_ledger,
    where,
    without,
    wrong_index,
)

Change = Callable[[Entry], Entry | None]


def diff(base: Ledger, head: Ledger, dispatcher: DispatcherChange | None = None) -> list[Finding]:
    return compare_ledgers(base, head, ShardingThresholds(), WireBandwidths(), dispatcher)


def patterns(base: Ledger, head: Ledger) -> list[str]:
    return sorted(finding.pattern for finding in diff(base, head))


def hsdp(ledger: Ledger, shard: int = 4, replicate: int = 4, all_reduced: bool = True) -> Ledger:
    """The dp collectives as HSDP: reduce-scatter over the shard group, all-reduce of the rest over the replicas."""
    sums = [e for e in ledger.entries if e.kind == "reduce_scatter" and e.axis == "dp"]
    reduced = [
        e.model_copy(
            update={"kind": "all_reduce", "axis": "replicate", "group_size": replicate, "bytes": e.bytes // shard}
        )
        for e in sums
    ]
    sharded = where("dp", axis="shard", group_size=shard)
    return edited(ledger, sharded, *(reduced if all_reduced else []))


def with_statistic(ledger: Ledger, axis: str, group_size: int = 16) -> Ledger:
    """``ledger`` with a sum in the optimizer step that has the size of no gradient reduction, and is not so small that
    it could be padding.
    """
    statistic = entry("all_reduce", axis, group_size, "float32", "optimizer", where="", size=2**20)
    return edited(ledger, lambda e: e, statistic)


def one_layer(layer: int, change: Change) -> Change:
    return lambda e: change(e) if e.where.startswith(f"layers.{layer}") else e


A2A, TWO_AXES = smoke_ledger(), smoke_ledger(world=64)


GATHERED, RECOMPUTED = smoke_ledger(dispatcher="allgather"), smoke_ledger(recompute=True)
SMALL, SMALL_GATHERED = smoke_ledger(ep=2, world=2), smoke_ledger(ep=2, world=2, dispatcher="allgather")


BARRIER = entry("barrier", "dp", dtype="none", where="", size=0, role="control")


COUNTS = [entry("all_gather", dtype="int64", where=f"layers.{n}.moe", size=1024, role="control") for n in range(4)]


BIG_GATHER = entry("all_gather", "dp", where="layers.0.attention", size=10**9)


SMALL_GATHER = entry("all_gather", "dp", where="layers.0.attention", size=10**4)


def fallback_by_all_reduce(axis: str) -> Ledger:
    """A fallback on a backend without reduce-scatter, gathering over ``axis``."""
    changed = edited(GATHERED, where("reduce_scatter ep", kind="all_reduce"))
    return edited(changed, where("ep", axis=axis))


def timed(ledger: Ledger, kind: str, exposed: float, hidden: float) -> Ledger:
    """``ledger`` of a source with times: of each entry of ``kind`` so many seconds exposed and hidden."""
    times = where(kind, exposed_s=exposed, hidden_s=hidden)
    return edited(edited(ledger, where("", exposed_s=1e-4, hidden_s=1e-4)), times)


def replaced(kind: str, phase: str = "", ranks: int = 1, **changes: object) -> Change:
    """Every payload all-to-all, of ``phase`` or of all, as a ``kind`` with ``ranks`` times the bytes."""
    return where(f"all_to_all payload {phase}", kind=kind, bytes=lambda e: ranks * e.bytes, **changes)


def by_transfers(phase: str = "", **changes: object) -> Change:
    """To and from each of the 15 other ranks, a message of a sixteenth."""
    return where(
        f"all_to_all payload {phase}", kind="send_recv", count=60, bytes=lambda e: 30 * e.bytes // 16, **changes
    )


def gathered_and_scattered(axis: str = "ep") -> Ledger:
    """All rows gathered in forward, of which a rank keeps its own; autograd sums and scatters them in backward."""
    forward = edited(A2A, replaced("all_gather", "forward", 16, axis=axis))
    return edited(forward, replaced("reduce_scatter", "backward", 16, axis=axis))


def in_hops(between: str = "all_to_all", phase: str = "") -> Ledger:
    """Tokens that travel to a rank of their node, and then, by ``between``, to that of the other node."""
    within = where(f"all_to_all payload {phase}", axis="ep_node", group_size=8)
    moved = [entry for entry in A2A.entries if {"all_to_all", "payload"} <= {entry.kind, entry.role}]
    second = [
        entry.model_copy(update={"kind": between, "axis": "ep_rail", "group_size": 2})
        for entry in moved
        if phase in ("", entry.phase)
    ]
    return edited(A2A, within, *second)


def in_buckets(
    dp_size: int, edp_size: int, moved: bool, edp_place: str = "", phase: Phase = "backward", gathers: bool = True
) -> Ledger:
    """Gradients in buckets of each axis, as DDP reduces them. 80 MiB of them are on dp, or ``moved`` to edp, whose
    buckets are in ``edp_place``, in which '*' stands for each of four layers."""
    mib, share = 2**20, 80 * 2**20
    sizes = {"dp": 400 * mib + share * (not moved), "edp": 200 * mib + share * moved}
    places = [edp_place.replace("*", str(layer)) for layer in range(4)] if "*" in edp_place else [edp_place]
    reductions = [entry("reduce_scatter", "dp", dp_size, "float32", phase, "", sizes["dp"], 3)]
    for place in places:
        size, calls = sizes["edp"] // len(places), 2 if edp_place else 1 + moved
        reductions.append(entry("reduce_scatter", "edp", edp_size, "float32", phase, place, size, calls))
    changes = {"kind": "all_gather", "dtype": "bfloat16", "phase": "optimizer"}
    gathered = [e.model_copy(update={**changes, "bytes": e.bytes // 2}) for e in reductions if gathers]
    exchanges = [e for e in A2A.entries if e.axis == "ep"]
    return ledger_of([*reductions, *gathered, *exchanges])


def both_buckets(dp_size: int, edp_size: int, **options: Any) -> tuple[Ledger, Ledger]:
    base, head = (in_buckets(dp_size, edp_size, moved, **options) for moved in (False, True))
    return base, head


def in_pairs(e: Entry) -> Entry:
    """The experts' parameters on an axis of two ranks, with gathers that the modules around them issue."""
    if e.axis != "edp":
        return e
    place = e.where.removesuffix(".experts") if e.kind == "all_gather" else e.where
    return e.model_copy(update={"axis": "pair", "group_size": 2, "where": place})


class Case(NamedTuple):
    """``pattern`` is the one finding from base to head, its inverse the one from head to base."""

    name: str
    pattern: str
    base: Ledger
    head: Ledger
    status: Status = "REVIEW"
    back: Status = "REVIEW"


def _case(
    pattern: str, name: str, base: Ledger, head: Ledger | Change, status: Status = "REVIEW", back: Status = "REVIEW"
) -> Case:
    """``head`` is a ledger, or what changes in ``base``."""
    return Case(name, pattern, base, head if isinstance(head, Ledger) else edited(base, head), status, back)


_POSITIVES: dict[str, list[tuple[Any, ...]]] = {
    names.ALL_TO_ALL_REPLACED: [
        ("fallback in all layers", A2A, GATHERED, "FAIL", "PASS"),
        ("fallback in one layer of many", A2A, smoke_ledger(dispatchers={2: "allgather"}), "FAIL", "PASS"),
        ("fallback over the data axis", A2A, fallback_by_all_reduce("dp"), "FAIL", "PASS"),
        ("gathering is cheaper", SMALL, SMALL_GATHERED, "REVIEW", "FAIL"),
    ],
    names.REPLACED_BY["all_gather"]: [
        ("all rows gathered in both directions", A2A, replaced("all_gather", ranks=16), "FAIL", "PASS"),
        ("all rows gathered in forward alone", A2A, replaced("all_gather", "forward", 16), "FAIL", "PASS"),
        ("all rows gathered, and scattered in backward", A2A, gathered_and_scattered(), "FAIL", "PASS"),
        ("all rows gathered on another axis", A2A, gathered_and_scattered("world"), "FAIL", "PASS"),
        ("in one layer of many", A2A, one_layer(2, replaced("all_gather", ranks=16)), "FAIL", "PASS"),
        ("each token gathered once", TWO_AXES, replaced("all_gather", ranks=2), "FAIL", "PASS"),
    ],
    names.REPLACED_BY["all_reduce"]: [
        ("all rows summed", A2A, replaced("all_reduce", ranks=2), "FAIL", "PASS"),
        ("on two meshes", TWO_AXES, replaced("all_reduce", ranks=2), "FAIL", "PASS"),
        ("all rows summed on another axis", A2A, replaced("all_reduce", "forward", 2, axis="world"), "FAIL", "PASS"),
    ],
    names.REPLACED_BY["broadcast"]: [
        ("every rank broadcasts its rows", A2A, replaced("broadcast", ranks=16, count=32), "FAIL", "PASS"),
        ("in forward", A2A, replaced("broadcast", "forward", ranks=16, axis="world", count=32), "FAIL", "PASS"),
        ("on two meshes", TWO_AXES, replaced("broadcast", ranks=16, axis="world", count=32), "FAIL", "PASS"),
    ],
    names.REPLACED_BY["scatter"]: [
        ("every rank scatters its rows", A2A, replaced("scatter", count=32), "FAIL", "PASS"),
        ("on two meshes", TWO_AXES, replaced("scatter", count=32), "FAIL", "PASS"),
    ],
    names.REPLACED_BY_TRANSFERS: [
        ("messages to every rank", A2A, by_transfers()),
        ("messages in forward", A2A, by_transfers("forward")),
        ("messages in the group of all ranks", TWO_AXES, by_transfers(axis="world", group_size=64)),
    ],
    names.SPLIT: [
        ("within and between nodes", A2A, in_hops(), "REVIEW", "FAIL"),
        ("hops in forward", A2A, in_hops(phase="forward"), "REVIEW", "FAIL"),
        ("gathered between nodes", A2A, in_hops("all_gather"), "REVIEW", "FAIL"),
    ],
    names.AXIS_LOST: [
        ("experts no longer exchanged", A2A, smoke_ledger(dispatcher="local"), "REVIEW", "FAIL"),
        ("experts sharded by FSDP instead", A2A, smoke_ledger(ep=1), "FAIL", "REVIEW"),
        ("experts not exchanged on two meshes", TWO_AXES, smoke_ledger(world=64, dispatcher="local"), "REVIEW", "FAIL"),
        ("experts sharded wider by FSDP", TWO_AXES, smoke_ledger(ep=1, world=64), "FAIL", "REVIEW"),
        ("one layer keeps its tokens", A2A, smoke_ledger(dispatchers={0: "local"}), "REVIEW", "FAIL"),
    ],
    names.RECOMPUTES: [
        ("recompute of the exchange", A2A, RECOMPUTED, "FAIL", "PASS"),
        ("recompute of the payload alone", A2A, edited(RECOMPUTED, without("control backward")), "FAIL", "PASS"),
        ("recompute in one layer", A2A, smoke_ledger(recompute=[3]), "REVIEW", "PASS"),
        ("recompute while gathering", GATHERED, smoke_ledger(dispatcher="allgather", recompute=True), "FAIL", "PASS"),
    ],
    names.RESHARDS: [
        ("resharding everywhere", smoke_ledger(reshard=False), A2A, "REVIEW", "PASS"),
        ("resharding in one layer", smoke_ledger(reshard=[0, 1, 2]), A2A, "REVIEW", "PASS"),
        ("resharding on both data axes", smoke_ledger(world=64, reshard=False), TWO_AXES, "FAIL", "PASS"),
    ],
    names.GRADIENT_LOST: [
        ("expert gradients not reduced", TWO_AXES, without("reduce_scatter edp"), "FAIL", "FAIL"),
        ("one layer's gradients not reduced", A2A, one_layer(1, without("reduce_scatter dp")), "FAIL", "REVIEW"),
        ("gradients over edp alone", TWO_AXES, where("reduce_scatter dp", axis="edp", group_size=4), "FAIL", "FAIL"),
        ("replicas of HSDP not summed", hsdp(A2A), hsdp(A2A, all_reduced=False), "FAIL", "REVIEW"),
        ("in smaller groups, and gathered in other modules", TWO_AXES, in_pairs, "FAIL", "FAIL"),
        ("a part of a bucket over fewer ranks", *both_buckets(64, 4), "FAIL", "FAIL"),
        (
            "from a bucket to the layers, over fewer ranks",
            *both_buckets(64, 4, edp_place="layers.*.moe"),
            "FAIL",
            "FAIL",
        ),
    ],
    names.GRADIENT_GAINED: [
        (
            "from a bucket to another module, over more ranks",
            *both_buckets(4, 8, edp_place="experts"),
            "REVIEW",
            "FAIL",
        ),
        ("to the layers, over more ranks", *both_buckets(4, 8, edp_place="layers.*.moe.experts"), "REVIEW", "FAIL"),
        ("after backward", *both_buckets(4, 8, edp_place="layers.*.moe", phase="optimizer"), "REVIEW", "FAIL"),
    ],
    names.OPTIMIZER_SUM_REMOVED: [
        ("tokens of every expert counted no more", with_statistic(A2A, "dp"), A2A, "FAIL", "REVIEW"),
        ("a statistic of one axis lost", with_statistic(TWO_AXES, "edp", group_size=4), TWO_AXES, "FAIL", "REVIEW"),
    ],
    names.MOVED: [
        ("gradients in another axis of one size", A2A, where("reduce_scatter dp", axis="world")),
        ("exchange in smaller groups", A2A, where("ep", group_size=8), "PASS", "REVIEW"),
        ("exchange on another axis", A2A, where("ep", axis="etp")),
        ("a part of a bucket to groups of one size", *both_buckets(8, 8)),
        ("gathers in other buckets", A2A, where("all_gather dp", axis="fsdp", count=3)),
    ],
    names.OTHER_LAYER: [
        ("two layers wrapped as one", A2A, where("dp layers.1", where="layers.0")),
        ("recompute in another layer", smoke_ledger(recompute=[2]), smoke_ledger(recompute=[3])),
    ],
    names.WIDENED: [
        ("gradients reduced in float32", smoke_ledger(reduce_dtype="bfloat16"), A2A, "FAIL", "REVIEW"),
        (
            "one layer in float32",
            A2A,
            one_layer(0, where("all_to_all forward bfloat16", dtype="float32", bytes=doubled)),
        ),
    ],
    names.NARROWED: [
        (
            "half of the calls in 8 bits",
            ledger_of([entry(size=400, count=2)]),
            ledger_of([entry(size=200, count=1), entry(dtype="float8_e4m3fn", size=100, count=1)]),
            "REVIEW",
            "FAIL",
        ),
    ],
    names.COUNTS_ADDED: [
        ("counts exchanged twice", A2A, where("all_to_all control", count=2, bytes=doubled)),
        ("counts gathered in one layer", A2A, edited(A2A, lambda e: e, COUNTS[1])),
    ],
    names.BYTES_UP: [
        ("an unknown gather", A2A, edited(A2A, lambda e: e, BIG_GATHER), "FAIL", "PASS"),
        ("a small unknown gather", A2A, edited(A2A, lambda e: e, SMALL_GATHER), "REVIEW", "PASS"),
    ],
    names.BYTES_DOWN: [
        ("fewer gathers with other bytes", A2A, where("all_gather dp layers.0", bytes=1), "PASS", "REVIEW"),
    ],
    names.COUNT_UP: [
        ("exchange in pieces", A2A, where("all_to_all bfloat16", count=8)),
        ("gathers in pieces", A2A, where("all_gather dp", count=2)),
    ],
    names.CONTROL_CHANGED: [
        ("counts in 32 bits", A2A, where("int64", dtype="int32", bytes=512)),
        ("a barrier", A2A, edited(A2A, lambda e: e, BARRIER)),
    ],
    names.OVERLAP_LOST: [
        (
            "an exchange that compute hid no longer",
            timed(A2A, "all_to_all", 1e-3, 9e-3),
            timed(A2A, "all_to_all", 8e-3, 2e-3),
            "REVIEW",
            "PASS",
        ),
        (
            "gathers of parameters no longer prefetched",
            timed(A2A, "all_gather dp", 2e-4, 4e-3),
            timed(A2A, "all_gather dp", 4e-3, 2e-4),
            "REVIEW",
            "PASS",
        ),
    ],
}
POSITIVES = [_case(pattern, *row) for pattern, rows in _POSITIVES.items() for row in rows]


def gather_only() -> Ledger:
    """All-to-all gone, tokens gathered, nothing summed."""
    return edited(GATHERED, without("reduce_scatter ep"))


def halved_fallback() -> Ledger:
    """Tokens gathered and summed beside an all-to-all that is still there."""
    gathered = [e for e in GATHERED.entries if e.axis == "ep"]
    return edited(A2A, lambda e: e, *gathered)


def sequence_parallel(regathered: bool = False) -> Ledger:
    """Activations gathered on tp in forward, and again in backward where ``regathered``."""
    gather = entry("all_gather", "tp", 2, phase="forward", where="layers.0.attention.query")
    again = gather.model_copy(update={"phase": "backward"})
    return edited(A2A, lambda e: e, gather, *([again] if regathered else []))


def wrapped_in_pairs(padding: int) -> Ledger:
    """Layers 0 and 1 as one FSDP unit, which needs ``padding`` other bytes than two."""
    return edited(
        edited(A2A, where("reduce_scatter dp layers.1", bytes=lambda e: e.bytes + padding)),
        where("dp layers.1", where="layers.0"),
    )


def after_backward(ledger: Ledger) -> tuple[Ledger, Ledger]:
    """``ledger`` with gradients that are reduced after backward, and without them."""
    reduced = edited(ledger, where("reduce_scatter dp", kind="all_reduce", phase="optimizer"))
    return reduced, edited(ledger, without("reduce_scatter dp"))


def both_data_axes_merged() -> Ledger:
    return edited(TWO_AXES, where("edp reduce_scatter", axis="dp", group_size=64))


_NEAR_MISSES: dict[str, list[tuple[Any, ...]]] = {
    names.RESHARDS: [
        ("activations gathered again", sequence_parallel(), sequence_parallel(regathered=True)),
        ("gathers and reductions both new", edited(A2A, without("backward dp")), A2A),
    ],
    names.GRADIENT_LOST: [
        ("two layers wrapped as one and padded anew", A2A, wrapped_in_pairs(padding=64)),
        ("gradients in bfloat16", A2A, smoke_ledger(reduce_dtype="bfloat16")),
        ("HSDP instead of FSDP", A2A, hsdp(A2A)),
        ("a dispatcher that sums no longer", GATHERED, A2A),
        ("expert parallelism instead of sharding", smoke_ledger(ep=1, world=64), TWO_AXES),
        ("expert gradients over all ranks", TWO_AXES, both_data_axes_merged()),
        ("all-reduce instead of reduce-scatter", A2A, where("reduce_scatter dp", kind="all_reduce")),
        ("two layers wrapped as one", A2A, where("dp layers.1", where="layers.0")),
    ],
    names.ALL_TO_ALL_REPLACED: [
        ("tokens gathered but not summed", A2A, gather_only()),
        ("gathers beside an exchange that stays", A2A, halved_fallback()),
        ("experts sharded by FSDP", A2A, smoke_ledger(ep=1)),
    ],
    names.AXIS_LOST: [
        ("a fallback", A2A, GATHERED),
        ("an exchange on another axis", A2A, where("ep", axis="etp")),
        ("attention heads exchanged no more", edited(A2A, where("ep", axis="cp")), smoke_ledger(dispatcher="local")),
    ],
    names.RECOMPUTES: [
        ("one more exchange in backward", A2A, where("all_to_all backward", count=3, bytes=doubled)),
        ("the first exchange in backward", edited(A2A, without("all_to_all backward")), A2A),
    ],
    names.OPTIMIZER_SUM_REMOVED: [
        ("gradients after backward not reduced", *after_backward(A2A)),
        (
            "replicas not summed later",
            edited(hsdp(A2A), where("all_reduce", phase="optimizer")),
            hsdp(A2A, all_reduced=False),
        ),
    ],
    names.MOVED: [
        ("another axis and other bytes", A2A, where("all_gather dp", axis="fsdp", bytes=doubled)),
        ("a joint label of the same ranks", A2A, where("ep", axis="ep|dp")),
    ],
    names.OTHER_LAYER: [
        ("renamed layers", A2A, renamed(A2A, "layers", "blocks")),
        ("a reduction in the wrong layer", A2A, wrong_index(A2A, "reduce_scatter dp")),
    ],
    names.WIDENED: [
        ("wider, and more elements", A2A, where("all_to_all bfloat16", dtype="float32", bytes=lambda e: 3 * e.bytes)),
        ("a type of the same width", A2A, where("all_to_all bfloat16", dtype="float16")),
    ],
    names.COUNTS_ADDED: [
        ("integers on the data axis", A2A, edited(A2A, lambda e: e, COUNTS[0].model_copy(update={"axis": "dp"}))),
    ],
    names.OVERLAP_LOST: [
        ("a slower network", timed(A2A, "all_to_all", 1e-3, 9e-3), timed(A2A, "all_to_all", 2e-3, 18e-3)),
        ("microseconds of launch jitter", timed(A2A, "all_to_all", 1e-6, 4e-6), timed(A2A, "all_to_all", 4e-6, 1e-6)),
        ("times on one side only", A2A, timed(A2A, "all_to_all", 1e-2, 1e-3)),
    ],
}
NEAR_MISSES = [_case(pattern, *row)[:4] for pattern, rows in _NEAR_MISSES.items() for row in rows]
