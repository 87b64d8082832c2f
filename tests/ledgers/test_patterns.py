"""Named patterns of a ledger difference: each where it is, none where something only looks like it, and every change
in exactly one finding."""

import re
from typing import Literal

import pytest

from regbot.ledgers import catalogue as names
from regbot.ledgers.catalogue import INVERSE
from regbot.ledgers.expert import DispatcherChange
from regbot.ledgers.patterns import compare_ledgers
from regbot.ledgers.wire import wire_s
from regbot.records.config import ShardingThresholds, WireBandwidths
from regbot.records.ledger import Ledger, UnclassifiedCommunication
from regbot.records.verdict import Finding
from support.ledger_builder import edited, entry, ledger_of, renamed, smoke_ledger, where, without, wrong_index
from support.pattern_cases import (
    A2A,
    BIG_GATHER,
    GATHERED,
    NEAR_MISSES,
    POSITIVES,
    TWO_AXES,
    Case,
    both_buckets,
    diff,
    patterns,
)


def only(base: Ledger, head: Ledger) -> Finding:
    (finding,) = diff(base, head)
    return finding


@pytest.mark.parametrize("case", POSITIVES, ids=lambda case: case.name)
def test_one_cause_gives_one_finding(case: Case) -> None:
    finding = only(case.base, case.head)
    assert (finding.pattern, finding.status) == (case.pattern, case.status), finding.text


def test_sizes_that_differ_look_different_in_the_text() -> None:
    larger = edited(A2A, where("all_gather dp layers.1", bytes=lambda e: e.bytes + 16))
    text = " ".join(finding.text for finding in diff(A2A, larger))
    before, after = (int(size.replace(",", "")) for size in re.findall(r"all-gather \((\S+) bytes\)", text))
    assert after > before
    assert "wire time of the payload stays" in text


@pytest.mark.parametrize("case", POSITIVES, ids=lambda case: case.name)
def test_swapping_base_and_head_gives_the_inverse(case: Case) -> None:
    inverse = only(case.head, case.base)
    assert (inverse.pattern, inverse.status) == (INVERSE[case.pattern], case.back), inverse.text
    finding = only(case.base, case.head)
    assert (inverse.base, inverse.head) == (finding.head, finding.base)


@pytest.mark.parametrize(("name", "pattern", "base", "head"), NEAR_MISSES, ids=[case[0] for case in NEAR_MISSES])
def test_what_only_looks_like_a_pattern_is_not_named_so(name: str, pattern: str, base: Ledger, head: Ledger) -> None:
    assert pattern not in patterns(base, head)
    assert INVERSE[pattern] not in patterns(head, base)


@pytest.mark.parametrize(("old", "new"), [("layers", "model.blocks"), (".moe", ".mlp"), ("experts", "grouped")])
def test_renamed_modules_are_no_finding(old: str, new: str) -> None:
    assert diff(TWO_AXES, renamed(TWO_AXES, old, new)) == []


@pytest.mark.parametrize(("base", "axis"), [(A2A, "dp"), (TWO_AXES, "edp")])
@pytest.mark.parametrize("phases", ["known", "unknown"])
def test_a_gradient_reduced_twice_does_not_make_good_one_that_is_lost(base: Ledger, axis: str, phases: str) -> None:
    if phases == "unknown":
        base = edited(base, lambda e: e.model_copy(update={"phase": "unknown"}))
    findings = diff(base, wrong_index(base, f"reduce_scatter {axis}"))
    assert [(f.pattern, f.status, f.modules) for f in findings] == [
        (names.GRADIENT_LOST, "FAIL", [f"layers.*{'.moe.experts' * (axis == 'edp')}"]),
        (names.GRADIENT_GAINED, "REVIEW", [f"layers.*{'.moe.experts' * (axis == 'edp')}"]),
    ]
    assert "layers.1" in findings[0].text
    assert "layers.0" in findings[1].text


@pytest.mark.parametrize(
    ("size", "pattern"),
    [
        (2048, names.OPTIMIZER_SUM_ADDED),
        (2**30, names.GRADIENT_GAINED),  # the gradients of all layers
        (2**29, names.GRADIENT_GAINED),  # the gradients of one layer
        (2**26, names.GRADIENT_GAINED),  # the part of them that a rank keeps, which HSDP reduces
        (2**31, names.GRADIENT_GAINED),  # more than all known gradients
    ],
)
def test_a_sum_of_the_optimizer_step_with_the_size_of_gradients_is_called_one(size: int, pattern: str) -> None:
    gradients = entry("reduce_scatter", "dp", phase="backward", where="layers", size=2**30, count=2)
    added = entry("all_reduce", "replica", phase="optimizer", where="", size=size)
    base, head = ledger_of([gradients]), ledger_of([gradients, added])
    assert patterns(base, head) == [pattern]
    assert patterns(head, base) == [INVERSE[pattern]]


def test_a_sum_of_the_optimizer_step_may_be_the_gradients_if_backward_reduces_none() -> None:
    """Megatron-LM without overlap reduces the gradients after backward."""
    norm = entry("all_reduce", "dp", phase="optimizer", where="", size=4)
    gradients = entry("all_reduce", "dp", phase="optimizer", where="", size=2**30)
    assert only(ledger_of([norm, gradients]), ledger_of([norm])).pattern == names.GRADIENT_LOST


def test_a_wrong_index_is_detected_beside_a_renamed_module() -> None:
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


def test_a_move_to_another_layer_is_never_passed_because_the_step_is_cheaper() -> None:
    head = wrong_index(smoke_ledger(reshard=False), "all_to_all")
    statuses = {finding.pattern: finding.status for finding in diff(A2A, head)}
    assert statuses == {names.OTHER_LAYER: "REVIEW", names.KEEPS_GATHERED: "PASS"}


def test_a_fallback_and_a_lost_reduction_are_two_findings() -> None:
    head = edited(smoke_ledger(world=64, dispatcher="allgather"), without("reduce_scatter edp"))
    assert patterns(TWO_AXES, head) == [names.ALL_TO_ALL_REPLACED, names.GRADIENT_LOST]


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


def test_thresholds_are_those_of_the_configuration() -> None:
    head = edited(A2A, lambda e: e, BIG_GATHER)
    lenient = compare_ledgers(A2A, head, ShardingThresholds(wire_rise_pct=10_000.0), WireBandwidths())
    assert [finding.status for finding in lenient] == ["REVIEW"]


def test_a_tie_in_wire_time_is_not_lower() -> None:
    """Top-2 over 2 ranks: gathering and summing moves the very bytes of the two exchanges."""
    base = ledger_of([entry(size=2000, count=2)])
    head = ledger_of([entry("all_gather", size=1000), entry("reduce_scatter", size=1000)])
    assert wire_s(base, WireBandwidths()) == pytest.approx(wire_s(head, WireBandwidths()))
    finding = only(base, head)
    assert (finding.pattern, finding.status) == (names.ALL_TO_ALL_REPLACED, "FAIL")


@pytest.mark.parametrize("executed", ["allgather", "local"])
def test_a_dispatcher_silently_off_takes_the_rows_that_show_it(executed: str) -> None:
    change = DispatcherChange(names.DISPATCHER_OFF, "deepep", "deepep", executed)
    (finding,) = diff(A2A, smoke_ledger(dispatcher="allgather" if executed == "allgather" else "local"), change)
    assert (finding.pattern, finding.status, finding.axis) == (names.DISPATCHER_OFF, "FAIL", "ep")
    assert "asked for dispatcher 'deepep'" in finding.text


def test_a_dispatcher_silently_off_is_a_finding_even_where_no_row_changed() -> None:
    (finding,) = diff(A2A, A2A, DispatcherChange(names.DISPATCHER_OFF, "deepep", "deepep", "alltoall"))
    assert (finding.status, finding.base, finding.head) == ("FAIL", {}, {})


def test_a_dispatcher_silently_off_does_not_swallow_a_lost_reduction_on_a_shared_axis() -> None:
    """EP over all ranks without groups of its own: dispatch and FSDP are on one axis, 'ep|dp'."""
    base, head = (
        edited(edited(ledger, where("ep", axis="ep|dp")), where("dp", axis="ep|dp")) for ledger in (A2A, GATHERED)
    )
    head = edited(head, lambda e: None if e.kind == "reduce_scatter" and e.where == "layers.0" else e)
    change = DispatcherChange(names.DISPATCHER_OFF, "alltoall", "alltoall", "allgather")
    assert sorted(f.pattern for f in diff(base, head, change)) == [names.DISPATCHER_OFF, names.GRADIENT_LOST]


def test_a_reduction_that_another_layer_makes_in_other_groups_is_still_lost() -> None:
    assert names.GRADIENT_LOST in patterns(
        A2A, edited(A2A, where("reduce_scatter dp layers.0", axis="x", where="layers.1"))
    )


@pytest.mark.parametrize("dispatcher", ["local", "allgather"])
def test_no_finding_says_nothing_beside_communication_that_is_not_classified(
    dispatcher: Literal["local", "allgather"],
) -> None:
    head = smoke_ledger(dispatcher=dispatcher)
    (known,) = diff(A2A, head)
    kernels = [UnclassifiedCommunication(name="void lib::ep_dispatch_kernel()", count=2)]
    (unknown,) = diff(A2A, head.model_copy(update={"unclassified": kernels}))
    assert ("nothing" in known.text, "nothing" in unknown.text) == (dispatcher == "local", False)
    assert known.pattern == unknown.pattern


def test_nothing_passes_as_cheaper_if_the_size_of_a_payload_is_unknown() -> None:
    """Kernels of a dispatch library tell no bytes."""
    kernels = edited(A2A, where("all_to_all payload", axis="unknown", bytes=0))
    assert {finding.status for finding in diff(A2A, kernels)} == {"REVIEW"}


def test_of_several_failures_of_one_pattern_the_dearest_comes_first() -> None:
    gathers = [
        entry("all_gather", axis, where="layers.0.attention", size=size) for axis, size in (("a", 10**9), ("b", 10**10))
    ]
    assert [finding.axis for finding in diff(A2A, edited(A2A, lambda e: e, *gathers))] == ["b", "a"]


def test_a_few_bytes_do_not_take_the_place_of_the_tokens() -> None:
    small = entry("broadcast", "dp", where="layers.0.moe", phase="forward", size=64)
    head = edited(smoke_ledger(dispatcher="local"), lambda e: e, small)
    assert names.AXIS_LOST in {finding.pattern for finding in diff(A2A, head)}


def test_gradients_that_other_ranks_reduce_are_lost() -> None:
    base, head = both_buckets(8, 8, edp_place="layers.*.moe", gathers=False)
    statuses = {finding.pattern: finding.status for finding in diff(base, head)}
    assert statuses == {names.GRADIENT_LOST: "FAIL", names.GRADIENT_GAINED: "REVIEW"}
