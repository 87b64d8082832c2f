"""The state of a check: which of the situations a reader can meet this one is."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto

from regbot.records.run import Outcome
from regbot.records.session import Session
from regbot.records.verdict import Status, Verdict
from regbot.report.measured import Measured, measured
from regbot.report.throughput import Answer, answer


class State(Enum):
    """Every situation that is worded differently."""

    SHARDING_FAIL = auto()
    BOTH_FAIL = auto()
    THROUGHPUT_FAIL = auto()
    HEAD_BREAKS = auto()
    NEITHER_RUNS = auto()
    BASE_BREAKS = auto()
    FOREIGN_CODE = auto()
    NO_RECORD = auto()
    ENVIRONMENT = auto()
    UNTIMED = auto()
    UNMEASURED = auto()
    TRAINS_DIFFERENTLY = auto()
    REVIEW = auto()
    INCONCLUSIVE = auto()
    SHOWN = auto()
    ACCEPTED = auto()
    IMPROVED = auto()
    FASTER = auto()
    IDENTICAL = auto()
    UNCHANGED = auto()


STOPPED: frozenset[Outcome] = frozenset({"crashed", "hung", "skipped", "short", "diverged"})
"""Outcomes of a run that did not get through its steps."""

BASE_STOPPED = STOPPED - {"skipped"} | {"refused"}
"""Those that leave a head that ran with nothing to be compared with; a skipped run shows nothing of its own."""


@dataclass(frozen=True)
class Check:
    """A verdict made ready to be told: its entries with their runs, and its state."""

    verdict: Verdict
    session: Session
    entries: Sequence[Measured]
    state: State

    def of(self, status: Status) -> list[Measured]:
        return [entry for entry in self.entries if entry.status == status]

    @property
    def decisive(self) -> list[Measured]:
        """The workloads that are in the state of the check: others may have failed in other ways."""
        if self.state in (State.SHARDING_FAIL, State.BOTH_FAIL):
            return [entry for entry in self.entries if _sharding(entry) == "FAIL"]
        if self.state is State.THROUGHPUT_FAIL:
            return self.slower
        if self.state is State.HEAD_BREAKS:
            return [entry for entry in self.entries if entry.verdict.validity.status == "FAIL"]
        if self.state is State.TRAINS_DIFFERENTLY:
            return [entry for entry in self.entries if entry.verdict.validity.status == "REVIEW"]
        entries = self.of(self.verdict.verdict)
        return (
            [entry for entry in entries if _invalid(entry) is self.state]
            if self.verdict.verdict == "INVALID"
            else entries
        )

    @property
    def changed(self) -> list[Measured]:
        return [entry for entry in self.entries if entry.judged and (entry.changed or entry.findings)]

    @property
    def slower(self) -> list[Measured]:
        """The workloads whose throughput failed, the worst first."""
        failed = [entry for entry in self.entries if entry.throughput and entry.throughput.status == "FAIL"]
        return sorted(failed, key=lambda entry: -((entry.throughput and entry.throughput.estimate_pct) or 0.0))

    def that(self, wanted: Answer) -> list[Measured]:
        """The workloads whose question of throughput was answered so."""
        return [entry for entry in self.entries if entry.throughput and answer(entry.throughput) is wanted]


def check_of(verdict: Verdict, session: Session) -> Check:
    """``verdict`` ready to be told."""
    entries = measured(verdict, session)
    return Check(verdict, session, entries, _state(verdict, entries))


def _state(verdict: Verdict, entries: Sequence[Measured]) -> State:
    if verdict.verdict == "FAIL":
        return _failure(entries)
    if verdict.verdict == "INVALID":
        return _invalid(next((entry for entry in entries if entry.status == "INVALID"), None))
    if verdict.verdict == "REVIEW":
        differently = any(entry.verdict.validity.status == "REVIEW" for entry in entries)
        return State.TRAINS_DIFFERENTLY if differently else State.REVIEW
    if verdict.verdict == "INCONCLUSIVE":
        return State.INCONCLUSIVE
    return _passing(verdict, entries)


def _failure(entries: Sequence[Measured]) -> State:
    slower = any(entry.throughput and entry.throughput.status == "FAIL" for entry in entries)
    if any(_sharding(entry) == "FAIL" for entry in entries):
        return State.BOTH_FAIL if slower else State.SHARDING_FAIL
    breaks = any(entry.verdict.validity.status == "FAIL" for entry in entries)
    return State.HEAD_BREAKS if breaks else State.THROUGHPUT_FAIL


def _passing(verdict: Verdict, entries: Sequence[Measured]) -> State:
    findings = [finding for entry in entries for finding in entry.findings]
    identical = [entry.verdict.sharding is not None and entry.verdict.sharding.identical_program for entry in entries]
    if verdict.base.commit == verdict.head.commit and verdict.base.overrides != verdict.head.overrides:
        return State.SHOWN
    if any(finding.accepted for finding in findings):
        return State.ACCEPTED
    if findings:
        return State.IMPROVED
    if any(entry.throughput and answer(entry.throughput) is Answer.FASTER for entry in entries):
        return State.FASTER
    return State.IDENTICAL if identical and all(identical) else State.UNCHANGED


def _invalid(entry: Measured | None) -> State:
    """Why one workload is INVALID. What ran at all is looked at before what was timed."""
    if entry is None:
        return State.UNMEASURED
    if entry.foreign:
        return State.FOREIGN_CODE
    outcomes = [run.outcome if run else "not planned" for run in (entry.base, entry.head)]
    if all(outcome in STOPPED for outcome in outcomes):
        return State.NEITHER_RUNS
    if outcomes[0] in BASE_STOPPED and outcomes[1] == "ok":
        return State.BASE_BREAKS
    if any(outcome in ("no_record", "bad_record") for outcome in outcomes):
        return State.NO_RECORD
    if entry.throughput is not None and entry.throughput.fallback:
        return State.ENVIRONMENT
    stopped = {run.arm.name for run in entry.timed.failed if run.outcome in STOPPED}
    if entry.verdict.validity.status == "INVALID" and stopped == {"base", "head"}:
        return State.NEITHER_RUNS
    if entry.verdict.validity.status == "INVALID" and stopped == {"base"} and not entry.judged:
        return State.BASE_BREAKS
    return State.UNTIMED if entry.judged and entry.throughput is not None else State.UNMEASURED


def _sharding(entry: Measured) -> Status | None:
    return entry.verdict.sharding.status if entry.verdict.sharding else None
