"""The counter counts every collective that passes torch's dispatcher, with its axis, phase, role and module."""

from collections import Counter
from typing import Any

import pytest

Entries = list[dict[str, Any]]


def brief(entries: Entries, *fields: str) -> list[tuple[Any, ...]]:
    return [tuple(entry[field] for field in fields) for entry in entries]


def number(entries: Entries, *fields: str) -> dict[tuple[Any, ...], int]:
    counts: Counter[tuple[Any, ...]] = Counter()
    for entry in entries:
        counts[tuple(entry[field] for field in fields)] += entry["count"]
    return dict(counts)


def test_functional_collectives_and_their_backward_are_counted(seen: dict[str, Any]) -> None:
    assert brief(seen["functional"], "kind", "phase", "axis", "count", "bytes") == [
        ("all_to_all", "forward", "ep", 1, 4 * 8 * 4),
        ("all_gather", "forward", "ep", 1, 2 * 4 * 8 * 4),  # counted by its output
        ("all_reduce", "forward", "ep", 1, 4 * 8 * 4),
        ("reduce_scatter", "backward", "ep", 1, 2 * 4 * 8 * 4),
        ("all_to_all", "backward", "ep", 1, 4 * 8 * 4),
    ]


def test_plain_collectives_are_counted_with_and_without_a_wait(seen: dict[str, Any]) -> None:
    assert brief(seen["plain"], "kind", "count", "bytes", "role") == [
        ("all_reduce", 1, 16, "payload"),
        ("all_gather", 2, 32 + 32, "payload"),  # into one tensor and into a list
        ("reduce_scatter", 1, 32, "payload"),
        ("all_to_all", 1, 32, "payload"),  # the list variant
        ("all_to_all", 1, 16, "payload"),  # counted by its input, which is smaller than its output
        ("broadcast", 1, 16, "payload"),
        ("barrier", 1, 0, "control"),
    ]
    assert {entry["via"] for entry in seen["plain"]} == {"fake"}
    assert brief(seen["view_of_much"], "count", "bytes") == [(1, 10 * 4)], "those of its elements, not of its storage"
    assert brief(seen["point_to_point"], "kind", "count", "bytes") == [("send_recv", 3, 3 * 16)]
    assert brief(seen["coalesced"], "kind", "count", "bytes") == [("all_reduce", 1, (4 + 8) * 4)]
    assert seen["one_rank"] == []


@pytest.mark.parametrize(
    ("how", "operator"), [("new", "_c10d_functional::all_to_all_of_the_future"), ("removed", "c10d::allreduce_")]
)
def test_an_unknown_collective_stops_the_count(seen: dict[str, Any], how: str, operator: str) -> None:
    assert operator in seen["unknown"][how]


def test_small_integer_collectives_are_control_with_a_lower_limit_for_8_and_16_bits(seen: dict[str, Any]) -> None:
    assert dict(brief(seen["roles"], "phase", "role")) == {
        f"int64x{2**20}": "control",
        f"int64x{2**21 + 1}": "payload",
        "boolx100": "control",
        f"int8x{2**16}": "control",
        f"int8x{2**16 + 1}": "payload",  # a quantised payload
        f"int16x{2**15 + 1}": "payload",
        "bfloat16x1": "payload",
    }


def test_an_axis_is_known_by_its_group_or_by_the_ranks_of_an_unknown_group(seen: dict[str, Any]) -> None:
    assert seen["labels"] == {
        "ep": "ep",
        "edp": "edp",
        "dp": "dp",
        "default": "dp",
        "second over ep": "ep",
        "others": "[0,3]",
        "three": "[0-2]",
    }
    labels = seen["labels over the same ranks"]
    assert labels == {"ep": "ep", "dp": "dp", "default": "ep|dp", "third": "ep|dp"}


def test_dispatch_and_combine_belong_to_their_layer_in_forward_and_backward(seen: dict[str, Any]) -> None:
    exchanges = [entry for entry in seen["step"] if entry["kind"] == "all_to_all"]
    assert number(exchanges, "phase", "where", "role") == {
        (phase, f"layers.{layer}.moe", role): count
        for layer in range(3)
        for phase, role, count in (
            ("forward", "control", 1),
            ("forward", "payload", 2),
            ("backward", "payload", 2),
        )
    }


@pytest.mark.parametrize("how", ["step", "prefetched"])
def test_fsdp_collectives_are_named_by_the_unit_whose_parameters_they_move(seen: dict[str, Any], how: str) -> None:
    """FSDP gathers a block while the one above it computes: always in backward, and with prefetching in forward."""
    expected: dict[tuple[str, str, str, str], int] = {
        ("all_gather", "forward", "", "dp"): 1,
        ("reduce_scatter", "backward", "", "dp"): 1,
    }
    for layer in range(3):
        for unit, axis in ((f"layers.{layer}", "dp"), (f"layers.{layer}.moe.experts", "edp")):
            expected[("all_gather", "forward", unit, axis)] = 1
            expected[("all_gather", "backward", unit, axis)] = 1
            expected[("reduce_scatter", "backward", unit, axis)] = 1
    moved = [entry for entry in seen[how] if entry["kind"] != "all_to_all"]
    assert number(moved, "kind", "phase", "where", "axis") == expected


def test_activation_checkpointing_repeats_the_forward_exchanges_in_backward(seen: dict[str, Any]) -> None:
    exchanges = [entry for entry in seen["recomputed"] if entry["kind"] == "all_to_all"]
    assert number(exchanges, "phase", "where", "role") == {
        (phase, f"layers.{layer}.moe", role): count
        for layer in range(3)
        for phase, role, count in (
            ("forward", "control", 1),
            ("forward", "payload", 2),
            ("backward", "control", 1),
            ("backward", "payload", 2 + 2),
        )
    }
    others = [[e for e in seen[how] if e["kind"] != "all_to_all"] for how in ("recomputed", "step")]
    fields = ("kind", "phase", "where", "axis")
    assert number(others[0], *fields) == number(others[1], *fields)
