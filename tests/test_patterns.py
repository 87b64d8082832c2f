"""Named patterns of a ledger difference: each where it is, none where something only looks like it, and every change
in exactly one finding."""

from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

import pytest

from ledger_builder import (
    Dispatcher,
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
from regbot.config import Sharding, Wire
from regbot.ledgers import catalogue as names
from regbot.ledgers.dtypes import width
from regbot.ledgers.expert import DispatcherChange
from regbot.ledgers.patterns import EXPLANATIONS, INVERSE, findings
from regbot.ledgers.wire import wire_s
from regbot.records.ledger import Entry, Ledger
from regbot.records.verdict import Finding, Status


def diff(base: Ledger, head: Ledger, dispatcher: DispatcherChange | None = None) -> list[Finding]:
    return findings(base, head, Sharding(), Wire(), dispatcher)


def patterns(base: Ledger, head: Ledger) -> list[str]:
    return sorted(finding.pattern for finding in diff(base, head))


def only(base: Ledger, head: Ledger) -> Finding:
    (found,) = diff(base, head)
    return found


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


def one_layer(layer: int, change: Callable[[Entry], Entry | None]) -> Callable[[Entry], Entry | None]:
    return lambda e: change(e) if e.where.startswith(f"layers.{layer}") else e


DISPATCHERS: tuple[Dispatcher, Dispatcher] = ("alltoall", "allgather")
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
    status: Status
    back: Status


POSITIVES = [
    Case("fallback in all layers", names.MAPPED_TWICE, A2A, GATHERED, "FAIL", "PASS"),
    Case(
        "fallback on two meshes",
        names.MAPPED_TWICE,
        TWO_AXES,
        smoke_ledger(world=64, dispatcher="allgather"),
        "FAIL",
        "PASS",
    ),
    Case(
        "fallback in one layer of many",
        names.MAPPED_TWICE,
        A2A,
        smoke_ledger(dispatchers={2: "allgather"}),
        "FAIL",
        "PASS",
    ),
    Case("fallback over the data axis", names.MAPPED_TWICE, A2A, fallback_by_all_reduce("dp"), "FAIL", "PASS"),
    Case(
        "fallback where gathering is cheaper",
        names.MAPPED_TWICE,
        smoke_ledger(ep=2, world=2),
        smoke_ledger(ep=2, world=2, dispatcher="allgather"),
        "REVIEW",
        "FAIL",
    ),
    Case("experts no longer exchanged", names.AXIS_LOST, A2A, smoke_ledger(dispatcher="local"), "REVIEW", "FAIL"),
    Case(
        "experts no longer exchanged on two meshes",
        names.AXIS_LOST,
        TWO_AXES,
        smoke_ledger(world=64, dispatcher="local"),
        "REVIEW",
        "FAIL",
    ),
    Case("experts sharded by FSDP instead", names.AXIS_LOST, A2A, smoke_ledger(ep=1), "FAIL", "REVIEW"),
    Case("experts sharded wider by FSDP", names.AXIS_LOST, TWO_AXES, smoke_ledger(ep=1, world=64), "FAIL", "REVIEW"),
    Case("one layer keeps its tokens", names.AXIS_LOST, A2A, smoke_ledger(dispatchers={0: "local"}), "REVIEW", "FAIL"),
    Case("recompute of the exchange", names.RECOMPUTES, A2A, smoke_ledger(recompute=True), "FAIL", "PASS"),
    Case("recompute in one layer", names.RECOMPUTES, A2A, smoke_ledger(recompute=[3]), "REVIEW", "PASS"),
    Case(
        "recompute of the payload exchange alone",
        names.RECOMPUTES,
        A2A,
        edited(smoke_ledger(recompute=True), without("control backward")),
        "FAIL",
        "PASS",
    ),
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
        "experts no longer wrapped by FSDP",
        names.GRADIENT_LOST,
        TWO_AXES,
        edited(TWO_AXES, without("edp")),
        "FAIL",
        "FAIL",
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
        "gradients in another axis of one size",
        names.MOVED,
        A2A,
        edited(A2A, where("reduce_scatter dp", axis="world")),
        "REVIEW",
        "REVIEW",
    ),
    Case("exchange in smaller groups", names.MOVED, A2A, edited(A2A, where("ep", group_size=8)), "PASS", "REVIEW"),
    Case("exchange on another axis", names.MOVED, A2A, edited(A2A, where("ep", axis="etp")), "REVIEW", "REVIEW"),
    Case(
        "two layers wrapped as one",
        names.OTHER_LAYER,
        A2A,
        edited(A2A, where("dp layers.1", where="layers.0")),
        "REVIEW",
        "REVIEW",
    ),
    Case(
        "one layer's exchange issued by another",
        names.OTHER_LAYER,
        A2A,
        wrong_index(A2A, "all_to_all"),
        "REVIEW",
        "REVIEW",
    ),
    Case(
        "recompute in another layer",
        names.OTHER_LAYER,
        smoke_ledger(recompute=[2]),
        smoke_ledger(recompute=[3]),
        "REVIEW",
        "REVIEW",
    ),
    Case("gradients reduced in float32", names.WIDENED, smoke_ledger(reduce_dtype="bfloat16"), A2A, "FAIL", "REVIEW"),
    Case(
        "one layer's exchange in float32",
        names.WIDENED,
        A2A,
        edited(A2A, one_layer(0, where("all_to_all forward bfloat16", dtype="float32", bytes=doubled))),
        "REVIEW",
        "REVIEW",
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
        "REVIEW",
        "REVIEW",
    ),
    Case("counts gathered too", names.COUNTS_ADDED, A2A, edited(A2A, lambda e: e, *COUNTS), "REVIEW", "REVIEW"),
    Case(
        "counts gathered in one layer", names.COUNTS_ADDED, A2A, edited(A2A, lambda e: e, COUNTS[1]), "REVIEW", "REVIEW"
    ),
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
    Case(
        "exchange in pieces",
        names.COUNT_UP,
        A2A,
        edited(A2A, where("all_to_all bfloat16", count=8)),
        "REVIEW",
        "REVIEW",
    ),
    Case("gathers in pieces", names.COUNT_UP, A2A, edited(A2A, where("all_gather dp", count=2)), "REVIEW", "REVIEW"),
    Case(
        "counts in 32 bits",
        names.CONTROL_CHANGED,
        A2A,
        edited(A2A, where("int64", dtype="int32", bytes=512)),
        "REVIEW",
        "REVIEW",
    ),
    Case("a barrier", names.CONTROL_CHANGED, A2A, edited(A2A, lambda e: e, BARRIER), "REVIEW", "REVIEW"),
    Case(
        "a branch on a tensor in each layer",
        names.HOST_READS_ADDED,
        reading(A2A),
        reading(A2A, layers_0_moe=1, layers_1_moe=1),
        "REVIEW",
        "PASS",
    ),
    Case(
        "token counts read twice",
        names.HOST_READS_ADDED,
        reading(A2A, layers_0_moe=32),
        reading(A2A, layers_0_moe=64),
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


@pytest.mark.parametrize("case", POSITIVES, ids=lambda case: case.name)
def test_one_cause_gives_one_finding(case: Case) -> None:
    found = only(case.base, case.head)
    assert (found.pattern, found.status) == (case.pattern, case.status), found.text


@pytest.mark.parametrize("case", POSITIVES, ids=lambda case: case.name)
def test_swapping_base_and_head_gives_the_inverse(case: Case) -> None:
    found = only(case.head, case.base)
    assert (found.pattern, found.status) == (INVERSE[case.pattern], case.back), found.text
    forth = only(case.base, case.head)
    assert (found.base, found.head) == (forth.head, forth.base)


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


def both_data_axes_merged() -> Ledger:
    return edited(TWO_AXES, where("edp reduce_scatter", axis="dp", group_size=64))


NEAR_MISSES = [
    ("activations gathered again", names.RESHARDS, sequence_parallel(), sequence_parallel(regathered=True)),
    ("two layers wrapped as one and padded anew", names.GRADIENT_LOST, A2A, wrapped_in_pairs(padding=64)),
    ("tokens gathered but not summed", names.MAPPED_TWICE, A2A, gather_only()),
    ("gathers beside an exchange that stays", names.MAPPED_TWICE, A2A, halved_fallback()),
    ("experts sharded by FSDP", names.MAPPED_TWICE, A2A, smoke_ledger(ep=1)),
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
    ("a larger exchange in both phases", names.RECOMPUTES, A2A, edited(A2A, where("all_to_all", bytes=doubled))),
    (
        "a different gather in backward",
        names.RESHARDS,
        smoke_ledger(reshard=False),
        edited(A2A, where("all_gather backward dp", bytes=doubled)),
    ),
    (
        "gathers and reductions both new",
        names.RESHARDS,
        edited(A2A, without("backward dp")),
        A2A,
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
    (
        "padding of a thousandth",
        names.GRADIENT_LOST,
        A2A,
        edited(A2A, where("reduce_scatter dp", bytes=lambda e: e.bytes - e.bytes // 2000)),
    ),
    ("another axis and other bytes", names.MOVED, A2A, edited(A2A, where("all_gather dp", axis="fsdp", bytes=doubled))),
    ("another axis and other calls", names.MOVED, A2A, edited(A2A, where("all_gather dp", axis="fsdp", count=2))),
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
    ("counts in 32 bits", names.COUNTS_ADDED, A2A, edited(A2A, where("int64", dtype="int32", bytes=512))),
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
        "faster compute that hides less of a shorter exchange",
        names.OVERLAP_LOST,
        timed(A2A, "all_to_all", 1e-3, 9e-3),
        timed(A2A, "all_to_all", 1e-3, 2e-3),
    ),
    (
        "microseconds of launch jitter",
        names.OVERLAP_LOST,
        timed(A2A, "all_to_all", 1e-6, 4e-6),
        timed(A2A, "all_to_all", 4e-6, 1e-6),
    ),
    ("times on one side only", names.OVERLAP_LOST, A2A, timed(A2A, "all_to_all", 1e-2, 1e-3)),
]


@pytest.mark.parametrize(("name", "pattern", "base", "head"), NEAR_MISSES, ids=[case[0] for case in NEAR_MISSES])
def test_what_only_looks_like_a_pattern_is_not_named_so(name: str, pattern: str, base: Ledger, head: Ledger) -> None:
    assert pattern not in patterns(base, head)
    assert INVERSE[pattern] not in patterns(head, base)


def test_every_pattern_that_rows_can_show_has_two_positives_and_two_near_misses() -> None:
    shown = Counter(name for case in POSITIVES for name in {case.pattern, INVERSE[case.pattern]})
    by_evidence = {names.DISPATCHER_OFF, names.DISPATCHER_ON}
    assert {name for name in EXPLANATIONS if shown[name] < 2} == by_evidence
    generic = {names.BYTES_UP, names.BYTES_DOWN, names.COUNT_UP, names.COUNT_DOWN, names.CONTROL_CHANGED}
    missed = Counter(name for case in NEAR_MISSES for name in {case[1], INVERSE[case[1]]})
    assert {name for name in EXPLANATIONS if missed[name] < 2} == by_evidence | generic


def test_reads_that_come_with_another_exchange_are_judged_with_it() -> None:
    found = diff(reading(GATHERED), reading(A2A, layers_0_moe=16))
    assert {finding.pattern: finding.status for finding in found} == {
        names.RESTORED: "PASS",
        names.HOST_READS_ADDED: "PASS",
    }


def test_every_inverse_is_a_pattern_and_its_own_inverse_in_turn() -> None:
    assert INVERSE.keys() == EXPLANATIONS.keys()
    assert all(INVERSE[INVERSE[name]] == name for name in INVERSE)


def test_the_same_ledger_has_no_findings() -> None:
    assert diff(TWO_AXES, TWO_AXES) == []


@pytest.mark.parametrize(("old", "new"), [("layers", "model.blocks"), (".moe", ".mlp"), ("experts", "grouped")])
def test_renamed_modules_are_no_finding(old: str, new: str) -> None:
    assert diff(TWO_AXES, renamed(TWO_AXES, old, new)) == []


@pytest.mark.parametrize(("base", "axis"), [(A2A, "dp"), (TWO_AXES, "edp")])
@pytest.mark.parametrize("phases", ["known", "unknown"])
def test_a_gradient_reduced_twice_does_not_make_good_one_that_is_lost(base: Ledger, axis: str, phases: str) -> None:
    if phases == "unknown":
        base = edited(base, lambda e: e.model_copy(update={"phase": "unknown"}))
    found = diff(base, wrong_index(base, f"reduce_scatter {axis}"))
    assert [(f.pattern, f.status, f.modules) for f in found] == [
        (names.GRADIENT_LOST, "FAIL", [f"layers.*{'.moe.experts' * (axis == 'edp')}"]),
        (names.GRADIENT_GAINED, "REVIEW", [f"layers.*{'.moe.experts' * (axis == 'edp')}"]),
    ]
    assert "layers.1" in found[0].text
    assert "layers.0" in found[1].text


def test_a_lost_gradient_is_found_where_its_layer_issues_nothing_else() -> None:
    base = ledger_of([entry("all_reduce", "dp", phase="backward", where=f"layers.{n}") for n in range(3)])
    assert names.GRADIENT_LOST in patterns(base, wrong_index(base, "all_reduce"))


def test_a_wrong_index_is_found_beside_a_module_that_was_renamed() -> None:
    base, loss = wrong_index(A2A, "none"), entry("all_reduce", "dp", phase="forward", where="loss", size=4)
    head = wrong_index(base, "reduce_scatter dp")
    base, head = (
        edited(base, lambda e: e, loss),
        edited(head, lambda e: e, loss.model_copy(update={"where": "criterion"})),
    )
    assert patterns(base, head) == [names.GRADIENT_GAINED, names.GRADIENT_LOST]


@pytest.mark.parametrize("regathered", [True, False])
def test_experts_and_dense_parts_wrapped_as_one_unit_per_two_layers_lose_no_gradient(regathered: bool) -> None:
    base = smoke_ledger(world=64, reshard=regathered)
    head = wrong_index(wrong_index(base, "edp"), "dp")
    assert [(f.pattern, f.status) for f in diff(base, head)] == [(names.OTHER_LAYER, "REVIEW")] * 2


def test_wrapping_dense_parts_anew_does_not_hide_expert_gradients_in_the_wrong_layer() -> None:
    head = wrong_index(wrong_index(TWO_AXES, "dp"), "reduce_scatter edp")
    assert names.GRADIENT_LOST in patterns(TWO_AXES, head)


def test_collectives_that_moved_to_another_layer_say_from_where_to_where() -> None:
    text = only(A2A, wrong_index(A2A, "all_to_all")).text
    assert text.startswith("Collectives on ep moved from layers.1.moe to layers.0.moe; there are as many in all.")


def test_a_move_to_another_layer_is_never_passed_because_the_step_is_cheaper() -> None:
    head = wrong_index(smoke_ledger(reshard=False), "all_to_all")
    statuses = {finding.pattern: finding.status for finding in diff(A2A, head)}
    assert statuses == {names.OTHER_LAYER: "REVIEW", names.KEEPS_GATHERED: "PASS"}


def test_a_fallback_is_named_through_renamed_modules() -> None:
    assert patterns(A2A, renamed(GATHERED, ".moe", ".mlp")) == [names.MAPPED_TWICE]
    assert patterns(A2A, renamed(GATHERED, "layers", "blocks")) == [names.MAPPED_TWICE]


def test_a_fallback_in_one_layer_of_48_says_so() -> None:
    found = only(smoke_ledger(layers=48), smoke_ledger(layers=48, dispatchers={7: "allgather"}))
    assert "in 1 of 48 MoE layers (layers.7.moe)" in found.text[:1].lower() + found.text[1:]
    assert found.base["all_to_all"].count == 4
    assert found.modules == ["layers.*.moe"]


def test_the_full_shape_issues_what_the_trace_shows() -> None:
    counts = {
        (kind, role): 0 for kind in ("all_to_all", "all_gather", "reduce_scatter") for role in ("payload", "control")
    }
    for e in smoke_ledger(layers=48, hidden=2048).entries:
        counts[e.kind, e.role] += e.count
    assert counts["all_to_all", "payload"] == 192
    assert counts["all_to_all", "control"] == 48
    assert counts["all_gather", "payload"] == 97
    assert counts["reduce_scatter", "payload"] == 49


def test_the_text_of_a_fallback_tells_what_was_and_what_is() -> None:
    base, head = (smoke_ledger(48, hidden=2048, dispatcher=name) for name in DISPATCHERS)
    assert only(base, head).text == (
        "In 48 of 48 MoE layers (layers.*.moe) the expert-parallel all-to-all on ep was replaced by gathering all "
        "tokens and summing the results on ep. Per step, 192 all-to-all (24 GiB) became 144 all-gather (24.1 GiB) + "
        "144 reduce-scatter (24.1 GiB); modelled wire time of these collectives 483 ms → 970 ms (a model, not a "
        "measurement)."
    )


def test_without_phases_gathers_and_sums_still_show_a_fallback() -> None:
    base, head = (edited(ledger, lambda e: e.model_copy(update={"phase": "unknown"})) for ledger in (A2A, GATHERED))
    assert patterns(base, head) == [names.MAPPED_TWICE]


def test_a_fallback_and_a_lost_reduction_are_two_findings() -> None:
    head = edited(smoke_ledger(world=64, dispatcher="allgather"), without("reduce_scatter edp"))
    assert patterns(TWO_AXES, head) == [names.MAPPED_TWICE, names.GRADIENT_LOST]


def test_resharding_and_a_wider_reduction_are_two_findings() -> None:
    base = smoke_ledger(reshard=False, reduce_dtype="bfloat16")
    assert patterns(base, A2A) == [names.RESHARDS, names.WIDENED]


def test_a_gain_of_expert_parallelism_does_not_hide_expert_gradients_that_are_not_reduced() -> None:
    head = edited(TWO_AXES, without("reduce_scatter edp"))
    assert names.GRADIENT_LOST in patterns(smoke_ledger(ep=1, world=64), head)


def test_the_sum_of_a_loss_is_not_taken_for_activations() -> None:
    loss = entry("all_reduce", "dp", dtype="float32", phase="forward", where="", size=4)
    base, head = edited(A2A, lambda e: e, loss), edited(A2A, without("reduce_scatter dp "), loss)
    assert patterns(base, head) == [names.GRADIENT_LOST]


def test_nothing_passes_with_a_note_while_a_reduction_is_lost() -> None:
    head = edited(smoke_ledger(world=64, reshard=False), without("reduce_scatter edp"))
    statuses = {finding.pattern: finding.status for finding in diff(TWO_AXES, head)}
    assert statuses == {names.GRADIENT_LOST: "FAIL", names.KEEPS_GATHERED: "REVIEW"}


def test_a_finding_that_eases_the_step_does_not_answer_for_one_that_burdens_it() -> None:
    head = edited(smoke_ledger(reshard=False), lambda e: e, BIG_GATHER)
    statuses = {finding.pattern: finding.status for finding in diff(A2A, head)}
    assert statuses == {names.BYTES_UP: "FAIL", names.KEEPS_GATHERED: "REVIEW"}


def test_thresholds_are_those_of_the_configuration() -> None:
    head = edited(A2A, lambda e: e, BIG_GATHER)
    lenient = findings(A2A, head, Sharding(wire_rise_pct=10_000.0), Wire())
    assert [finding.status for finding in lenient] == ["REVIEW"]


def test_a_tie_in_wire_time_is_not_lower() -> None:
    """Top-2 over 2 ranks: gathering and summing moves the very bytes of the two exchanges."""
    base = ledger_of([entry(size=2000, count=2)])
    head = ledger_of([entry("all_gather", size=1000), entry("reduce_scatter", size=1000)])
    assert wire_s(base, Wire()) == pytest.approx(wire_s(head, Wire()))
    found = only(base, head)
    assert (found.pattern, found.status) == (names.MAPPED_TWICE, "FAIL")


@pytest.mark.parametrize("executed", ["allgather", "local"])
def test_a_dispatcher_silently_off_takes_the_rows_that_show_it(executed: str) -> None:
    change = DispatcherChange(names.DISPATCHER_OFF, "deepep", "deepep", executed)
    (found,) = diff(A2A, smoke_ledger(dispatcher="allgather" if executed == "allgather" else "local"), change)
    assert (found.pattern, found.status, found.axis) == (names.DISPATCHER_OFF, "FAIL", "ep")
    assert "asked for dispatcher 'deepep'" in found.text


def test_a_dispatcher_silently_off_is_a_finding_even_where_no_row_changed() -> None:
    (found,) = diff(A2A, A2A, DispatcherChange(names.DISPATCHER_OFF, "deepep", "deepep", "alltoall"))
    assert (found.status, found.base, found.head) == ("FAIL", {}, {})


def test_a_dispatcher_silently_off_does_not_swallow_a_lost_reduction_on_a_shared_axis() -> None:
    """EP over all ranks without groups of its own: dispatch and FSDP are on one axis, 'ep|dp'."""
    base, head = (
        edited(edited(ledger, where("ep", axis="ep|dp")), where("dp", axis="ep|dp")) for ledger in (A2A, GATHERED)
    )
    head = edited(head, lambda e: None if e.kind == "reduce_scatter" and e.where == "layers.0" else e)
    change = DispatcherChange(names.DISPATCHER_OFF, "alltoall", "alltoall", "allgather")
    assert sorted(f.pattern for f in diff(base, head, change)) == [names.DISPATCHER_OFF, names.GRADIENT_LOST]


def test_a_dispatcher_back_on_passes_where_the_step_gets_cheaper() -> None:
    (found,) = diff(GATHERED, A2A, DispatcherChange(names.DISPATCHER_ON, "alltoall", "allgather", "alltoall"))
    assert (found.pattern, found.status) == (names.DISPATCHER_ON, "PASS")


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [("bfloat16", 2), ("bf16", 2), ("Half", 2), ("c10::Float", 4), ("float8_e4m3fn", 1), ("int64", 8), ("s32", 4)],
)
def test_width_of_types_by_the_names_that_sources_use(dtype: str, expected: int) -> None:
    assert width(dtype) == expected


@pytest.mark.parametrize("dtype", ["mixed", "none", "int4", "[3, 4]"])
def test_a_type_that_does_not_tell_its_width_has_none(dtype: str) -> None:
    assert width(dtype) is None
