"""Profiles steps whose collectives cannot be counted, because code of the step is compiled or captured in CUDA graphs.

Rank 0 writes two traces, of planted collectives and of the steps. The trusted side reads both. Nothing here may lose
the timings: the record is written before the first profiled step. After an error the process ends at once with exit
code 0, so that waiting ranks fail too, and a time limit ends ranks that NCCL would let wait forever.
"""

import gzip
import os
import shutil
import sys
import tempfile
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.profiler import ProfilerActivity, kineto_available, profile, record_function

from regbot_guest.count import issue_on_groups, read_sequence_numbers, sum_advances
from regbot_guest.hang_recorder import margin_s, seconds_since_launch
from regbot_guest.record_file import prove_code, write_record
from regbot_guest.request import Request
from regbot_guest.training_loop import TrainingLoop

NUM_STEPS = 3
"""Number of profiled steps. The reader leaves out the first and the last step if only these differ."""
PROFILED_RANK = 0
TRACE_FILE, PLANTED_FILE = "profile.json.gz", "profile.planted.json.gz"
STEP_NAME = "ProfilerStep#"
"""Beginning of the names by which readers of a trace recognise steps."""
SLOWDOWN, MIN_LIMIT_S = 20.0, 240.0
"""A profiled step may take SLOWDOWN times as long as the slowest timed one. MIN_LIMIT_S is for writing the traces."""
EXIT_S = 10.0
MAX_CHARACTERS = 4000


class TraceTooLargeError(Exception):
    """A compressed trace exceeds the size limit of the request."""


def profile_steps(request: Request, loop: TrainingLoop, reason: str, record: dict[str, Any]) -> None:
    """Profile ``NUM_STEPS`` steps and add the result to ``record``, or a ``problem`` if there is none. If a profiled
    step fails, this function ends the process, because other ranks may wait for this one.
    """
    result: dict[str, Any] = {"reason": reason[:MAX_CHARACTERS]}
    record["profile"] = result
    limit_s = _limit_seconds(request, max(record["steps"]["step_s"]))
    if not kineto_available():
        result["problem"] = "this torch was built without its profiler (Kineto)"
        return
    if limit_s <= 0:
        result["problem"] = "the timed steps left no time for profiled ones; raise timeout_min of the workload"
        return
    # This record remains if the timer ends the process.
    result["problem"] = f"the profiled steps did not end within {limit_s:.0f} s"
    record["code"] = prove_code(request)
    write_record(request, record)
    exit_code = 0
    timer = threading.Timer(limit_s, os._exit, (exit_code,))
    timer.daemon = True
    timer.start()
    try:
        result |= _record_traces(request, loop)
        result["problem"] = ""
    except (Exception, SystemExit) as error:
        traceback.print_exc()
        result["problem"] = f"the profiled steps failed: {type(error).__name__}: {error}"[:MAX_CHARACTERS]
        record["code"] = prove_code(request)
        write_record(request, record)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(exit_code)
    finally:
        timer.cancel()


def _limit_seconds(request: Request, slowest_step_s: float) -> float:
    """The profiled steps must end ``EXIT_S`` before a hung rank would write its stacks. 0 or less: no time is left."""
    # MIN_LIMIT_S is for writing the traces. A profiled step may take SLOWDOWN times as long as a timed step.
    limit_s = MIN_LIMIT_S + SLOWDOWN * NUM_STEPS * slowest_step_s
    if not request.limit_s:  # the run has no known limit
        return limit_s
    seconds_left = request.limit_s - margin_s(request.limit_s) - EXIT_S - seconds_since_launch()
    return min(limit_s, seconds_left)


def _record_traces(request: Request, loop: TrainingLoop) -> dict[str, Any]:
    folder = Path(request.record).parent
    with _record_trace(folder / PLANTED_FILE, loop.device, request.max_profile_bytes):
        num_planted = issue_on_groups(loop.groups, loop.device)
    # Collectives per step by the backend's sequence numbers. None if the backend keeps no such numbers.
    advances: list[int] | None = []
    with _record_trace(folder / TRACE_FILE, loop.device, request.max_profile_bytes):
        for number in range(NUM_STEPS):
            numbers_before = read_sequence_numbers()
            with record_function(f"{STEP_NAME}{number}"):
                loop.step()
            if numbers_before is None or advances is None:
                advances = None
            else:
                advances.append(sum_advances(numbers_before))
    dist.barrier()  # the other ranks must not leave while this one writes its traces
    if dist.get_rank() != PROFILED_RANK:
        return {}
    return {
        "trace": TRACE_FILE,
        "planted_trace": PLANTED_FILE,
        "planted": num_planted,
        "sequence_advances": advances,
        "axes": loop.axes.as_record(),
        "config": dict(loop.config),
        "software": dict(loop.software),
    }


@contextmanager
def _record_trace(path: Path, device: torch.device, max_bytes: int) -> Iterator[None]:
    """Only rank ``PROFILED_RANK`` records. Raises TraceTooLargeError if the compressed file exceeds ``max_bytes``."""
    if dist.get_rank() != PROFILED_RANK:
        yield
        return
    on_gpu = device.type == "cuda"
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu else [])]
    with profile(activities=activities, record_shapes=True) as profiler:
        yield
        if on_gpu:
            torch.cuda.synchronize()  # the profiler drops kernels that are still running
    with tempfile.TemporaryDirectory() as folder:  # a large file in the record's folder would end the run
        trace, packed_trace = Path(folder) / "trace.json", Path(folder) / "trace.json.gz"
        profiler.export_chrome_trace(str(trace))
        with trace.open("rb") as plain_file, gzip.open(packed_trace, "wb", compresslevel=1) as packed_file:
            shutil.copyfileobj(plain_file, packed_file)
        if (size := packed_trace.stat().st_size) > max_bytes:
            raise TraceTooLargeError(f"the trace has {size:,} bytes, more than {max_bytes:,} (local.max_record_mb)")
        shutil.copyfile(packed_trace, path)
