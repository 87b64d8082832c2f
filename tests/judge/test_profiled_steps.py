"""Sharding of compiled steps: which ledgers are compared, what the verdict says, and when it is INVALID."""

from collections.abc import Callable, Sequence

import pytest

from regbot.check.sessions.schedule import Slot
from regbot.judge import judge
from regbot.judge.backends import uncertain_dispatcher
from regbot.ledgers import catalogue
from regbot.records.config import Config
from regbot.records.ledger import Ledger, Liveness
from regbot.records.run import Position, Profile, Run
from regbot.records.session import Session
from regbot.records.verdict import Verdict, WorkloadVerdict
from regbot.report.workload_section import build_workload_sections
from support.ledger_builder import backend, smoke_ledger, smoke_run
from support.timed_builder import A2A, BASE, HEAD, HEADER, play, session_of, statics, timed_run

REASON = "torch.compile compiled 2 frames of it"


def profile_of(ledger: Ledger, source: str = "kineto:metadata") -> Ledger:
    """``ledger`` as a profile of three steps shows it: without modules and program."""
    entries = [entry.model_copy(update={"where": ""}) for entry in ledger.entries]
    update = {
        "source": source,
        "steps": 3,
        "fingerprint": None,
        "entries": entries,
        "variant": "cpu",
    }
    return ledger.model_copy(update=update)


SAME, GATHERED = profile_of(A2A), profile_of(smoke_ledger(dispatcher="allgather"))


def profiled(ledger: Ledger | None, problem: str = "") -> dict[str, object]:
    """Fields of a timed run whose steps were profiled."""
    return {"ledger": ledger, "profile": Profile(reason=REASON, problem=problem)}


def session(
    base: dict[str, object], head: dict[str, object], traces: Sequence[Run] | None = None, slots: int = 2
) -> Session:
    """A session with two timed runs of each arm, which have these fields. ``traces`` are its static runs."""

    def launch(slot: Slot) -> Run:
        return timed_run(slot, 0.1, **(base if slot.arm == "base" else head))

    runs = play(launch)
    return Session(header=HEADER, runs=[*(statics() if traces is None else traces), *runs])


def refused(kind: str = "compiled") -> list[Run]:
    """Traces of both arms that the guest refused."""
    reason = "Layer would be compiled by torch.compile; counted eagerly it would be another program"
    return [smoke_run(arm, None, "refused", reason=reason, refusal=kind) for arm in (BASE, HEAD)]


def judged(of: Session) -> tuple[Verdict, WorkloadVerdict]:
    verdict = judge(of, Config())
    (workload,) = verdict.workloads
    return verdict, workload


def why_invalid(of: Session) -> str:
    verdict, workload = judged(of)
    assert (verdict.verdict, workload.validity.status) == ("INVALID", "INVALID")
    return "\n".join(workload.validity.reasons)


@pytest.mark.parametrize(
    ("head", "traces", "status", "last_reason"),
    [
        (SAME, refused(), "PASS", "same collectives"),
        (GATHERED, refused(), "FAIL", ""),
        # The graver of trace and profile counts, and names the other.
        (GATHERED, None, "FAIL", "the traces, in which compiled code runs eagerly: same collectives"),
    ],
)
def test_the_profiles_of_the_timed_runs_are_compared_as_traces_are(
    head: Ledger, traces: list[Run] | None, status: str, last_reason: str
) -> None:
    made = session(profiled(SAME), profiled(head), traces)
    verdict, workload = judged(made)
    sharding = workload.sharding
    assert sharding is not None
    assert (sharding.status, sharding.tier, workload.validity.status) == (status, "timed", "PASS")
    assert sharding.source == "kineto:metadata, fake world of 16 ranks, one steady step"
    assert sharding.reasons[-1].startswith(last_reason)
    patterns = [finding.pattern for finding in sharding.findings]
    assert (catalogue.ALL_TO_ALL_REPLACED in patterns) == (status == "FAIL")
    assert any(REASON in warning for warning in verdict.warnings)
    (section,) = build_workload_sections(verdict, made)
    assert section.ledgers == (SAME, head)


BLIND = SAME.model_copy(update={"liveness": Liveness(planted=3, seen=0)})
NO_LEDGER = profiled(None, "the profiled steps failed: no memory")
UNKNOWN = ("head: the collectives of its step are unknown", REASON, "the profiled steps failed: no memory")


@pytest.mark.parametrize(
    ("of", "reasons"),
    [
        (session(profiled(SAME), NO_LEDGER), UNKNOWN),
        (session(profiled(SAME), NO_LEDGER, refused()), UNKNOWN),
        (session(profiled(SAME), profiled(BLIND)), ["head: the counter missed collectives"]),
        (
            session({"ledger": A2A}, profiled(SAME)),
            ["not comparable: a step of base was counted, and steps of the other arm were profiled"],
        ),
        (
            Session(header=HEADER.model_copy(update={"timed": []}), runs=refused()),  # it was not timed
            ["base has no timed run, so the collectives of its step are unknown", "would be compiled by torch.compile"],
        ),
    ],
)
def test_a_compiled_step_without_two_usable_profiles_is_invalid(of: Session, reasons: Sequence[str]) -> None:
    text = why_invalid(of)
    assert all(reason in text for reason in reasons)


@pytest.mark.parametrize(
    "change", [{"bytes": 1}, {"count": 9}, {"axis": "edp"}, {"dtype": "float32"}, {"role": "control"}]
)
def test_an_arm_whose_profiles_differ_is_invalid(change: dict[str, object]) -> None:
    """Otherwise the last run would decide, although an earlier run of the arm contradicts it."""
    other = SAME.model_copy(update={"entries": [SAME.entries[0].model_copy(update=change), *SAME.entries[1:]]})
    profiles = iter([other, SAME])

    def launch(slot: Slot) -> Run:
        return timed_run(slot, 0.1, **profiled(next(profiles, SAME) if slot.arm == "head" else SAME))  # type: ignore[arg-type]

    reason = why_invalid(Session(header=HEADER, runs=[*statics(), *play(launch)]))
    assert "head: the profiles of its runs differ" in reason
    assert SAME.entries[0].kind in reason


def test_a_failed_profile_does_not_hide_the_dispatcher_that_other_runs_show() -> None:
    """The run counts with its times, and another run of the arm shows which dispatcher the arm executes."""
    place: Callable[[int], Slot] = lambda number: Slot(Position(block=0, slot=number, order="ABBA"), 1, "base", 8)  # noqa: E731
    good = timed_run(place(0), 0.1, **profiled(SAME))
    failed = timed_run(place(3), 0.1, **{**profiled(None, "no memory"), "backends": {}})
    uncounted = failed.model_copy(update={"profile": None})
    assert [*uncertain_dispatcher([good, failed], "alltoall")] == []
    for runs in ([failed], [good, uncounted]):
        assert ["does not show which one" in line for line in uncertain_dispatcher(runs, "alltoall")] == [True]


def test_a_fallback_counts_even_if_the_last_profile_failed() -> None:
    """The last run of each arm shows no dispatcher. The earlier ones show that another one than requested was used."""
    fallback = {"dispatcher": backend("alltoall", requested="deepep")}

    def launch(slot: Slot) -> Run:
        return timed_run(slot, 0.1, **{**profiled(SAME), "backends": fallback})  # type: ignore[arg-type]

    runs = play(launch)
    for arm in ("base", "head"):
        last = max(number for number, run in enumerate(runs) if run.arm.name == arm)
        runs[last] = runs[last].model_copy(update={**profiled(None, "no memory"), "backends": {}})
    assert "base requested dispatcher 'deepep' and executed 'alltoall'" in why_invalid(session_of(runs))
