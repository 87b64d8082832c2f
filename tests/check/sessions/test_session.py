"""The schedule of a session: the next run depends only on the runs so far."""

from collections import Counter

import pytest

from regbot.check.sessions.blocks import BLOCK_SLOTS
from regbot.check.sessions.schedule import (
    WARM_STEPS,
    Slot,
    can_afford_block,
    next_slot,
)
from regbot.records.run import Outcome, Run
from support.timed_builder import HEADER, PLAN, noisy, play, timed_run


def places(runs: list[Run]) -> list[tuple[int, int, int, str]]:
    return [(run.position.block, run.attempt, run.position.slot, run.arm.name) for run in runs if run.position]


def failing(at: set[tuple[int, int, int]], outcome: Outcome = "crashed"):  # type: ignore[no-untyped-def]
    """Return a launcher that fails if (block, attempt, slot) is in ``at``; head is 50% slower."""

    def launch(slot: Slot) -> Run:
        if (slot.position.block, slot.attempt, slot.position.slot) in at:
            return timed_run(slot, 0.1, outcome)
        return timed_run(slot, 0.15 if slot.arm == "head" else 0.1)

    return launch


def test_a_session_begins_with_one_short_warm_launch_of_each_arm() -> None:
    runs = play(noisy(1.5, 0.001))
    assert [run.position.block for run in runs[:3] if run.position] == [0, 0, 1]
    assert {run.arm.name for run in runs[:2]} == {"base", "head"}
    first = next_slot([], HEADER, PLAN)
    assert first is not None
    assert first.steps == WARM_STEPS < PLAN.steps


def test_every_block_is_abba_or_baab_and_both_occur() -> None:
    seen: Counter[str] = Counter()
    for seed in range(30):
        header = HEADER.model_copy(update={"seed": seed})
        arms = [run.arm.name[0] for run in play(noisy(1.5, 0.001), header)[2:]]
        for start in range(0, len(arms), BLOCK_SLOTS):
            seen["".join(arms[start : start + BLOCK_SLOTS])] += 1
    assert seen.keys() == {"bhhb", "hbbh"}
    assert min(seen.values()) > 15


def test_a_clear_difference_ends_the_session_at_the_first_look() -> None:
    assert len(play(noisy(1.5, 0.001))) == 2 + 2 * BLOCK_SLOTS


def test_no_look_is_taken_between_the_looks() -> None:
    lengths = {len(play(noisy(1.028, 0.004, seed))) for seed in range(25)}
    assert lengths <= {10, 18, 26}
    assert len(lengths) > 1


@pytest.mark.parametrize(
    ("at", "outcome", "block", "expected"),
    [
        ({(2, 1, 1)}, "crashed", 2, [(1, 0), (1, 1), (2, 0), (2, 1), (2, 2), (2, 3)]),  # a block is repeated once
        ({(0, 1, 0)}, "crashed", 0, [(1, 0), (2, 0), (2, 1)]),  # a warm launch is repeated with its partner
        ({(1, 1, 2), (1, 2, 0)}, "crashed", 1, [(1, 0), (1, 1), (1, 2), (2, 0)]),  # two failures end the session
        ({(0, 1, 1)}, "refused", 0, [(1, 0), (1, 1)]),  # a refused run is not repeated
    ],
)
def test_a_block_with_a_failed_run_is_repeated_once(
    at: set[tuple[int, int, int]], outcome: Outcome, block: int, expected: list[tuple[int, int]]
) -> None:
    runs = places(play(failing(at, outcome)))
    assert [(attempt, slot) for number, attempt, slot, _ in runs if number == block] == expected
    assert max(number for number, *_ in runs) == (block if outcome == "refused" or len(at) == 2 else 2)


def test_an_interrupted_session_continues_with_the_same_runs() -> None:
    whole = play(failing({(1, 1, 2), (2, 1, 0)}))
    for length in range(len(whole)):
        assert places(play(failing({(1, 1, 2), (2, 1, 0)}), runs=whole[:length])) == places(whole)


@pytest.mark.parametrize(("budget_s", "blocks"), [(1.0, 0), (47.0, 1), (71.0, 2), (10_000.0, 6)])
def test_a_block_is_begun_only_if_it_fits_the_budget(budget_s: float, blocks: int) -> None:
    runs: list[Run] = []
    launch = noisy(1.0, 0.2)
    while (following := next_slot(runs, HEADER, PLAN)) is not None:
        if following.position.slot == 0 and not can_afford_block(runs, budget_s):
            break
        runs.append(launch(following))
    assert max((run.position.block for run in runs if run.position), default=0) == blocks
    assert len(runs) in (0, 2, 2 + 4 * blocks)
