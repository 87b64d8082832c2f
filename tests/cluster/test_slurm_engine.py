"""The engine on a private cluster: what it runs, what it refuses, and every way in which nodes are lost."""

import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from regbot.engines import EngineError, Launch, Needs, NoSeatError, Seat, clean_environment
from regbot.engines.slurm.commands import Slurm
from regbot.engines.slurm.engine import SlurmEngine
from regbot.records.config import SlurmSettings
from support.slurm_cluster import Cluster, MakeCluster

ONE = Needs(ranks=0, name="a command")
TWO = Needs(ranks=2, name="two ranks")
MEET = """
    import os, torch, torch.distributed as dist
    dist.init_process_group("gloo")
    there = torch.ones(4)
    dist.all_reduce(there)
    rank = dist.get_rank()
    with open(f"{os.environ['RECORD']}/rank.{rank}", "w") as file:
        file.write(f"{os.environ.get('SLURMD_NODENAME')} {int(there[0])} of {dist.get_world_size()}")
    print("rank", rank, "is done")
    dist.destroy_process_group()  # else gloo's threads may abort a process that ends
"""


def engine(cluster: Cluster, folder: Path, **settings: Any) -> SlurmEngine:
    return SlurmEngine(SlurmSettings(**settings), folder / "shared", Slurm(cluster.environment()))


def launch(folder: Path, code: str, **changes: Any) -> Launch:
    """A guest that runs ``code``, Python."""
    program = folder / f"program{abs(hash(code))}.py"
    program.write_text(textwrap.dedent(code))
    values: dict[str, Any] = {
        "command": (sys.executable, str(program)),
        "cwd": folder,
        "env": clean_environment({"RECORD": str(folder / "record"), "OMP_NUM_THREADS": "1"}),
        "log": folder / "output.log",
        "record_dir": folder / "record",
        "timeout_s": 60.0,
        "max_output_bytes": 2**18,
        "max_dir_bytes": 2**22,
    }
    return Launch(**{**values, **changes})


def meanwhile(what: Callable[[], object], after: Path) -> threading.Thread:
    """Do ``what`` in a thread once ``after`` is there."""

    def wait() -> None:
        until = time.monotonic() + 60
        while not after.exists() and time.monotonic() < until:
            time.sleep(0.02)
        what()

    thread = threading.Thread(target=wait)
    thread.start()
    return thread


def busy(folder: Path) -> Launch:
    """A guest that says that it has begun, and then takes its time."""
    return launch(folder, "import os, time\nopen(os.environ['RECORD'] + '/begun', 'w').close()\ntime.sleep(50)")


def lost(seat: Seat, folder: Path, what: Callable[[], object]) -> str:
    """What the engine says of the loss of nodes that ``what`` brings about during a run."""
    thread = meanwhile(what, folder / "record/begun")
    begun = time.monotonic()
    try:
        with pytest.raises(NoSeatError) as refused:
            seat.run(busy(folder))
    finally:
        thread.join()
    assert time.monotonic() - begun < 45, "the loss was noticed by the guest's own end"
    return str(refused.value)


# ---- what runs


def test_a_launch_without_a_seat_runs_on_a_node_and_gives_back_what_it_printed(
    cluster: Cluster, tmp_path: Path
) -> None:
    with engine(cluster, tmp_path) as slurm:
        code = "import sys; print('out', flush=True); print('err', file=sys.stderr); sys.exit(7)"
        ended = slurm.run(launch(tmp_path, code))
    assert (ended.exit_code, ended.log_tail) == (7, "out\nerr")
    assert (ended.timed_out, ended.output_truncated, ended.excess) == (False, False, "")
    assert ended.left_behind == 0


def test_ranks_meet_across_the_nodes_of_a_seat(cluster: Cluster, tmp_path: Path) -> None:
    with engine(cluster, tmp_path, nodes=2) as slurm, slurm.seat(TWO) as seat:
        assert seat.allocation.hosts == ["n1", "n2"]
        assert seat.node.name == "n1, n2"
        assert seat.node.node_class.startswith("2 nodes of ")
        ended = seat.run(launch(tmp_path, MEET, ranks=2))
        assert ended.exit_code == 0, ended.log_tail
        assert ended.health is not None
        assert slurm.describe(TWO) == seat.node, "the class is known from then on"
    met = {file.name: file.read_text() for file in (tmp_path / "record").glob("rank.*")}
    assert {name: text.split(" ", 1)[1] for name, text in met.items()} == dict.fromkeys(["rank.0", "rank.1"], "2 of 2")
    logs = (tmp_path / "output.log").read_text() + (tmp_path / "output.n2.log").read_text()
    assert "rank 0 is done" in logs
    assert "rank 1 is done" in logs


def test_a_rank_that_is_killed_ends_the_launch_on_all_nodes(cluster: Cluster, tmp_path: Path) -> None:
    code = MEET.replace("dist.all_reduce", "os.kill(os.getpid(), 9) if dist.get_rank() else dist.all_reduce")
    with engine(cluster, tmp_path, nodes=2) as slurm, slurm.seat(TWO) as seat:
        ended = seat.run(launch(tmp_path, code, ranks=2))
        assert (ended.timed_out, ended.exit_code) == (False, 1)
        assert "SIGKILL" in ended.log_tail, "the reason is told, also if the other rank fails of it first"
        assert seat.run(launch(tmp_path, "print('again')")).exit_code == 0, "the seat is as good as before"


def test_a_rank_that_never_joins_ends_at_the_time_limit(cluster: Cluster, tmp_path: Path) -> None:
    code = "import os, time\nif os.environ['RANK'] == '1':\n    time.sleep(300)\n" + textwrap.dedent(MEET)
    with engine(cluster, tmp_path, nodes=2) as slurm, slurm.seat(TWO) as seat:
        ended = seat.run(launch(tmp_path, code, ranks=2, timeout_s=15.0))
    assert ended.timed_out
    assert ended.exit_code is None


def test_gpus_of_a_seat_are_visible_to_its_guests(gpu_cluster: Cluster, tmp_path: Path) -> None:
    code = "import os; print(os.environ.get('CUDA_VISIBLE_DEVICES'))"
    with engine(gpu_cluster, tmp_path, ranks_per_node=4) as slurm:
        assert slurm.gpus == 16
        with slurm.seat(Needs(ranks=8, gpus=8)) as seat:
            assert seat.allocation.hosts == ["n1", "n2"]
            assert seat.run(launch(tmp_path, code)).log_tail == "0,1,2,3"
        with slurm.seat(ONE) as seat:
            assert seat.run(launch(tmp_path, code)).log_tail == "0,1,2,3,4,5,6,7"
        assert slurm.run(launch(tmp_path, code)).log_tail == "None"


# ---- what cannot be


@pytest.mark.parametrize(
    ("settings", "needs", "said"),
    [
        ({"partition": "nowhere"}, ONE, "there is no partition 'nowhere'; set slurm.partition to one of: bench, "),
        ({"gpus_per_node": 9}, ONE, "Requested node configuration is not available"),
        ({}, Needs(ranks=32, gpus=32, name="a shape"), "a shape: needs 4 nodes, and partition bench has 2"),
        ({}, Needs(ranks=12, gpus=12), "12 ranks cannot be spread evenly over nodes of 8"),
        ({"nodes": 3}, Needs(ranks=3), "needs 3 nodes, and partition bench has 2"),
        ({"constraint": "nvlink"}, ONE, "Invalid feature specification"),
    ],
)
def test_what_can_never_be_is_explained_before_anything_is_queued(
    gpu_cluster: Cluster, tmp_path: Path, settings: dict[str, Any], needs: Needs, said: str
) -> None:
    with engine(gpu_cluster, tmp_path, **settings) as slurm, pytest.raises(NoSeatError) as refused, slurm.seat(needs):
        pass
    assert said in str(refused.value)
    assert gpu_cluster.jobs() == []


def test_a_seat_avoids_slow_nodes(make_cluster: MakeCluster, tmp_path: Path) -> None:
    cluster = make_cluster()
    with engine(cluster, tmp_path) as slurm:
        with slurm.seat(Needs(ranks=1, avoid=frozenset({"n1"}))) as seat:
            assert seat.allocation.hosts == ["n2"]
        all_slow = Needs(ranks=1, name="qwen3", avoid=frozenset({"n1", "n2"}))
        with (
            pytest.raises(NoSeatError, match="Requested node configuration is not available"),
            slurm.seat(all_slow),
        ):
            pass


def test_a_shape_for_gpus_is_refused_where_no_node_has_any(cluster: Cluster, tmp_path: Path) -> None:
    with engine(cluster, tmp_path) as slurm:
        assert slurm.gpus == 0
        with pytest.raises(NoSeatError, match="no node of partition bench has any"), slurm.seat(Needs(8, gpus=8)):
            pass


def test_a_cluster_that_is_not_there_is_said_at_once(tmp_path: Path) -> None:
    slurm = SlurmEngine(SlurmSettings(), tmp_path, Slurm({"PATH": str(tmp_path)}))
    with pytest.raises(NoSeatError, match="sinfo was not found on PATH; --engine slurm needs a machine that submits"):
        slurm.describe(ONE)


def test_a_folder_that_a_node_does_not_see_is_named(make_cluster: MakeCluster, tmp_path: Path) -> None:
    hidden, empty = tmp_path / "shared", tmp_path / "empty"
    hidden.mkdir()
    empty.mkdir()
    other = make_cluster(prefix={"n2": ("bwrap", "--dev-bind", "/", "/", "--bind", str(empty), str(hidden), "--")})
    with (
        engine(other, tmp_path, nodes=2, lag_s=2.0) as slurm,
        pytest.raises(NoSeatError, match=r"is not visible on n2; put regbot's cache \(REGBOT_CACHE\)"),
        slurm.seat(TWO),
    ):
        pass
    assert other.jobs() == []


# ---- nodes that are lost


def test_a_preempted_job_is_lost_and_another_is_had_when_nodes_are_free(
    make_cluster: MakeCluster, tmp_path: Path
) -> None:
    mortal = make_cluster()
    with engine(mortal, tmp_path, partition="spare") as slurm:
        with slurm.seat(ONE) as seat:
            urgent: list[str] = []
            said = lost(
                seat,
                tmp_path,
                lambda: urgent.append(mortal.submit("sleep 3", "-N2", "--exclusive", "--partition=urgent")),
            )
        assert "preempted" in said or "cancelled" in said
        with slurm.seat(ONE) as seat:
            assert seat.run(launch(tmp_path, "print('after')")).log_tail == "after"
            assert seat.allocation.queued_s > 0
    mortal.wait_state(urgent[0], "COMPLETED")


def test_a_reservation_whose_time_is_over_is_lost(cluster: Cluster, tmp_path: Path) -> None:
    with engine(cluster, tmp_path, time_limit_min=1.0, partition="short") as slurm, slurm.seat(ONE) as seat:
        code = "import os, time\nopen(os.environ['RECORD'] + '/begun', 'w').close()\ntime.sleep(150)"
        with pytest.raises(NoSeatError, match=r"its time limit passed; raise slurm.time_limit_min \(TIMEOUT"):
            seat.run(launch(tmp_path, code, timeout_s=200.0))


# ---- nodes that are strange


LAG = """
    import os, pathlib, shutil, sys, time
    source, target = map(pathlib.Path, sys.argv[1:3])
    while True:
        for file in source.rglob("*"):
            other = target / file.relative_to(source)
            if file.is_file() and not other.exists() and time.time() - file.stat().st_mtime > 12:
                other.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(file, other.with_name("." + other.name))
                other.with_name("." + other.name).rename(other)
        time.sleep(0.2)
"""


@pytest.mark.parametrize("patience_s", [40.0, 1.0])
def test_a_shared_file_system_that_lags_is_waited_for(
    make_cluster: MakeCluster, tmp_path: Path, patience_s: float
) -> None:
    record, far = tmp_path / "record", tmp_path / "far"
    record.mkdir()
    far.mkdir()
    distant = make_cluster(prefix={"n2": ("bwrap", "--dev-bind", "/", "/", "--bind", str(far), str(record), "--")})
    (tmp_path / "lag.py").write_text(textwrap.dedent(LAG))
    sync = subprocess.Popen([sys.executable, str(tmp_path / "lag.py"), str(far), str(record)])
    try:
        with engine(distant, tmp_path, nodes=2, lag_s=patience_s) as slurm, slurm.seat(TWO) as seat:
            if patience_s > 1:
                ended = seat.run(launch(tmp_path, MEET, ranks=2))
                assert ended.exit_code == 0, ended.log_tail
                assert sorted(file.name for file in record.glob("rank.*")) == ["rank.0", "rank.1"]
            else:
                with pytest.raises(EngineError, match=r"rank.1: written on n2 and not visible here after 1 s; .* lags"):
                    seat.run(launch(tmp_path, MEET, ranks=2))
    finally:
        sync.kill()
        sync.wait()
    assert distant.jobs() == []
