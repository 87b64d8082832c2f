"""The answers to the questions of a check: sharding, Program, throughput, trust."""

from collections.abc import Sequence
from dataclasses import dataclass

from regbot.records.verdict import Sharding, Status, Throughput, select_gravest_status
from regbot.report.notes import name_small_variants
from regbot.report.quantities import size
from regbot.report.state import Check, State
from regbot.report.throughput import (
    ThroughputAnswer,
    classify_throughput,
    is_gate_contradicted,
    select_deciding_test,
)


@dataclass(frozen=True)
class QuestionAnswer:
    """The answer to one of the three questions of every check."""

    topic: str
    status: Status | None
    """Status of the answer; None if nothing was measured."""
    words: str


_Answer = tuple[Status | None, str]


def answer_questions(check: Check) -> list[QuestionAnswer]:
    """Return the answers to: Did the sharding change? What else changed in a step? Did throughput change? Can the
    answer be trusted? The second is left out if nothing changed."""
    sharding, throughput, trust = _answer_sharding(check), _answer_throughput(check), _answer_trust(check)
    if check.state is State.UNCONCERNED:
        is_proven = check.verdict.verdict == "PASS"
        sharding = throughput = (None, "not concerned" if is_proven else "not measured")
        trust = ("PASS", "yes, by stored runs of the base") if is_proven else (None, "nothing was measured")
    answers = [QuestionAnswer("Sharding", *sharding)]
    if program := _answer_program(check):
        answers.append(QuestionAnswer("Program", *program))
    return [*answers, QuestionAnswer("Throughput", *throughput), QuestionAnswer("Trust", *trust)]


def _answer_program(check: Check) -> _Answer | None:
    """Return the walls that changed in the workloads with the gravest status; None if none did."""
    sections = [entry.verdict.program for entry in check.entries if entry.verdict.program is not None]
    if not any(section.findings or section.status != "PASS" for section in sections):
        return None
    status = select_gravest_status(section.status for section in sections)
    findings = [finding for section in sections for finding in section.findings if finding.status == status]
    walls = ", ".join(sorted({finding.axis for finding in findings}))
    words = {"FAIL": "regressed", "INVALID": "unknown", "REVIEW": "changed, needs review"}.get(status, "no regression")
    if check.state is State.NOT_JUDGED:
        words = "differs"
    return status, f"{words} ({walls})" if walls else words


def _answer_sharding(check: Check) -> _Answer:
    """Return the answer of the gravest section, and in how many workloads the sharding is unknown."""
    sections = [entry.verdict.sharding for entry in check.entries]
    known_sections = [section for section in sections if section is not None]
    if not known_sections:
        return None, "unknown"
    status = select_gravest_status(section.status for section in known_sections)
    words = {
        "FAIL": "regressed",
        "INVALID": "unknown",
        "REVIEW": "changed, needs review",
        "INCONCLUSIVE": "undecided",
        "PASS": _describe_passing_sharding(known_sections),
    }[status]
    if check.state is State.NOT_JUDGED and check.changed:
        words = "differs"
    missing = sum(section is None or section.status == "INVALID" for section in sections)
    if 0 < missing < len(sections):
        words += f", unknown in {missing} of {len(sections)}"
    elif check.is_passing_but_unproven:
        words += f" in {len(sections)} of {len(sections) + len(check.unconcerned)} workloads"
    small_variants = name_small_variants(known_sections)
    return status, f"{words} ({small_variants} variant, not the full model)" if small_variants else words


def _describe_passing_sharding(sections: Sequence[Sharding]) -> str:
    """ "same program" is the strongest answer: all device programs are identical."""
    findings = [finding for section in sections for finding in section.findings]
    if findings:
        return "changed, declared" if any(finding.accepted for finding in findings) else "changed, no regression"
    return "same program" if all(section.identical_program for section in sections) else "unchanged"


def _answer_throughput(check: Check) -> _Answer:
    """Return the answer of the timed workload with the gravest status. The status is None if nothing was timed."""
    timed = [entry.throughput for entry in check.entries if entry.throughput is not None]
    if not timed:
        return None, "not measured"
    status = select_gravest_status(section.status for section in timed)
    order = list(ThroughputAnswer)
    gravest = [section for section in timed if section.status == status]
    return status, _describe_throughput(min(gravest, key=lambda section: order.index(classify_throughput(section))))


def _describe_throughput(section: Throughput) -> str:
    answer = classify_throughput(section)
    if answer in (ThroughputAnswer.SLOWER, ThroughputAnswer.FASTER):
        change = (select_deciding_test(section) or section).estimate_pct
        direction = "slower" if answer is ThroughputAnswer.SLOWER else "faster"
        return direction if change is None else f"{size(change)} {direction}"
    return {
        ThroughputAnswer.NO_CHANGE: "no change",
        ThroughputAnswer.WITHIN_BOUND: "like main's last sessions" if section.by == "stored" else "no slowdown",
        ThroughputAnswer.UNDECIDED: "undecided",
        ThroughputAnswer.IDENTICAL: "not timed, all is the same",
        ThroughputAnswer.FALLBACK: "timed with another dispatcher",
    }.get(answer, "needs review" if section.status == "REVIEW" else "unknown")


def _answer_trust(check: Check) -> _Answer:
    """The answer is "no" only if every workload is INVALID."""
    statuses = [entry.verdict.validity.status for entry in check.entries]
    if not statuses:
        return None, "nothing was measured"
    status = select_gravest_status(statuses)
    if status == "INVALID":
        invalid, total = statuses.count("INVALID"), len(statuses) + len(check.unconcerned)
        words = f"partly: {invalid} of {total} workloads {'is' if invalid == 1 else 'are'} INVALID"
        return status, "no" if invalid == len(statuses) else words
    if status != "PASS":
        words = {"FAIL": "the head breaks", "REVIEW": "the head trains differently"}.get(status, "partly")
        return status, words
    timed = [entry.throughput for entry in check.entries if entry.throughput is not None]
    is_contradicted = any(section.status == "INCONCLUSIVE" and is_gate_contradicted(section) for section in timed)
    exception = ", except for the step times" if is_contradicted else ""
    return status, f"yes{exception}{', with warnings' if check.verdict.warnings else ''}"
