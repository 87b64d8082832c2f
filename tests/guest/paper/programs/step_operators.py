"""Names of the operators of training steps: ``step_operators.py REQUEST.json...`` prints one list for all requests."""

import json
import sys
from pathlib import Path

from recording import Operators

from regbot_guest.paper.device import paper_gpu
from regbot_guest.paper.step import count_step
from regbot_guest.request import Request

device = paper_gpu()
assert device is not None
names: set[str] = set()
for path in sys.argv[1:]:
    request = Request.load(Path(path))
    sys.path[:0] = [str(Path(request.root) / root) for root in request.source_roots]
    with Operators() as operators:
        count_step(request, device)
    names |= operators.names | {name for name, _, _ in device.launches()}
print(json.dumps(sorted(names)))
