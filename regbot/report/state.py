"""Determine the state of a check. The state selects the headline and the next steps."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto

from regbot.judge.crashes import involves_regbot
from regbot.records.run import Outcome
from regbot.records.session import Session
from regbot.records.verdict import Status, Verdict, WorkloadVerdict
from regbot.report.throughput import ThroughputAnswer, classify_throughput
from regbot.report.workload_section import WorkloadSection, build_workload_sections


class State(Enum):
    """The states of a check. Every state has its own headline."""

    SHARDING_FAIL = auto()
    BOTH_FAIL = auto()
    THROUGHPUT_FAIL = auto()
    HEAD_BREAKS = auto()
    NEITHER_RUNS = auto()
    BASE_BREAKS = auto()
    FOREIGN_CODE = auto()
    """Watched code was imported from outside the checkout."""
    DOUBTFUL_CRASH = auto()
    """The traced head crashed, and nothing shows that the change is the cause."""
    NO_RECORD = auto()
    """A traced run ended without a usable record."""
    ENVIRONMENT = auto()
    """The requested dispatcher did not run on this machine."""
    UNTIMED = auto()
    """The ledgers were compared, but the step times could not be measured."""
    UNMEASURED = auto()
    """Any other INVALID verdict."""
    TRAINS_DIFFERENTLY = auto()
    REVIEW = auto()
    INCONCLUSIVE = auto()
    NOT_JUDGED = auto()
    """Base and head are one commit with different overrides."""
    ACCEPTED = auto()
    IMPROVED = auto()
    FASTER = auto()
    IDENTICAL = auto()
    UNCHANGED = auto()
    UNCONCERNED = auto()
    """No workload was run, because no changed file matches the paths of one."""


STOPPED: frozenset[Outcome] = frozenset({"crashed", "hung", "skipped", "short", "diverged"})
"""Outcomes of a run that did not finish its steps."""

_TIMED_STATES = (State.ENVIRONMENT, State.UNTIMED, State.TRAINS_DIFFERENTLY)
_FAILED_STATES = (State.HEAD_BREAKS, State.NEITHER_RUNS, State.BASE_BREAKS)

BASE_STOPPED = STOPPED - {"skipped"} | {"refused"}
"""Outcomes of a base run after which there is nothing to compare head with. "skipped" is left out, because a run that
was not started shows nothing about base."""


@dataclass(frozen=True)
class Check:
    """A verdict prepared for a report. ``entries``: the workloads with their runs. ``unconcerned``: the workloads that
    were not run, because nothing of them changed."""

    verdict: Verdict
    session: Session
    entries: Sequence[WorkloadSection]
    state: State
    unconcerned: Sequence[WorkloadVerdict] = ()

    @property
    def is_passing_but_unproven(self) -> bool:
        """Whether every workload that was run passes, and the verdict is INCONCLUSIVE because of other workloads."""
        return self.verdict.verdict == "INCONCLUSIVE" and not self.with_status("INCONCLUSIVE")

    @property
    def is_about_timed_runs(self) -> bool:
        """Whether only timed runs show the state of the check, so that untimed workloads say nothing about it."""
        if self.state in _TIMED_STATES:
            return True
        failed = [run for entry in self.decisive for run in entry.failed]
        return self.state in _FAILED_STATES and bool(failed) and all(run.tier == "timed" for run in failed)

    @property
    def is_unsupported(self) -> bool:
        """Whether every decisive head crashed in regbot's own code, or over a key that regbot sets."""
        crashes = [entry.head.crash if entry.head is not None else None for entry in self.decisive]
        return bool(crashes) and all(crash is not None and involves_regbot(crash) for crash in crashes)

    @property
    def has_only_other_operators(self) -> bool:
        """Whether the collectives are the same in all workloads, and the step of some workload runs other operators."""
        return self.state is State.UNCHANGED and any(entry.has_other_operators for entry in self.entries)

    def with_status(self, status: Status) -> list[WorkloadSection]:
        return [entry for entry in self.entries if entry.status == status]

    @property
    def decisive(self) -> list[WorkloadSection]:
        """The workloads that cause the state of the check. Further workloads may have failed in other ways."""
        if self.state in (State.SHARDING_FAIL, State.BOTH_FAIL):
            return [entry for entry in self.entries if _get_sharding_status(entry) == "FAIL"]
        if self.state is State.THROUGHPUT_FAIL:
            return self.slower
        if self.state is State.HEAD_BREAKS:
            return [entry for entry in self.entries if entry.verdict.validity.status == "FAIL"]
        if self.state is State.TRAINS_DIFFERENTLY:
            return [entry for entry in self.entries if entry.verdict.validity.status == "REVIEW"]
        entries = self.with_status(self.verdict.verdict)
        return (
            [entry for entry in entries if _find_invalid_state(entry) is self.state]
            if self.verdict.verdict == "INVALID"
            else entries
        )

    @property
    def changed(self) -> list[WorkloadSection]:
        return [entry for entry in self.entries if entry.judged and (entry.changed or entry.findings)]

    @property
    def slower(self) -> list[WorkloadSection]:
        """The workloads whose throughput failed, the worst first."""
        failed = [entry for entry in self.entries if entry.throughput and entry.throughput.status == "FAIL"]
        return sorted(failed, key=lambda entry: -((entry.throughput and entry.throughput.estimate_pct) or 0.0))

    def with_answer(self, wanted: ThroughputAnswer) -> list[WorkloadSection]:
        """Return the workloads whose throughput section gives the answer ``wanted``."""
        return [entry for entry in self.entries if entry.throughput and classify_throughput(entry.throughput) is wanted]


def prepare_check(verdict: Verdict, session: Session) -> Check:
    """Return ``verdict`` with its entries, runs and state."""
    unconcerned = [workload for workload in verdict.workloads if workload.unconcerned]
    entries = [entry for entry in build_workload_sections(verdict, session) if not entry.verdict.unconcerned]
    state = State.UNCONCERNED if unconcerned and not entries else _find_state(verdict, entries)
    return Check(verdict, session, entries, state, unconcerned)


def _find_state(verdict: Verdict, entries: Sequence[WorkloadSection]) -> State:
    if verdict.verdict == "FAIL":
        return _find_failed_state(entries)
    if verdict.verdict == "INVALID":
        return _find_invalid_state(next((entry for entry in entries if entry.status == "INVALID"), None))
    if verdict.verdict == "REVIEW":
        trains_differently = any(entry.verdict.validity.status == "REVIEW" for entry in entries)
        return State.TRAINS_DIFFERENTLY if trains_differently else State.REVIEW
    if verdict.verdict == "INCONCLUSIVE" and any(entry.status == "INCONCLUSIVE" for entry in entries):
        return State.INCONCLUSIVE
    return _find_passing_state(verdict, entries)


def _find_failed_state(entries: Sequence[WorkloadSection]) -> State:
    slower = any(entry.throughput and entry.throughput.status == "FAIL" for entry in entries)
    if any(_get_sharding_status(entry) == "FAIL" for entry in entries):
        return State.BOTH_FAIL if slower else State.SHARDING_FAIL
    breaks = any(entry.verdict.validity.status == "FAIL" for entry in entries)
    return State.HEAD_BREAKS if breaks else State.THROUGHPUT_FAIL


def _find_passing_state(verdict: Verdict, entries: Sequence[WorkloadSection]) -> State:
    findings = [finding for entry in entries for finding in entry.findings]
    identical = [entry.verdict.sharding is not None and entry.verdict.sharding.identical_program for entry in entries]
    if verdict.base.commit == verdict.head.commit and verdict.base.overrides != verdict.head.overrides:
        return State.NOT_JUDGED
    if any(finding.accepted for finding in findings):
        return State.ACCEPTED
    if findings:
        return State.IMPROVED
    if any(entry.throughput and classify_throughput(entry.throughput) is ThroughputAnswer.FASTER for entry in entries):
        return State.FASTER
    return State.IDENTICAL if identical and all(identical) else State.UNCHANGED


def _find_invalid_state(entry: WorkloadSection | None) -> State:
    """Return the state of an INVALID workload. Its traced runs decide before its timed runs."""
    if entry is None:
        return State.UNMEASURED
    if entry.foreign:
        return State.FOREIGN_CODE
    outcomes = [run.outcome if run else "not planned" for run in (entry.base, entry.head)]
    if all(outcome in STOPPED for outcome in outcomes):
        return State.NEITHER_RUNS
    if outcomes[0] in BASE_STOPPED and outcomes[1] == "ok":
        return State.BASE_BREAKS
    if outcomes == ["ok", "crashed"]:
        return State.DOUBTFUL_CRASH
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


def _get_sharding_status(entry: WorkloadSection) -> Status | None:
    return entry.verdict.sharding.status if entry.verdict.sharding else None
