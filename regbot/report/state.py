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
    """The sharding or the Program regressed."""
    THROUGHPUT_FAIL = auto()
    HEAD_BREAKS = auto()
    """Head fails to run, base runs."""
    NEITHER_RUNS = auto()
    BASE_BREAKS = auto()
    """Base fails to run, so there is nothing to compare head with."""
    FOREIGN_CODE = auto()
    """A package that must come from the checkout was imported from elsewhere."""
    DOUBTFUL_CRASH = auto()
    """The traced head crashed, and nothing shows that the change is the cause."""
    ENVIRONMENT = auto()
    """The requested dispatcher did not run on this machine."""
    UNTIMED = auto()
    """The ledgers were compared, but the step times could not be measured."""
    UNMEASURED = auto()
    """Any other INVALID verdict."""
    TRAINS_DIFFERENTLY = auto()
    """The losses or other training results of base and head differ."""
    REVIEW = auto()
    """A person has to judge a change of the sharding."""
    INCONCLUSIVE = auto()
    """The step times of a workload that was run decide nothing."""
    NOT_JUDGED = auto()
    """Base and head are one commit with different overrides."""
    ACCEPTED = auto()
    """A PASS with a finding that was declared as intended."""
    IMPROVED = auto()
    """A PASS with findings, none of which is a regression."""
    FASTER = auto()
    """A PASS without findings, and head is faster."""
    IDENTICAL = auto()
    """A PASS, and base and head dispatch the same device programs in all workloads."""
    UNCHANGED = auto()
    """Any other PASS without findings."""
    UNCONCERNED = auto()
    """No workload was run, because no changed file matches the paths of any workload."""


STOPPED: frozenset[Outcome] = frozenset({"crashed", "hung", "skipped", "short", "diverged"})
"""Outcomes of a run that did not finish its steps."""

BASE_STOPPED = STOPPED - {"skipped"} | {"refused"}
"""Outcomes of a base run after which there is nothing to compare head with. "refused" means that the guest code could
not measure the workload. "skipped" is left out, because a run that was not started shows nothing about base."""


@dataclass(frozen=True)
class Check:
    """A verdict prepared for a report."""

    verdict: Verdict
    session: Session
    entries: Sequence[WorkloadSection]
    """The workloads that were run, each with its runs."""
    state: State
    unconcerned: Sequence[WorkloadVerdict] = ()
    """The workloads that were not run, because no changed file matches their paths."""

    @property
    def is_passing_but_unproven(self) -> bool:
        """Whether every workload that was run passed, and the verdict is INCONCLUSIVE because of one that was not."""
        return self.verdict.verdict == "INCONCLUSIVE" and not self.with_status("INCONCLUSIVE")

    @property
    def is_about_timed_runs(self) -> bool:
        """Whether only timed runs show the state of the check. Workloads without timed runs then say nothing about the
        state."""
        if self.state in (State.HEAD_BREAKS, State.NEITHER_RUNS, State.BASE_BREAKS):
            return self.only_breaks_when_timed
        return self.state in (State.ENVIRONMENT, State.UNTIMED, State.TRAINS_DIFFERENTLY)

    @property
    def only_breaks_when_timed(self) -> bool:
        """Whether all failed runs are timed runs. A trace would then not reproduce the failure."""
        failed = [run for entry in self.decisive for run in entry.failed]
        return bool(failed) and all(run.tier == "timed" for run in failed)

    @property
    def is_unsupported(self) -> bool:
        """Whether head crashed in regbot's own code, or over a key that regbot sets, in every decisive workload."""
        crashes = [entry.head.crash if entry.head is not None else None for entry in self.decisive]
        return bool(crashes) and all(crash is not None and involves_regbot(crash) for crash in crashes)

    def with_status(self, status: Status) -> list[WorkloadSection]:
        return [entry for entry in self.entries if entry.status == status]

    @property
    def decisive(self) -> list[WorkloadSection]:
        """The workloads that cause the state of the check. Other workloads may have failed in other ways.

        They have the status of the verdict. Of INVALID workloads, only those count whose cause the state names.
        """
        if self.state is State.SHARDING_FAIL:
            return [entry for entry in self.entries if _has_failed_trace(entry)]
        if self.state is State.THROUGHPUT_FAIL:
            return self.slower
        if self.state is State.HEAD_BREAKS:
            return [entry for entry in self.entries if entry.verdict.validity.status == "FAIL"]
        if self.state is State.TRAINS_DIFFERENTLY:
            return [entry for entry in self.entries if entry.verdict.validity.status == "REVIEW"]
        entries = self.with_status(self.verdict.verdict)
        if self.verdict.verdict == "INVALID":
            return [entry for entry in entries if _find_invalid_state(entry) is self.state]
        return entries

    @property
    def changed(self) -> list[WorkloadSection]:
        """The workloads whose ledgers were compared and differ, or that have a finding of the sharding."""
        return [
            entry
            for entry in self.entries
            if entry.judged and (entry.changed or (entry.verdict.sharding and entry.verdict.sharding.findings))
        ]

    @property
    def slower(self) -> list[WorkloadSection]:
        """The workloads whose throughput failed, the one with the largest slowdown of the median step first."""
        failed = [
            (entry.throughput.estimate_pct or 0.0, entry)
            for entry in self.entries
            if entry.throughput and entry.throughput.status == "FAIL"
        ]
        return [entry for _, entry in sorted(failed, key=lambda item: -item[0])]

    def with_answer(self, wanted: ThroughputAnswer) -> list[WorkloadSection]:
        return [entry for entry in self.entries if entry.throughput and classify_throughput(entry.throughput) is wanted]


def prepare_check(verdict: Verdict, session: Session) -> Check:
    """Return ``verdict`` with its workloads, their runs from ``session``, and the state."""
    unconcerned = [workload for workload in verdict.workloads if workload.unconcerned]
    entries = [entry for entry in build_workload_sections(verdict, session) if not entry.verdict.unconcerned]
    state = State.UNCONCERNED if unconcerned and not entries else _find_state(verdict, entries)
    return Check(verdict, session, entries, state, unconcerned)


def _find_state(verdict: Verdict, entries: Sequence[WorkloadSection]) -> State:
    """Return the state of a check with workloads that were run.

    An INCONCLUSIVE verdict whose cause is only workloads that were not run has the state of a passing check.
    """
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
    """A regression of the sharding or of the Program comes first, then a head that fails to run, then a slowdown."""
    if any(map(_has_failed_trace, entries)):
        return State.SHARDING_FAIL
    head_breaks = any(entry.verdict.validity.status == "FAIL" for entry in entries)
    return State.HEAD_BREAKS if head_breaks else State.THROUGHPUT_FAIL


def _find_passing_state(verdict: Verdict, entries: Sequence[WorkloadSection]) -> State:
    """Return the state of a check without FAIL, INVALID or REVIEW. What matters most to the reader comes first."""
    findings = [finding for entry in entries for finding in entry.findings]
    sections = [entry.verdict.sharding for entry in entries]
    all_identical = bool(entries) and all(section is not None and section.identical_program for section in sections)
    answers = [classify_throughput(entry.throughput) for entry in entries if entry.throughput]
    if verdict.base.commit == verdict.head.commit and verdict.base.overrides != verdict.head.overrides:
        return State.NOT_JUDGED
    if any(finding.accepted for finding in findings):
        return State.ACCEPTED
    if findings:
        return State.IMPROVED
    if ThroughputAnswer.FASTER in answers:
        return State.FASTER
    return State.IDENTICAL if all_identical else State.UNCHANGED


def _find_invalid_state(entry: WorkloadSection | None) -> State:
    """Return the state of an INVALID workload. Its traced runs decide before its timed runs. ``entry`` is None if no
    workload that was run is INVALID."""
    if entry is None:
        return State.UNMEASURED
    if entry.has_foreign_code:
        return State.FOREIGN_CODE
    base_outcome, head_outcome = (run.outcome if run else "not planned" for run in (entry.base, entry.head))
    if base_outcome in STOPPED and head_outcome in STOPPED:
        return State.NEITHER_RUNS
    if base_outcome in BASE_STOPPED and head_outcome == "ok":
        return State.BASE_BREAKS
    if base_outcome == "ok" and head_outcome == "crashed":
        return State.DOUBTFUL_CRASH
    if entry.throughput is not None and entry.throughput.fallback:  # another dispatcher ran than the requested one
        return State.ENVIRONMENT
    stopped_arms = {timed.run.arm.name for timed in entry.timed if timed.run.outcome in STOPPED}
    if entry.verdict.validity.status == "INVALID" and stopped_arms == {"base", "head"}:
        return State.NEITHER_RUNS
    if entry.verdict.validity.status == "INVALID" and stopped_arms == {"base"} and not entry.judged:
        return State.BASE_BREAKS
    return State.UNTIMED if entry.judged and entry.throughput is not None else State.UNMEASURED


def _has_failed_trace(entry: WorkloadSection) -> bool:
    sections = (entry.verdict.sharding, entry.verdict.program)
    return any(section is not None and section.status == "FAIL" for section in sections)
