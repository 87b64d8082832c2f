"""Retries of the same code: pairs are pooled across sessions, and failures are not."""

from pathlib import Path

import pytest

from regbot.check.conclusion import judge_sessions
from regbot.check.sessions.pooled_pairs import load_pooled_runs, pool_file, save_pool, session_digest
from regbot.check.sessions.schedule import next_slot
from regbot.judge import judge
from regbot.records.config import Config, Workload
from regbot.records.files import RecordError, append_line
from regbot.records.run import Run
from regbot.records.session import SessionHeader
from support.stored_cases import at, header, reference
from support.timed_builder import HEADER, PLAN, judged, noisy, play, session_of, statics, throughput_of, timed_run


def kept(tmp_path: Path, runs: list[Run]) -> list[Run]:
    """Return the pooled runs that a later check of the same code gets from a session of ``runs``."""
    file = pool_file(tmp_path, HEADER, PLAN, [], ("a node",))
    save_pool(file, HEADER, runs)
    return load_pooled_runs(file)


def test_pairs_are_pooled_and_judged_by_the_always_valid_interval(tmp_path: Path) -> None:
    before = kept(tmp_path, play(noisy(1.2, 0.01)))
    assert {run.joined for run in before} == {session_digest(HEADER)}
    runs = play(noisy(1.2, 0.01, seed=2), runs=before)
    assert [run.position.block for run in runs if run.joined is None and run.position][:3] == [0, 0, 3]
    section = throughput_of(runs)
    assert (section.decision, section.alpha) == ("regressed", 0.01 / 2)
    assert section.pairs > 4


def test_a_pool_whose_times_contradict_its_clocks_is_ignored(tmp_path: Path) -> None:
    good = play(noisy(1.2, 0.01))
    assert len(kept(tmp_path / "good", good)) == sum(bool(r.position and r.position.block) for r in good)
    last = good[-1]
    assert last.timing is not None
    lie = last.model_copy(update={"timing": last.timing.model_copy(update={"harness_s": 10.0})})
    assert kept(tmp_path / "bad", [*good[:-1], lie]) == []


def with_arm(name: str, **changes: object) -> SessionHeader:
    arm = HEADER.base if name == "base" else BEHAVES
    return HEADER.model_copy(update={"head": BEHAVES, name: arm.model_copy(update=changes)})


BEHAVES = HEADER.head.model_copy(update={"behaviour": "b" * 64})
MOVED = {"commit": "9" * 40, "tree": "8" * 40}
SMALL, BIG = (Workload(adapter="command", command=["train", size, "{steps}"]) for size in ("small", "big"))


@pytest.mark.parametrize(
    ("session_header", "workload", "is_same"),
    [
        (with_arm("head", **MOVED), SMALL, True),  # only comments changed
        (with_arm("base", **MOVED), SMALL, True),  # the branch was updated
        (with_arm("head", behaviour="c" * 64), SMALL, False),
        (with_arm("head"), BIG, False),
        (with_arm("head").model_copy(update={"throughput": header(gate="stored").throughput}), SMALL, False),
    ],
)
def test_only_the_same_change_of_the_same_workload_has_the_same_pool(
    tmp_path: Path, session_header: SessionHeader, workload: Workload, is_same: bool
) -> None:
    first = pool_file(tmp_path, with_arm("head"), PLAN, [], ("a node",), SMALL)
    assert (pool_file(tmp_path, session_header, PLAN, [], ("a node",), workload) == first) == is_same


def test_another_version_of_the_model_has_another_pool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = pool_file(tmp_path, HEADER, PLAN, statics(), ("a node",))
    monkeypatch.setattr("regbot.check.sessions.pooled_pairs.model_hash", lambda _: "1" * 64)
    assert pool_file(tmp_path, HEADER, PLAN, statics(), ("a node",)) != before


@pytest.mark.parametrize(("behaviour", "status"), [("b" * 64, "PASS"), ("c" * 64, "INVALID")])
def test_runs_of_another_tree_count_only_if_it_behaves_the_same(tmp_path: Path, behaviour: str, status: str) -> None:
    planned = HEADER.head.model_copy(update={"behaviour": "b" * 64})
    earlier = HEADER.head.model_copy(update={"behaviour": behaviour, "commit": "9" * 40, "tree": "8" * 40})

    def with_arm(run: Run) -> Run:
        earlier_base = HEADER.base.model_copy(update={"commit": "5" * 40, "tree": "5" * 40})
        arms = (earlier_base, earlier) if run.joined is not None else (HEADER.base, planned)
        return run.model_copy(update={"arm": arms[run.arm.name == "head"]})

    runs = play(noisy(1.2, 0.01, seed=2), runs=kept(tmp_path, play(noisy(1.2, 0.01))))
    session = session_of(runs, HEADER.model_copy(update={"head": planned}))
    session = session.model_copy(update={"runs": [with_arm(run) for run in [*statics(), *runs]]})
    assert judge(session, Config()).workloads[0].validity.status == status


def test_failures_are_not_saved_in_the_pool(tmp_path: Path) -> None:
    broken = play(lambda slot: timed_run(slot, 0.1, "crashed" if slot.position.block == 3 else "ok"))
    before = kept(tmp_path, broken)
    assert all(run.outcome == "ok" for run in before)
    assert {run.position.block for run in before if run.position} == {1, 2}
    assert judged(play(noisy(1.0, 0.003), runs=before)).validity.status == "PASS"


def test_head_alone_is_saved_and_cannot_be_retried_until_it_passes(tmp_path: Path) -> None:
    session_header = header(reference(), gate="stored")
    first = play(at(0.106), session_header)
    file = pool_file(tmp_path, session_header, session_header.timed[0], [], ("a node",))
    save_pool(file, session_header, first)
    again = load_pooled_runs(file)
    assert len(again) == 4
    assert next_slot(again, session_header, session_header.timed[0]) is None, (
        "stored sessions have answered for these trees"
    )
    assert throughput_of(again, session_header) == throughput_of(first, session_header)
    save_pool(file, session_header, first[:3])
    assert len(load_pooled_runs(file)) == 4, "runs that were not made to their end replace nothing"


def test_two_sessions_are_judged_together_and_one_given_twice_is_refused(tmp_path: Path) -> None:
    files = [tmp_path / "1.jsonl", tmp_path / "2.jsonl"]
    for seed, file in enumerate(files):
        for line in (HEADER.model_copy(update={"seed": seed}), *statics(), *play(noisy(1.5, 0.01, seed))[:10]):
            append_line(file, line)
    pooled = judge_sessions(files, None, [], None).verdict.workloads[0].throughput
    assert pooled is not None
    assert (pooled.pairs, pooled.decision, pooled.alpha) == (8, "regressed", 0.01 / 2)
    assert "4 earlier ones are judged together" in pooled.reasons[0]
    with pytest.raises(RecordError, match="already given"):
        judge_sessions([files[0], files[0]], None, [], None)
