"""A timed run: first the timed steps, with clocks as the only instrumentation, then one counted step that is not timed.

If code was compiled or captured in CUDA graphs, steps are profiled instead (``step_profile.py``): under the counter's
dispatch mode such code would run eagerly, as a different program, and stay eager afterwards.
"""

import gc
import itertools
import math
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from regbot_guest.backends import describe_backends
from regbot_guest.compile_watch import CompileWatch
from regbot_guest.contract import ContractError
from regbot_guest.count import (
    build_ledger,
    dispatch_method,
    list_mesh_groups,
    measure_sequence_advance,
    plant_collectives,
    read_sequence_numbers,
    refuse_compiled,
    refuse_unreliable_count,
)
from regbot_guest.harness import Training, load_plugin
from regbot_guest.module_tracker import ModuleTracker
from regbot_guest.observer import Observer
from regbot_guest.request import Request
from regbot_guest.step_profile import StepSource, profile_steps
from regbot_guest.stopwatch import Stopwatch, peak_resident_bytes
from regbot_guest.tokens import RoutedTokens
from regbot_guest.uncounted_collectives import UncountedWatch
from regbot_guest.world import World, open_requested_world

BEGUN_FILE, STEADY_FILE, ENDED_FILE = "steps.begun", "steps.steady", "steps.ended"
"""Files that rank 0 creates before the first step, after the warm-up, and after the last step. Their times are the
trusted side's own clock.
"""


def time_steps(request: Request, record: dict[str, Any]) -> None:
    """Time ``request.steps`` steps, and count or profile further steps. The times are in ``record`` before the step is
    counted, so an error in that step does not lose them. Raises ContractError.
    """
    with open_requested_world(request) as world:
        training = Training(request, load_plugin(request.entry), world)
        describe_replays = watch_replays()
        # All losses share one tensor. One scalar per step would fragment the allocator's memory.
        losses = torch.full((request.steps,), math.nan, device=world.device)

        def step(number: int) -> None:
            losses[number] = training.step(number)

        record |= time_training(request, world.device, step) | {
            "loss": [value if math.isfinite(value) else None for value in losses.tolist()],
            "skipped_steps": skipped_steps(training.optimizer, request.steps),
            "peak_rss_bytes": peak_resident_bytes(),
        }
        further_steps = itertools.count(request.steps)  # numbers of the steps after the timed ones
        source = StepSource(
            step=lambda: training.step(next(further_steps)),
            axes=world.axes,
            groups=list_mesh_groups(world),
            device=world.device,
            config=request.resolved(),
        )
        if not profile_if_uncountable(request, source, describe_replays(), record):
            record |= _count_step(request, training, world)


def profile_if_uncountable(request: Request, source: StepSource, replays: str, record: dict[str, Any]) -> bool:
    """Profile steps if none can be counted, or if the request asks for it. Return False if the caller has to count. A
    world of one rank has no collectives, so its steps are never profiled, and the record gets a warning.
    """
    obstacle = compiled_frames() or replays  # why no step can be counted, or ''
    reason = obstacle or request.profile_reason
    if dist.get_world_size() > 1 and reason:
        profile_steps(request, source, reason, record)
    elif obstacle:
        record["warnings"] = [
            f"the step was not counted: {obstacle}, and while regbot counts, it would run eagerly, as another program"
        ]
    is_profiled = "profile" in record  # profile_steps adds this field
    return is_profiled or bool(obstacle)


def time_training(request: Request, device: torch.device, step: Callable[[int], None]) -> dict[str, Any]:
    """Time ``request.steps`` calls of ``step(number)``. The host waits for the device before it creates a file, so that
    the times of the files are those of the steps.
    """
    folder, is_first_rank = Path(request.record).parent, dist.get_rank() == 0

    def create_file(name: str) -> None:
        if is_first_rank:
            (folder / name).touch()

    with _spare_existing_objects():
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
    return {"steps": steps, "clock": stopwatch.clock.name}


@contextmanager
def _spare_existing_objects() -> Iterator[None]:
    """A scan of a model's objects by the garbage collector takes a fraction of a second, and would slow an arbitrary
    step.
    """
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def _count_step(request: Request, training: Training, world: World) -> dict[str, Any]:
    compile_watch, uncounted_watch = CompileWatch(), UncountedWatch()
    routed_tokens = RoutedTokens(request.geometry.experts, request.geometry.top_k, request.geometry.tokens)
    with compile_watch, uncounted_watch, ModuleTracker(training.model) as tracker:
        observer = Observer(world.axes, tracker, routed_tokens=routed_tokens)
        liveness = plant_collectives(observer, world)
        numbers_before = read_sequence_numbers()
        observer.new_step()
        with observer:
            training.step(request.steps, lambda phase: setattr(observer, "phase", phase))
        if numbers_before is not None:  # None: the backend keeps no sequence numbers
            liveness.update(measure_sequence_advance(observer, numbers_before))
        refuse_compiled(compile_watch)
        refuse_unreliable_count(request, uncounted_watch, observer)
    must_be_balanced = request.routing == "balanced" and request.mlp == "moe"
    if must_be_balanced and (imbalance := routed_tokens.imbalance()):
        raise ContractError(
            "routing",
            f"balanced routing was requested, but {imbalance}; honour config['routing'] == 'balanced' in the router",
        )
    method = dispatch_method(observer, world.device.type)
    return {
        "ledger": build_ledger(request, world.axes, observer, liveness, method, config=request.resolved()),
        "backends": describe_backends(request, observer, world.device),
        "tokens_per_expert": routed_tokens.per_expert,
        "dropped_tokens": routed_tokens.dropped,
        "peak_rss_bytes": peak_resident_bytes(),
    }


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
