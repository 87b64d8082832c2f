"""Run requests of real ranks on the paper GPU: ``ranks.py REQUEST...``. Print the part of each record as a list.

The rank runs the code of a real rank, and backward runs on autograd's device thread. The groups are fake, a second
passes between any two events, and the paper GPU answers reads of unknown losses.
"""

import gc
import json
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from regbot_guest.contract import ContractError
from regbot_guest.paper.groups import rank_zero_of
from regbot_guest.paper.streams import PaperEvent
from regbot_guest.probe import time_steps
from regbot_guest.request import Request
from regbot_guest.stopwatch import Stopwatch

PaperEvent.elapsed_time = lambda *_: 1000.0  # type: ignore[method-assign]
original_end_step = Stopwatch.end_step


def run(request: Request) -> dict[str, Any]:
    sys.path.insert(0, request.root)
    part: dict[str, Any] = {}
    folder = Path(request.record).parent
    observed: dict[str, list[Any]] = {"device_ids": [], "marks_at_waits": [], "frozen_in_steps": []}

    def synchronize(*_: object) -> None:
        observed["marks_at_waits"].append(sorted(path.name for path in folder.glob("steps.*")))

    def end_step(stopwatch: Stopwatch) -> None:
        observed["frozen_in_steps"].append(gc.get_freeze_count() > 0)
        original_end_step(stopwatch)

    with rank_zero_of(request.world):
        init_process_group = dist.init_process_group

        def init(*args: Any, **options: Any) -> None:
            observed["device_ids"].append(str(options.get("device_id")))
            init_process_group(*args, **options)

        dist.init_process_group = init
        torch.cuda.synchronize, Stopwatch.end_step = synchronize, end_step  # type: ignore[method-assign]
        try:
            time_steps(request, part)
        except ContractError as error:
            part["refusal"] = {"kind": error.kind, "message": str(error)}
    return {**part, "observed": {**observed, "frozen_at_end": gc.get_freeze_count() > 0}}


print(json.dumps([run(Request.load(Path(path))) for path in sys.argv[1:]]))
