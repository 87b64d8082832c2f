"""Sentences about a throughput section: the change in step time, the decision, and the power of the measurement.

This module computes no numbers: all come from the verdict. ``mde_pct`` is the smallest slowdown that the pairs of the
session can detect, and ``mde_full_pct`` that of a full session. The *luck* of an arm is the part of its speed that a
new compilation may change.
"""

from collections.abc import Sequence
from enum import Enum, auto

from regbot.records.settings import ThroughputThresholds as Thresholds
from regbot.records.text.clip import clip
from regbot.records.text.percentages import round_up_percent
from regbot.records.text.words import count
from regbot.records.verdict import Decision, PrimaryTest, Throughput
from regbot.report.markdown import Name, UntrustedText, Words
from regbot.report.quantities import estimate_and_interval, interval, milliseconds, percent, size
from regbot.report.workload_section import WorkloadSection
from regbot.stats.arm_luck import MIN_ALLOCATIONS

REASON_CHARACTERS = 300
MAX_FURTHER_REASONS = 3
"""Largest number of reasons that are shown after the first reason of an undecided section."""
MAX_SHARES = 4
"""Largest number of workloads whose share of the routed experts is shown."""

_LUCK_NOT_KNOWN = "No calibration of this node class shows how much a new compilation changes the speed of a commit"
GATE_CONTRADICTED = "calibration shows that step times give no reliable verdict on this node class"
LUCK_UNKNOWN = "(its effect is not calibrated on this node class)"
PASS_WITHHELD = "a few runs were far slower than the others, and more of them are runs of head than of base"


class ThroughputAnswer(Enum):
    """The answer to the question whether throughput changed. If the workloads of a check have equally grave answers,
    the check shows the one that comes first here."""

    SLOWER = auto()
    FALLBACK = auto()
    """The runs used another dispatcher than the requested one."""
    NO_ANSWER = auto()
    """No decision, and the status is not INCONCLUSIVE: the times are invalid or need a review."""
    UNDECIDED = auto()
    FASTER = auto()
    NO_CHANGE = auto()
    WITHIN_BOUND = auto()
    """A slowdown above the bound is ruled out: by pairs, or by stored sessions."""
    IDENTICAL = auto()
    """Nothing that affects step time differs, so nothing was timed."""


_ANSWERS: dict[Decision, ThroughputAnswer] = {
    "regressed": ThroughputAnswer.SLOWER,
    "improved": ThroughputAnswer.FASTER,
    "no_change": ThroughputAnswer.NO_CHANGE,
    "within_bound": ThroughputAnswer.WITHIN_BOUND,
    "undecided": ThroughputAnswer.UNDECIDED,
}


def classify_throughput(section: Throughput) -> ThroughputAnswer:
    """Return the answer that ``section`` gives to the question whether throughput changed."""
    if section.fallback:
        return ThroughputAnswer.FALLBACK
    if section.decision is None:
        return ThroughputAnswer.UNDECIDED if section.status == "INCONCLUSIVE" else ThroughputAnswer.NO_ANSWER
    return ThroughputAnswer.IDENTICAL if section.by == "identity" else _ANSWERS[section.decision]


def select_deciding_test(section: Throughput) -> PrimaryTest | None:
    """Return the test that decided: of the median, or of the mean if only the mean decided. If the decision is that of
    no single test, return the test of the median. Return None without tests."""
    median_first = sorted(section.tests, key=lambda test: test.summary != "median")
    agreeing = [test for test in median_first if test.decision == section.decision]
    return next(iter(agreeing or median_first), None)


def select_mean_only_test(section: Throughput) -> PrimaryTest | None:
    """Return the test of the mean if only that test found a change, else None. A few slow steps change the mean but not
    the median."""
    test = select_deciding_test(section)
    is_change = section.decision in ("regressed", "improved")
    return test if is_change and test is not None and test.summary == "mean" else None


def has_times(section: Throughput) -> bool:
    """Return whether there are step times to show, even if they decide nothing."""
    return section.base_step_s is not None or section.head_step_s is not None


def is_gate_contradicted(section: Throughput) -> bool:
    """Return whether calibration proves that the gate errs too often on this node class, so that it decides nothing."""
    return section.calibrated is not None and bool(section.calibrated.contradicted)


def format_change(section: Throughput) -> tuple[str, str]:
    """Return the change of the median step time and its interval as two texts, ``+46.7%`` and ``[+38.2, +55.9]``.

    A text is '' if its numbers are unknown. Both are '' if nothing was timed because nothing differs.
    """
    if section.estimate_pct is None or section.by == "identity":
        return "", ""
    if section.low_pct is None or section.high_pct is None:
        return percent(section.estimate_pct), ""
    return estimate_and_interval(section.estimate_pct, section.low_pct, section.high_pct)


def describe_change(section: Throughput) -> str:
    """Return the change in the deciding test, for use in a sentence: ``46.7% slower [+38.2, +55.9]``."""
    test = select_deciding_test(section) or section
    if test.estimate_pct is None:
        return "faster" if section.decision == "improved" else "slower"
    words = f"{size(test.estimate_pct)} {'slower' if test.estimate_pct >= 0 else 'faster'}"
    low, high = test.low_pct, test.high_pct
    return words if low is None or high is None else f"{words} {interval(low, high)}"


def describe_reference(section: Throughput) -> str:
    """Return what head is compared with: ``base``, or ``the last 40 sessions of main``."""
    return f"the last {count(section.sessions, 'session')} of main" if section.by == "stored" else "base"


def describe_bound(bound_pct: float) -> str:
    """Return the largest slowdown that is not excluded: ``at most 0.7% slower``. A bound of 0 or less excludes every
    slowdown."""
    return f"at most {round_up_percent(bound_pct)} slower" if bound_pct > 0 else "not slower"


def explain_mean_only(section: Throughput) -> str:
    """Return why the mean changed and the median did not."""
    return "because fewer steps stall" if section.decision == "improved" else "because a few steps stall"


def describe_decision(section: Throughput, thresholds: Thresholds) -> str:
    """Return the decision in one line without untrusted text. For an undecided measurement, the line also says why
    nothing is decided."""
    answer = classify_throughput(section)
    fail_limit, pass_limit = size(thresholds.indifference_pct), size(thresholds.threshold_pct)
    if answer in (ThroughputAnswer.SLOWER, ThroughputAnswer.FASTER):
        direction, end = ("slower", ", the limit for FAIL") if answer is ThroughputAnswer.SLOWER else ("faster", "")
        average = ""
        if select_mean_only_test(section):
            average, end = "on average ", f"{end}, {explain_mean_only(section)}"
        return f"{average}{direction} than {describe_reference(section)} by more than {fail_limit}{end}"
    if answer is ThroughputAnswer.UNDECIDED:
        return _describe_undecided_decision(section, fail_limit, pass_limit)
    if answer is ThroughputAnswer.WITHIN_BOUND and section.by == "stored":
        return f"like {describe_reference(section)}{_append_bound(section)}"
    if answer is ThroughputAnswer.NO_ANSWER:
        invalid_text = "times shown, nothing decided" if has_times(section) else "could not be measured"
        words = {"INVALID": invalid_text, "REVIEW": "needs review", "FAIL": "failed"}
        return words.get(section.status, "not decided")
    return {
        ThroughputAnswer.NO_CHANGE: f"no change of {pass_limit} or more{_append_bound(section)}",
        ThroughputAnswer.WITHIN_BOUND: f"no slowdown of {pass_limit} or more{_append_bound(section)}",
        ThroughputAnswer.IDENTICAL: "no change: packages, configuration and the code that runs are the same, so "
        "nothing was timed",
        ThroughputAnswer.FALLBACK: "nothing decided: the requested dispatcher did not run",
    }[answer]


def _append_bound(section: Throughput) -> str:
    """Return the largest slowdown that a PASS does not exclude, after a colon; '' without a bound.

    With two tests, the median and the mean step have a bound each, the upper end of their interval.
    """
    if section.bound_pct is None:
        return ""
    upper_ends = {test.summary: test.high_pct for test in section.tests}
    if set(upper_ends) != {"median", "mean"}:
        return f": {describe_bound(section.bound_pct)}"
    median, mean = (describe_bound(upper_ends[summary]) for summary in ("median", "mean"))
    return f": the median step is {median}, the mean step {mean}"


def _describe_undecided_decision(section: Throughput, fail_limit: str, pass_limit: str) -> str:
    """Return why nothing is decided. If noise is the only reason, return what the interval does not show. The power of
    the pairs is then in the line below the numbers, so it is left out here."""
    if not (cause := describe_undecided(section)):
        return "undecided"
    # The tests may all decide, although the section does not: for example, without a steady state.
    is_interval_open = not section.tests or any(test.decision == "undecided" for test in section.tests)
    is_withheld = is_gate_contradicted(section) or section.decision_without_luck or section.pass_withheld
    if is_withheld or not is_interval_open:
        return f"undecided: {cause}"
    open_questions = f"to prove a slowdown above {fail_limit} (FAIL) or to rule out one of {pass_limit} (PASS)"
    return f"undecided: the interval is too wide {open_questions}"


def describe_undecided(section: Throughput) -> str:
    """Return why nothing is decided, for use in a sentence; '' if unknown.

    A decision that the pairs would make may be withheld, because of calibration, of the luck of the arms, or of slow
    launches. Otherwise the reason is the power of the pairs.
    """
    if is_gate_contradicted(section):
        return GATE_CONTRADICTED
    if section.decision_without_luck:
        shown = {
            "regressed": "head was slower, but recompiling alone may explain it",
            "improved": "head was faster, but recompiling alone may explain it",
        }.get(section.decision_without_luck, "the pairs show no slowdown, but recompiling may hide one")
        return f"{shown} {LUCK_UNKNOWN}"
    return PASS_WITHHELD if section.pass_withheld else describe_power(section)


def describe_power(section: Throughput) -> str:
    """Return a sentence with the smallest slowdown that these pairs can detect, and the smallest that a full session
    can detect; '' if unknown."""
    session_mde, full_mde = section.mde_pct, section.mde_full_pct
    parts = []
    if session_mde is not None:
        pairs = f"{'this' if section.pairs == 1 else 'these'} {count(section.pairs, 'pair')}"
        parts.append(f"{pairs} can only detect a slowdown of {round_up_percent(session_mde)} or more")
    if full_mde is not None and (session_mde is None or full_mde < session_mde):
        parts.append(f"a full session here can detect a slowdown of {round_up_percent(full_mde)} or more")
    return ", ".join(parts)


def explain_section(section: Throughput) -> Words:
    """Return the line below the numbers of a section: the wall for a change, why so few pairs or sessions were enough
    for a PASS, else what a decision requires, or why there is no answer; () if nothing needs an explanation."""
    answer = classify_throughput(section)
    if section.wall and answer in (ThroughputAnswer.SLOWER, ThroughputAnswer.FASTER):
        wall = UntrustedText(clip(section.wall, REASON_CHARACTERS))
        why = _explain_pass(section) if answer is ThroughputAnswer.FASTER else ()
        return (wall, *(("; ", *why) if why else ()))
    if answer in (ThroughputAnswer.NO_CHANGE, ThroughputAnswer.WITHIN_BOUND):
        return _explain_pass(section)
    if answer is ThroughputAnswer.IDENTICAL or not section.reasons:
        return ()
    # The first reason of an undecided section only repeats the estimate and the interval.
    further_reasons = section.reasons[1 : MAX_FURTHER_REASONS + 1] if answer is ThroughputAnswer.UNDECIDED else []
    reasons = [clip(reason, REASON_CHARACTERS).rstrip(".") for reason in further_reasons or section.reasons[:1]]
    return (UntrustedText(". ".join(reasons)),)


def _explain_pass(section: Throughput) -> Words:
    """Return why this measurement could prove that there is no slowdown: the noise of its pairs or of the stored
    sessions was small. Return () if the noise is unknown."""
    pairs = count(section.pairs, "pair")
    if section.class_noise is not None:
        sd = size(100 * section.class_noise.median_sd)
        cause = f"the change varies by only {sd} between stored pairs of this node class"
        return (f"{pairs} were enough, because {cause}",)
    sd = size(max((test.sd_pct for test in section.tests), default=0.0))
    if section.tests and section.by == "pairs":
        exception = ", apart from the slow launches" if section.slow_launches else ""
        void = f"; {count(section.void_pairs, 'void pair')} left out" if section.void_pairs else ""
        return (f"{pairs} were enough, because the change varies by only {sd} from pair to pair{exception}{void}",)
    if section.tests and section.by == "stored":
        return (f"no pairs were needed, because the step time varies by only {sd} between the stored sessions",)
    return ()


def explain_entry(entry: WorkloadSection, throughput: Throughput) -> Words:
    """Return the line below the numbers of a workload. If throughput has no answer because the workload is FAIL or
    INVALID by its validity, the line is the first reason for that."""
    validity = entry.verdict.validity
    has_no_answer = classify_throughput(throughput) is ThroughputAnswer.NO_ANSWER
    if has_no_answer and validity.status in ("FAIL", "INVALID") and validity.reasons:
        return (UntrustedText(clip(validity.reasons[0], REASON_CHARACTERS)),)
    return explain_section(throughput)


def explain_times(name: str, section: Throughput) -> list[Words]:
    """Return the reasons for the decision, the wall, and what was measured: ``median step 115 ms -> 169 ms: 4 pairs, 10
    runs in 2.7 minutes on 2 cores, variant cpu``."""
    lines: list[Words] = []
    if select_mean_only_test(section):
        median = " ".join(format_change(section))
        lines.append((f"The mean step decided, {explain_mean_only(section)}. The median step: {median}",))
    reasons = [reason for reason in (*section.reasons[:MAX_FURTHER_REASONS], section.wall) if reason]
    lines += [(UntrustedText(reason[:1].upper() + reason[1:]),) for reason in reasons]
    if section.base_step_s is None or section.head_step_s is None:
        return lines
    measured = f"median step {milliseconds(section.base_step_s)} -> {milliseconds(section.head_step_s)}: "
    measured += count(section.pairs, "pair") + (f", and {section.void_pairs} void" if section.void_pairs else "")
    if section.cost:
        measured += f", {count(section.cost.runs, 'run')} in {section.cost.minutes:.1f} minutes"
    node = (" on ", UntrustedText(section.node)) if section.node else ()
    variant = (", variant ", UntrustedText(section.variant)) if section.variant else ()
    shares = describe_expert_shares([(name, section)])
    return [*lines, (measured, *node, *variant), *([shares] if shares else [])]


def describe_setup(entry: WorkloadSection, section: Throughput) -> Words:
    """Return a sentence about the node, variant and ranks of the timed runs, then what was compared, what the result
    does not cover, and the calibration of the node class. Without step times, the text ends after the ranks."""
    runs = [timed.run for timed in entry.timed]
    node = next((run.node for run in runs if run.node is not None), None)
    variant = section.variant or (entry.plan.variant if entry.plan else "")
    verb = "Timed on " if has_times(section) else "The timed runs started on "
    words: list[str] = [verb, Name((node.name if node else section.node) or "an unnamed node")]
    if node is not None:
        gpus = count(len(node.gpus), "GPU") if node.gpus else "no GPU"
        words += [" (", UntrustedText(node.node_class or count(node.cores, "core")), f"; {gpus})"]
    if any(run.timing is not None and run.timing.clock == "log" for run in runs):
        words += [", times from the log of a command"]
    else:
        words += [", variant ", Name(variant)] if variant else []
        words += [f", {count(entry.plan.world_size, 'rank')}"] if entry.plan is not None else []
    if not has_times(section):
        return (*words, ".")
    if section.by == "stored":
        stored = f"{count(section.sessions, 'stored session')} of this node class and environment"
        words += [f". The result compares head with {stored}"]
    else:
        words += [". The result compares base and head on one machine"]
    if variant.split("-")[0] == "cpu" or (node is not None and not node.gpus):
        words += [" and says nothing about absolute GPU speed"]
    return (*words, ".", _describe_calibration(section))


def describe_expert_shares(timed: Sequence[tuple[str, Throughput]]) -> Words:
    """Return which share of a step's FLOPs the routed experts have in each workload, and what it means; () if no share
    is known. ``timed``: names of workloads with their throughput sections."""
    known = [(name, section.expert_flops_share) for name, section in timed if section.expert_flops_share is not None]
    words: list[str] = []
    for name, share in known[:MAX_SHARES]:
        words += [f", {share:.0%}" if words else f"Routed experts are {share:.0%} of the step's FLOPs"]
        words += [" in ", Name(name)] if len(timed) > 1 else []
    slowdowns = " or ".join(f"{10 * share:.1f}%" for _, share in known[:MAX_SHARES])
    return (*words, f". If they take 10% longer, a step takes about {slowdowns} longer.") if words else ()


def _describe_calibration(section: Throughput) -> str:
    """Return sentences about the calibration of this node class: the noise of a pair, false alarms in sessions that
    compared a commit with itself, and the luck of an arm. Without a calibration, say which luck the interval assumes;
    '' if it assumes none."""
    calibration = section.calibrated
    assumed = f", so the interval assumes {size(section.assumed_luck_pct)}" if section.assumed_luck_pct else ""
    if calibration is None:
        is_reason_already = section.decision_without_luck is not None
        advice = f" {_LUCK_NOT_KNOWN}{assumed}. 'regbot calibrate' measures it."
        return advice if assumed and not is_reason_already else ""
    # ``flags.high`` is the upper limit of the true rate of false alarms.
    flags, coverage, detected = calibration.false_flags, calibration.covered, calibration.detected
    text = (
        " This node class was calibrated with pairs: two runs of one commit differ by "
        f"{size(calibration.sd_pct)} (standard deviation). Of {count(flags.total, 'session')} that compared a commit "
        f"with itself, {flags.count} raised a false alarm, and the true rate is at most {flags.high:.0%}. The interval "
        f"contained the true change in {coverage.count} of {count(coverage.total, 'session')}."
    )
    if detected is not None:
        found = f"{detected.count} of {count(detected.total, 'session')}"
        text += f" An injected slowdown of {calibration.injected_pct:g}% was detected in {found}."
    if (luck := calibration.arm_luck) is not None:
        luck_range = f"{size(luck.low_pct)} to {size(luck.high_pct)}"
        drawn = "session" if luck.lasts else "compilation"
        text += f" A new {drawn} of one commit changes its speed by {size(luck.sd_pct)} ({luck_range})."
        few = f" It was calibrated on {luck.allocations} of {MIN_ALLOCATIONS} days or nodes{assumed}."
        return text + few if assumed else text
    return f"{text} {_LUCK_NOT_KNOWN}{assumed}."
