"""Fit for a session? What the nodes of a seat are asked, what is believed, and what is said where nobody could look."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from node_probes import NOW, probe_of
from regbot.checkout import Worktree
from regbot.config import Config
from regbot.engines import Ended, Launch, LocalEngine, Needs, Seat
from regbot.judge import judge
from regbot.nodes import Fitness, ProbeError, quarantined
from regbot.records.node import NodeProbe
from regbot.records.run import Allocation, Arm, Node, Run
from regbot.shapes import load_shape
from regbot.timing import Timing
from regbot.workloads import Limits, Task, smoke_task
from test_stragglers import session
from timed_builder import HEADER, PLAN, session_of

HOSTS = ("n1", "n2")
NEEDS = Needs(ranks=2)


class OfACluster:
    """The local seat, called one of a cluster."""

    def __init__(self, seat: Seat) -> None:
        self._seat = seat

    @property
    def node(self) -> Node:
        return self._seat.node

    @property
    def allocation(self) -> Allocation:
        return Allocation(engine="slurm", job="7", hosts=list(HOSTS))

    def run(self, launch: Launch) -> Ended:
        return self._seat.run(launch)


class Cluster(LocalEngine):
    """An engine whose seats say that they are of a cluster."""

    @contextmanager
    def seat(self, needs: Needs) -> Iterator[Seat]:
        with super().seat(needs) as seat:
            yield OfACluster(seat)


class NoCheckouts:
    def of(self, arm: Arm, task: Task) -> Worktree | str:
        return "there is no space left"


SEAT = OfACluster(LocalEngine().here)


@pytest.fixture
def probes(monkeypatch: pytest.MonkeyPatch) -> list[Sequence[NodeProbe] | ProbeError]:
    """What the next probes find, to be filled by the test."""
    answers: list[Sequence[NodeProbe] | ProbeError] = []

    def answered(*_: object, **__: object) -> Sequence[NodeProbe]:
        answer = answers.pop(0)
        if isinstance(answer, ProbeError):
            raise answer
        return answer

    monkeypatch.setattr("regbot.nodes.fitness.probe", answered)
    return answers


def alike(slow: float = 1.0) -> list[NodeProbe]:
    """Two nodes of which the second takes ``slow`` times as long."""
    return [probe_of("n1"), probe_of("n2", gemm=1.6 * slow)]


def fitness(folder: Path) -> Fitness:
    return Fitness(folder / "nodes", folder / "scratch", lambda: NOW)


def test_healthy_nodes_are_timed_on(tmp_path: Path, probes: list[Sequence[NodeProbe] | ProbeError]) -> None:
    probes.append(alike())
    one = fitness(tmp_path)
    assert one.before(SEAT, NEEDS) == ""
    assert one.unprobed == ""
    assert one.refused() == frozenset()


def test_a_slow_node_is_taken_out_before_anything_is_timed_on_it(
    tmp_path: Path, probes: list[Sequence[NodeProbe] | ProbeError]
) -> None:
    probes.append(alike(1.3))
    one = fitness(tmp_path)
    assert "n2 is slow, whatever runs on it, and is in quarantine now: n2: matrix product 30%" in one.before(
        SEAT, NEEDS
    )
    assert one.refused() == {"n2"}
    assert "n2: in quarantine; 'regbot node show n2' says why" in one.before(SEAT, NEEDS)


def test_this_machine_and_programs_of_one_process_are_not_probed(tmp_path: Path) -> None:
    assert fitness(tmp_path).before(SEAT, Needs(ranks=0)) == ""
    assert fitness(tmp_path).before(LocalEngine().here, NEEDS) == ""


@pytest.mark.parametrize(
    ("slow", "told"), [(1.3, "the others wait for rank 1 (n2)"), (1.0, "")], ids=["slow", "not slow"]
)
def test_a_rank_that_is_late_in_both_arms_accuses_a_node_only_with_a_probe(
    slow: float, told: str, tmp_path: Path, probes: list[Sequence[NodeProbe] | ProbeError]
) -> None:
    probes.append(alike(slow))
    one = fitness(tmp_path)
    found = one.after(SEAT, NEEDS, session([1, 1.3], [1, 1.3], HOSTS))
    assert found.startswith(told)
    assert bool(found) == bool(told)
    evidence = quarantined(tmp_path / "nodes")
    assert [each.rank for host in evidence.values() for each in host.stragglers] == ([1] if told else [])


@pytest.mark.parametrize(("base", "head"), [((1, 1), (1, 1.3)), ((1, 1), (1, 1))], ids=["of the head alone", "nobody"])
def test_what_is_not_in_both_arms_is_not_asked_of_the_nodes(
    base: Sequence[float], head: Sequence[float], tmp_path: Path
) -> None:
    assert fitness(tmp_path).after(SEAT, NEEDS, session(base, head, HOSTS)) == ""


def test_nodes_that_could_not_be_probed_are_said_in_the_first_run_and_in_the_verdict(
    tmp_path: Path, probes: list[Sequence[NodeProbe] | ProbeError]
) -> None:
    probes.append(ProbeError("there is no torch on n2"))
    runs: list[Run] = []
    timing = Timing(
        HEADER, NoCheckouts(), Cluster(), tmp_path, Limits(), runs.append, lambda _: None, fitness(tmp_path)
    )
    timing.run(PLAN, smoke_task(load_shape("mixtral-8x7b"), "cpu"), [], 60.0)
    told = "n1, n2: could not be probed, and count as healthy: there is no torch on n2"
    assert told in runs[0].warnings
    verdict = judge(session_of([run.model_copy(update={"workload": PLAN.entry}) for run in runs]), Config())
    assert any(told in warning for warning in verdict.warnings)
