"""Stored sessions in a session: head alone is compared with them (``gate = "stored"``). Calibrations, stored traces."""

import pytest

from regbot.check.sessions.schedule import next_slot
from regbot.judge import judge
from regbot.records.config import Config
from regbot.records.session import SessionHeader, StoredTrace
from support.ledger_builder import WORKLOAD, backend, smoke_ledger
from support.stored_cases import ENVIRONMENT, LOSS, at, header, reference, run_at
from support.timed_builder import BASE, HEADER, NODE, judged, play, session_of, throughput_of


def test_a_head_like_the_stored_sessions_passes_after_three_runs_with_its_bound() -> None:
    session_header = header(reference(sd=0.008), gate="stored")
    runs = play(at(0.1), session_header)
    assert [run.arm.name for run in runs] == ["head"] * 4
    section = throughput_of(runs, session_header)
    assert (section.status, section.decision, section.by, section.pairs, section.sessions) == (
        "PASS", "within_bound", "stored", 0, 20,
    )  # fmt: skip
    assert {run.role for run in section.runs} == {"warm-up", "stored"}
    assert section.bound_pct is not None
    assert 0 < section.bound_pct < 5
    assert "is ruled out" in section.reasons[0]


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"environment": ENVIRONMENT.model_copy(update={"torch": "2.14.0"})}, "framework"),
        ({"node": NODE.model_copy(update={"node_class": "another processor, 2 cores"})}, "node class"),
    ],
)
def test_another_environment_or_class_is_not_compared_and_costs_one_warm_launch(
    changes: dict[str, object], word: str
) -> None:
    session_header = header(reference(), gate="stored")
    runs = play(lambda slot: run_at(slot, 0.1 * (1 + 0.001 * slot.position.slot), **changes), session_header)
    assert len(runs) == 1
    assert word in throughput_of(runs, session_header).reasons[0]


@pytest.mark.parametrize(("nodes", "decided"), [(5, False), (6, True)])
def test_a_node_without_stored_sessions_is_judged_by_several_other_nodes_only(nodes: int, decided: bool) -> None:
    made = reference()
    others = [run.model_copy(update={"node": f"other-{n % nodes}"}) for n, run in enumerate(made.sessions)]
    session_header = header(made.model_copy(update={"sessions": others}), gate="stored")
    assert (throughput_of(play(at(0.1), session_header), session_header).status == "PASS") is decided


@pytest.mark.parametrize(
    "changes",
    [
        {"backends": {"dispatcher": backend("allgather", requested="allgather")}},
        {"loss": [value - 1.0 for value in LOSS]},
        {"loss": []},
    ],
)
def test_a_head_with_another_program_or_loss_does_not_pass_by_its_times(changes: dict[str, object]) -> None:
    session_header = header(reference(), gate="stored")
    assert throughput_of(play(at(0.1, **changes), session_header), session_header).status != "PASS"


def test_a_fallback_dispatcher_never_passes() -> None:
    session_header = header(reference(executed=None), gate="stored")
    runs = play(at(0.1, backends={"dispatcher": backend("alltoall", requested="deepep")}), session_header)
    assert judged(runs, session_header).validity.status == "INVALID"


def test_head_alone_decides_nothing_under_another_gate() -> None:
    head_only = play(at(0.1), header(reference(), gate="stored"))
    session_header = header(reference(), gate="head")
    section = throughput_of(head_only, session_header)
    assert (section.status, section.decision, section.by, section.bound_pct) == (
        "INCONCLUSIVE", "undecided", "pairs", None,
    )  # fmt: skip
    runs = play(at(0.1), session_header, runs=head_only)
    assert throughput_of(runs, session_header).by == "pairs"


def test_seven_stored_sessions_decide_nothing() -> None:
    runs = play(at(0.2), header(reference(), gate="stored"))
    section = throughput_of(runs, header(reference(sessions=7), gate="stored"))
    assert section.status == "INCONCLUSIVE"
    assert "7 comparable sessions are stored, and 8 are needed" in section.reasons[0]


def test_the_stored_gate_without_stored_sessions_runs_nothing_and_does_not_pass() -> None:
    session_header = header(gate="stored")
    assert next_slot([], session_header, session_header.timed[0]) is None
    section = throughput_of([], session_header)
    assert (section.status, section.decision) == ("INCONCLUSIVE", "undecided")
    assert "nothing is stored" in " ".join(section.reasons)


def stored_trace(tree: str, **ledger: object) -> StoredTrace:
    return StoredTrace(
        entry=WORKLOAD, commit="d" * 40, tree=tree, measured="2026-01-01T00:00:00Z",
        environment=reference().environment, ledger=smoke_ledger().model_copy(update=ledger),
    )  # fmt: skip


def test_a_base_unlike_the_stored_sessions_of_its_tree_needs_review() -> None:
    few = smoke_ledger()
    other = [entry.model_copy(update={"count": entry.count + 1, "bytes": 2 * entry.bytes}) for entry in few.entries]
    same, changed, earlier = (
        HEADER.model_copy(update={"stored": [run], "timed": []})
        for run in (
            stored_trace(BASE.tree),
            stored_trace(BASE.tree, entries=other),
            stored_trace("e" * 40, entries=other),
        )
    )
    assert _sharding(same) == ("PASS", False)
    assert _sharding(changed) == ("REVIEW", True)
    assert _sharding(earlier)[0] == "PASS"
    assert any("refresh the stored ledgers" in warning for warning in judge(session_of([], earlier), Config()).warnings)


def _sharding(session_header: SessionHeader) -> tuple[str, bool]:
    section = judge(session_of([], session_header), Config()).workloads[0].sharding
    assert section is not None
    return section.status, any("the cause is other software" in reason for reason in section.reasons)
