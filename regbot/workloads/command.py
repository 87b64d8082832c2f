"""Adapter ``command``: one timed run of a workload that is a command. Step times are read from the command's log.

No code of regbot runs inside the process. So it is unknown which collectives, dispatcher and code ran, and what each
rank did. The only check of the log's times is that they cannot exceed the engine's wall clock.

Placeholders in braces are replaced: those of regbot (``OWN_PLACEHOLDERS``), and every key of ``config``. A key without
a placeholder is refused, because its value would have no effect, and both arms would run the same.
"""

import math
import re
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from regbot.engines import EngineError, Launch, LaunchResult, Seat, clean_environment
from regbot.engines.guest import GUEST_ENVIRONMENT, describe_exit, write_request
from regbot.records.files import describe_validation_error
from regbot.records.run import Arm, Outcome, RankSteps, Run, Timing
from regbot.records.text.clip import clip_message
from regbot.records.text.printable import printable
from regbot.workloads.guest import (
    MAX_FOLDER_IN_RECORDS,
    Checkout,
    Scratch,
    engine_outcome,
    engine_warnings,
    interpreter,
)
from regbot.workloads.guest_file import GuestFileError, read_step_log
from regbot.workloads.logs import StepLog
from regbot.workloads.ranks import CLOCK_TOLERANCE_S
from regbot.workloads.task import Task
from regbot.workloads.timed import RunSpec, add_seat, bare_timed_run, outcome_of_error

LOG_RANK = "log"

TRUNCATED = (
    "printed more than is kept, so steps in the middle of its log are lost; print less, raise local.max_output_mb, or "
    "write the step log to {log}"
)

OWN_PLACEHOLDERS = {
    "steps": "set session.steps and session.warmup",
    "log": "write {log} in the command, or set log of the workload to a file in the checkout",
    "python": "set python of the workload, or override python",
    "dispatcher": "set dispatcher of the workload, or override dispatcher",
    "slowdown_pct": "it is 0 except where 'regbot calibrate --inject' sets it",
}
"""Placeholders that regbot fills itself, each with advice how to set its value."""

_PLACEHOLDER = re.compile(r"\{([A-Za-z_][A-Za-z0-9_.]*)\}")


def time_command(task: Task, spec: RunSpec, checkout: Checkout, seat: Seat, scratch: Scratch) -> Run:
    """Launch the command of ``task`` once in ``checkout``. Whatever the command does, this function returns a run.

    The step log is the workload's ``log`` in the checkout, if that is set. Otherwise it is the file that ``{log}``
    stands for, if the command has this placeholder. Otherwise it is the output of the command.
    """
    workload, arm, root = task.workload, checkout.arm, checkout.root
    placeholder_log = scratch.folder / "record" / "steps.log"
    output_log = scratch.folder / "output.log"
    command, fault = fill_command(task, root, spec, placeholder_log)
    write_request(scratch.folder, {"command": command})  # this also removes files of an earlier run
    log = placeholder_log if _has_placeholder(task, "log") else output_log
    folder_of_log = scratch.folder.resolve()
    if workload.log and not fault:
        log, folder_of_log = root / workload.log, root.resolve()
        fault = _remove_earlier_log(folder_of_log, log, workload.log)
    if fault:
        return bare_timed_run(task, arm, "refused", fault, spec)
    launch = Launch(
        command=command,
        cwd=root,
        env=clean_environment({**checkout.environment, **GUEST_ENVIRONMENT, **workload.environment}),
        log=output_log,
        record_dir=placeholder_log.parent,
        timeout_s=task.workload.timeout_min * 60,
        max_output_bytes=scratch.limits.max_output_bytes,
        max_dir_bytes=MAX_FOLDER_IN_RECORDS * scratch.limits.max_record_bytes,
        writable=(root, *checkout.caches),  # a program may write to its working folder
    )
    try:
        result = seat.run(launch)
    except EngineError as error:
        return add_seat(seat, bare_timed_run(task, arm, outcome_of_error(error), str(error), spec))
    is_truncated = log == output_log and result.output_truncated
    log_file = LogFile(log, within=folder_of_log, whole=not is_truncated)
    return add_seat(seat, build_run(task, spec, arm, result, log_file), result)


def fill_command(task: Task, root: Path, spec: RunSpec, log: Path) -> tuple[tuple[str, ...], str]:
    """Return the command with its placeholders filled, and why it cannot run ('' if it can). ``log`` is the path that
    ``{log}`` stands for. The command is () if it cannot run.
    """
    workload = task.workload
    key = f"workloads.{task.workload_name}"
    for name, advice in OWN_PLACEHOLDERS.items():
        if name in workload.config:
            return (), f"{key}.config.{name}: regbot fills {{{name}}} itself, so the value would be lost; {advice}"
    if workload.routing != "balanced":
        return (), f"{key}.routing = {workload.routing!r} has no effect on a command; set a key of config instead"
    if workload.log and _has_placeholder(task, "log"):
        return (), f"{key}.log names a file of the checkout, and the command takes {{log}}, another file; keep one"
    user_values = {**workload.config, **({"dispatcher": workload.dispatcher} if workload.dispatcher else {})}
    for name in user_values:
        if not _has_placeholder(task, name):
            return (), (
                f"{key}.command has no place for {name!r}, so every value of it would run the same; "
                f"write {{{name}}} where the command takes it"
            )
    if _has_placeholder(task, "dispatcher") and not workload.dispatcher:
        return (), f"{key}.command takes {{dispatcher}}, and none is set; set {key}.dispatcher"
    if spec.slowdown_pct and not _has_placeholder(task, "slowdown_pct"):
        return (), (
            f"{key}.command has no place for {{slowdown_pct}}, so no slowdown can be injected; write it where the "
            "program takes the percentage by which each of its steps is to last longer, or leave out --inject"
        )
    values = {
        **user_values,
        "steps": spec.steps,
        "log": log,
        "python": interpreter(task, root),
        "slowdown_pct": f"{spec.slowdown_pct:g}",
    }
    texts = {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in values.items()}
    command = [_PLACEHOLDER.sub(lambda match: texts.get(match[1], match[0]), argument) for argument in workload.command]
    return tuple(command), ""


@dataclass(frozen=True)
class LogFile:
    """The step log of a command. The command wrote it, so its content is untrusted."""

    path: Path
    within: Path
    """The folder that must contain the log, with links resolved."""
    whole: bool


def build_run(task: Task, spec: RunSpec, arm: Arm, result: LaunchResult, log: LogFile) -> Run:
    """Build the run from the launch's result and the step log. Steps after the first ``spec.steps`` do not count."""
    outcome, reason, step_log = _read_step_log(task, result, log)
    warnings = engine_warnings(result)
    timing: Timing | None = None
    losses: list[float | None] = []
    if step_log is not None:
        warnings += step_log.warnings
        outcome, reason = _judge_steps(step_log, spec.steps, spec.cut, result.wall_s)
        counted = step_log.steps[: spec.steps]
        if len(step_log.steps) > spec.steps:
            warnings.append(f"the log has {len(step_log.steps)} steps; only the {spec.steps} requested ones count")
        logged_losses = [step.loss for step in counted if step.loss is not None]
        if len(logged_losses) == len(counted):
            losses = [loss if math.isfinite(loss) else None for loss in logged_losses]
        seconds = [step.seconds for step in counted if step.seconds is not None]
        if outcome in ("ok", "short", "diverged"):  # with any other outcome, the log's step times are not used
            timing = _build_timing(step_log, seconds, spec.steps, spec.cut)
    run = bare_timed_run(task, arm, outcome, reason, spec).model_copy(
        update={
            "exit_code": result.exit_code,
            "wall_s": result.wall_s,
            "log_tail": "" if outcome == "ok" else result.log_tail,
            "warnings": [clip_message(printable(warning)) for warning in warnings],
        }
    )
    try:
        complete_run = run.model_copy(update={"timing": timing, "loss": losses})  # a copy is not validated
        return Run.model_validate(complete_run.model_dump(by_alias=True))
    except ValidationError as error:
        fault = f"{describe_validation_error(error)}; the run was not used"
        return run.model_copy(update={"outcome": "bad_record", "reason": clip_message(fault)})


def _read_step_log(task: Task, result: LaunchResult, log: LogFile) -> tuple[Outcome, str, StepLog | None]:
    if early_end := engine_outcome(result, task):
        return (*early_end, None)
    if result.exit_code != 0:
        return "crashed", f"{describe_exit(result.exit_code)}; see the end of its log", None
    if not log.whole:
        return "bad_record", TRUNCATED, None
    path = log.path
    try:  # check for links again, because the command could replace the log, or a folder above it, by a link
        if not path.is_file() or path.is_symlink():
            return "no_record", f"ended without an error, and left no step log {path.name!r}", None
        if _leads_out(log.within, path):
            return "bad_record", f"left a link that leads out of the checkout where its step log {path.name!r} is", None
    except OSError as error:
        return "no_record", f"its step log {path.name!r} cannot be read: {error.strerror}", None
    try:
        return "ok", "", read_step_log(path, task.workload.log_format, task.workload.tokens_per_step)
    except GuestFileError as error:
        return "no_record", clip_message(printable(str(error))), None


def _judge_steps(step_log: StepLog, requested: int, cut: int, wall_s: float) -> tuple[Outcome, str]:
    """Return "ok" if the first ``requested`` steps of the log are training steps with plausible times.

    The first ``cut`` steps are warm-up, so implausible times in them are allowed. The process ran for ``wall_s``
    seconds by the engine's clock.
    """
    counted = step_log.steps[:requested]
    if step_log.too_coarse:
        return "bad_record", f"its log's {step_log.too_coarse}"
    if step_log.steps_per_value != 1:
        return "bad_record", "its log has means of several steps and no step times; log every step"
    if len(counted) < requested:
        return "short", f"ended without an error after {len(counted)} of {requested} steps"
    if counted[-1].number - counted[0].number != requested - 1:
        return "bad_record", f"steps are missing in its log between {counted[0].number} and {counted[-1].number}"
    if untimed := [step.number for step in counted if step.seconds is None]:
        return "bad_record", (
            f"its log has no time of step {untimed[0]}; time every step, and do not profile a timed run"
        )
    if implausible := [step.number for step in counted[cut:] if step.number in step_log.suspect]:
        return "bad_record", f"the log's time of step {implausible[0]} is not a step time; {step_log.warnings[0]}"
    claimed_s = sum(step.seconds or 0.0 for step in step_log.steps)
    if claimed_s > wall_s + CLOCK_TOLERANCE_S:
        return "bad_record", (
            f"claims {claimed_s:.4g} s for its steps, and the process lived {wall_s:.4g} s: its log is of another run, "
            "or its clock is wrong"
        )
    if not_finite := sum(step.nan for step in counted):
        first = next(number for number, step in enumerate(counted, 1) if step.nan)
        return "diverged", f"the loss is not finite in {not_finite} of {requested} steps, first in step {first}"
    if skipped := sum(step.skipped for step in counted):
        return "diverged", f"the optimizer skipped {skipped} of {requested} steps: weights did not change in them"
    return "ok", ""


def _build_timing(step_log: StepLog, seconds: list[float], requested: int, cut: int) -> Timing | None:
    if not seconds:
        return None
    cut = min(cut, requested)
    return Timing(
        requested_steps=requested,
        cut=cut,
        method=f"the first {cut} steps",
        clock="log",
        step_s=seconds,
        ranks={LOG_RANK: RankSteps(step_s=seconds, cpu_s=[], wait_s=[], memory_bytes=[], peak_bytes=0)},
        memory_peak_bytes=0,
        memory_slope_bytes=0.0,
        skipped_steps=sum(step.skipped for step in step_log.steps[:requested]),
    )


def _has_placeholder(task: Task, name: str) -> bool:
    return any(name in _PLACEHOLDER.findall(argument) for argument in task.workload.command)


def _remove_earlier_log(within: Path, log: Path, setting: str) -> str:
    """Remove the log of an earlier run from the checkout, so that it is not taken for the log of the next run. Return
    why it cannot be removed, or ''.
    """
    try:
        if log.is_symlink() or _leads_out(within, log):
            return f"log = {setting!r} leads out of the checkout; write a path relative to its root"
        if log.is_dir():
            return f"log = {setting!r} is a folder of the checkout; name a file"
        log.unlink(missing_ok=True)
    except (OSError, ValueError, RuntimeError) as error:  # for example a name too long, a NUL, or a loop of links
        reason = error.strerror if isinstance(error, OSError) else str(error)
        return f"log = {setting!r} cannot be a file of the checkout: {reason}; write a path relative to its root"
    return ""


def _leads_out(within: Path, log: Path) -> bool:
    return not log.resolve().is_relative_to(within)
