"""Health in a session: a fault of the node voids a block; a condition that only one arm has is a finding."""

from collections.abc import Callable

from regbot.check.sessions.schedule import Slot
from regbot.judge import judge
from regbot.records.config import Config
from regbot.records.health import Health
from regbot.records.run import Run
from regbot.records.verdict import Verdict
from support.health_builder import gpu, health
from support.timed_builder import noisy, play, session_of

GOOD = health([gpu()])
BROKEN = health([gpu(uncorrected_ecc=3)])


def session(health_at: Callable[[Slot], Health], head: float = 1.0) -> tuple[list[Run], Verdict]:
    launch = noisy(head, 0.002)
    runs = play(lambda slot: launch(slot).model_copy(update={"health": health_at(slot)}))
    return runs, judge(session_of(runs), Config())


def test_a_run_on_a_faulty_gpu_voids_its_block_which_is_repeated_with_a_warning() -> None:
    def health_at(slot: Slot) -> Health:
        return BROKEN if (slot.position.block, slot.position.slot, slot.attempt) == (1, 1, 1) else GOOD

    runs, verdict = session(health_at)
    assert [(r.position.slot, r.attempt) for r in runs if r.position and r.position.block == 1] == [
        (0, 1), (1, 1), (0, 2), (1, 2), (2, 2), (3, 2),
    ]  # fmt: skip
    section = verdict.workloads[0].throughput
    assert section is not None
    assert (section.decision, section.void_pairs) == ("no_change", 1)
    assert any("ran on a node that was not fit" in warning for warning in verdict.warnings)


def test_a_node_that_stays_faulty_is_invalid() -> None:
    _, verdict = session(lambda slot: BROKEN if slot.position.block and slot.arm == "head" else GOOD, head=1.5)
    assert verdict.verdict == "INVALID"
    assert "not fit" in verdict.workloads[0].validity.reasons[0]


def test_a_head_that_crashes_on_a_faulty_gpu_is_not_blamed_for_it() -> None:
    def crashing(slot: Slot) -> Run:
        run = noisy(1.0, 0.002)(slot)
        if slot.arm == "base" or not slot.position.block:
            return run.model_copy(update={"health": GOOD})
        return run.model_copy(update={"outcome": "crashed", "reason": "CUDA error", "timing": None, "health": BROKEN})

    assert judge(session_of(play(crashing)), Config()).verdict == "INVALID"
