"""Refresh: what is absorbed, what is held back and why, and what is left of it when it is ended in the middle."""

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from regbot.baselines import Store, verify
from regbot.check.refresh import refresh_page
from regbot.check.refresh.text import proposal_text
from regbot.records.baseline import Baseline
from regbot.records.config import ConfigError
from regbot.records.run import Run
from regbot.records.session import Session
from support.baseline_cases import NOW
from support.git_repos import Repository
from support.program_builder import program_of, step_rows, with_program
from support.refresh_cases import night_session, nights, refreshed
from support.timed_builder import statics

LATER = NOW + timedelta(days=365)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "baselines"


def stored(root: Path) -> list[Baseline]:
    store = Store(root)
    assert verify(store, LATER).problems == []
    result = [store.session(path) for group in store.class_folders() for path in store.sessions(group)]
    return sorted((each for each in result if each.tier == "timed"), key=lambda each: (each.measured, each.series))


def anchor_of(root: Path) -> Any:
    store = Store(root)
    first = stored(root)[0]
    return store.anchor(first.workload, first.variant, first.node_class)


def test_the_first_night_proposes_the_first_anchor_and_its_commit_is_stored_once(root: Path, tmp_path: Path) -> None:
    result = refreshed(root, tmp_path)
    assert (result.status, result.workloads[0].series, result.workloads[0].anchor) == ("PASS", "rolling", None)
    assert [each.series for each in stored(root)] == ["rolling"]
    assert anchor_of(root).commit == result.commit


def test_a_quiet_night_stores_main_and_the_anchor_that_was_run_beside_it(root: Path, tmp_path: Path) -> None:
    _, second = nights(root, tmp_path, [0, 0])
    assert second.status == "PASS"
    assert [each.series for each in stored(root)] == ["rolling", "anchor", "rolling"]
    main = stored(root)[-1]
    assert main.against is not None
    assert (main.against.commit, len(main.against.log_ratios["median"])) == (anchor_of(root).commit, 4)


@pytest.mark.parametrize("accept", [{}, {"accept_pct": 10.0, "why": "the new router"}])
def test_a_night_of_too_few_pairs_is_held_back_whatever_they_show(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, accept: dict[str, Any]
) -> None:
    refreshed(root, tmp_path)
    first = anchor_of(root).commit

    def ended_early(*given: Any, **more: Any) -> Session:
        made = night_session(*given, **more)
        return Session(header=made.header, runs=made.runs[:-2])

    monkeypatch.setattr("support.refresh_cases.night_session", ended_early)
    (night,) = refreshed(root, tmp_path, 1, **accept).workloads
    assert (night.pairs, night.tonight, night.status, night.series) == (3, None, "INCONCLUSIVE", "held")
    assert "3 valid pairs are too few; a decision needs at least 4" in night.reasons
    assert [each.series for each in stored(root)] == ["rolling", "anchor", "held"]
    assert anchor_of(root).commit == first


def test_a_night_whose_program_is_worse_than_the_anchors_is_held_back(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refreshed(root, tmp_path)
    rows = step_rows()
    programs = program_of(rows), program_of([row.model_copy(update={"flops": 8 * row.flops}) for row in rows])

    def with_programs(head_program: str) -> list[Run]:
        traces = zip(statics(head_program), programs, strict=True)
        return [run.model_copy(update={"ledger": with_program(program, run.ledger)}) for run, program in traces]

    monkeypatch.setattr("support.refresh_cases.statics", with_programs)
    (night,) = refreshed(root, tmp_path, 1).workloads
    assert (night.status, night.series) == ("FAIL", "held")
    assert night.reasons[0].startswith("the Program is worse than at the anchor: ")


@pytest.mark.parametrize(
    ("slower", "noise", "status", "decision"),
    [(0.03, 0.002, "FAIL", "regressed"), (0.06, 0.05, "INCONCLUSIVE", "undecided")],
)
def test_a_slow_night_is_held_back_and_a_proven_one_says_how_to_accept_it(
    root: Path, tmp_path: Path, slower: float, noise: float, status: str, decision: str
) -> None:
    *_, last = nights(root, tmp_path, [0, 0, slower], night={"noise": noise})
    (night,) = last.workloads
    assert (last.status, night.series, night.decision) == (status, "held", decision)
    assert [each.series for each in stored(root)].count("held") == 1
    assert ("--accept 3.0" in proposal_text(last)) == (status == "FAIL")
    assert "held back" in refresh_page(last)


def test_an_accepted_slowdown_moves_the_anchor_with_evidence_and_a_name(root: Path, tmp_path: Path) -> None:
    first, _ = nights(root, tmp_path, [0, 0])
    little = refreshed(root, tmp_path, 2, slower=0.03, accept_pct=1.0, why="the new router")
    assert (little.status, anchor_of(root).commit) == ("FAIL", first.commit)
    assert "1% was accepted, but the slowdown is 3" in " ".join(little.workloads[0].reasons)
    enough = refreshed(root, tmp_path, 3, slower=0.03, accept_pct=4.0, why="the new router")
    anchor = anchor_of(root)
    assert (enough.status, anchor.commit, anchor.previous) == ("PASS", enough.commit, first.commit)
    assert (anchor.accepted.who, anchor.accepted.slowdown_pct, anchor.accepted.why) == ("ada", 4.0, "the new router")
    assert 1 < anchor.evidence.low_pct < anchor.evidence.estimate_pct < anchor.evidence.high_pct < 6


def test_creep_that_no_night_proves_is_an_alarm_before_it_is_one_and_a_half_percent(root: Path, tmp_path: Path) -> None:
    creep = [0.005 * (night // 10) for night in range(60)]
    alarmed = None
    for number, by in enumerate(creep):
        result = refreshed(root, tmp_path, number, slower=by, night={"noise": 0.004})
        (night,) = result.workloads
        assert night.drift is not None
        if night.drift.alarm:
            alarmed = by
            assert (result.status, night.series) == ("FAIL", "held")
            assert any("slow creep" in reason for reason in night.reasons)
            break
        assert night.decision != "regressed", f"night {number}: a single night proves it"
    assert alarmed is not None
    assert 0 < alarmed < 0.015


def test_a_night_that_could_not_be_measured_stores_nothing(root: Path, tmp_path: Path) -> None:
    nights(root, tmp_path, [0])
    before = sorted(root.rglob("*.json"))
    result = refreshed(root, tmp_path, 1, night={"outcome": "crashed"})
    assert result.status in ("INVALID", "FAIL")
    assert (result.files, sorted(root.rglob("*.json"))) == ([], before)


def test_nights_in_another_environment_or_against_another_anchor_are_not_summed(root: Path, tmp_path: Path) -> None:
    *_, fourth = nights(root, tmp_path, [0] * 4)
    assert fourth.workloads[0].drift is not None
    assert fourth.workloads[0].drift.nights == 4
    assert f"(correlation of nights {fourth.workloads[0].drift.correlation:.2f})" in refresh_page(fourth)
    moved = refreshed(root, tmp_path, 4, slower=0.03, accept_pct=5.0, why="router")
    after = refreshed(root, tmp_path, 5)
    assert moved.status == "PASS"
    assert after.workloads[0].drift is not None
    assert after.workloads[0].drift.nights == 1


def test_a_command_proves_no_code_and_is_refused_before_anything_runs(root: Path, tmp_path: Path) -> None:
    config = tmp_path / "command.toml"
    config.write_text('version = 1\n[workloads.train]\nadapter = "command"\ncommand = ["train", "{steps}"]\n')
    with pytest.raises(ConfigError, match="a command does not prove what code it runs"):
        refreshed(root, tmp_path, config=config)
    assert not root.exists()


# ---- a branch


@pytest.fixture
def repo(tmp_path: Path) -> Repository:
    repository = Repository.create(tmp_path / "repo")
    repository.commit("one", {"train.py": "pass\n"})
    (repository.path / "train.py").write_text("changed, and not committed\n")
    (repository.path / "new.py").write_text("untracked\n")
    return repository


def test_a_branch_is_proposed_and_the_checkout_is_as_it_was(repo: Repository, root: Path, tmp_path: Path) -> None:
    before = repo.git("status", "--porcelain"), repo.git("rev-parse", "HEAD"), (repo.path / ".git/index").read_bytes()
    result = refreshed(root, tmp_path, repo=repo.path)
    assert result.branch is not None
    after = repo.git("status", "--porcelain"), repo.git("rev-parse", "HEAD"), (repo.path / ".git/index").read_bytes()
    assert before == after
    assert not root.exists()
    changed = repo.git("diff", "--name-status", "main", result.branch).splitlines()
    assert {line.split("\t")[0] for line in changed} == {"A"}
    assert all(line.split("\t")[1].startswith("baselines/") for line in changed)
    assert (tmp_path / "out-ada-0" / "pull-request.md").read_text() == proposal_text(result)
