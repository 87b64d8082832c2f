"""Sessions that begin every look with empty compiler caches."""

from regbot.baselines.arm_luck import is_luck_small
from regbot.check.sessions.schedule import Slot, max_runs, next_slot
from regbot.judge.pairs import pair_up
from regbot.records.run import Run
from regbot.records.session import SessionHeader
from support.stored_cases import at, calibrated, header, reference
from support.timed_builder import HEADER, NODE, judged, noisy, play, throughput_of, timed_run


def fresh(session_header: SessionHeader = HEADER) -> SessionHeader:
    plans = [plan.model_copy(update={"fresh_caches": True}) for plan in session_header.timed]
    return session_header.model_copy(update={"timed": plans})


def draw(run: Run) -> int | None:
    assert run.position is not None
    return run.position.draw


def is_warm(run: Run) -> bool:
    return run.position is not None and run.position.block == 0


def test_every_look_has_its_own_caches_and_warm_launches() -> None:
    runs = play(noisy(1.013, 0.02), fresh())
    assert len(runs) == max_runs([], fresh().timed[0]) == 3 * (2 + 8)
    assert [draw(run) for run in runs] == [1] * 10 + [2] * 10 + [3] * 10
    assert [run.arm.name for run in runs if is_warm(run)] == ["base", "head"] * 3
    assert [pair.draw for pair in pair_up(runs).valid] == [(None, 1)] * 4 + [(None, 2)] * 4 + [(None, 3)] * 4


def test_a_session_continues_in_its_draw() -> None:
    runs = play(noisy(1.013, 0.02), fresh())
    for kept in range(len(runs)):
        slot = next_slot(runs[:kept], fresh(), fresh().timed[0])
        assert slot is not None
        assert slot.position == runs[kept].position


def test_on_another_node_only_the_present_draw_is_warmed_again() -> None:
    runs = play(noisy(1.013, 0.02), fresh())[:14]  # the second draw has its warm launches and two runs
    elsewhere = NODE.model_copy(update={"name": "another"})
    slot = next_slot(runs, fresh(), fresh().timed[0], elsewhere)
    assert slot is not None
    assert (slot.position.block, slot.position.draw, slot.attempt) == (0, 2, 2)


def test_a_refused_session_does_not_continue_with_the_next_draw() -> None:
    runs = play(noisy(1.013, 0.02), fresh())[:10]
    end = timed_run(Slot(runs[0].position, 1, "head", 3), 0.1, "refused")  # type: ignore[arg-type]
    assert next_slot(runs, fresh(), fresh().timed[0]) is not None
    assert next_slot([*runs, end], fresh(), fresh().timed[0]) is None


def test_a_failed_warm_launch_of_a_later_draw_must_be_tried_twice() -> None:
    """The first draw had a failure too, which a repeat has mended."""
    failed: set[int] = set()
    usual = noisy(1.013, 0.02)

    def launch(slot: Slot) -> Run:
        assert slot.position.draw is not None
        if slot.position.block or slot.position.draw in failed:
            return usual(slot)
        failed.add(slot.position.draw)
        return timed_run(slot, 0.1, "crashed")

    runs = play(launch, fresh())
    later = [index for index, run in enumerate(runs) if run.outcome == "crashed"][1]
    interrupted = judged(runs[: later + 1], fresh()).validity
    assert "not tried twice" in interrupted.reasons[0]
    assert judged(runs, fresh()).validity.status != "INVALID"


def test_a_change_that_luck_may_explain_does_not_fail() -> None:
    """Head is 1.6% slower in both draws."""
    launch = at(0.1016, noise=0.0005)
    for counted, decision in ((0.0, "regressed"), (0.5, "undecided")):
        known = reference().model_copy(update={"calibrated": calibrated(counted)})
        session_header = fresh(header(known, gate="pairs"))
        section = throughput_of(play(launch, session_header), session_header)
        assert section.decision == decision


def test_only_luck_that_is_proven_small_in_every_environment_needs_no_fresh_caches() -> None:
    small = reference().model_copy(update={"calibrated": calibrated(0.0, high_pct=0.06)})
    large = reference().model_copy(update={"calibrated": calibrated(0.3)})
    assert is_luck_small([small])
    assert not is_luck_small([small, large])
    few_days = small.model_copy(update={"calibrated": calibrated(0.0, high_pct=0.06, allocations=11)})
    assert not is_luck_small([few_days])
    assert not is_luck_small([reference()])
    assert not is_luck_small([])
