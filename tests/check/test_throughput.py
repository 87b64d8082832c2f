"""The throughput section of a verdict, from records of timed runs."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest
from pydantic import ValidationError

from regbot.check.sessions.schedule import Slot
from regbot.judge import judge
from regbot.records.config import Config
from regbot.records.run import CodeProof, Environment, Outcome, Run, Timing
from regbot.records.session import SessionHeader
from regbot.records.verdict import Throughput, Verdict, WorkloadVerdict
from regbot.stats.paired import look_alpha
from support.ledger_builder import backend, smoke_run
from support.timed_builder import (
    HEAD,
    HEADER,
    NODE,
    PLAN,
    Session,
    noisy,
    play,
    session_of,
    statics,
    timed_run,
    timing,
)


def verdict(runs: Sequence[Run], header: SessionHeader = HEADER) -> Verdict:
    return judge(session_of(runs, header), Config())


def entry(runs: Sequence[Run], header: SessionHeader = HEADER) -> WorkloadVerdict:
    (workload,) = verdict(runs, header).workloads
    return workload


def throughput(runs: Sequence[Run], header: SessionHeader = HEADER) -> Throughput:
    section = entry(runs, header).throughput
    assert section is not None
    return section


def changed(runs: Sequence[Run], arm: str, **changes: object) -> list[Run]:
    return [run.model_copy(update=changes) if run.arm.name == arm else run for run in runs]


def test_the_error_of_one_test_is_shared_by_all_timed_workloads() -> None:
    timed = [PLAN.model_copy(update={"entry": entry}) for entry in (PLAN.entry, "a@1/ep", "b@1/ep")]
    runs = play(noisy(1.5, 0.01))
    for header, tests in ((HEADER, 2), (HEADER.model_copy(update={"timed": timed}), 6)):
        section = throughput(runs, header)
        assert section.alpha == pytest.approx(look_alpha(section.pairs, tests))


def test_the_thresholds_are_those_of_the_check() -> None:
    loose = HEADER.model_copy(
        update={"throughput": HEADER.throughput.model_copy(update={"threshold_pct": 80.0, "indifference_pct": 70.0})}
    )
    assert throughput(play(noisy(1.5, 0.01)), loose).decision == "no_change"


def fails(at: set[tuple[int, int, int]], outcome: Outcome = "crashed") -> Any:
    def launch(place: Slot) -> Run:
        key = (place.position.block, place.attempt, place.position.slot)
        return timed_run(place, 0.15 if place.arm == "head" else 0.1, outcome if key in at else "ok")

    return launch


def head_slots(block: int) -> list[int]:
    """Where head stands in a block of the builder's session."""
    return [
        run.position.slot
        for run in play(fails(set()))
        if run.position and run.position.block == block and run.arm == HEAD
    ]


def with_timing(runs: Sequence[Run], arm: str, **changes: object) -> list[Run]:
    return [
        run.model_copy(update={"timing": run.timing.model_copy(update=changes)})
        if run.arm.name == arm and run.timing
        else run
        for run in runs
    ]


def with_last(runs: Sequence[Run], **changes: object) -> list[Run]:
    """Return ``runs`` with the last run of each arm changed."""
    last = {run.arm.name: number for number, run in enumerate(runs)}
    return [run.model_copy(update=changes) if number in last.values() else run for number, run in enumerate(runs)]


def proof(digit: str) -> CodeProof:
    return CodeProof(watched={}, foreign={}, files={"src/moe.py": digit * 64})


STEADY = play(noisy(1.0, 0.001))
DEEPEP = {"dispatcher": backend("deepep", requested="deepep")}
FALLBACK = {"dispatcher": backend("alltoall", requested="deepep")}
NEWER = Environment(python="3.11.1", torch="2.14.0", platform="linux", packages="d" * 64)
FOREIGN = CodeProof(watched={}, foreign={"moe": "/usr/lib/moe"}, files={})
DROPS = {"dropped_tokens": 128, "tokens_per_expert": [872, 1048]}
KEEPS = {"dropped_tokens": 0, "tokens_per_expert": [1000, 1048]}


@pytest.mark.parametrize(
    ("runs", "plan", "status", "words"),
    [
        (STEADY, {}, "PASS", ""),
        (
            changed(changed(STEADY, "base", backends={}), "head", backends={}),
            {"dispatcher": "deepep"},
            "INVALID",
            "a run does not show which one it executed",
        ),
        (STEADY, {"steps": 50, "cut": 10, "world_size": 8}, "INVALID", "planned were 50 steps, 10 of them warm-up"),
        (with_last(STEADY, code=FOREIGN), {}, "INVALID", "outside the checkout"),
        (changed(STEADY, "head", node=NODE.model_copy(update={"name": "node-4"})), {}, "INVALID", "node differs"),
        (
            with_last(changed(changed(STEADY, "base", backends=DEEPEP), "head", backends=DEEPEP), backends=FALLBACK),
            {},
            "INVALID",
            "different dispatchers in different runs: alltoall, deepep",
        ),
        (with_last(STEADY, environment=NEWER), {}, "INVALID", "software environment changed"),
        (changed(STEADY, "head", environment=NEWER), {}, "PASS", ""),  # a pull request may bring another torch
        (
            with_last(changed(changed(STEADY, "base", code=proof("a")), "head", code=proof("a")), code=proof("b")),
            {},
            "INVALID",
            "the code of src/moe.py changed between runs",
        ),
        (changed(STEADY, "head", loss=[]), {}, "REVIEW", "does not report the loss"),
        (with_timing(STEADY, "base", **KEEPS), {}, "REVIEW", "does not report the number of dropped tokens"),
        (with_timing(with_timing(STEADY, "base", **KEEPS), "head", **DROPS), {}, "REVIEW", "drops 128 of 2048"),
        (with_timing(with_timing(STEADY, "base", **DROPS), "head", **DROPS), {}, "PASS", ""),
    ],
)
def test_runs_that_do_not_measure_what_was_planned_are_not_judged(
    runs: list[Run], plan: dict[str, object], status: str, words: str
) -> None:
    header = HEADER.model_copy(update={"timed": [PLAN.model_copy(update=plan)]})
    validity = entry(runs, header).validity
    assert validity.status == status
    assert words in " ".join(validity.reasons)


@pytest.mark.parametrize(
    ("block", "outcome", "arms", "attempts", "words"),
    [
        (2, "bad_record", "h", 2, ""),
        (0, "crashed", "hb", 2, ""),
        (2, "crashed", "h", 1, "--resume"),  # not repeated yet
    ],
)
def test_a_failure_that_is_not_the_heads_or_not_shown_to_be_is_invalid(
    block: int, outcome: Outcome, arms: str, attempts: int, words: str
) -> None:
    head_slot = head_slots(block)[0]
    second_slot = head_slot if arms == "h" else 1 - head_slot
    runs = play(fails({(block, 1, head_slot), (block, 2, second_slot)}, outcome))
    if attempts == 1:
        runs = runs[: next(number for number, run in enumerate(runs) if run.outcome != "ok") + 1]
    validity = entry(runs).validity
    assert validity.status == "INVALID"
    assert words in validity.reasons[0]


def identical(header: SessionHeader = HEADER, **head: object) -> WorkloadVerdict:
    base, other = statics("a")
    session = Session(header=header, runs=[base, other.model_copy(update=head)])
    (workload,) = judge(session, Config()).workloads
    return workload


INERT = ["docs/guide.md", "tests/test_moe.py"]
COMMENTS = HEADER.model_copy(update={"changed_files": INERT, "inert_files": INERT})


def test_identity_needs_no_pairs() -> None:
    section = identical(COMMENTS).throughput
    assert section is not None
    assert (section.status, section.decision, section.by, section.pairs) == ("PASS", "no_change", "identity", 0)
    assert section.bound_pct == 0
    assert section.reasons[0].endswith("inert: docs/guide.md, tests/test_moe.py")


@pytest.mark.parametrize(
    ("header", "head", "words"),
    [
        (HEADER, {}, "src/moe.py differs"),
        (COMMENTS, {"ledger": smoke_run(HEAD, statics("b")[1].ledger).ledger}, "head runs other operators than base"),
        (COMMENTS, {"code": CodeProof(watched={}, foreign={}, files={"a.py": "0" * 64})}, "code of a.py differs"),
        (
            COMMENTS,
            {"environment": Environment(python="3.11.1", torch="2.12.0", platform="linux", packages="c" * 64)},
            "software environment differs",
        ),
        (COMMENTS.model_copy(update={"changed_files": None}), {}, "not known"),
        (COMMENTS.model_copy(update={"inert_files": INERT[:1]}), {}, "tests/test_moe.py differs"),
    ],
)
def test_any_relevant_difference_is_no_identity(header: SessionHeader, head: dict[str, object], words: str) -> None:
    section = identical(header, **head).throughput
    assert section is not None
    assert (section.status, section.by) == ("INCONCLUSIVE", "pairs")
    assert words in section.reasons[0]


@pytest.mark.parametrize(("header", "path"), [(HEADER, "src/moe.py"), (COMMENTS, "tests/test_moe.py")])
def test_equal_code_proofs_are_no_identity_of_a_changed_or_loaded_file(header: SessionHeader, path: str) -> None:
    """The changed files are read from git. The hashes in a record come from the guest and are not trusted."""
    loaded = CodeProof(watched={}, foreign={}, files={path: "0" * 64})
    runs = [run.model_copy(update={"code": loaded}) for run in statics("a")]
    (workload,) = judge(Session(header=header, runs=runs), Config()).workloads
    assert workload.throughput is not None
    assert workload.throughput.by == "pairs"


def test_an_entry_that_cannot_be_traced_is_not_timed_and_invalid() -> None:
    base, _ = statics()
    session = Session(header=HEADER, runs=[base, smoke_run(HEAD, None, "refused", reason="no")])
    (workload,) = judge(session, Config()).workloads
    assert (workload.throughput, workload.validity.status) == (None, "INVALID")


def skewed(run: Run) -> Run:
    """Return the run with equal time per step, but the ranks take turns ending a tenth of a step late."""
    assert run.timing is not None
    delays = [0.1 * s for s in run.timing.step_s]
    ranks = {}
    for rank in (0, 1):
        ends = [0.0] * (len(delays) + 1)
        for n in range(len(delays)):
            ends[n + 1] = sum(run.timing.step_s[: n + 1]) + (delays[n] if n % 2 == rank else 0.0)
        step_s = [after - before for before, after in pairwise(ends)]
        ranks[str(rank)] = run.timing.ranks["0"].model_copy(update={"step_s": step_s})
    slowest = [max(rank_times) for rank_times in zip(*(rank.step_s for rank in ranks.values()), strict=True)]
    return run.model_copy(update={"timing": run.timing.model_copy(update={"ranks": ranks, "step_s": slowest})})


def test_delays_that_alternate_between_ranks_are_not_counted_twice() -> None:
    """By the slowest rank of each step such a head looks ten percent slower, but its steps take no longer."""
    runs = [skewed(run) if run.arm == HEAD else run for run in play(noisy(1.0, 0.0005))]
    head = next(run for run in runs if run.arm == HEAD and run.position and run.position.block)
    assert head.timing is not None
    assert sum(head.timing.steady_s) > 1.08 * 0.1 * len(head.timing.steady_s)
    section = throughput(runs)
    by_mean = next(test for test in section.tests if test.summary == "mean")
    assert abs(by_mean.estimate_pct) < 2.5


@pytest.mark.parametrize(
    "change", [{"step_s": [0.05] * 8}, {"ranks": {}}, {"ranks": {"0": {"step_s": [0.1]}}}, {"step_s": [0.0] * 8}]
)
def test_a_record_whose_step_times_contradict_its_ranks_is_refused(change: dict[str, Any]) -> None:
    good = timing([0.1] * 8).model_dump()
    if change.get("ranks"):
        change = {"ranks": {"0": {**good["ranks"]["0"], **change["ranks"]["0"]}}}
    with pytest.raises(ValidationError):
        Timing.model_validate({**good, **change})
