"""The states of a check that also times. The scheduler of a session asks for each run, and the judge decides."""

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from regbot.baselines import environment_of
from regbot.check.sessions.schedule import Slot
from regbot.records.calibration_summary import ArmLuck, CalibrationSummary, PairNoise, Rate
from regbot.records.ledger import Ledger
from regbot.records.reference import Reference
from regbot.records.run import Arm, Backend, Run
from regbot.records.session import SessionHeader, StoredTrace, TimedPlan
from regbot.records.settings import ThroughputThresholds
from support import timed_builder
from support.sharding_cases import BASE, HEAD, MIXTRAL, QWEN, SHAPES, Case, Shape, case, changed, ledger, traced
from support.stored_cases import reference, run_at

Launch = Callable[[Slot], Run]

STEPS, CUT = 50, 10
TIMED = (QWEN, MIXTRAL)
"""One entry of each shape is timed; the other meshes would run the same program on these ranks."""


def plan(shape: Shape, **changes: Any) -> TimedPlan:
    fields = {"entry": shape.entry, "steps": STEPS, "cut": CUT, "flops_per_step": 3_600_000_000}
    return timed_builder.PLAN.model_copy(update={**fields, **changes})


def base_s(shape: Shape) -> float:
    """The step time of main."""
    return 0.115 if shape.layers == QWEN.layers else 0.204


def step_times(seconds: float, seed: str, steps: int, stalls: int) -> list[float]:
    """Steps of about ``seconds`` with a slow first one, autocorrelated noise, and one stall every ``stalls`` steps."""
    chance = random.Random(seed)
    level, times = 0.0, []
    for step in range(steps):
        level = 0.5 * level + chance.gauss(0, 0.006)
        warm = 6.0 * math.exp(-1.6 * step)
        stall = 0.22 if stalls and step % stalls == stalls - 1 else 0.0
        times.append(seconds * math.exp(level) * (1 + warm + stall))
    return times


def launcher(
    shape: Shape,
    ratio: float = 1.0,
    noise: float = 0.002,
    *,
    arms: tuple[Arm, Arm] = (BASE, HEAD),
    ranks: Sequence[str] = ("0", "1"),
    drift: float = 0.0,
    stalls: int = 0,
    wait: float = 0.25,
    peak_bytes: int = 4 * 10**8,
    **changes: object,
) -> Launch:
    """Launch runs of ``shape`` in which head takes ``ratio`` times as long as base, spends a share ``wait`` of a step
    in collectives, uses ``peak_bytes``, stalls, and ends with a loss that is ``drift`` higher. ``changes`` are of all
    runs."""

    def launch(slot: Slot) -> Run:
        is_head = slot.arm == "head"
        seed = f"{shape.entry} {slot.arm} {slot.position.block} {slot.position.slot} {slot.attempt}"
        chance = random.Random(seed)
        seconds = base_s(shape) * (ratio if is_head else 1.0) * math.exp(chance.gauss(0, noise))
        times = step_times(seconds, seed, slot.steps, stalls if is_head else 0)
        timing = timed_builder.timing(times, *((wait, peak_bytes) if is_head else ()))
        rank = timing.ranks["0"]
        clean = [7.6 - 2.2 * (1 - math.exp(-step / 18)) for step in range(slot.steps)]
        fields: dict[str, object] = {
            "arm": arms[is_head],
            "workload": shape.entry,
            "shape": shape.entry.split("/")[0],
            "timing": timing.model_copy(
                update={
                    "cut": min(CUT, slot.steps),
                    "method": "fixed: first 10 steps",
                    "harness_steady_s": sum(times[CUT:]),
                    "ranks": dict.fromkeys(ranks, rank),
                }
            ),
            "loss": [
                loss + chance.gauss(0, 2e-4) + (drift * step / STEPS if is_head else 0.0)
                for step, loss in enumerate(clean)
            ],
        }
        return run_at(slot, times, **{**fields, **changes})

    return launch


def failing(launch: Launch, fails: Callable[[Slot], bool], **failure: object) -> Launch:
    """``launch``, with runs that fail as ``failure`` says."""
    nothing = {"outcome": "crashed", "timing": None, "loss": []}

    def attempt(slot: Slot) -> Run:
        run = launch(slot)
        return run.model_copy(update={**nothing, **failure}) if fails(slot) else run

    return attempt


def is_end_of_first_pair(slot: Slot) -> bool:
    return slot.position.slot == slot.position.block == slot.attempt == 1


def timed(
    launch_of: Callable[[Shape], Launch],
    shapes: Sequence[Shape] = TIMED,
    head: Callable[[Shape], Ledger] = changed,
    main: Callable[[Shape], Reference] | None = None,
    gate: str = "pairs",
    ranks: int = 2,
    **planned: Any,
) -> Case:
    """The traces, and sessions of ``shapes``. ``main`` has the stored sessions of main."""
    plans = [plan(s, world_size=ranks, references=[main(s)] if main else []) for s in shapes]
    header = SessionHeader(
        regbot="0.1.0",
        created="2026-03-04T10:20:30+00:00",
        base=BASE,
        head=HEAD,
        workloads=[shape.entry for shape in shapes],
        timed=plans,
        throughput=ThroughputThresholds.model_validate({"gate": gate}),
    )
    runs = traced(head)
    for shape, one in zip(shapes, plans, strict=True):
        runs += timed_builder.play(launch_of(shape), header.model_copy(update={"timed": [one]}))
    return case(runs, timed=plans, throughput=header.throughput, **planned)


def not_begun(shapes: Sequence[Shape], head: Callable[[Shape], Ledger] = changed, **planned: Any) -> Case:
    """Workloads that are planned to be timed, and no timed run."""
    return case(traced(head), timed=[plan(shape) for shape in shapes], **planned)


CALIBRATED = CalibrationSummary(
    measured="2026-06-01T02:00:00Z",
    pairs=120,
    sd_pct=0.78,
    sd_low_pct=0.69,
    sd_high_pct=0.89,
    false_flags=Rate(count=0, total=14, low=0.0, high=0.232),
    covered=Rate(count=18, total=18, low=0.815, high=1.0),
    injected_pct=3.0,
    detected=Rate(count=4, total=4, low=0.398, high=1.0),
    arm_luck=ArmLuck(sd_pct=0.05, low_pct=0.0, high_pct=0.1, counted_pct=0.0, draws=15, allocations=12, lasts=False),
)


def stored_like(shape: Shape, seconds: float = 0.0, **changes: object) -> Reference:
    """Twenty sessions of main around ``seconds`` per step."""
    slots = [replace(timed_builder.slot(block, 0, "base"), steps=STEPS) for block in (1, 2, 3)]
    losses = [run.loss for run in map(launcher(shape), slots)]
    return reference(sd=0.008, level=seconds or base_s(shape), loss=losses, **changes)


def drifted_baseline() -> Case:
    """No change between base and head, but both are slower than the stored sessions of main."""
    return timed(launcher, [QWEN], main=lambda shape: stored_like(shape, 0.109))


def within_bound() -> Case:
    """The first block of pairs passes, because the noise of the node class is known (look 0)."""
    noise = PairNoise(df=119, median_sd=0.0038, mean_sd=0.0041)
    traces = [
        StoredTrace(
            entry=shape.entry,
            commit=BASE.commit,
            tree=BASE.tree,
            measured="2026-03-01T02:00:00Z",
            environment=environment_of(traced(shapes=[shape])[0]),
            ledger=ledger(shape),
        )
        for shape in SHAPES
    ]
    return timed(launcher, main=lambda shape: stored_like(shape, noise=noise, calibrated=CALIBRATED), stored=traces)


def by_stored_sessions(slower: Callable[[Shape], float]) -> Case:
    """Stored sessions decide."""
    return timed(
        lambda shape: launcher(shape, 1 + slower(shape)),
        main=lambda shape: stored_like(shape, calibrated=CALIBRATED),
        gate="stored",
    )


def without_a_vote() -> Case:
    """Too many placebo sessions on this node class were flagged, so the gate does not decide."""
    why = (
        "5 of 20 comparisons of a commit with itself raised a false alarm (25%; the true rate is 8.7% to 49.1%); at "
        "most 5% are allowed"
    )
    flags = Rate(count=5, total=20, low=0.087, high=0.491)
    covered = Rate(count=19, total=24, low=0.578, high=0.929)
    calibration = CALIBRATED.model_copy(update={"false_flags": flags, "covered": covered, "contradicted": why})
    return timed(
        lambda shape: launcher(shape, 1.05), [QWEN], main=lambda shape: stored_like(shape, calibrated=calibration)
    )


def slow_launch_of_head() -> Case:
    """The interval would pass Qwen3, but two launches of head were far slower than all others."""
    usual, slow = launcher(QWEN), launcher(QWEN, 1.3)

    def launch(slot: Slot) -> Run:
        return slow(slot) if slot.position.block in (1, 5) and slot.position.slot < 2 else usual(slot)

    return timed(lambda _: launch, [QWEN])


def environment_limitation() -> Case:
    """DeepEP is requested and missing on this machine, so the times are of alltoall."""
    backend = Backend(requested="deepep", resolved="alltoall", executed="alltoall", evidence="import deep_ep fails")
    return timed(lambda shape: launcher(shape, backends={"dispatcher": backend}), [QWEN])


def head_diverges() -> Case:
    """The head's loss is not finite, twice."""
    reason = "its loss is not finite in 28 of 50 steps, first in step 23"
    failure = {"outcome": "diverged", "reason": reason, "log_tail": "step 23 loss nan\n", "exit_code": 0}
    return timed(lambda shape: failing(launcher(shape), lambda slot: slot.arm == "head", **failure), [QWEN])


def untimed() -> Case:
    """The traces are good, but the timed runs of the base fail."""
    reason = "the training process exited with code 1 before it wrote a result (see the end of its log)"
    log_tail = (
        'Traceback (most recent call last):\n  File "moe_train/launch.py", line 9, in start\n'
        "RuntimeError: could not bind the rendezvous port\n"
    )
    failure = {"exit_code": 1, "reason": reason, "log_tail": log_tail}
    return timed(lambda shape: failing(launcher(shape), lambda slot: slot.arm == "base", **failure), [QWEN])


def with_a_void_pair() -> Case:
    """One head run of the first block was killed; its block was repeated."""
    reason = "the training process was killed by signal 9 before rank 0 wrote a result (see the end of its log)"
    failure = {"exit_code": -9, "reason": reason, "log_tail": "step 12\nKilled\n"}

    return timed(lambda shape: failing(launcher(shape, noise=0.001), is_end_of_first_pair, **failure), [QWEN])


def slower(qwen: float, noise: float = 0.012, **head: Any) -> Callable[[Shape], Launch]:
    """Head takes ``qwen`` times as long on Qwen3, and as long as base on Mixtral."""
    return lambda shape: launcher(shape, qwen, noise, **head) if shape is QWEN else launcher(shape)
