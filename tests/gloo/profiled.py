"""Count steps twice on real ranks: with the guest's counter, and with torch's profiler without the counter.

``profiled.py REQUEST.json...`` writes the guest's records and ``REQUEST.rankN.profile.json``. The latter has the name
of every communication operator of the second step and the elements of its first two arguments. ``ddp.rankN.json`` has
the entries of a step under DistributedDataParallel, whose reducer the fake backend cannot run.
"""

import json
import os
import sys
from contextlib import nullcontext
from pathlib import Path

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile

from regbot_guest import world as worlds
from regbot_guest.harness import Training, load_plugin
from regbot_guest.observer import Observer
from regbot_guest.process import main
from regbot_guest.request import Request

paths = [Path(argument) for argument in sys.argv[1:]]
requests = [Request.load(path) for path in paths]
folder = Path.cwd()
with worlds.open_world(requests[0].world, requests[0].ep, fake=False) as world:
    for path, request in zip(paths, requests, strict=True):
        training = Training(request, load_plugin(request.entry), world)
        training.step(0)
        with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiler:
            training.step(1)
        calls = []
        for event in profiler.events():
            if event.name.startswith(("c10d::", "_c10d_functional::")):
                sizes = [torch.Size(shape).numel() if shape else 0 for shape in event.input_shapes[:2]]
                calls.append({"name": event.name, "elements": sizes})
        path.with_suffix(f".rank{world.rank}.profile.json").write_text(json.dumps(calls))

    ddp = DistributedDataParallel(nn.Linear(8, 4))
    for step in range(3):  # the second one rebuilds its buckets
        with Observer(world.axes) if step == 2 else nullcontext() as observer:
            ddp(torch.ones(2, 8)).sum().backward()
    assert observer is not None
    paths[0].with_name(f"ddp.rank{world.rank}.json").write_text(json.dumps(observer.tally.entries()))

    worlds.open_world = lambda *_, **__: nullcontext(world)  # type: ignore[assignment]
    for path in paths:
        main([str(path)])
        os.chdir(folder)
