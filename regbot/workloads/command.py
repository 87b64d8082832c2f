"""Adapter ``command``: one timed run of a workload that is a command. Step times are read from the command's log.

No code of regbot runs inside the process. So it is unknown which collectives, dispatcher and code ran, and what each
rank did. The only check of the log's times is that they cannot exceed the engine's wall clock.

Placeholders in braces are replaced: those of regbot (``OWN_PLACEHOLDERS``), and every key of ``config``. A key without
a placeholder is refused, because its value would have no effect, and both arms would run the same.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from regbot.engines import LaunchResult, Seat
from regbot.engines.guest import GUEST_ENVIRONMENT, describe_exit, write_request
from regbot.records.run import Arm, Outcome, RankSteps, Run, Timing
from regbot.records.text.clip import clip_message
from regbot.records.text.printable import printable
from regbot.workloads.guest import Checkout, Scratch, engine_outcome, interpreter, make_launch, observe
from regbot.workloads.guest_file import GuestFileError, read_step_log
from regbot.workloads.logs import StepLog
from regbot.workloads.logs.step_log import LogStep
from regbot.workloads.ranks import CLOCK_TOLERANCE_S
from regbot.workloads.task import Task
from regbot.workloads.timed import RunSpec, bare_timed_run, run_in_seat

LOG_RANK = "log"

TRUNCATED = "printed too much, so steps are lost; print less, raise local.max_output_mb, or write the log to {log}"

OWN_PLACEHOLDERS = ("steps", "log", "python", "dispatcher", "slowdown_pct")
"""Placeholders that regbot fills itself."""

_PLACEHOLDER = re.compile(r"\{([A-Za-z_][A-Za-z0-9_.]*)\}")


def time_command(task: Task, spec: RunSpec, checkout: Checkout, seat: Seat, scratch: Scratch) -> Run:
    """Launch the command of ``task`` once in ``checkout``. Whatever the command does, this function returns a run.

    The step log is the file that ``{log}`` stands for, if the command has this placeholder. Otherwise it is the output
    of the command.
    """
    workload, arm, root = task.workload, checkout.arm, checkout.root
    placeholder_log = scratch.folder / "record" / "steps.log"
    command, fault = fill_command(task, root, spec, placeholder_log)
    if fault:
        return bare_timed_run(task, arm, "refused", fault, spec)
    write_request(scratch.folder, {"command": command})  # this also removes files of an earlier run
    environment = {**GUEST_ENVIRONMENT, **workload.environment}
    launch = make_launch(task, checkout, scratch, command, environment)
    launch = replace(launch, writable=(root, *checkout.caches))  # a program may write to its working folder
    log = placeholder_log if _has_placeholder(task, "log") else launch.log
    return run_in_seat(task, spec, arm, seat, launch, lambda result: build_run(task, spec, arm, result, log))


def fill_command(task: Task, root: Path, spec: RunSpec, log: Path) -> tuple[tuple[str, ...], str]:
    """Return the command with its placeholders filled, and why it cannot run ('' if it can). ``log`` is the path that
    ``{log}`` stands for. The command is () if it cannot run.
    """
    workload = task.workload
    key = f"workloads.{task.workload_name}"
    for name in OWN_PLACEHOLDERS:
        if name in workload.config:
            return (), f"{key}.config.{name}: regbot fills {{{name}}} itself; remove the key, which has no effect"
    if workload.routing != "balanced":
        return (), f"{key}.routing = {workload.routing!r} has no effect on a command; set a key of config instead"
    user_values = {**workload.config, **({"dispatcher": workload.dispatcher} if workload.dispatcher else {})}
    for name in user_values:
        if not _has_placeholder(task, name):
            problem = f"{key}.command has no place for {name!r}, so every value of it would run the same"
            return (), f"{problem}; write {{{name}}} where the command takes it"
    if _has_placeholder(task, "dispatcher") and not workload.dispatcher:
        return (), f"{key}.command takes {{dispatcher}}, and none is set; set {key}.dispatcher"
    if spec.slowdown_pct and not _has_placeholder(task, "slowdown_pct"):
        advice = "write it where the program takes the percentage by which each of its steps is to last longer"
        return (), f"{key}.command has no place for {{slowdown_pct}}, so no slowdown can be injected; {advice}"
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


def build_run(task: Task, spec: RunSpec, arm: Arm, result: LaunchResult, log: Path) -> Run:
    """Build the run from the launch's result and the step log, which is untrusted. Steps after the first ``spec.steps``
    do not count.
    """
    outcome, reason, step_log = _read_step_log(task, result, log)
    warnings: list[str] = []
    fields: dict[str, Any] = {}
    if step_log is not None:
        warnings += step_log.warnings
        outcome, reason = _judge_steps(step_log, spec.steps, spec.cut, result.wall_s)
        counted = step_log.steps[: spec.steps]
        if len(step_log.steps) > spec.steps:
            warnings.append(f"the log has {len(step_log.steps)} steps; only the {spec.steps} requested ones count")
        logged_losses = [step.loss for step in counted if step.loss is not None]
        if len(logged_losses) == len(counted):
            fields["loss"] = [loss if math.isfinite(loss) else None for loss in logged_losses]
        if outcome in ("ok", "short", "diverged"):  # with any other outcome, the log's step times are not used
            fields["timing"] = _build_timing(counted, spec.steps, spec.cut)
    fields |= observe(result, outcome)
    fields["warnings"] += [clip_message(printable(warning)) for warning in warnings]
    run = bare_timed_run(task, arm, outcome, reason, spec, **fields)
    return Run.model_validate(run.model_dump(by_alias=True))  # the log is untrusted


def _read_step_log(task: Task, result: LaunchResult, log: Path) -> tuple[Outcome, str, StepLog | None]:
    if early_end := engine_outcome(result, task):
        return (*early_end, None)
    if result.exit_code != 0:
        return "crashed", f"{describe_exit(result.exit_code)}; see the end of its log", None
    if result.output_truncated and not _has_placeholder(task, "log"):
        return "bad_record", TRUNCATED, None
    if not log.is_file() or log.is_symlink():
        return "no_record", f"ended without an error, and left no step log {log.name!r}", None
    try:
        return "ok", "", read_step_log(log, task.workload.log_format, task.workload.tokens_per_step)
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
        return "bad_record", f"its log has no time of step {untimed[0]}; time every step, without a profiler"
    if implausible := [step.number for step in counted[cut:] if step.number in step_log.suspect]:
        return "bad_record", f"the log's time of step {implausible[0]} is not a step time; {step_log.warnings[0]}"
    claimed_s = sum(step.seconds or 0.0 for step in step_log.steps)
    if claimed_s > wall_s + CLOCK_TOLERANCE_S:
        claim = f"claims {claimed_s:.4g} s for its steps, and the process lived {wall_s:.4g} s"
        return "bad_record", f"{claim}: its log is of another run, or its clock is wrong"
    if not_finite := sum(step.nan for step in counted):
        first = next(number for number, step in enumerate(counted, 1) if step.nan)
        return "diverged", f"the loss is not finite in {not_finite} of {requested} steps, first in step {first}"
    if skipped := sum(step.skipped for step in counted):
        return "diverged", f"the optimizer skipped {skipped} of {requested} steps: weights did not change in them"
    return "ok", ""


def _build_timing(counted: Sequence[LogStep], requested: int, cut: int) -> Timing | None:
    seconds = [step.seconds for step in counted if step.seconds is not None]
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
        skipped_steps=sum(step.skipped for step in counted),
    )


def _has_placeholder(task: Task, name: str) -> bool:
    return any(name in _PLACEHOLDER.findall(argument) for argument in task.workload.command)
