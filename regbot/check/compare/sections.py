"""The throughput section of compared files.

Paired files are judged by the same test as the sessions of a check. Unpaired files decide, by Welch's interval, only if
they show that all runs are of one session: otherwise a difference between sessions looks like one between commits.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean, median
from typing import Any

from regbot.check.compare.launches import Order, describe_common_session
from regbot.check.compare.run_files import StepFile
from regbot.check.compare.steady_cut import find_unsteady
from regbot.judge.estimates import format_estimate, primary_test
from regbot.judge.reasons import describe_slow_launches, explain_withheld
from regbot.judge.throughput import STATUS
from regbot.records.settings import ThroughputThresholds as Settings
from regbot.records.text.percentages import round_up_percent
from regbot.records.text.words import count
from regbot.records.verdict import Decision, Throughput
from regbot.stats.known_noise import run_standard_error
from regbot.stats.launch import SUMMARIES
from regbot.stats.paired import (
    LOOKS,
    Interval,
    SequentialTest,
    Thresholds,
    combine,
    decide,
    look_alpha,
    pairs_needed,
    sequential_test,
    session_mde,
)
from regbot.stats.paired import interval as pair_interval
from regbot.stats.summary import percent
from regbot.stats.unpaired import MIN_RUNS, welch

SETTINGS = Settings()
"""Thresholds in percent. A comparison of files reads no regbot.toml and uses the defaults."""
THRESHOLDS = Thresholds.from_percent(SETTINGS.threshold_pct, SETTINGS.indifference_pct)
"""The thresholds as log-ratios: an interval within +-``delta`` proves no change, and one above ``eps`` a slowdown."""
ALPHA = look_alpha(LOOKS[-1], len(SUMMARIES))
"""Two-sided error of one interval. Median and mean step time share the error of one look."""

POSITION_EFFECT_PCT = 1.0
"""If the runs of pairs did not change places, being second may have this effect, up or down."""

UNUSUAL_PCT = 20.0
"""If too few runs give an estimate beyond this percentage, the estimate is reported as far outside the usual noise. On
the noisiest node of the simulations, single pairs scatter by an eighth of this value.
"""

PAIR_NOISE_PCT = (0.3, 0.8, 2.5)
"""Standard deviation of a pair's log-ratio on a quiet, a typical and a noisy node, as ``benchmarks/nodes.py`` prints
it."""

MAX_NOISE_RATIO = 2.0
"""If the observed noise is more than this many times the noise of --noise, the observed noise is used. If --noise is
right, four pairs show more than twice this noise in fewer than one of a hundred sessions.
"""

NO_COMMON_SESSION = (
    "nothing in the files shows that base and head ran in turn in one session, so the difference may be one of nodes "
    "or days"
)

Files = Sequence[StepFile]
Tests = Mapping[str, tuple[Decision, Interval]]
"""Summary (median, mean) -> its decision and its interval."""
Ratios = dict[str, list[float]]
"""Summary (median, mean) -> the log-ratio of each pair, in session order."""


def paired_section(base: Files, head: Files, given_sd: float | None, order: Order) -> tuple[Throughput, list[str]]:
    """Return the section of pairs (the i-th files of both arms), and warnings. ``given_sd`` is the standard deviation
    of a pair's log-ratio that the user gave with --noise.
    """
    offset = 0.0 if order == "abba" else math.log1p(POSITION_EFFECT_PCT / 100)
    summaries = [(first.summaries(), second.summaries()) for first, second in zip(base, head, strict=True)]
    ratios = {name: [second[name] - first[name] for first, second in summaries] for name in SUMMARIES}
    warnings: list[str] = []
    known_sd = given_sd  # the noise that the test uses; None: the noise that the pairs show
    # The scatter of few pairs shows too little, so the noise of the steps checks the given noise first.
    if given_sd is not None and len(base) < LOOKS[0]:
        known_sd, warnings = _correct_known_noise(given_sd, base, head)
    # None if there are fewer pairs than the first look needs, and the noise is not known.
    test = sequential_test(ratios, len(SUMMARIES), THRESHOLDS, known_sd, offset=offset)
    if test is not None and given_sd is not None and test.pairs > 1:
        observed_sd = max(pair_interval(values[: test.pairs], ALPHA).sd for values in ratios.values())
        if observed_sd > MAX_NOISE_RATIO * given_sd:
            scatter = f"the first {test.pairs} pairs differ by {100 * observed_sd:.2g}% (standard deviation)"
            warnings = [f"--noise {100 * given_sd:.2g}% is not used, because {scatter}"]
            known_sd = None
            test = sequential_test(ratios, len(SUMMARIES), THRESHOLDS, offset=offset)
    if test is None:
        pairs, missing = len(base), LOOKS[0] - len(base)
        estimates = {name: percent(fmean(values)) for name, values in ratios.items()}
        headline = "1 pair decides nothing" if pairs == 1 else f"{pairs} pairs decide nothing"
        more = f"give {count(missing, 'more base file')} and {count(missing, 'more head file')}"
        reasons = [
            f"{headline}; at least {LOOKS[0]} are needed: {more}",
            *_estimate_sentences(estimates),
            _pairs_advice(estimates, ": in all it takes"),
        ]
        return _section("undecided", estimates["median"], reasons, base, head, by="pairs", pairs=pairs), warnings
    if test.outliers:
        warnings.append(describe_slow_launches(test.outliers, test.pairs))
    if order != "abba":
        runs = "the order of the runs is not known" if order == "unknown" else "the same arm ran first in most pairs"
        warnings.append(
            f"{runs}, and the second run of a pair may be slower or faster by itself: the intervals are wider by "
            f"{POSITION_EFFECT_PCT:g}% on both sides. Run the pairs in the order base, head, head, base, and say so "
            "with --order abba"
        )
    return _tested_pairs(base[: test.pairs], head[: test.pairs], ratios, test), warnings


def _tested_pairs(base: Files, head: Files, ratios: Ratios, test: SequentialTest) -> Throughput:
    fields: dict[str, Any] = {"by": "pairs", "pairs": test.pairs, "unused_pairs": test.unused}
    if unsteady_reasons := find_unsteady(base, head):
        estimates = {name: percent(interval.estimate) for name, (_, interval) in test.tests.items()}
        return _unsteady_section(base, head, unsteady_reasons, estimates, **fields)
    intervals = [interval for _, interval in test.tests.values()]
    # The smallest detectable slowdown, with the pairs of this test and with those of a full session.
    detectable, detectable_by_all = (
        percent(session_mde(intervals, pairs, THRESHOLDS.eps)) for pairs in (test.pairs, LOOKS[-1])
    )
    reasons = [explain_withheld(test.outliers)] if test.withheld else [*_decision_sentences(test.tests, test.decision)]
    worst_sd = max(interval.sd for interval in intervals)
    if test.pairs < LOOKS[0]:  # then only the given noise makes a decision possible
        noise = f"{100 * worst_sd:.2g}% per pair"
        reasons.append(f"judged with the given noise of {noise}: the answer depends on that figure")
    if test.unused:
        cause = f"the first {test.pairs} decided"
        if test.decision == "undecided":
            cause = f"decisions are made only after {', '.join(map(str, LOOKS[:-1]))} and {LOOKS[-1]} pairs"
        reasons.append(f"{test.unused} of {test.pairs + test.unused} pairs were not used: {cause}")
    if test.decision == "undecided" and not test.final:
        next_look = next(look for look in LOOKS if look > test.pairs)
        missing = next_look - test.pairs - test.unused
        more = f"give {missing} more base files and {missing} more head files"
        reasons.append(f"the next decision is after {next_look} pairs: {more}")
    if test.decision == "undecided" and not test.withheld:
        needed = pairs_needed(worst_sd, ALPHA, THRESHOLDS, intervals[0].prior_df)
        effort = f"about {needed} pairs, more than the test allows: use a quieter node"
        if needed is None:
            effort = "more pairs than is practical: use a quieter node"
        elif needed <= LOOKS[-1]:
            effort = f"{_next_look(needed)} pairs"
        reasons.append(
            f"with this noise ({100 * worst_sd:.2g}% per pair), {LOOKS[-1]} pairs can detect a slowdown of "
            f"{round_up_percent(detectable_by_all)} or more; to detect {SETTINGS.threshold_pct:g}% takes {effort}"
        )
    fields |= {
        "mde_pct": detectable,
        "mde_full_pct": detectable_by_all,
        "slow_launches": list(test.outliers),
        "pass_withheld": test.withheld,
    }
    used_ratios = {name: values[: test.pairs] for name, values in ratios.items()}
    return _decided_section(test.decision, test.tests, test.alpha, reasons, base, head, used_ratios, **fields)


def unpaired_section(base: Files, head: Files, given_sd: float | None) -> tuple[Throughput, list[str]]:
    """Return the section of unpaired runs, and warnings. The test has the error rate of one look, so it is valid once.

    ``given_sd`` is not used: runs that belong to pairs are judged by --paired.
    """
    summaries = [[file.summaries() for file in files] for files in (base, head)]
    values = {name: [[run[name] for run in runs] for runs in summaries] for name in SUMMARIES}
    estimates = {name: percent(fmean(second) - fmean(first)) for name, (first, second) in values.items()}
    noise = f"--noise {100 * (given_sd or 0):.2g}% is not used: it is the noise of pairs, so it needs --paired"
    warnings = [noise] if given_sd is not None else []
    if unsteady_reasons := find_unsteady(base, head):
        return _unsteady_section(base, head, unsteady_reasons, estimates, by="runs"), warnings
    evidence = describe_common_session(base, head)
    if not evidence or min(len(base), len(head)) < MIN_RUNS:
        why = f"at least {MIN_RUNS} runs of each arm are needed" if evidence else NO_COMMON_SESSION
        reasons = [
            f"{count(len(base), 'base run')} and {count(len(head), 'head run')} decide nothing: {why}",
            *_estimate_sentences(estimates),
            *filter(None, [evidence]),
            _pairs_advice(estimates, " and compare with --paired --order abba: it takes"),
        ]
        return _section("undecided", estimates["median"], reasons, base, head, by="runs"), warnings
    intervals = {name: welch(first, second, ALPHA) for name, (first, second) in values.items()}
    tests = {name: (decide(interval, THRESHOLDS), interval) for name, interval in intervals.items()}
    decision = combine(tests.values(), THRESHOLDS)
    reasons = [*_decision_sentences(tests, decision), evidence]
    if decision == "undecided":
        needed = pairs_needed(max(interval.sd for interval in intervals.values()), ALPHA, THRESHOLDS)
        effort = f"about {needed} runs" if needed is not None else "more runs than is practical"
        reasons.append(
            f"with this noise, to detect {SETTINGS.threshold_pct:g}% takes {effort} of each arm; pairs on one node "
            "(--paired) take fewer"
        )
    return _decided_section(decision, tests, ALPHA, reasons, base, head, {}, by="runs"), warnings


def _decision_sentences(tests: Tests, decision: Decision) -> Iterator[str]:
    beyond = f"{SETTINGS.indifference_pct:g}%"
    if decision in ("regressed", "improved"):
        word, side = ("slower", "above +") if decision == "regressed" else ("faster", "below -")
        for name, (test_decision, interval) in tests.items():
            change = f"head is {word} than base by the {name} step time: {format_estimate(interval)}"
            if test_decision == decision:
                yield f"{change}; the whole interval is {side}{beyond}"
    elif decision in ("no_change", "within_bound"):
        largest = max(percent(interval.high) for _, interval in tests.values())
        rounded_up = math.ceil(100 * largest) / 100
        bound = f"at most {rounded_up:.2f}% slower" if largest > 0 else "not slower"
        limit = f"{SETTINGS.threshold_pct:g}%"
        where = f"between -{limit} and +{limit}" if decision == "no_change" else f"below +{limit}"
        yield f"both intervals lie {where}; head is {bound} than base"
    else:
        yield (
            f"the intervals are too wide: FAIL needs an interval above "
            f"+{beyond}, PASS needs both intervals below +{SETTINGS.threshold_pct:g}%"
        )


def _estimate_sentences(estimates: Mapping[str, float]) -> Iterator[str]:
    yield ", ".join(f"{name} step time {value:+.2f}%" for name, value in estimates.items())
    largest = max(estimates.values(), key=abs)
    if abs(largest) > UNUSUAL_PCT:
        yield (
            f"{largest:+.0f}% is far more than usual noise: something differs, but so few runs cannot show whether "
            "it is the code, the node or other work on the node"
        )


def _pairs_advice(estimates: Mapping[str, float], command: str) -> str:
    """Return how many pairs would prove a difference as large as the estimate, but at least the threshold for PASS.

    ``estimates`` are percentages. ``command`` are the words between how to run and the numbers of pairs.
    """
    # On the log scale, a speed-up counts like a slowdown by the same factor. Few runs support no more digits.
    largest = max(abs(math.log1p(value / 100)) for value in estimates.values())
    pct = max(round(percent(largest)), round(SETTINGS.threshold_pct))
    or_rule_out = "or rule out " if pct == round(SETTINGS.threshold_pct) else ""
    target = f"{or_rule_out}a difference of {pct}%" if pct <= UNUSUAL_PCT else "a difference like this"
    thresholds = Thresholds(delta=math.log1p(pct / 100), eps=THRESHOLDS.eps)
    needed = [pairs_needed(noise_pct / 100, ALPHA, thresholds) for noise_pct in PAIR_NOISE_PCT]
    quiet, typical, noisy = (
        f"{_next_look(n)}" if n is not None and n <= LOOKS[-1] else f"more than {LOOKS[-1]}" for n in needed
    )
    quiet_pct, typical_pct, noisy_pct = PAIR_NOISE_PCT
    return (
        f"to prove {target}, run base, head, head, base and so on on one node{command} {quiet} pairs on a quiet node "
        f"({quiet_pct:g}% from pair to pair), {typical} on a typical one ({typical_pct:g}%), {noisy} on a noisy one "
        f"({noisy_pct:g}%)"
    )


def _next_look(pairs: int) -> int:
    return next((look for look in LOOKS if look >= pairs), pairs)


def _correct_known_noise(known_sd: float, base: Files, head: Files) -> tuple[float, list[str]]:
    """Return the standard deviation of a pair's log-ratio to judge few pairs with, and warnings: ``known_sd``, unless
    the noise of the steps inside the runs, which is a lower bound, contradicts it.
    """
    base_variance, head_variance = (
        math.fsum(run_standard_error(file.kept_s) ** 2 for file in arm) / len(arm) for arm in (base, head)
    )
    step_noise = math.sqrt(base_variance + head_variance)
    if step_noise <= MAX_NOISE_RATIO * known_sd:
        return known_sd, []
    sd = math.hypot(known_sd, step_noise)
    warning = (
        f"the steps inside the files imply a scatter of {100 * step_noise:.2g}% per pair, but --noise says "
        f"{100 * known_sd:.2g}%; {100 * sd:.2g}% is used"
    )
    return sd, [warning]


def _unsteady_section(
    base: Files, head: Files, unsteady_reasons: Sequence[str], estimates: Mapping[str, float], **fields: Any
) -> Throughput:
    advice = (
        "a run without a steady state has no step time to compare: run it twice as long, find the drift, or give "
        "the end of its warm-up with --skip N"
    )
    reasons = [*unsteady_reasons, advice, *_estimate_sentences(estimates)]
    return _section("undecided", estimates["median"], reasons, base, head, **fields)


def _decided_section(
    decision: Decision,
    tests: Tests,
    alpha: float,
    reasons: Sequence[str],
    base: Files,
    head: Files,
    ratios: Mapping[str, Sequence[float]],
    **fields: Any,
) -> Throughput:
    records = [primary_test(name, result, interval, ratios.get(name, [])) for name, (result, interval) in tests.items()]
    _, median_interval = tests["median"]
    fields |= {
        "tests": records,
        "low_pct": percent(median_interval.low),
        "high_pct": percent(median_interval.high),
        "bound_pct": max(test.high_pct for test in records) if STATUS[decision] == "PASS" else None,
        "alpha": alpha,
    }
    return _section(decision, percent(median_interval.estimate), reasons, base, head, **fields)


def _section(
    decision: Decision, estimate_pct: float, reasons: Sequence[str], base: Files, head: Files, **fields: Any
) -> Throughput:
    base_step_s, head_step_s = (median(median(file.kept_s) for file in files) for files in (base, head))
    return Throughput(
        status=STATUS[decision],
        reasons=[*reasons],
        decision=decision,
        estimate_pct=estimate_pct,
        base_step_s=base_step_s,
        head_step_s=head_step_s,
        **fields,
    )


def withhold_pass(section: Throughput, omissions: Sequence[str]) -> Throughput:
    """Turn a PASS into INCONCLUSIVE because files are incomplete."""
    reasons = [
        *(f"no PASS: {omission}" for omission in omissions),
        "the missing part may contain a slowdown: give one whole run per file, or leave those steps out with --skip N",
    ]
    update = {"status": "INCONCLUSIVE", "decision": "undecided", "bound_pct": None}
    return section.model_copy(update={**update, "reasons": [*reasons, *section.reasons]})
