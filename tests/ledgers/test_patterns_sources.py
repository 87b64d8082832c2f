"""The patterns in ledgers of other sources.

The ledgers of ``test_patterns`` are converted to those of a profile or a compiled program. A pattern that the source
can show gets the same name, and no pattern is named wrongly.
"""

import re
from collections import Counter
from collections.abc import Callable

import pytest

from regbot.ledgers import catalogue as names
from regbot.ledgers.catalogue import INVERSE, PATTERNS
from regbot.records.ledger import Entry, Ledger
from support.ledger_builder import ledger_of
from support.pattern_cases import NEAR_MISSES, POSITIVES, patterns

Converter = Callable[[Ledger], Ledger]


def make_converter(source: str, change: Callable[[Entry], dict[str, object]]) -> Converter:
    """Return a function that converts a ledger to ``source``: entries that it cannot distinguish are merged, and host
    reads are removed."""

    def convert(ledger: Ledger) -> Ledger:
        entries = [entry.model_copy(update=change(entry)) for entry in ledger.entries]
        merged = ledger_of(entries, axes=ledger.axes, world_size=ledger.world_size or 16)
        return merged.model_copy(update={"source": source})

    return convert


def scanned(where: str) -> str:
    """Return a module path without layer numbers, as if the layers were one loop in a compiled program."""
    return re.sub(r"\.\d+", "", where).replace(".", "/")


SOURCES: dict[str, Converter] = {
    "profile": make_converter("kineto:metadata", lambda row: {"via": "nccl", "where": "", "phase": "unknown"}),
    "profile with backward": make_converter(
        "kineto:metadata",
        lambda row: {"via": "nccl", "where": "", "phase": "backward" if row.phase == "backward" else "unknown"},
    ),
    "compiled": make_converter("hlo:gpu", lambda row: {"via": "xla", "where": scanned(row.where)}),
}
BY_EVIDENCE = {names.DISPATCHER_OFF, names.DISPATCHER_ON}
# A source of collectives does not know what else a step does.
BY_EVIDENCE |= {*PATTERNS[PATTERNS.index(names.DOES_NOT_FIT) : PATTERNS.index(names.OVERLAP_LOST)]}
NEEDS_LAYERS = {names.OTHER_LAYER}
NEEDS_PHASES = {names.OPTIMIZER_SUM_REMOVED, names.OPTIMIZER_SUM_ADDED}
NEEDS_MODULES = {names.RESHARDS, names.KEEPS_GATHERED}
NEEDS_CALLS = {*names.REPLACES, *names.REPLACES.values(), names.SPLIT, names.MERGED}
CANNOT_SHOW = {
    "profile": BY_EVIDENCE | NEEDS_LAYERS | NEEDS_MODULES | NEEDS_PHASES,
    "profile with backward": BY_EVIDENCE | NEEDS_LAYERS | NEEDS_MODULES | NEEDS_PHASES,
    "compiled": BY_EVIDENCE | NEEDS_LAYERS | NEEDS_CALLS,
}
"""Patterns that a source cannot show. Evidence of runs is not in the ledger. Layers that a source does not distinguish
cannot differ. A partitioner replaces no calls, so those of a compiled program are not paired. Without modules, a root
that is not gathered again hides the gathers of the other modules."""
LOOKS_THE_SAME = {("experts sharded by FSDP", names.ALL_TO_ALL_REPLACED)}
"""Near misses that count as the pattern in other sources. With modules, gathers and sums of weights are recognised as
FSDP's. Without modules, and in a compiled program, they look like the fallback."""


@pytest.mark.parametrize("source", SOURCES)
def test_every_pattern_that_a_source_can_show_is_named_in_it_at_least_twice(source: str) -> None:
    convert, occurrences = SOURCES[source], Counter[str]()
    for case in POSITIVES:
        base, head = convert(case.base), convert(case.head)
        if patterns(base, head) == [case.pattern] and patterns(head, base) == [INVERSE[case.pattern]]:
            occurrences.update({case.pattern, INVERSE[case.pattern]})
    assert {name for name in PATTERNS if occurrences[name] < 2} == CANNOT_SHOW[source]


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize(("name", "pattern", "base", "head"), NEAR_MISSES, ids=[case[0] for case in NEAR_MISSES])
def test_what_only_looks_like_a_pattern_is_not_named_so(
    source: str, name: str, pattern: str, base: Ledger, head: Ledger
) -> None:
    if (name, pattern) in LOOKS_THE_SAME:
        pytest.skip("this source cannot distinguish them; see LOOKS_THE_SAME")
    converted = SOURCES[source](base), SOURCES[source](head)
    assert pattern not in patterns(*converted)
    assert INVERSE[pattern] not in patterns(*converted[::-1])
