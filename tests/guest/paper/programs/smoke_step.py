"""Kernel launches of one step by phase, operator and module: ``smoke_step.py REQUEST.json`` prints one JSON object."""

import json
import sys
from pathlib import Path

from regbot_guest.paper.device import paper_gpu
from regbot_guest.request import Request
from regbot_guest.static_trace import count_step

device = paper_gpu()
assert device is not None
count_step(Request.load(Path(sys.argv[1])), device)
launches = device.counter.launches()
print(json.dumps({f"{phase} {name} {module}": number for (name, phase, module), number in launches.items()}))
