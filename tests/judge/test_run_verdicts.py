"""Numbers of one timed run in the verdict: which steps and ranks they are of, and where they are repeated."""

import random

import pytest

from regbot.check.sessions.schedule import Slot
from regbot.judge import judge
from regbot.records.config import Config
from regbot.records.run import Run
from regbot.report import comment, html
from support.timed_builder import HEADER, PLAN, play, session_of, timed_run, timing
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
