"""``benchmarks/cluster.py``, small: sessions that are queued at once all end, and what went wrong would be noticed."""

import importlib
import shutil
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from support.slurm_cluster import Cluster

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
RUNS = 6


@pytest.fixture(scope="module")
def queued() -> Iterator[ModuleType]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "path", [*sys.path, str(BENCHMARKS)])  # last: there is another ``cluster``
        yield importlib.import_module("queued_sessions")


@pytest.fixture(scope="module")
def queue(queued: ModuleType, cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    """What was found of a queue of sessions, and its folder."""
    folder = tmp_path_factory.mktemp("queue") / "queue"
    return queued.measure(cluster, folder, 4), folder


def test_all_of_a_queue_of_sessions_end_and_nothing_is_left(queue: tuple[Any, Path]) -> None:
    found, folder = queue
    assert (found.errors, found.left) == ([], [])
    assert len(found.times) == found.sessions == len(list((folder / "sessions").iterdir()))
    asked = Counter(program for _, program in found.commands)
    assert asked["sbatch"] == asked["scancel"] == found.sessions, "a reservation each, given back once"
    assert asked["srun"] == (RUNS + 1) * found.sessions, "a step for each run, and one that asks what the nodes are"
    spent = found.times[0]
    assert spent.all >= spent.submission + spent.queue + spent.facts + spent.steps + spent.release
    assert spent.steps > spent.guest > RUNS * 3 * 0.01


def test_a_session_that_lacks_a_run_or_has_one_twice_is_named(
    queue: tuple[Any, Path], queued: ModuleType, tmp_path: Path
) -> None:
    found, folder = queue
    files = [Path(shutil.copy(each, tmp_path)) for each in sorted((folder / "sessions").iterdir())]
    lines = [file.read_text().splitlines(keepends=True) for file in files]
    files[0].write_text("".join(lines[0][:-1]))
    files[1].write_text("".join([*lines[1], lines[1][-1]]))
    files[2].unlink()
    files[3].write_text("".join(lines[3]).replace('"outcome":"ok"', '"outcome":"lost"', 1))
    faults = queued.faults(tmp_path, found.sessions)
    assert [fault.split(":")[0] for fault in faults] == ["session 0", "session 1", "session 2", "session 3"]
    assert "lost" in faults[3]


def test_a_job_a_reservation_and_a_thread_that_are_left_are_named(
    queued: ModuleType, cluster: Cluster, tmp_path: Path
) -> None:
    (tmp_path / "shared" / "seat-0").mkdir(parents=True)
    job = cluster.submit("sleep 300")
    cluster.wait_state(job, "RUNNING")
    found = queued.leftovers(cluster, tmp_path, (0, 10**6))
    assert found[:2] == [f"job {job} is RUNNING", "the folder seat-0"]
    assert "threads, 0 before" in found[2]
    cluster.cancel_all()


def test_growth_is_counted_from_the_first_sessions_on_and_asking_in_the_worst_seconds(queued: ModuleType) -> None:
    found = queued.QueueResult(sessions=100, samples=[(0, 60.0), (19, 80.0), (20, 81.0), (60, 99.0), (100, 90.0)])
    assert queued.memory(found) == (99.0, 18.0)
    asked = [(float(at), "squeue") for at in (0, 30, 31, 32, 33, 39, 60)] + [(35.0, "sbatch")]
    assert queued.most_per_s(asked, ("squeue",)) == 0.5
    assert queued.most_per_s(asked, ("squeue", "sbatch")) == 0.6
    assert queued.most_per_s(asked, ["squeue"], less=["sbatch"]) == 0.4
