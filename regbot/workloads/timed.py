"""One timed run of a workload's ranks: start the launch, determine the outcome, and combine the ranks' records.

Every rank writes its own record, so its content is only a claim. ``regbot.workloads.ranks`` checks the claims.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from regbot.engines import NO_GPUS, EngineError, Launch, LaunchResult, NoSeatError, Seat
from regbot.engines.guest import GUEST_ENVIRONMENT, MEGABYTE, guest_folder, write_request
from regbot.records.files import describe_validation_error
from regbot.records.ledger import Ledger
from regbot.records.run import Arm, Node, Outcome, Position, Profile, RawProfile, RawRun, Run
from regbot.records.text.clip import clip_message
from regbot.records.text.printable import make_printable, printable
from regbot.records.text.words import count
from regbot.workloads import guest
from regbot.workloads import ranks as rank_records
from regbot.workloads.guest import Checkout, RawRecord, Scratch
from regbot.workloads.guest_file import GuestFileError
from regbot.workloads.hang import add_hang_report
from regbot.workloads.shapes.model_code import model_hash
from regbot.workloads.step_profile import describe_dispatcher, ledger_of_profile
from regbot.workloads.task import Task


@dataclass(frozen=True)
class RunSpec:
    """Which run of a session to launch, and how."""

    position: Position
    attempt: int
    steps: int
    """Number of steps, with warm-up steps. A warm launch has fewer than the session's plan."""
    cut: int
    """Number of warm-up steps at the beginning. The step time of a run does not include them."""
    slowdown_pct: float = 0.0
    """Percentage by which to lengthen the steps artificially, to test the gate."""
    profile_reason: str = ""
    """Reason to profile steps instead of counting one. '' if there is none; a step is then counted if possible."""


def time_ranks(task: Task, spec: RunSpec, checkout: Checkout, seat: Seat, scratch: Scratch) -> Run:
    """Launch ``task`` once in ``checkout`` and time its steps. Whatever the guest does, this function returns a run."""
    arm, root = checkout.arm, checkout.root
    if missing := guest.missing_source_root(task, root):
        return bare_timed_run(task, arm, "refused", missing, spec)
    record = scratch.record("raw.{rank}.json")  # {rank} stands for the number of the rank
    document = guest.request_document(task, root, record) | {
        "mode": "timed",
        "device": task.timed_device,
        "numa_pinning": task.workload.numa_pinning,
        "steps": spec.steps,
        "warmup": spec.cut,
        "slowdown_pct": spec.slowdown_pct,
        "profile_reason": spec.profile_reason,
        "max_profile_bytes": record.max_bytes,
    }
    request = write_request(scratch.folder, document)
    ranks = task.parallelism.world_size
    environment = {"OMP_NUM_THREADS": "1", **task.workload.environment, **GUEST_ENVIRONMENT}
    if task.timed_device == "cpu":
        environment |= NO_GPUS  # the step times are stored as those of a CPU, so the code under test must find no GPU
    command = (guest.interpreter(task, root), str(guest_folder()), str(request))
    launch = guest.make_launch(task, checkout, scratch, command, environment)
    launch = replace(
        launch,
        # The launcher puts its working folder on the import path, so it must not be the checkout.
        cwd=scratch.folder,
        max_dir_bytes=launch.max_dir_bytes + ranks * MEGABYTE,
        ranks=ranks,
        readable=(root, request),
        # The marks between which GPU clocks, power and temperature are sampled.
        timed_between=(rank_records.STEADY, rank_records.ENDED),
    )
    run = run_in_seat(
        task, spec, arm, seat, launch, lambda result: read_ranks(task, spec, arm, result, record, seat.node)
    )
    return add_hang_report(run, launch.record_dir, ranks, root)


def read_ranks(task: Task, spec: RunSpec, arm: Arm, result: LaunchResult, record: RawRecord, node: Node) -> Run:
    """Build the run from the launch's result and the records of all ranks. ``record.path`` contains ``{rank}``."""
    raws, faults = _read_records(task, record)  # usable records by rank, and why other records cannot be used
    marks = rank_records.read_marks(record.path.parent)  # the system's clock, from files that rank 0 made
    ranks = task.parallelism.world_size
    outcome, reason = guest.determine_outcome(result, raws, faults, task, ranks)
    is_complete = not faults and len(raws) == ranks
    timing, fault = None, ""
    if is_complete:
        try:
            timing = rank_records.timing_of(raws, spec.steps, spec.cut, marks)
        except ValidationError as error:
            fault = f"the ranks' step times are inconsistent: {describe_validation_error(error)}"
    if outcome == "ok" and (fault := fault if timing is None else rank_records.find_step_fault(timing)):
        outcome, reason = "bad_record", f"{fault}; the run was not used"
    elif outcome == "ok":
        outcome, reason = rank_records.training_outcome(raws, spec.steps)
    fields = guest.observe(result, outcome)
    if not node.gpus and ranks > node.cores:
        delays = f"{ranks} ranks share {count(node.cores, 'core')}: step times include scheduling delays"
        fields["warnings"].append(delays)
    run = bare_timed_run(task, arm, outcome, reason, spec, **fields)
    if not is_complete:
        return run
    environment = raws[0].environment
    ledgers = [raw.ledger for raw in raws.values() if raw.ledger is not None]
    all_ranks_counted = len(ledgers) == len(raws)
    run = run.model_copy(
        update={
            "ledger": rank_records.ledger_of(ledgers) if outcome == "ok" and all_ranks_counted else None,
            "loss": rank_records.mean_loss([raw.loss for raw in raws.values()]),
            "timing": timing,
            "backends": rank_records.backends_of([raw.backends for raw in raws.values()]),
            "code": rank_records.code_of([raw.code for raw in raws.values()]),
            # The guest does not report the hash of regbot's model, because code under test could change it.
            "environment": environment and environment.model_copy(update={"model": model_hash(task.workload.adapter)}),
            "peak_rss_bytes": max(raw.peak_rss_bytes or 0 for raw in raws.values()),
            "warnings": [*run.warnings, *dict.fromkeys(line for raw in raws.values() for line in raw.warnings)],
        }
    )
    if outcome == "ok" and raws[0].profile is not None:
        run = add_profile(run, raws[0].profile, task, record)
    return run


def _read_records(task: Task, record: RawRecord) -> tuple[dict[int, RawRun], list[str]]:
    raws: dict[int, RawRun] = {}
    faults: list[str] = []
    for rank in range(task.parallelism.world_size):
        path = Path(str(record.path).replace("{rank}", str(rank)))
        raw, fault = guest.read_claims(replace(record, path=path), task)
        if raw is not None and raw.rank != rank:
            fault = f"the record claims to be of rank {raw.rank}"
        if fault:
            faults.append(f"rank {rank}: {fault}")
        elif raw is not None:
            raws[rank] = raw
    return raws, faults


def add_profile(run: Run, claim: RawProfile, task: Task, record: RawRecord) -> Run:
    """Return ``run`` with the ledger of its profiled steps. A ledger that the ranks have counted is dropped.

    If the profile gives no ledger, the run gets a warning instead, and its step times still count.
    """
    try:
        profile_ledger = ledger_of_profile(claim, task, record.path.parent, record.max_bytes)
        ledger = Ledger.model_validate(make_printable(profile_ledger.model_dump(by_alias=True)))
    except (GuestFileError, ValidationError) as error:
        text = describe_validation_error(error) if isinstance(error, ValidationError) else str(error)
        profile = Profile(reason=claim.reason, problem=clip_message(printable(text)))
        warning = f"no step was counted ({claim.reason}), and the profile gives no ledger: {profile.problem}"
        warnings = [*run.warnings, clip_message(warning)]
        return run.model_copy(update={"ledger": None, "profile": profile, "warnings": warnings})
    backends = {**run.backends, **describe_dispatcher(ledger, task)}
    return run.model_copy(update={"ledger": ledger, "profile": Profile(reason=claim.reason), "backends": backends})


def run_in_seat(
    task: Task, spec: RunSpec, arm: Arm, seat: Seat, launch: Launch, read: Callable[[LaunchResult], Run]
) -> Run:
    """Run ``launch`` and return the run that ``read`` makes of its result, with the node, its health, and the engine's
    warnings. If the engine fails, the run is lost or crashed.
    """
    try:
        result = seat.run(launch)
    except EngineError as error:
        outcome: Outcome = "lost" if isinstance(error, NoSeatError) else "crashed"
        return bare_timed_run(task, arm, outcome, str(error), spec, node=seat.node, allocation=seat.allocation)
    started_unix_s = time.time() - result.wall_s  # the launch has just ended
    run = read(result)
    return run.model_copy(
        update={
            "node": seat.node,
            "allocation": seat.allocation,
            "started_unix_s": started_unix_s,
            "health": result.health,
            "warnings": [*run.warnings, *result.warnings],
        }
    )


def bare_timed_run(task: Task, arm: Arm, outcome: Outcome, reason: str, spec: RunSpec, **fields: Any) -> Run:
    return guest.bare_run(task, arm, outcome, reason, spec.attempt, "timed", position=spec.position, **fields)
