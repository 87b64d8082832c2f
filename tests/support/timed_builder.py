"""Builders of timed runs and whole sessions from a few numbers, without launching anything."""

import random
from collections.abc import Callable, Sequence

from regbot.check.sessions.schedule import Slot, next_slot
from regbot.judge import judge
from regbot.records.config import Config
from regbot.records.run import Node, Outcome, Position, RankSteps, Run, Timing
from regbot.records.session import Session, SessionHeader, TimedPlan
from regbot.records.verdict import Throughput, WorkloadVerdict
from support.ledger_builder import WORKLOAD, backend, smoke_arm, smoke_ledger, smoke_run

NODE = Node(name="node-3", node_class="a processor, 2 cores", cores=2)
WARMUP, STEADY = 2, 6
BASE, HEAD = smoke_arm("base"), smoke_arm("head")
PLAN = TimedPlan(
    entry=WORKLOAD,
    variant="cpu",
    world_size=2,
    steps=WARMUP + STEADY,
    cut=WARMUP,
    tokens_per_step=512,
    flops_per_step=10**9,
)
HEADER = SessionHeader(
    regbot="0.1.0",
    created="2026-01-01T00:00:00Z",
    base=BASE,
    head=HEAD,
    workloads=[WORKLOAD],
    timed=[PLAN],
    seed=7,
    changed_files=["src/moe.py"],
)
A2A = smoke_ledger()

Times = Callable[[Slot], Sequence[float] | float]
"""Step times of the run in a slot: all of them, or one number for every step."""


def timing(step_s: Sequence[float], wait: float = 0.25, peak_bytes: int = 4 * 10**8, **changes: object) -> Timing:
    """Return the timing of two ranks in lockstep, with a share ``wait`` of every step in collectives."""
    rank = RankSteps(
        step_s=list(step_s),
        cpu_s=[0.8 * s for s in step_s],
        wait_s=[wait * s for s in step_s],
        memory_bytes=[peak_bytes - 1000] * len(step_s),
        peak_bytes=peak_bytes,
    )
    made = Timing(
        requested_steps=len(step_s),
        cut=min(WARMUP, len(step_s)),
        method=f"the first {WARMUP} steps",
        clock="perf_counter",
        step_s=list(step_s),
        ranks={"0": rank, "1": rank},
        harness_s=sum(step_s),
        harness_steady_s=sum(step_s[WARMUP:]),
        memory_peak_bytes=peak_bytes,
        memory_slope_bytes=0.0,
    )
    return made.model_copy(update=changes)


def timed_run(slot: Slot, step_s: Sequence[float] | float, outcome: Outcome = "ok", **changes: object) -> Run:
    """Return the run of one slot."""
    steps = [step_s] * slot.steps if isinstance(step_s, float) else list(step_s)
    run = smoke_run(BASE if slot.arm == "base" else HEAD, None, outcome)
    update: dict[str, object] = {
        "variant": "cpu",
        "tier": "timed",
        "attempt": slot.attempt,
        "wall_s": 5.0 + sum(steps),
        "timing": timing(steps) if outcome == "ok" else None,
        "position": slot.position,
        "node": NODE,
        "loss": [7.0 - 0.01 * n for n in range(slot.steps)] if outcome == "ok" else [],
        "reason": "" if outcome == "ok" else f"it {outcome} for a test",
        "backends": {"dispatcher": backend("alltoall")},
    }
    return run.model_copy(update=update | changes)


def slot(block: int, place: int, arm: str, attempt: int = 1, order: str = "ABBA") -> Slot:
    position = Position(block=block, slot=place, order="ABBA" if order == "ABBA" else "BAAB")
    return Slot(position, attempt, "base" if arm == "base" else "head", PLAN.steps)


def statics(head_program: str = "b") -> list[Run]:
    """Return valid traces of both arms, whose programs differ."""
    return [
        smoke_run(BASE, A2A),
        smoke_run(HEAD, A2A.model_copy(update={"fingerprint": head_program * 64})),
    ]


def play(
    launch: Callable[[Slot], Run], header: SessionHeader = HEADER, runs: Sequence[Run] = (), at_most: int = 60
) -> list[Run]:
    """Return all timed runs of a session after the given ones; ``launch`` returns the run of each slot."""
    done = list(runs)
    while (following := next_slot(done, header, header.timed[0])) is not None:
        done.append(launch(following))
        assert len(done) <= at_most, "the session does not end"
    return done


def noisy(head: float, sd: float, seed: int = 1) -> Callable[[Slot], Run]:
    """Return a launcher: base takes 100 ms per step and head ``head`` times that, with run-to-run noise ``sd``."""
    draw = random.Random(seed)

    def launch(at: Slot) -> Run:
        level = 0.1 * (head if at.arm == "head" else 1.0) * (1 + draw.gauss(0, sd))
        return timed_run(at, [level * (1 + draw.gauss(0, 0.002)) for _ in range(at.steps)])

    return launch


def session_of(runs: Sequence[Run], header: SessionHeader = HEADER) -> Session:
    """Return a session of the traces and these timed runs."""
    return Session(header=header, runs=[*statics(), *runs])


def judged(runs: Sequence[Run], header: SessionHeader = HEADER) -> WorkloadVerdict:
    (workload,) = judge(session_of(runs, header), Config()).workloads
    return workload


def throughput_of(runs: Sequence[Run], header: SessionHeader = HEADER) -> Throughput:
    section = judged(runs, header).throughput
    assert section is not None
    return section
