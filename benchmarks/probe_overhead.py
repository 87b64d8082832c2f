"""Cost of the probe in a timed step: the same training with and without the probe, in turns, in one process per rank.

Parts with and without the probe alternate in ABBA or BAAB order, drawn at random, so that drift of the machine cancels.
Each pair of parts gives one ratio of times. The benchmark prints the ratio with its 95% interval, and the number of
clock readings in a step. The peer is the step without the probe. Timed steps have no counter, as
tests/guest/test_probe.py shows; this benchmark measures the remaining cost.

    python benchmarks/probe_overhead.py [--blocks N] [--steps N] [SHAPE...]
"""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from contextlib import nullcontext
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
GUEST = ROOT / "regbot" / "guest"
RANKS = 2
ALPHA = 0.05


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("shapes", nargs="*", default=["mixtral-8x7b", "qwen3-30b-a3b"])
    parser.add_argument("--blocks", type=int, default=20, help="blocks of four (ABBA), each two pairs")
    parser.add_argument("--steps", type=int, default=8, help="steps of one part of a block")
    options = parser.parse_args()
    print(f"{'shape':<16} {'step ms':>8} {'clocks per step':>16} {'with / without the probe (95%)':>32}   pairs")
    for name in options.shapes:
        report(name, options.blocks, options.steps)


def report(shape: str, blocks: int, steps: int) -> None:
    from math import exp
    from statistics import median

    from regbot.stats.paired import interval

    with tempfile.TemporaryDirectory() as folder:
        request = write_request(shape, Path(folder), steps)
        done = subprocess.run(
            [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(RANKS), __file__],
            env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(GUEST), "REQUEST": str(request),
                 "BLOCKS": str(blocks)},
            stdout=subprocess.PIPE,
            check=True,
            text=True,
        )  # fmt: skip
    result = json.loads(done.stdout.splitlines()[-1])
    bounds = interval(result["log_ratios"], ALPHA)
    ratio = f"{exp(bounds.estimate):.4f} ({exp(bounds.low):.4f} to {exp(bounds.high):.4f})"
    step_ms = 1000 * median(result["bare_s"]) / steps
    print(f"{shape:<16} {step_ms:>8.1f} {result['clocks']:>16.0f} {ratio:>32}   {bounds.count}", flush=True)


def write_request(shape: str, folder: Path, steps: int) -> Path:
    """Write the request for the shape's ``cpu`` variant, as the smoke workload runs it."""
    from regbot.workloads.guest import RawRecord, request_document
    from regbot.workloads.shapes import load_shape
    from regbot.workloads.task import smoke_task

    task = smoke_task(load_shape(shape), "cpu")
    document = request_document(task, folder, RawRecord(folder / "raw.{rank}.json", "benchmark")) | {"steps": steps}
    path = folder / "request.json"
    path.write_text(json.dumps(document), encoding="utf-8")
    return path


def measure() -> None:
    """Run one rank: parts with and without the probe. All ranks draw the same order."""
    import math

    import torch.distributed as dist

    from regbot_guest.harness import Training, load_plugin
    from regbot_guest.request import Request
    from regbot_guest.stopwatch import Stopwatch
    from regbot_guest.world import open_world

    request = Request.load(Path(os.environ["REQUEST"]))
    draw = random.Random(1)
    log_ratios: list[float] = []
    bare_s: list[float] = []
    clocks = 0.0
    with open_world(request.world, request.ep, fake=False, device=request.device) as world:
        training = Training(request, load_plugin(None), world)
        for number in range(10):
            training.step(number)

        def run_part(probed: bool) -> float:
            """Return the seconds of one part of a block."""
            nonlocal clocks
            watch = Stopwatch(world.device) if probed else None
            dist.barrier()
            begun = time.perf_counter()
            with watch if watch is not None else nullcontext():
                for number in range(request.steps):
                    training.step(number)
                    if watch is not None:
                        watch.end_step()
            dist.barrier()
            seconds = time.perf_counter() - begun
            if watch is not None:
                clocks = 2 * sum(len(spans) for spans in watch.wait_spans) / request.steps + 3
            return seconds

        for _ in range(int(os.environ["BLOCKS"])):
            order = draw.choice(("ABBA", "BAAB"))
            seconds = [run_part(letter == "B") for letter in order]
            for first in (0, 2):
                pair = dict(zip(order[first : first + 2], seconds[first : first + 2], strict=True))
                log_ratios.append(math.log(pair["B"] / pair["A"]))
                bare_s.append(pair["A"])
        if world.rank == 0:
            print(json.dumps({"log_ratios": log_ratios, "bare_s": bare_s, "clocks": clocks}))


if __name__ == "__main__":
    if "REQUEST" in os.environ:
        measure()
    else:
        main()
