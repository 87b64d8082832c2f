"""Runs without a steady state: a look that they would decide is passed over, and the session goes on."""

import random

import pytest

from regbot.check.sessions.schedule import Slot
from regbot.records.run import Node, Run
from support.timed_builder import HEADER, PLAN, play, throughput_of, timed_run

STEPS = 24
ONE = HEADER.model_copy(update={"timed": [PLAN.model_copy(update={"steps": STEPS})]})
GPU = Node(name="n1", node_class="8 GPUs", cores=8, gpus=["H100"])


def launch(ratio: float, rising_blocks: int, node: Node = GPU, arms: str = "head") -> "list[Run]":
    """A session in which head takes ``ratio`` times as long. One run of ``arms`` rises by 20% in each of the
    first blocks."""
    chance = random.Random(3)

    def run(slot: Slot) -> Run:
        seconds = 0.1 * (ratio if slot.arm == "head" else 1.0) * (1 + chance.gauss(0, 0.001))
        is_rising = 0 < slot.position.block <= rising_blocks and slot.position.slot < 2 and slot.arm in arms
        times = [seconds * (1 + (0.2 * step / STEPS if is_rising else 0.0)) for step in range(slot.steps)]
        return timed_run(slot, times, node=node)

    return play(run, ONE)


@pytest.mark.parametrize("ratio", [1.25, 0.75, 1.0])
def test_a_session_goes_on_until_its_runs_may_decide(ratio: float) -> None:
    """Two of head's first four runs rise. Of eight runs, two are too few to bar the decision."""
    calm, risen = (throughput_of(launch(ratio, blocks), ONE) for blocks in (0, 2))
    assert calm.decision == {1.25: "regressed", 0.75: "improved", 1.0: "no_change"}[ratio]
    assert calm.pairs == 4
    assert risen.pairs >= 8
    if ratio != 1.0:
        assert risen.decision == calm.decision


def test_what_both_arms_do_alike_bars_no_decision() -> None:
    section = throughput_of(launch(1.25, 6, arms="base head"), ONE)
    assert (section.decision, section.pairs) == ("regressed", 4)


def test_a_session_that_never_settles_decides_nothing_and_says_why() -> None:
    section = throughput_of(launch(1.25, 6), ONE)
    assert (section.status, section.decision, section.pairs) == ("INCONCLUSIVE", "undecided", 12)
    assert section.reasons[0].startswith("no steady state: the step time grows within 6 of 12 head runs, by 1")
    on_cpu = throughput_of(launch(1.25, 6, node=GPU.model_copy(update={"gpus": []})), ONE)
    assert (on_cpu.decision, on_cpu.pairs) == ("regressed", 4)
