"""The reasons of a throughput section."""

import math
from collections.abc import Iterator, Sequence

from regbot.judge.estimates import count_primary_tests, format_estimate, thresholds
from regbot.judge.interim import InterimDecision
from regbot.records.run import Run
from regbot.records.session import SessionHeader
from regbot.records.text.percentages import round_up_percent
from regbot.records.text.words import count
from regbot.records.verdict import SlowLaunch
from regbot.stats.paired import LOOKS, SequentialTest, look_alpha, luck_of_draw, pairs_needed, session_mde
from regbot.stats.slow_launches import set_aside
from regbot.stats.summary import percent


def explain_decision(
    interim: InterimDecision, test: SequentialTest, header: SessionHeader, runs: Sequence[Run]
) -> Iterator[str]:
    """Yield what the pairs decided and why. If they are undecided, yield what a decision would require. ``test`` is
    that of ``interim``. ``runs`` are the timed runs, which give the minutes so far."""
    settings, pairs = header.throughput, test.pairs
    if interim.continued:  # pairs of an earlier session are included
        earlier_pairs = sum(pair.head.is_from_earlier_session for pair in interim.pair_set.valid[:pairs])
        yield (
            f"the same code was timed before: {count(pairs - earlier_pairs, 'new pair')} and {earlier_pairs} earlier "
            "ones are judged together. Each new test is another chance of a false alarm, so the interval is wider (99% "
            "instead of 95%)"
        )
    if test.decision in ("regressed", "improved"):
        word = "slower" if test.decision == "regressed" else "faster"
        for name, (decision, interval) in test.tests.items():
            if decision == test.decision:
                yield (
                    f"head is {word} than base by the {name} step time: {format_estimate(interval)} over "
                    f"{pairs} pairs; the interval lies beyond the limit of {settings.indifference_pct:g}%"
                )
        return
    _, median_interval = test.tests["median"]
    if test.decision in ("within_bound", "no_change"):
        bound = "head is not slower than base"
        if interim.bound > 0:
            bound = f"head is at most {round_up_percent(percent(interim.bound))} slower than base"
        limit, estimate = f"{settings.threshold_pct:g}%", format_estimate(median_interval)
        yield (
            f"no slowdown of {limit} or more: {pairs} pairs give {estimate}; {bound}"
            if test.decision == "within_bound"
            else f"no change: over {pairs} pairs the median and mean step times differ by less than {limit}; {bound}"
        )
        if interim.class_noise is not None and pairs < LOOKS[0]:
            yield (
                f"{pairs} pairs suffice, because stored pairs of this node class scatter by "
                f"{100 * interim.class_noise.median_sd:.2g}% ({interim.class_noise.df} degrees of freedom) and these "
                "pairs are not noisier"
            )
        return
    yield f"undecided after {pairs} pairs: {format_estimate(median_interval)} by the median step time"
    if test.withheld:
        yield explain_withheld(test.outliers)
    if interim.continued:
        return  # the advice below is about the looks of one session, and a continued session has none
    max_pairs = LOOKS[-1]
    if not interim.final:  # the session ended before its last look
        spent_min = sum(run.wall_s for run in runs) / 60
        reason = "the budget did not allow more" if header.budget_min is not None else "the session ended early"
        yield f"{pairs} of at most {max_pairs} pairs were run in {spent_min:.1f} minutes: {reason}"
    if test.withheld or interim.decision_without_luck:
        return  # noise is not the cause, so the advice on noise does not apply
    sd = max(interval.sd for interval in interim.intervals)
    # The luck of an arm is the part of its speed that is drawn with its compiler caches.
    luck = max(luck_of_draw(interval) for interval in interim.intervals)
    limits = thresholds(settings)
    needed_pairs = pairs_needed(sd, look_alpha(max_pairs, count_primary_tests(header)), limits, luck=luck)
    # ``eps`` is the slowdown above which an interval proves a regression.
    detectable_slowdown = round_up_percent(percent(session_mde(interim.intervals, max_pairs, limits.eps)))
    effort = f"about {needed_pairs} pairs" if needed_pairs is not None else "too many pairs to run"
    if needed_pairs is None or needed_pairs > max_pairs:
        effort += f"; a session has at most {max_pairs} pairs, so use a quieter node"
    yield (
        f"with this noise ({100 * sd:.2g}% per pair), {max_pairs} pairs can detect a slowdown of "
        f"{detectable_slowdown} or more; to detect {settings.threshold_pct:g}% takes {effort}"
    )


def explain_luck(interim: InterimDecision) -> Iterator[str]:
    """Yield a sentence on the luck of the arms, if the intervals are widened by it. ``assumed_luck`` is not 0 if no
    calibration has measured the luck. A *draw* is one set of compiler caches, with which the luck is drawn."""
    luck_sd = max((interval.luck_sd for interval in interim.intervals), default=0.0)
    if interim.assumed_luck:
        yield (
            "each arm is compiled and autotuned anew, which may change its speed. No calibration of this node class "
            "shows by how much. The interval therefore assumes that it changes the speed of an arm by "
            f"{100 * interim.assumed_luck:.2g}% (standard deviation), and is wider for that; 'regbot calibrate' "
            "measures it"
        )
    elif luck_sd:
        draws = len({pair.draw for pair in interim.pair_set.valid[: interim.pairs]})
        is_drawn = math.isfinite(interim.intervals[0].draw_pairs)
        how = (
            f"is drawn with their compiler caches: with {count(draws, 'draw')}" if is_drawn else "lasts for a session:"
        )
        yield (
            f"the interval is widened by the luck of the arms, which {how} it changes the estimate by "
            f"{100 * luck_sd:.2g}% (standard deviation)"
        )


def describe_slow_launches(outliers: Sequence[SlowLaunch], pairs: int) -> str:
    """Return a sentence that lists the slow launches of a session. ``outliers`` has at least one; ``pairs`` is the
    number of pairs that the decision uses."""
    slow_launches = "1 run was" if len(outliers) == 1 else f"{len(outliers)} runs were"
    is_counted = len(set_aside(outliers, pairs)) == pairs
    effect = "too many to leave out" if is_counted else "the interval leaves out these pairs"
    return f"{slow_launches} far slower than the others: {_list_launches(outliers)}; {effect}"


def explain_withheld(outliers: Sequence[SlowLaunch]) -> str:
    """Return why head does not pass although its interval would."""
    return (
        "without these pairs, head would pass. But head has more slow runs than base, and may be the cause of them: "
        f"{_list_launches(outliers)}"
    )


def _list_launches(outliers: Sequence[SlowLaunch]) -> str:
    return ", ".join(f"{outlier.arm} in pair {outlier.pair} ({outlier.slower_pct:.2g}% slower)" for outlier in outliers)
