"""Times a framework's own training loop. First come the timed steps, with clocks as the only instrumentation, then one
counted step, or profiled steps if code was compiled.

The result has the same form as the result of ``probe`` for regbot's own loop. If the framework logs a step (reduces and
reads the loss), this is part of the step and is timed with it.
"""

import math
from collections.abc import Iterable
from typing import Any

import torch

from regbot_guest.frameworks.training_loop import TrainingLoop, count_loop
from regbot_guest.probe import profile_if_uncountable, skipped_steps, time_training, watch_replays
from regbot_guest.request import Request
from regbot_guest.step_profile import StepSource
from regbot_guest.stopwatch import peak_resident_bytes


def time_loop(
    request: Request, loop: TrainingLoop, optimizers: Iterable[torch.optim.Optimizer], record: dict[str, Any]
) -> None:
    """Time ``request.steps`` steps, and count or profile further steps. Add the results to ``record``, the raw record.

    The times are in ``record`` before the step is counted, so an error in that step does not lose them.
    """
    describe_replays = watch_replays()
    losses: list[float | None] = []
    record |= time_training(request, loop.device, lambda _: losses.append(loop.step())) | {
        "loss": [loss if loss is not None and math.isfinite(loss) else None for loss in losses],
        "skipped_steps": min((skipped_steps(optimizer, request.steps) for optimizer in optimizers), default=0),
        "peak_rss_bytes": peak_resident_bytes(),
    }
    source = StepSource(loop.step, loop.axes, loop.groups, loop.device, loop.config, loop.software)
    if not profile_if_uncountable(request, source, describe_replays(), record):
        counted_part = count_loop(request, loop, 1)
        record |= {name: counted_part[name] for name in ("ledger", "backends", "peak_rss_bytes")}
