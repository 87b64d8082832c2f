"""The three questions of every check and their answers in a few words each, for the top of the comment and the page."""

from collections.abc import Callable
from dataclasses import dataclass

from regbot.records.verdict import Sharding, Status, Throughput, gravest
from regbot.report.quantities import percent
from regbot.report.sizes import small
from regbot.report.state import Check, State
from regbot.report.throughput import Answer, answer, telling


@dataclass(frozen=True)
class Told:
    """One question, its short name, the status of its answer (None: it was not asked) and the answer."""

    question: str
    topic: str
    status: Status | None
    words: str


def answers(check: Check) -> tuple[Told, Told, Told]:
    """Did the sharding change, did throughput change, can the answer be trusted."""
    return (_sharding(check), _throughput(check), _trust(check))


def _sharding(check: Check) -> Told:
    question = "Did the sharding change?"
    sections = [entry.verdict.sharding for entry in check.entries]
    known = [section for section in sections if section is not None]
    if not known:
        return Told(question, "Sharding", None, "unknown")
    status = gravest(section.status for section in known)
    words = "differs" if check.state is State.SHOWN and check.changed else _SHARDING[status](known)
    size = small(known)
    of = f" ({size} variant, not the full model)" if size else ""
    return Told(question, "Sharding", status, f"{words}{_unknown_in(sections)}{of}")


def _passing_sharding(sections: list[Sharding]) -> str:
    findings = [finding for section in sections for finding in section.findings]
    if any(finding.accepted for finding in findings):
        return "changed, declared"
    if findings:
        return "changed, no regression"
    return "same program" if all(section.identical_program for section in sections) else "unchanged"


_SHARDING: dict[Status, Callable[[list[Sharding]], str]] = {
    "FAIL": lambda _: "regressed",
    "INVALID": lambda _: "unknown",
    "REVIEW": lambda _: "changed, needs a person",
    "INCONCLUSIVE": lambda _: "undecided",
    "PASS": _passing_sharding,
}


def _throughput(check: Check) -> Told:
    question = "Did throughput change?"
    timed = [entry.throughput for entry in check.entries if entry.throughput is not None]
    if not timed:
        return Told(question, "Throughput", None, "not measured")
    status = gravest(section.status for section in timed)
    told = min((one for one in timed if one.status == status), key=lambda one: _RANK.index(answer(one)))
    return Told(question, "Throughput", status, _timed(told))


_RANK = (
    Answer.SLOWER,
    Answer.FALLBACK,
    Answer.NO_ANSWER,
    Answer.UNDECIDED,
    Answer.FASTER,
    Answer.NO_CHANGE,
    Answer.WITHIN_BOUND,
    Answer.IDENTICAL,
)
"""Which of several equally grave answers stands for all."""


def _timed(section: Throughput) -> str:
    said = answer(section)
    if said in (Answer.SLOWER, Answer.FASTER):
        test = telling(section)
        change = test.estimate_pct if test else section.estimate_pct
        word = "slower" if said is Answer.SLOWER else "faster"
        return word if change is None else f"{percent(change)} per step, {word}"
    return {
        Answer.NO_CHANGE: "no change",
        Answer.WITHIN_BOUND: "within the baseline",
        Answer.UNDECIDED: "undecided",
        Answer.IDENTICAL: "nothing to time",
        Answer.FALLBACK: "times of another dispatcher",
    }.get(said, "needs a person" if section.status == "REVIEW" else "unknown")


def _trust(check: Check) -> Told:
    question = "Can the answer be trusted?"
    sections = [entry.verdict.validity for entry in check.entries]
    if not sections:
        return Told(question, "Trust", None, "nothing was measured")
    status = gravest(section.status for section in sections)
    nowhere = all(section.status == "INVALID" for section in sections)
    warned = ", with warnings" if status == "PASS" and check.verdict.warnings else ""
    return Told(question, "Trust", status, "no" if nowhere else f"{_TRUST[status]}{warned}")


_TRUST: dict[Status, str] = {
    "FAIL": "the head breaks",
    "INVALID": "in part",
    "REVIEW": "the head trains differently",
    "INCONCLUSIVE": "in part",
    "PASS": "yes",
}


def _unknown_in(sections: list[Sharding | None]) -> str:
    missing = sum(section is None or section.status == "INVALID" for section in sections)
    return f", unknown in {missing} of {len(sections)}" if 0 < missing < len(sections) else ""
