"""Properties of findings over arbitrary pairs of ledgers: complete, symmetric, each byte told once."""

from collections import Counter
from collections.abc import Set

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from regbot.ledgers import catalogue as names
from regbot.ledgers.catalogue import INVERSE
from regbot.ledgers.patterns import compare_ledgers
from regbot.ledgers.rows import find_unit
from regbot.records.config import ShardingThresholds, WireBandwidths
from regbot.records.ledger import Ledger
from regbot.records.verdict import Finding
from support.ledger_builder import entry, ledger_of, smoke_ledger


def diff(base: Ledger, head: Ledger) -> list[Finding]:
    return compare_ledgers(base, head, ShardingThresholds(), WireBandwidths())


def patterns(base: Ledger, head: Ledger) -> list[str]:
    return sorted(finding.pattern for finding in diff(base, head))


ENTRIES = st.builds(
    entry,
    kind=st.sampled_from(["all_to_all", "all_gather", "reduce_scatter", "all_reduce", "barrier"]),
    axis=st.sampled_from(["ep", "dp", "edp"]),
    group_size=st.sampled_from([4, 16]),
    dtype=st.sampled_from(["bfloat16", "float32", "int64"]),
    phase=st.sampled_from(["forward", "backward", "unknown"]),
    where=st.sampled_from(["", "layers.0", "layers.1", "layers.0.moe", "layers.1.moe", "blocks.0.moe"]),
    size=st.sampled_from([0, 4, 8, 64]),
    count=st.integers(1, 3),
    role=st.sampled_from(["payload", "control"]),
)
ARBITRARY = st.lists(ENTRIES, max_size=8).map(ledger_of)
SMOKE = st.builds(
    smoke_ledger,
    layers=st.just(2),
    ep=st.sampled_from([1, 4, 16]),
    world=st.sampled_from([16, 64]),
    dispatcher=st.sampled_from(["alltoall", "allgather", "local"]),
    recompute=st.booleans(),
    reshard=st.booleans(),
    dispatchers=st.dictionaries(st.integers(0, 1), st.sampled_from(["alltoall", "allgather", "local"]), max_size=1),
    prefix=st.sampled_from(["layers", "layers", "blocks"]),
    reduce_dtype=st.sampled_from(["float32", "bfloat16"]),
)


@st.composite
def mutated(draw: st.DrawFn, ledger: Ledger) -> Ledger:
    """``ledger`` without some of its entries and with arbitrary others."""
    gone = draw(st.sets(st.integers(0, max(len(ledger.entries) - 1, 0)), max_size=3))
    kept = [e for number, e in enumerate(ledger.entries) if number not in gone]
    return ledger_of([*kept, *draw(st.lists(ENTRIES, max_size=2))], axes=ledger.axes)


UNRELATED = st.tuples(ARBITRARY | SMOKE, ARBITRARY | SMOKE)
RELATED = SMOKE.flatmap(lambda ledger: st.tuples(mutated(ledger), st.just(ledger) | mutated(ledger)))
PAIRS = UNRELATED | RELATED


def units(ledger: Ledger) -> set[str]:
    return {find_unit(e.where) for e in ledger.entries}


def totals(ledger: Ledger, together: Set[str] = frozenset()) -> dict[tuple[object, ...], tuple[int, int]]:
    """Calls and bytes per unit and word; units that are ``together`` count as one."""
    words: dict[tuple[object, ...], tuple[int, int]] = {}
    for e in ledger.entries:
        where = "" if find_unit(e.where) in together else find_unit(e.where)
        key = (where, e.kind, e.axis, e.group_size, e.dtype, e.phase, e.role)
        count, size = words.get(key, (0, 0))
        words[key] = (count + e.count, size + e.bytes)
    return words


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(PAIRS)
def test_totals_of_a_unit_differ_exactly_where_there_is_a_finding(pair: tuple[Ledger, Ledger]) -> None:
    """Units that only one ledger has are compared one by one, unless the other has such units too: then these may be
    the same ones under new names, and are compared together."""
    base, head = pair
    gone, new = units(base) - units(head), units(head) - units(base)
    renamed = gone | new if gone and new else frozenset[str]()
    assert (totals(base, renamed) != totals(head, renamed)) == bool(diff(base, head))


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(st.data(), SMOKE)
def test_any_collective_that_moves_between_layers_is_a_finding(data: st.DataObject, base: Ledger) -> None:
    """Layers keep other collectives, so nothing looks renamed."""
    number = data.draw(st.integers(0, len(base.entries) - 1))
    moved = base.entries[number]
    elsewhere = data.draw(st.sampled_from(sorted(units(base) - {find_unit(moved.where)})))
    head = list(base.entries)
    head[number] = moved.model_copy(update={"where": elsewhere})
    findings = diff(base, ledger_of(head, axes=base.axes))
    assert findings
    assert all(f.status in ("FAIL", "REVIEW") for f in findings)


@settings(max_examples=300, deadline=None)
@given(PAIRS)
def test_swapping_gives_exactly_the_inverse_patterns(pair: tuple[Ledger, Ledger]) -> None:
    base, head = pair
    forth = Counter(INVERSE[pattern] for pattern in patterns(base, head))
    assert forth == Counter(patterns(head, base))


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(PAIRS)
def test_every_changed_payload_byte_is_in_exactly_one_finding(pair: tuple[Ledger, Ledger]) -> None:
    base, head = pair

    def payload(ledger: Ledger) -> int:
        return sum(e.bytes for e in ledger.entries if e.role == "payload")

    findings = [
        f
        for f in diff(base, head)
        if f.pattern not in (names.CONTROL_CHANGED, names.COUNTS_ADDED, names.COUNTS_REMOVED)
    ]
    change = sum(v.bytes for f in findings for v in f.head.values()) - sum(
        v.bytes for f in findings for v in f.base.values()
    )
    assert change == payload(head) - payload(base)
