"""Cost of the sandbox: the start of a launch and the steps of training, with and without the sandbox.

The start is that of a program that ends at once, measured in turns. For the steps, two worlds of two gloo ranks each
train the smoke model's ``cpu`` variant, one world in the sandbox. Both worlds run all the time. They take turns of some
seconds by the clock, in ABBA or BAAB order drawn at random, and one sleeps while the other trains. Other work on the
machine therefore affects both worlds equally.

The placement of its memory makes a process some percent faster or slower as long as it runs. So a round with two new
worlds is one observation, whatever its number of steps: the median over neighbouring turns of the ratio of their median
steps, and the same for the processor time. Several rounds give the interval. The peer is the local engine without a
sandbox.

    python benchmarks/sandbox.py [--starts N] [--rounds N] [--pairs N] [--turn SECONDS] [SHAPE]
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

if "TURNS" not in os.environ:  # a rank can import only the guest
    from promises import Promise, report_promises

    from regbot.engines import Launch, LaunchResult, LocalEngine, clean_environment
    from regbot.engines.availability import unavailable_reason
    from regbot.records.config import SandboxSettings
    from regbot.stats.paired import Interval, interval
    from regbot.workloads.guest import RawRecord, request_document
    from regbot.workloads.shapes import load_shape
    from regbot.workloads.task import smoke_task

ROOT = Path(__file__).resolve().parent.parent
GUEST = ROOT / "regbot" / "guest"
RANKS = 2
WARMUP = 5
ALPHA = 0.05
MOST_RATIO = 1.05
"""Limit on the ratio of step times. The ratio scatters by 6% or more between rounds, so 20 rounds cannot verify a lower
limit."""
MOST_START_S = 0.25
READY_S = 240.0


def main() -> int:

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("shape", nargs="?", default="mixtral-8x7b")
    parser.add_argument("--starts", type=int, default=31, help="starts of each kind")
    parser.add_argument("--rounds", type=int, default=20, help="worlds of each kind")
    parser.add_argument("--pairs", type=int, default=6, help="pairs of turns in a round; an even number")
    parser.add_argument("--turn", type=float, default=2.0, help="seconds of one turn")
    options = parser.parse_args()
    if why := unavailable_reason():
        print(f"nothing was measured: {why}")
        return 1
    bare, confined = measure_starts(options.starts)
    for name, values in (("without", bare), ("with", confined)):
        low, high = 1000 * min(values), 1000 * max(values)
        print(f"start {name:<8} median {1000 * statistics.median(values):.1f} ms, {low:.1f} to {high:.1f}")
    added_s = statistics.median(confined) - statistics.median(bare)
    results = measure_steps(options.shape, options.rounds, options.pairs, options.turn)
    bare_ms = 1000 * statistics.median(results.bare_s)
    numbers = f"{len(results.bare_s)} without, {results.confined} with"
    print(f"steps  {options.shape}, {RANKS} ranks, {bare_ms:.1f} ms each: {numbers}")
    rounds = f"{options.rounds} rounds of {options.pairs} pairs of turns of {options.turn:g} s"
    print(f"with / without, 95% intervals of {rounds}")
    wall, processor = format_ratio(results.wall), format_ratio(results.processor)
    print(f"  step time         {wall}")
    print(f"  processor's time  {processor}")
    return report_promises([
        Promise(f"a start takes at most {1000 * MOST_START_S:.0f} ms longer", f"{1000 * added_s:.1f} ms",
                added_s <= MOST_START_S),
        Promise(f"a step takes at most {MOST_RATIO - 1:.0%} more of the processor's time", processor,
                math.exp(results.processor.high) <= MOST_RATIO),
        Promise(f"a step is not shown to take {MOST_RATIO - 1:.0%} longer", wall,
                math.exp(results.wall.low) <= MOST_RATIO),
    ])  # fmt: skip


def format_ratio(bounds: Interval) -> str:
    return f"{math.exp(bounds.estimate):.4f} ({math.exp(bounds.low):.4f} to {math.exp(bounds.high):.4f})"


class StepResults(NamedTuple):
    """Intervals of the log-ratios of step time and processor time, the seconds of the steps without the sandbox, and
    the number of steps with it."""

    wall: Interval
    processor: Interval
    bare_s: list[float]
    confined: int


def measure_starts(number: int) -> tuple[list[float], list[float]]:
    """Return the seconds of launches of ``true`` with the supervisor, without and with the sandbox."""

    draw = random.Random(1)
    seconds: tuple[list[float], list[float]] = ([], [])
    with tempfile.TemporaryDirectory() as name:
        launch = Launch(
            command=("/bin/true",), cwd=Path(name), env={"PATH": os.defpath}, log=Path(name, "output.log"),
            record_dir=Path(name, "record"), timeout_s=60, max_output_bytes=2**16, max_dir_bytes=2**16,
        )  # fmt: skip
        engines = LocalEngine(), LocalEngine(sandbox=SandboxSettings())
        for _ in range(number):
            for which in draw.sample((0, 1), 2):
                begun = time.perf_counter()
                result = engines[which].run(launch)
                seconds[which].append(time.perf_counter() - begun)
                assert result.exit_code == 0, result.log_tail
    return seconds


def measure_steps(shape: str, rounds: int, pairs: int, turn_s: float) -> StepResults:
    """Run ``rounds`` rounds, each with two new worlds, and combine their ratios."""
    draw = random.Random(2)
    wall: list[float] = []
    processor: list[float] = []
    bare: list[float] = []
    confined = 0
    for number in range(1, rounds + 1):
        order, turns = one_round(draw, shape, pairs, turn_s)
        log_ratios: tuple[list[float], list[float]] = ([], [])
        for first in range(0, len(order), 2):
            a, b = (turns[first + order[first : first + 2].index(letter)] for letter in "AB")
            for kind in (0, 1):
                median_a, median_b = (statistics.median(step[kind] for step in turn) for turn in (a, b))
                log_ratios[kind].append(math.log(median_b / median_a))
        wall.append(statistics.median(log_ratios[0]))
        processor.append(statistics.median(log_ratios[1]))
        bare_steps = [step for turn, letter in enumerate(order) if letter == "A" for step, _ in turns[turn]]
        bare += bare_steps
        confined += sum(map(len, turns.values())) - len(bare_steps)
        print(
            f"round {number}: step time {math.exp(wall[-1]):.4f}, processor's time {math.exp(processor[-1]):.4f}",
            file=sys.stderr,
            flush=True,
        )
    return StepResults(interval(wall, ALPHA), interval(processor, ALPHA), bare, confined)


def one_round(
    draw: random.Random, shape: str, pairs: int, turn_s: float
) -> tuple[str, dict[int, list[tuple[float, float]]]]:
    """Run both worlds. Return the order of their turns, and for each turn its steps in seconds of wall and processor
    time."""
    order = "".join(draw.choice(("ABBA", "BAAB")) for _ in range((pairs + 1) // 2))
    with tempfile.TemporaryDirectory() as name, ThreadPoolExecutor(2) as pool:
        folder = Path(name)
        (folder / "signal").mkdir()
        engines = {"A": LocalEngine(), "B": LocalEngine(sandbox=SandboxSettings())}
        ends = {
            letter: pool.submit(engine.run, world(shape, folder, letter, order, turn_s))
            for letter, engine in engines.items()
        }
        try:
            wait_until_ready(folder, ends)
        finally:
            write(folder / "signal" / "begin", str(time.monotonic() + 0.5))
        for end in ends.values():
            assert end.result().exit_code == 0, end.result().log_tail
        turns: dict[int, list[tuple[float, float]]] = {}
        for letter in engines:
            record = json.loads((folder / letter / "turns.json").read_text())
            turns |= {int(turn): [(wall, processor) for wall, processor in steps] for turn, steps in record.items()}
    return order, turns


def world(shape: str, folder: Path, letter: str, order: str, turn_s: float) -> Launch:
    """Return the launch of one world. Its turns are those of ``letter`` in ``order``."""

    task = smoke_task(load_shape(shape), "cpu")
    record = folder / letter
    document = request_document(task, folder, RawRecord(record / "raw.{rank}.json", "benchmark")) | {"steps": 1}
    request = folder / f"request.{letter}.json"
    request.write_text(json.dumps(document), encoding="utf-8")
    settings = {
        "request": str(request), "signal": str(folder / "signal" / "begin"), "turn_s": turn_s,
        "turns": [turn for turn, owner in enumerate(order) if owner == letter], "record": str(record / "turns.json"),
    }  # fmt: skip
    return Launch(
        command=(sys.executable, __file__), cwd=folder / "signal",
        env=clean_environment({"OMP_NUM_THREADS": "1", "PYTHONPATH": str(GUEST), "TURNS": json.dumps(settings)}),
        log=folder / f"{letter}.log", record_dir=record, timeout_s=600, max_output_bytes=2**20, max_dir_bytes=2**24,
        ranks=RANKS, readable=(Path(__file__), request),
    )  # fmt: skip


def wait_until_ready(folder: Path, ends: Mapping[str, Future[LaunchResult]]) -> None:
    """Wait until both worlds have trained their first steps."""
    until = time.monotonic() + READY_S
    while not all(_log_has(folder / f"{letter}.log", b"ready") for letter in ends):
        for end in ends.values():
            assert not end.done(), end.result()
        assert time.monotonic() < until, "the ranks did not get ready"
        time.sleep(0.2)


def _log_has(log: Path, word: bytes) -> bool:
    return log.exists() and word in log.read_bytes()


def write(path: Path, text: str) -> None:
    """Write a file atomically, because ranks wait for it and read it at once."""
    path.with_suffix(".new").write_text(text)
    path.with_suffix(".new").replace(path)


def train() -> None:
    """Run one rank. It trains in the turns of its world, and sleeps in the other turns."""
    import torch
    import torch.distributed as dist

    from regbot_guest.harness import Training, load_plugin
    from regbot_guest.request import Request
    from regbot_guest.world import open_world

    settings = json.loads(os.environ["TURNS"])
    request = Request.load(Path(settings["request"]))
    steps_by_turn: dict[int, list[tuple[float, float]]] = {}
    with open_world(request.world, request.ep, fake=False, device=request.device) as world:
        training = Training(request, load_plugin(None), world)
        number = 0
        for number in range(WARMUP):
            training.step(number)
        dist.barrier()
        if world.rank == 0:
            print("ready", flush=True)
        signal = Path(settings["signal"])
        while not signal.exists():
            time.sleep(0.05)
        begin = float(signal.read_text())
        for turn in settings["turns"]:
            opens = begin + turn * settings["turn_s"]
            time.sleep(max(0.0, opens - time.monotonic()))
            taken: list[tuple[float, float]] = []
            longest = 0.0
            while True:
                # The last step must end before the other world's turn. Rank 0 decides for all ranks whether it begins.
                left_s = opens + settings["turn_s"] - time.monotonic() - 1.5 * longest
                may_begin = torch.tensor([int(left_s > 0)])
                dist.broadcast(may_begin, 0)
                if not may_begin.item():
                    break
                number += 1
                started, used = time.perf_counter(), time.process_time()
                training.step(number)
                dist.barrier()
                taken.append((time.perf_counter() - started, time.process_time() - used))
                longest = max(longest, taken[-1][0])
            steps_by_turn[turn] = taken[1:] or taken  # the caches are cold in the first step
        if world.rank == 0:
            Path(settings["record"]).write_text(json.dumps(steps_by_turn))


if __name__ == "__main__":
    if "TURNS" in os.environ:
        train()
    else:
        sys.exit(main())
