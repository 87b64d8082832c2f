"""Builders for tests of sessions with stored references."""

import math
import random
from collections.abc import Callable, Sequence

from regbot.baselines import environment_of
from regbot.check.sessions.schedule import Slot, next_slot
from regbot.records.calibration_summary import ArmLuck, CalibrationSummary, PairNoise, Rate
from regbot.records.reference import Reference, StoredSession
from regbot.records.run import Environment, Run
from regbot.records.session import SessionHeader
from support.timed_builder import HEADER, NODE, PLAN, timed_run

ENVIRONMENT = Environment(python="3.11.9", torch="2.13.0", platform="linux", packages="a" * 64)


NOISE = PairNoise(df=39, median_sd=0.003, mean_sd=0.003)

LOSS = [7.0 - 0.01 * n for n in range(PLAN.steps)]


def run_at(slot: Slot, seconds: Sequence[float] | float, **changes: object) -> Run:
    return timed_run(slot, seconds, **{"environment": ENVIRONMENT, **changes})


def reference(sessions: int = 20, sd: float = 0.005, level: float = 0.1, **changes: object) -> Reference:
    """Return a reference of sessions around ``level`` seconds per step with standard deviation ``sd``."""
    draw = random.Random(5)
    levels = [math.log(level) + draw.gauss(0, sd) for _ in range(sessions)]
    stored = [
        StoredSession(
            session=f"{n:064x}",
            measured="2026-01-01T00:00:00Z",
            commit="c" * 40,
            node=NODE.name,
            log_median=[x] * 3,
            log_mean=[x] * 3,
        )
        for n, x in enumerate(levels)
    ]
    slot = Slot(next_slot([], HEADER, PLAN).position, 1, "head", PLAN.steps)  # type: ignore[union-attr]
    made = Reference(
        node_class=NODE.node_class,
        environment=environment_of(run_at(slot, 0.1)),
        clock="perf_counter",
        executed="alltoall",
        sessions=stored,
        loss=[LOSS] * 3,
    )
    return made.model_copy(update=changes)


def header(*references: Reference, gate: str = "pairs", **changes: object) -> SessionHeader:
    plan = PLAN.model_copy(
        update={"references": list(references), "no_reference": "" if references else "nothing is stored"}
    )
    settings = HEADER.throughput.model_copy(update={"gate": gate})
    return HEADER.model_copy(update={"timed": [plan], "throughput": settings, **changes})


def at(head_s: float, base_s: float = 0.1, noise: float = 0.002, **changes: object) -> Callable[[Slot], Run]:
    draw = random.Random(3)

    def launch(slot: Slot) -> Run:
        usual = (head_s if slot.arm == "head" else base_s) * (1 + draw.gauss(0, noise))
        return run_at(slot, usual, **(changes if slot.arm == "head" else {}))

    return launch


def calibrated(
    counted_pct: float, high_pct: float = 0.6, allocations: int = 12, lasts: bool = False
) -> CalibrationSummary:
    """Return a calibration that knows the luck of an arm, of which intervals contain ``counted_pct``."""
    luck = ArmLuck(
        sd_pct=counted_pct,
        low_pct=0.0,
        high_pct=high_pct,
        counted_pct=counted_pct,
        draws=15,
        allocations=allocations,
        lasts=lasts,
    )
    return CalibrationSummary(
        measured="2026-01-01T00:00:00Z", pairs=60, sd_pct=0.3, sd_low_pct=0.2, sd_high_pct=0.4,
        false_flags=Rate(count=0, total=15, low=0.0, high=0.22), covered=Rate(count=15, total=15, low=0.78, high=1.0),
        injected_pct=None, detected=None, arm_luck=luck,
    )  # fmt: skip
