"""A check on a node with one GPU, made of stand-ins: one rank, no collectives, and a verdict on its times.

The GPU is the paper GPU with the host's clock. It runs the model once, and a session replays this run.
"""

from pathlib import Path
from typing import Any

import pytest

from regbot.engines import LocalEngine
from regbot.engines.health.machine import this_node
from regbot.records.config import Workload
from regbot.records.files import write_record
from regbot.records.run import Position
from regbot.workloads.guest import Checkout, Scratch, trace
from regbot.workloads.launch import time_run
from regbot.workloads.shapes import load_shape
from regbot.workloads.task import single_task, smoke_task
from regbot.workloads.timed import RunSpec
from support.check_cases import Case, only
from support.gpu_stand_in import write_stand_ins
from support.guest_runs import Shared
from support.layers import ARM, LIMITS, replay

CONFIG = """\
version = 1
[workloads.moe]
adapter = "smoke"
shapes = ["mixtral-8x7b"]
variant = "cpu"
meshes = ["ep"]
timeout_min = 3
python = "tools/python"
[session]
steps = 10
warmup = 2
"""
WARMUP, STEPS = 2, 12
"""A node with GPUs decides nothing on runs that are too short for a steady state."""
LEVEL = """
for record in records:
    record["steps"]["step_s"] = [0.1 + 0.0002 * (number % 3) for number in range(request["steps"])]
seconds = total()
"""
"""Step times without the noise of this machine."""
NODE_CLASS = "1 x NVIDIA H200"


def run_on_one_gpu(folder: Path, library: Path) -> None:
    """Write to ``folder`` a trace, and what a run of the smoke size on one GPU leaves, for ``replay``."""
    stand_ins = write_stand_ins(folder / "bin", library)
    shape, root = load_shape("mixtral-8x7b"), folder / "repository"
    root.mkdir()
    traced = trace(smoke_task(shape, "cpu"), Checkout(ARM, root), LocalEngine(), Scratch(folder / "trace", LIMITS))
    assert traced.outcome == "ok", traced.reason
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("PATH", f"{stand_ins}:/usr/bin:/bin")
        workload = Workload(adapter="smoke", variant="smoke", python=str(stand_ins / "python"), timeout_min=5)
        task = single_task("moe", workload, shape, "ep", world=1, ep=1)
        place = RunSpec(Position(block=1, slot=0, order="BAAB"), 1, STEPS, WARMUP)
        this_node.cache_clear()  # earlier tests of this process have seen the machine as it is
        seat = LocalEngine().unlocked_seat
        run = time_run(task, place, Checkout(ARM, root), seat, Scratch(folder / "scratch", LIMITS))
    this_node.cache_clear()
    assert run.outcome == "ok", (run.reason, run.log_tail)
    write_record(folder / "run.json", run)


@pytest.fixture
def one_gpu(shared: Shared, paper_library: Path) -> Path:
    return shared("one GPU", lambda folder: run_on_one_gpu(folder, paper_library))


def check(case: Case, one_gpu: Path, head: str = "") -> tuple[int, dict[str, Any]]:
    """Check a pull request whose runs replay the run on one GPU, changed by the code in ``head``."""
    tool = case.repository.path / "tools" / "python"
    replay(tool, one_gpu, LEVEL)
    case.commit(config=CONFIG)
    case.repository.git("checkout", "-q", "-b", "pr")
    replay(tool, one_gpu, LEVEL + head)
    case.commit(config=CONFIG, **{"kernels.cu": "// another kernel\n"})
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("PATH", f"{one_gpu / 'bin'}:/usr/bin:/bin")
        return case.check()


@pytest.mark.slow
def test_on_one_gpu_the_times_decide(tmp_path: Path, one_gpu: Path) -> None:
    case = Case(tmp_path)
    code, verdict = check(case, one_gpu, head="[scale(record, 1.5) for record in records]; seconds = total()")
    assert (code, verdict["verdict"]) == (1, "FAIL")
    entry = only(verdict)
    assert entry["validity"]["status"] == "PASS"
    assert entry["sharding"]["status"] == "PASS", "the traces of the full mesh are of equal programs"
    throughput = entry["throughput"]
    assert (throughput["status"], throughput["decision"], throughput["pairs"]) == ("FAIL", "regressed", 4)
    assert (throughput["node"], throughput["variant"]) == (NODE_CLASS, "smoke")
    assert {tuple(rank["rank"] for rank in run["ranks"]) for run in throughput["runs"]} == {("0",)}
    timed = [run for run in case.runs() if run["tier"] == "timed"]
    assert all(run["ledger"]["entries"] == [] for run in timed)
    assert {run["node"]["node_class"] for run in timed} == {NODE_CLASS}
    assert {run["timing"]["clock"] for run in timed} == {"cuda_events"}
