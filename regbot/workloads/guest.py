"""Running a task in a guest process, and reading what it left: the trust boundary of a run.

The guest writes its own record, so everything in it is a claim. What is checked here: size, form, that it answers this
very request and no other, and how the process ended as the engine saw it. Where the guest's account and the engine's
differ, the engine's counts.
"""

import json
import secrets
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from typing import Any

from regbot.engines import Ended, Engine, EngineError, Launch, NoSeatError, clean_environment
from regbot.records.files import RecordError, read_record
from regbot.records.run import Arm, Outcome, RawRun, Run, Tier
from regbot.text import printable
from regbot.workloads.compiled import BadProgram, ledger_of_program
from regbot.workloads.hang import with_hang
from regbot.workloads.task import Task

MEGABYTE = 2**20

COMPILING = ("maxtext",)
"""Adapters whose guest leaves a compiled program and no ledger."""

NO_LEDGER = "a command has no static ledger; give a profile or a dump to 'regbot ledger read'"

GUEST_ENVIRONMENT = {"PYTHONDONTWRITEBYTECODE": "1", "PYTHONUNBUFFERED": "1"}
_TRACE_ENVIRONMENT = {
    # Shadow values of some 100 KiB come and go by the thousand and leave glibc's heap full of holes.
    "MALLOC_MMAP_THRESHOLD_": "65536",
}


@dataclass(frozen=True)
class Limits:
    """What a guest may use before it is ended."""

    max_output_bytes: int = 8 * MEGABYTE
    max_record_bytes: int = 32 * MEGABYTE


def caches_of(environment: Mapping[str, str] | None) -> tuple[Path, ...]:
    """The folders that the variables of a checkout name: compiler caches, which are its own."""
    return tuple(dict.fromkeys(Path(value) for value in (environment or {}).values() if value.startswith("/")))


def guest_folder() -> Path:
    """The folder that guest processes are started by. It is never imported here."""
    return Path(str(resources.files("regbot"))) / "guest"


def trace(
    task: Task,
    arm: Arm,
    root: Path,
    engine: Engine,
    scratch: Path,
    limits: Limits,
    attempt: int = 1,
    environment: Mapping[str, str] | None = None,
    paper: Path | None = None,
) -> Run:
    """Trace the static ledger of ``task`` in the checkout ``root``. Never raises for what the guest does.

    ``scratch`` is a private folder, emptied first; request, record and log stay there. ``environment`` is added to the
    clean one that a guest gets. ``paper`` is the library of the paper GPU to trace on, None for a CPU program.
    """
    return trace_together([task], arm, root, engine, scratch, limits, attempt, environment, paper)[0]


def trace_together(
    tasks: Sequence[Task],
    arm: Arm,
    root: Path,
    engine: Engine,
    scratch: Path,
    limits: Limits,
    attempt: int = 1,
    environment: Mapping[str, str] | None = None,
    paper: Path | None = None,
) -> list[Run]:
    """``trace`` for tasks of one workload, one after the other in one process.

    Imports, and the shapes that a paper GPU has learnt, are paid once. A process that dies spoils all of its runs.
    """
    first = tasks[0]
    if first.workload.adapter == "command":
        return [bare_run(task, arm, "refused", NO_LEDGER, attempt) for task in tasks]
    if missing := missing_source_root(first, root):
        return [bare_run(task, arm, "refused", missing, attempt) for task in tasks]
    empty(scratch)
    on_paper = {"paper": str(paper)} if paper is not None else {}
    jobs = []
    for number, task in enumerate(tasks):
        nonce = secrets.token_hex(16)
        record = scratch / "record" / ("raw.json" if len(tasks) == 1 else f"raw.{number}.json")
        name = "request.json" if len(tasks) == 1 else f"request.{number}.json"
        request = write_json(scratch / name, {**request_document(task, root, nonce, record), **on_paper})
        jobs.append((task, nonce, record, request))
    requests = [request for *_, request in jobs]
    launch = Launch(
        command=(interpreter(first, root), str(guest_folder()), *map(str, requests)),
        cwd=root,
        env=clean_environment(
            {**(environment or {}), **first.workload.environment, **GUEST_ENVIRONMENT, **_TRACE_ENVIRONMENT}
        ),
        log=scratch / "output.log",
        record_dir=scratch / "record",
        timeout_s=first.workload.timeout_min * 60 * len(tasks),
        max_output_bytes=limits.max_output_bytes,
        max_dir_bytes=4 * limits.max_record_bytes * len(tasks),
        readable=(root, *requests, *([paper] if paper is not None else [])),
        writable=caches_of(environment),
    )
    try:
        ended = engine.run(launch)
    except NoSeatError:  # nobody's fault: the check ends, and goes on from here
        raise
    except EngineError as error:  # no such interpreter, or a guest that killed its own supervisor
        return [bare_run(task, arm, "crashed", str(error), attempt) for task in tasks]
    ended = replace(ended, wall_s=ended.wall_s / len(tasks))
    return [
        with_hang(read_end(task, arm, ended, record, nonce, limits, attempt), record.parent, 1, root)
        for task, nonce, record, _ in jobs
    ]


def write_request(scratch: Path, document: Mapping[str, Any]) -> Path:
    """The request file in ``scratch``, which is emptied first: what an earlier run left there is not this run's."""
    empty(scratch)
    return write_json(scratch / "request.json", document)


def empty(scratch: Path) -> None:
    """Make ``scratch`` an empty folder, whatever is there."""
    if scratch.is_symlink() or scratch.is_file():
        scratch.unlink()
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True)


def write_json(path: Path, document: Mapping[str, Any]) -> Path:
    """Write ``document`` to ``path``, and return it."""
    path.write_text(json.dumps(document), encoding="utf-8")
    return path


def interpreter(task: Task, root: Path) -> str:
    """The workload's interpreter: a path inside the checkout, a command on PATH, or the one regbot runs under."""
    python = task.workload.python
    if not python:
        return sys.executable
    return str(root / python) if "/" in python and not Path(python).is_absolute() else python


def read_end(task: Task, arm: Arm, ended: Ended, record: Path, nonce: str, limits: Limits, attempt: int) -> Run:
    """The run that ``ended`` and the record tell of together."""
    raw, fault = read_claims(record, task, nonce, limits)
    outcome, reason = _outcome(ended, raw, fault, task)
    ledger = raw.ledger if raw is not None and outcome == "ok" else None
    if raw is not None and raw.compiled is not None and outcome == "ok":
        try:
            ledger = ledger_of_program(raw.compiled, task, record.parent, limits.max_record_bytes)
        except BadProgram as error:
            outcome, reason = "bad_record", printable(str(error))
    run = bare_run(task, arm, outcome, reason, attempt).model_copy(
        update={
            "exit_code": ended.exit_code,
            "wall_s": ended.wall_s,
            "log_tail": "" if outcome == "ok" else ended.log_tail,
            "warnings": outside_warnings(ended),
        }
    )
    if raw is None or fault:
        return run
    return run.model_copy(
        update={
            "ledger": ledger,
            "loss": raw.loss,
            "backends": raw.backends,
            "code": raw.code,
            "environment": raw.environment,
            "peak_rss_bytes": raw.peak_rss_bytes,
            "peak_device_bytes": raw.peak_device_bytes,
            "warnings": [*run.warnings, *raw.warnings],
        }
    )


def read_claims(record: Path, task: Task, nonce: str, limits: Limits) -> tuple[RawRun | None, str]:
    """What a guest wrote, and why it cannot be used ('' where it can); None and '' where it wrote nothing."""
    if not record.exists() and not record.is_symlink():
        return None, ""
    try:
        raw = _printable_record(read_record(record, RawRun, limits.max_record_bytes))
    except RecordError as error:
        return None, printable(str(error).replace(str(record), "the record"))
    return raw, printable(_not_ours(raw, task, nonce))


def _printable_record(raw: RawRun) -> RawRun:
    """``raw`` without control characters in any text: what is printed later must not steer a terminal or a CI log."""
    return RawRun.model_validate(_clean(raw.model_dump()))


def _clean(value: Any) -> Any:
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, dict):
        return {printable(key): _clean(item) for key, item in value.items()}
    return [_clean(item) for item in value] if isinstance(value, list) else value


def bare_run(task: Task, arm: Arm, outcome: Outcome, reason: str, attempt: int = 1, tier: Tier = "static") -> Run:
    """A run of which nothing but its outcome is known: its build failed, or it was not worth starting."""
    return Run(
        arm=arm,
        workload=task.entry,
        adapter=task.workload.adapter,
        shape=task.shape.id,
        variant=task.variant.name,
        tier=tier,
        attempt=attempt,
        outcome=outcome,
        reason=reason[:4000],
        wall_s=0.0,
    )


def missing_source_root(task: Task, root: Path) -> str:
    """Why the checkout cannot hold the workload, '' where it can."""
    if task.workload.adapter == "smoke":
        return ""
    missing = [folder for folder in task.workload.source_roots if not (root / folder).is_dir()]
    key = f"workloads.{task.workload_name}.source_roots"
    return f"{key}: there is no folder {missing[0]!r} in the checkout; set it in regbot.toml" if missing else ""


def request_document(task: Task, root: Path, nonce: str, record: Path) -> dict[str, Any]:
    """See ``regbot_guest.request.Request``; the guest checks it by construction."""
    workload, own = task.workload, task.workload.adapter == "smoke"
    return {
        "request": nonce,
        "workload": task.entry,
        "variant": task.variant.name,
        "record": str(record),
        "root": str(guest_folder() if own else root),
        "geometry": task.variant.geometry.model_dump(),
        "world": task.parallelism.world_size,
        "ep": task.parallelism.ep,
        "mode": "static",
        "limit_s": workload.timeout_min * 60,
        "adapter": workload.adapter,
        "recipe": workload.recipe,
        "entry": workload.entry,
        "source_roots": [] if own else workload.source_roots,
        "watch": workload.watch or _own_package(task, root),
        "mlp": task.variant.mlp,
        "routing": task.variant.routing if task.variant.routing == "skewed" else workload.routing,
        "dtype": task.variant.dtype,
        "dispatcher": workload.dispatcher or ("alltoall" if own else ""),
        "config": workload.config,
    }


def _own_package(task: Task, root: Path) -> list[str]:
    """Megatron's package where the checkout holds it: a namespace without ``__init__.py`` is not found by itself."""
    if task.workload.adapter != "megatron":
        return []
    return ["megatron"] if any((root / f / "megatron").is_dir() for f in task.workload.source_roots) else []


def _not_ours(raw: RawRun, task: Task, nonce: str) -> str:
    """Why a well-formed record does not answer this request, '' where it does."""
    if raw.request != nonce:
        return "the record answers another request than this run's; it was left over or written by other code"
    claims: list[tuple[str, str | None, str]] = [
        ("workload", raw.workload, task.entry),
        ("variant", raw.variant, task.variant.name),
    ]
    if raw.ledger is not None:
        claims += [
            ("ledger.workload", raw.ledger.workload, task.entry),
            ("ledger.variant", raw.ledger.variant, task.variant.name),
            ("ledger.world_size", str(raw.ledger.world_size), str(task.parallelism.world_size)),
        ]
    for name, claimed, asked in claims:
        if claimed != asked:
            return f"the record's {name} is {claimed!r}, but {asked!r} was asked for"
    if raw.compiled is not None and task.workload.adapter not in COMPILING:
        return f"the record is of a compiled program, which the adapter {task.workload.adapter!r} does not make"
    if raw.ledger is not None and task.workload.adapter in COMPILING:
        return "the record holds a ledger, but regbot counts in the compiled program itself"
    if raw.ledger is None and raw.refusal is None and raw.steps is None and raw.compiled is None:
        return "the record holds neither a ledger nor a reason why there is none"
    return ""


def _outcome(ended: Ended, raw: RawRun | None, fault: str, task: Task) -> tuple[Outcome, str]:
    if cut_short := ended_by_engine(ended, task):
        return cut_short
    if fault:
        return "bad_record", f"{fault}. Code under test must not write regbot's record; the run was not used"
    if raw is None:
        how = exit_words(ended.exit_code)
        if ended.exit_code == 0:
            return "no_record", (
                "ended without an error and without a record: something in the code under test ended the process "
                "(os._exit, exec, sys.exit in a thread) before the step was counted"
            )
        return "crashed", f"{how} before it could write a record; see its last lines"
    if raw.refusal is not None:
        place = f" ({raw.refusal.where})" if raw.refusal.where else ""
        return ("crashed" if raw.refusal.kind == "code" else "refused"), f"{raw.refusal.message}{place}"
    if ended.exit_code != 0:
        return "crashed", f"left a record and then {exit_words(ended.exit_code)}; the record was not used"
    return "ok", ""


def ended_by_engine(ended: Ended, task: Task) -> tuple[Outcome, str] | None:
    """The outcome of a run that the engine had to end."""
    if ended.timed_out:
        return "hung", (
            f"did not end within {task.workload.timeout_min:g} minutes and was killed; see its last lines, or raise "
            f"workloads.{task.workload_name}.timeout_min if it only needs longer"
        )
    if ended.dir_overflow:
        return "bad_record", "wrote more into its record folder than any record needs, and was ended"
    return None


def exit_words(code: int | None) -> str:
    """``exited with code 1``, ``was killed by signal 9``."""
    if code is None:
        return "was ended"
    return f"was killed by signal {-code}" if code < 0 else f"exited with code {code}"


def outside_warnings(ended: Ended) -> list[str]:
    """What the engine noticed of a run that may have ended well."""
    warnings = []
    if ended.left_behind:
        warnings.append(f"left {ended.left_behind} child process(es) running, which were killed")
    if ended.unkilled:
        warnings.append(f"{ended.unkilled} process(es) could not be killed; the node needs a look")
    if ended.output_truncated:
        warnings.append("printed more than is kept; the middle of its log was dropped")
    return warnings
