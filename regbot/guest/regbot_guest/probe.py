"""A timed run: first the timed steps, with clocks as the only instrumentation, then one counted step that is not timed.

If code was compiled or captured in CUDA graphs, steps are profiled instead (``step_profile.py``): under the counter's
dispatch mode such code would run eagerly, as a different program, and stay eager afterwards.
"""

import gc
import itertools
import math
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from regbot_guest.backends import describe_backends
from regbot_guest.compile_watch import CompileWatch
from regbot_guest.count import (
    build_ledger,
    list_mesh_groups,
    plant_collectives,
    read_sequence_numbers,
    refuse_compiled,
    refuse_unreliable_count,
    sum_advances,
)
from regbot_guest.harness import Training, load_plugin
from regbot_guest.module_tracker import ModuleTracker
from regbot_guest.observer import Observer
from regbot_guest.request import Request
from regbot_guest.step_profile import profile_steps
from regbot_guest.stopwatch import Stopwatch, peak_resident_bytes
from regbot_guest.tokens import RoutedTokens
from regbot_guest.training_loop import TrainingLoop, track_phases
from regbot_guest.uncounted_collectives import UncountedWatch
from regbot_guest.world import open_requested_world

BEGUN_FILE, STEADY_FILE, ENDED_FILE = "steps.begun", "steps.steady", "steps.ended"
"""Files that rank 0 creates before the first step, after the warm-up, and after the last step. Their times are the
trusted side's own clock.
"""


def time_steps(request: Request, record: dict[str, Any]) -> None:
    """Time regbot's own model, or the user's layer in it, as in ``time_loop``."""
    with open_requested_world(request) as world:
        training = Training(request, load_plugin(request.entry), world)
        numbers = itertools.count()  # each step has a number, which selects its batch
        geometry = request.geometry
        loop = TrainingLoop(
            models=[training.model],
            axes=world.axes,
            groups=list_mesh_groups(world),
            step=lambda: training.step(next(numbers)),
            backends=lambda observer: describe_backends(request, observer, world.device),
            device=world.device,
            config=request.resolved(),
            routed_tokens=RoutedTokens(geometry.experts, geometry.top_k, geometry.tokens),
        )
        time_loop(request, loop, [training.optimizer], record)


def time_loop(
    request: Request, loop: TrainingLoop, optimizers: Iterable[torch.optim.Optimizer], record: dict[str, Any]
) -> None:
    """Time ``request.steps`` steps, and count or profile further steps. The times are in ``record`` before the step is
    counted, so an error in that step does not lose them. Raises ContractError.

    A world of one rank has no collectives, so its steps are never profiled, and the record gets a warning.
    """
    describe_replays = watch_replays()
    # All losses share one tensor. One scalar per step would fragment the allocator's memory.
    losses = torch.full((request.steps,), math.nan, device=loop.device, dtype=torch.float64)

    def step(number: int) -> None:
        loss = loop.step()
        if loss is not None:
            losses[number] = loss

    record |= time_training(request, loop.device, step)
    record |= {
        "loss": [value if math.isfinite(value) else None for value in losses.tolist()],
        # Number of steps without an update. If there are several optimizers, the one with most updates decides.
        "skipped_steps": min((skipped_steps(optimizer, request.steps) for optimizer in optimizers), default=0),
        "peak_rss_bytes": peak_resident_bytes(),
    }
    obstacle = compiled_frames() or describe_replays()  # why no step can be counted, or ''
    reason = obstacle or request.profile_reason
    if dist.get_world_size() > 1 and reason:
        profile_steps(request, loop, reason, record)
    elif obstacle:
        record["warnings"] = [
            f"the step was not counted: {obstacle}, and while regbot counts, it would run eagerly, as another program"
        ]
    else:
        record |= _count_step(request, loop)


def time_training(request: Request, device: torch.device, step: Callable[[int], None]) -> dict[str, Any]:
    """Time ``request.steps`` calls of ``step(number)``. The host waits for the device before it creates a file, so that
    the times of the files are those of the steps.
    """
    folder, is_first_rank = Path(request.record).parent, dist.get_rank() == 0

    def create_file(name: str) -> None:
        if is_first_rank:
            (folder / name).touch()

    # A scan of a model's objects by the garbage collector takes a fraction of a second, and would slow some step.
    gc.collect()
    gc.freeze()
    try:
        if dist.get_world_size() > 1:
            dist.barrier()  # a rank that has finished building must not wait for others inside its first step
        with Stopwatch(device, request.slowdown_pct) as stopwatch:
            create_file(BEGUN_FILE)
            for number in range(request.steps):
                step(number)
                stopwatch.end_step()
                if number + 1 == request.warmup:
                    stopwatch.clock.settle()
                    create_file(STEADY_FILE)
            steps = stopwatch.record()
            create_file(ENDED_FILE)
    finally:
        gc.unfreeze()
    return {"steps": steps, "clock": stopwatch.clock.name}


def _count_step(request: Request, loop: TrainingLoop) -> dict[str, Any]:
    compile_watch, uncounted_watch = CompileWatch(), UncountedWatch()
    with compile_watch, uncounted_watch, ModuleTracker(*loop.models) as tracker:
        observer = Observer(loop.axes, tracker, routed_tokens=loop.routed_tokens)
        liveness = plant_collectives(observer, loop.groups, loop.device)
        numbers_before = read_sequence_numbers()
        observer.new_step()
        observer.phase = "forward"
        with track_phases(loop.models, observer), observer:
            loop.step()
    if numbers_before is not None:  # None: the backend keeps no sequence numbers
        # The backend's and the observer's number of collectives are equal if none was missed.
        liveness |= {"sequence_advance": sum_advances(numbers_before), "sequence_counted": observer.tally.total}
    refuse_compiled(compile_watch)
    refuse_unreliable_count(request, uncounted_watch, observer)
    counted: dict[str, Any] = {
        "ledger": build_ledger(
            request,
            observer,
            liveness,
            device=loop.device.type,
            config=loop.config,
            software=loop.software,
            patches=loop.patches,
            warnings=loop.warnings,
        ),
        "backends": {name: dict(backend) for name, backend in loop.backends(observer).items()},
        "peak_rss_bytes": peak_resident_bytes(),
    }
    if loop.routed_tokens is not None:
        counted["tokens_per_expert"] = loop.routed_tokens.per_expert
        counted["dropped_tokens"] = loop.routed_tokens.dropped
    return counted


def skipped_steps(optimizer: torch.optim.Optimizer, steps: int) -> int:
    """Return how many of ``steps`` steps changed no parameter. The optimizer counts the updates of each parameter."""
    updates_by_parameter = [int(state["step"]) for state in optimizer.state.values() if "step" in state]
    return steps - max(updates_by_parameter, default=0)


def compiled_frames() -> str:
    """Return text such as 'torch.compile compiled 3 frames of it', or '' if this process has compiled nothing."""
    if "torch._dynamo" not in sys.modules:
        return ""
    from torch._dynamo.utils import counters

    frames = sum(counters["frames"].values())
    return f"torch.compile compiled {frames} frames of it" if frames else ""


def watch_replays() -> Callable[[], str]:
    """Start counting replays of CUDA graphs. Return a function that returns text such as 'it replayed 3 CUDA graphs',
    or ''.
    """
    num_replays = 0
    original = torch.cuda.CUDAGraph.replay

    def replay(graph: Any) -> Any:
        nonlocal num_replays
        num_replays += 1
        return original(graph)

    setattr(torch.cuda.CUDAGraph, "replay", replay)  # noqa: B010 (mypy rejects an assignment)
    return lambda: f"it replayed {num_replays} CUDA graphs" if num_replays else ""
