"""Compute the verdict of session files and write its report. ``regbot check`` does this at the end."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from regbot.baselines import Store
from regbot.check.references import stored_traces, with_references
from regbot.check.sessions.pooled_pairs import session_digest
from regbot.engines.health.machine import this_node
from regbot.judge import Expectation, judge, parse_expectation
from regbot.records.config import Config, load_config
from regbot.records.files import RecordError, write_record, write_text
from regbot.records.run import Run
from regbot.records.session import Session, read_session
from regbot.records.text.clip import short_commit
from regbot.records.verdict import Verdict
from regbot.report import comment, html


@dataclass(frozen=True)
class CheckResult:
    """Verdict and session of a check. ``out`` is the folder with the report; None if no report was written."""

    verdict: Verdict
    session: Session
    out: Path | None


def conclude(session: Session, config: Config, expectations: Sequence[Expectation], out: Path | None) -> CheckResult:
    """Judge a session. Write ``verdict.json``, ``comment.md`` and ``report.html`` into ``out``, unless it is None."""
    verdict = judge(session, config, expectations)
    if out is not None:
        write_record(out / "verdict.json", verdict)
        write_text(out / "comment.md", comment(verdict, session))
        write_text(out / "report.html", html(verdict, session))
    return CheckResult(verdict, session, out)


def judge_sessions(
    files: Sequence[Path],
    config: Path | None,
    expectations: Sequence[Expectation],
    out: Path | None,
    baselines: Path | None = None,
) -> CheckResult:
    """Judge several stored sessions of the same two arms as if they were one session, with all of their pairs.

    Settings and declared changes come from ``config`` and ``expectations``, or else from the first session. The
    references in ``baselines`` replace those in the sessions. Raises RecordError, ConfigError.
    """
    sessions = [read_session(file) for file in files]
    headers = [session.header for session in sessions]
    first = headers[0]
    for file, header in zip(files, headers, strict=True):
        if (header.base, header.head) != (first.base, first.head):
            raise RecordError(
                f"{file}: compares {short_commit(header.base.commit)} with {short_commit(header.head.commit)}, not "
                f"{short_commit(first.base.commit)} with {short_commit(first.head.commit)} as {files[0]}",
                "judge them separately",
            )
    entries = dict.fromkeys(entry for header in headers for entry in header.workloads)
    left_out = dict.fromkeys(entry for header in headers for entry in header.left_out if entry not in entries)
    warnings = dict.fromkeys(warning for header in headers for warning in header.warnings)
    plans = {plan.entry: plan for header in headers for plan in header.timed}  # the last plan of an entry counts
    update = {"workloads": [*entries], "left_out": [*left_out], "warnings": [*warnings], "timed": [*plans.values()]}
    update |= {"timing": any(header.timing for header in headers)}
    stored = Config(sharding=first.sharding, program=first.program, wire=first.wire)
    settings = load_config(config) if config else stored
    update |= {"throughput": settings.throughput} if config else {}
    combined = Session(header=first.model_copy(update=update), runs=_combine_runs(files, sessions))
    if baselines is not None:
        combined = replace_references(combined, Store(baselines))
    return conclude(combined, settings, expectations or [*map(parse_expectation, first.expectations)], out)


def replace_references(session: Session, store: Store) -> Session:
    """Return ``session`` with the stored references and traces of ``store``, for the node class of the workload's runs,
    or of this machine if no run names its node.
    """
    header = session.header
    plans, warnings = [], list(header.warnings)
    for plan in header.timed:
        nodes = (run.node for run in session.runs if run.workload == plan.entry and run.node is not None)
        node = next(nodes, None) or this_node()
        plan_with_references, reference_warnings = with_references(plan, store, node.node_class)
        plans.append(plan_with_references)
        warnings += reference_warnings
    traced_variants = {run.workload: run.variant for run in session.runs if run.tier == "static"}
    traces, trace_warnings = stored_traces(store, traced_variants.items(), header.base)
    update = {"timed": plans, "stored": traces, "warnings": [*warnings, *trace_warnings]}
    return session.model_copy(update={"header": header.model_copy(update=update)})


def _combine_runs(files: Sequence[Path], sessions: Sequence[Session]) -> list[Run]:
    """Return the runs of all sessions. The blocks of later sessions of a workload are numbered after those of earlier
    ones, and their runs without a block (warm launches and runs of head alone) are left out.

    Raises RecordError if a session or a run occurs twice, because its times would count twice.
    """
    last_blocks: dict[str, int] = {}  # highest block number of each workload
    # Digest of a session, or times of a run -> its file. Both detect copies.
    file_by_content: dict[str | tuple[float, ...], Path] = {}
    runs: list[Run] = []
    for file, session in zip(files, sessions, strict=True):
        digest = session_digest(session.header)
        if digest in file_by_content:
            raise RecordError(f"{file}: is a session that was already given", "give each session once")
        file_by_content[digest] = file
        offsets = dict(last_blocks)  # of the workloads that an earlier session timed
        for run in session.runs:
            position = run.position
            if run.tier == "timed" and position is not None:
                # Two launches never take equal times in every step, except in a simulator with equal steps.
                times = (*run.timing.step_s, run.wall_s) if run.timing is not None else ()
                if len(set(times[:-1])) > 1 and file_by_content.setdefault(times, file) != file:
                    raise RecordError(
                        f"{file}: has a run that an earlier file has too, so one is a copy", "give each session once"
                    )
                block = position.block + offsets.get(run.workload, 0)
                last_blocks[run.workload] = max(last_blocks.get(run.workload, 0), block)
                if run.workload in offsets:
                    if not position.block:
                        continue
                    shifted = position.model_copy(update={"block": block})
                    # ``joined`` marks a run of another session. A run that is already marked keeps its mark.
                    run = run.model_copy(update={"position": shifted, "joined": run.joined or digest})
            runs.append(run)
    return runs
