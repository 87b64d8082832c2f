"""The wire-time model: its factors, where nodes end, and that only payload counts."""

import pytest

from regbot.ledgers.wire import WireModel, factor, wire_s
from regbot.records.config import WireBandwidths
from regbot.records.ledger import Axis, Kind
from support.ledger_builder import entry, ledger_of

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
        ("send_recv", 0.5),
        ("gather", 3),
        ("scatter", 3),
        ("barrier", 0),
    ],
)
def test_every_kind_has_its_factor_in_a_group_of_four(kind: Kind, expected: float) -> None:
    assert factor(kind, 4) == expected


def test_seconds_are_bytes_times_factor_over_bandwidth() -> None:
    model = WireModel(WIRE, {"ep": Axis(size=8, ranks=list(range(8)))})
    assert model.seconds("all_gather", "ep", 8, 400_000_000_000) == pytest.approx(7 / 8)


def test_control_exchanges_cost_nothing_in_the_model() -> None:
    assert wire_s(ledger_of([entry(dtype="int64", role="control", size=10**9)]), WIRE) == 0


@pytest.mark.parametrize(
    ("ranks", "axis", "size", "expected"),
    [
        ([0, 16, 32, 48], "dp", 4, True),
        ([6, 7, 8, 9], "dp", 4, True),
        ([0, 8], "ep|dp", 2, True),  # a joint label has the ranks of either axis
        ([0, 8], "dp", 4, False),  # the ranks of a group of another size
        ([0, 8], "unknown", 9, True),
        ([0], "[0,8]", 2, True),  # the label lists the ranks
        ([0], "[0-6:2]", 4, False),
    ],
)
def test_ranks_else_the_size_decide_whether_a_group_spans_nodes(
    ranks: list[int], axis: str, size: int, expected: bool
) -> None:
    assert WireModel(WIRE, {"dp": Axis(size=len(ranks), ranks=ranks)}).spans_nodes(axis, size) == expected
