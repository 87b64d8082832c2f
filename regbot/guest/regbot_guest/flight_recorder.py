"""Reads torch's Flight Recorder for the report of a hang, as JSON and in the rank itself: torch's own dumps are
pickles, which regbot never opens.
"""

import json
import os
from typing import Any

BUFFER_VARIABLES = ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE")
"""Names of the variable with the number of collectives that the recorder keeps, in new and old versions of torch."""
BUFFER_SIZE = 2000
"""Default of new versions of torch. In old versions the recorder is off by default."""
DUMP_FUNCTIONS = ("_dump_nccl_trace_json", "_dump_fr_trace_json")
"""Functions of torch that return the calls as JSON, for NCCL and for gloo. A build of torch has one or both."""


def switch_on(c10d_module: Any) -> None:
    """Switch the recorder on, unless the user has set its size. Call this before the first process group is created.
    ``c10d_module`` is ``torch._C._distributed_c10d``.
    """
    if any(name in os.environ for name in BUFFER_VARIABLES):
        return
    new_variable, old_variable = BUFFER_VARIABLES
    _, dump_function_of_gloo = DUMP_FUNCTIONS
    is_new_torch = hasattr(c10d_module, dump_function_of_gloo)  # old versions of torch have only that for NCCL
    os.environ[new_variable if is_new_torch else old_variable] = str(BUFFER_SIZE)


def read_last_call(c10d_module: Any) -> "dict[str, Any] | None":
    """Return the last collective in all process groups, or None: torch's ``name`` (such as ``nccl:all_to_all``),
    ``group``, ``number`` in the group (0 for send and recv) and ``state`` (scheduled, started, completed).
    """
    calls: list[dict[str, Any]] = []
    for name in DUMP_FUNCTIONS:
        if hasattr(c10d_module, name):
            dump = getattr(c10d_module, name)
            calls += json.loads(dump() or "{}").get("entries") or []
    if not calls:
        return None
    call = max(calls, key=lambda call: call.get("time_created_ns", 0))
    # torch gives name and description of the group. A missing value becomes ''.
    name, description = (*call.get("process_group", ()), "", "")[:2]
    return {
        "name": str(call.get("profiling_name", ""))[:80],
        "group": str(description if description not in ("", "undefined") else name)[:80],
        "number": 0 if call.get("is_p2p") else int(call.get("collective_seq_id", 0)),
        # gloo does not report states, but it reports that the collective has ended.
        "state": "completed" if call.get("retired") else str(call.get("state", ""))[:20],
    }
