"""Record Kineto traces of real gloo ranks that train the smoke model, and count the same run with the guest's counter.

    python tests/support/record_trace.py REQUEST.json FOLDER     (as the ranks of torchrun)

Leaves in FOLDER, for every rank N: ``shapes.rankN.json.gz`` (three steps with ``record_shapes``),
``plain.rankN.json.gz`` (the same without shapes), and ``entries.rankN.json``, what the counter saw in one step.
"""

import json
import sys
from functools import partial
from pathlib import Path
from typing import Any

from torch.profiler import ProfilerActivity, profile, schedule

from regbot_guest.harness import Training, load_plugin
from regbot_guest.module_tracker import ModuleTracker
from regbot_guest.observer import Observer
from regbot_guest.request import Request
from regbot_guest.world import World, open_world

STEPS = 3


def count(world: World, training: Training) -> list[dict[str, Any]]:
    """One step as the counter sees it."""
    with ModuleTracker(training.model) as tracker, Observer(world.axes, tracker) as observer:
        observer.new_step()
        training.step(1, partial(setattr, observer, "phase"))
    return observer.tally.entries()


def record(training: Training, path: Path, shapes: bool) -> None:
    """Three steps under the profiler, after one."""
    steps = schedule(wait=0, warmup=1, active=STEPS, repeat=1)
    with profile(activities=[ProfilerActivity.CPU], record_shapes=shapes, schedule=steps) as profiler:
        for number in range(1 + STEPS):
            training.step(number)
            profiler.step()
    profiler.export_chrome_trace(str(path))


def main() -> None:
    request, folder = Request.load(Path(sys.argv[1])), Path(sys.argv[2])
    with open_world(request.world, request.ep, fake=False) as world:
        training = Training(request, load_plugin(request.entry), world)
        training.step(0)
        record(training, folder / f"shapes.rank{world.rank}.json.gz", shapes=True)
        record(training, folder / f"plain.rank{world.rank}.json.gz", shapes=False)
        entries = count(world, training)
        (folder / f"entries.rank{world.rank}.json").write_text(json.dumps(entries))


main()
