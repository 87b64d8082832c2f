"""Kernel launches of one step by phase, and also by module; its host reads: ``smoke_step.py
REQUEST.json...`` prints one object for each request.
"""

import json
import sys
from collections import Counter
from pathlib import Path

from regbot_guest.paper.counter import PaperCounter
from regbot_guest.paper.device import paper_gpu
from regbot_guest.request import Request
from regbot_guest.static_trace import count_step

device = paper_gpu()
assert device is not None
reads: Counter[str] = Counter()


class PhaseCounter(PaperCounter):
    """Also keeps the phase and the module of each host read."""

    def new_step(self, with_fingerprint: bool = True) -> None:
        reads.clear()
        super().new_step(with_fingerprint)

    def count_host_read(self) -> None:
        reads[f"{self.phase} {self.module_path()}"] += 1
        super().count_host_read()


count_step.__globals__["PaperCounter"] = PhaseCounter
answers = []
for path in sys.argv[1:]:
    count_step(Request.load(Path(path)), device)
    launches: Counter[str] = Counter()
    by_module: dict[str, int] = {}
    for (operator, phase, module), count in device.counter.launches().items():
        launches[f"{phase} {operator}"] += count
        by_module[f"{phase} {operator} {module}"] = count
    counted = {"launches": dict(sorted(launches.items())), "launches_by_module": by_module}
    answers.append({"host_reads": dict(reads), **counted})
print(json.dumps(answers))
