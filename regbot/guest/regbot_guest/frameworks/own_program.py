"""Runs a framework's own, unmodified training program on a paper GPU, and counts one step of the program.

regbot wraps only the function that makes one training step, and ends the program after the counted step.
"""

import argparse
import importlib
import re
import runpy
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch import nn

from regbot_guest.axes import Axes
from regbot_guest.compile_watch import CompileWatch
from regbot_guest.contract import ContractError, refuse_revision
from regbot_guest.count import build_ledger, list_large_groups, plant_collectives, refuse_uncounted
from regbot_guest.crash import call_unchanged
from regbot_guest.module_tracker import ModuleTracker
from regbot_guest.paper import libraries
from regbot_guest.paper.counter import PaperCounter
from regbot_guest.paper.device import Device
from regbot_guest.paper.groups import rank_zero_of
from regbot_guest.replaced import replaced
from regbot_guest.request import Request, Scalar
from regbot_guest.routing import make_expert_choice
from regbot_guest.static_trace import PAPER_PATCHES
from regbot_guest.stopwatch import peak_resident_bytes
from regbot_guest.training_loop import track_phases
from regbot_guest.uncounted_collectives import UncountedWatch
from regbot_guest.untraceable import Untraceable

STEPS = 2
"""Minimum number of steps. In the first one, optimizers create state, and overlapped collectives learn their order."""

BAD_COMMAND_LINE = 2

_FLAG = re.compile(r"--[A-Za-z][\w-]*")


@dataclass(frozen=True)
class TrainingProgram:
    """A training program, and the function in it that makes one training step."""

    start: Path | str
    """Path of a script, or the name of a module that is run as with ``python -m``."""
    arguments: Sequence[str]
    step: tuple[str, str]
    """Module of the step function, and its dotted name in this module, such as ``Trainer.train_step``."""
    models: Callable[[Sequence[Any], Mapping[str, Any]], Sequence[nn.Module]]
    """Returns the models, given the positional and the keyword arguments of the first call of the step function."""
    axes: Callable[[Sequence[Any], Mapping[str, Any]], Axes]
    """Returns the mesh axes, given the same arguments as ``models``."""
    describe: Callable[[PaperCounter], "ProgramDescription"]
    """Returns the framework's parts of the record. Called after the counted step, with its counts."""
    experts: int
    patches: Sequence[str] = ()
    regbot_flags: Collection[str] = ()
    """Flags in ``arguments`` that regbot sets, and not the user."""
    late_arguments: Callable[[], Sequence[str]] = tuple
    """Returns further arguments, which depend on the program's own code. Called when that code can be imported."""
    replacements: Callable[[], AbstractContextManager[None]] = nullcontext
    """Context that is active from before the first import of the program to its end."""

    @property
    def name(self) -> str:
        return self.start if isinstance(self.start, str) else self.start.name


@dataclass(frozen=True)
class ProgramDescription:
    """Parts of the record that only the framework's own module can read from the program."""

    config: Mapping[str, Scalar]
    software: Mapping[str, str]
    backends: Mapping[str, Mapping[str, str]]
    warnings: Sequence[str] = ()


class _StopProgram(BaseException):
    """Ends the program after the counted step. It is no Exception, so that no handler in the program catches it."""


def count_own_step(request: Request, device: Device, program: TrainingProgram) -> dict[str, Any]:
    """Run the program up to the counted step, and return this step's part of the raw record. Raises ContractError if no
    step can be counted, and Untraceable if the paper GPU has refused an operation.
    """
    torch.set_num_threads(1)  # traces run in parallel and must not compete for cores
    steps = max(STEPS, request.steps)
    device.begin_program()
    libraries.install(
        device, request.stand_ins, request.stand_ins_text
    )  # stand-ins for libraries with kernels of their own, such as deep_ep
    device.set_expert_choice(program.experts, make_expert_choice(request))
    # The paper GPU counts the collectives of every thread, so other threads need no watch.
    compile_watch, uncounted_watch = CompileWatch(), UncountedWatch(watch_other_threads=False)
    step_watch = _StepWatch(request, device, program, compile_watch, steps)
    with compile_watch, uncounted_watch, rank_zero_of(request.world), ExitStack() as stack:
        # Modules of the program may read ``sys.argv`` when they are imported, which is before the program runs.
        script_folder = [str(program.start.parent)] if isinstance(program.start, Path) else []
        stack.enter_context(replaced(sys, "path", [*script_folder, *sys.path]))
        stack.enter_context(replaced(sys, "argv", [str(program.start), *program.arguments]))
        stack.enter_context(program.replacements())
        stack.enter_context(_wrap_step_function(program, step_watch))
        try:
            sys.argv += program.late_arguments()
            _run_program(program)
        except _StopProgram:
            pass
        except (Exception, SystemExit) as error:
            if device.refusals:  # this error may be a consequence of the refusal
                raise Untraceable(device.refusals[0]) from error
            raise
        finally:
            step_watch.close()
        if step_watch.refusal is not None:
            raise step_watch.refusal
        if step_watch.record is None:
            raise ContractError(
                "config",
                f"{program.name} ended after {step_watch.number} training steps, but regbot counts step {steps}; let "
                "the program make more steps",
            )
        if device.refusals:  # the paper GPU raised an exception, which the program has caught
            raise Untraceable(device.refusals[0])
        refuse_uncounted(uncounted_watch)
        return step_watch.record


class _StepWatch:
    """After call number ``steps`` of the step function, makes the record of this call and ends the program."""

    def __init__(
        self, request: Request, device: Device, program: TrainingProgram, compile_watch: CompileWatch, steps: int
    ) -> None:
        self._request, self._device, self._program, self._steps = request, device, program, steps
        self._compile_watch = compile_watch
        self._stack = ExitStack()
        self._counter: PaperCounter | None = None
        self.number = 0
        self.record: dict[str, Any] | None = None
        self.refusal: ContractError | None = None
        """Why the counted step cannot be used. It is kept here, because the program might catch a raised exception."""

    def close(self) -> None:
        self._stack.close()

    def step(self, original: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        self.number += 1
        if self._counter is None:
            self._counter = self._make_counter(args, kwargs)
        is_last = self.number == self._steps
        if is_last:
            liveness = plant_collectives(self._counter, list_large_groups(), torch.device("cuda", 0))
        self._counter.new_step(with_fingerprint=is_last)  # also forgets the planted collectives
        self._counter.phase = "forward"
        with self._counter:
            result = call_unchanged(original, args, kwargs)
        if not is_last:
            return result
        self._counter.read_operators()
        try:
            self.record = self._make_record(self._counter, liveness)
        except ContractError as error:
            self.refusal = error
        raise _StopProgram

    def _make_counter(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> PaperCounter:
        models = [unwrap(model) for model in self._program.models(args, kwargs)]
        tracker = self._stack.enter_context(ModuleTracker(*models))
        counter = PaperCounter(self._device, self._program.axes(args, kwargs), tracker)
        self._stack.enter_context(track_phases(models, counter))
        return counter

    def _make_record(self, counter: PaperCounter, liveness: Mapping[str, Any]) -> dict[str, Any]:
        description = self._program.describe(counter)
        return {
            "ledger": build_ledger(
                self._request,
                counter,
                liveness,
                device="cuda",
                config=description.config,
                software=description.software,
                patches=[
                    *PAPER_PATCHES,
                    *self._program.patches,
                    *libraries.describe_imported(),
                    *libraries.describe_declared(),
                ],
                guesses=self._compile_watch.guesses() | counter.guesses(),
                warnings=description.warnings,
            ),
            "backends": {name: dict(backend) for name, backend in description.backends.items()},
            "peak_rss_bytes": peak_resident_bytes(),
        }


def unwrap(model: nn.Module) -> nn.Module:
    """Return the model inside wrappers such as DistributedDataParallel."""
    while isinstance(inner := getattr(model, "module", None), nn.Module):
        model = inner
    return model


def name_axes(names: Mapping[str, str]) -> Axes:
    """Return the axes of this rank's groups of several ranks. ``names`` maps descriptions of groups to axes; joint
    names such as ``etp_ep`` must come after those of one axis.
    """
    axes = Axes()
    sizes: dict[str, int] = {}
    for description, axis in names.items():
        for group in list_large_groups():
            if group.group_desc != description:
                continue
            # Leave out axes of one rank: ``etp_ep`` becomes ``ep`` if ``etp`` has one rank.
            wide_axes = [part for part in axis.split("_") if sizes.get(part) != 1]
            name = "_".join(wide_axes) or axis if "_" in axis else axis
            registered_axis = axes.as_record().get(name)
            # Two descriptions can get the same name. If their groups have different ranks, the first keeps the name.
            if registered_axis is None or registered_axis["ranks"] == dist.get_process_group_ranks(group):
                axes.add(name, group)
            sizes.setdefault(axis, group.size())
        sizes.setdefault(axis, 1)  # no group of this axis has several ranks
    return axes


def _wrap_step_function(program: TrainingProgram, step_watch: _StepWatch) -> AbstractContextManager[None]:
    module_name, dotted_name = program.step
    *parents, name = dotted_name.split(".")
    try:
        owner: Any = importlib.import_module(module_name)
    except ImportError as error:
        missing_module = getattr(error, "name", None) or ""
        # If the step's own module or its package is missing, the revision has no such module. Otherwise the module
        # imports a package that is not installed.
        is_own_module = f"{module_name}.".startswith(f"{missing_module}.")
        if not is_own_module:
            raise ContractError(
                "no_framework",
                f"{program.name} cannot be started: {error}; install what it needs in {sys.executable}, the "
                "workload's 'python'",
            ) from error
        raise _unknown_revision(module_name, dotted_name, error) from error
    try:
        for parent in parents:
            owner = getattr(owner, parent)
        original = getattr(owner, name)
    except AttributeError as error:
        raise _unknown_revision(module_name, dotted_name, error) from error

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return step_watch.step(original, args, kwargs)

    return replaced(owner, name, wrapper)


def _unknown_revision(module: str, name: str, error: Exception) -> ContractError:
    return refuse_revision(
        f"there is no {module}.{name}, which makes a training step in the "
        f"revisions that it knows ({error}). Update regbot, or compare revisions that have it",
    )


def _run_program(program: TrainingProgram) -> None:
    errors: list[str] = []
    original = argparse.ArgumentParser.error

    def record_error(parser: argparse.ArgumentParser, message: str) -> NoReturn:
        errors.append(message)
        call_unchanged(original, (parser, message), {})
        raise AssertionError("argparse returned from an error")

    with replaced(argparse.ArgumentParser, "error", record_error):
        try:
            if isinstance(program.start, str):
                runpy.run_module(program.start, run_name="__main__", alter_sys=True)
            else:
                runpy.run_path(str(program.start), run_name="__main__")
        except SystemExit as error:
            if error.code == BAD_COMMAND_LINE:
                raise _explain_command_line(program, errors) from error
            if error.code not in (None, 0):
                raise


def _explain_command_line(program: TrainingProgram, errors: Sequence[str]) -> ContractError:
    """If regbot has set the flag that the program does not accept, regbot does not support the revision."""
    message = errors[-1] if errors else "its last lines of output say why"
    flag = next((flag for flag in _FLAG.findall(message) if flag in program.regbot_flags), None)
    if flag is not None:
        return refuse_revision(f"{program.name} does not accept {flag}, which regbot sets, as before: {message}")
    return ContractError("config", f"{program.name} refused its command line: {message}")
