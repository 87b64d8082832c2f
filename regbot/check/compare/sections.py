"""The throughput section of compared files: the parts that paired and unpaired files share."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import ceil
from statistics import median
from typing import Any

from regbot.check.compare.run_files import StepFile
from regbot.check.compare.steady_cut import median_warm_up
from regbot.judge.estimates import LogEstimate, format_estimate, percent
from regbot.judge.throughput import STATUS
from regbot.records.settings import ThroughputThresholds as Settings
from regbot.records.verdict import Decision, PrimaryTest, Status, Throughput
from regbot.stats.known_noise import run_standard_error
from regbot.stats.launch import SUMMARIES
from regbot.stats.paired import LOOK_ALPHA, LOOKS, Thresholds, pairs_needed

SETTINGS = Settings()
"""Thresholds in percent. A comparison of files reads no regbot.toml and uses the defaults."""
THRESHOLDS = Thresholds.from_percent(SETTINGS.threshold_pct, SETTINGS.indifference_pct)
"""The thresholds as log-ratios: an interval within +-``delta`` proves no change, and one above ``eps`` a slowdown."""
ALPHA = LOOK_ALPHA / len(SUMMARIES)
"""Two-sided error of one interval. Median and mean step time share the error of one look."""

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


def decision_sentences(tests: Mapping[str, tuple[Decision, LogEstimate]], decision: Decision) -> Iterator[str]:
    """Yield sentences that explain the decision. A change has a sentence for each summary (median, mean) that shows it.

    ``tests`` has the decision and the interval of each summary.
    """
    if decision in ("regressed", "improved"):
        word, side = ("slower", "above +") if decision == "regressed" else ("faster", "below -")
        for name, (test_decision, interval) in tests.items():
            if test_decision == decision:
                yield (
                    f"head is {word} than base by the {name} step time: {format_estimate(interval)}; the "
                    f"whole interval is {side}{SETTINGS.indifference_pct:g}%"
                )
    elif decision == "no_change":
        largest = max(percent(interval.high) for _, interval in tests.values())
        rounded_up = ceil(100 * largest) / 100
        bound = f"at most {rounded_up:.2f}% slower" if largest > 0 else "not slower"
        limit = f"{SETTINGS.threshold_pct:g}%"
        yield f"both intervals lie between -{limit} and +{limit}; head is {bound} than base"
    else:
        yield (
            f"the intervals are too wide: FAIL needs an interval above "
            f"+{SETTINGS.indifference_pct:g}%, PASS needs both intervals between -{SETTINGS.threshold_pct:g}% and "
            f"+{SETTINGS.threshold_pct:g}%, or one below -{SETTINGS.indifference_pct:g}%"
        )


def estimate_sentences(estimates: Mapping[str, float]) -> Iterator[str]:
    """Yield the estimates in percent, and a remark if the largest one is far outside the usual noise.

    The sentences are for too few runs. ``estimates`` are percentages, by summary (median, mean).
    """
    yield ", ".join(f"{name} step time {value:+.2f}%" for name, value in estimates.items())
    largest = max(estimates.values(), key=abs)
    if abs(largest) > UNUSUAL_PCT:
        yield (
            f"{largest:+.0f}% is far more than usual noise: something differs, but so few runs cannot show whether "
            "it is the code, the node or other work on the node"
        )


def pairs_advice(estimates: Mapping[str, float], command: str = " and compare with --paired: it takes") -> str:
    """Return how many pairs would prove a difference as large as the estimate on a quiet, a typical and a noisy node.

    If the estimate is below the threshold for PASS, the threshold takes its place. ``estimates`` are percentages, by
    summary (median, mean). ``command`` are the words between how to run and the numbers of pairs.
    """
    # On the log scale, a speed-up counts like a slowdown by the same factor.
    largest = max(abs(math.log1p(value / 100)) for value in estimates.values())
    # Round to whole percents, because so few runs do not support more digits.
    pct = max(round(percent(largest)), round(SETTINGS.threshold_pct))
    if pct > UNUSUAL_PCT:
        target = "a difference like this"
    else:
        target = f"{'or rule out ' if pct == round(SETTINGS.threshold_pct) else ''}a difference of {pct}%"
    thresholds = Thresholds(delta=math.log1p(pct / 100), eps=THRESHOLDS.eps)
    needed = [pairs_needed(noise_pct / 100, ALPHA, thresholds) for noise_pct in PAIR_NOISE_PCT]
    quiet, typical, noisy = (
        f"{number}" if number is not None and number <= LOOKS[-1] else f"more than {LOOKS[-1]}" for number in needed
    )
    quiet_pct, typical_pct, noisy_pct = PAIR_NOISE_PCT
    return (
        f"to prove {target}, run base and head in turn on one node{command} {quiet} pairs on a quiet node "
        f"({quiet_pct:g}% from pair to pair), {typical} on a typical one ({typical_pct:g}%), {noisy} on a noisy one "
        f"({noisy_pct:g}%)"
    )


def pair_noise_from_steps(base: Sequence[StepFile], head: Sequence[StepFile]) -> float:
    """Return a lower bound for the standard deviation of a pair's log-ratio, from the noise of the steps inside the
    runs. It is a lower bound because launches also differ as a whole."""
    base_variance, head_variance = (
        math.fsum(run_standard_error(file.kept_s) ** 2 for file in arm) / len(arm) for arm in (base, head)
    )
    return math.sqrt(base_variance + head_variance)


def correct_known_noise(known_sd: float, base: Sequence[StepFile], head: Sequence[StepFile]) -> tuple[float, list[str]]:
    """Return the standard deviation of a pair's log-ratio to judge with, and warnings.

    It is ``known_sd``, or a larger value if the noise of the steps contradicts ``known_sd``. This check is for few
    runs: the scatter between few runs shows too little to check ``known_sd``.
    """
    step_noise = pair_noise_from_steps(base, head)
    if step_noise <= MAX_NOISE_RATIO * known_sd:
        return known_sd, []
    sd = math.hypot(known_sd, step_noise)
    warning = (
        f"the steps inside the files imply a scatter of {100 * step_noise:.2g}% per pair, but --noise says "
        f"{100 * known_sd:.2g}%; {100 * sd:.2g}% is used"
    )
    return sd, [warning]


def given_noise_note(sd: float) -> str:
    """Return the note that the decision depends on the noise that the user gave with --noise."""
    return f"judged with the given noise of {100 * sd:.2g}% per pair: the answer depends on that figure"


def unsteady_section(
    base: Sequence[StepFile],
    head: Sequence[StepFile],
    unsteady_reasons: Iterable[str],
    estimates: Mapping[str, float],
    fields: dict[str, Any],
) -> Throughput:
    """Build the undecided section of arms without a steady state. ``unsteady_reasons`` says which arms these are.

    ``estimates`` are percentages, by summary (median, mean). ``fields``: further fields of the section.
    """
    advice = (
        "a run without a steady state has no step time to compare: run it twice as long, find the drift, or give "
        "the end of its warm-up with --skip N"
    )
    reasons = [*unsteady_reasons, advice, *estimate_sentences(estimates)]
    return section_without_intervals(base, head, estimates["median"], reasons, fields)


def section_with_intervals(
    decision: Decision,
    median_interval: LogEstimate,
    alpha: float,
    reasons: Sequence[str],
    base: Sequence[StepFile],
    head: Sequence[StepFile],
    *,
    fields: dict[str, Any],
) -> Throughput:
    """Build the section of a comparison with intervals. ``fields``: further fields of the section, with "tests".

    ``median_interval`` is the interval of the median step time, and ``alpha`` is the error of one interval.
    """
    tests: list[PrimaryTest] = fields["tests"]
    status: Status = STATUS[decision]
    return Throughput(
        status=status,
        reasons=[*reasons],
        decision=decision,
        estimate_pct=percent(median_interval.estimate),
        low_pct=percent(median_interval.low),
        high_pct=percent(median_interval.high),
        bound_pct=max(test.high_pct for test in tests) if status == "PASS" else None,
        alpha=alpha,
        **_arm_fields(base, head),
        **fields,
    )


def section_without_intervals(
    base: Sequence[StepFile],
    head: Sequence[StepFile],
    estimate_pct: float,
    reasons: Sequence[str],
    fields: dict[str, Any],
) -> Throughput:
    """Build the section of a comparison without intervals. ``fields``: further fields of the section.

    ``estimate_pct`` is the estimate for the median step time.
    """
    return Throughput(
        status="INCONCLUSIVE",
        reasons=[*reasons],
        decision="undecided",
        estimate_pct=estimate_pct,
        **_arm_fields(base, head),
        **fields,
    )


def withhold_pass(section: Throughput, omissions: Sequence[str]) -> Throughput:
    """Turn a PASS into INCONCLUSIVE because files are incomplete. ``omissions`` has a sentence for each omission."""
    reasons = [
        *(f"no PASS: {omission}" for omission in omissions),
        "the missing part may contain a slowdown: give one whole run per file, or leave those steps out with --skip N",
    ]
    return section.model_copy(
        update={
            "status": "INCONCLUSIVE",
            "decision": "undecided",
            "bound_pct": None,
            "reasons": [*reasons, *section.reasons],
        }
    )


def _arm_fields(base: Sequence[StepFile], head: Sequence[StepFile]) -> dict[str, Any]:
    """Return the fields of the section about step times and warm-ups of the arms."""
    return {
        "base_step_s": _median_step_s(base),
        "head_step_s": _median_step_s(head),
        "base_warmup_steps": median_warm_up(base),
        "head_warmup_steps": median_warm_up(head),
    }


def _median_step_s(files: Sequence[StepFile]) -> float:
    """Return the median over the runs of each run's median step time, in seconds."""
    return median(median(file.kept_s) for file in files)
