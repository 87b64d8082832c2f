"""Timing a framework's own training step: its steps first, with clocks around them and nothing else; then one counted.

The same account as ``probe`` gives of regbot's own loop. What the framework does around a step to log it (reducing the
loss, reading it) belongs to its step and is timed with it.
"""

import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from regbot_guest.frameworks.stepping import Loop, count
from regbot_guest.harness import ContractError
from regbot_guest.probe import BEGUN, ENDED, STEADY, compiled_frames, skipped_steps, watch_captures
from regbot_guest.request import Request
from regbot_guest.stopwatch import Stopwatch, peak_resident_bytes


def time_loop(request: Request, loop: Loop, optimizers: Iterable[torch.optim.Optimizer]) -> dict[str, Any]:
    """The part of the raw record that a timed run gives. ``request.steps`` are timed, one more is counted."""
    assert loop.device is not None
    folder, first = Path(request.record).parent, dist.get_rank() == 0
    captured = watch_captures()
    losses: list[float | None] = []
    if dist.get_world_size() > 1:
        dist.barrier()  # a rank that is built earlier must not count its waiting for the others as a step
    with Stopwatch(loop.device, request.slowdown_pct) as watch:
        _touch(folder / BEGUN, first)
        for number in range(request.steps):
            losses.append(loop.step())
            watch.step_ended()
            if number + 1 == request.warmup:
                _touch(folder / STEADY, first)
        steps = watch.record()
        _touch(folder / ENDED, first)
    found = {
        "steps": steps,
        "clock": watch.clock.name,
        "loss": [loss if loss is not None and math.isfinite(loss) else None for loss in losses],
        "skipped_steps": min((skipped_steps(each, request.steps) for each in optimizers), default=0),
    }
    if why := compiled_frames() or captured():
        found["warnings"] = [f"the step was not counted: {why}; counted eagerly it would be another program"]
    else:
        try:
            counted = count(request, loop, None, 1)
            found |= {"ledger": counted["ledger"], "backends": counted["backends"]}
        except ContractError as error:  # what was timed is kept: it is shown, though it decides nothing
            found["refusal"] = {"kind": error.kind, "message": str(error)}
    return {**found, "peak_rss_bytes": peak_resident_bytes()}


def _touch(path: Path, first: bool) -> None:
    if first:
        path.touch()
