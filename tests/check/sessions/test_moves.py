"""Sessions that lose their nodes and continue on others: repeated blocks, counted runs and blame."""

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from regbot.check.sessions.schedule import Slot, next_slot
from regbot.check.sessions.timed import SessionRunner
from regbot.engines import Launch, LaunchResult, LocalEngine, Needs, NoSeatError, Seat, SeatLostError
from regbot.judge.pairs import pair_up
from regbot.records.run import Node, Run
from regbot.workloads.guest import Scratch
from support.command_tasks import command_task
from support.timed_builder import HEADER, NODE, PLAN, judged, slot, timed_run

OTHER = NODE.model_copy(update={"name": "node-4"})


def ran(at: Slot, node: Node = NODE, head: float = 1.0, outcome: str = "ok", seed: int = 0) -> Run:
    """Return a run on ``node`` with its own level; head takes ``head`` times as long."""
    level = (0.1 if node is NODE else 0.13) * (head if at.arm == "head" else 1.0)
    draw = random.Random(f"{seed} {at}")
    steps = [level * (1 + draw.gauss(0, 0.001)) for _ in range(at.steps)]
    changes = {"reason": "job 7 on n1: a node failed"} if outcome == "lost" else {}
    return timed_run(at, steps, outcome, node=node, **changes)  # type: ignore[arg-type]


def moved(lost_at: Callable[[int], bool], head: float = 1.0, most: int = 80) -> list[Run]:
    """Return a whole session. Runs whose number satisfies ``lost_at`` are lost, and the next seat is on the other
    node."""
    runs: list[Run] = []
    node = NODE
    while (at := next_slot(runs, HEADER, PLAN, node)) is not None:
        assert len(runs) < most, "the session does not end"
        lost = lost_at(len(runs))
        runs.append(ran(at, node, head, "lost" if lost else "ok"))
        if lost:
            node = OTHER if node is NODE else NODE
    return runs


@pytest.mark.parametrize("at", range(2, 14))
def test_a_session_that_has_moved_is_judged_like_any_other(at: int) -> None:
    runs = moved(lambda number: number == at, head=1.05)
    verdict = judged(runs)
    assert verdict.validity.status == "PASS", verdict.validity.reasons
    assert verdict.throughput is not None
    assert verdict.throughput.decision == "regressed"
    assert verdict.throughput.estimate_pct == pytest.approx(5.0, abs=0.3)
    pairs = pair_up(runs).valid
    assert all(pair.base.node == pair.head.node for pair in pairs)
    blocks = [pair.key.block for pair in pairs]
    assert {blocks.count(block) for block in blocks} == {2}


def test_the_arms_are_warmed_again_on_other_nodes() -> None:
    runs = moved(lambda number: number == 7)
    warm = [(run.node, run.arm.name) for run in runs if run.position is not None and not run.position.block]
    assert warm == [(NODE, "base"), (NODE, "head"), (OTHER, "base"), (OTHER, "head")]


def test_a_failure_of_head_after_a_loss_is_still_blamed_on_head() -> None:
    runs = [ran(slot(0, place, arm)) for place, arm in enumerate(("base", "head"))]
    runs += [ran(slot(1, 0, "base")), ran(slot(1, 1, "head"), outcome="lost")]
    for attempt in (2, 3):
        runs += [ran(slot(0, place, arm, attempt), OTHER) for place, arm in enumerate(("base", "head")) if attempt == 2]
        runs += [ran(slot(1, 0, "base", attempt), OTHER), ran(slot(1, 1, "head", attempt), OTHER, outcome="crashed")]
    verdict = judged(runs)
    assert verdict.validity.status == "FAIL"
    assert next_slot(runs, HEADER, PLAN, OTHER) is None


def test_a_session_that_ends_with_a_loss_is_invalid_and_can_resume() -> None:
    runs = [ran(slot(0, place, arm)) for place, arm in enumerate(("base", "head"))]
    runs += [ran(slot(0, 0, "base", attempt=1), outcome="lost")]
    verdict = judged(runs)
    assert verdict.validity.status == "INVALID"
    assert verdict.validity.reasons == ["job 7 on n1: a node failed; go on with --resume"]
    assert next_slot(runs, HEADER, PLAN, NODE) is not None


# ---- the loop around it


class Losing(LocalEngine):
    """Engine that loses its seats with ``losses`` in turn; None is a seat that stays."""

    def __init__(self, losses: Sequence[Exception | None]) -> None:
        super().__init__()
        self.losses, self.seats = list(losses), 0

    @contextmanager
    def seat(self, needs: Needs) -> Iterator[Seat]:
        loss = self.losses[min(self.seats, len(self.losses) - 1)]
        self.seats += 1
        if isinstance(loss, Exception):
            raise loss
        yield self.unlocked_seat

    def run(self, launch: Launch) -> LaunchResult:
        return super().run(launch)


@pytest.mark.parametrize(
    ("losses", "seats"),
    [
        ([SeatLostError("job 1 did not begin: it was cancelled")], 5),
        ([NoSeatError("there is no partition 'x'")], 1),
        ([SeatLostError("gone"), SeatLostError("gone"), NoSeatError("it has waited too long")], 3),
    ],
)
def test_lost_seats_are_replaced_up_to_a_limit(losses: list[Exception], seats: int, tmp_path: Path) -> None:
    engine, kept = Losing(losses), []
    timing = SessionRunner(HEADER, None, engine, Scratch(tmp_path), kept.append, lambda _: None)  # type: ignore[arg-type]
    runs = timing.run(PLAN, command_task(("{python}", "train.py", "{steps}")), [], 60.0)
    assert engine.seats == seats
    assert runs == kept
    assert [run.outcome for run in runs] == ["lost"]
    assert str(losses[-1]) in runs[0].reason
