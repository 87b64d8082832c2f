"""One timed run: the ranks of a workload on this machine, and what their records, read together, can be believed of.

Every rank writes its own record and everything in it is a claim. A claim about time is held against a clock that the
guest does not own: the times that the system gives two files which rank 0 makes before its first and after its last
step. A guest that controls its process can still do less work than it says; it cannot make an hour of the machine look
like a minute.
"""

import hashlib
import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from regbot.engines import Ended, Engine, EngineError, Launch, clean_environment
from regbot.node import this_node
from regbot.records.ledger import Ledger
from regbot.records.run import Arm, CodeProof, Outcome, Position, RankSteps, RawRun, Refusal, Run, Timing
from regbot.records.session import TimedPlan
from regbot.workloads.guest import (
    GUEST_ENVIRONMENT,
    MEGABYTE,
    Limits,
    bare_run,
    exit_words,
    guest_folder,
    interpreter,
    missing_source_root,
    outside_warnings,
    read_claims,
    request_document,
    write_request,
)
from regbot.workloads.task import Task

CLOCK_TOLERANCE = 0.05
CLOCK_TOLERANCE_S = 0.25
"""How far a guest's step times may be from the harness's clock, all steps together: the larger of the two. File times
are a few milliseconds coarse, and a file is made late on a busy disk."""

BEGUN, ENDED = "steps.begun", "steps.ended"
"""The files that mark the steps; see ``regbot_guest.probe``."""

SECONDARY = ("connection closed", "connection reset", "broken pipe", "peer")
"""Words of what a rank reports when another one has failed: not the cause."""


@dataclass(frozen=True)
class Place:
    """Where a run stands in its session. ``steps`` is the plan's, fewer for a warm launch."""

    position: Position
    attempt: int
    steps: int


def time_run(
    task: Task,
    plan: TimedPlan,
    place: Place,
    arm: Arm,
    root: Path,
    engine: Engine,
    scratch: Path,
    limits: Limits,
    environment: Mapping[str, str] | None = None,
) -> Run:
    """Launch ``task`` once in the checkout ``root`` and time its steps. Never raises for what the guest does."""
    if missing := missing_source_root(task, root):
        return _placed(bare_run(task, arm, "refused", missing, place.attempt, "timed"), place)
    nonce = secrets.token_hex(16)
    record = scratch / "record" / "raw.{rank}.json"
    document = request_document(task, root, nonce, record) | {"mode": "timed", "steps": place.steps}
    request = write_request(scratch, document)
    ranks = task.parallelism.world_size
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks))
    launch = Launch(
        command=(interpreter(task, root), *torchrun, str(guest_folder()), str(request)),
        cwd=scratch,  # the launcher has its working directory on its import path; the checkout must not be there
        env=clean_environment({"OMP_NUM_THREADS": "1", **(environment or {}), **GUEST_ENVIRONMENT}),
        log=scratch / "output.log",
        record_dir=record.parent,
        timeout_s=task.workload.timeout_min * 60,
        max_output_bytes=limits.max_output_bytes,
        max_dir_bytes=4 * limits.max_record_bytes + ranks * MEGABYTE,
    )
    try:
        ended = engine.run(launch)
    except EngineError as error:
        return _placed(bare_run(task, arm, "crashed", str(error), place.attempt, "timed"), place)
    return read_ranks(task, plan, place, arm, ended, record, nonce, limits)


def read_ranks(
    task: Task, plan: TimedPlan, place: Place, arm: Arm, ended: Ended, record: Path, nonce: str, limits: Limits
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
    harness_s = harness_seconds(record.parent)
    outcome, reason = _outcome(ended, raws, faults, task, place, harness_s)
    run = _placed(bare_run(task, arm, outcome, reason, place.attempt, "timed"), place).model_copy(
        update={
            "exit_code": ended.exit_code,
            "wall_s": ended.wall_s,
            "log_tail": "" if outcome == "ok" else ended.log_tail,
            "node": this_node(),
            "warnings": [*outside_warnings(ended), *_crowded(task.parallelism.world_size)],
        }
    )
    if faults or len(raws) != task.parallelism.world_size:
        return run
    first = raws[0]
    ledgers = [raw.ledger for raw in raws.values() if raw.ledger is not None]
    return run.model_copy(
        update={
            "ledger": _together(ledgers) if outcome == "ok" and len(ledgers) == len(raws) else None,
            "loss": mean_loss([raw.loss for raw in raws.values()]),
            "timing": _timing(raws, plan, place, harness_s),
            "backends": first.backends,
            "code": _code([raw.code for raw in raws.values()]),
            "environment": first.environment,
            "peak_rss_bytes": max((raw.peak_rss_bytes or 0 for raw in raws.values()), default=0),
            "warnings": [*run.warnings, *dict.fromkeys(w for raw in raws.values() for w in raw.warnings)],
        }
    )


def harness_seconds(folder: Path) -> float | None:
    """Seconds between the two marks of rank 0, by the change times that the system gave them; None without both."""
    try:
        begun, ended = ((folder / name).lstat().st_ctime_ns for name in (BEGUN, ENDED))
    except OSError:
        return None
    return max(0.0, (ended - begun) / 1e9)


def mean_loss(ranks: Sequence[Sequence[float | None]]) -> list[float | None]:
    """Mean over ranks per step; None where any rank's is not finite."""
    return [
        None if any(value is None for value in step) else sum(value for value in step if value is not None) / len(step)
        for step in zip(*ranks, strict=False)
    ]


def slope(values: Sequence[float]) -> float:
    """Growth per step, by least squares; 0 for fewer than two steps."""
    n = len(values)
    if n < 2:
        return 0.0
    middle, mean = (n - 1) / 2, sum(values) / n
    return sum((i - middle) * (v - mean) for i, v in enumerate(values)) / sum((i - middle) ** 2 for i in range(n))


def _placed(run: Run, place: Place) -> Run:
    return run.model_copy(update={"position": place.position})


def _outcome(
    ended: Ended, raws: Mapping[int, RawRun], faults: Sequence[str], task: Task, place: Place, harness_s: float | None
) -> tuple[Outcome, str]:
    """How the run ended, the plainest cause first."""
    ranks = task.parallelism.world_size
    if ended.timed_out:
        return "hung", (
            f"did not end within {task.workload.timeout_min:g} minutes and was killed; see its last lines, or raise "
            f"workloads.{task.workload_name}.timeout_min if it only needs longer"
        )
    if ended.dir_overflow:
        return "bad_record", "wrote more into its record folder than any record needs, and was ended"
    if faults:
        return "bad_record", f"{faults[0]}. Code under test must not write regbot's record; the run was not used"
    if refusal := _cause(raws):
        place_of = f" ({refusal.where})" if refusal.where else ""
        return ("crashed" if refusal.kind == "code" else "refused"), f"{refusal.message}{place_of}"
    if missing := [rank for rank in range(ranks) if rank not in raws]:
        whose = f"rank{'s' * (len(missing) > 1)} {', '.join(map(str, missing[:8]))}"
        if ended.exit_code == 0:
            return "no_record", (
                f"ended without an error, and {whose} without a record: something in the code under test ended the "
                "process (os._exit, exec, sys.exit in a thread) before its steps were done"
            )
        return "crashed", f"{exit_words(ended.exit_code)} before {whose} wrote a record; see its last lines"
    if ended.exit_code != 0:
        return "crashed", f"left its records and then {exit_words(ended.exit_code)}; they were not used"
    if fault := _unbelievable({rank: raw.steps for rank, raw in raws.items()}, place.steps, harness_s):
        return "bad_record", f"{fault}; the run was not used"
    return _trained(raws, place.steps)


def _cause(raws: Mapping[int, RawRun]) -> Refusal | None:
    """The refusal that explains the others: a rank that lost its peer tells of the loss, not of what happened."""
    told = [raw.refusal for _, raw in sorted(raws.items()) if raw.refusal is not None]
    told.sort(key=lambda refusal: any(word in refusal.message.lower() for word in SECONDARY))
    return told[0] if told else None


def _unbelievable(ranks: Mapping[int, RankSteps | None], asked: int, harness_s: float | None) -> str:
    """Why the ranks' accounts of their steps cannot be true, '' where they can."""
    totals: list[float] = []
    for rank, steps in ranks.items():
        if steps is None:
            return f"rank {rank} has no step times"
        lengths = {len(steps.step_s), len(steps.cpu_s), len(steps.wait_s), len(steps.memory_bytes)}
        if len(lengths) != 1:
            return f"rank {rank} tells of different numbers of steps in one record"
        if len(steps.step_s) > asked:
            return f"rank {rank} claims {len(steps.step_s)} steps, but {asked} were asked for"
        if any(seconds <= 0 for seconds in steps.step_s):
            return f"rank {rank} claims a step that took no time"
        totals.append(sum(steps.step_s))
    if len({len(steps.step_s) for steps in ranks.values() if steps is not None}) != 1:
        return "the ranks claim different numbers of steps"
    if harness_s is None:
        return "the marks of the first and the last step are missing, so the step times cannot be checked"
    for rank, total in enumerate(totals):
        if abs(total - harness_s) > max(CLOCK_TOLERANCE_S, CLOCK_TOLERANCE * harness_s):
            return (
                f"rank {rank} claims {total:.3g} s for its steps, and by the system's clock they took {harness_s:.3g} "
                "s: its clock is wrong or was replaced"
            )
    return ""


def _trained(raws: Mapping[int, RawRun], asked: int) -> tuple[Outcome, str]:
    """Whether all steps were steps of training."""
    done = min(len(raw.steps.step_s) for raw in raws.values() if raw.steps is not None)
    if done < asked:
        return "short", f"ended without an error after {done} of {asked} steps"
    losses = mean_loss([raw.loss for raw in raws.values()])
    if None in losses:
        first = losses.index(None) + 1
        return "diverged", f"the loss is not finite in {losses.count(None)} of {asked} steps, first in step {first}"
    if len(losses) != asked:
        return "bad_record", f"tells of {len(losses)} losses for {asked} steps; the run was not used"
    if skipped := max(raw.skipped_steps for raw in raws.values()):
        return "diverged", f"the optimizer skipped {skipped} of {asked} steps: weights did not change in them"
    return "ok", ""


def _timing(raws: Mapping[int, RawRun], plan: TimedPlan, place: Place, harness_s: float | None) -> Timing | None:
    ranks = {str(rank): raw.steps for rank, raw in sorted(raws.items()) if raw.steps is not None}
    if len(ranks) != len(raws):
        return None
    cut = min(plan.cut, place.steps)
    experts = [raw.tokens_per_expert for raw in raws.values()]
    dropped = [raw.dropped_tokens for raw in raws.values()]
    return Timing(
        asked=place.steps,
        cut=cut,
        method=f"the first {cut} steps",
        clock=raws[0].clock,
        step_s=[max(each) for each in zip(*(steps.step_s for steps in ranks.values()), strict=False)],
        ranks=ranks,
        harness_s=harness_s,
        memory_peak_bytes=max(steps.peak_bytes for steps in ranks.values()),
        memory_slope_bytes=max((slope(steps.memory_bytes[cut:]) for steps in ranks.values()), key=abs, default=0.0),
        tokens_per_expert=[sum(column) for column in zip(*experts, strict=False)] if all(experts) else [],
        dropped_tokens=sum(n for n in dropped if n is not None) if None not in dropped else None,
        skipped_steps=max(raw.skipped_steps for raw in raws.values()),
    )


def _together(ledgers: Sequence[Ledger]) -> Ledger:
    """Rank 0's ledger with a digest of every other rank's entries."""
    first, *others = ledgers
    return first.model_copy(update={"rank_digests": {str(ledger.rank): digest(ledger) for ledger in others}})


def digest(ledger: Ledger) -> str:
    """SHA-256 of a ledger's entries, whatever their order."""
    entries = sorted(entry.model_dump_json() for entry in ledger.entries)
    return hashlib.sha256(json.dumps(entries).encode()).hexdigest()


def _code(proofs: Sequence[CodeProof | None]) -> CodeProof | None:
    """One proof of all ranks; None where one has none. What is foreign on any rank is foreign."""
    given = [proof for proof in proofs if proof is not None]
    if len(given) != len(proofs) or not given:
        return None
    merged = given[0]
    for proof in given[1:]:
        files = {**proof.files, **merged.files}
        if any(merged.files.get(name, value) != value for name, value in proof.files.items()):
            return None  # two ranks of one launch ran different code
        merged = CodeProof(
            watched={**proof.watched, **merged.watched}, foreign={**proof.foreign, **merged.foreign}, files=files
        )
    return merged


def _crowded(ranks: int) -> list[str]:
    node = this_node()
    if node.gpus or ranks <= node.cores:
        return []
    return [f"{ranks} ranks share {node.cores} core{'s' * (node.cores > 1)}: step times show the scheduler too"]
