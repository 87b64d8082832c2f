"""Counts one steady step of a framework that has its own training loop, or times its steps.

Phases are detected from outside of the framework. A step begins in the phase ``forward``. During torch's backward call,
the phase is ``backward``. After this call it is ``optimizer``, until the model's forward runs again.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from regbot_guest.axes import Axes
from regbot_guest.compile_watch import CompileWatch
from regbot_guest.count import (
    build_ledger,
    dispatch_method,
    measure_sequence_advance,
    plant_on_groups,
    read_sequence_numbers,
    refuse_compiled,
    refuse_unreliable_count,
)
from regbot_guest.crash import call_unchanged
from regbot_guest.module_tracker import ModuleTracker
from regbot_guest.observer import Observer
from regbot_guest.probe import profile_if_uncountable, skipped_steps, time_training, watch_replays
from regbot_guest.replaced import replaced
from regbot_guest.request import Request
from regbot_guest.stage import timed_stage
from regbot_guest.step_profile import StepSource
from regbot_guest.stopwatch import peak_resident_bytes
from regbot_guest.tally import StepCounter
from regbot_guest.uncounted_collectives import UncountedWatch

Scalar = str | int | float | bool | None


@dataclass(frozen=True)
class TrainingLoop:
    """A framework's training loop, ready to run on real ranks: processes that exchange data, unlike fake ranks."""

    models: Sequence[nn.Module]
    """Modules whose calls begin the phase forward."""
    axes: Axes
    groups: Sequence[dist.ProcessGroup]
    step: Callable[[], float | None]
    """Runs one whole step and returns the loss, or None if the framework has not logged it."""
    backends: Callable[[Observer], Mapping[str, Mapping[str, str]]]
    device: torch.device
    config: Mapping[str, Scalar]
    software: Mapping[str, str]
    patches: Sequence[str] = ()
    warnings: Sequence[str] = ()
    seconds: dict[str, float] = field(default_factory=dict)
    build_watch: CompileWatch | None = None
    """Was active while the loop was built, and sees later calls of code compiled there. None in timed runs."""


def count_loop(request: Request, loop: TrainingLoop, steps: int) -> dict[str, Any]:
    """Run ``steps`` steps on real ranks, count the last one, and return its part of the raw record. The ``loss`` is []
    if a loss is not finite. Raises ContractError if the count is not reliable.
    """
    compile_watch, uncounted_watch = CompileWatch(), UncountedWatch()
    losses: list[float] = []
    liveness: dict[str, Any] = {}
    numbers_before = None
    with compile_watch, ExitStack() as modes:
        tracker = modes.enter_context(ModuleTracker(*loop.models))
        observer = Observer(loop.axes, tracker)
        modes.enter_context(track_phases(loop.models, observer))
        for number in range(steps):
            is_last = number == steps - 1
            if is_last:
                liveness = plant_on_groups(observer, loop.groups, loop.device)
                numbers_before = read_sequence_numbers()
            observer.new_step(with_fingerprint=is_last)  # also forgets the planted collectives
            observer.phase = "forward"
            with timed_stage(f"step {number + 1}", loop.seconds), ExitStack() as counting:
                if is_last:
                    counting.enter_context(uncounted_watch)
                    counting.enter_context(observer)
                loss = loop.step()
            if loss is not None:
                losses.append(loss)
        if numbers_before is not None:  # None: the backend keeps no sequence numbers
            liveness.update(measure_sequence_advance(observer, numbers_before))
    # The build watch sees calls of code that was compiled while the loop was built.
    refuse_compiled(compile_watch, *([loop.build_watch] if loop.build_watch is not None else []))
    refuse_unreliable_count(request, uncounted_watch, observer)
    method = dispatch_method(observer, None, loop.patches)
    backends = loop.backends(observer)
    loss_warnings = [f"the loss of step {n + 1} is {loss}" for n, loss in enumerate(losses) if not math.isfinite(loss)]
    return {
        "ledger": build_ledger(
            request,
            loop.axes,
            observer,
            liveness,
            method,
            config=loop.config,
            software=loop.software,
            warnings=loop.warnings,
        ),
        "loss": [] if loss_warnings else losses,
        "backends": {name: dict(backend) for name, backend in backends.items()},
        "phases_s": loop.seconds,
        "peak_rss_bytes": peak_resident_bytes(),
        "warnings": loss_warnings,
    }


def time_loop(
    request: Request, loop: TrainingLoop, optimizers: Iterable[torch.optim.Optimizer], record: dict[str, Any]
) -> None:
    """Time ``request.steps`` steps, and count or profile further steps. The times are in ``record`` before the step is
    counted, so an error in the counted step does not lose them.
    """
    describe_replays = watch_replays()
    losses: list[float | None] = []
    timed_part = time_training(request, loop.device, lambda _: losses.append(loop.step()))
    skipped_by_optimizer = [skipped_steps(optimizer, request.steps) for optimizer in optimizers]
    record |= timed_part | {
        "loss": [loss if loss is not None and math.isfinite(loss) else None for loss in losses],
        # Number of steps without an update. If there are several optimizers, the one with most updates decides.
        "skipped_steps": min(skipped_by_optimizer, default=0),
        "peak_rss_bytes": peak_resident_bytes(),
    }
    source = StepSource(loop.step, loop.axes, loop.groups, loop.device, loop.config, loop.software)
    is_uncountable = profile_if_uncountable(request, source, describe_replays(), record)
    if not is_uncountable:
        counted_part = count_loop(request, loop, steps=1)
        record |= {name: counted_part[name] for name in ("ledger", "backends", "peak_rss_bytes")}


class _TrackedEngine:
    def __init__(self, engine: Any, observer: StepCounter) -> None:
        self._engine, self._observer = engine, observer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def run_backward(self, *args: Any, **kwargs: Any) -> Any:
        observer = self._observer
        # Activation checkpointing recomputes a part of the model during backward, and calls backward on this part.
        is_nested_call = observer.phase == "backward"
        observer.phase = "backward"
        try:
            return call_unchanged(self._engine.run_backward, args, kwargs)
        finally:
            observer.phase = "backward" if is_nested_call else "optimizer"


@contextmanager
def track_phases(models: Sequence[nn.Module], observer: StepCounter) -> Iterator[None]:
    """While active, set the observer's phase as steps run. The module's docstring defines the phases."""
    variable: Any = torch.autograd.Variable
    engine = variable._execution_engine

    def begin_forward(*_: Any) -> None:
        # In the phase backward, a forward is a recomputation and belongs to backward.
        if observer.phase == "optimizer":
            observer.phase = "forward"

    hooks = [model.register_forward_pre_hook(begin_forward) for model in models]
    tracked_engine = _TrackedEngine(engine, observer)  # every call of backward looks up the engine in ``variable``
    try:
        with replaced(variable, "_execution_engine", tracked_engine):
            yield
    finally:
        for hook in hooks:
            hook.remove()
