"""The throughput section of a verdict, from records of timed runs: what decides, what only shows, what invalidates."""

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from ledger_builder import backend, smoke_run
from regbot.conclusion import judge_sessions
from regbot.config import Config
from regbot.judge import judge
from regbot.judge.throughput import STATUS
from regbot.records.files import RecordError, append_line
from regbot.records.run import CodeProof, Environment, Outcome, Run, Timing
from regbot.records.session import SessionHeader
from regbot.records.verdict import Throughput, Verdict, WorkloadVerdict
from regbot.session import Slot
from timed_builder import BASE, HEAD, HEADER, PLAN, Session, noisy, play, session_of, slot, statics, timed_run, timing


def verdict(runs: Sequence[Run], header: SessionHeader = HEADER) -> Verdict:
    return judge(session_of(runs, header), Config())


def entry(runs: Sequence[Run], header: SessionHeader = HEADER) -> WorkloadVerdict:
    (found,) = verdict(runs, header).workloads
    return found


def throughput(runs: Sequence[Run], header: SessionHeader = HEADER) -> Throughput:
    section = entry(runs, header).throughput
    assert section is not None
    return section


def changed(runs: Sequence[Run], arm: str, **changes: object) -> list[Run]:
    return [run.model_copy(update=changes) if run.arm.name == arm else run for run in runs]


def test_a_head_half_as_slow_again_is_a_regression_with_estimate_interval_and_pairs() -> None:
    section = throughput(play(noisy(1.5, 0.01)))
    assert (section.status, section.decision, section.by, section.pairs) == ("FAIL", "regressed", "pairs", 4)
    assert section.low_pct is not None
    assert section.estimate_pct is not None
    assert section.high_pct is not None
    assert 40 < section.low_pct < section.estimate_pct < section.high_pct < 60
    assert section.bound_pct is None
    assert verdict(play(noisy(1.5, 0.01))).verdict == "FAIL"


def test_swapping_the_arms_turns_a_regression_into_an_improvement() -> None:
    slower, faster = throughput(play(noisy(1.25, 0.005, 3))), throughput(play(noisy(0.8, 0.005, 3)))
    assert (slower.decision, faster.decision) == ("regressed", "improved")
    assert faster.status == "PASS"
    assert faster.estimate_pct == pytest.approx(-20, abs=1)


def test_no_change_is_proven_with_the_bound_that_the_pass_excludes() -> None:
    section = throughput(play(noisy(1.0, 0.001)))
    assert (section.status, section.decision) == ("PASS", "no_change")
    assert section.bound_pct is not None
    assert 0 < section.bound_pct < 2
    assert section.bound_pct == max(test.high_pct for test in section.tests)


def test_noise_that_hides_everything_is_inconclusive_and_says_what_it_would_take() -> None:
    section = throughput(play(noisy(1.0, 0.08)))
    assert (section.status, section.decision, section.pairs) == ("INCONCLUSIVE", "undecided", 12)
    assert section.mde_full_pct is not None
    assert section.mde_full_pct > 5
    assert "2% would take" in section.reasons[-1]
    assert verdict(play(noisy(1.0, 0.08))).verdict == "INCONCLUSIVE"


def test_stalls_that_the_median_does_not_see_fail_by_the_mean() -> None:
    def launch(at: Slot) -> Run:
        base = noisy(1.0, 0.0005, at.position.block * 4 + at.position.slot)(at)
        assert base.timing is not None
        steps = [s * (1.2 if at.arm == "head" and n % 5 == 0 else 1.0) for n, s in enumerate(base.timing.step_s)]
        return timed_run(at, steps)

    section = throughput(play(launch))
    by_name = {test.summary: test.decision for test in section.tests}
    assert by_name == {"median": "no_change", "mean": "regressed"}
    assert section.status == "FAIL"


def test_the_error_of_one_test_is_shared_by_all_timed_workloads() -> None:
    runs = play(noisy(1.5, 0.01))
    one = throughput(runs)
    header = HEADER.model_copy(
        update={
            "timed": [PLAN, PLAN.model_copy(update={"entry": "a@1/ep"}), PLAN.model_copy(update={"entry": "b@1/ep"})]
        }
    )
    three = throughput(runs, header)
    assert one.alpha is not None
    assert three.alpha is not None
    assert one.alpha == pytest.approx(0.0204 / 2)
    assert three.alpha == pytest.approx(0.0204 / 6)
    assert three.low_pct is not None
    assert one.low_pct is not None
    assert three.low_pct < one.low_pct


def test_the_thresholds_are_those_of_the_check() -> None:
    loose = HEADER.model_copy(
        update={"throughput": HEADER.throughput.model_copy(update={"threshold_pct": 80.0, "indifference_pct": 70.0})}
    )
    assert throughput(play(noisy(1.5, 0.01)), loose).decision == "no_change"


def test_fewer_than_four_pairs_decide_nothing_whatever_they_show() -> None:
    section = throughput(play(noisy(3.0, 0.001))[:8])
    assert (section.status, section.decision, section.pairs) == ("INCONCLUSIVE", "undecided", 3)
    assert section.estimate_pct == pytest.approx(200, rel=0.05)
    assert section.low_pct is None


def test_pairs_after_the_look_that_decided_are_unused() -> None:
    runs = play(noisy(1.5, 0.01))
    more = [
        timed_run(slot(3, place, arm), 0.05) for place, arm in enumerate(("base", "head", "head", "base"))
    ]  # these would say something else
    section = throughput([*runs, *more])
    assert (section.decision, section.pairs, section.unused_pairs) == ("regressed", 4, 2)


def test_warm_launches_count_for_nothing() -> None:
    runs = play(noisy(1.0, 0.001))
    slow = [run.model_copy(update={"timing": timing([9.0] * 3)}) if n == 1 else run for n, run in enumerate(runs)]
    assert throughput(slow).model_dump(exclude={"cost"}) == throughput(runs).model_dump(exclude={"cost"})


def test_steps_before_the_cut_count_for_nothing() -> None:
    def launch(at: Slot) -> Run:
        steady = noisy(1.0, 0.0005, at.position.block * 4 + at.position.slot)(at)
        assert steady.timing is not None
        first = 5.0 if at.arm == "head" else 1.0
        return timed_run(at, [first, first, *steady.timing.step_s[2:]])

    assert throughput(play(launch)).decision == "no_change"


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


@pytest.mark.parametrize("outcome", ["crashed", "hung", "no_record", "short", "diverged"])
def test_a_head_that_breaks_again_on_the_repeat_fails(outcome: Outcome) -> None:
    place = head_slots(2)[0]
    found = entry(play(fails({(2, 1, place), (2, 2, place)}, outcome)))
    assert (found.validity.status, found.throughput and found.throughput.status) == ("FAIL", "INVALID")
    assert "in each of 2 attempts; base ran" in found.validity.reasons[0]


def test_a_lie_is_invalid_and_no_fault_of_the_head() -> None:
    place = head_slots(2)[0]
    found = entry(play(fails({(2, 1, place), (2, 2, place)}, "bad_record")))
    assert found.validity.status == "INVALID"


def test_both_arms_that_break_are_invalid() -> None:
    head = head_slots(0)[0]
    found = entry(play(fails({(0, 1, head), (0, 2, 1 - head)})))
    assert found.validity.status == "INVALID"


def test_a_failure_that_the_repeat_makes_good_is_a_warning() -> None:
    runs = play(fails({(1, 1, 2)}))
    found = verdict(runs)
    assert found.verdict == "FAIL"
    section = found.workloads[0].throughput
    assert section is not None
    assert (section.decision, section.void_pairs) == ("regressed", 2)
    assert any("ended its block" in warning for warning in found.warnings)


def test_a_failure_that_was_not_repeated_yet_is_invalid() -> None:
    runs = play(fails({(2, 1, head_slots(2)[0])}))
    cut = next(n for n, run in enumerate(runs) if run.outcome != "ok") + 1
    found = entry(runs[:cut])
    assert found.validity.status == "INVALID"
    assert "--resume" in found.validity.reasons[0]


def test_code_from_outside_of_the_worktree_in_one_run_invalidates() -> None:
    runs = play(noisy(1.5, 0.01))
    runs[4] = runs[4].model_copy(update={"code": CodeProof(watched={}, foreign={"moe": "/usr/lib/moe"}, files={})})
    assert "outside its worktree" in entry(runs).validity.reasons[0]


def test_runs_of_two_nodes_are_no_pairs() -> None:
    runs = play(noisy(1.5, 0.01))
    assert runs[0].node is not None
    moved = runs[0].node.model_copy(update={"name": "node-4"})
    found = entry(changed(runs, "head", node=moved))
    assert found.validity.status == "INVALID"
    assert "node differs" in found.validity.reasons[0]


def test_a_dispatcher_that_neither_arm_ran_leaves_times_that_decide_nothing() -> None:
    fallen = {"dispatcher": backend("alltoall", requested="deepep")}
    found = entry([run.model_copy(update={"backends": fallen}) for run in play(noisy(1.5, 0.01))])
    section = found.throughput
    assert section is not None
    assert (section.status, section.decision, section.fallback) == ("INVALID", None, True)
    assert section.head_step_s == pytest.approx(0.15, rel=0.05)
    assert found.validity.status == "INVALID"


def test_a_dispatcher_that_only_the_head_did_not_run_is_a_finding_of_sharding() -> None:
    runs = play(noisy(1.5, 0.01))
    asked = {"dispatcher": backend("deepep", requested="deepep")}
    fallen = {"dispatcher": backend("alltoall", requested="deepep")}
    found = entry(changed(changed(runs, "base", backends=asked), "head", backends=fallen))
    assert found.sharding is not None
    assert [(f.pattern, f.status) for f in found.sharding.findings] == [("dispatcher silently off", "FAIL")]


def with_loss(runs: Sequence[Run], arm: str, add: float) -> list[Run]:
    return [
        run.model_copy(update={"loss": [v + add * n if v is not None else v for n, v in enumerate(run.loss)]})
        if run.arm.name == arm
        else run
        for run in runs
    ]


def test_a_loss_that_leaves_what_the_base_shows_is_for_a_person_to_judge() -> None:
    runs = play(noisy(1.0, 0.001))
    found = entry(with_loss(runs, "head", 0.05))
    assert (found.validity.status, found.throughput and found.throughput.status) == ("REVIEW", "PASS")
    assert "does not train the same" in found.validity.reasons[0]
    assert "step 8" in found.validity.reasons[0]
    assert entry(with_loss(runs, "head", 1e-5)).validity.status == "PASS"


def test_a_loss_that_scatters_as_much_in_the_base_is_no_difference() -> None:
    runs = play(noisy(1.0, 0.001))
    bases = [n for n, run in enumerate(runs) if run.arm == BASE and run.position and run.position.block]
    scattered = with_loss(runs, "head", 0.02)
    for n in bases[::2]:
        scattered[n] = with_loss([runs[n]], "base", 0.04)[0]
    assert entry(scattered).validity.status == "PASS"


def test_dropped_tokens_in_the_head_alone_are_for_a_person_to_judge() -> None:
    runs = play(noisy(1.0, 0.001))

    def dropping(run: Run, dropped: int) -> Run:
        assert run.timing is not None
        update = {"dropped_tokens": dropped, "tokens_per_expert": [1000 - dropped, 1048]}
        return run.model_copy(update={"timing": run.timing.model_copy(update=update)})

    head_only = [dropping(run, 128 if run.arm == HEAD else 0) for run in runs]
    assert "drops 128 of 2048" in entry(head_only).validity.reasons[0]
    assert entry([dropping(run, 128) for run in runs]).validity.status == "PASS"


@pytest.mark.parametrize(
    ("wait", "words"),
    [(0.25, "compute or host: 75%"), (0.9, "communication: 90%"), (0.5, "not one wall: 50%")],
)
def test_a_slowdown_names_the_wall_it_hit(wait: float, words: str) -> None:
    def launch(at: Slot) -> Run:
        steps = [0.15 if at.arm == "head" else 0.1] * at.steps
        return timed_run(at, steps, timing=timing(steps, wait))

    assert throughput(play(launch)).wall.startswith(words)


def test_a_slowdown_that_costs_memory_says_so() -> None:
    def launch(at: Slot) -> Run:
        steps = [0.15 if at.arm == "head" else 0.1] * at.steps
        return timed_run(at, steps, timing=timing(steps, peak_bytes=2**30 if at.arm == "head" else 2**29))

    assert "peak memory rose from 512 MiB to 1 GiB" in throughput(play(launch)).wall


def identical(header: SessionHeader = HEADER, **head: object) -> WorkloadVerdict:
    base, other = statics("a")
    session = Session(header=header, runs=[base, other.model_copy(update=head)])
    (found,) = judge(session, Config()).workloads
    return found


COMMENTS = HEADER.model_copy(update={"changed_files": ["docs/guide.md", "tests/test_moe.py"]})


def test_identity_needs_no_pairs() -> None:
    section = identical(COMMENTS).throughput
    assert section is not None
    assert (section.status, section.decision, section.by, section.pairs) == ("PASS", "no_change", "identity", 0)
    assert section.bound_pct == 0


@pytest.mark.parametrize(
    ("header", "head", "words"),
    [
        (HEADER, {}, "src/moe.py differs"),
        (COMMENTS, {"ledger": smoke_run(HEAD, statics("b")[1].ledger).ledger}, "device program differs"),
        (COMMENTS, {"code": CodeProof(watched={}, foreign={}, files={"a.py": "0" * 64})}, "code of a.py differs"),
        (
            COMMENTS,
            {"environment": Environment(python="3.11.1", torch="2.12.0", platform="linux", packages="c" * 64)},
            "software environment differs",
        ),
        (COMMENTS.model_copy(update={"changed_files": None}), {}, "not known"),
    ],
)
def test_whatever_could_matter_is_no_identity(header: SessionHeader, head: dict[str, object], words: str) -> None:
    section = identical(header, **head).throughput
    assert section is not None
    assert (section.status, section.by) == ("INCONCLUSIVE", "pairs")
    assert words in section.reasons[0]


def test_a_changed_file_is_no_identity_whatever_the_arms_say_of_their_code() -> None:
    """Which files differ is read from git; the hashes in a record are the guest's own words."""
    proof = CodeProof(watched={}, foreign={}, files={"src/moe.py": "0" * 64})
    runs = [run.model_copy(update={"code": proof}) for run in statics("a")]
    (found,) = judge(Session(header=HEADER, runs=runs), Config()).workloads
    assert found.throughput is not None
    assert found.throughput.by == "pairs"


def test_an_entry_that_was_not_to_be_timed_has_no_throughput() -> None:
    assert identical(HEADER.model_copy(update={"timed": []})).throughput is None


def test_what_cannot_be_traced_is_not_timed_and_not_green() -> None:
    base, _ = statics()
    session = Session(header=HEADER, runs=[base, smoke_run(HEAD, None, "refused", reason="no")])
    (found,) = judge(session, Config()).workloads
    assert (found.throughput, found.validity.status) == (None, "INVALID")


def test_every_decision_has_a_status() -> None:
    assert set(STATUS.values()) == {"FAIL", "PASS", "INCONCLUSIVE"}


def test_two_sessions_that_timed_one_workload_are_judged_together_by_an_interval_that_always_holds(
    tmp_path: Path,
) -> None:
    files = write_sessions(tmp_path, [play(noisy(1.5, 0.01, seed))[:10] for seed in (1, 2)])
    alone, both = (judge_sessions(given, None, [], None).verdict for given in (files[:1], files))
    first, pooled = (verdict.workloads[0].throughput for verdict in (alone, both))
    assert first is not None
    assert pooled is not None
    assert (first.pairs, pooled.pairs, pooled.decision) == (4, 8, "regressed")
    assert pooled.alpha == 0.01 / 2
    assert "4 earlier pairs count too" in pooled.reasons[0]


def test_a_session_given_twice_is_refused_whatever_its_file_is_called(tmp_path: Path) -> None:
    runs = play(noisy(1.5, 0.01, 1))[:6]
    files = write_sessions(tmp_path, [runs, runs])
    with pytest.raises(RecordError, match="give each session once"):
        judge_sessions(files, None, [], None)


def write_sessions(folder: Path, sessions: list[list[Run]]) -> list[Path]:
    files = []
    for number, runs in enumerate(sessions):
        files.append(folder / f"{number}.jsonl")
        for line in (HEADER.model_copy(update={"seed": number}), *statics(), *runs):
            append_line(files[-1], line)
    return files


def skewed(run: Run) -> Run:
    """The same time per step, in which the ranks take turns in ending late by a tenth of a step."""
    assert run.timing is not None
    late = [0.1 * s for s in run.timing.step_s]
    ranks = {}
    for rank in (0, 1):
        ends = [0.0] * (len(late) + 1)
        for n in range(len(late)):
            ends[n + 1] = sum(run.timing.step_s[: n + 1]) + (late[n] if n % 2 == rank else 0.0)
        step_s = [after - before for before, after in pairwise(ends)]
        ranks[str(rank)] = run.timing.ranks["0"].model_copy(update={"step_s": step_s})
    slowest = [max(each) for each in zip(*(rank.step_s for rank in ranks.values()), strict=True)]
    return run.model_copy(update={"timing": run.timing.model_copy(update={"ranks": ranks, "step_s": slowest})})


def test_a_delay_that_ranks_pass_to_each_other_is_not_counted_twice() -> None:
    """The slowest rank of every step would make such a head ten percent slower, and its steps take no longer."""
    runs = [skewed(run) if run.arm == HEAD else run for run in play(noisy(1.0, 0.0005))]
    head = next(run for run in runs if run.arm == HEAD and run.position and run.position.block)
    assert head.timing is not None
    assert sum(head.timing.steady_s) > 1.08 * 0.1 * len(head.timing.steady_s)
    section = throughput(runs)
    by_mean = next(test for test in section.tests if test.summary == "mean")
    assert abs(by_mean.estimate_pct) < 2.5


def test_a_dispatcher_that_fell_back_in_some_runs_only_is_no_dispatcher_to_compare() -> None:
    runs = play(noisy(1.0, 0.001))
    asked = {"dispatcher": backend("deepep", requested="deepep")}
    fallen = {"dispatcher": backend("alltoall", requested="deepep")}
    runs = [run.model_copy(update={"backends": asked}) for run in runs]
    runs[3] = runs[3].model_copy(update={"backends": fallen})
    found = entry(runs)
    assert found.validity.status == "INVALID"
    assert "different dispatchers in different runs: alltoall, deepep" in found.validity.reasons[0]


def test_a_dispatcher_that_was_asked_for_and_not_seen_is_not_taken_to_have_run() -> None:
    runs = [run.model_copy(update={"backends": {}}) for run in play(noisy(1.0, 0.001))]
    asks = HEADER.model_copy(update={"timed": [PLAN.model_copy(update={"dispatcher": "deepep"})]})
    assert "a run does not show which one it executed" in entry(runs, asks).validity.reasons[0]
    assert entry(runs).validity.status == "PASS"


def test_base_without_evidence_and_head_that_fell_back_is_told_and_no_crash() -> None:
    runs = changed(play(noisy(1.0, 0.001)), "base", backends={})
    runs = changed(runs, "head", backends={"dispatcher": backend("alltoall", requested="deepep")})
    section = throughput(runs)
    assert section.fallback
    assert section.reasons[0].startswith("times of alltoall where deepep was asked for")


def test_software_that_changes_during_a_session_makes_it_none() -> None:
    runs = play(noisy(1.0, 0.001))
    newer = Environment(python="3.11.1", torch="2.14.0", platform="linux", packages="d" * 64)
    assert "software changed" in entry([*runs[:5], *changed(runs[5:], "head", environment=newer)]).validity.reasons[0]
    one_each = entry(changed(runs, "head", environment=newer))
    assert one_each.validity.status == "PASS", "a pull request may bring another torch"


def test_code_that_changes_during_a_session_makes_it_none() -> None:
    runs = play(noisy(1.0, 0.001))
    proofs = [CodeProof(watched={}, foreign={}, files={"src/moe.py": digit * 64}) for digit in "ab"]
    runs = changed(runs, "head", code=proofs[0])
    runs[-1] = runs[-1].model_copy(update={"code": proofs[1] if runs[-1].arm == HEAD else runs[-1].code})
    runs[-2] = runs[-2].model_copy(update={"code": proofs[1] if runs[-2].arm == HEAD else runs[-2].code})
    assert "src/moe.py was not the same code in all runs" in entry(runs).validity.reasons[0]


def test_runs_that_are_not_what_was_planned_decide_nothing() -> None:
    runs = play(noisy(1.0, 0.001))
    longer = HEADER.model_copy(update={"timed": [PLAN.model_copy(update={"steps": 50, "cut": 10, "world_size": 8})]})
    found = entry(runs, longer)
    assert found.validity.status == "INVALID"
    assert "50, 10 and 8 were planned" in found.validity.reasons[0]


@pytest.mark.parametrize(
    "change",
    [
        {"step_s": [0.05] * 8},
        {"ranks": {}},
        {"ranks": {"0": {"step_s": [0.1]}}},
        {"step_s": [0.0] * 8},
    ],
)
def test_a_record_whose_step_times_are_not_its_ranks_cannot_be_read(change: dict[str, Any]) -> None:
    good = timing([0.1] * 8).model_dump()
    if change.get("ranks"):
        change = {"ranks": {"0": {**good["ranks"]["0"], **change["ranks"]["0"]}}}
    with pytest.raises(ValidationError):
        Timing.model_validate({**good, **change})


def test_a_head_that_keeps_its_losses_or_its_tokens_to_itself_is_for_a_person_to_judge() -> None:
    runs = play(noisy(1.0, 0.001))
    assert "does not tell the loss" in entry(changed(runs, "head", loss=[])).validity.reasons[0]
    known = [
        run.model_copy(update={"timing": run.timing.model_copy(update={"dropped_tokens": 0})})
        if run.arm == BASE and run.timing
        else run
        for run in runs
    ]
    assert "does not show how many tokens" in entry(known).validity.reasons[0]
