"""Checks of a session's nodes: when they are probed, what a slow node leads to, and a probe that fails."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from regbot.checkout import Worktree
from regbot.config import Config
from regbot.engines import Launch, LaunchResult, LocalEngine, Needs, Seat
from regbot.judge import judge
from regbot.nodes import Fitness
from regbot.nodes.quarantine import quarantined_nodes, release
from regbot.nodes.reference import ProbeError
from regbot.records.node import NodeProbe
from regbot.records.run import Allocation, Arm, Node, Run
from regbot.sessions.timed import SessionRunner
from regbot.shapes import load_shape
from regbot.workloads import Scratch, Task, smoke_task
from support.node_probes import NOW, probe_of
from support.straggler_cases import session
from support.timed_builder import HEADER, PLAN, session_of

HOSTS = ("n1", "n2")
NEEDS = Needs(ranks=2)


class ClusterSeat:
    """The local seat, presented as a seat of a cluster."""

    def __init__(self, seat: Seat) -> None:
        self._seat = seat

    @property
    def node(self) -> Node:
        return self._seat.node

    @property
    def allocation(self) -> Allocation:
        return Allocation(engine="slurm", job="7", hosts=list(HOSTS))

    def run(self, launch: Launch) -> LaunchResult:
        return self._seat.run(launch)


class Cluster(LocalEngine):
    """An engine whose seats claim to be of a cluster."""

    @contextmanager
    def seat(self, needs: Needs) -> Iterator[Seat]:
        with super().seat(needs) as seat:
            yield ClusterSeat(seat)


class NoCheckouts:
    def worktree(self, arm: Arm, task: Task) -> Worktree | str:
        return "there is no space left"


SEAT = ClusterSeat(LocalEngine().unlocked_seat)


@pytest.fixture
def probes(monkeypatch: pytest.MonkeyPatch) -> list[Sequence[NodeProbe] | ProbeError]:
    """Results of the next probes; the test fills the list."""
    answers: list[Sequence[NodeProbe] | ProbeError] = []

    def answered(*_: object, **__: object) -> Sequence[NodeProbe]:
        answer = answers.pop(0)
        if isinstance(answer, ProbeError):
            raise answer
        return answer

    monkeypatch.setattr("regbot.nodes.fitness.probe", answered)
    return answers


def alike(slow: float = 1.0) -> list[NodeProbe]:
    """Two similar nodes; the second takes ``slow`` times as long."""
    return [probe_of("n1"), probe_of("n2", gemm=1.6 * slow)]


def fitness(folder: Path) -> Fitness:
    return Fitness(folder / "nodes", folder / "scratch", lambda: NOW)


def test_healthy_nodes_are_timed_on(tmp_path: Path, probes: list[Sequence[NodeProbe] | ProbeError]) -> None:
    probes.append(alike())
    checker = fitness(tmp_path)
    assert checker.check_before(SEAT, NEEDS) == ""
    assert checker.probe_failure == ""
    assert checker.quarantined_hosts() == frozenset()


def test_a_slow_node_goes_into_quarantine_before_anything_is_timed_on_it(
    tmp_path: Path, probes: list[Sequence[NodeProbe] | ProbeError]
) -> None:
    probes += [alike(1.3), alike(1.3)]
    checker = fitness(tmp_path)
    assert "n2 is slow, whatever runs on it, and is in quarantine now: n2: matrix product 30%" in checker.check_before(
        SEAT, NEEDS
    )
    assert checker.quarantined_hosts() == {"n2"}
    assert "n2: in quarantine; 'regbot node show n2' says why" in checker.check_before(SEAT, NEEDS)


def test_a_node_that_is_slow_in_one_probe_only_stays_in_service(
    tmp_path: Path, probes: list[Sequence[NodeProbe] | ProbeError]
) -> None:
    probes += [alike(1.3), alike()]
    checker = fitness(tmp_path)
    assert checker.check_before(SEAT, NEEDS) == ""
    assert checker.quarantined_hosts() == frozenset()
    assert probes == []


def test_another_node_that_is_slow_in_the_second_probe_only_stays_in_service(
    tmp_path: Path, probes: list[Sequence[NodeProbe] | ProbeError]
) -> None:
    probes += [alike(1.3), [probe_of("n1", gemm=2.1), probe_of("n2")]]
    checker = fitness(tmp_path)
    assert checker.check_before(SEAT, NEEDS) == ""
    assert checker.quarantined_hosts() == frozenset()


def test_nothing_is_timed_on_a_slow_node_whose_second_probe_fails(
    tmp_path: Path, probes: list[Sequence[NodeProbe] | ProbeError]
) -> None:
    probes += [alike(1.3), ProbeError("the disk is full")]
    checker = fitness(tmp_path)
    assert checker.check_before(SEAT, NEEDS) == "n2: slow in a probe, and a second probe failed"
    assert checker.probe_failure == ""
    assert checker.quarantined_hosts() == frozenset()


def test_a_node_on_trial_that_is_slow_is_back_in_quarantine_after_one_probe(
    tmp_path: Path, probes: list[Sequence[NodeProbe] | ProbeError]
) -> None:
    probes += [alike(1.3), alike(1.3), alike(1.3)]
    checker = fitness(tmp_path)
    checker.check_before(SEAT, NEEDS)
    release(tmp_path / "nodes", "n2", "ann", "repaired", NOW)
    assert "n2 is slow" in checker.check_before(SEAT, NEEDS)
    assert checker.quarantined_hosts() == {"n2"}
    assert probes == []


def test_this_machine_and_programs_of_one_process_are_not_probed(tmp_path: Path) -> None:
    assert fitness(tmp_path).check_before(SEAT, Needs(ranks=0)) == ""
    assert fitness(tmp_path).check_before(LocalEngine().unlocked_seat, NEEDS) == ""


@pytest.mark.parametrize(
    ("slow", "expected"), [(1.3, "the others wait for rank 1 (n2)"), (1.0, "")], ids=["slow", "not slow"]
)
def test_a_rank_that_is_late_in_both_arms_accuses_a_node_only_with_a_probe(
    slow: float, expected: str, tmp_path: Path, probes: list[Sequence[NodeProbe] | ProbeError]
) -> None:
    probes += [alike(slow)] * (2 if expected else 1)
    checker = fitness(tmp_path)
    reason = checker.check_after(SEAT, NEEDS, session([1, 1.3], [1, 1.3], HOSTS))
    assert reason.startswith(expected)
    assert bool(reason) == bool(expected)
    evidence = quarantined_nodes(tmp_path / "nodes")
    assert [late.rank for host in evidence.values() for late in host.stragglers] == ([1] if expected else [])


@pytest.mark.parametrize(("base", "head"), [((1, 1), (1, 1.3)), ((1, 1), (1, 1))], ids=["of the head alone", "nobody"])
def test_without_a_late_rank_in_both_arms_the_nodes_are_not_probed(
    base: Sequence[float], head: Sequence[float], tmp_path: Path
) -> None:
    assert fitness(tmp_path).check_after(SEAT, NEEDS, session(base, head, HOSTS)) == ""


def test_a_failed_probe_is_reported_in_the_first_run_and_in_the_verdict(
    tmp_path: Path, probes: list[Sequence[NodeProbe] | ProbeError]
) -> None:
    probes.append(ProbeError("there is no torch on n2"))
    runs: list[Run] = []
    timing = SessionRunner(
        HEADER, NoCheckouts(), Cluster(), Scratch(tmp_path), runs.append, lambda _: None, fitness=fitness(tmp_path)
    )
    timing.run(PLAN, smoke_task(load_shape("mixtral-8x7b"), "cpu"), [], 60.0)
    warning_text = "n1, n2: could not be probed, and count as healthy: there is no torch on n2"
    assert warning_text in runs[0].warnings
    verdict = judge(session_of([run.model_copy(update={"workload": PLAN.entry}) for run in runs]), Config())
    assert any(warning_text in warning for warning in verdict.warnings)
