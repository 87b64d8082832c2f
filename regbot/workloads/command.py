"""One timed run of a workload that is a command: launched as it is, its step times read from what it logs.

Nothing of regbot runs inside the process, so little is known: the seconds that the training code printed, its loss,
what it skipped, and how the process ended. No collectives, no dispatcher that was seen to execute, no proof of which
code ran, nothing of single ranks. The one check from outside is the engine's wall clock: steps cannot have taken longer
than the process lived. That they took as long as the log says is the code's word.

Words in braces in the command are filled in: ``{steps}`` (steps to run, warm-up included), ``{log}`` (a file for the
step log, outside the checkout), ``{python}``, ``{dispatcher}``, and every key of ``config``. An override that the
command has no place for is refused, because both arms would run the same; so is one of a word that regbot fills in.
"""

import math
import re
from collections.abc import Mapping
from pathlib import Path

from pydantic import ValidationError

from regbot.engines import Ended, EngineError, Launch, Seat, clean_environment
from regbot.logs import LogError, StepLog, read_log
from regbot.records.files import describe
from regbot.records.run import Arm, Outcome, RankSteps, Run, Timing
from regbot.records.session import TimedPlan
from regbot.text import printable
from regbot.workloads.guest import (
    GUEST_ENVIRONMENT,
    Limits,
    bare_run,
    caches_of,
    ended_by_engine,
    exit_words,
    interpreter,
    outside_warnings,
    write_request,
)
from regbot.workloads.ranks import CLOCK_TOLERANCE_S
from regbot.workloads.task import Task
from regbot.workloads.timed import Place, measured_in, outcome_of

LOG_RANK = "log"
"""Name of the one account of steps that a log is."""

LOST = (
    "printed more than is kept, and steps in the middle of its log are lost; print less, raise local.max_output_mb, or "
    "have it write the step log to {log}"
)

OWN_WORDS = {
    "steps": "set session.steps and session.warmup",
    "log": "write {log} in the command, or set log of the workload to a file in the checkout",
    "python": "set python of the workload, or override python",
    "dispatcher": "set dispatcher of the workload, or override dispatcher",
    "slowdown_pct": "it is 0 except where 'regbot calibrate --inject' sets it",
}
"""Words that are no keys of ``config``, and where each is set instead."""

_WORD = re.compile(r"\{([A-Za-z_][A-Za-z0-9_.]*)\}")


def time_command(
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
    """Launch the command of ``task`` once in the checkout ``root``. Never raises for what it does."""
    workload = task.workload
    own_log = scratch / "record" / "steps.log"
    command, fault = filled(task, root, place, own_log)
    printed = scratch / "output.log"
    write_request(scratch, {"command": command})  # empties scratch: what an earlier run left is not this run's
    log, within = (own_log if _names(task, "log") else printed), scratch.resolve()
    if workload.log and not fault:
        log, within = root / workload.log, root.resolve()
        fault = _cleared(within, log, workload.log)
    if fault:
        refused = bare_run(task, arm, "refused", fault, place.attempt, "timed")
        return refused.model_copy(update={"position": place.position})
    launch = Launch(
        command=command,
        cwd=root,
        env=clean_environment({**(environment or {}), **GUEST_ENVIRONMENT, **workload.environment}),
        log=printed,
        record_dir=own_log.parent,
        timeout_s=task.workload.timeout_min * 60,
        max_output_bytes=limits.max_output_bytes,
        max_dir_bytes=4 * limits.max_record_bytes,
        writable=(root, *caches_of(environment)),  # a program may write where it stands
    )
    try:
        ended = seat.run(launch)
    except EngineError as error:
        failed = bare_run(task, arm, outcome_of(error), str(error), place.attempt, "timed")
        return measured_in(seat, failed.model_copy(update={"position": place.position}))
    whole = log != printed or not ended.output_truncated
    return measured_in(seat, read_end(task, plan, place, arm, ended, log, within, whole), ended)


def filled(task: Task, root: Path, place: Place, log: Path) -> tuple[tuple[str, ...], str]:
    """The command with its words filled in, and why it cannot be run, '' where it can."""
    workload = task.workload
    key = f"workloads.{task.workload_name}"
    for name, instead in OWN_WORDS.items():
        if name in workload.config:
            return (), f"{key}.config.{name}: regbot fills {{{name}}} in itself, and the value would be lost; {instead}"
    if workload.routing != "balanced":
        return (), (
            f"{key}.routing = {workload.routing!r} says nothing to a command, so both arms would run the same; give "
            "it as a key of config by another name, and write {that name} where the command takes it"
        )
    if workload.log and _names(task, "log"):
        return (), f"{key}.log is a file of the checkout, and its command takes {{log}}, which is another; keep one"
    overrides = {**workload.config, **({"dispatcher": workload.dispatcher} if workload.dispatcher else {})}
    for name in overrides:
        if not _names(task, name):
            return (), (
                f"{key}.command has no place for {name!r}, so every value of it would run the same; "
                f"write {{{name}}} where the command takes it"
            )
    if _names(task, "dispatcher") and not workload.dispatcher:
        return (), f"{key}.command takes {{dispatcher}}, and none is set; set {key}.dispatcher"
    if place.slowdown_pct and not _names(task, "slowdown_pct"):
        return (), (
            f"{key}.command has no place for {{slowdown_pct}}, so no slowdown can be injected; write it where the "
            "program takes the percent by which each of its steps is to last longer, or leave out --inject"
        )
    words = {
        **overrides,
        "steps": place.steps,
        "log": log,
        "python": interpreter(task, root),
        "slowdown_pct": f"{place.slowdown_pct:g}",
    }
    return tuple(_WORD.sub(lambda found: _filled(found, words), argument) for argument in workload.command), ""


def read_end(
    task: Task, plan: TimedPlan, place: Place, arm: Arm, ended: Ended, log: Path, within: Path, whole: bool
) -> Run:
    """The run that ``ended`` and the step log tell of together.

    ``within``: the resolved folder that the log lies in. ``whole``: nothing of the log was dropped.
    """
    outcome, reason, found = _read(task, ended, log, within, whole)
    warnings = outside_warnings(ended)
    timing: Timing | None = None
    losses: list[float | None] = []
    if found is not None:
        warnings += found.warnings
        outcome, reason = _judged(found, place.steps, plan.cut, ended.wall_s)
        counted = found.steps[: place.steps]
        if len(found.steps) > place.steps:
            warnings.append(f"the log has {len(found.steps)} steps; the first {place.steps} count, as was asked for")
        if all(step.loss is not None for step in counted):
            losses = [step.loss if math.isfinite(step.loss or 0.0) else None for step in counted]
        seconds = [step.seconds for step in counted if step.seconds is not None]
        if outcome in ("ok", "short", "diverged"):
            timing = _timing(found, seconds, place.steps, plan.cut)
    run = bare_run(task, arm, outcome, reason, place.attempt, "timed").model_copy(
        update={
            "position": place.position,
            "exit_code": ended.exit_code,
            "wall_s": ended.wall_s,
            "log_tail": "" if outcome == "ok" else ended.log_tail,
            "warnings": [printable(warning)[:4000] for warning in warnings],
        }
    )
    try:
        return Run.model_validate(run.model_copy(update={"timing": timing, "loss": losses}).model_dump(by_alias=True))
    except ValidationError as error:
        why = f"{describe(error)}; the run was not used"
        return run.model_copy(update={"outcome": "bad_record", "reason": why[:4000]})


def _read(task: Task, ended: Ended, log: Path, within: Path, whole: bool) -> tuple[Outcome, str, StepLog | None]:
    """The step log, or how the run ended without one that counts."""
    if cut_short := ended_by_engine(ended, task):
        return (*cut_short, None)
    if ended.exit_code != 0:
        return "crashed", f"{exit_words(ended.exit_code)}; see its last lines", None
    if not whole:
        return "bad_record", LOST, None
    try:  # again: the command could put links where its log, or a folder above it, was
        if not log.is_file() or log.is_symlink():
            return "no_record", f"ended without an error, and left no step log {log.name!r}", None
        if _leads_out(within, log):
            return "bad_record", f"left a link that leads out of the checkout where its step log {log.name!r} is", None
    except OSError as error:
        return "no_record", f"its step log {log.name!r} cannot be read: {error.strerror}", None
    try:
        return "ok", "", read_log(log, task.workload.log_format, task.workload.tokens_per_step)
    except LogError as error:
        return "no_record", printable(str(error).replace(str(log), "its log"))[:4000], None


def _judged(found: StepLog, asked: int, cut: int, wall_s: float) -> tuple[Outcome, str]:
    """Whether the first ``asked`` steps of the log are steps of training, each with a time that can be true."""
    counted = found.steps[:asked]
    if found.too_coarse:
        return "bad_record", f"its log's {found.too_coarse}"
    if found.mean_of is None or found.mean_of > 1:
        return "bad_record", "its log has means of several steps and no step times; log every step"
    if len(counted) < asked:
        return "short", f"ended without an error after {len(counted)} of {asked} steps"
    if counted[-1].number - counted[0].number != asked - 1:
        return "bad_record", f"steps are missing in its log between {counted[0].number} and {counted[-1].number}"
    if untimed := [step.number for step in counted if step.seconds is None]:
        return "bad_record", (
            f"its log has no time of step {untimed[0]}; have every step timed, and do not profile a run that is timed"
        )
    if late := [step.number for step in counted[cut:] if step.number in found.suspect]:
        return "bad_record", f"what its log says of step {late[0]} is no step time; {found.warnings[0]}"
    claimed = sum(step.seconds or 0.0 for step in found.steps)
    if claimed > wall_s + CLOCK_TOLERANCE_S:
        return "bad_record", (
            f"claims {claimed:.4g} s for its steps, and the process lived {wall_s:.4g} s: its log is of another run, "
            "or its clock is wrong"
        )
    if nan := sum(step.nan for step in counted):
        first = next(number for number, step in enumerate(counted, 1) if step.nan)
        return "diverged", f"the loss is not finite in {nan} of {asked} steps, first in step {first}"
    if skipped := sum(step.skipped for step in counted):
        return "diverged", f"the optimizer skipped {skipped} of {asked} steps: weights did not change in them"
    return "ok", ""


def _timing(found: StepLog, seconds: list[float], asked: int, cut: int) -> Timing | None:
    if not seconds:
        return None
    cut = min(cut, asked)
    return Timing(
        asked=asked,
        cut=cut,
        method=f"the first {cut} steps",
        clock="log",
        step_s=seconds,
        ranks={LOG_RANK: RankSteps(step_s=seconds, cpu_s=[], wait_s=[], memory_bytes=[], peak_bytes=0)},
        memory_peak_bytes=0,
        memory_slope_bytes=0.0,
        skipped_steps=sum(step.skipped for step in found.steps[:asked]),
    )


def _names(task: Task, word: str) -> bool:
    return any(word in _WORD.findall(argument) for argument in task.workload.command)


def _filled(found: re.Match[str], words: Mapping[str, object]) -> str:
    """The word's value as a command line has it; braces that are not ours stay."""
    if found.group(1) not in words:
        return found.group()
    value = words[found.group(1)]
    return str(value).lower() if isinstance(value, bool) else str(value)


def _cleared(within: Path, log: Path, given: str) -> str:
    """Takes away what an earlier run left as its log in the checkout ``within``: why it cannot, '' where it can."""
    try:
        if log.is_symlink() or _leads_out(within, log):
            return f"log = {given!r} leads out of the checkout; write a path relative to its root"
        if log.is_dir():
            return f"log = {given!r} is a folder of the checkout; name a file"
        log.unlink(missing_ok=True)
    except (OSError, ValueError, RuntimeError) as error:  # a file above it, too long a name, a NUL, a loop of links
        why = error.strerror if isinstance(error, OSError) else str(error)
        return f"log = {given!r} cannot be a file of the checkout: {why}; write a path relative to its root"
    return ""


def _leads_out(within: Path, log: Path) -> bool:
    return not log.resolve().is_relative_to(within)
