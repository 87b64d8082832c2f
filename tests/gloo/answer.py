"""Answer several requests in the same processes: ``answer.py REQUEST.json...``, also under torchrun.

On real ranks they share one world, and so must ask for the same ranks; a world costs more than a step.
"""

import sys
from contextlib import ExitStack, nullcontext
from pathlib import Path

from regbot_guest import count, probe
from regbot_guest.process import main
from regbot_guest.request import Request
from regbot_guest.world import open_world

first = Request.load(Path(sys.argv[1]))
with ExitStack() as stack:
    if first.mode != "static":
        world = stack.enter_context(open_world(first.world, first.ep, fake=False))
        count.open_world = probe.open_world = lambda *_, **__: nullcontext(world)  # type: ignore[assignment]
    for path in sys.argv[1:]:
        main([path])
