"""The numbers of a verdict follow from the numbers of its runs, for any kind of session."""

import math
import random
from functools import cache
from statistics import median

import numpy as np
import pytest

from regbot.check.sessions.schedule import next_slot
from regbot.judge import judge
from regbot.judge.pairs import pair_up
from regbot.records.config import Config
from regbot.records.health import Cause
from regbot.records.run import RankSteps, Run, Timing
from regbot.records.session import Session
from regbot.records.verdict import RunVerdict, Throughput, Verdict
from support.health_builder import gpu, health
from support.stored_cases import NOISE, calibrated, header, reference, run_at
from support.timed_builder import HEADER, NODE, noisy, play, session_of, timing
from support.verdict_page import section_of

SEEDS = 40
RANKS = 4

OTHER = NODE.model_copy(update={"name": "node-4"})


def uneven(step_s: list[float], cut: int, draw: random.Random) -> Timing:
    """Return the timing of ranks that differ in step time, CPU time, waiting and memory. Some lack some of them."""
    made = timing(step_s, peak_bytes=draw.randrange(10**8, 10**9))
    ranks = {"0": made.ranks["0"]}
    for name in ("1", "10", "2"):
        share, peak_bytes = draw.uniform(0.99, 1.0), draw.choice([0, draw.randrange(1, 10**8)])
        ranks[name] = RankSteps(
            step_s=[share * seconds for seconds in step_s],
            cpu_s=[draw.uniform(0.1, 0.5) * seconds for seconds in step_s] if name != "10" else [],
            wait_s=[draw.uniform(0.0, 0.5) * seconds for seconds in step_s] if name != "2" else [],
            memory_bytes=[peak_bytes] * len(step_s),
            peak_bytes=peak_bytes,
        )
    return made.model_copy(update={"cut": cut, "ranks": ranks})


def earlier_session() -> list[Run]:
    """Return the runs of an earlier session on the same trees, as a later session joins them."""
    pairs = pair_up(play(noisy(1.0, 0.01))).valid
    runs = [run for pair in pairs for run in (pair.base, pair.head)]
    return [
        run.model_copy(
            update={"joined": "d" * 64, "timing": uneven(run.timing.step_s, run.timing.cut, random.Random(n))}
        )
        for n, run in enumerate(runs)
        if run.timing is not None
    ]


CALIBRATED = reference(noise=NOISE).model_copy(update={"calibrated": calibrated(0.0)})


@cache
def storm(seed: int) -> tuple[Session, Verdict]:
    """Return a random session and its verdict.

    The session has lost nodes, crashes, unfit nodes, slow starts, head alone, a look 0 and an earlier session at
    random, and may be unfinished.
    """
    draw = random.Random(seed)
    gate = draw.choice(["pairs", "stored", "pairs", "pairs"])
    steps = draw.choice([8, 60])
    header_ = header(CALIBRATED, gate=gate) if gate != "pairs" else HEADER
    plan = header_.timed[0].model_copy(update={"steps": steps, "cut": 2 if steps == 8 else 10, "world_size": RANKS})
    header_ = header_.model_copy(update={"timed": [plan]})
    joins = steps == 8 and gate == "pairs" and draw.random() < 0.5
    node, runs = NODE, earlier_session() if joins else []
    head, noise, trouble = (
        draw.choice([1.0, 1.0, 1.05, 1.004]),
        draw.choice([0.001, 0.02]),
        draw.choice([0, 0.05, 0.15]),
    )
    max_runs = draw.randint(1, 30) if draw.random() < 0.3 else 60
    while len(runs) < max_runs and (at := next_slot(runs, header_, plan, node)) is not None:
        level = (0.1 if node is NODE else 0.13) * (head if at.arm == "head" else 1.0) * (1 + draw.gauss(0, noise))
        slow = draw.choice([0, 0, 15, 25])
        taken = [level * (1.6 if step < slow else 1.0) * (1 + draw.gauss(0, 0.003)) for step in range(at.steps)]
        run = run_at(at, 0.1, timing=uneven(taken, min(plan.cut, at.steps), random.Random(str(at))), node=node)
        chance = draw.random()
        if chance < trouble / 2:
            run = run_at(at, 0.1, outcome="lost", reason="job 7: a node failed", timing=None, node=node)
            node = OTHER if node is NODE else NODE
        elif chance < trouble:
            run = run_at(at, 0.1, outcome="crashed", reason="signal 9", timing=None, node=node)
        elif chance < 1.5 * trouble:
            outside = Cause(kind="other_process", outside=True, text="another tenant computed on GPU 0")
            run = run.model_copy(update={"health": health().model_copy(update={"causes": [outside]})})
        elif chance < 2 * trouble:
            run = run.model_copy(update={"health": health([gpu(reasons={"hw_thermal": 0.5})])})
        runs.append(run)
    session = session_of(runs, header_)
    return session, judge(session, Config())


def check_sums(section: Throughput) -> None:
    """Check that the section's tests and step times follow from the numbers of its runs."""
    pairs: dict[int, dict[str, RunVerdict]] = {}
    for run in section.runs:
        if run.role == "pair" and run.pair is not None:
            pairs.setdefault(run.pair, {})[run.arm] = run
    if section.by == "pairs" and section.pairs:
        assert sorted(pairs) == [*range(1, section.pairs + 1)]
    for test in section.tests if section.by == "pairs" else []:
        log_ratios = [
            math.log(getattr(pair["head"], f"{test.summary}_s") / getattr(pair["base"], f"{test.summary}_s"))
            for _, pair in sorted(pairs.items())
        ]
        assert log_ratios == pytest.approx(test.log_ratios, abs=1e-12)
    assert sum(run.role == "unused" and run.pair is not None for run in section.runs) == 2 * section.unused_pairs
    assert all(run.reason for run in section.runs if run.role in ("void", "unused"))
    check_ranks(section)
    if section.cost is not None:
        assert section.cost.runs == len(section.runs)
        assert section.cost.minutes == pytest.approx(sum(run.wall_s or 0 for run in section.runs) / 60)
    medians = sorted(run.median_s or 0 for run in section.runs if run.role == "pair" and run.arm == "base")
    if medians:
        assert medians[0] * (1 - 1e-9) <= (section.base_step_s or 0) <= medians[-1] * (1 + 1e-9)


def check_record(run: Run, verdict: RunVerdict) -> None:
    """Check the numbers of a run that no test uses: peak memory, duration and quartiles."""
    assert verdict.wall_s == run.wall_s
    assert verdict.peak_bytes == max((times.peak_bytes for times in verdict.ranks), default=verdict.peak_bytes)
    steady = run.timing.step_s[verdict.cut :] if run.timing is not None and verdict.cut is not None else []
    quartiles = tuple(np.quantile(steady, [0.25, 0.75])) if len(steady) > 1 else None
    found = (verdict.low_quartile_s, verdict.high_quartile_s)
    assert found == ((None, None) if quartiles is None else pytest.approx(quartiles))


def check_ranks(section: Throughput) -> None:
    """Check that the times of a rank are medians over the runs that count, which are pairs or else head alone."""
    for rank in section.ranks:
        for arm, times in (("base", rank.base), ("head", rank.head)):
            runs = [run for run in section.runs if run.arm == arm and run.role == "pair"]
            runs = runs or [run for run in section.runs if run.arm == arm and run.role == "stored"]
            own = [times for run in runs for times in run.ranks if times.rank == rank.rank]
            assert (times is None) == (not own)
            if times is None:
                continue
            assert times.peak_bytes == max(rank_times.peak_bytes for rank_times in own)
            for field in ("step_s", "cpu_s", "wait_s"):
                known = [value for rank_times in own if (value := getattr(rank_times, field)) is not None]
                assert getattr(times, field) == (pytest.approx(median(known)) if known else None)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_the_numbers_of_a_verdict_follow_from_its_runs(seed: int) -> None:
    session, verdict = storm(seed)
    section = section_of(verdict)
    assert len(section.runs) == sum(run.tier == "timed" for run in session.runs)
    check_sums(section)
    for run, its_verdict in zip(session.timed_runs(HEADER.workloads[0]), section.runs, strict=True):
        check_record(run, its_verdict)
