"""Nodes that go away, or that spoil every run: nothing of that counts against a commit, and another session goes on."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from regbot.bisect.costs import CommandMeasurer
from regbot.bisect.driver import VOID_LIMIT, drive
from regbot.bisect.history import list_commits
from regbot.bisect.measure import Measurer, PointCheckouts
from regbot.bisect.noisy import BLOCK_VOID_LIMIT, MOVED_MARKER, ContrastSides, MeasurementRequest, evaluate_contrast
from regbot.bisect.noisy_answer import decide_outcome
from regbot.bisect.seats import Seats
from regbot.bisect.step_times import StepTimeMeasurer
from regbot.engines import LocalEngine, Needs, NoSeatError, SeatLostError
from regbot.records.bisection import Observation
from regbot.sessions.blocks import draw_order
from regbot.sessions.worktrees import Worktrees
from regbot.stats.paired import Thresholds
from support.bisect_cases import SD, TERMS, Runs, Searched, search, span, step
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
    repository: Repository, tmp_path: Path, nodes: Nodes, seats: bool = True
) -> tuple[CommandMeasurer, MeasurementRequest]:
    cache = tmp_path / "cache"
    ground = PointCheckouts(Worktrees(repository.path, cache, lambda _: None), ())
    taken = Seats(nodes, Needs(ranks=0, name="test")) if seats else None
    good = list_commits(repository.path, "HEAD~1", "HEAD").points[0]
    return CommandMeasurer(
        "cat cost", ground, nodes, taken, tmp_path / "out", exact=False, timeout_min=1.0
    ), MeasurementRequest(good, "search")


def some(measurer: Measurer, wanted: MeasurementRequest, usable: int) -> tuple[str, list[Observation]]:
    """How measuring ends that goes on until so many runs can be used."""
    made: list[Observation] = []
    ended = drive(
        made, lambda known, *_: [wanted] if sum(o.usable for o in known) < usable else [], measurer, lambda _: None
    )
    return ended, made


@pytest.mark.parametrize(("queued", "running"), [(2, 0), (0, 2), (1, 1)])
def test_a_command_goes_on_where_its_nodes_were_lost(
    repository: Repository, tmp_path: Path, queued: int, running: int
) -> None:
    measurer, wanted = costs(repository, tmp_path, Nodes(queued, running))
    ended, made = some(measurer, wanted, 1)
    assert ended == "done"
    assert [(observation.void, observation.usable) for observation in made] == [
        (True, False),
        (True, False),
        (False, True),
    ]
    assert {observation.reason for observation in made[:2]} == {LOST}
    assert len({observation.stratum for observation in made}) == 3, "other nodes have a level of their own"


def test_nodes_that_are_always_lost_end_a_bisection_that_can_go_on(repository: Repository, tmp_path: Path) -> None:
    measurer, wanted = costs(repository, tmp_path, Nodes(queued=99))
    ended, made = some(measurer, wanted, 1)
    assert (ended, len(made)) == ("spoilt", VOID_LIMIT)


@pytest.mark.parametrize("when", ["queued", "running"])
def test_nodes_that_will_never_be_had_are_no_fault_of_the_moment(
    repository: Repository, tmp_path: Path, when: str
) -> None:
    measurer, wanted = costs(repository, tmp_path, Nodes(when == "queued", when == "running", NoSeatError))
    with pytest.raises(NoSeatError, match=NEVER):
        measurer.measure(wanted, 0)


def test_timed_runs_whose_job_was_lost_in_the_queue_take_another(tmp_path: Path) -> None:
    seats = Seats(Nodes(queued=1), Needs(ranks=1, name="test"))
    timed = StepTimeMeasurer(None, None, None, seats, tmp_path, None)  # type: ignore[arg-type]
    wanted = MeasurementRequest(span(2).points[0], "search")
    observation = timed.measure(wanted, 0)
    assert (observation.void, observation.usable, observation.reason) == (True, False, LOST)
    assert observation.stratum != timed.stratum(0) != ""
    assert seats.seat(0) is not None


# ---- a confirmation that the node spoilt


def spoils_confirmations(wanted: MeasurementRequest, _: int) -> str:
    return "void" if wanted.purpose == "confirm" else ""


def standing(found: Searched) -> tuple[str, str]:
    site: Any = SimpleNamespace(header=SimpleNamespace(confirm=True, smallest_pct=1.0, posterior=0.95))
    status, reasons = decide_outcome(site, found.root, found.observations)
    return status, " ".join(reasons)


def test_a_confirmation_that_one_node_spoilt_is_made_on_the_next() -> None:
    sick = search(span(8), Runs(step(4, 5 * SD), fails=spoils_confirmations))
    assert sum(observation.void for observation in sick.observations) == BLOCK_VOID_LIMIT
    status, message = standing(sick)
    assert status == "undecided", "the node did not let the pairs decide"
    assert "continue with --resume" in message

    fit = Runs(step(4, 5 * SD), session="another node").after(sick.observations)
    result = search(span(8), fit, observations=sick.observations)
    assert result.root.gate is not None
    assert (result.root.gate.decision, result.root.gate_finished) == ("regressed", True)
    assert standing(result) == ("culprit", "")


def test_to_lose_nodes_begins_no_session() -> None:
    """Nodes that end after every second run would otherwise be asked for for ever."""
    one, other = span(2).points[:2]
    limits = Thresholds(0.01, 0.005)

    def spoilt(*strata: str) -> list[Observation]:
        return [
            Observation(point=one.key, purpose="confirm", contrast="x", block=1, stratum=at, usable=False, void=True)
            for at in strata
        ]

    moved = spoilt("7 0", *(f"7 0{MOVED_MARKER}{number}" for number in range(1, BLOCK_VOID_LIMIT)))
    assert evaluate_contrast(
        ContrastSides("x", one, other), moved, (), TERMS.seed, limits, f"7 0{MOVED_MARKER}{BLOCK_VOID_LIMIT}"
    ).nodes_unfit
    fresh = evaluate_contrast(ContrastSides("x", one, other), moved, (), TERMS.seed, limits, "8 0")
    assert not fresh.finished
    assert fresh.requests == [
        MeasurementRequest(one if draw_order(TERMS.seed, "x", 1)[0] == "A" else other, "confirm", "x", 1)
    ]
    days = spoilt(*(f"{number} 0" for number in range(BLOCK_VOID_LIMIT)))
    assert not evaluate_contrast(ContrastSides("x", one, other), days, (), TERMS.seed, limits, "9 0").finished
