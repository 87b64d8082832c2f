"""Sessions with slow launches: what the judge decides, names and withholds."""

from collections.abc import Sequence

import pytest

from regbot.check.sessions.schedule import Slot
from regbot.judge import judge
from regbot.records.config import Config
from regbot.records.run import Run
from regbot.records.session import Session
from regbot.records.verdict import Throughput, Verdict
from regbot.report.throughput import PASS_WITHHELD, describe_undecided
from support.timed_builder import noisy, play, session_of

FIRST_PAIR, LATER_PAIR = (1, 0), (5, 0)
"""Block, and index of the pair in it: the pairs 1 and 9."""


def launches(head: float, slow: dict[tuple[int, int], str], earlier: Sequence[Run] = ()) -> Session:
    """Return a session in which head takes ``head`` times as long. ``slow`` has the arm of which the launch in a pair
    takes 30% longer. ``earlier`` has the runs of an earlier session, whose pairs count too."""
    usual = noisy(head, 0.001)

    def launch(slot: Slot) -> Run:
        run = usual(slot)
        is_slow = slow.get((slot.position.block, slot.position.slot // 2)) == slot.arm
        if not is_slow or run.timing is None:
            return run
        ranks = {
            name: rank.model_copy(update={"step_s": [1.3 * step for step in rank.step_s]})
            for name, rank in run.timing.ranks.items()
        }
        steps = [1.3 * step for step in run.timing.step_s]
        harness = {"harness_s": sum(steps), "harness_steady_s": sum(steps[run.timing.cut :])}
        timing = run.timing.model_copy(update={"step_s": steps, "ranks": ranks, **harness})
        return run.model_copy(update={"timing": timing, "wall_s": 5.0 + sum(steps)})

    joined = [
        run.model_copy(update={"joined": "a" * 64})
        for run in earlier
        if run.position is not None and run.position.block
    ]
    return session_of(play(launch, runs=joined, at_most=120))


def judged(session: Session) -> tuple[Verdict, Throughput]:
    verdict = judge(session, Config())
    section = verdict.workloads[0].throughput
    assert section is not None
    return verdict, section


def test_a_slowdown_is_found_in_spite_of_a_slow_launch_which_is_named_by_arm() -> None:
    verdict, section = judged(launches(1.05, {FIRST_PAIR: "head"}))
    assert (verdict.verdict, section.decision, section.pairs) == ("FAIL", "regressed", 8)
    assert [(launch.pair, launch.arm) for launch in section.slow_launches] == [(1, "head")]
    assert section.slow_launches[0].slower_pct == pytest.approx(30, abs=1)
    (warning,) = [text for text in verdict.warnings if "far slower" in text]
    assert warning.endswith(
        "1 run was far slower than the others: head in pair 1 (30% slower); the interval leaves out these pairs"
    )


@pytest.mark.parametrize("head", [1.0, 0.95])
def test_head_does_not_pass_where_it_has_more_slow_launches(head: float) -> None:
    verdict, section = judged(launches(head, {FIRST_PAIR: "head", LATER_PAIR: "head"}))
    assert (verdict.verdict, section.decision, section.pairs) == ("INCONCLUSIVE", "undecided", 12)
    assert section.pass_withheld
    assert section.bound_pct is None
    assert "may be the cause of them: head in pair 1 (29% slower), head in pair 9" in section.reasons[1]
    assert not any("to detect 2% takes" in reason for reason in section.reasons)
    assert describe_undecided(section) == PASS_WITHHELD


def test_timing_again_gives_the_pass_that_was_withheld_once_no_more_launches_are_slow() -> None:
    withheld = launches(1.0, {FIRST_PAIR: "head", LATER_PAIR: "head"})
    assert judged(withheld)[1].pass_withheld
    verdict, section = judged(launches(1.0, {}, earlier=withheld.runs))
    assert (verdict.verdict, section.decision, section.pass_withheld) == ("PASS", "no_change", False)
    assert section.pairs < 60
    assert [(launch.pair, launch.arm) for launch in section.slow_launches] == [(1, "head"), (9, "head")]
