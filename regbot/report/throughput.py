"""What a throughput section says, in words: how a step time moved, what that proves, what it would take to prove more.

Every decision has its own small function, chosen by the decision or by what took its place. The same words serve the
comment, the page and the terminal. Nothing is computed here: all numbers are the verdict's.
"""

from collections.abc import Callable, Sequence
from enum import Enum, auto

from regbot.records.settings import Throughput as Thresholds
from regbot.records.verdict import Decision, PrimaryTest, Throughput
from regbot.report.markdown import Name, Said, Words
from regbot.report.measured import Measured
from regbot.report.quantities import at_most, count, interval, percent, size, with_interval
from regbot.report.timed import Timed

REASON_CHARACTERS = 300


class Answer(Enum):
    """What became of the question whether throughput changed."""

    SLOWER = auto()
    FASTER = auto()
    NO_CHANGE = auto()
    WITHIN_BOUND = auto()
    UNDECIDED = auto()
    IDENTICAL = auto()
    FALLBACK = auto()
    NO_ANSWER = auto()


def answer(section: Throughput) -> Answer:
    """The one of them that ``section`` is."""
    if section.fallback:
        return Answer.FALLBACK
    if section.decision is None:
        return Answer.UNDECIDED if section.status == "INCONCLUSIVE" else Answer.NO_ANSWER
    if section.by == "identity":
        return Answer.IDENTICAL
    return _ANSWERS[section.decision]


_ANSWERS: dict[Decision, Answer] = {
    "regressed": Answer.SLOWER,
    "improved": Answer.FASTER,
    "no_change": Answer.NO_CHANGE,
    "within_bound": Answer.WITHIN_BOUND,
    "undecided": Answer.UNDECIDED,
}


def telling(section: Throughput) -> PrimaryTest | None:
    """The test that made the decision: the median's, unless only the mean's decided so; None where there is none."""
    by_median = sorted(section.tests, key=lambda test: test.summary != "median")
    return next((test for test in by_median if test.decision == section.decision), next(iter(by_median), None))


def moved(section: Throughput) -> str:
    """``+46.7% [+38.2, +55.9]``: the median's change, as far as it is known; else ''."""
    if section.estimate_pct is None or section.by == "identity":
        return ""
    if section.low_pct is None or section.high_pct is None:
        return percent(section.estimate_pct)
    return with_interval(section.estimate_pct, section.low_pct, section.high_pct)


def slower(section: Throughput) -> str:
    """``46.7% slower [+38.2, +55.9]``, ``12.3% faster […]``: the change that decided, for a sentence."""
    test = telling(section)
    if test is None:
        change, ends = section.estimate_pct, (section.low_pct, section.high_pct)
    else:
        change, ends = test.estimate_pct, (test.low_pct, test.high_pct)
    if change is None:
        return "faster" if section.decision == "improved" else "slower"
    words = f"{size(change)} {'slower' if change >= 0 else 'faster'}"
    if test is not None and test.summary == "mean":
        words += " on average"
    low, high = ends
    return words if low is None or high is None else f"{words} {interval(low, high)}"


def only_the_mean(section: Throughput) -> PrimaryTest | None:
    """The test of the mean, where it alone decided: a few slow steps, which a median does not see."""
    test = telling(section)
    decided = section.decision in ("regressed", "improved")
    return test if decided and test is not None and test.summary == "mean" else None


def decided(section: Throughput, thresholds: Thresholds) -> str:
    """What was proven, or what it would take, in one line without anybody else's words."""
    return _DECIDED[answer(section)](section, thresholds)


def _slower(section: Throughput, thresholds: Thresholds) -> str:
    return f"slower by more than {size(thresholds.indifference_pct)}{_of_the_mean(section)}"


def _faster(section: Throughput, thresholds: Thresholds) -> str:
    return f"faster by more than {size(thresholds.indifference_pct)}{_of_the_mean(section)}"


def _of_the_mean(section: Throughput) -> str:
    return ", by the mean only: a few steps stall" if only_the_mean(section) else ""


def _no_change(section: Throughput, thresholds: Thresholds) -> str:
    return f"no change: {_excluded(section) or f'within ±{size(thresholds.threshold_pct)}'}"


def _within_bound(section: Throughput, _: Thresholds) -> str:
    return f"within the stored baseline: {_excluded(section) or 'no pairs were needed'}"


def _excluded(section: Throughput) -> str:
    return "" if section.bound_pct is None else f"a slowdown above {at_most(section.bound_pct)} is excluded"


def _undecided(section: Throughput, _: Thresholds) -> str:
    return f"undecided{f': {power}' if (power := able(section)) else ''}"


def able(section: Throughput) -> str:
    """What these pairs could have shown, and a full session; '' where the verdict does not say."""
    here, full = section.mde_pct, section.mde_full_pct
    pairs = count(section.pairs, "pair")
    these = "this" if section.pairs == 1 else "these"
    if here is not None and full is not None and full < here:
        return f"{these} {pairs} can show {at_most(here)} or more, a full session here {at_most(full)}"
    if here is not None:
        return f"{these} {pairs} can show {at_most(here)} or more"
    return f"a full session here can show {at_most(full)} or more" if full is not None else ""


def _identical(_: Throughput, __: Thresholds) -> str:
    return "no change: nothing that could matter differs, so nothing was timed"


def _fallback(_: Throughput, __: Thresholds) -> str:
    return "nothing decided: another dispatcher ran than was asked for"


def _no_answer(section: Throughput, _: Thresholds) -> str:
    unusable = "times shown, nothing decided" if has_times(section) else "could not be measured"
    words = {"INVALID": unusable, "REVIEW": "a person has to judge", "FAIL": "failed"}
    return words.get(section.status, "not decided")


_DECIDED: dict[Answer, Callable[[Throughput, Thresholds], str]] = {
    Answer.SLOWER: _slower,
    Answer.FASTER: _faster,
    Answer.NO_CHANGE: _no_change,
    Answer.WITHIN_BOUND: _within_bound,
    Answer.UNDECIDED: _undecided,
    Answer.IDENTICAL: _identical,
    Answer.FALLBACK: _fallback,
    Answer.NO_ANSWER: _no_answer,
}


def explained(section: Throughput) -> Words:
    """The line below the numbers: the wall that a change hit, what it would take to decide, else why there is no
    answer; () where all is said."""
    said = answer(section)
    if said in (Answer.SLOWER, Answer.FASTER) and section.wall:
        return (Said(section.wall[:REASON_CHARACTERS]),)
    if said in (Answer.NO_CHANGE, Answer.WITHIN_BOUND, Answer.IDENTICAL) or not section.reasons:
        return ()
    if said is Answer.UNDECIDED and len(section.reasons) > 1:
        return (Said(". ".join(reason[:REASON_CHARACTERS].rstrip(".") for reason in section.reasons[1:4])),)
    return (Said(section.reasons[0][:REASON_CHARACTERS]),)


def because(entry: Measured, section: Throughput) -> Words:
    """The same, where the workload is known: what broke or cannot be believed is told by its validity."""
    validity = entry.verdict.validity
    if answer(section) is Answer.NO_ANSWER and validity.status in ("FAIL", "INVALID") and validity.reasons:
        return (Said(validity.reasons[0][:REASON_CHARACTERS]),)
    return explained(section)


def place(section: Throughput, timed: Timed) -> Words:
    """Where and on what the times were taken, and what they do not say."""
    node = next((one.run.node for one in timed.runs if one.run.node is not None), None)
    variant = section.variant or (timed.plan.variant if timed.plan else "")
    words: list[str] = ["Timed on ", Name((node.name if node else section.node) or "an unnamed node")]
    if node is not None:
        gpus = count(len(node.gpus), "GPU") if node.gpus else "no GPU"
        words += [" (", Said(node.node_class or count(node.cores, "core")), f"; {gpus})"]
    if any(run.logged for run in timed.runs):
        words += [", by what a command logs"]
    else:
        words += [", variant ", Name(variant)] if variant else []
        words += [f", {count(timed.plan.world_size, 'rank')}"] if timed.plan is not None else []
    if section.by in ("screen", "stored"):
        words += [f": compares head with {count(section.sessions, 'stored session')} of this class and environment"]
    else:
        words += [": compares two arms on one machine"]
    if variant.split("-")[0] == "cpu" or (node is not None and not node.gpus):
        words += [", says nothing of absolute GPU speed"]
    return (*words, ".", *_calibration(section))


def _calibration(section: Throughput) -> Words:
    """What placebo sessions have shown of this gate here; () where there were none."""
    found = section.calibrated
    if found is None:
        return ()
    flags, covered = found.false_flags, found.covered
    words = (
        f" Calibrated here by pairs: they differ by {size(found.sd_pct)}, {flags.count} false "
        f"{'alarm' if flags.count == 1 else 'alarms'} in {count(flags.total, 'placebo session')} (at most "
        f"{flags.high:.0%}), the truth held in {covered.count} of {covered.total}"
    )
    if found.found is not None:
        words += f", an injected +{found.injected_pct:g}% found in {found.found.count} of {found.found.total}"
    return (words + ".",)


def beside(section: Throughput) -> list[str]:
    """What else differs with a change of step time, that chance does not explain."""
    return [f"{each.metric} {percent(each.estimate_pct)}" for each in section.secondary if each.significant]


def has_times(section: Throughput) -> bool:
    """Whether there are step times to show, whatever they decide."""
    return section.base_step_s is not None or section.head_step_s is not None


def timed_entries(entries: Sequence[Measured]) -> list[tuple[Measured, Throughput]]:
    """Every workload with a throughput section."""
    return [(entry, entry.throughput) for entry in entries if entry.throughput is not None]
