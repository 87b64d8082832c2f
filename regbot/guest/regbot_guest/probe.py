"""A timed run: the steps first, with nothing in them but clocks; then one counted step, which is not timed.

The counter costs more than a step, so it never runs in one that is timed. Code that was compiled or captured is not
counted here at all: under a dispatch mode it would run eagerly, as another program, and would stay eager.
"""

import math
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from regbot_guest.backends import backends
from regbot_guest.compiled import CompileWatch
from regbot_guest.count import (
    counted_by,
    ledger,
    plant,
    refuse_compiled,
    refuse_what_cannot_be_believed,
    sequence_advance,
    sequence_numbers,
)
from regbot_guest.harness import ContractError, Training, load_plugin
from regbot_guest.observer import Observer
from regbot_guest.request import Request
from regbot_guest.stopwatch import Stopwatch, peak_resident_bytes
from regbot_guest.tokens import RoutedTokens
from regbot_guest.unseen import UnseenWatch
from regbot_guest.where import Where
from regbot_guest.world import World, open_world

BEGUN, STEADY, ENDED = "steps.begun", "steps.steady", "steps.ended"
"""Files that rank 0 makes beside its record: before the first step, after the warm-up, after the last. The times that
the system gives them are the harness's own clock."""


def time_steps(request: Request) -> dict[str, Any]:
    """The part of the raw record that a timed run gives. ``request.steps`` are timed, one more is counted."""
    folder = Path(request.record).parent
    with open_world(request.world, request.ep, fake=False) as world:
        training = Training(request, load_plugin(request.entry), world)
        captured = watch_captures()
        # One tensor for all: a scalar kept from every step would sit between the blocks that the allocator wants back.
        losses = torch.full((request.steps,), math.nan, device=world.device)
        if world.size > 1:
            dist.barrier()  # a rank that is built earlier must not count its waiting for the others as a step
        with Stopwatch(world.device, request.slowdown_pct) as watch:
            _touch(folder / BEGUN, world)
            for number in range(request.steps):
                losses[number] = training.step(number)
                watch.step_ended()
                if number + 1 == request.warmup:
                    _touch(folder / STEADY, world)
            steps = watch.record()
            _touch(folder / ENDED, world)
        found = {
            "steps": steps,
            "clock": watch.clock.name,
            "loss": [value if math.isfinite(value) else None for value in losses.tolist()],
            "skipped_steps": skipped_steps(training.optimizer, request.steps),
        }
        if why := compiled_frames() or captured():
            found["warnings"] = [f"the step was not counted: {why}; counted eagerly it would be another program"]
        else:
            try:
                found |= _counted_step(request, training, world)
            except ContractError as error:  # what was timed is kept: it is shown, though it decides nothing
                found["refusal"] = {"kind": error.kind, "message": str(error)}
        return {**found, "peak_rss_bytes": peak_resident_bytes()}


def _counted_step(request: Request, training: Training, world: World) -> dict[str, Any]:
    """One more step under the counter. Raises ContractError where what it sees cannot be believed."""
    compiled, unseen = CompileWatch(), UnseenWatch()
    routed = RoutedTokens(request.geometry.experts, request.geometry.top_k, request.geometry.tokens)
    with compiled, unseen, Where(training.model) as where:
        observer = Observer(world.axes, where, routed=routed)
        liveness = plant(observer, world)
        before = sequence_numbers()
        observer.new_step()
        with observer:
            training.step(request.steps, lambda phase: setattr(observer, "phase", phase))
        if before is not None:
            liveness.update(sequence_advance(observer, before))
        refuse_compiled(compiled)
        refuse_what_cannot_be_believed(request, unseen, observer)
    if request.routing == "balanced" and request.mlp == "moe" and (unlike := routed.imbalance()):
        raise ContractError(
            "routing",
            f"balanced routing was asked for, but {unlike}; honour config['routing'] == 'balanced' in the router",
        )
    return {
        "ledger": ledger(request, world, observer, liveness, counted_by(observer, world, static=False)),
        "backends": backends(request, observer, world.device),
        "tokens_per_expert": routed.per_expert,
        "dropped_tokens": routed.dropped,
    }


def skipped_steps(optimizer: torch.optim.Optimizer, steps: int) -> int:
    """Steps that changed no parameter, by the optimizer's own count of its updates."""
    updates = [int(state["step"]) for state in optimizer.state.values() if "step" in state]
    return steps - max(updates, default=0)


def compiled_frames() -> str:
    """What dynamo has compiled in this process, '' if nothing."""
    if "torch._dynamo" not in sys.modules:
        return ""
    from torch._dynamo.utils import counters

    frames = sum(counters["frames"].values())
    return f"torch.compile compiled {frames} frames of it" if frames else ""


def watch_captures() -> Any:
    """Counts replays of CUDA graphs; the returned function says how many there were, '' if none."""
    replays = [0]
    original = torch.cuda.CUDAGraph.replay

    def replay(graph: Any) -> Any:
        replays[0] += 1
        return original(graph)

    setattr(torch.cuda.CUDAGraph, "replay", replay)  # noqa: B010 (typed as a method)
    return lambda: f"{replays[0]} CUDA graphs were replayed in it" if replays[0] else ""


def _touch(path: Path, world: World) -> None:
    if world.rank == 0:
        path.touch()
