"""The state of a check: which of the situations a reader can meet this one is."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto

from regbot.records.session import Session
from regbot.records.verdict import Status, Verdict
from regbot.report.measured import Measured, measured


class State(Enum):
    """Every situation that is worded differently."""

    SHARDING_FAIL = auto()
    THROUGHPUT_FAIL = auto()
    HEAD_FAILS = auto()
    BOTH_FAIL = auto()
    FOREIGN_CODE = auto()
    NO_RECORD = auto()
    UNMEASURED = auto()
    REVIEW = auto()
    INCONCLUSIVE = auto()
    SHOWN = auto()
    ACCEPTED = auto()
    IMPROVED = auto()
    IDENTICAL = auto()
    UNCHANGED = auto()


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
        if self.state is State.SHARDING_FAIL:
            return [
                entry for entry in self.entries if entry.verdict.sharding and entry.verdict.sharding.status == "FAIL"
            ]
        if self.state is State.HEAD_FAILS:
            return [entry for entry in self.entries if entry.verdict.validity.status == "FAIL"]
        entries = self.of(self.verdict.verdict)
        return (
            [entry for entry in entries if _invalid(entry) is self.state]
            if self.verdict.verdict == "INVALID"
            else entries
        )

    @property
    def changed(self) -> list[Measured]:
        return [entry for entry in self.entries if entry.judged and (entry.changed or entry.findings)]


def check_of(verdict: Verdict, session: Session) -> Check:
    """``verdict`` ready to be told."""
    entries = measured(verdict, session)
    return Check(verdict, session, entries, _state(verdict, entries))


def _state(verdict: Verdict, entries: Sequence[Measured]) -> State:
    configurations_only = (
        verdict.base.commit == verdict.head.commit and verdict.base.overrides != verdict.head.overrides
    )
    findings = [finding for entry in entries for finding in entry.findings]
    identical = [entry.verdict.sharding is not None and entry.verdict.sharding.identical_program for entry in entries]
    if verdict.verdict == "FAIL":
        if any(entry.verdict.sharding and entry.verdict.sharding.status == "FAIL" for entry in entries):
            return State.SHARDING_FAIL
        failing = any(entry.verdict.validity.status == "FAIL" for entry in entries)
        return State.HEAD_FAILS if failing else State.THROUGHPUT_FAIL
    if verdict.verdict == "INVALID":
        return _invalid(next((entry for entry in entries if entry.status == "INVALID"), None))
    if verdict.verdict == "REVIEW":
        return State.REVIEW
    if verdict.verdict == "INCONCLUSIVE":
        return State.INCONCLUSIVE
    if configurations_only:
        return State.SHOWN
    if any(finding.accepted for finding in findings):
        return State.ACCEPTED
    if findings:
        return State.IMPROVED
    return State.IDENTICAL if identical and all(identical) else State.UNCHANGED


def _invalid(entry: Measured | None) -> State:
    if entry is None:
        return State.UNMEASURED
    if any(run.code is not None and run.code.foreign for run in (entry.base, entry.head) if run is not None):
        return State.FOREIGN_CODE
    outcomes = [run.outcome if run else "not planned" for run in (entry.base, entry.head)]
    if all(outcome in ("crashed", "hung", "skipped") for outcome in outcomes):
        return State.BOTH_FAIL
    if any(outcome in ("no_record", "bad_record") for outcome in outcomes):
        return State.NO_RECORD
    return State.UNMEASURED
