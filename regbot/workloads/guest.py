"""Run a task in a guest process and read its record. This is the trust boundary of a run.

The guest process also runs the code under test, and it writes its own record. So the record is not proof of anything,
but a set of claims. This module checks the record's size and form, and whether it answers this request. It also checks
how the process ended, which the engine observes. If guest and engine disagree, the engine is right.
"""

import os
import secrets
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from regbot.engines import Engine, EngineError, Launch, LaunchResult, NoSeatError, clean_environment
from regbot.engines.guest import GUEST_ENVIRONMENT, MEGABYTE, describe_exit, guest_folder, make_empty_folder, write_json
from regbot.records.crash import Crash
from regbot.records.files import RecordError, read_record
from regbot.records.run import Arm, Outcome, RawRun, Refusal, Run, Tier
from regbot.records.text.clip import clip_message
from regbot.records.text.printable import make_printable, printable
from regbot.records.text.words import plural
from regbot.workloads.compiled import ledger_of_program
from regbot.workloads.guest_file import GuestFileError
from regbot.workloads.hang import add_hang_report
from regbot.workloads.task import Task

COMPILING_ADAPTERS = ("maxtext",)
"""Adapters whose guest writes a compiled program. regbot computes the ledger from this program."""

BRIDGE_PACKAGES = ("megatron.bridge", "megatron.core")
"""Packages that must come from a checkout of Megatron Bridge. The second one is in a submodule."""

MAX_FOLDER_IN_RECORDS = 4
"""Largest size of a record folder in multiples of the largest record. The folder also has traces and notes of hangs."""

NO_LEDGER = "a command has no static ledger; give a profile or a dump to 'regbot ledger read'"

SECONDARY_PHRASES = ("connection closed", "connection reset", "broken pipe", "closed by peer", "reset by peer")
"""Phrases in the error of a rank that failed because another rank failed. Such an error does not name the cause."""
_TRACE_ENVIRONMENT = {"MALLOC_MMAP_THRESHOLD_": "65536"}
"""A trace allocates and frees thousands of shadow values of about 100 KiB, which would fragment glibc's heap."""


@dataclass(frozen=True)
class Limits:
    """Size limits of a guest's output and record. The engine kills a guest whose record folder is too large."""

    max_output_bytes: int = 8 * MEGABYTE
    max_record_bytes: int = 32 * MEGABYTE


@dataclass(frozen=True)
class Checkout:
    arm: Arm
    root: Path
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def caches(self) -> tuple[Path, ...]:
        """This checkout's folders for compiler caches: the absolute paths in ``environment``."""
        return tuple(dict.fromkeys(Path(value) for value in self.environment.values() if value.startswith("/")))


@dataclass(frozen=True)
class RawRecord:
    """The record file that a guest must write."""

    path: Path
    nonce: str
    """Random text that the record must repeat. It shows that the record belongs to this run."""
    max_bytes: int = Limits.max_record_bytes


@dataclass(frozen=True)
class Scratch:
    """A private folder for runs, and the limits of each run.

    Each run first empties its folder. After the run, the folder contains the run's request, record and log.
    """

    folder: Path
    limits: Limits = Limits()

    def child(self, name: str) -> "Scratch":
        return Scratch(self.folder / name, self.limits)

    def record(self, name: str) -> RawRecord:
        return RawRecord(self.folder / "record" / name, secrets.token_hex(16), self.limits.max_record_bytes)


def trace(
    task: Task, checkout: Checkout, engine: Engine, scratch: Scratch, attempt: int = 1, paper: Path | None = None
) -> Run:
    """Trace the static ledger of one task. See ``trace_together``."""
    (run,) = trace_together([task], checkout, engine, scratch, attempt, paper)
    return run


def trace_together(
    tasks: Sequence[Task],
    checkout: Checkout,
    engine: Engine,
    scratch: Scratch,
    attempt: int = 1,
    paper: Path | None = None,
) -> list[Run]:
    """Trace several tasks of one workload, one after the other in one process. Return one run for each task, whatever
    the guest does.

    The tasks share imports and the paper GPU's cached shapes. If the process dies, the runs of all tasks fail.
    ``attempt`` is above 1 if earlier traces are repeated. ``paper`` is the library of the paper GPU to trace on; None
    traces CPU programs. Raises NoSeatError if the engine has no node for the traces.
    """
    workload, arm, root = tasks[0].workload, checkout.arm, checkout.root
    if refusal := NO_LEDGER if workload.adapter == "command" else missing_source_root(tasks[0], root):
        return [bare_run(task, arm, "refused", refusal, attempt) for task in tasks]
    make_empty_folder(scratch.folder)
    paper_gpu = {"paper": str(paper), "gpu": workload.gpu} if paper is not None else {}
    suffixes = ["json"] if len(tasks) == 1 else [f"{number}.json" for number in range(len(tasks))]
    records = [scratch.record(f"raw.{suffix}") for suffix in suffixes]
    requests = [
        write_json(scratch.folder / f"request.{suffix}", request_document(task, root, record) | paper_gpu)
        for task, record, suffix in zip(tasks, records, suffixes, strict=True)
    ]
    command = (interpreter(tasks[0], root), str(guest_folder()), *map(str, requests))
    environment = {**workload.environment, **GUEST_ENVIRONMENT, **_TRACE_ENVIRONMENT}
    launch = make_launch(tasks[0], checkout, scratch, command, environment)
    launch = replace(
        launch,
        timeout_s=launch.timeout_s * len(tasks),
        max_dir_bytes=launch.max_dir_bytes * len(tasks),
        readable=(root, *requests, *([paper] if paper is not None else [])),
    )
    try:
        result = engine.run(launch)
    except NoSeatError:  # this is not the code's fault: the check stops, and the user can resume it
        raise
    except EngineError as error:  # the interpreter does not exist, or the guest killed its own supervisor
        return [bare_run(task, arm, "crashed", str(error), attempt, crash=Crash()) for task in tasks]
    result = replace(result, wall_s=result.wall_s / len(tasks))  # each task gets the same part of the time
    runs = [build_run(task, arm, result, record, attempt, root) for task, record in zip(tasks, records, strict=True)]
    # A trace is a single process, whatever the number of ranks that it traces.
    return [add_hang_report(run, launch.record_dir, ranks=1, root=root) for run in runs]


def make_launch(
    task: Task, checkout: Checkout, scratch: Scratch, command: tuple[str, ...], environment: Mapping[str, str]
) -> Launch:
    """Return the launch of ``command`` in the checkout, with the time limit of the task and the limits of ``scratch``.

    ``environment`` has the variables besides those of the checkout.
    """
    return Launch(
        command=command,
        cwd=checkout.root,
        env=clean_environment({**checkout.environment, **environment}),
        log=scratch.folder / "output.log",
        record_dir=scratch.folder / "record",
        timeout_s=task.workload.timeout_min * 60,
        max_output_bytes=scratch.limits.max_output_bytes,
        max_dir_bytes=MAX_FOLDER_IN_RECORDS * scratch.limits.max_record_bytes,
        writable=checkout.caches,
    )


def interpreter(task: Task, root: Path) -> str:
    """Return the interpreter of the workload: an absolute path, or a command on PATH."""
    python = task.workload.python or sys.executable
    return str(root / python) if "/" in python else python  # an absolute path remains as it is


def build_run(task: Task, arm: Arm, result: LaunchResult, record: RawRecord, attempt: int, root: Path) -> Run:
    raw, fault = read_claims(record, task)
    outcome, reason = determine_outcome(result, {0: raw} if raw else {}, [fault] if fault else [], task, 1)
    ledger = raw.ledger if raw is not None and outcome == "ok" else None
    if raw is not None and raw.compiled is not None and outcome == "ok":
        try:
            program_ledger = ledger_of_program(raw.compiled, task, record.path.parent, record.max_bytes)
            ledger = program_ledger.relative_to(str(root))
        except GuestFileError as error:
            outcome, reason = "bad_record", printable(str(error))
    fields = observe(result, outcome)
    refusal = raw.refusal if raw is not None else None
    if refusal is not None and outcome == "refused":
        fields["refusal"] = refusal.kind
    if outcome == "crashed":
        fields["crash"] = (refusal and refusal.crash) or Crash()  # empty if the process died without a report
    if raw is not None:
        names = ("loss", "backends", "code", "environment", "peak_rss_bytes")
        fields |= {name: getattr(raw, name) for name in names}
        fields |= {"ledger": ledger, "warnings": [*fields["warnings"], *raw.warnings]}
    return bare_run(task, arm, outcome, reason, attempt).model_copy(update=fields)


def read_claims(record: RawRecord, task: Task) -> tuple[RawRun | None, str]:
    """Return the guest's record, or None with the reason why it cannot be used. The reason is '' if there is none."""
    if not os.path.lexists(record.path):
        return None, ""
    try:
        raw = read_record(record.path, RawRun, record.max_bytes)
    except RecordError as error:
        return None, printable(str(error).replace(str(record.path), "the record"))
    raw = RawRun.model_validate(make_printable(raw.model_dump()))
    fault = printable(_find_mismatch(raw, task, record.nonce))
    return (None, fault) if fault else (raw, "")


def bare_run(
    task: Task, arm: Arm, outcome: Outcome, reason: str, attempt: int = 1, tier: Tier = "static", **fields: Any
) -> Run:
    """Return a run that has only an outcome, a reason and ``fields``, such as a failed build or a refusal."""
    return Run(
        arm=arm,
        workload=task.entry,
        adapter=task.workload.adapter,
        shape=task.shape.id,
        variant=task.variant.name,
        tier=tier,
        attempt=attempt,
        outcome=outcome,
        reason=clip_message(reason),
        **{"wall_s": 0.0, **fields},
    )


def missing_source_root(task: Task, root: Path) -> str:
    source_roots = [] if task.workload.adapter == "smoke" else task.workload.source_roots
    missing = [folder for folder in source_roots if not (root / folder).is_dir()]
    key = f"workloads.{task.workload_name}.source_roots"
    return f"{key}: there is no folder {missing[0]!r} in the checkout; set it in regbot.toml" if missing else ""


def request_document(task: Task, root: Path, record: RawRecord) -> dict[str, Any]:
    """Return the request for the guest. ``regbot_guest.request.Request`` explains the fields."""
    workload, is_smoke = task.workload, task.workload.adapter == "smoke"
    return {
        "request": record.nonce,
        "workload": task.entry,
        "variant": task.variant.name,
        "record": str(record.path),
        "root": str(guest_folder() if is_smoke else root),
        "geometry": task.variant.geometry.model_dump(),
        "world": task.parallelism.world_size,
        "ep": task.parallelism.ep,
        "mode": "static",
        "limit_s": workload.timeout_min * 60,
        "adapter": workload.adapter,
        "recipe": workload.recipe,
        "entry": workload.entry,
        "program": workload.training_script,
        "source_roots": [] if is_smoke else workload.source_roots,
        "watch": workload.watch or _framework_package(task, root),
        "mlp": task.variant.mlp,
        # A variant with the ending -skewed has skewed routing whatever the workload says.
        "routing": task.variant.routing if task.variant.routing == "skewed" else workload.routing,
        "dtype": task.variant.dtype,
        "dispatcher": workload.dispatcher or ("alltoall" if is_smoke else ""),  # '': none is requested
        "config": workload.config,
        "stand_ins": workload.stand_ins,
        "stand_ins_text": workload.stand_ins_text,
    }


def _framework_package(task: Task, root: Path) -> list[str]:
    """Return the packages of Megatron or MaxText that must be loaded from the checkout, if they are in it.

    The guest finds packages with ``__init__.py`` by itself. The package ``megatron`` has no such file, and the package
    ``maxtext`` had none until April 2026. Recipes of Megatron Bridge also load some packages ``megatron.*`` from
    outside of the checkout. So for these recipes, only ``BRIDGE_PACKAGES`` are returned.
    """
    adapter = task.workload.adapter  # both packages are called like their adapter
    if task.workload.runs_bridge:
        return list(BRIDGE_PACKAGES)
    is_in_checkout = any((root / folder / adapter).is_dir() for folder in task.workload.source_roots)
    return [adapter] if adapter in ("megatron", "maxtext") and is_in_checkout else []


def _find_mismatch(raw: RawRun, task: Task, nonce: str) -> str:
    if raw.request != nonce:
        return "the record answers another request than this run's; it is stale or was written by other code"
    requested = (task.entry, task.variant.name, task.parallelism.world_size)
    ledger = raw.ledger
    claims = [(raw.workload, raw.variant, task.parallelism.world_size)]
    claims += [(ledger.workload or "", ledger.variant or "", ledger.world_size or 0)] if ledger is not None else []
    for claim in claims:
        if claim != requested:
            return f"the record is of {claim} (entry, variant, ranks), but {requested} was requested"
    if raw.compiled is not None and task.workload.adapter not in COMPILING_ADAPTERS:
        return f"the record is of a compiled program, which the adapter {task.workload.adapter!r} does not make"
    if ledger is not None and task.workload.adapter in COMPILING_ADAPTERS:
        return "the record holds a ledger, but regbot counts in the compiled program itself"
    if (ledger, raw.steps, raw.compiled, raw.refusal) == (None, None, None, None):
        return "the record has neither a ledger nor a reason why there is none"
    return ""


def determine_outcome(
    result: LaunchResult, raws: Mapping[int, RawRun], faults: Sequence[str], task: Task, ranks: int
) -> tuple[Outcome, str]:
    """Return outcome and reason of a run of ``ranks`` ranks. If there are several reasons, return that of the cause.

    ``raws`` has the usable records by rank, and ``faults`` says why others cannot be used. What the engine observed
    counts more than the records.
    """
    if early_end := engine_outcome(result, task):
        return early_end
    if faults:
        return "bad_record", f"{faults[0]}. Code under test must not write regbot's record; the run was not used"
    missing = [rank for rank in range(ranks) if rank not in raws]
    missing_ranks = f"{plural('rank', len(missing))} {', '.join(map(str, missing[:8]))}"
    refusals = [raw.refusal for _, raw in sorted(raws.items()) if raw.refusal is not None]
    # A refusal that is not a consequence of another rank's failure comes first (False is less than True).
    if refusal := min(refusals, key=_is_secondary, default=None):
        message = f"{refusal.message} ({refusal.where})" if refusal.where else refusal.message
        if missing and _is_secondary(refusal):
            cause = f"{missing_ranks} ended without a record (os._exit, or a signal)"
            message = f"{cause}, and its peers report only that: {message}"
        return ("crashed" if refusal.kind == "code" else "refused"), message  # code: the code under test failed
    if missing and result.exit_code == 0:
        ending = "with exit code 0 (os._exit, exec, sys.exit in a thread) before the steps were done"
        return "no_record", f"something in the code under test ended {missing_ranks} {ending}"
    ending = describe_exit(result.exit_code)
    if missing:
        return "crashed", f"{ending} before {missing_ranks} wrote a result (see the end of its log)"
    if result.exit_code != 0:
        return "crashed", f"left its records and then {ending}; they were not used"
    return "ok", ""


def _is_secondary(refusal: Refusal) -> bool:
    return any(phrase in refusal.message.lower() for phrase in SECONDARY_PHRASES)


def engine_outcome(result: LaunchResult, task: Task) -> tuple[Outcome, str] | None:
    if result.timed_out:
        advice = f"raise workloads.{task.workload_name}.timeout_min if it only needs more time"
        limit = f"{task.workload.timeout_min:g} minutes"
        return "hung", f"did not end within {limit} and was killed; see the end of its log, or {advice}"
    if result.excess:
        return "bad_record", f"{result.excess}, and was killed"
    return None


def observe(result: LaunchResult, outcome: Outcome) -> dict[str, Any]:
    """Return the fields of a run that the engine observed."""
    warnings = []
    if result.left_behind:
        warnings.append(f"left {result.left_behind} child process(es) running, which were killed")
    if result.unkilled:
        warnings.append(f"{result.unkilled} process(es) could not be killed; the node needs attention")
    if result.output_truncated:
        warnings.append("printed more than is kept; the middle of its log was dropped")
    return {
        "exit_code": result.exit_code,
        "wall_s": result.wall_s,
        "log_tail": "" if outcome == "ok" else result.log_tail,
        "warnings": warnings,
    }
