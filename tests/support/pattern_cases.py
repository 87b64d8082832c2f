"""Shared by the tests of patterns and others."""

from collections.abc import Callable
from typing import NamedTuple

from regbot.ledgers import catalogue as names
from regbot.ledgers.expert import DispatcherChange
from regbot.ledgers.patterns import compare_ledgers
from regbot.records.config import ShardingThresholds, WireBandwidths
from regbot.records.ledger import Entry, Ledger
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


def one_layer(layer: int, change: Callable[[Entry], Entry | None]) -> Callable[[Entry], Entry | None]:
    return lambda e: change(e) if e.where.startswith(f"layers.{layer}") else e


A2A, TWO_AXES = smoke_ledger(), smoke_ledger(world=64)


GATHERED = smoke_ledger(dispatcher="allgather")


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


def reading(ledger: Ledger, **reads: int) -> Ledger:
    """``ledger`` with so many values that the host reads, by module."""
    return ledger.model_copy(update={"host_reads": {name.replace("_", "."): n for name, n in reads.items()}})


class Case(NamedTuple):
    """``pattern`` is the one finding from base to head, its inverse the one from head to base."""

    name: str
    pattern: str
    base: Ledger
    head: Ledger
    status: Status = "REVIEW"
    back: Status = "REVIEW"


POSITIVES = [
    Case("fallback in all layers", names.ALL_TO_ALL_REPLACED, A2A, GATHERED, "FAIL", "PASS"),
    Case(
        "fallback in one layer of many",
        names.ALL_TO_ALL_REPLACED,
        A2A,
        smoke_ledger(dispatchers={2: "allgather"}),
        "FAIL",
        "PASS",
    ),
    Case("fallback over the data axis", names.ALL_TO_ALL_REPLACED, A2A, fallback_by_all_reduce("dp"), "FAIL", "PASS"),
    Case(
        "fallback where gathering is cheaper",
        names.ALL_TO_ALL_REPLACED,
        smoke_ledger(ep=2, world=2),
        smoke_ledger(ep=2, world=2, dispatcher="allgather"),
        "REVIEW",
        "FAIL",
    ),
    Case("experts no longer exchanged", names.AXIS_LOST, A2A, smoke_ledger(dispatcher="local"), "REVIEW", "FAIL"),
    Case("experts sharded by FSDP instead", names.AXIS_LOST, A2A, smoke_ledger(ep=1), "FAIL", "REVIEW"),
    Case(
        "experts no longer exchanged on two meshes",
        names.AXIS_LOST,
        TWO_AXES,
        smoke_ledger(world=64, dispatcher="local"),
        "REVIEW",
        "FAIL",
    ),
    Case("experts sharded wider by FSDP", names.AXIS_LOST, TWO_AXES, smoke_ledger(ep=1, world=64), "FAIL", "REVIEW"),
    Case("one layer keeps its tokens", names.AXIS_LOST, A2A, smoke_ledger(dispatchers={0: "local"}), "REVIEW", "FAIL"),
    Case("recompute of the exchange", names.RECOMPUTES, A2A, smoke_ledger(recompute=True), "FAIL", "PASS"),
    Case(
        "recompute of the payload exchange alone",
        names.RECOMPUTES,
        A2A,
        edited(smoke_ledger(recompute=True), without("control backward")),
        "FAIL",
        "PASS",
    ),
    Case("recompute in one layer", names.RECOMPUTES, A2A, smoke_ledger(recompute=[3]), "REVIEW", "PASS"),
    Case(
        "recompute of a gathering dispatcher",
        names.RECOMPUTES,
        GATHERED,
        smoke_ledger(dispatcher="allgather", recompute=True),
        "FAIL",
        "PASS",
    ),
    Case("resharding everywhere", names.RESHARDS, smoke_ledger(reshard=False), A2A, "REVIEW", "PASS"),
    Case("resharding in one layer", names.RESHARDS, smoke_ledger(reshard=[0, 1, 2]), A2A, "REVIEW", "PASS"),
    Case(
        "resharding on both data axes",
        names.RESHARDS,
        smoke_ledger(world=64, reshard=False),
        TWO_AXES,
        "FAIL",
        "PASS",
    ),
    Case(
        "expert gradients not reduced",
        names.GRADIENT_LOST,
        TWO_AXES,
        edited(TWO_AXES, without("reduce_scatter edp")),
        "FAIL",
        "FAIL",
    ),
    Case(
        "one layer's gradients not reduced",
        names.GRADIENT_LOST,
        A2A,
        edited(A2A, one_layer(1, without("reduce_scatter dp"))),
        "FAIL",
        "REVIEW",
    ),
    Case(
        "gradients over the expert-data group alone",
        names.GRADIENT_LOST,
        TWO_AXES,
        edited(TWO_AXES, where("reduce_scatter dp", axis="edp", group_size=4)),
        "FAIL",
        "FAIL",
    ),
    Case("replicas of HSDP not summed", names.GRADIENT_LOST, hsdp(A2A), hsdp(A2A, all_reduced=False), "FAIL", "REVIEW"),
    Case(
        "tokens of every expert counted no more",
        names.OPTIMIZER_SUM_REMOVED,
        with_statistic(A2A, "dp"),
        A2A,
        "FAIL",
        "REVIEW",
    ),
    Case(
        "a statistic of one axis counted no more",
        names.OPTIMIZER_SUM_REMOVED,
        with_statistic(TWO_AXES, "edp", group_size=4),
        TWO_AXES,
        "FAIL",
        "REVIEW",
    ),
    Case(
        "gradients in another axis of one size", names.MOVED, A2A, edited(A2A, where("reduce_scatter dp", axis="world"))
    ),
    Case("exchange in smaller groups", names.MOVED, A2A, edited(A2A, where("ep", group_size=8)), "PASS", "REVIEW"),
    Case("exchange on another axis", names.MOVED, A2A, edited(A2A, where("ep", axis="etp"))),
    Case("two layers wrapped as one", names.OTHER_LAYER, A2A, edited(A2A, where("dp layers.1", where="layers.0"))),
    Case("recompute in another layer", names.OTHER_LAYER, smoke_ledger(recompute=[2]), smoke_ledger(recompute=[3])),
    Case("gradients reduced in float32", names.WIDENED, smoke_ledger(reduce_dtype="bfloat16"), A2A, "FAIL", "REVIEW"),
    Case(
        "one layer's exchange in float32",
        names.WIDENED,
        A2A,
        edited(A2A, one_layer(0, where("all_to_all forward bfloat16", dtype="float32", bytes=doubled))),
    ),
    Case(
        "half of the calls in 8 bits",
        names.NARROWED,
        ledger_of([entry(size=400, count=2)]),
        ledger_of([entry(size=200, count=1), entry(dtype="float8_e4m3fn", size=100, count=1)]),
        "REVIEW",
        "FAIL",
    ),
    Case(
        "counts exchanged twice",
        names.COUNTS_ADDED,
        A2A,
        edited(A2A, where("all_to_all control", count=2, bytes=doubled)),
    ),
    Case("counts gathered in one layer", names.COUNTS_ADDED, A2A, edited(A2A, lambda e: e, COUNTS[1])),
    Case("an unknown gather", names.BYTES_UP, A2A, edited(A2A, lambda e: e, BIG_GATHER), "FAIL", "PASS"),
    Case("a small unknown gather", names.BYTES_UP, A2A, edited(A2A, lambda e: e, SMALL_GATHER), "REVIEW", "PASS"),
    Case(
        "fewer gathers with other bytes",
        names.BYTES_DOWN,
        A2A,
        edited(A2A, where("all_gather dp layers.0", bytes=1)),
        "PASS",
        "REVIEW",
    ),
    Case("exchange in pieces", names.COUNT_UP, A2A, edited(A2A, where("all_to_all bfloat16", count=8))),
    Case("gathers in pieces", names.COUNT_UP, A2A, edited(A2A, where("all_gather dp", count=2))),
    Case("counts in 32 bits", names.CONTROL_CHANGED, A2A, edited(A2A, where("int64", dtype="int32", bytes=512))),
    Case("a barrier", names.CONTROL_CHANGED, A2A, edited(A2A, lambda e: e, BARRIER)),
    Case(
        "a branch on a tensor in each layer",
        names.HOST_READS_ADDED,
        reading(A2A),
        reading(A2A, layers_0_moe=1, layers_1_moe=1),
        "REVIEW",
        "PASS",
    ),
    Case(
        "an exchange that compute hid no longer",
        names.OVERLAP_LOST,
        timed(A2A, "all_to_all", 1e-3, 9e-3),
        timed(A2A, "all_to_all", 8e-3, 2e-3),
        "REVIEW",
        "PASS",
    ),
    Case(
        "gathers of parameters no longer prefetched",
        names.OVERLAP_LOST,
        timed(A2A, "all_gather dp", 2e-4, 4e-3),
        timed(A2A, "all_gather dp", 4e-3, 2e-4),
        "REVIEW",
        "PASS",
    ),
]


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


NEAR_MISSES = [
    ("activations gathered again", names.RESHARDS, sequence_parallel(), sequence_parallel(regathered=True)),
    ("two layers wrapped as one and padded anew", names.GRADIENT_LOST, A2A, wrapped_in_pairs(padding=64)),
    ("tokens gathered but not summed", names.ALL_TO_ALL_REPLACED, A2A, gather_only()),
    ("gathers beside an exchange that stays", names.ALL_TO_ALL_REPLACED, A2A, halved_fallback()),
    ("experts sharded by FSDP", names.ALL_TO_ALL_REPLACED, A2A, smoke_ledger(ep=1)),
    ("a fallback", names.AXIS_LOST, A2A, GATHERED),
    ("an exchange on another axis", names.AXIS_LOST, A2A, edited(A2A, where("ep", axis="etp"))),
    (
        "attention heads exchanged no more",
        names.AXIS_LOST,
        edited(A2A, where("ep", axis="cp")),
        smoke_ledger(dispatcher="local"),
    ),
    (
        "one more exchange in backward",
        names.RECOMPUTES,
        A2A,
        edited(A2A, where("all_to_all backward", count=3, bytes=doubled)),
    ),
    ("the first exchange in backward", names.RECOMPUTES, edited(A2A, without("all_to_all backward")), A2A),
    (
        "gathers and reductions both new",
        names.RESHARDS,
        edited(A2A, without("backward dp")),
        A2A,
    ),
    ("gradients after backward not reduced", names.OPTIMIZER_SUM_REMOVED, *after_backward(A2A)),
    (
        "replicas of HSDP not summed after backward",
        names.OPTIMIZER_SUM_REMOVED,
        edited(hsdp(A2A), where("all_reduce", phase="optimizer")),
        hsdp(A2A, all_reduced=False),
    ),
    ("gradients in bfloat16", names.GRADIENT_LOST, A2A, smoke_ledger(reduce_dtype="bfloat16")),
    ("HSDP instead of FSDP", names.GRADIENT_LOST, A2A, hsdp(A2A)),
    ("a dispatcher that sums no longer", names.GRADIENT_LOST, GATHERED, A2A),
    ("expert parallelism instead of sharding", names.GRADIENT_LOST, smoke_ledger(ep=1, world=64), TWO_AXES),
    ("expert gradients over all ranks", names.GRADIENT_LOST, TWO_AXES, both_data_axes_merged()),
    (
        "all-reduce instead of reduce-scatter",
        names.GRADIENT_LOST,
        A2A,
        edited(A2A, where("reduce_scatter dp", kind="all_reduce")),
    ),
    ("two layers wrapped as one", names.GRADIENT_LOST, A2A, edited(A2A, where("dp layers.1", where="layers.0"))),
    ("another axis and other bytes", names.MOVED, A2A, edited(A2A, where("all_gather dp", axis="fsdp", bytes=doubled))),
    ("a joint label of the same ranks", names.MOVED, A2A, edited(A2A, where("ep", axis="ep|dp"))),
    ("renamed layers", names.OTHER_LAYER, A2A, renamed(A2A, "layers", "blocks")),
    ("a reduction in the wrong layer", names.OTHER_LAYER, A2A, wrong_index(A2A, "reduce_scatter dp")),
    (
        "more elements in the wider type",
        names.WIDENED,
        A2A,
        edited(A2A, where("all_to_all bfloat16", dtype="float32", bytes=lambda e: 3 * e.bytes)),
    ),
    ("a type of the same width", names.WIDENED, A2A, edited(A2A, where("all_to_all bfloat16", dtype="float16"))),
    (
        "integers on the data axis",
        names.COUNTS_ADDED,
        A2A,
        edited(A2A, lambda e: e, COUNTS[0].model_copy(update={"axis": "dp"})),
    ),
    ("reads that moved", names.HOST_READS_ADDED, reading(A2A, layers_0_moe=2), reading(A2A, layers_1_moe=2)),
    ("a source that does not count reads", names.HOST_READS_ADDED, A2A, reading(A2A, layers_0_moe=2)),
    (
        "a slower network under the same overlap",
        names.OVERLAP_LOST,
        timed(A2A, "all_to_all", 1e-3, 9e-3),
        timed(A2A, "all_to_all", 2e-3, 18e-3),
    ),
    (
        "microseconds of launch jitter",
        names.OVERLAP_LOST,
        timed(A2A, "all_to_all", 1e-6, 4e-6),
        timed(A2A, "all_to_all", 4e-6, 1e-6),
    ),
    ("times on one side only", names.OVERLAP_LOST, A2A, timed(A2A, "all_to_all", 1e-2, 1e-3)),
]
