"""The steps of a pair that count."""

from regbot.judge.pairs import pair_up
from support.timed_builder import slot, timed_run


def test_whole_periods_of_a_stall_of_both_arms_count() -> None:
    """Every 15th of 40 steps is slow, at another phase in each run: of the steps after the warm-up, 30 count."""
    runs = []
    for number, arm in enumerate(("base", "head", "head", "base")):
        times = [0.15 if (step + 4 * number) % 15 == 0 else 0.1 for step in range(42)]
        runs.append(timed_run(slot(1, number, arm), times))
    pairs = pair_up(runs).valid
    assert len(pairs) == 2
    assert {(42 - pair.cut) % 15 for pair in pairs} == {0}
    assert all(abs(pair.log_ratios["mean"]) < 1e-9 for pair in pairs)
