"""The losses of base and head, compared over launches or over draws of compiler caches."""

import random
from collections.abc import Callable, Sequence

import pytest

from regbot.check.sessions.schedule import Slot
from regbot.judge.pairs import Pair, pair_up
from regbot.judge.training import TrainingDifferences, compare_training
from regbot.records.run import Run
from support.timed_builder import HEADER, PLAN, play, slot, timed_run

Loss = Callable[[str, random.Random], float]
"""Offset of the loss of a launch, by its arm."""


def run_with(place: Slot, offset: float, draw: int | None = None) -> Run:
    losses = [5.0 - 0.01 * step + offset for step in range(place.steps)]
    run = timed_run(place, 0.1, loss=losses)
    assert run.position is not None
    return run.model_copy(update={"position": run.position.model_copy(update={"draw": draw})})


def pairs_of(count: int, loss: Loss, draws: Sequence[int] = (), seed: int = 0) -> Sequence[Pair]:
    """Pairs of launches whose losses differ by ``loss``. ``draws`` has the draw of each pair, if caches are drawn."""
    chance = random.Random(seed)
    runs = []
    for pair in range(count):
        block, first = pair // 2 + 1, 2 * (pair % 2)
        for place, arm in ((first, "base"), (first + 1, "head")):
            runs.append(run_with(slot(block, place, arm), loss(arm, chance), draws[pair] if draws else None))
    return pair_up(runs).valid


def constant(by: float, noise: float = 0.0015) -> Loss:
    return lambda arm, chance: (by if arm == "head" else 0.0) + chance.gauss(0, noise)


@pytest.mark.parametrize("pairs", [4, 8, 12])
def test_a_constant_difference_is_found_from_four_pairs_on_and_chance_rarely_is(pairs: int) -> None:
    found = [bool(compare_training(pairs_of(pairs, constant(0.012), seed=seed)).proven) for seed in range(60)]
    false = [bool(compare_training(pairs_of(pairs, constant(0.0), seed=seed)).proven) for seed in range(200)]
    assert sum(found) >= 57
    assert sum(false) <= 7


@pytest.mark.parametrize(
    ("pairs", "by", "noise", "proven", "undecided"),
    [
        (3, 0.05, 0.0, False, True),  # three launches of each arm
        (4, 0.05, 0.0, True, False),
        (4, 0.0098, 0.0, False, False),  # less than the rounding of bfloat16, 0.2% of a loss of 4.965
        (4, 0.0101, 0.0, True, False),
        (4, -0.05, 0.0, True, False),
        (4, 0.05, 0.05, False, False),
    ],
)
def test_more_than_rounding_and_more_than_chance(
    pairs: int, by: float, noise: float, proven: bool, undecided: bool
) -> None:
    result = compare_training(pairs_of(pairs, constant(by, noise)))
    assert (bool(result.proven), bool(result.undecided)) == (proven, undecided)


def kernels(chosen: dict[tuple[str, int], float]) -> Callable[[int], TrainingDifferences]:
    """Two kernels are drawn with the caches of each arm. Returns the result after so many draws of four pairs."""

    def compare(draws: int) -> TrainingDifferences:
        numbers = [1 + pair // 4 for pair in range(4 * draws)]
        runs = [
            run_with(slot(pair // 2 + 1, 2 * (pair % 2) + place, arm), chosen[arm, number], number)
            for pair, number in enumerate(numbers)
            for place, arm in enumerate(("base", "head"))
        ]
        return compare_training(pair_up(runs).valid)

    return compare


def test_a_kernel_that_is_drawn_with_the_caches_is_no_other_training() -> None:
    after = kernels({("base", 1): 0.0, ("head", 1): 0.1, ("base", 2): 0.0, ("head", 2): 0.1,
                     ("base", 3): 0.1, ("head", 3): 0.0})  # fmt: skip
    for draws in (1, 2):
        assert after(draws).proven == []
        assert after(draws).undecided[0].endswith("3 draws of compiler caches of each arm would tell it from chance")
    assert after(3) == TrainingDifferences([], [])


def test_a_difference_in_every_draw_is_another_training() -> None:
    always = {(arm, draw): 0.1 if arm == "head" else 0.0 for arm in ("base", "head") for draw in (1, 2, 3)}
    assert "its mean loss is 5.065 and base's is 4.965" in kernels(always)(3).proven[0]


def test_a_late_divergence_is_found_in_the_last_quarter() -> None:
    steps = PLAN.steps
    late = [7.0] * (steps - steps // 4) + [7.02] * (steps // 4)
    runs = [timed_run(slot(b, p, arm), 0.1, loss=late if arm == "head" else [7.0] * steps)
            for b in (1, 2) for p, arm in enumerate(("base", "head", "head", "base"))]  # fmt: skip
    (proven,) = compare_training(pair_up(runs).valid).proven
    assert "its loss over the last quarter is 7.02 and base's is 7" in proven


def test_a_session_goes_on_until_the_training_is_known() -> None:
    """Head trains differently. With fresh caches that needs three draws, so the four pairs that show no slowdown do not
    end the session."""
    header = HEADER.model_copy(update={"timed": [PLAN.model_copy(update={"fresh_caches": True})]})
    runs = play(lambda place: run_with(place, 0.1 if place.arm == "head" else 0.0, place.position.draw), header)
    valid = pair_up(runs).valid
    assert len(valid) == 12
    assert compare_training(valid).proven
