"""The private Slurm that other tests break: it has to behave as a real one does, and to leave nothing behind."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from support.slurm_cluster import Cluster, ClusterError, MakeCluster, free_ports, leftovers
from support.slurm_processes import members

SLEEP = "srun --kill-on-bad-exit=1 sh -c 'echo started; sleep 300'"


def started(cluster: Cluster, *options: str, tasks: int = 2) -> str:
    """A job whose step runs on all of its nodes."""
    job = cluster.submit(SLEEP, *options)
    cluster.wait_state(job, "RUNNING")
    until = time.monotonic() + 10
    while cluster.output(job).count("started") < tasks:
        assert time.monotonic() < until, cluster.output(job)
        time.sleep(0.02)
    return job


# ---- what it offers


def test_both_nodes_are_idle_and_the_queue_is_empty(cluster: Cluster) -> None:
    assert cluster.states() == {"n1": "idle", "n2": "idle"}
    assert cluster.jobs() == []


def test_a_step_of_two_nodes_runs_on_both(cluster: Cluster) -> None:
    answer = cluster.run("srun", "-N2", "sh", "-c", "echo $SLURM_PROCID $SLURMD_NODENAME")
    assert answer.returncode == 0, answer.stderr
    assert sorted(answer.stdout.split("\n")) == ["", "0 n1", "1 n2"]


def test_what_a_job_says_of_itself_is_seen_from_its_start_to_its_end(cluster: Cluster) -> None:
    job = cluster.submit("echo here; exit 7", "-N2", "--job-name=a name | with a bar")
    assert [(entry["id"], entry["name"]) for entry in cluster.jobs()] == [(job, "a name | with a bar")]
    ended = cluster.wait_state(job, "FAILED")
    assert (ended["ExitCode"], ended["Reason"], ended["NodeList"]) == ("7:0", "NonZeroExitCode", "n[1-2]")
    assert cluster.output(job) == "here\n"
    cluster.wait_idle()


def test_gpus_arrive_as_visible_devices_in_a_batch_job_and_in_its_steps(gpu_cluster: Cluster) -> None:
    tell = "'echo $SLURMD_NODENAME $CUDA_VISIBLE_DEVICES'"
    job = gpu_cluster.submit(f"echo batch $CUDA_VISIBLE_DEVICES; srun sh -c {tell}", "-N2", "--gpus-per-node=4")
    gpu_cluster.wait_state(job, "COMPLETED")
    assert sorted(gpu_cluster.output(job).splitlines()) == ["batch 0,1,2,3", "n1 0,1,2,3", "n2 0,1,2,3"]


def test_jobs_that_share_a_node_get_different_gpus(gpu_cluster: Cluster) -> None:
    first = gpu_cluster.submit("echo $CUDA_VISIBLE_DEVICES; sleep 300", "--nodelist=n1", "--gpus-per-node=4")
    gpu_cluster.wait_state(first, "RUNNING")
    second = gpu_cluster.submit("echo $CUDA_VISIBLE_DEVICES", "--nodelist=n1", "--gpus-per-node=4")
    gpu_cluster.wait_state(second, "COMPLETED")
    assert {gpu_cluster.output(first), gpu_cluster.output(second)} == {"0,1,2,3\n", "4,5,6,7\n"}
    gpu_cluster.cancel_all()


@pytest.mark.parametrize(
    ("asked", "refusal"),
    [
        ("--gpus-per-node=9", "Requested node configuration is not available"),
        ("--gpus-per-node=a100:1", "Requested node configuration is not available"),
        ("--partition=nowhere", "Invalid partition name specified"),
        ("--constraint=nvlink", "Invalid feature specification"),
        ("--reservation=none", "Requested reservation is invalid"),
        ("--cpus-per-task=9", "Requested node configuration is not available"),
    ],
)
def test_what_no_node_has_is_refused_when_it_is_asked_for(gpu_cluster: Cluster, asked: str, refusal: str) -> None:
    answer = gpu_cluster.run("sbatch", asked, "--wrap=true")
    assert (answer.returncode, answer.stdout) == (1, "")
    assert answer.stderr.endswith(f"sbatch: error: Batch job submission failed: {refusal}\n")


@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        (["--nodes=3"], "PartitionNodeLimit"),
        (["--partition=short", "--nodes=2"], "PartitionNodeLimit"),
        (["--partition=short", "--time=5"], "PartitionTimeLimit"),
    ],
)
def test_what_a_partition_does_not_allow_waits_for_ever(cluster: Cluster, asked: list[str], reason: str) -> None:
    job = cluster.submit("true", *asked)
    time.sleep(1.5)  # a look of the scheduler and a half
    assert [(entry["state"], entry["reason"]) for entry in cluster.jobs()] == [("PENDING", reason)]
    cluster.cancel_all()
    assert cluster.job(job)["JobState"] == "CANCELLED"


# ---- what can be broken


def test_the_death_of_a_node_ends_its_jobs_as_node_fail(make_cluster: MakeCluster) -> None:
    cluster = make_cluster()
    job = started(cluster, "-N2", "--no-requeue")
    cluster.kill_node("n2")
    ended = cluster.wait_state(job, "NODE_FAIL")
    assert ended["Reason"] == "NodeDown"
    assert cluster.states()["n2"] == "down*"
    cluster.start_node("n2")
    cluster.wait_idle()


def test_jobs_outlive_the_daemon_of_their_node_where_only_that_is_killed(make_cluster: MakeCluster) -> None:
    cluster = make_cluster()
    job = cluster.submit("srun sh -c 'sleep 4; echo $SLURMD_NODENAME'", "-N2")
    cluster.wait_state(job, "RUNNING")
    time.sleep(1)  # until the step runs on both
    cluster.kill_node("n2", jobs=False)
    cluster.start_node("n2")
    cluster.wait_state(job, "COMPLETED")
    assert sorted(cluster.output(job).split()) == ["n1", "n2"]


def test_an_operator_takes_a_node_and_gives_it_back(make_cluster: MakeCluster) -> None:
    cluster = make_cluster()
    job = started(cluster, "-N2", "--no-requeue")
    cluster.down("n1")
    cluster.wait_state(job, "NODE_FAIL", timeout_s=10)
    cluster.drain("n2", "slow")
    assert cluster.states() == {"n1": "down", "n2": "drained"}
    for name in cluster.nodes:
        cluster.resume(name)
    cluster.wait_idle()


def test_a_running_job_outlives_the_controller(make_cluster: MakeCluster) -> None:
    cluster = make_cluster()
    job = cluster.submit("srun sh -c 'sleep 9; echo ended'", "-N2")
    cluster.wait_state(job, "RUNNING")
    cluster.kill_controller()
    assert "Unable to contact slurm controller" in cluster.run("squeue").stderr
    cluster.start_controller()
    assert cluster.job(job)["JobState"] == "RUNNING"
    cluster.wait_state(job, "COMPLETED")
    assert cluster.output(job) == "ended\nended\n"


def test_an_urgent_job_puts_one_of_the_bench_back_into_the_queue(cluster: Cluster) -> None:
    job = started(cluster, "-N2", "--exclusive")
    urgent = cluster.submit("true", "--partition=urgent")
    cluster.wait_state(urgent, "COMPLETED")
    again = cluster.wait_state(job, "PENDING")
    assert (again["Reason"], again["Restarts"]) == ("BeginTime", "1")
    cluster.cancel_all()


@pytest.mark.parametrize("asked", ["--no-requeue", "--partition=spare"])
def test_an_urgent_job_ends_one_that_may_not_go_back(cluster: Cluster, asked: str) -> None:
    job = started(cluster, "-N2", "--exclusive", asked)
    urgent = cluster.submit("true", "--partition=urgent")
    cluster.wait_state(urgent, "COMPLETED")
    assert cluster.wait_state(job, "PREEMPTED")["Restarts"] == "0"


def test_a_job_past_its_end_is_ended_as_timeout(cluster: Cluster) -> None:
    """Limits are in minutes; an operator may set the end to the second. Slurm looks every 30 s."""
    job = started(cluster, tasks=1)
    cluster.end_in(job, 1)
    assert cluster.wait_state(job, "TIMEOUT", timeout_s=45)["Reason"] == "TimeLimit"
    assert "DUE TO TIME LIMIT" in cluster.output(job)


def test_memory_beyond_the_limit_ends_a_rank_where_it_is_watched(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(
        settings={
            "JobAcctGatherType": "jobacct_gather/linux",
            "JobAcctGatherFrequency": "task=1",
            "JobAcctGatherParams": "OverMemoryKill",
            "SelectTypeParameters": "CR_Core_Memory",
        }
    )
    greedy = f"{sys.executable} -c 'import time; x = b\"x\" * (300 << 20); time.sleep(60)'"
    job = cluster.submit(f"srun {greedy}; echo rc $?", "--mem=100M")
    cluster.wait_state(job, "COMPLETED")
    assert "exceeded memory limit" in cluster.output(job)
    assert "rc 137" in cluster.output(job)


def test_a_node_may_see_another_folder_than_its_neighbour(make_cluster: MakeCluster, tmp_path: Path) -> None:
    bwrap = shutil.which("bwrap")
    if bwrap is None:
        pytest.skip("bubblewrap is not installed")
    shared, stale = tmp_path / "shared", tmp_path / "stale"
    for folder, text in ((shared, "new"), (stale, "old")):
        folder.mkdir()
        (folder / "file").write_text(f"{text}\n")
    cluster = make_cluster(prefix={"n2": (bwrap, "--dev-bind", "/", "/", "--bind", str(stale), str(shared), "--")})
    for _ in range(2):
        lines = cluster.run("srun", "-N2", "-l", "cat", shared / "file").stdout.splitlines()
        assert sorted(lines) == ["0: new", "1: old"]
        cluster.kill_node("n2")
        cluster.start_node("n2")


# ---- what it leaves behind


def test_stop_ends_jobs_and_those_who_wait_for_them(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path)
    with cluster:
        waiting = subprocess.Popen(["srun", "-N2", "sleep", "300"], env=cluster.environment())
        bare = cluster.submit("srun env -i setsid sleep 300")
        cluster.wait_state(bare, "RUNNING")
        inside = members(cluster.folder)
    assert waiting.wait(5) == -signal.SIGKILL
    assert len(inside) > 8
    assert members(cluster.folder) == set()
    assert [path for path in cluster.folder.rglob("*") if path.is_socket()] == []
    assert not any(alive(pid) for pid in inside)


def test_a_cluster_can_be_started_again_after_its_stop(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path)
    for _ in range(2):
        with cluster:
            assert cluster.run("srun", "-N2", "true").returncode == 0


def test_a_start_that_fails_says_what_the_daemon_said_and_leaves_nothing(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, settings={"SelectType": "select/nothing"})
    with pytest.raises(ClusterError, match="select/nothing"):
        cluster.start()
    assert members(cluster.folder) == set()


def test_a_port_that_was_taken_meanwhile_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(tmp_path)
    (taken,) = free_ports(1)
    choices = [[taken, *free_ports(2)], free_ports(3)]
    monkeypatch.setattr("support.slurm_cluster.free_ports", lambda _: choices.pop(0))
    with socket.socket() as listener:
        listener.bind(("", taken))
        listener.listen()
        with cluster:
            assert choices == []
            assert cluster.states() == {"n1": "idle", "n2": "idle"}


def test_clusters_live_beside_each_other(cluster: Cluster, make_cluster: MakeCluster) -> None:
    other = make_cluster(nodes=3)
    started(other, "-N3", tasks=3)
    assert cluster.jobs() == []
    other.stop()
    assert cluster.run("srun", "-N2", "true").returncode == 0


def test_nothing_is_left_where_the_test_run_is_killed(tmp_path: Path) -> None:
    code = f"""
    import sys, time
    sys.path[:0] = [{str(Path(__file__).parents[1])!r}]
    from pathlib import Path
    from support.slurm_cluster import Cluster
    cluster = Cluster(Path({str(tmp_path)!r}))
    cluster.start()
    cluster.wait_state(cluster.submit("sleep 300"), "RUNNING")
    print("started", flush=True)
    time.sleep(300)
    """
    with subprocess.Popen([sys.executable, "-c", textwrap.dedent(code)], stdout=subprocess.PIPE, text=True) as run:
        assert run.stdout is not None
        assert run.stdout.readline() == "started\n"
        inside = members(tmp_path)
        run.kill()
    assert len(inside) > 5
    until = time.monotonic() + 10
    while members(tmp_path) and time.monotonic() < until:
        time.sleep(0.02)
    assert members(tmp_path) == set()


def test_what_a_test_leaves_behind_is_seen(make_cluster: MakeCluster) -> None:
    cluster = make_cluster()
    assert leftovers(cluster) == ""
    started(cluster, tasks=1)
    assert "left jobs in the queue" in leftovers(cluster)
    cluster.cancel_all()
    assert leftovers(cluster) == ""
    cluster.drain("n1")
    assert leftovers(cluster) == "the test left nodes unfit: {'n1': 'drained'}"


def test_the_environment_of_callers_names_this_cluster_and_no_job_of_another() -> None:
    outer = {"PATH": "/bin", "SLURM_JOB_ID": "7", "SBATCH_PARTITION": "x", "SLURM_CONF": "/etc/slurm/slurm.conf"}
    given = Cluster(Path("/tmp/any")).environment(outer)
    assert given == {"PATH": "/bin", "SLURM_CONF": "/tmp/any/etc/slurm.conf"}


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    stat = Path(f"/proc/{pid}/stat")
    return stat.exists() and stat.read_text().rpartition(")")[2].split()[0] not in "ZX"
