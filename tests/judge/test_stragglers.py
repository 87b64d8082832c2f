"""Stragglers: late ranks and their causes, from per-rank times with known answers."""

import re
from collections.abc import Sequence

import pytest

from regbot.judge.stragglers import warn_of_stragglers
from regbot.stats.stragglers import Lateness, rank_lateness
from support.straggler_cases import OWN_S, STEPS, run_of, session, steps

# ---- arrays


def late_ranks(step_s: Sequence[Sequence[float]], wait_s: Sequence[Sequence[float]]) -> dict[int, Lateness]:
    return {rank: lateness for rank, lateness in enumerate(rank_lateness(step_s, wait_s)) if lateness.is_late}


@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_the_rank_that_works_longer_is_the_late_one_by_about_as_much(ranks: int) -> None:
    factors = [1.0] * ranks
    factors[1] = 1.3
    late = late_ranks(*steps(factors))
    assert list(late) == [1]
    assert late[1].slowdown == pytest.approx(0.3, abs=0.05)
    assert late[1].seconds == pytest.approx(0.3 * OWN_S, rel=0.2)
    assert late[1].steps_share > 0.95


def test_ranks_that_are_alike_are_not_late() -> None:
    for seed in range(50):
        assert late_ranks(*steps([1.0] * 2, noise=0.1, seed=seed)) == {}
        assert late_ranks(*steps([1.0] * 8, noise=0.1, seed=seed)) == {}


def test_a_stall_in_a_few_steps_makes_no_rank_late() -> None:
    step_s, wait_s = steps([1.0, 1.0], noise=0.01)
    for step in range(0, STEPS, 5):  # a fifth of the steps, twice as long on rank 1
        for rank in (0, 1):
            step_s[rank][step] += OWN_S
        wait_s[0][step] += OWN_S
    assert late_ranks(step_s, wait_s) == {}


# ---- runs


@pytest.mark.parametrize(
    ("base", "head", "slower_pct", "cause"),
    [
        (1.3, 1.3, 30, r"in base and head alike \(\+(2\d|3\d)% and \+(2\d|3\d)%\): .*or it gets more work"),
        (1.3, 1, 30, r"in base, and [+-]\d+% in head: the cause is base"),
        (1, 1.3, 30, r"in head, and [+-]\d+% in base: the cause is head"),
        (1.15, 1.6, 60, r"in head, and \+1\d% in base: the cause is head"),  # much later in head
    ],
)
def test_a_late_rank_is_caused_by_the_arm_in_which_it_is_late_or_by_its_node(
    base: float, head: float, slower_pct: float, cause: str
) -> None:
    (text,) = warn_of_stragglers(session([1, base], [1, head], ["n1", "n2"]))
    beginning = r"the others wait for rank 1 \(n2\): its own work takes (\d+)% longer \(.* ms per step, in .*%"
    match = re.fullmatch(rf"{beginning} of the steps\),? {cause}", text)
    assert match is not None, text
    assert float(match[1]) == pytest.approx(slower_pct, abs=5)


def test_a_rank_that_is_late_in_half_of_an_arms_runs_is_not_named() -> None:
    runs = session([1, 1], [1, 1])
    runs[3], runs[7] = run_of(1, 1, "head", [1, 1.4]), run_of(2, 1, "head", [1, 1.4])
    assert [run.arm.name for run in (runs[3], runs[7])] == ["head", "head"]
    assert warn_of_stragglers(runs) == []


def test_warm_launches_and_failed_runs_name_nobody() -> None:
    assert warn_of_stragglers(session([1, 1], [1, 1])) == []  # though the warm launches were late
    crashed = [run.model_copy(update={"outcome": "crashed"}) for run in session([1, 2], [1, 2])]
    assert warn_of_stragglers(crashed) == []


def test_a_session_that_moved_does_not_mix_two_machines() -> None:
    here = session([1, 1.3], [1, 1.3], ["n1", "n2"])[:6]
    there = session([1, 1], [1, 1], ["n3", "n4"])[6:]
    (text,) = warn_of_stragglers([*here, *there])
    assert text.startswith("the others wait for rank 1 (n2)")
