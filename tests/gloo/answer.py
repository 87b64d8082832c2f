"""Run several requests in the same processes: ``answer.py REQUEST.json...``, also under torchrun.

On real ranks the requests share one world, because opening a world takes longer than a step. So they must have the same
number of ranks.
"""

import sys
from contextlib import ExitStack, nullcontext
from pathlib import Path

from regbot_guest import world as worlds
from regbot_guest.process import run_requests
from regbot_guest.request import Request

first = Request.load(Path(sys.argv[1]))
with ExitStack() as stack:
    if first.mode != "static":
        world = stack.enter_context(worlds.open_world(first.world, first.ep, fake=False))
        worlds.open_world = lambda *_, **__: nullcontext(world)  # type: ignore[assignment]
    for path in sys.argv[1:]:  # their roots may differ
        run_requests([Request.load(Path(path))])
