"""Profiles of training steps: ``profile_step.py REQUEST eager|compiled``.

Each rank writes ``trace.RANK.json.gz``, the profiler's trace of two steps, and ``kernels.RANK.json``: for each kernel
its number of launches and its microseconds in the trace. ``backends.RANK.json`` has the name that regbot gives to the
implementation of the grouped products. In the mode compiled, torch.compile compiles every block.
"""

import gzip
import json
import shutil
import sys
from collections import defaultdict
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile, schedule

from regbot_guest.grouped_gemm import LOOP_OVER_EXPERTS, path_in_torch
from regbot_guest.harness import Training, load_plugin
from regbot_guest.moe import runs_grouped_mm
from regbot_guest.request import Request
from regbot_guest.world import open_requested_world

WARM_STEPS, PROFILED_STEPS = 3, 2


def main() -> None:
    request, mode = Request.load(Path(sys.argv[1])), sys.argv[2]
    with open_requested_world(request) as world:
        training = Training(request, load_plugin(request.entry), world)
        if mode == "compiled":
            for block in training.model.get_submodule("layers").children():
                block.compile()
        for number in range(WARM_STEPS):
            training.step(number)
        activities = [ProfilerActivity.CPU]
        if world.device.type == "cuda":
            activities.append(ProfilerActivity.CUDA)
            torch.cuda.synchronize()
        # Without repeat, the last step begins a second cycle, whose empty trace would be exported.
        plan = schedule(wait=0, warmup=1, active=PROFILED_STEPS, repeat=1)
        with profile(activities=activities, schedule=plan) as profiler:
            for number in range(1 + PROFILED_STEPS):
                training.step(WARM_STEPS + number)
                if world.device.type == "cuda":
                    torch.cuda.synchronize()
                profiler.step()
        folder = Path(request.record).parent
        trace = folder / f"trace.{world.rank}.json"
        profiler.export_chrome_trace(str(trace))
        dtype = getattr(torch, request.dtype)
        in_torch = runs_grouped_mm(dtype, world.device)
        backends = {"grouped_gemm": path_in_torch(dtype, world.device) if in_torch else LOOP_OVER_EXPERTS}
        (folder / f"backends.{world.rank}.json").write_text(json.dumps(backends), encoding="utf-8")
        write_kernels(trace, folder / f"kernels.{world.rank}.json")
        with trace.open("rb") as source, gzip.open(f"{trace}.gz", "wb") as target:
            shutil.copyfileobj(source, target)
        trace.unlink()


def write_kernels(trace: Path, path: Path) -> None:
    """Write the number of launches and the microseconds of each kernel in ``trace``."""
    kernels: dict[str, list[float]] = defaultdict(lambda: [0, 0.0])
    for event in json.loads(trace.read_text(encoding="utf-8"))["traceEvents"]:
        if event.get("cat") == "kernel":
            kernels[event["name"]][0] += 1
            kernels[event["name"]][1] += event["dur"]
    path.write_text(json.dumps(kernels), encoding="utf-8")


if __name__ == "__main__":
    main()
