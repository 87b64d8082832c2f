"""The throughput section of paired files, by the same test that judges the sessions of a check."""

from collections.abc import Iterator, Sequence
from statistics import fmean
from typing import Any

from regbot.check.compare.run_files import StepFile
from regbot.check.compare.sections import (
    ALPHA,
    MAX_NOISE_RATIO,
    SETTINGS,
    THRESHOLDS,
    correct_known_noise,
    decision_sentences,
    estimate_sentences,
    given_noise_note,
    pairs_advice,
    section_with_intervals,
    section_without_intervals,
    unsteady_section,
)
from regbot.check.compare.steady_cut import find_unsteady
from regbot.judge.estimates import percent
from regbot.judge.reasons import describe_slow_launches, explain_withheld
from regbot.judge.throughput import primary_test, slow_launches
from regbot.records.text.percentages import round_up_percent
from regbot.records.text.words import count
from regbot.records.verdict import Throughput
from regbot.stats.launch import SUMMARIES
from regbot.stats.paired import LOOKS, Interval, SequentialTest, pairs_needed, sequential_test, session_mde
from regbot.stats.paired import interval as pair_interval

Ratios = dict[str, list[float]]
"""Summary (median, mean) -> the log-ratio of each pair, in session order."""


def paired_section(
    base: Sequence[StepFile], head: Sequence[StepFile], given_sd: float | None
) -> tuple[Throughput, list[str]]:
    """Return the throughput section of pairs, and warnings. A pair has the i-th file of each arm, in session order.

    ``given_sd`` is the standard deviation of a pair's log-ratio that the user gave with --noise; None if not given.
    """
    ratios: Ratios = {name: [] for name in SUMMARIES}
    for base_file, head_file in zip(base, head, strict=True):
        base_summaries, head_summaries = base_file.summaries(), head_file.summaries()
        for name, log_ratios in ratios.items():
            log_ratios.append(head_summaries[name] - base_summaries[name])
    warnings: list[str] = []
    known_sd = given_sd  # the noise that the test uses; None: the noise that the pairs show
    # The scatter of few pairs shows too little, so the noise of the steps checks the given noise first.
    if given_sd is not None and len(base) < LOOKS[0]:
        known_sd, warnings = correct_known_noise(given_sd, base, head)
    # None if there are fewer pairs than the first look needs, and the noise is not known.
    test = sequential_test(ratios, len(SUMMARIES), THRESHOLDS, known_sd)
    if test is not None and given_sd is not None:
        observed_sd = _observed_sd(ratios, test.pairs)
        if observed_sd > MAX_NOISE_RATIO * given_sd:
            warning = (
                f"--noise {100 * given_sd:.2g}% is not used, because the first {test.pairs} pairs differ by "
                f"{100 * observed_sd:.2g}% (standard deviation)"
            )
            warnings = [warning]
            known_sd = None
            test = sequential_test(ratios, len(SUMMARIES), THRESHOLDS)
    if test is None:
        return _too_few_section(base, head, ratios), warnings
    if test.outliers:
        warnings = [*warnings, describe_slow_launches(test.outliers, test.pairs)]
    used_base, used_head = base[: test.pairs], head[: test.pairs]
    return _tested_section(used_base, used_head, ratios, test, is_noise_known=known_sd is not None), warnings


def _tested_section(
    base: Sequence[StepFile], head: Sequence[StepFile], ratios: Ratios, test: SequentialTest, is_noise_known: bool
) -> Throughput:
    """Return the section of the tested pairs. ``base`` and ``head`` are the files that the last look used.

    ``is_noise_known`` says whether the intervals use the noise that the user gave with --noise.
    """
    # Fields of the section. ``by`` says what decided.
    fields: dict[str, Any] = {"by": "pairs", "pairs": test.pairs, "unused_pairs": test.unused}
    if unsteady_reasons := find_unsteady(base, head):
        estimates = {name: percent(interval.estimate) for name, (_, interval) in test.tests.items()}
        return unsteady_section(base, head, unsteady_reasons, estimates, fields)
    intervals = _intervals(test)
    fields |= {
        # The smallest detectable slowdown, with the pairs of this test and with those of a full session.
        "mde_pct": percent(session_mde(intervals, test.pairs, THRESHOLDS.eps, is_noise_known)),
        "mde_full_pct": percent(session_mde(intervals, LOOKS[-1], THRESHOLDS.eps, is_noise_known)),
        "slow_launches": slow_launches(test.outliers),
        "pass_withheld": test.withheld,
        "tests": [
            primary_test(name, decision, interval, ratios[name][: test.pairs])
            for name, (decision, interval) in test.tests.items()
        ],
    }
    _, median_interval = test.tests["median"]
    reasons = [*_reasons(test, is_noise_known)]
    return section_with_intervals(test.decision, median_interval, test.alpha, reasons, base, head, fields=fields)


def _reasons(test: SequentialTest, is_noise_known: bool) -> Iterator[str]:
    """Yield the reasons for the decision, then which pairs were not used, then what an undecided test would need.

    If ``test.withheld`` is true, head does not pass because it has more slow launches than base. The last reason is
    then the next look, without a number of pairs that would decide.
    """
    if test.withheld:
        yield explain_withheld(test.outliers)
    else:
        yield from decision_sentences(test.tests, test.decision)
    intervals = _intervals(test)
    worst_sd = max(interval.sd for interval in intervals)
    if test.look == 0:  # with fewer pairs than the first look needs, only the given noise makes a decision possible
        yield given_noise_note(worst_sd)
    if test.unused:
        total = test.pairs + test.unused
        if test.decision == "undecided":
            cause = f"decisions are made only after {_join_numbers(LOOKS)} pairs"
        else:
            cause = f"the first {test.pairs} decided"
        yield f"{test.unused} of {total} pairs were not used: {cause}"
    if test.decision != "undecided":
        return
    if not test.final:
        next_look = LOOKS[test.look]  # looks are counted from 1, so this index is that of the next look
        missing_pairs = next_look - test.pairs - test.unused
        yield (
            f"the next decision is after {next_look} pairs: give {missing_pairs} more base files and "
            f"{missing_pairs} more head files"
        )
    if test.withheld:
        return
    needed = pairs_needed(worst_sd, test.alpha, THRESHOLDS, known=is_noise_known)
    detectable = round_up_percent(percent(session_mde(intervals, LOOKS[-1], THRESHOLDS.eps, is_noise_known)))
    yield (
        f"with this noise ({100 * worst_sd:.2g}% per pair), {LOOKS[-1]} pairs can detect a slowdown of {detectable} or "
        f"more; to detect {SETTINGS.threshold_pct:g}% takes {_pairs_text(needed)}"
    )


def _intervals(test: SequentialTest) -> list[Interval]:
    return [interval for _, interval in test.tests.values()]


def _pairs_text(needed: int | None) -> str:
    """Return the number of pairs that a decision needs, as text. ``needed`` is None for an impractical number."""
    if needed is None:
        return "more pairs than is practical: use a quieter node"
    return f"about {needed} pairs" + (", more than the test allows: use a quieter node" if needed > LOOKS[-1] else "")


def _observed_sd(ratios: Ratios, pairs: int) -> float:
    """Return the larger standard deviation of the two summaries over the first ``pairs`` pairs; 0 for a single pair."""
    return max(pair_interval(values[:pairs], ALPHA).sd for values in ratios.values()) if pairs > 1 else 0.0


def _too_few_section(base: Sequence[StepFile], head: Sequence[StepFile], ratios: Ratios) -> Throughput:
    """Return the undecided section of fewer pairs than the first look needs."""
    pairs = len(base)
    estimates = {name: percent(fmean(values)) for name, values in ratios.items()}
    missing = LOOKS[0] - pairs
    missing_files = f"{count(missing, 'more base file')} and {count(missing, 'more head file')}"
    headline = "1 pair decides nothing" if pairs == 1 else f"{pairs} pairs decide nothing"
    reasons = [
        f"{headline}; at least {LOOKS[0]} are needed: give {missing_files}",
        *estimate_sentences(estimates),
        pairs_advice(estimates, ": in all it takes"),
    ]
    return section_without_intervals(base, head, estimates["median"], reasons, {"by": "pairs", "pairs": pairs})


def _join_numbers(numbers: Sequence[int]) -> str:
    return f"{', '.join(str(number) for number in numbers[:-1])} and {numbers[-1]}"
