"""From session files to a verdict and its report: what ``check`` ends with, and all that ``judge`` does."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from regbot.baselines import Store
from regbot.config import Config, load_config
from regbot.earlier import identity
from regbot.judge import Expectation, judge, parse_expectation
from regbot.node import this_node
from regbot.records.files import RecordError, write_record, write_text
from regbot.records.run import Run
from regbot.records.session import Session, read_session
from regbot.records.verdict import Verdict
from regbot.report import comment, html
from regbot.stored import stored_traces, with_references


@dataclass(frozen=True)
class Checked:
    """The result of a check, and where its files are."""

    verdict: Verdict
    session: Session
    out: Path | None


def conclude(session_file: Path, config: Config, expectations: Sequence[Expectation], out: Path) -> Checked:
    """Judge a session file and write ``verdict.json``, ``comment.md`` and ``report.html`` into ``out``."""
    session = read_session(session_file)
    verdict = judge(session, config, expectations)
    _write_report(out, verdict, session)
    return Checked(verdict, session, out)


def _write_report(out: Path, verdict: Verdict, session: Session) -> None:
    write_record(out / "verdict.json", verdict)
    write_text(out / "comment.md", comment(verdict, session))
    write_text(out / "report.html", html(verdict, session))


def judge_sessions(
    files: Sequence[Path],
    config: Path | None,
    expectations: Sequence[Expectation],
    out: Path | None,
    baselines: Path | None = None,
) -> Checked:
    """Judge stored sessions of the same two arms as one. Raises RecordError, ConfigError.

    Settings and declared changes are those of the check, the first session's, unless others are given; so are stored
    references. Where two sessions have timed one workload, the pairs of the later join those of the earlier.
    """
    sessions = [read_session(file) for file in files]
    first = sessions[0].header
    for file, session in zip(files, sessions, strict=True):
        theirs, ours = session.header, first
        if (theirs.base, theirs.head) != (ours.base, ours.head):
            raise RecordError(
                f"{file}: compares {theirs.base.commit[:12]} with {theirs.head.commit[:12]}, not "
                f"{ours.base.commit[:12]} with {ours.head.commit[:12]} as {files[0]}; judge them one by one"
            )
    entries = list(dict.fromkeys(entry for session in sessions for entry in session.header.workloads))
    warnings = list(dict.fromkeys(warning for session in sessions for warning in session.header.warnings))
    timed = {plan.entry: plan for session in sessions for plan in session.header.timed}
    left_out = dict.fromkeys(entry for session in sessions for entry in session.header.left_out if entry not in entries)
    header = first.model_copy(
        update={
            "workloads": entries,
            "left_out": list(left_out),
            "warnings": warnings,
            "timed": list(timed.values()),
            "timing": any(session.header.timing for session in sessions),
        }
    )
    together = Session(header=header, runs=_together(files, sessions))
    settings = load_config(config) if config else Config(sharding=first.sharding, wire=first.wire)
    if config:
        together = together.model_copy(update={"header": header.model_copy(update={"throughput": settings.throughput})})
    if baselines is not None:
        together = held_against(together, Store(baselines))
    rules = expectations or [parse_expectation(text) for text in first.expectations]
    verdict = judge(together, settings, rules)
    if out is not None:
        _write_report(out, verdict, together)
    return Checked(verdict, together, out)


def held_against(session: Session, store: Store) -> Session:
    """``session`` with the references of ``store`` in place of those that it was made with."""
    header = session.header
    plans, notes = [], list(header.warnings)
    for plan in header.timed:
        node = next(
            (run.node for run in session.runs if run.workload == plan.entry and run.node is not None), this_node()
        )
        found, warnings = with_references(plan, store, header.throughput, node.node_class)
        plans.append(found)
        notes += warnings
    traced = {run.workload: run.variant for run in session.runs if run.tier == "static"}
    stored, warnings = stored_traces(store, traced.items(), header.base)
    update = {"timed": plans, "stored": stored, "warnings": [*notes, *warnings]}
    return session.model_copy(update={"header": header.model_copy(update=update)})


def _together(files: Sequence[Path], sessions: Sequence[Session]) -> list[Run]:
    """All runs; of a workload that several sessions have timed, those of the later ones as the ones that joined.

    Raises RecordError where one session, or one run of it, is given twice: it would count twice.
    """
    blocks: dict[str, int] = {}
    seen: dict[tuple[float, ...], int] = {}
    given: set[str] = set()
    timed: set[str] = set()
    found: list[Run] = []
    for number, (file, session) in enumerate(zip(files, sessions, strict=True)):
        digest, before, earlier = identity(session.header), dict(blocks), set(timed)
        if digest in given:
            raise RecordError(f"{file}: is a session that was given before; give each session once")
        given.add(digest)
        for run in session.runs:
            place = run.position
            if run.tier != "timed" or place is None:
                found.append(run)
                continue
            _refuse_a_copy(run, seen, number, file)
            timed.add(run.workload)
            first = before.get(run.workload, 0)
            if run.workload not in earlier:
                found.append(run)
            elif place.block:
                moved = place.model_copy(update={"block": place.block + first})
                found.append(run.model_copy(update={"position": moved, "joined": run.joined or digest}))
            blocks[run.workload] = max(blocks.get(run.workload, 0), first + place.block)
    return found


def _refuse_a_copy(run: Run, seen: dict[tuple[float, ...], int], number: int, file: Path) -> None:
    """No two launches take the same time in every step; times without any noise are a simulator's."""
    times = tuple(run.timing.step_s) if run.timing is not None else ()
    if len(set(times)) > 1 and seen.setdefault((*times, run.wall_s), number) != number:
        raise RecordError(f"{file}: holds runs that a file before it holds too: one is a copy; give each session once")
