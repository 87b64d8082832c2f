"""Why pairs decided as they did, in words."""

from collections.abc import Iterator, Sequence

from regbot.judge.estimates import percent, span
from regbot.judge.standing import Standing
from regbot.records.run import Run
from regbot.records.session import SessionHeader
from regbot.stats.paired import LOOKS, Thresholds, mde, pairs_needed


def reasons(found: Standing, limits: Thresholds, header: SessionHeader, runs: Sequence[Run]) -> Iterator[str]:
    """What was decided by pairs and why, or what it would take to decide."""
    settings = header.throughput
    if found.continued:
        earlier = sum(run.joined is not None for run in runs if run.position and run.position.block) // 2
        yield (
            f"the same trees had been timed before: {earlier} earlier pairs count too, and all {found.pairs} are "
            "judged by an interval that holds however often one looks (99% instead of 95%)"
        )
    if found.decision in ("regressed", "improved"):
        word = "slower" if found.decision == "regressed" else "faster"
        for name, (decision, each) in found.tests.items():
            if decision == found.decision:
                yield (
                    f"head is {word} by the {name} step time: {span(each)} over {found.pairs} pairs, and anything "
                    f"beyond {settings.indifference_pct:g}% counts"
                )
        return
    if found.decision == "no_change":
        most = max(each.high for _, each in found.tests.values())
        yield (
            f"no change: over {found.pairs} pairs median and mean step time lie within {settings.threshold_pct:g}%; "
            f"head is at most {percent(most):.2g}% slower"
        )
        return
    centre = found.tests["median"][1]
    yield f"undecided after {found.pairs} pairs: {span(centre)} by the median step time"
    if found.continued:
        return
    if not found.final:
        spent = sum(run.wall_s for run in runs) / 60
        why = "the budget did not allow more" if header.budget_min is not None else "it was ended before more were run"
        yield f"{found.pairs} of at most {LOOKS[-1]} pairs were run in {spent:.1f} minutes: {why}"
    assert found.alpha is not None
    sd = max(each.sd for _, each in found.tests.values())
    needed = pairs_needed(sd, found.alpha, limits)
    provable = percent(mde(sd, LOOKS[-1], found.alpha, limits.eps))
    words = f"about {needed} pairs" if needed is not None else "more pairs than anybody runs"
    beyond = f"; a session ends at {LOOKS[-1]}, so it takes a quieter node" if (needed or 1000) > LOOKS[-1] else ""
    yield (
        f"with {LOOKS[-1]} pairs and this noise ({100 * sd:.2g}% per pair) a slowdown of {provable:.2g}% would be "
        f"shown; {settings.threshold_pct:g}% would take {words}{beyond}"
    )
