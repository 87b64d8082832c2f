"""The check of a session's nodes: what it refuses, what it warns of, and what the session records."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from regbot.check.sessions.timed import SessionRunner
from regbot.engines import Launch, LaunchResult, LocalEngine, Needs, NoSeatError, Seat
from regbot.engines.node_check import WINDOW, NodeCheck, ProbeError, check_nodes, judge_probes
from regbot.judge import judge
from regbot.records.config import Config
from regbot.records.files import read_record, write_record
from regbot.records.node import NodeHistory, NodeProbe
from regbot.records.run import Allocation, Arm, Node, Run
from regbot.workloads.checkout.worktrees import Worktree
from regbot.workloads.guest import Scratch
from regbot.workloads.shapes import load_shape
from regbot.workloads.task import Task, smoke_task
from support.node_probes import past, probe_of
from support.timed_builder import HEADER, PLAN, session_of

HOSTS = ("n1", "n2")
NEEDS = Needs(ranks=2)
LOCAL_SEAT = LocalEngine().unlocked_seat


class ClusterSeat:
    """The local seat, presented as a seat of a cluster."""

    node: Node = LOCAL_SEAT.node
    allocation = Allocation(engine="slurm", job="7", hosts=list(HOSTS))

    def run(self, launch: Launch) -> LaunchResult:
        return LOCAL_SEAT.run(launch)


class Cluster(LocalEngine):
    """An engine with one seat, of the nodes HOSTS."""

    @contextmanager
    def seat(self, needs: Needs) -> Iterator[Seat]:
        if needs.avoid:
            raise NoSeatError(f"no seat without {', '.join(needs.avoid)}")
        yield ClusterSeat()


class NoCheckouts:
    def worktree(self, arm: Arm, task: Task) -> Worktree | str:
        return "there is no space left"


def judged(probe: NodeProbe, stored: Sequence[NodeProbe]) -> str:
    check = judge_probes([probe], stored, Path("nodes.json"))
    return "refused" if check.refused_hosts else "warned" if check.warnings else "fit"


@pytest.mark.parametrize(
    ("probe", "stored", "expected"),
    [
        (probe_of("n1", gemm=2.08), past("n1", 8), "refused"),
        (probe_of("n1", gemm=1.74), past("n1", 8), "fit"),  # 9% is not 10%
        (probe_of("n1", gemm=2.08), past("n1", 7), "warned"),
        (probe_of("n1", gemm=2.08), [probe_of("n1", hours) for hours in range(1, 20)], "warned"),  # 2 days
        (probe_of("n1", gemm=1.92), past("n1", 10, scatter_pct=6), "fit"),  # 20% within 5 sd
        (probe_of("n1", gemm=2.4, fast=1.6), past("n1", 10), "fit"),  # other work slows the median only
        (probe_of("n1", gemm=2.08), past("n2", 10), "fit"),
        (probe_of("n1", gemm=2.08, driver="575.1"), past("n1", 10), "fit"),
        (probe_of("n1", gemm=2.08, ranks=4), past("n1", 10), "fit"),
        (probe_of("n1", gemm=9, disturbance="other work took 38% of its cores' time"), past("n1", 10), "warned"),
        (probe_of("n1", over=1.5, hosts=["n1", "n2"]), past("n1", 10, over=1.0, hosts=["n1", "n2"]), "warned"),
        (probe_of("n1", over=1.5, hosts=["n1", "n3"]), past("n1", 10, over=1.0, hosts=["n1", "n2"]), "fit"),
    ],
)
def test_a_node_is_refused_only_against_enough_probes_of_its_own(
    probe: NodeProbe, stored: Sequence[NodeProbe], expected: str
) -> None:
    assert judged(probe, stored) == expected


@pytest.fixture
def probes(monkeypatch: pytest.MonkeyPatch) -> list[Sequence[NodeProbe] | ProbeError]:
    """Results of the next probes; the test fills the list."""
    answers: list[Sequence[NodeProbe] | ProbeError] = []

    def answered(*_: Any, **__: Any) -> Sequence[NodeProbe]:
        answer = answers.pop(0)
        if isinstance(answer, ProbeError):
            raise answer
        return answer

    monkeypatch.setattr("regbot.engines.node_check.probe_nodes", answered)
    return answers


def checked(folder: Path) -> NodeCheck:
    return check_nodes(ClusterSeat(), NEEDS, "", folder / "scratch", folder / "nodes.json")


def test_probes_of_fit_nodes_are_stored_and_the_oldest_are_dropped(
    tmp_path: Path, probes: list[Sequence[NodeProbe] | ProbeError]
) -> None:
    history = tmp_path / "nodes.json"
    write_record(history, NodeHistory(probes=past("n2", WINDOW)))
    fresh = [probe_of("n1"), probe_of("n2", gemm=2.08), probe_of("n3", disturbance="a GPU was lost")]
    probes.append(fresh)
    assert checked(tmp_path).probes == fresh
    assert read_record(history, NodeHistory).probes == [*past("n2", WINDOW), probe_of("n1")]
    probes.append([probe_of("n2")])
    checked(tmp_path)
    assert read_record(history, NodeHistory).probes == [*past("n2", WINDOW)[1:], probe_of("n1"), probe_of("n2")]


def test_this_machine_and_programs_of_one_process_are_not_probed(tmp_path: Path) -> None:
    folder = tmp_path / "scratch"
    assert check_nodes(ClusterSeat(), Needs(ranks=0), "", folder, tmp_path / "nodes.json") == NodeCheck()
    assert check_nodes(LOCAL_SEAT, NEEDS, "", folder, tmp_path / "nodes.json") == NodeCheck()


def run_session(folder: Path) -> list[Run]:
    runs: list[Run] = []
    history = folder / "nodes.json"
    runner = SessionRunner(
        HEADER, NoCheckouts(), Cluster(), Scratch(folder), runs.append, lambda _: None, node_history=history
    )
    runner.run(PLAN, smoke_task(load_shape("mixtral-8x7b"), "cpu"), [], 60.0)
    return runs


def test_a_session_records_the_probes_and_a_failed_probe_is_a_warning_of_the_verdict(
    tmp_path: Path, probes: list[Sequence[NodeProbe] | ProbeError]
) -> None:
    fit = [probe_of("n1"), probe_of("n2")]
    probes.append(fit)
    runs = run_session(tmp_path)
    assert [run.probes for run in runs] == [fit, *([] for _ in runs[1:])]
    probes.append(ProbeError("there is no torch on n2"))
    runs = run_session(tmp_path)
    warning_text = "n1, n2: could not be probed, and count as fit: there is no torch on n2"
    assert warning_text in runs[0].warnings
    verdict = judge(session_of([run.model_copy(update={"workload": PLAN.entry}) for run in runs]), Config())
    assert any(warning_text in warning for warning in verdict.warnings)


def test_nothing_is_timed_on_a_slow_node_and_the_next_seat_avoids_it(
    tmp_path: Path, probes: list[Sequence[NodeProbe] | ProbeError]
) -> None:
    write_record(tmp_path / "nodes.json", NodeHistory(probes=past("n2", 8)))
    slow = [probe_of("n1"), probe_of("n2", gemm=2.08)]
    probes.append(slow)
    (run,) = run_session(tmp_path)
    assert (run.outcome, run.probes) == ("lost", slow)
    assert "no seat without n2; the reference probe found slow nodes. n2: matrix product 30% slower" in run.reason
