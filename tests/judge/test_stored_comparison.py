"""The stored baseline beside the pairs: where base and head of a session lie against the last sessions of main."""

from collections.abc import Sequence

import pytest

from regbot.judge import judge
from regbot.records.baseline import EnvironmentKey
from regbot.records.config import Config
from regbot.records.reference import Reference
from regbot.records.run import Run
from regbot.records.session import Session, SessionHeader, StoredTrace
from regbot.records.verdict import StoredTest, StoredTimes, Verdict
from regbot.stats.prediction import p_value, prediction_interval, session_level
from support.ledger_builder import WORKLOAD, smoke_ledger
from support.stored_cases import ENVIRONMENT, NOISE, at, header, reference
from support.timed_builder import BASE, NODE, play, session_of

KNOWN = reference(noise=NOISE)


def verdict_on(runs: Sequence[Run], session_header: SessionHeader) -> Verdict:
    return judge(session_of(runs, session_header), Config())


def times(runs: Sequence[Run], session_header: SessionHeader) -> StoredTimes:
    comparison = verdict_on(runs, session_header).workloads[0].stored
    assert comparison is not None
    assert comparison.times is not None
    return comparison.times


def select_tests(section: StoredTimes, arm: str) -> dict[str, StoredTest]:
    return {test.summary: test for test in section.tests if test.arm == arm}


def test_the_interval_is_that_of_one_more_session_with_as_many_runs() -> None:
    """Levels of two runs scatter more than levels of three, so the stored levels are made of two runs too."""
    stored = [
        session.model_copy(update={"log_median": [*session.log_median[:2], session.log_median[0] + 0.3]})
        for session in KNOWN.sessions
    ]
    session_header = header(KNOWN.model_copy(update={"sessions": stored}))
    runs = play(at(0.1, noise=0.0), session_header)
    base = select_tests(times(runs, session_header), "base")["median"]
    levels = [session_level(session.log_median, 2) for session in stored]
    expected = prediction_interval(levels, session_level([-2.302585092994046] * 2, 2), 0.025)
    assert base.estimate_pct == pytest.approx(100 * expected.estimate, abs=0.01)
    assert base.p_value == pytest.approx(p_value(expected))


def test_a_base_outside_its_interval_is_a_warning_that_names_the_command_and_decides_nothing() -> None:
    session_header = header(KNOWN)
    runs = play(at(0.105, base_s=0.105), session_header)
    verdict = verdict_on(runs, session_header)
    workload = verdict.workloads[0]
    assert workload.throughput is not None
    assert (workload.throughput.status, workload.throughput.decision) == ("PASS", "within_bound")
    [warning] = [text for text in verdict.warnings if "more than these sessions scatter" in text]
    assert warning.startswith(f"{WORKLOAD}: base's step time differs by ")
    assert "the last 20 sessions of main" in warning
    assert "or main has changed" in warning, "no stored session is of base's commit"
    assert "regbot baseline refresh" in warning


OTHER_NODES = [
    session.model_copy(update={"node": f"node-{number % 2}{number % 2}"})
    for number, session in enumerate(KNOWN.sessions)
]


@pytest.mark.parametrize(
    ("stored", "reason"),
    [
        (reference(sessions=1), "1 comparable session is stored, and 2 are needed"),
        (reference(executed="deepep"), "stored sessions executed the dispatcher 'deepep', and base executed alltoall"),
        (KNOWN.model_copy(update={"environment": EnvironmentKey(python="3.9")}), "cannot be compared: "),
        (KNOWN.model_copy(update={"sessions": OTHER_NODES}), "stored sessions are of 2 other nodes, and at least 6"),
        (KNOWN.model_copy(update={"node_class": "other"}), f"stored for the node class {NODE.node_class}"),
    ],
)
def test_sessions_that_cannot_be_compared_give_the_reason(stored: Reference, reason: str) -> None:
    session_header = header(stored)
    section = times(play(at(0.1), session_header), session_header)
    assert reason in section.reason
    assert section.tests == []


def stored_trace(**changes: object) -> StoredTrace:
    trace = StoredTrace(
        entry=WORKLOAD,
        commit=BASE.commit,
        tree=BASE.tree,
        measured="2026-01-01T00:00:00Z",
        environment=EnvironmentKey(framework=f"torch {ENVIRONMENT.torch}"),
        ledger=smoke_ledger(),
    )
    return trace.model_copy(update=changes)


def test_a_head_with_other_collectives_names_what_differs_from_the_stored_ledger() -> None:
    changed = smoke_ledger(dispatcher="allgather")
    base, head = session_of([]).runs
    runs = [base, head.model_copy(update={"ledger": changed})]
    session = Session(header=header(KNOWN, timed=[], stored=[stored_trace()]), runs=runs)
    stored = judge(session, Config()).workloads[0].stored
    assert stored is not None
    assert stored.collectives is not None
    assert stored.collectives.patterns
