"""The screen in a session: stored sessions are asked first, pairs where they do not settle it."""

import math
import random
from collections.abc import Callable, Sequence

import pytest

from ledger_builder import WORKLOAD, backend, smoke_ledger
from regbot.baselines import environment_of
from regbot.config import Config
from regbot.judge import judge
from regbot.records.calibrated import Calibrated, Rate
from regbot.records.reference import Reference, StoredSession
from regbot.records.run import Environment, Run
from regbot.records.session import SessionHeader, StoredTrace
from regbot.records.verdict import Throughput, Verdict
from regbot.session import Slot, next_slot
from timed_builder import BASE, HEADER, NODE, PLAN, play, session_of, statics, timed_run

THEN = "2026-01-01T00:00:00Z"
ENVIRONMENT = Environment(python="3.11.9", torch="2.13.0", platform="linux", packages="a" * 64)
LOSS = [7.0 - 0.01 * n for n in range(PLAN.steps)]


def run_at(slot: Slot, seconds: float, **changes: object) -> Run:
    return timed_run(slot, seconds, **{"environment": ENVIRONMENT, **changes})


def reference(sessions: int = 20, sd: float = 0.005, **changes: object) -> Reference:
    """Sessions around 100 ms a step that differ by ``sd``."""
    draw = random.Random(5)
    levels = [math.log(0.1) + draw.gauss(0, sd) for _ in range(sessions)]
    stored = [
        StoredSession(
            session=f"{n:064x}",
            measured="2026-01-01T00:00:00Z",
            commit="c" * 40,
            node=NODE.name,
            log_median=[x] * 3,
            log_mean=[x] * 3,
        )
        for n, x in enumerate(levels)
    ]
    slot = Slot(next_slot([], HEADER, PLAN).position, 1, "head", PLAN.steps)  # type: ignore[union-attr]
    made = Reference(
        node_class=NODE.node_class,
        environment=environment_of(run_at(slot, 0.1)),
        clock="perf_counter",
        executed="alltoall",
        sessions=stored,
        loss=[LOSS] * 3,
    )
    return made.model_copy(update=changes)


def header(*references: Reference, gate: str = "screen", **changes: object) -> SessionHeader:
    plan = PLAN.model_copy(
        update={"references": list(references), "no_reference": "" if references else "nothing is stored"}
    )
    settings = HEADER.throughput.model_copy(update={"gate": gate})
    return HEADER.model_copy(update={"timed": [plan], "throughput": settings, **changes})


def at(head_s: float, base_s: float = 0.1, noise: float = 0.002, **changes: object) -> Callable[[Slot], Run]:
    draw = random.Random(3)

    def launch(slot: Slot) -> Run:
        usual = (head_s if slot.arm == "head" else base_s) * (1 + draw.gauss(0, noise))
        return run_at(slot, usual, **(changes if slot.arm == "head" else {}))

    return launch


def verdict_of(runs: Sequence[Run], of: SessionHeader) -> Verdict:
    return judge(session_of(runs, of), Config())


def throughput(runs: Sequence[Run], of: SessionHeader) -> Throughput:
    section = verdict_of(runs, of).workloads[0].throughput
    assert section is not None
    return section


def test_inside_of_what_is_stored_head_passes_after_three_runs_and_says_what_that_excludes() -> None:
    of = header(reference())
    runs = play(at(0.1), of)
    assert [run.arm.name for run in runs] == ["head"] * 4
    section = throughput(runs, of)
    assert (section.status, section.decision, section.by, section.pairs, section.sessions) == (
        "PASS", "within_bound", "screen", 0, 20,
    )  # fmt: skip
    assert section.bound_pct is not None
    assert 0 < section.bound_pct < 3
    assert "excluded" in section.reasons[0]


@pytest.mark.parametrize("head", [0.104, 0.096])
def test_outside_of_it_pairs_decide_and_the_screen_alone_never_fails(head: float) -> None:
    of = header(reference())
    runs = play(at(head), of)
    assert [run.position.order for run in runs[:4] if run.position] == ["screen"] * 4
    assert len(runs) >= 4 + 2 + 8
    assert throughput(runs[:4], of).status == "INCONCLUSIVE"
    section = throughput(runs, of)
    assert (section.by, section.decision) == ("pairs", "regressed" if head > 0.1 else "improved")


def test_a_bound_that_is_too_wide_goes_on_to_pairs() -> None:
    of = header(reference(sd=0.04))
    runs = play(at(0.1), of)
    assert throughput(runs, of).by == "pairs"


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"environment": ENVIRONMENT.model_copy(update={"torch": "2.14.0"})}, "framework"),
        ({"node": NODE.model_copy(update={"node_class": "another processor, 2 cores"})}, "node class"),
    ],
)
def test_another_environment_or_class_is_not_compared_and_only_the_warm_launch_is_lost(
    changes: dict[str, object], word: str
) -> None:
    of = header(reference())
    runs = play(lambda slot: run_at(slot, 0.1 * (1 + 0.001 * slot.position.slot), **changes), of)
    assert [run.position.order == "screen" for run in runs[:2] if run.position] == [True, False]
    assert word in of.timed[0].no_reference or word in _why(runs[:1], of)


def _why(runs: Sequence[Run], of: SessionHeader) -> str:
    return throughput(runs, of).reasons[0]


@pytest.mark.parametrize(("nodes", "by"), [(2, "pairs"), (3, "screen")])
def test_a_node_that_nothing_is_stored_of_is_screened_by_several_others_only(nodes: int, by: str) -> None:
    made = reference()
    others = [each.model_copy(update={"node": f"other-{n % nodes}"}) for n, each in enumerate(made.sessions)]
    of = header(made.model_copy(update={"sessions": others}))
    assert throughput(play(at(0.1), of), of).by == by


def test_too_few_stored_sessions_screen_nothing() -> None:
    of = header(reference(sessions=3))
    runs = play(at(0.1), of)
    assert throughput(runs, of).by == "pairs"


@pytest.mark.parametrize(
    "changes",
    [
        {"backends": {"dispatcher": backend("allgather", requested="allgather")}},
        {"loss": [value - 1.0 for value in LOSS]},
        {"loss": []},
    ],
)
def test_what_ran_something_else_or_trains_otherwise_is_not_passed_by_its_times(changes: dict[str, object]) -> None:
    of = header(reference())
    runs = play(at(0.1, **changes), of, at_most=60)[:4]
    assert throughput(runs, of).status != "PASS"


def test_a_dispatcher_that_was_not_honoured_is_never_a_pass_of_the_screen() -> None:
    of = header(reference(executed=None))
    runs = play(at(0.1, backends={"dispatcher": backend("alltoall", requested="deepep")}), of)[:4]
    assert verdict_of(runs, of).verdict == "INVALID"


def test_a_screen_that_breaks_is_repeated_once_and_then_left_to_pairs() -> None:
    of = header(reference())
    runs = play(lambda slot: run_at(slot, 0.1) if slot.arm == "base" else timed_run(slot, 0.1, "crashed"), of)
    assert [(run.position.order, run.attempt) for run in runs if run.position][:2] == [("screen", 1), ("screen", 2)]
    assert verdict_of(runs, of).verdict == "FAIL", "base ran, head broke in each of two attempts"


def test_overrides_are_not_what_was_stored_so_nothing_is_screened() -> None:
    of = header(reference(), head=HEADER.head.model_copy(update={"overrides": {"dispatcher": "deepep"}}))
    first = next_slot([], of, of.timed[0])
    assert first is not None
    assert first.position.order != "screen"


@pytest.mark.parametrize(
    ("head", "decision", "status"),
    [(0.1, "no_change", "PASS"), (0.106, "regressed", "FAIL"), (0.1015, "undecided", "INCONCLUSIVE")],
)
def test_stored_sessions_alone_may_fail_where_they_are_the_gate(head: float, decision: str, status: str) -> None:
    of = header(reference(sd=0.004), gate="stored")
    runs = play(at(head, noise=0.0001), of)
    assert len(runs) == 4
    section = throughput(runs, of)
    assert (section.by, section.status) == ("stored", status)
    assert section.decision in (decision, "within_bound" if decision == "no_change" else decision)


def test_a_gate_of_stored_sessions_without_any_runs_nothing_and_is_no_pass() -> None:
    of = header(gate="stored")
    assert next_slot([], of, of.timed[0]) is None
    section = throughput([], of)
    assert (section.status, section.decision) == ("INCONCLUSIVE", "undecided")
    assert "nothing is stored" in " ".join(section.reasons)


def calibrated(**changes: object) -> Calibrated:
    good = Rate(count=0, total=20, low=0.0, high=0.17)
    made = Calibrated(
        measured="2026-01-01T00:00:00Z", pairs=80, sd_pct=0.5, sd_low_pct=0.4, sd_high_pct=0.6, false_flags=good,
        covered=Rate(count=20, total=20, low=0.83, high=1.0), injected_pct=None, found=None, resampled_false=0.0,
    )  # fmt: skip
    return made.model_copy(update=changes)


def test_a_calibration_is_cited_and_takes_the_vote_away_where_it_contradicts_the_gate() -> None:
    of = header(reference(sessions=0, calibrated=calibrated()), gate="pairs")
    section = throughput(play(at(0.11), of), of)
    assert (section.decision, section.calibrated) == ("regressed", calibrated())
    bad = calibrated(contradicted="9 of 20 comparisons of a commit with itself were called a change")
    of = header(reference(sessions=0, calibrated=bad), gate="pairs")
    section = throughput(play(at(0.11), of), of)
    assert (section.status, section.decision) == ("INCONCLUSIVE", "undecided")
    assert "9 of 20" in section.reasons[0]


def stored_trace(tree: str, **ledger: object) -> StoredTrace:
    return StoredTrace(
        entry=WORKLOAD, commit="d" * 40, tree=tree, measured="2026-01-01T00:00:00Z",
        environment=reference().environment, ledger=smoke_ledger().model_copy(update=ledger),
    )  # fmt: skip


def test_base_that_is_not_what_was_stored_of_its_tree_is_for_a_person_to_look_at() -> None:
    few = smoke_ledger()
    other = [entry.model_copy(update={"count": entry.count + 1, "bytes": 2 * entry.bytes}) for entry in few.entries]
    same, changed, earlier = (
        HEADER.model_copy(update={"stored": [each], "timed": []})
        for each in (
            stored_trace(BASE.tree),
            stored_trace(BASE.tree, entries=other),
            stored_trace("e" * 40, entries=other),
        )
    )
    assert _sharding(same) == ("PASS", False)
    assert _sharding(changed) == ("REVIEW", True)
    assert _sharding(earlier)[0] == "PASS"
    assert any("refresh the stored ledgers" in warning for warning in judge(session_of([], earlier), Config()).warnings)


def _sharding(of: SessionHeader) -> tuple[str, bool]:
    section = judge(session_of([], of), Config()).workloads[0].sharding
    assert section is not None
    return section.status, any("the software around it has changed" in reason for reason in section.reasons)


def test_the_statics_of_these_cases_are_good() -> None:
    assert [run.outcome for run in statics()] == ["ok", "ok"]
