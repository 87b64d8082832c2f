"""Patterns in compiled programs: op names for modules, executions for calls, and all-reduce where a backend has no
reduce-scatter. The numbers are those of MaxText's Mixtral-8x7B, two scanned layers on 8 ranks, compiled for a CPU."""

import pytest

from regbot.ledgers import catalogue as names
from regbot.ledgers.patterns import compare_ledgers
from regbot.records.config import ShardingThresholds, WireBandwidths
from regbot.records.ledger import Entry, Kind, Ledger, Phase
from regbot.records.verdict import Finding
from support.ledger_builder import edited, entry, ledger_of, where

LAYERS = 2
WEIGHTS = 8 * 14336 * 4096 * 4
TOKENS = 8 * 320 * 4096 * 4
ATTENTION = 32 * 128 * 4096 * 4
FORWARD, BACKWARD = "jvp()/while/body/", "transpose(jvp())/while/body/checkpoint/"
REMAT = f"{BACKWARD}rematted_computation/"


def op(kind: Kind, name: str, size: int, executed: int = LAYERS) -> Entry:
    """One line of the program: ``size`` bytes each time it is executed."""
    phase: Phase = "backward" if name.startswith("transpose") else "forward"
    made = entry(kind, "ep", 8, "f32", phase, name, size * executed, executed)
    return made.model_copy(update={"via": "xla", "static_count": 1})


def program(fallback: bool, prefix: str = "") -> Ledger:
    """``fallback``: the batch dimension is mapped to the expert axis too."""
    shared = [
        op("all_gather", f"{FORWARD}attention/query", ATTENTION),
        op("all_gather", f"{REMAT}attention/query", ATTENTION),
        op("all_to_all", "jvp()/gather", 1024 * 4096 * 4, 1),
        op("all_to_all", "transpose(jvp())/scatter-add", 1024 * 4096 * 4, 1),
        op("all_reduce", "transpose(jvp())/dot_general", 32000 * 4096 * 4, 1),
    ]
    if fallback:
        own = [op("all_gather", f"{at}{w}/sharding_constraint", WEIGHTS) for at in (FORWARD, REMAT) for w in MATRICES]
        own += [op("all_reduce", f"{BACKWARD}(dot_general:wi_0/EBCM,EMH -> EBCH)", 3 * WEIGHTS + ATTENTION)]
    else:
        own = [
            op("all_to_all", f"{at}{prefix}{name}/dot_general", TOKENS)
            for at in (FORWARD, REMAT, BACKWARD)
            for name in ("dispatch/BSM,BSEC -> EBCM", "wo/EBCH,EHM -> EBCM")
        ]
        own += [op("all_reduce", f"{BACKWARD}(dot_general)", ATTENTION)]
    return ledger_of([*shared, *own], world_size=8).model_copy(update={"source": "hlo:cpu"})


MATRICES = ("wi_0", "wi_1", "wo")
EXPERT, FALLBACK = program(fallback=False), program(fallback=True)


def only(base: Ledger, head: Ledger) -> Finding:
    (finding,) = diff(base, head)
    return finding


def diff(base: Ledger, head: Ledger) -> list[Finding]:
    return compare_ledgers(base, head, ShardingThresholds(), WireBandwidths())


def test_weights_gathered_and_gradients_summed_for_an_exchange_are_an_all_to_all_replaced() -> None:
    finding = only(EXPERT, FALLBACK)
    assert (finding.pattern, finding.status, finding.axis) == (names.ALL_TO_ALL_REPLACED, "FAIL", "ep")
    assert finding.base["all_to_all"].count == 6 * LAYERS
    assert finding.head["all_gather"].bytes == 6 * WEIGHTS * LAYERS
    assert "6 ops" in finding.text
    assert "dispatch/BSM,BSEC -> EBCM/dot_general" in " ".join(finding.modules)


@pytest.mark.parametrize(
    ("name", "head"),
    [
        ("gathered but not summed", edited(FALLBACK, lambda e: None if "wi_0/EBCM" in e.where else e)),
        ("summed but not gathered", edited(FALLBACK, lambda e: None if "sharding_constraint" in e.where else e)),
        ("an exchange that is gone", edited(EXPERT, lambda e: None if "dispatch" in e.where else e)),
        ("an exchange under another op name", program(fallback=False, prefix="moe/")),
        (
            "gathers of attention that grow beside the exchange",
            edited(EXPERT, lambda e: e.model_copy(update={"bytes": 50 * e.bytes}) if e.kind != "all_to_all" else e),
        ),
    ],
)
def test_what_only_looks_like_it_is_not_named_so(name: str, head: Ledger) -> None:
    assert names.ALL_TO_ALL_REPLACED not in {finding.pattern for finding in diff(EXPERT, head)}
    assert names.RESTORED not in {finding.pattern for finding in diff(head, EXPERT)}


def merged(ledger: Ledger) -> Ledger:
    """As a combiner would: all-to-all of one phase under the name of one op."""
    first = {e.phase: e.where for e in reversed(ledger.entries) if e.kind == "all_to_all" and "while" in e.where}
    changed = edited(
        ledger,
        lambda e: (
            e.model_copy(update={"where": first[e.phase]}) if e.kind == "all_to_all" and "while" in e.where else e
        ),
    )
    return ledger_of(changed.entries, axes=ledger.axes, world_size=8).model_copy(update={"source": "hlo:cpu"})


def test_collectives_that_a_combiner_merged_are_no_finding() -> None:
    assert len(merged(EXPERT).entries) < len(EXPERT.entries)
    assert diff(EXPERT, merged(EXPERT)) == []


@pytest.mark.parametrize("axis", ["tp+cp", "cp", "tp|cp"])
def test_an_exchange_of_sequences_is_no_expert_axis(axis: str) -> None:
    sides = [edited(side, lambda e: e.model_copy(update={"axis": axis})) for side in (EXPERT, FALLBACK)]
    assert not {names.ALL_TO_ALL_REPLACED, names.AXIS_LOST} & {finding.pattern for finding in diff(*sides)}


def test_written_code_with_the_same_rows_is_judged_by_its_own_rules() -> None:
    """Gathers of weights in forward and sums of gradients in backward are FSDP where a framework issued them."""
    written = [edited(side, where("", via="fake")) for side in (EXPERT, FALLBACK)]
    assert names.ALL_TO_ALL_REPLACED not in {finding.pattern for finding in diff(*written)}
