"""Times a framework's own training loop, with the result of ``probe.py``, which times regbot's own loop. Logging of a
step by the framework is part of the step.
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
