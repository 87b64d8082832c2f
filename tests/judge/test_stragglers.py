"""Stragglers: late ranks and their causes, from per-rank times with known answers."""

from collections.abc import Mapping, Sequence

import pytest

from regbot.judge.stragglers import find_stragglers
from regbot.stats.stragglers import Lateness, rank_lateness
from support.straggler_cases import OWN_S, STEPS, run_of, session, steps

# ---- arrays


def late_ranks(step_s: Sequence[Sequence[float]], wait_s: Sequence[Sequence[float]]) -> list[Lateness]:
    """Return the late ranks, the latest first."""
    return sorted((rank for rank in rank_lateness(step_s, wait_s) if rank.is_late), key=lambda rank: -rank.log_ratio)


@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_the_rank_that_works_longer_is_the_late_one_by_about_as_much(ranks: int) -> None:
    factors = [1.0] * ranks
    factors[1] = 1.3
    late = late_ranks(*steps(factors))
    assert [lateness.rank for lateness in late] == [1]
    assert late[0].slowdown == pytest.approx(0.3, abs=0.05)
    assert late[0].seconds == pytest.approx(0.3 * OWN_S, rel=0.2)
    assert late[0].steps_share > 0.95


def test_ranks_that_are_alike_are_not_late() -> None:
    for seed in range(50):
        assert late_ranks(*steps([1.0] * 2, noise=0.1, seed=seed)) == []
        assert late_ranks(*steps([1.0] * 8, noise=0.1, seed=seed)) == []


def test_a_stall_in_a_few_steps_makes_no_rank_late() -> None:
    step_s, wait_s = steps([1.0, 1.0], noise=0.01)
    for step in range(0, STEPS, 5):  # a fifth of the steps, twice as long on rank 1
        for rank in (0, 1):
            step_s[rank][step] += OWN_S
        wait_s[0][step] += OWN_S
    assert late_ranks(step_s, wait_s) == []


# ---- runs


def test_a_rank_that_is_late_in_both_arms_is_caused_by_the_node_or_the_workload() -> None:
    stragglers = find_stragglers(session([1, 1.3], [1, 1.3], ["n1", "n2"]))
    assert [(late.rank, late.host, late.arms, late.responsible_arm) for late in stragglers] == [
        (1, "n2", ("base", "head"), None)
    ]
    assert stragglers[0].slower_pct == pytest.approx(30, abs=4)
    assert stragglers[0].text.startswith("the others wait for rank 1 (n2): its own work takes ")
    assert "in base and head alike" in stragglers[0].text


@pytest.mark.parametrize("arm", ["base", "head"])
def test_a_rank_that_is_late_in_one_arm_is_caused_by_that_arm(arm: str) -> None:
    factors: Mapping[str, Sequence[float]] = {"base": [1, 1], "head": [1, 1], arm: [1, 1.3]}
    stragglers = find_stragglers(session(factors["base"], factors["head"]))
    assert [(straggler.rank, straggler.arms, straggler.responsible_arm) for straggler in stragglers] == [
        (1, (arm,), arm)
    ]
    assert stragglers[0].text.endswith(f": the cause is {arm}")


def test_a_rank_that_is_much_later_in_head_is_caused_by_head() -> None:
    (straggler,) = find_stragglers(session([1, 1.15], [1, 1.6]))
    assert (straggler.arms, straggler.responsible_arm) == (("head",), "head")
    assert straggler.slower_pct == pytest.approx(60, abs=5)
    assert straggler.by_arm["base"] == pytest.approx(15, abs=4)


def test_a_rank_that_is_late_in_half_of_an_arms_runs_is_not_named() -> None:
    runs = session([1, 1], [1, 1])
    runs[3], runs[7] = run_of(1, 1, "head", [1, 1.4]), run_of(2, 1, "head", [1, 1.4])
    assert [run.arm.name for run in (runs[3], runs[7])] == ["head", "head"]
    assert find_stragglers(runs) == []


def test_warm_launches_failed_runs_and_logs_name_nobody() -> None:
    runs = session([1, 1], [1, 1])
    assert find_stragglers(runs) == []  # though the warm launches were late
    assert find_stragglers([run.model_copy(update={"outcome": "crashed"}) for run in session([1, 2], [1, 2])]) == []


def test_a_session_that_moved_does_not_mix_two_machines() -> None:
    here = session([1, 1.3], [1, 1.3], ["n1", "n2"])[:6]
    there = session([1, 1], [1, 1], ["n3", "n4"])[6:]
    assert [(each.rank, each.host) for each in find_stragglers([*here, *there])] == [(1, "n2")]
