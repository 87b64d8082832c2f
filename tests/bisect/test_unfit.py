"""Nodes that go away, or that spoil every run: nothing of that counts against a commit, and another session goes on."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from regbot.bisect.costs import CommandMeasurer
from regbot.bisect.driver import VOID_LIMIT, MeasurementRequest, Measurer, drive
from regbot.bisect.history import list_commits
from regbot.bisect.measure import PointCheckouts, SessionSeat
from regbot.bisect.step_times import StepTimeMeasurer
from regbot.check.sessions.worktrees import Worktrees
from regbot.engines import LocalEngine, Needs, NoSeatError, SeatLostError
from regbot.records.bisection import Observation
from support.bisect_cases import span
from support.git_repos import Repository

LOST = "job 7 on n1: a node failed"
NEVER = "no node of this partition has so many GPUs"


class Nodes(LocalEngine):
    """This machine, as nodes that are lost as often as told: while they are waited for, or under a run."""

    def __init__(self, queued: int = 0, running: int = 0, error: type[NoSeatError] = SeatLostError) -> None:
        super().__init__()
        self.queued, self.running, self.error = queued, running, error

    def _lose(self, what: str) -> None:
        if getattr(self, what):
            setattr(self, what, getattr(self, what) - 1)
            raise self.error(LOST if self.error is SeatLostError else NEVER)

    @contextmanager
    def seat(self, needs: Needs) -> Iterator[Any]:
        self._lose("queued")

        def run(launch: Any) -> Any:
            self._lose("running")
            return LocalEngine.run(self, launch)

        yield SimpleNamespace(run=run)


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    made = Repository.create(tmp_path / "repository")
    for number in range(2):
        made.commit(str(number), {"cost": f"{number + 1}\n"})
    return made


def costs(
    repository: Repository, tmp_path: Path, nodes: Nodes, stack: ExitStack
) -> tuple[CommandMeasurer, MeasurementRequest]:
    trees = Worktrees(repository.path, tmp_path / "cache", lambda _: None)
    ground = PointCheckouts(trees, lambda _: None)
    seat = SessionSeat(nodes, Needs(ranks=0, name="test"), stack)
    good = list_commits(repository.path, "HEAD~1", "HEAD").points[0]
    measurer = CommandMeasurer("cat cost", ground, nodes, seat, tmp_path / "out", exact=False, timeout_min=1.0)
    return measurer, MeasurementRequest(good)


def once(measurer: Measurer, wanted: MeasurementRequest) -> tuple[bool, list[Observation]]:
    """Measure until one run can be used."""
    made: list[Observation] = []
    ended = drive(made, lambda known, _: None if any(o.usable for o in known) else wanted, measurer, lambda _: None)
    return ended, made


@pytest.mark.parametrize(("queued", "running"), [(2, 0), (0, 2), (1, 1)])
def test_a_command_goes_on_where_its_nodes_were_lost(
    repository: Repository, tmp_path: Path, queued: int, running: int
) -> None:
    with ExitStack() as stack:
        ended, made = once(*costs(repository, tmp_path, Nodes(queued, running), stack))
    assert ended
    assert [(run.void, run.usable) for run in made] == [(True, False), (True, False), (False, True)]
    assert {observation.reason for observation in made[:2]} == {LOST}
    assert len({observation.stratum for observation in made}) == 3, "other nodes have a level of their own"


def test_nodes_that_are_always_lost_end_a_bisection_that_can_go_on(repository: Repository, tmp_path: Path) -> None:
    with ExitStack() as stack:
        ended, made = once(*costs(repository, tmp_path, Nodes(queued=99), stack))
    assert (ended, len(made)) == (False, VOID_LIMIT)


@pytest.mark.parametrize("when", ["queued", "running"])
def test_nodes_that_will_never_be_had_are_no_fault_of_the_moment(
    repository: Repository, tmp_path: Path, when: str
) -> None:
    nodes = Nodes(when == "queued", when == "running", NoSeatError)
    with ExitStack() as stack:
        measurer, wanted = costs(repository, tmp_path, nodes, stack)
        with pytest.raises(NoSeatError, match=NEVER):
            measurer.measure(wanted)


def test_the_seat_has_the_level_of_the_check_until_its_nodes_are_lost(tmp_path: Path) -> None:
    with ExitStack() as stack:
        seat = SessionSeat(Nodes(queued=1), Needs(ranks=1, name="test"), stack, "check of today")
        timed = StepTimeMeasurer(None, None, None, seat, tmp_path, None)  # type: ignore[arg-type]
        observation = timed.measure(MeasurementRequest(span(2).points[0]))
        assert (observation.void, observation.reason, observation.stratum) == (True, LOST, "check of today")
        assert timed.stratum() not in ("", "check of today")
        assert seat.reserve() is not None
