"""Count a step of each request on real ranks, in one world: ``counted.py REQUEST.json...`` writes the guest's records.

``ddp.rankN.json`` has the entries of a step under DistributedDataParallel, whose reducer the fake backend cannot run.
"""

import json
import os
import sys
from contextlib import nullcontext
from pathlib import Path

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from regbot_guest import world as worlds
from regbot_guest.observer import Observer
from regbot_guest.process import main
from regbot_guest.request import Request

paths = [Path(argument) for argument in sys.argv[1:]]
request = Request.load(paths[0])
folder = Path.cwd()
with worlds.open_world(request.world, request.ep, fake=False) as world:
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
