"""Trying again on the same trees: what was found stands until all pairs together say otherwise, and failures do not."""

from pathlib import Path

import pytest

from regbot.conclusion import judge_sessions
from regbot.config import Config
from regbot.earlier import earlier_runs, identity, keep, kept_file
from regbot.judge import judge
from regbot.records.files import RecordError, append_line
from regbot.records.run import Run
from regbot.records.verdict import Throughput, Verdict
from regbot.session import next_slot
from test_screen_session import at, header, reference
from timed_builder import HEADER, PLAN, noisy, play, session_of, statics, timed_run


def kept(tmp_path: Path, runs: list[Run]) -> list[Run]:
    """What a later check on the same trees takes over from a session of ``runs``."""
    file = kept_file(tmp_path, HEADER, PLAN, [], ("a node",))
    keep(file, HEADER, runs)
    return earlier_runs(file)


def judged(runs: list[Run]) -> Verdict:
    return judge(session_of(runs), Config())


def throughput(runs: list[Run]) -> Throughput:
    section = judged(runs).workloads[0].throughput
    assert section is not None
    return section


def test_pairs_are_added_and_all_are_judged_by_the_interval_that_always_holds(tmp_path: Path) -> None:
    before = kept(tmp_path, play(noisy(1.2, 0.01)))
    assert {run.joined for run in before} == {identity(HEADER)}
    runs = play(noisy(1.2, 0.01, seed=2), runs=before)
    assert [run.position.block for run in runs if run.joined is None and run.position][:3] == [0, 0, 3]
    section = throughput(runs)
    assert (section.decision, section.alpha) == ("regressed", 0.01 / 2)
    assert section.pairs > 4


def test_times_that_contradict_the_clocks_beside_them_are_no_earlier_session(tmp_path: Path) -> None:
    good = play(noisy(1.2, 0.01))
    assert len(kept(tmp_path / "good", good)) == sum(bool(r.position and r.position.block) for r in good)
    last = good[-1]
    assert last.timing is not None
    lie = last.model_copy(update={"timing": last.timing.model_copy(update={"harness_s": 10.0})})
    assert kept(tmp_path / "bad", [*good[:-1], lie]) == []


def test_another_message_over_the_same_tree_is_the_same_code(tmp_path: Path) -> None:
    amended = HEADER.head.model_copy(update={"commit": "9" * 40})
    runs = play(noisy(1.2, 0.01, seed=2), runs=kept(tmp_path, play(noisy(1.2, 0.01))))
    runs = [r.model_copy(update={"arm": amended}) if r.arm.name == "head" and r.joined is None else r for r in runs]
    of = HEADER.model_copy(update={"head": amended})
    session = session_of(runs, of)
    statics_of = [r.model_copy(update={"arm": amended}) if r.arm.name == "head" else r for r in statics()]
    session = session.model_copy(update={"runs": [*statics_of, *runs]})
    assert judge(session, Config()).workloads[0].validity.status == "PASS"


def test_a_failure_is_of_its_day_and_not_kept_with_the_trees(tmp_path: Path) -> None:
    broken = play(lambda slot: timed_run(slot, 0.1, "crashed" if slot.position.block == 3 else "ok"))
    before = kept(tmp_path, broken)
    assert all(run.outcome == "ok" for run in before)
    assert {run.position.block for run in before if run.position} == {1, 2}
    assert judged(play(noisy(1.0, 0.003), runs=before)).workloads[0].validity.status == "PASS"


def test_an_answer_is_not_undone_by_trying_again_without_new_pairs(tmp_path: Path) -> None:
    before = kept(tmp_path, play(noisy(1.1, 0.01)))
    assert throughput(before).decision == "regressed"
    warm = [timed_run(slot, 0.1) for _ in (1, 2) if (slot := next_slot(before, HEADER, PLAN)) is not None]
    assert throughput([*before, *warm[:1]]).decision == "regressed"
    one_block = play(noisy(1.0, 0.01, seed=5), runs=before, at_most=100)[: len(before) + 6]
    assert throughput(one_block).decision == "regressed", "six pairs are too few for the interval that always holds"


def test_many_good_pairs_undo_an_answer_of_few(tmp_path: Path) -> None:
    before = kept(tmp_path, play(noisy(1.03, 0.002))[:10])
    runs = before
    for again in range(4):
        runs = play(noisy(1.0, 0.002, seed=10 + again), runs=kept(tmp_path, runs), at_most=400)
    assert throughput(runs).pairs > 20
    assert throughput(runs).decision != "regressed"


def test_a_screen_is_kept_too_and_cannot_be_tried_until_it_passes(tmp_path: Path) -> None:
    of = header(reference(), gate="stored")
    first = play(at(0.106), of)
    file = kept_file(tmp_path, of, of.timed[0], [], ("a node",))
    keep(file, of, first)
    again = earlier_runs(file)
    assert len(again) == 4
    assert next_slot(again, of, of.timed[0]) is None, "stored sessions have answered for these trees"
    assert (
        judge(session_of(again, of), Config()).workloads[0].throughput
        == judge(session_of(first, of), Config()).workloads[0].throughput
    )
    keep(file, of, first[:3])
    assert len(earlier_runs(file)) == 4, "a screen that was not made to its end replaces nothing"


@pytest.mark.parametrize("outcome", ["crashed", "short"])
def test_a_head_that_breaks_before_stored_sessions_is_invalid_and_not_undecided(outcome: str) -> None:
    of = header(reference(), gate="stored")
    runs = play(lambda slot: timed_run(slot, 0.1, outcome), of)  # type: ignore[arg-type]
    entry = judge(session_of(runs, of), Config()).workloads[0]
    assert entry.validity.status == "INVALID"
    assert entry.throughput is not None
    assert entry.throughput.status == "INVALID"


def test_two_sessions_that_passed_the_screen_are_judged_and_one_given_twice_is_refused(tmp_path: Path) -> None:
    files = []
    for number in (1, 2):
        of = header(reference(), seed=number)
        files.append(tmp_path / f"{number}.jsonl")
        for line in (of, *statics(), *play(at(0.1 + number / 1e5), of)):
            append_line(files[-1], line)
    section = judge_sessions(files, None, [], None).verdict.workloads[0].throughput
    assert section is not None
    assert section.decision == "within_bound"
    with pytest.raises(RecordError, match="give each session once"):
        judge_sessions([files[0], files[0]], None, [], None)
