"""Stragglers: who the others wait for, from per-rank times of which the answer is known, and whose doing it is."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest

from conftest import Shared
from guest_runs import MIXTRAL, answer, ask, run_script
from ledger_builder import smoke_ledger
from regbot.judge.stragglers import straggler_warnings, stragglers
from regbot.records.ledger import Axis, Ledger
from regbot.records.run import Allocation, RankSteps, Run, Timing
from regbot.stats.stragglers import THRESHOLD, late_ranks, lateness
from timed_builder import slot, timed_run

STEPS, CUT = 40, 2
OWN_S, WIRE_S = 0.1, 0.02


def steps(factors: Sequence[float], noise: float = 0.05, seed: int = 1) -> tuple[list[list[float]], list[list[float]]]:
    """Ranks that do ``factors`` times the same work and then wait for the last: step and wait seconds, [rank][step]."""
    draw = np.random.default_rng(seed)
    own = OWN_S * np.asarray(factors)[:, None] * np.exp(draw.normal(0, noise, (len(factors), STEPS)))
    step = own.max(axis=0) + WIRE_S
    return np.broadcast_to(step, own.shape).tolist(), (step - own).tolist()


def run_of(
    block: int, place: int, arm: str, factors: Sequence[float], hosts: Sequence[str] = (), **more: object
) -> Run:
    """A timed run of ranks that do ``factors`` times the same work; warm-up steps in front."""
    step_s, wait_s = steps(factors, seed=100 * block + place)
    warm = [0.5] * CUT
    ranks = {
        str(rank): RankSteps(
            step_s=[*warm, *step_s[rank]],
            cpu_s=[*warm, *step_s[rank]],
            wait_s=[*warm, *wait_s[rank]],
            memory_bytes=[0] * (STEPS + CUT),
            peak_bytes=0,
        )
        for rank in range(len(factors))
    }
    timing = Timing(
        asked=STEPS + CUT,
        cut=CUT,
        method="the first 2 steps",
        clock="perf_counter",
        step_s=[*warm, *step_s[0]],
        ranks=ranks,
        memory_peak_bytes=0,
        memory_slope_bytes=0.0,
    )
    allocation = Allocation(engine="slurm", hosts=list(hosts)) if hosts else None
    return timed_run(slot(block, place, arm), 0.1, timing=timing, allocation=allocation)


def session(base: Sequence[float], head: Sequence[float], hosts: Sequence[str] = ()) -> list[Run]:
    """Two blocks and the warm launches, in which everything is late."""
    warm = [run_of(0, n, arm, [9.0] + [1.0] * (len(base) - 1), hosts) for n, arm in enumerate(("base", "head"))]
    arms = ("base", "head", "head", "base")
    blocks = [
        run_of(block, place, arm, base if arm == "base" else head, hosts)
        for block in (1, 2)
        for place, arm in enumerate(arms)
    ]
    return [*warm, *blocks]


# ---- arrays


@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_the_rank_that_works_longer_is_the_late_one_by_about_as_much(ranks: int) -> None:
    factors = [1.0] * ranks
    factors[1] = 1.3
    found = late_ranks(*steps(factors))
    assert [each.rank for each in found] == [1]
    assert found[0].slower == pytest.approx(0.3, abs=0.05)
    assert found[0].seconds == pytest.approx(0.3 * OWN_S, rel=0.2)
    assert found[0].steps_share > 0.95


def test_two_slow_ranks_of_eight_are_both_named_the_slower_first() -> None:
    found = late_ranks(*steps([1, 1, 1.2, 1, 1, 1.5, 1, 1]))
    assert [each.rank for each in found] == [5, 2]
    assert [each.slower for each in found] == pytest.approx([0.5, 0.2], abs=0.05)


def test_ranks_that_are_alike_are_not_late() -> None:
    for seed in range(50):
        assert late_ranks(*steps([1.0] * 2, noise=0.1, seed=seed)) == []
        assert late_ranks(*steps([1.0] * 8, noise=0.1, seed=seed)) == []


def test_a_stall_in_a_few_steps_makes_nobody_late() -> None:
    step_s, wait_s = steps([1.0, 1.0], noise=0.01)
    for step in range(0, STEPS, 5):  # a fifth of the steps, twice as long on rank 1
        for rank in (0, 1):
            step_s[rank][step] += OWN_S
        wait_s[0][step] += OWN_S
    assert late_ranks(step_s, wait_s) == []


def test_what_is_longer_in_little_more_than_half_of_the_steps_is_not_late() -> None:
    longer, shorter = steps([1.0, 2.0]), steps([1.0, 0.8])
    step_s, wait_s = (
        [x[:24] + y[24:] for x, y in zip(a, b, strict=True)] for a, b in zip(longer, shorter, strict=True)
    )
    found = lateness(step_s, wait_s)[1]
    assert (found.slower > THRESHOLD, found.steps_share) == (True, 0.6)
    assert not found.late()


@pytest.mark.parametrize(
    ("step_s", "wait_s"),
    [
        ([[0.1] * 20], [[0.0] * 20]),
        ([[0.1] * 9] * 2, [[0.0] * 9] * 2),
        ([[0.1] * 20] * 2, [[0.1] * 20] * 2),
        ([[0.1] * 20] * 2, [[0.0] * 19] * 2),
        ([], []),
    ],
    ids=["one rank", "few steps", "all wait", "unlike", "nothing"],
)
def test_what_cannot_be_told_names_nobody(step_s: list[list[float]], wait_s: list[list[float]]) -> None:
    assert lateness(step_s, wait_s) == []


# ---- runs


def test_a_rank_that_is_late_in_both_arms_comes_with_the_node_or_the_workload() -> None:
    found = stragglers(session([1, 1.3], [1, 1.3], ["n1", "n2"]))
    assert [(each.rank, each.host, each.arms, each.of_an_arm) for each in found] == [
        (1, "n2", ("base", "head"), None),
    ]
    assert found[0].slower_pct == pytest.approx(30, abs=4)
    assert found[0].text.startswith("the others wait for rank 1 (n2): its own work takes ")
    assert "in base and head alike" in found[0].text


@pytest.mark.parametrize("arm", ["base", "head"])
def test_a_rank_that_is_late_in_one_arm_comes_with_that_arm(arm: str) -> None:
    factors: Mapping[str, Sequence[float]] = {"base": [1, 1], "head": [1, 1], arm: [1, 1.3]}
    found = stragglers(session(factors["base"], factors["head"]))
    assert [(each.rank, each.arms, each.of_an_arm) for each in found] == [(1, (arm,), arm)]
    assert found[0].text.endswith(f": that comes with {arm}")


def test_a_rank_that_is_much_later_in_head_comes_with_head_though_it_is_late_in_base_too() -> None:
    (found,) = stragglers(session([1, 1.15], [1, 1.6]))
    assert (found.arms, found.of_an_arm) == (("head",), "head")
    assert found.slower_pct == pytest.approx(60, abs=5)
    assert found.by_arm["base"] == pytest.approx(15, abs=4)


def test_a_rank_that_is_late_in_half_of_an_arms_runs_is_not_named() -> None:
    runs = session([1, 1], [1, 1])
    runs[3], runs[7] = run_of(1, 1, "head", [1, 1.4]), run_of(2, 1, "head", [1, 1.4])
    assert [run.arm.name for run in (runs[3], runs[7])] == ["head", "head"]
    assert stragglers(runs) == []


def test_where_head_alone_was_timed_nothing_is_said_of_whose_doing_it_is() -> None:
    found = stragglers([run for run in session([1, 1.3], [1, 1.3]) if run.arm.name == "head"])
    assert [each.of_an_arm for each in found] == [None]
    assert "the other arm was not timed" in found[0].text


def test_where_all_ranks_of_a_host_are_late_the_host_is_named() -> None:
    slow_host = [1, 1, 1, 1, 1.3, 1.3, 1.3, 1.3]
    found = stragglers(session(slow_host, slow_host, ["n1", "n2"]))
    assert [(each.rank, each.host, each.arms) for each in found] == [(None, "n2", ("base", "head"))]
    assert found[0].slower_pct == pytest.approx(30, abs=5)
    assert found[0].text.startswith("the others wait for all ranks of n2: their own work takes ")


def test_a_host_with_one_late_rank_is_not_blamed_as_a_whole() -> None:
    factors = [1, 1, 1, 1, 1, 1.3, 1, 1]
    assert [(e.rank, e.host) for e in stragglers(session(factors, factors, ["n1", "n2"]))] == [(5, "n2")]


def test_warm_launches_failed_runs_and_logs_name_nobody() -> None:
    runs = session([1, 1], [1, 1])
    assert stragglers(runs) == []  # though the warm launches were late
    assert stragglers([run.model_copy(update={"outcome": "crashed"}) for run in session([1, 2], [1, 2])]) == []


def test_experts_that_get_more_tokens_explain_a_late_rank() -> None:
    runs = []
    for run in session([1, 1.3], [1, 1.3]):
        assert run.timing is not None
        timing = run.timing.model_copy(update={"tokens_per_expert": [100, 100, 130, 130]})
        runs.append(run.model_copy(update={"timing": timing, "ledger": ledger_of_two()}))
    (found,) = stragglers(runs)
    assert found.load_pct == pytest.approx(30)
    assert found.of_the_load
    assert found.text.endswith("its experts get 30% more tokens; that is the workload's, not the node's")


def ledger_of_two() -> Ledger:
    return smoke_ledger().model_copy(update={"axes": {"ep": Axis(size=2, ranks=[0, 1])}})


def test_many_late_ranks_are_counted_and_not_all_named() -> None:
    factors = [1.0] * 10 + [1.3] * 6
    told = straggler_warnings(session(factors, factors))
    assert len(told) == 5
    assert told[-1] == "2 more ranks are late"


def test_a_session_that_moved_does_not_mix_two_machines() -> None:
    here = session([1, 1.3], [1, 1.3], ["n1", "n2"])[:6]
    there = session([1, 1], [1, 1], ["n3", "n4"])[6:]
    assert [(each.rank, each.host) for each in stragglers([*here, *there])] == [(1, "n2")]


def test_the_page_gives_the_thresholds_of_the_code() -> None:
    page = (Path(__file__).parent.parent / "docs" / "stragglers.md").read_text(encoding="utf-8")
    assert f"{THRESHOLD:.0%}" in page


# ---- real ranks


@pytest.fixture
def ranks(shared: Shared) -> Path:
    """Timed runs of the smoke model on two ranks: with rank 1 made 30% slower, and without."""

    def measure(folder: Path) -> None:
        small = {"layers": 1, "sequence": 128}
        for name, share in (("slowed", ["0.3"]), ("alike", [])):
            asked = ask(folder, name, MIXTRAL, geometry=small, mode="timed", steps=30, warmup=5, dispatcher="alltoall")
            run_script("slowed.py", asked, *share)

    return shared("slowed ranks", measure)


def account(folder: Path, name: str) -> tuple[list[list[float]], list[list[float]]]:
    both = [answer(folder, name, rank)["steps"] for rank in range(2)]
    return [steps["step_s"][5:] for steps in both], [steps["wait_s"][5:] for steps in both]


@pytest.mark.long
def test_a_real_rank_that_is_made_30_percent_slower_is_named_with_about_that(ranks: Path) -> None:
    (found,) = late_ranks(*account(ranks, "slowed"))
    assert found.rank == 1
    assert 0.15 < found.slower < 0.5
    assert found.steps_share > 0.8
    step_s = account(ranks, "slowed")[0]
    assert np.median(step_s[0]) == pytest.approx(np.median(step_s[1]), rel=0.1), "step times alone show nothing"


@pytest.mark.slow
def test_real_ranks_that_are_alike_are_not_named(ranks: Path) -> None:
    assert late_ranks(*account(ranks, "alike")) == []
