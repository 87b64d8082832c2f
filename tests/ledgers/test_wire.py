"""The wire-time model: its factors, where nodes end, and that only payload counts."""

import pytest

from regbot.ledgers.wire import WireModel, factor, wire_s
from regbot.records.config import WireBandwidths
from regbot.records.ledger import Axis, Kind
from support.ledger_builder import entry, ledger_of, smoke_ledger

WIRE = WireBandwidths(gpus_per_node=8, node_local_gb_s=400.0, inter_node_gb_s=50.0)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("all_to_all", 0.75),
        ("all_gather", 0.75),
        ("reduce_scatter", 0.75),
        ("all_reduce", 1.5),
        ("broadcast", 1),
        ("reduce", 1),
        ("permute", 1),
        ("send_recv", 1),
        ("gather", 3),
        ("scatter", 3),
        ("barrier", 0),
    ],
)
def test_every_kind_has_its_factor_in_a_group_of_four(kind: Kind, expected: float) -> None:
    assert factor(kind, 4) == expected


def test_an_all_reduce_costs_as_much_as_a_reduce_scatter_and_an_all_gather() -> None:
    assert factor("all_reduce", 16) == factor("reduce_scatter", 16) + factor("all_gather", 16)


def test_seconds_are_bytes_times_factor_over_bandwidth() -> None:
    model = WireModel(WIRE, {"ep": Axis(size=8, ranks=list(range(8)))})
    assert model.seconds("all_gather", "ep", 8, 400_000_000_000) == pytest.approx(7 / 8)


def test_an_axis_within_one_node_uses_the_node_local_bandwidth() -> None:
    assert not WireModel(WIRE, {"ep": Axis(size=4, ranks=[8, 9, 10, 11])}).spans_nodes("ep", 4)


def test_a_small_group_of_far_ranks_spans_nodes() -> None:
    assert WireModel(WIRE, {"edp": Axis(size=4, ranks=[0, 16, 32, 48])}).spans_nodes("edp", 4)


def test_four_neighbours_across_a_node_boundary_span_nodes() -> None:
    assert WireModel(WIRE, {"ep": Axis(size=4, ranks=[6, 7, 8, 9])}).spans_nodes("ep", 4)


def test_an_unknown_axis_spans_nodes_when_it_is_larger_than_one() -> None:
    model = WireModel(WIRE, {})
    assert not model.spans_nodes("[0,1]", 8)
    assert model.spans_nodes("[0-15]", 9)


def test_a_joint_label_has_the_ranks_of_either_axis() -> None:
    assert WireModel(WIRE, {"dp": Axis(size=2, ranks=[0, 8])}).spans_nodes("ep|dp", 2)


def test_ranks_of_another_group_size_are_not_taken_for_this_group() -> None:
    assert not WireModel(WIRE, {"dp": Axis(size=2, ranks=[0, 8])}).spans_nodes("dp", 4)


def test_control_exchanges_cost_nothing_in_the_model() -> None:
    assert wire_s(ledger_of([entry(dtype="int64", role="control", size=10**9)]), WIRE) == 0


def test_gathering_all_tokens_doubles_the_exchange_at_top_8_over_16_ranks() -> None:
    full = WireBandwidths()
    exchange = smoke_ledger(layers=1, dispatcher="alltoall")
    gathered = smoke_ledger(layers=1, dispatcher="allgather")
    parameters = wire_s(smoke_ledger(layers=1, dispatcher="local"), full)
    ratio = (wire_s(gathered, full) - parameters) / (wire_s(exchange, full) - parameters)
    assert ratio == pytest.approx(2.0, rel=0.15)


def test_gathering_is_cheaper_than_exchanging_where_every_expert_is_chosen_anyway() -> None:
    wire = WireBandwidths()
    assert wire_s(smoke_ledger(ep=2, world=2, dispatcher="allgather"), wire) < wire_s(smoke_ledger(ep=2, world=2), wire)
