"""One step of the smoke model: collectives, operators, host reads and peak memory. ``step.py REQUEST [LIBRARY]``.

Each rank writes ``step.RANK.json`` beside its record. With LIBRARY, a paper GPU, the same step runs on paper, as rank 0
of a fake world. The peak is that of a step without the counter, after one step that creates the optimizer's state.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

if len(sys.argv) > 2:
    from regbot_guest.paper.loading import install

    install(Path(sys.argv[2]))

import torch

from regbot_guest.harness import Training, load_plugin
from regbot_guest.module_tracker import ModuleTracker
from regbot_guest.observer import Observer
from regbot_guest.request import Request
from regbot_guest.stopwatch import peak_resident_bytes
from regbot_guest.world import open_requested_world, open_world

WARM_STEPS = 2


def measure(request: Request, world: Any) -> dict[str, Any]:
    """Run three steps. The second one gives the peak, the third one the counts."""
    on_gpu = world.device.type == "cuda"
    training = Training(request, load_plugin(request.entry), world)
    for number in range(WARM_STEPS):
        if on_gpu:
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
        training.step(number)
    peak = torch.cuda.max_memory_allocated() if on_gpu else peak_resident_bytes()
    with ModuleTracker(training.model) as tracker:
        observer = Observer(world.axes, tracker)
        with observer:
            training.step(WARM_STEPS, lambda phase: setattr(observer, "phase", phase))
    return {
        "torch": str(torch.__version__),
        "device": torch.cuda.get_device_name() if on_gpu else "cpu",
        "entries": observer.tally.entries(),
        "operators": dict(observer.operators),
        "host_reads": dict(observer.host_reads),
        "peak_bytes": peak,
    }


def main() -> None:
    request = Request.load(Path(sys.argv[1]))
    on_paper = len(sys.argv) > 2
    opened = (
        open_world(request.world, request.ep, fake=True, device="cuda") if on_paper else open_requested_world(request)
    )
    with opened as world:
        result = measure(request, world)
        name = "paper.json" if on_paper else f"step.{world.rank}.json"
        Path(request.record).with_name(name).write_text(json.dumps(result), encoding="utf-8")
    sys.stdout.flush()
    if on_paper:
        os._exit(0)  # torch ends its device threads while Python exits, which sometimes crashes


if __name__ == "__main__":
    main()
