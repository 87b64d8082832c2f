"""One timed run: the ranks of a workload on this machine, launched, and how it ended.

Every rank writes its own record and everything in it is a claim; ``ranks`` says which of them are believed.
"""

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from regbot.engines import Ended, EngineError, Launch, NoSeatError, Seat, clean_environment
from regbot.records.files import describe
from regbot.records.run import Arm, Node, Outcome, Position, RawRun, Refusal, Run
from regbot.records.session import TimedPlan
from regbot.workloads.guest import (
    GUEST_ENVIRONMENT,
    MEGABYTE,
    Limits,
    bare_run,
    caches_of,
    ended_by_engine,
    exit_words,
    guest_folder,
    interpreter,
    missing_source_root,
    outside_warnings,
    read_claims,
    request_document,
    write_request,
)
from regbot.workloads.hang import with_hang
from regbot.workloads.ranks import (
    Marks,
    backends_of,
    code_of,
    ledger_of,
    mean_loss,
    read_marks,
    timing_of,
    trained,
    unbelievable,
)
from regbot.workloads.task import Task

SECONDARY = ("connection closed", "connection reset", "broken pipe", "closed by peer", "reset by peer")
"""Words of what a rank reports when another one has failed: not the cause."""


@dataclass(frozen=True)
class Place:
    """Where a run stands in its session. ``steps`` is the plan's, fewer for a warm launch."""

    position: Position
    attempt: int
    steps: int
    slowdown_pct: float = 0.0
    """By which its steps are made longer, to try the gate with."""


def time_ranks(
    task: Task,
    plan: TimedPlan,
    place: Place,
    arm: Arm,
    root: Path,
    seat: Seat,
    scratch: Path,
    limits: Limits,
    environment: Mapping[str, str] | None = None,
) -> Run:
    """Launch ``task`` once in the checkout ``root`` and time its steps. Never raises for what the guest does."""
    if missing := missing_source_root(task, root):
        return _placed(bare_run(task, arm, "refused", missing, place.attempt, "timed"), place)
    nonce = secrets.token_hex(16)
    record = scratch / "record" / "raw.{rank}.json"
    document = request_document(task, root, nonce, record) | {
        "mode": "timed",
        "steps": place.steps,
        "warmup": plan.cut,
        "slowdown_pct": place.slowdown_pct,
    }
    request = write_request(scratch, document)
    ranks = task.parallelism.world_size
    launch = Launch(
        command=(interpreter(task, root), str(guest_folder()), str(request)),
        cwd=scratch,  # the launcher has its working directory on its import path; the checkout must not be there
        env=clean_environment(
            {"OMP_NUM_THREADS": "1", **(environment or {}), **task.workload.environment, **GUEST_ENVIRONMENT}
        ),
        log=scratch / "output.log",
        record_dir=record.parent,
        timeout_s=task.workload.timeout_min * 60,
        max_output_bytes=limits.max_output_bytes,
        max_dir_bytes=4 * limits.max_record_bytes + ranks * MEGABYTE,
        ranks=ranks,
        readable=(root, request),
        writable=caches_of(environment),
    )
    try:
        ended = seat.run(launch)
    except EngineError as error:
        failed = _placed(bare_run(task, arm, outcome_of(error), str(error), place.attempt, "timed"), place)
        return measured_in(seat, failed)
    run = measured_in(seat, read_ranks(task, plan, place, arm, ended, record, nonce, limits, seat.node), ended)
    return with_hang(run, record.parent, ranks, root)


def read_ranks(
    task: Task,
    plan: TimedPlan,
    place: Place,
    arm: Arm,
    ended: Ended,
    record: Path,
    nonce: str,
    limits: Limits,
    node: Node,
) -> Run:
    """The run that ``ended`` and the records of all ranks tell of together."""
    raws: dict[int, RawRun] = {}
    faults: list[str] = []
    for rank in range(task.parallelism.world_size):
        raw, fault = read_claims(Path(str(record).replace("{rank}", str(rank))), task, nonce, limits)
        if raw is not None and not fault and raw.rank != rank:
            fault = f"the record claims to be of rank {raw.rank}"
        if fault:
            faults.append(f"rank {rank}: {fault}")
        elif raw is not None:
            raws[rank] = raw
    marks = read_marks(record.parent)
    outcome, reason = _outcome(ended, raws, faults, task, plan, place, marks)
    complete = not faults and len(raws) == task.parallelism.world_size
    timing = timing_of(raws, place.steps, plan.cut, marks) if complete else None
    if outcome == "ok" and timing is None:
        outcome, reason = "bad_record", "what its ranks say of their steps makes no sense together; it was not used"
    run = _placed(bare_run(task, arm, outcome, reason, place.attempt, "timed"), place).model_copy(
        update={
            "exit_code": ended.exit_code,
            "wall_s": ended.wall_s,
            "log_tail": "" if outcome == "ok" else ended.log_tail,
            "warnings": [*outside_warnings(ended), *_crowded(task.parallelism.world_size, node)],
        }
    )
    if not complete:
        return run
    ledgers = [raw.ledger for raw in raws.values() if raw.ledger is not None]
    whole = run.model_copy(
        update={
            "ledger": ledger_of(ledgers) if outcome == "ok" and len(ledgers) == len(raws) else None,
            "loss": mean_loss([raw.loss for raw in raws.values()]),
            "timing": timing,
            "backends": backends_of([raw.backends for raw in raws.values()]),
            "code": code_of([raw.code for raw in raws.values()]),
            "environment": raws[0].environment,
            "peak_rss_bytes": max((raw.peak_rss_bytes or 0 for raw in raws.values()), default=0),
            "warnings": [*run.warnings, *dict.fromkeys(w for raw in raws.values() for w in raw.warnings)],
        }
    )
    try:
        return Run.model_validate(whole.model_dump(by_alias=True))
    except ValidationError as error:  # each record was sound; together they make one that could not be read again
        reason = f"{describe(error)}; the run was not used"
        return run.model_copy(update={"outcome": "bad_record", "reason": reason[:4000]})


def measured_in(seat: Seat, run: Run, ended: Ended | None = None) -> Run:
    """``run`` with where it was measured, and what the engine saw of the nodes meanwhile."""
    found: dict[str, object] = {"node": seat.node, "allocation": seat.allocation}
    if ended is not None:
        found |= {"health": ended.health, "warnings": [*run.warnings, *ended.warnings]}
    return run.model_copy(update=found)


def outcome_of(error: EngineError) -> Outcome:
    """Of a launch that the engine could not run to its end: nodes that are gone are nobody's fault."""
    return "lost" if isinstance(error, NoSeatError) else "crashed"


def _placed(run: Run, place: Place) -> Run:
    return run.model_copy(update={"position": place.position})


def _outcome(
    ended: Ended,
    raws: Mapping[int, RawRun],
    faults: Sequence[str],
    task: Task,
    plan: TimedPlan,
    place: Place,
    marks: Marks,
) -> tuple[Outcome, str]:
    """How the run ended, the plainest cause first."""
    ranks = task.parallelism.world_size
    if cut_short := ended_by_engine(ended, task):
        return cut_short
    if faults:
        return "bad_record", f"{faults[0]}. Code under test must not write regbot's record; the run was not used"
    missing = [rank for rank in range(ranks) if rank not in raws]
    whose = f"rank{'s' * (len(missing) > 1)} {', '.join(map(str, missing[:8]))}"
    if refusal := _cause(raws):
        place_of = f" ({refusal.where})" if refusal.where else ""
        told = f"{refusal.message}{place_of}"
        if missing and _of_a_lost_peer(refusal):
            told = f"{whose} ended without a record (os._exit, or a signal), and its peers tell of nothing else: {told}"
        return ("crashed" if refusal.kind == "code" else "refused"), told
    if missing:
        if ended.exit_code == 0:
            return "no_record", (
                f"ended without an error, and {whose} without a record: something in the code under test ended the "
                "process (os._exit, exec, sys.exit in a thread) before its steps were done"
            )
        return "crashed", f"{exit_words(ended.exit_code)} before {whose} wrote a record; see its last lines"
    if ended.exit_code != 0:
        return "crashed", f"left its records and then {exit_words(ended.exit_code)}; they were not used"
    if fault := unbelievable({rank: raw.steps for rank, raw in raws.items()}, place.steps, plan.cut, marks):
        return "bad_record", f"{fault}; the run was not used"
    return trained(raws, place.steps)


def _cause(raws: Mapping[int, RawRun]) -> Refusal | None:
    """The refusal that explains the others: a rank that lost its peer tells of the loss, not of what happened."""
    told = [raw.refusal for _, raw in sorted(raws.items()) if raw.refusal is not None]
    told.sort(key=_of_a_lost_peer)
    return told[0] if told else None


def _of_a_lost_peer(refusal: Refusal) -> bool:
    return any(word in refusal.message.lower() for word in SECONDARY)


def _crowded(ranks: int, node: Node) -> list[str]:
    if node.gpus or ranks <= node.cores:
        return []
    return [f"{ranks} ranks share {node.cores} core{'s' * (node.cores > 1)}: step times show the scheduler too"]
