"""Numbers of one timed run in the verdict: which steps and ranks they are of, and where they are repeated."""

import random

import pytest

from regbot.check.sessions.schedule import Slot
from regbot.judge import judge
from regbot.judge.pairs import pair_up
from regbot.judge.run_verdicts import compare_ranks, run_verdicts
from regbot.records.config import Config
from regbot.records.run import Run
from regbot.report import comment, html
from support.timed_builder import HEADER, PLAN, play, session_of, slot, timed_run, timing
from support.verdict_page import Page, section_of

LONG = PLAN.model_copy(update={"steps": 60, "cut": 10})


def slow_start(at: Slot, seconds: float, slow: int) -> Run:
    """A run whose first ``slow`` steps take twice as long."""
    draw = random.Random(str(at))
    steps = [seconds * (2.0 if step < slow else 1.0) * (1 + draw.gauss(0, 0.002)) for step in range(at.steps)]
    return timed_run(at, steps, timing=timing(steps).model_copy(update={"cut": min(LONG.cut, at.steps)}))


# ---- the three places that disagreed with the judge


def test_a_block_that_lost_its_nodes_twice_has_pairs_in_its_last_attempt_only() -> None:
    lost = {(1, 1, 3), (1, 2, 3)}

    def launch(at: Slot) -> Run:
        is_lost = (at.position.block, at.attempt, at.position.slot) in lost
        return timed_run(at, 0.12 if at.arm == "head" else 0.1, "lost" if is_lost else "ok")

    session = session_of(play(launch))
    verdict = judge(session, Config())
    section = section_of(verdict)
    dots = [dot for dot in Page(html(verdict, session)).dots if dot["data-role"] == "pair"]
    assert (section.pairs, len(dots)) == (4, 8)
    assert comment(verdict, session).count("| pair |") == 8


def test_the_mean_of_a_run_leaves_out_the_steps_before_its_steady_state() -> None:
    header_ = HEADER.model_copy(update={"timed": [LONG]})
    session = session_of(play(lambda at: slow_start(at, 0.1, 20), header_), header_)
    verdict = judge(session, Config())
    means = [float(row[5].removesuffix(" ms")) for row in Page(html(verdict, session)).runs if row[6] == "pair"]
    assert means == pytest.approx([100.0] * len(means), abs=0.5), "and not the 120 ms of all steps after the plan's cut"


STEPS_S = [9.0, 9.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6]
"""The first three are the warm-up."""


def uneven(place: int, arm: str, peak_bytes: int) -> Run:
    """A run of three ranks. Two of them take half as long and record no waits."""
    made = timing(STEPS_S)
    half = {"step_s": [step / 2 for step in STEPS_S], "wait_s": [], "peak_bytes": peak_bytes}
    fast = made.ranks["0"].model_copy(update=half)
    ranks = {"10": fast, "0": made.ranks["0"], "2": fast}
    return timed_run(slot(1, place, arm), STEPS_S, timing=made.model_copy(update={"ranks": ranks}))


def test_a_run_has_its_role_the_quartiles_of_its_slowest_rank_and_medians_of_every_rank() -> None:
    places = enumerate(("base", "head", "head", "base"))
    block = [uneven(place, arm, peak_bytes=10**6 * (1 + place)) for place, arm in places]
    runs = [timed_run(slot(0, 0, "base"), 0.5), *block, timed_run(slot(2, 0, "base"), 0.1)]
    of_first_pair, of_all = (run_verdicts(runs, pair_up(runs), used) for used in (1, None))
    roles = [(verdict.role, verdict.pair) for verdict in of_first_pair]
    assert roles == [("warm-up", None), ("pair", 1), ("pair", 1), ("unused", 2), ("unused", 2), ("unused", None)]
    assert [verdict.wall_s for verdict in of_all] == [run.wall_s for run in runs]
    assert (of_all[1].low_quartile_s, of_all[1].high_quartile_s) == pytest.approx((0.3, 0.5))
    slow, fast, last = compare_ranks(of_all)
    assert (slow.rank, fast.rank, last.rank) == ("0", "2", "10")
    assert slow.base is not None
    assert fast.base is not None
    assert (slow.base.wait_s, fast.base.wait_s) == (pytest.approx(0.25 * 0.4), None)
    assert (fast.base.step_s, fast.base.peak_bytes) == (pytest.approx(0.2), 4 * 10**6)
