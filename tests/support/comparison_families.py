"""Pairs of hostile ledgers, which grow with a number: what a comparison could spend more than linear work on."""

from collections.abc import Callable, Iterable

from regbot.records.ledger import Axis, Entry, Kind, Ledger, Phase, Role
from support.ledger_builder import entry, ledger_of

Pair = tuple[Ledger, Ledger]


def item(
    kind: Kind, where: str, axis: str = "ep", *, ranks: int = 8, dtype: str = "bfloat16", phase: Phase = "forward",
    size: int = 2**20, count: int = 1, role: Role = "payload",
) -> Entry:  # fmt: skip
    return entry(kind, axis, ranks, dtype, phase, where, size, count, role)


def exchanges(n: int) -> list[Entry]:
    return [item("all_to_all", f"layers.{number}.moe") for number in range(n)]


def pair(base: Iterable[Entry], head: Iterable[Entry]) -> Pair:
    return ledger_of([*base]), ledger_of([*head])


def replaced_exchanges(n: int) -> Pair:
    gathers = [item("all_gather", f"layers.{number}.moe") for number in range(n)]
    return pair(exchanges(n), [*gathers, *(item("reduce_scatter", f"layers.{number}.moe") for number in range(n))])


def an_exchange_of_counts_on_each_axis(n: int) -> Pair:
    counts = [item("all_to_all", "layers.0.moe", f"ep|{number}", role="control") for number in range(n)]
    payload = [item("all_to_all", f"layers.{number}.moe", f"ep|{number}") for number in range(n)]
    return pair(payload, [*payload, *counts])


def gathers_of_one_layer(n: int) -> Pair:
    places = [f"layers.0.x{number}" for number in range(n)]
    sums = [item("reduce_scatter", place, "dp", phase="backward") for place in places]
    forward = [item("all_gather", place, "dp") for place in places]
    return pair([*sums, *forward], [*sums, *forward, *(item("all_gather", p, "dp", phase="backward") for p in places)])


def reaches(n: int) -> Pair:
    base = [item("reduce_scatter", f"layers.{number}", "dp", ranks=number + 2, phase="backward") for number in range(n)]
    head = [item("all_reduce", f"layers.{number}", "x", ranks=number + 3, phase="backward") for number in range(n)]
    return pair(base, head)


def labels_of_a_large_axis(n: int) -> Pair:
    axes = {"a": Axis(size=n, ranks=list(range(n)))}
    base = [item("all_gather", "x", f"a|{number}", ranks=max(n, 2)) for number in range(n)]
    return ledger_of(base, axes=axes), ledger_of(base[1:], axes=axes)


PAIRS: dict[str, tuple[Callable[[int], Pair], int]] = {
    "replaced exchanges": (replaced_exchanges, 30),
    "an exchange of counts on each axis": (an_exchange_of_counts_on_each_axis, 40),
    "gathers of one layer": (gathers_of_one_layer, 60),
    "reaches": (reaches, 40),
    "labels of a large axis": (labels_of_a_large_axis, 100),
}
"""Function that makes two ledgers, and the number to begin with."""
