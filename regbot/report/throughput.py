"""Sentences about a throughput section: the change in step time, the decision, and the power of the measurement. The
power is the smallest slowdown that the pairs can detect.

Every answer has its own small function. The comment, the report (report.html) and the terminal use the same sentences.
This module computes no numbers. All numbers come from the verdict. The *luck* of an arm is the part of its speed that a
new compilation may change.

``section.by`` names what decided: ``pairs``, ``look0`` (the first block), ``stored`` (stored sessions) or ``identity``
(nothing differs, so nothing was timed). ``mde_pct`` is the smallest slowdown that the pairs of the session can detect,
and ``mde_full_pct`` that of a full session.
"""

from collections.abc import Callable, Sequence
from enum import Enum, auto

from regbot.records.settings import ThroughputThresholds as Thresholds
from regbot.records.text.clip import clip
from regbot.records.text.percentages import round_up_percent
from regbot.records.text.words import count
from regbot.records.verdict import Decision, PrimaryTest, Throughput
from regbot.report.markdown import Name, UntrustedText, Words
from regbot.report.quantities import estimate_and_interval, interval, percent, size
from regbot.report.timed_runs import TimedRuns
from regbot.report.workload_section import WorkloadSection

REASON_CHARACTERS = 300
MAX_FURTHER_REASONS = 3
"""Largest number of reasons that are shown after the first reason of an undecided section."""
MAX_SHARES = 4
"""Largest number of workloads whose share of the routed experts is shown."""
EXAMPLE_SLOWDOWN_PCT = 10.0
"""Slowdown of the routed experts in the example of what their share means for a step."""

FEW_SLOW_STEPS = "the median step is not proven to be slower, so the added time is in a few slow steps"
_LUCK_NOT_KNOWN = "No calibration of this node class shows how much a new compilation changes the speed of a commit"
GATE_CONTRADICTED = "calibration shows that step times give no reliable verdict on this node class"
LUCK_UNKNOWN = "(its effect is not calibrated on this node class)"
PASS_WITHHELD = "a few runs were far slower than the others, and more of them are runs of head than of base"


class ThroughputAnswer(Enum):
    """The answer to the question whether throughput changed."""

    SLOWER = auto()
    FASTER = auto()
    NO_CHANGE = auto()
    WITHIN_BOUND = auto()
    """A slowdown above the bound is ruled out: by the pairs of the first block (look 0), or by stored sessions."""
    UNDECIDED = auto()
    IDENTICAL = auto()
    """Nothing that affects step time differs, so nothing was timed."""
    FALLBACK = auto()
    """The runs used another dispatcher than the requested one."""
    NO_ANSWER = auto()
    """No decision, and the status is not INCONCLUSIVE: the times are invalid or need a review."""


def classify_throughput(section: Throughput) -> ThroughputAnswer:
    """Return the answer that ``section`` gives to the question whether throughput changed."""
    if section.fallback:
        return ThroughputAnswer.FALLBACK
    if section.decision is None:
        return ThroughputAnswer.UNDECIDED if section.status == "INCONCLUSIVE" else ThroughputAnswer.NO_ANSWER
    if section.by == "identity":
        return ThroughputAnswer.IDENTICAL
    return _ANSWERS[section.decision]


_ANSWERS: dict[Decision, ThroughputAnswer] = {
    "regressed": ThroughputAnswer.SLOWER,
    "improved": ThroughputAnswer.FASTER,
    "no_change": ThroughputAnswer.NO_CHANGE,
    "within_bound": ThroughputAnswer.WITHIN_BOUND,
    "undecided": ThroughputAnswer.UNDECIDED,
}
"""Decision of the tests -> answer."""


def select_deciding_test(section: Throughput) -> PrimaryTest | None:
    """Return the test that decided: the test of the median, or the test of the mean if only the mean decided. Each test
    compares one summary of the runs, the median or the mean of their step times.

    If the decision is that of no single test, return the test of the median. Return None without tests.
    """
    median_first = sorted(section.tests, key=lambda test: test.summary != "median")
    agreeing = [test for test in median_first if test.decision == section.decision]
    return next(iter(agreeing or median_first), None)


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
    test = select_deciding_test(section)
    if test is None:
        change, interval_ends = section.estimate_pct, (section.low_pct, section.high_pct)
    else:
        change, interval_ends = test.estimate_pct, (test.low_pct, test.high_pct)
    if change is None:
        return "faster" if section.decision == "improved" else "slower"
    words = f"{size(change)} {'slower' if change >= 0 else 'faster'}"
    low, high = interval_ends
    return words if low is None or high is None else f"{words} {interval(low, high)}"


def select_mean_only_test(section: Throughput) -> PrimaryTest | None:
    """Return the test of the mean if only that test found a change, else None. A few slow steps change the mean but not
    the median."""
    test = select_deciding_test(section)
    is_change = section.decision in ("regressed", "improved")
    return test if is_change and test is not None and test.summary == "mean" else None


def describe_decision(section: Throughput, thresholds: Thresholds) -> str:
    """Return the decision in one line without untrusted text. For an undecided measurement, the line also says why
    nothing is decided."""
    return _DECISION_TEXTS[classify_throughput(section)](section, thresholds)


def _describe_slower(section: Throughput, thresholds: Thresholds) -> str:
    limit = size(thresholds.indifference_pct)
    average, cause = _describe_mean_only(section)
    return f"{average}slower than {describe_reference(section)} by more than {limit}, the limit for FAIL{cause}"


def _describe_faster(section: Throughput, thresholds: Thresholds) -> str:
    limit = size(thresholds.indifference_pct)
    average, cause = _describe_mean_only(section)
    return f"{average}faster than {describe_reference(section)} by more than {limit}{cause}"


def _describe_mean_only(section: Throughput) -> tuple[str, str]:
    """Return the words before and after the change if only the mean changed, else two empty strings."""
    return ("on average ", f", {explain_mean_only(section)}") if select_mean_only_test(section) else ("", "")


def explain_mean_only(section: Throughput) -> str:
    """Return why the mean changed and the median did not. ``section``: its decision is a change of the mean only."""
    return "because fewer steps stall" if section.decision == "improved" else "because a few steps stall"


def _describe_no_change(section: Throughput, thresholds: Thresholds) -> str:
    return f"no change of {size(thresholds.threshold_pct)} or more{_append_bound(section)}"


def _describe_within_bound(section: Throughput, thresholds: Thresholds) -> str:
    """Return the words for a PASS by look 0 (the pairs of the first block), or for a PASS by stored sessions: ``like``
    these sessions. The largest slowdown that is not ruled out follows."""
    if section.by == "look0":
        return f"no slowdown of {size(thresholds.threshold_pct)} or more{_append_bound(section)}"
    return f"like {describe_reference(section)}{_append_bound(section)}"


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


def describe_bound(bound_pct: float) -> str:
    """Return the largest slowdown that is not excluded: ``at most 0.7% slower``. A bound of 0 or less excludes every
    slowdown."""
    return f"at most {round_up_percent(bound_pct)} slower" if bound_pct > 0 else "not slower"


def describe_reference(section: Throughput) -> str:
    """Return what head is compared with: ``base``, or ``the last 40 sessions of main``."""
    return f"the last {count(section.sessions, 'session')} of main" if section.by == "stored" else "base"


def _describe_undecided(section: Throughput, thresholds: Thresholds) -> str:
    """Return why nothing is decided. If noise is the only reason, return what the interval does not show. The power of
    the pairs is then in the line below the numbers, so it is left out here."""
    if not (cause := describe_undecided(section)):
        return "undecided"
    open_summaries = [test.summary for test in section.tests if test.decision == "undecided"]
    # The tests may all decide, although the section does not: for example, without a steady state.
    is_interval_open = bool(open_summaries) or not section.tests
    if not is_undecided_by_noise(section) or not is_interval_open:
        return f"undecided: {cause}"
    interval = "the interval of the mean step" if open_summaries == ["mean"] else "the interval"
    fail_limit, pass_limit = size(thresholds.indifference_pct), size(thresholds.threshold_pct)
    open_questions = f"to prove a slowdown above {fail_limit} (FAIL) or to rule out one of {pass_limit} (PASS)"
    return f"undecided: {interval} is too wide {open_questions}"


def describe_undecided(section: Throughput) -> str:
    """Return why nothing is decided, for use in a sentence; '' if unknown.

    A decision that the pairs would make may be withheld, because of calibration, of the luck of the arms, or of slow
    launches. The sentence then gives this reason. Otherwise it gives the power of the pairs.

    ``decision_without_luck`` is what the pairs would decide if the intervals did not assume any luck of the arms. It is
    None if the pairs would stay undecided.
    """
    if is_gate_contradicted(section):
        return GATE_CONTRADICTED
    if section.decision_without_luck:
        return f"{_PAIRS_WITHOUT_LUCK.get(section.decision_without_luck, _SLOWDOWN_RULED_OUT)} {LUCK_UNKNOWN}"
    return PASS_WITHHELD if section.pass_withheld else describe_power(section)


_PAIRS_WITHOUT_LUCK: dict[Decision, str] = {
    "regressed": "head was slower, but recompiling alone may explain it",
    "improved": "head was faster, but recompiling alone may explain it",
}
_SLOWDOWN_RULED_OUT = "the pairs show no slowdown, but recompiling may hide one"
"""Decision of the pairs without the luck of the arms -> what the pairs show. The second text is for other decisions."""


def is_undecided_by_noise(section: Throughput) -> bool:
    """Return whether noise is the cause of an undecided section: no decision is withheld for another reason."""
    return not (is_gate_contradicted(section) or section.decision_without_luck or section.pass_withheld)


def is_gate_contradicted(section: Throughput) -> bool:
    """Return whether calibration proves that the gate errs too often on this node class. The gate then decides
    nothing."""
    return section.calibrated is not None and bool(section.calibrated.contradicted)


def describe_power(section: Throughput) -> str:
    """Return a sentence with the smallest slowdown that these pairs can detect, and the smallest that a full session
    can detect; '' if unknown."""
    session_mde, full_mde = section.mde_pct, section.mde_full_pct
    pairs = count(section.pairs, "pair")
    determiner = "this" if section.pairs == 1 else "these"
    if session_mde is not None and full_mde is not None and full_mde < session_mde:
        return (
            f"{determiner} {pairs} can only detect a slowdown of {round_up_percent(session_mde)} or more, a full "
            f"session here {round_up_percent(full_mde)} or more"
        )
    if session_mde is not None:
        return f"{determiner} {pairs} can only detect a slowdown of {round_up_percent(session_mde)} or more"
    return (
        f"a full session here can detect a slowdown of {round_up_percent(full_mde)} or more"
        if full_mde is not None
        else ""
    )


def _describe_identical(_: Throughput, __: Thresholds) -> str:
    return "no change: packages, configuration and the code that runs are the same, so nothing was timed"


def _describe_fallback(_: Throughput, __: Thresholds) -> str:
    return "nothing decided: the requested dispatcher did not run"


def _describe_no_answer(section: Throughput, _: Thresholds) -> str:
    """Return the status in words, for a section without a decision."""
    invalid_text = "times shown, nothing decided" if has_times(section) else "could not be measured"
    words = {"INVALID": invalid_text, "REVIEW": "needs review", "FAIL": "failed"}
    return words.get(section.status, "not decided")


_DECISION_TEXTS: dict[ThroughputAnswer, Callable[[Throughput, Thresholds], str]] = {
    ThroughputAnswer.SLOWER: _describe_slower,
    ThroughputAnswer.FASTER: _describe_faster,
    ThroughputAnswer.NO_CHANGE: _describe_no_change,
    ThroughputAnswer.WITHIN_BOUND: _describe_within_bound,
    ThroughputAnswer.UNDECIDED: _describe_undecided,
    ThroughputAnswer.IDENTICAL: _describe_identical,
    ThroughputAnswer.FALLBACK: _describe_fallback,
    ThroughputAnswer.NO_ANSWER: _describe_no_answer,
}
"""Answer -> function that returns the decision in one line."""


def explain_section(section: Throughput) -> Words:
    """Return the line below the numbers of a section; () if nothing needs an explanation.

    For a change, it names the wall: the part of the step that explains the change. For a PASS, also of a faster head,
    it says why so few pairs or sessions were enough. For an undecided section, it says what a decision requires.
    Otherwise it says why there is no answer.
    """
    answer = classify_throughput(section)
    if answer is ThroughputAnswer.FASTER and section.wall:
        why = _explain_pass(section)
        return (UntrustedText(clip(section.wall, REASON_CHARACTERS)), *(("; ", *why) if why else ()))
    if answer is ThroughputAnswer.SLOWER and section.wall:
        note_on_mean = (f"{FEW_SLOW_STEPS}. ",) if select_mean_only_test(section) else ()
        return (*note_on_mean, UntrustedText(clip(section.wall, REASON_CHARACTERS)))
    if answer in (ThroughputAnswer.NO_CHANGE, ThroughputAnswer.WITHIN_BOUND):
        return _explain_pass(section)
    if answer is ThroughputAnswer.IDENTICAL or not section.reasons:
        return ()
    first_reason, *further_reasons = section.reasons
    if answer is ThroughputAnswer.UNDECIDED and further_reasons:
        # The first reason only repeats the estimate and the interval. The further reasons say what a decision requires.
        reasons = [clip(reason, REASON_CHARACTERS).rstrip(".") for reason in further_reasons[:MAX_FURTHER_REASONS]]
        return (UntrustedText(". ".join(reasons)),)
    return (UntrustedText(clip(first_reason, REASON_CHARACTERS)),)


def _explain_pass(section: Throughput) -> Words:
    """Return why this measurement could prove that there is no slowdown: the noise of its pairs or of the stored
    sessions was small, or the improvement is large enough for this noise. Return () if the noise is unknown."""
    if section.by == "look0" and section.class_noise is not None:
        sd = size(100 * section.class_noise.median_sd)
        cause = f"the change varies by only {sd} between stored pairs of this node class"
        return (f"{count(section.pairs, 'pair')} were enough, because {cause}",)
    if not section.tests:
        return ()
    sd = size(max(test.sd_pct for test in section.tests))
    if section.by == "pairs":
        exception = ", apart from the slow launches" if section.slow_launches else ""
        void = f"; {count(section.void_pairs, 'void pair')} left out" if section.void_pairs else ""
        cause = f", because the change varies by only {sd} from pair to pair"
        if section.decision == "improved" and (deciding_test := select_deciding_test(section)) is not None:
            cause = f" for a change of this size, which varies by {size(deciding_test.sd_pct)} from pair to pair"
        return (f"{count(section.pairs, 'pair')} were enough{cause}{exception}{void}",)
    if section.by == "stored":
        return (f"no pairs were needed, because the step time varies by only {sd} between the stored sessions",)
    return ()


def explain_entry(entry: WorkloadSection, throughput: Throughput) -> Words:
    """Return the line below the numbers of a workload.

    If throughput has no answer and the validity section is FAIL or INVALID, the line is the first reason of the
    validity section. Otherwise it explains the throughput section.
    """
    validity = entry.verdict.validity
    has_no_answer = classify_throughput(throughput) is ThroughputAnswer.NO_ANSWER
    if has_no_answer and validity.status in ("FAIL", "INVALID") and validity.reasons:
        return (UntrustedText(clip(validity.reasons[0], REASON_CHARACTERS)),)
    return explain_section(throughput)


def describe_setup(section: Throughput, timed: TimedRuns) -> Words:
    """Return a sentence about the node, variant and ranks of the timed runs, then what was compared, what the result
    does not cover, and the calibration of the node class. Without step times, the text ends after the ranks."""
    node = next((timed_run.run.node for timed_run in timed.runs if timed_run.run.node is not None), None)
    variant = section.variant or (timed.plan.variant if timed.plan else "")
    verb = "Timed on " if has_times(section) else "The timed runs started on "
    words: list[str] = [verb, Name((node.name if node else section.node) or "an unnamed node")]
    if node is not None:
        gpus = count(len(node.gpus), "GPU") if node.gpus else "no GPU"
        words += [" (", UntrustedText(node.node_class or count(node.cores, "core")), f"; {gpus})"]
    if any(timed_run.run.timing is not None and timed_run.run.timing.clock == "log" for timed_run in timed.runs):
        words += [", times from the log of a command"]
    else:
        words += [", variant ", Name(variant)] if variant else []
        words += [f", {count(timed.plan.world_size, 'rank')}"] if timed.plan is not None else []
    if not has_times(section):
        return (*words, ".")
    if section.by == "stored":
        stored = f"{count(section.sessions, 'stored session')} of this node class and environment"
        words += [f". The result compares head with {stored}"]
    else:
        words += [". The result compares base and head on one machine"]
    if variant.split("-")[0] == "cpu" or (node is not None and not node.gpus):
        words += [" and says nothing about absolute GPU speed"]
    return (*words, ".", *_describe_calibration(section))


def describe_expert_shares(timed: Sequence[tuple[str, Throughput]]) -> Words:
    """Return which share of a step's FLOPs the routed experts have in each workload; () if no share is known.

    An example shows what the share means: how much longer a step takes if the experts take ``EXAMPLE_SLOWDOWN_PCT``
    longer. If a variant does not end in ``-moe``, a hint recommends one that does. ``timed``: names of workloads with
    their throughput sections.
    """
    known = [(name, section) for name, section in timed if section.expert_flops_share is not None]
    if not known:
        return ()
    words: list[str] = ["Routed experts are "]
    for number, (name, section) in enumerate(known[:MAX_SHARES]):
        assert section.expert_flops_share is not None
        share = f"{section.expert_flops_share:.0%}"
        words += [f"{share} of the step's FLOPs" if number == 0 else f", {share}"]
        words += [" in ", Name(name)] if len(timed) > 1 else []
    slowdowns = [
        f"{EXAMPLE_SLOWDOWN_PCT * section.expert_flops_share:.1f}%"
        for _, section in known[:MAX_SHARES]
        if section.expert_flops_share is not None
    ]
    words += [f". If they take {EXAMPLE_SLOWDOWN_PCT:g}% longer, a step takes about {' or '.join(slowdowns)}"]
    words += [" longer."]
    if any(not section.variant.endswith("-moe") for _, section in known):
        words += [
            " To measure such slowdowns more clearly, set ",
            Name("timed_variant"),
            " to one that ends in ",
            Name("-moe"),
        ]
        words += [", which has no embedding and no output head."]
    return tuple(words)


def _describe_calibration(section: Throughput) -> Words:
    """Return sentences about the calibration of this node class: the noise of a pair, false alarms in sessions that
    compared a commit with itself, and the luck of an arm.

    Without a calibration, the sentence says which luck the interval assumes; () if it assumes none.
    """
    calibration = section.calibrated
    if calibration is None:
        if not section.assumed_luck_pct or section.decision_without_luck:
            return ()
        assumed = size(section.assumed_luck_pct)
        return (f" {_LUCK_NOT_KNOWN}, so the interval assumes {assumed}. 'regbot calibrate' measures it.",)
    # Both count sessions: ``count`` of ``total``. ``flags.high`` is the upper limit of the true rate of false alarms.
    flags, coverage = calibration.false_flags, calibration.covered
    alarms = f"were {count(flags.count, 'false alarm')}" if flags.count > 1 else "was one false alarm"
    alarms = alarms if flags.count else "was no false alarm"
    text = (
        " This node class was calibrated with pairs: two runs of one commit differ by "
        f"{size(calibration.sd_pct)} (standard deviation). In {count(flags.total, 'session')} that compared a commit "
        f"with itself, there {alarms}, and the true rate is at most {flags.high:.0%}. The interval contained "
        f"the true change in {coverage.count} of {count(coverage.total, 'session')}."
    )
    if calibration.detected is not None:
        detected = calibration.detected
        text += (
            f" An injected slowdown of {calibration.injected_pct:g}% was detected in {detected.count} of "
            f"{count(detected.total, 'session')}."
        )
    luck = calibration.arm_luck
    if luck is not None:
        luck_range = f"{size(luck.low_pct)} to {size(luck.high_pct)}"
        text += f" A new compilation of one commit changes its speed by {size(luck.sd_pct)} ({luck_range})."
    elif section.assumed_luck_pct:
        text += f" {_LUCK_NOT_KNOWN}, so the interval assumes {size(section.assumed_luck_pct)}."
    else:
        text += f" {_LUCK_NOT_KNOWN}."
    return (text,)


def list_significant_metrics(section: Throughput) -> list[str]:
    """Return the secondary metrics that differ significantly, with their changes."""
    return [f"{test.metric} {percent(test.estimate_pct)}" for test in section.secondary if test.significant]


def has_times(section: Throughput) -> bool:
    """Return whether there are step times to show, even if they decide nothing."""
    return section.base_step_s is not None or section.head_step_s is not None


def timed_entries(entries: Sequence[WorkloadSection]) -> list[tuple[WorkloadSection, Throughput]]:
    """Return every workload with a throughput section."""
    return [(entry, entry.throughput) for entry in entries if entry.throughput is not None]
