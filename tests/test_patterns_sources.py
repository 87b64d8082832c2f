"""The patterns as each source shows them: the ledgers of ``test_patterns`` told the way a profile or a compiled program
tells them, with the same names where the source can show them, and nothing named that is not there."""

import re
from collections import Counter
from collections.abc import Callable

import pytest

from ledger_builder import ledger_of
from regbot.ledgers import catalogue as names
from regbot.ledgers.patterns import EXPLANATIONS, INVERSE
from regbot.records.ledger import Entry, Ledger
from test_patterns import NEAR_MISSES, POSITIVES, patterns

Told = Callable[[Ledger], Ledger]


def told_by(source: str, change: Callable[[Entry], dict[str, object]]) -> Told:
    """Ledgers as ``source`` tells them: entries that it cannot tell apart become one, and hosts are not looked at."""

    def tell(ledger: Ledger) -> Ledger:
        entries = [entry.model_copy(update=change(entry)) for entry in ledger.entries]
        merged = ledger_of(entries, axes=ledger.axes, world_size=ledger.world_size or 16)
        return merged.model_copy(update={"source": source, "host_reads": None})

    return tell


def scanned(where: str) -> str:
    """Layers that are one loop in a compiled program."""
    return re.sub(r"\.\d+", "", where).replace(".", "/")


SOURCES: dict[str, Told] = {
    "profile": told_by("kineto:metadata", lambda e: {"via": "nccl", "where": "", "phase": "unknown"}),
    "profile with backward": told_by(
        "kineto:metadata",
        lambda e: {"via": "nccl", "where": "", "phase": "backward" if e.phase == "backward" else "unknown"},
    ),
    "compiled": told_by("hlo:gpu", lambda e: {"via": "xla", "where": scanned(e.where)}),
}
BY_EVIDENCE = {names.DISPATCHER_OFF, names.DISPATCHER_ON, names.HOST_READS_ADDED, names.HOST_READS_REMOVED}
OF_LAYERS = {names.OTHER_LAYER}
OF_MODULES = {names.RESHARDS, names.KEEPS_GATHERED}
CANNOT_SHOW = {
    "profile": BY_EVIDENCE | OF_LAYERS | OF_MODULES,
    "profile with backward": BY_EVIDENCE | OF_LAYERS | OF_MODULES,
    "compiled": BY_EVIDENCE | OF_LAYERS,
}
"""Evidence of runs is no row; layers that a source does not tell apart cannot differ; a root that is not gathered again
hides what the others do where modules are not told."""
LOOKS_THE_SAME = {("experts sharded by FSDP", names.MAPPED_TWICE)}
"""Gathers and sums of weights in place of the exchange are no fallback where modules tell that they are FSDP's. Without
modules, or in a compiled program, where they are how a partitioner falls back, they are named so."""


@pytest.mark.parametrize("source", SOURCES)
def test_every_pattern_that_a_source_can_show_is_named_in_it_at_least_twice(source: str) -> None:
    tell, shown = SOURCES[source], Counter[str]()
    for case in POSITIVES:
        base, head = tell(case.base), tell(case.head)
        if patterns(base, head) == [case.pattern] and patterns(head, base) == [INVERSE[case.pattern]]:
            shown.update({case.pattern, INVERSE[case.pattern]})
    assert {name for name in EXPLANATIONS if shown[name] < 2} == CANNOT_SHOW[source]


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize(("name", "pattern", "base", "head"), NEAR_MISSES, ids=[case[0] for case in NEAR_MISSES])
def test_what_only_looks_like_a_pattern_is_not_named_so(
    source: str, name: str, pattern: str, base: Ledger, head: Ledger
) -> None:
    if (name, pattern) in LOOKS_THE_SAME:
        pytest.skip("cannot be told apart in this source; see LOOKS_THE_SAME")
    told = SOURCES[source](base), SOURCES[source](head)
    assert pattern not in patterns(*told)
    assert INVERSE[pattern] not in patterns(*told[::-1])


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("case", POSITIVES, ids=lambda case: case.name)
def test_a_change_that_a_source_shows_at_all_is_never_passed_over(source: str, case: object) -> None:
    tell = SOURCES[source]
    base, head = tell(case.base), tell(case.head)  # type: ignore[attr-defined]
    told = [[(e.kind, e.axis, e.dtype, e.count, e.bytes) for e in side.entries] for side in (base, head)]
    if sorted(told[0]) != sorted(told[1]):
        assert patterns(base, head)
