"""Whole checks of a command on a private cluster whose nodes, controller and operators do what they do to sessions."""

import json
import time
from pathlib import Path

import pytest

from support.costs import Bisecting, line
from support.slurm_case import SlurmCase, assert_whole, hosts, interrupt, minutes_told, nothing_left, place, wait
from support.slurm_cluster import Cluster, MakeCluster

AMID = 5
"""The launch that is last of the first block: two warm ones are before it, and three of the block."""


# ---- the nodes are lost, and the session goes on by itself


def test_a_node_that_dies_in_mid_session_costs_the_block_and_the_rest_is_timed_on_another(
    make_cluster: MakeCluster, tmp_path: Path
) -> None:
    mortal = make_cluster()
    case = SlurmCase(tmp_path, mortal)
    case.hold(AMID)
    check = case.check()
    case.begun(AMID)
    dead = case.host()
    mortal.kill_node(dead)
    case.let_go(AMID)
    runs = assert_whole(case, case.end(check))
    (lost,) = [run for run in runs if run.outcome == "lost"]
    assert (place(lost)[:3], hosts(lost)) == ((1, 1, 3), [dead])
    assert f"on {dead}: a node failed (NODE_FAIL" in lost.reason
    assert [place(run)[:3] for run in runs if hosts(run) != [dead]] == [
        *((0, 2, slot) for slot in range(2)),
        *((1, 2, slot) for slot in range(4)),
        *((2, 1, slot) for slot in range(4)),
    ], "the arms are warmed again, and the block begins anew"
    nothing_left(mortal)


def test_of_a_block_that_is_lost_twice_only_its_last_attempt_counts(cluster: Cluster, tmp_path: Path) -> None:
    case = SlurmCase(tmp_path, cluster)
    for number in (AMID, AMID + 4):  # the last run of the block, in the first attempt and in the second
        case.hold(number)
    check = case.check()
    for number in (AMID, AMID + 4):
        case.begun(number)
        cluster.run("scancel", *(job["id"] for job in case.held()))
        case.let_go(number)
    answer = case.end(check)
    runs = assert_whole(case, answer)
    lost = [run for run in runs if run.outcome == "lost"]
    assert [place(run)[:2] for run in lost] == [(1, 1), (1, 2)]
    assert all("it was cancelled (CANCELLED" in run.reason for run in lost)
    assert (answer.only["throughput"]["void_pairs"], answer.only["throughput"]["unused_pairs"]) == (4, 0)
    nothing_left(cluster)


def test_a_session_whose_nodes_are_lost_again_and_again_ends_as_invalid_and_can_be_resumed(
    cluster: Cluster, tmp_path: Path
) -> None:
    case = SlurmCase(tmp_path, cluster)
    case.hold()
    check = case.check()
    for number in range(5):
        case.begun(number)
        (job,) = case.held()
        cluster.run("scancel", job["id"])
    answer = case.end(check)
    assert (answer.code, answer.verdict["verdict"]) == (4, "INVALID"), answer.told
    assert {run.outcome for run in case.runs()} == {"lost"}
    assert [("cancelled" in run.reason) for run in case.runs() if run.allocation is not None] == [True] * 5
    (reason, *_) = answer.only["validity"]["reasons"]
    assert "the nodes were lost 5 times" in reason
    assert "--resume" in reason
    nothing_left(cluster)
    case.let_go()
    assert_whole(case, case.whole("--resume"))
    nothing_left(cluster)


# ---- the cluster's own daemons


@pytest.mark.parametrize(
    "run_ends",
    ["when it is back", pytest.param("meanwhile", marks=pytest.mark.long)],  # then the job is a minute in leaving
)
def test_a_controller_that_is_away_in_mid_session_costs_no_run(
    make_cluster: MakeCluster, tmp_path: Path, run_ends: str
) -> None:
    mortal = make_cluster()
    case = SlurmCase(tmp_path, mortal)
    case.hold(AMID)
    check = case.check()
    case.begun(AMID)
    mortal.kill_controller()
    if run_ends == "meanwhile":
        case.let_go(AMID)
    time.sleep(3)  # the next run would begin while nobody answers
    mortal.start_controller()
    if run_ends != "meanwhile":
        case.let_go(AMID)
    runs = assert_whole(case, case.end(check))
    assert {run.outcome for run in runs} == {"ok"}
    assert len(runs) == 10
    nothing_left(mortal)


# ---- regbot itself is ended


def test_a_regbot_that_is_killed_leaves_no_guest_gives_the_nodes_back_and_resumes(
    cluster: Cluster, tmp_path: Path
) -> None:
    case = SlurmCase(tmp_path, cluster, {"silent_s": 10})
    case.hold(AMID)
    check = case.check()
    case.begun(AMID)
    check.kill()
    check.communicate()
    wait(lambda: not case.guests(), "the guest of a dead regbot lives")
    assert len(case.runs()) == AMID
    wait(lambda: not cluster.jobs(), "the nodes are not given back")
    case.let_go(AMID)
    runs = assert_whole(case, case.whole("--resume"), unrecorded=1)
    assert len(runs) == 10
    assert len({run.allocation.job for run in runs if run.allocation}) == 2
    nothing_left(cluster)


def test_an_interrupt_gives_the_nodes_back_at_once_and_the_session_can_be_resumed(
    cluster: Cluster, tmp_path: Path
) -> None:
    case = SlurmCase(tmp_path, cluster)
    case.hold(AMID)
    check = case.check()
    case.begun(AMID)
    interrupt(check)
    answer = case.end(check)
    assert (answer.code, answer.out) == (130, "")
    assert "go on with --resume" in answer.told
    nothing_left(cluster, timeout_s=5)
    wait(lambda: not case.guests(), "the guest of an interrupted regbot lives")
    case.let_go(AMID)
    runs = assert_whole(case, case.whole("--resume"), unrecorded=1)
    assert len(runs) == 10
    nothing_left(cluster)


def test_an_interrupt_while_the_job_waits_leaves_no_job(cluster: Cluster, tmp_path: Path) -> None:
    held = cluster.submit("sleep 300", "-N2", "--exclusive")
    cluster.wait_state(held, "RUNNING")
    case = SlurmCase(tmp_path, cluster)
    check = case.check()
    wait(lambda: len(cluster.jobs()) == 2, "nothing is queued")
    interrupt(check)
    assert case.end(check).code == 130
    assert [job["id"] for job in cluster.jobs()] == [held]
    cluster.cancel_all()
    assert len(assert_whole(case, case.whole("--resume"))) == 10
    nothing_left(cluster)


# ---- no nodes at all


def test_a_job_that_never_begins_makes_the_check_invalid_and_it_can_be_resumed(
    cluster: Cluster, tmp_path: Path
) -> None:
    held = cluster.submit("sleep 300", "-N2", "--exclusive")
    cluster.wait_state(held, "RUNNING")
    case = SlurmCase(tmp_path, cluster, {"queue_min": 0.05})
    answer = case.whole()
    assert (answer.code, answer.verdict["verdict"]) == (4, "INVALID"), answer.told
    (reason, *_) = answer.only["validity"]["reasons"]
    assert 0.05 <= minutes_told(reason) < 0.5
    assert "raise slurm.queue_min" in reason
    assert [job["id"] for job in cluster.jobs()] == [held]
    cluster.cancel_all()
    assert_whole(case, case.whole("--resume"))
    nothing_left(cluster)


# ---- a bisection


def test_a_bisection_has_one_reservation_and_names_the_culprit(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_CONF", str(cluster.configuration))
    repository, commits = line(tmp_path / "repository", 6)
    case = Bisecting(tmp_path, repository)
    command = case.costing(dict.fromkeys(commits[4:], 150.0), noise=0.01)
    bisection = case.begin(commits[0], commits[-1], "--command", command, "--engine", "slurm", "--json")
    out, told = bisection.communicate()
    assert bisection.returncode == 0, f"{told}\n{out}"
    assert json.loads(out)["culprit"] == commits[4]
    assert len({each["stratum"] for each in json.loads(out)["observations"] if each["usable"]}) == 1
    nothing_left(cluster)
