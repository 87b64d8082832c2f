"""The three questions that every check answers, with short answers for the top of the comment and of the report
(report.html)."""

from collections.abc import Callable
from dataclasses import dataclass

from regbot.records.verdict import Sharding, Status, Throughput, select_gravest_status
from regbot.report.quantities import size
from regbot.report.sizes import name_small_variants
from regbot.report.state import Check, State
from regbot.report.throughput import ThroughputAnswer, classify_throughput, is_gate_contradicted, select_deciding_test


@dataclass(frozen=True)
class QuestionAnswer:
    """One question with its answer."""

    question: str
    topic: str
    """Short name of the question."""
    status: Status | None
    """Status of the answer; None if nothing was measured."""
    words: str
    """The answer."""


def answer_questions(check: Check) -> tuple[QuestionAnswer, QuestionAnswer, QuestionAnswer]:
    """Return the answers to: Did the sharding change? Did throughput change? Can the answer be trusted?"""
    return (_answer_sharding(check), _answer_throughput(check), _answer_trust(check))


def _answer_sharding(check: Check) -> QuestionAnswer:
    """Return the answer for the workload with the gravest sharding section, with a note on the workloads whose
    sharding is unknown. The status is None if no sharding section is known.

    If a workload was not run, and nothing proves that the change cannot affect it (``is_passing_but_unproven``), the
    note gives the number of traced workloads.
    """
    question = "Did the sharding change?"
    sections = [entry.verdict.sharding for entry in check.entries]
    known_sections = [section for section in sections if section is not None]
    if check.state is State.UNCONCERNED:
        return QuestionAnswer(question, "Sharding", None, _describe_unconcerned(check))
    if not known_sections:
        return QuestionAnswer(question, "Sharding", None, "unknown")
    status = select_gravest_status(section.status for section in known_sections)
    # NOT_JUDGED: both arms are one commit with different overrides, so differences are shown and not judged.
    words = "differs" if check.state is State.NOT_JUDGED and check.changed else _SHARDING_WORDS[status](known_sections)
    small_variants = name_small_variants(known_sections)
    variant_note = f" ({small_variants} variant, not the full model)" if small_variants else ""
    scope = _count_unknown(sections)
    if check.is_passing_but_unproven and not scope:
        scope = _count_traced(check)
    return QuestionAnswer(question, "Sharding", status, f"{words}{scope}{variant_note}")


def _describe_unconcerned(check: Check) -> str:
    """Return the answer if no workload was run. A PASS means that stored runs prove that the change cannot matter."""
    return "not concerned" if check.verdict.verdict == "PASS" else "not measured"


def _describe_passing_sharding(sections: list[Sharding]) -> str:
    """Return the answer if all sharding sections are PASS. "same program" is the strongest answer: all device programs
    are identical."""
    findings = [finding for section in sections for finding in section.findings]
    if any(finding.accepted for finding in findings):
        return "changed, declared"
    if findings:
        return "changed, no regression"
    return "same program" if all(section.identical_program for section in sections) else "unchanged"


_SHARDING_WORDS: dict[Status, Callable[[list[Sharding]], str]] = {
    "FAIL": lambda _: "regressed",
    "INVALID": lambda _: "unknown",
    "REVIEW": lambda _: "changed, needs review",
    "INCONCLUSIVE": lambda _: "undecided",
    "PASS": _describe_passing_sharding,
}
"""Gravest status of the sharding sections -> function that returns the answer from these sections."""


def _answer_throughput(check: Check) -> QuestionAnswer:
    """Return the answer of the timed workload with the gravest status. The status is None if nothing was timed."""
    question = "Did throughput change?"
    timed = [entry.throughput for entry in check.entries if entry.throughput is not None]
    if check.state is State.UNCONCERNED:
        return QuestionAnswer(question, "Throughput", None, _describe_unconcerned(check))
    if not timed:
        return QuestionAnswer(question, "Throughput", None, "not measured")
    status = select_gravest_status(section.status for section in timed)
    worst = min(
        (section for section in timed if section.status == status),
        key=lambda section: _ANSWER_ORDER.index(classify_throughput(section)),
    )
    return QuestionAnswer(question, "Throughput", status, _describe_throughput(worst))


_ANSWER_ORDER = (
    ThroughputAnswer.SLOWER,
    ThroughputAnswer.FALLBACK,
    ThroughputAnswer.NO_ANSWER,
    ThroughputAnswer.UNDECIDED,
    ThroughputAnswer.FASTER,
    ThroughputAnswer.NO_CHANGE,
    ThroughputAnswer.WITHIN_BOUND,
    ThroughputAnswer.IDENTICAL,
)
"""Order of the answers. If several workloads have equally grave answers, the whole check shows the one that comes first
here."""


def _describe_throughput(section: Throughput) -> str:
    """Return the answer that a throughput section gives, in a few words."""
    answer = classify_throughput(section)
    if answer in (ThroughputAnswer.SLOWER, ThroughputAnswer.FASTER):
        test = select_deciding_test(section)
        change = test.estimate_pct if test else section.estimate_pct
        word = "slower" if answer is ThroughputAnswer.SLOWER else "faster"
        return word if change is None else f"{size(change)} {word}"
    # WITHIN_BOUND is decided by look 0 (the pairs of the first block), or by stored sessions of main.
    return {
        ThroughputAnswer.NO_CHANGE: "no change",
        ThroughputAnswer.WITHIN_BOUND: "no slowdown" if section.by == "look0" else "like main's last sessions",
        ThroughputAnswer.UNDECIDED: "undecided",
        ThroughputAnswer.IDENTICAL: "not timed, all is the same",
        ThroughputAnswer.FALLBACK: "timed with another dispatcher",
    }.get(answer, "needs review" if section.status == "REVIEW" else "unknown")


def _answer_trust(check: Check) -> QuestionAnswer:
    """Return the answer from the validity sections. It is "no" only if all of these sections are INVALID. The status is
    None if no workload was run."""
    question = "Can the answer be trusted?"
    sections = [entry.verdict.validity for entry in check.entries]
    if check.state is State.UNCONCERNED and check.verdict.verdict == "PASS":
        return QuestionAnswer(question, "Trust", "PASS", "yes, by stored runs of the base")
    if not sections:
        return QuestionAnswer(question, "Trust", None, "nothing was measured")
    status = select_gravest_status(section.status for section in sections)
    all_invalid = all(section.status == "INVALID" for section in sections)
    if all_invalid:
        return QuestionAnswer(question, "Trust", status, "no")
    notes = ""
    if status == "PASS":
        timed = [entry.throughput for entry in check.entries if entry.throughput is not None]
        if any(section.status == "INCONCLUSIVE" and is_gate_contradicted(section) for section in timed):
            notes += ", except for the step times"
        if check.verdict.warnings:
            notes += ", with warnings"
    if status == "INVALID":
        invalid = sum(section.status == "INVALID" for section in sections)
        total = len(check.entries) + len(check.unconcerned)
        notes = f": {invalid} of {total} workloads {'is' if invalid == 1 else 'are'} INVALID"
    return QuestionAnswer(question, "Trust", status, f"{_TRUST_WORDS[status]}{notes}")


_TRUST_WORDS: dict[Status, str] = {
    "FAIL": "the head breaks",
    "INVALID": "partly",
    "REVIEW": "the head trains differently",
    "INCONCLUSIVE": "partly",
    "PASS": "yes",
}
"""Gravest status of the validity sections -> answer, if at least one section is not INVALID."""


def _count_traced(check: Check) -> str:
    """Return in how many workloads the sharding was traced."""
    traced = len(check.entries)
    return f" in {traced} of {traced + len(check.unconcerned)} workloads"


def _count_unknown(sections: list[Sharding | None]) -> str:
    """Return in how many workloads the sharding is unknown; '' if it is unknown in none or in all."""
    missing = sum(section is None or section.status == "INVALID" for section in sections)
    return f", unknown in {missing} of {len(sections)}" if 0 < missing < len(sections) else ""
