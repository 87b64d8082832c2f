"""What the sandbox costs: the start of a launch, and the steps of training, with and without it.

Start: a program that ends at once, in turns. Steps: two worlds of two gloo ranks each train the smoke model's ``cpu``
variant, one of them in the sandbox. Both are up all the time and take turns of some seconds by the clock, in ABBA or
BAAB order at random, so that what the machine does besides meets both alike; one sleeps while the other trains. Where
its memory came to lie makes a process some percent faster or slower for as long as it lives, so that two worlds are one
observation, whatever number of steps they take: of the median step in each turn, and of the processor's time of a step,
the median of the ratios of neighbouring turns. Several rounds, each of two new worlds, give the interval. The peer is
the bare local engine.

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

if "TURNS" not in os.environ:  # a rank sees nothing of this but the guest
    from promises import Promise, told

    from regbot.engines import Ended, Launch, LocalEngine, clean_environment
    from regbot.engines.availability import available
    from regbot.engines.sandbox import Sandbox
    from regbot.shapes import load_shape
    from regbot.stats.paired import Interval, interval
    from regbot.workloads import smoke_task
    from regbot.workloads.guest import request_document

ROOT = Path(__file__).resolve().parent.parent
GUEST = ROOT / "regbot" / "guest"
RANKS = 2
WARMUP = 5
ALPHA = 0.05
MOST_RATIO = 1.05
"""Of one pair of worlds the ratio scatters by 6% and more: below this 20 rounds could not show anything."""
MOST_START_S = 0.25
READY_S = 240.0


def main() -> int:

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("shape", nargs="?", default="mixtral-8x7b")
    parser.add_argument("--starts", type=int, default=31, help="starts of each kind")
    parser.add_argument("--rounds", type=int, default=20, help="worlds of each kind")
    parser.add_argument("--pairs", type=int, default=6, help="pairs of turns in a round; an even number")
    parser.add_argument("--turn", type=float, default=2.0, help="seconds of one turn")
    asked = parser.parse_args()
    if why := available():
        print(f"nothing was measured: {why}")
        return 1
    bare, confined = starts(asked.starts)
    for name, values in (("without", bare), ("with", confined)):
        low, high = 1000 * min(values), 1000 * max(values)
        print(f"start {name:<8} median {1000 * statistics.median(values):.1f} ms, {low:.1f} to {high:.1f}")
    more = statistics.median(confined) - statistics.median(bare)
    found = steps(asked.shape, asked.rounds, asked.pairs, asked.turn)
    bare_ms, numbers = 1000 * statistics.median(found.bare_s), f"{len(found.bare_s)} without, {found.confined} with"
    print(f"steps  {asked.shape}, {RANKS} ranks, {bare_ms:.1f} ms each: {numbers}")
    print(f"with / without, 95% intervals of {asked.rounds} rounds of {asked.pairs} pairs of turns of {asked.turn:g} s")
    wall, processor = ratio(found.wall), ratio(found.processor)
    print(f"  step time         {wall}")
    print(f"  processor's time  {processor}")
    return told([
        Promise(f"a start takes at most {1000 * MOST_START_S:.0f} ms longer", f"{1000 * more:.1f} ms",
                more <= MOST_START_S),
        Promise(f"a step takes at most {MOST_RATIO - 1:.0%} more of the processor's time", processor,
                math.exp(found.processor.high) <= MOST_RATIO),
        Promise(f"a step is not shown to take {MOST_RATIO - 1:.0%} longer", wall,
                math.exp(found.wall.low) <= MOST_RATIO),
    ])  # fmt: skip


def ratio(each: Interval) -> str:
    return f"{math.exp(each.estimate):.4f} ({math.exp(each.low):.4f} to {math.exp(each.high):.4f})"


class Found(NamedTuple):
    """Intervals of the log-ratios, the steps without the sandbox in seconds, the number of those with it."""

    wall: Interval
    processor: Interval
    bare_s: list[float]
    confined: int


def starts(number: int) -> tuple[list[float], list[float]]:
    """Seconds of a launch of ``true``, without and with the sandbox, supervisor and all."""

    draw = random.Random(1)
    found: tuple[list[float], list[float]] = ([], [])
    with tempfile.TemporaryDirectory() as name:
        launch = Launch(
            command=("/bin/true",), cwd=Path(name), env={"PATH": os.defpath}, log=Path(name, "output.log"),
            record_dir=Path(name, "record"), timeout_s=60, max_output_bytes=2**16, max_dir_bytes=2**16,
        )  # fmt: skip
        engines = LocalEngine(), LocalEngine(sandbox=Sandbox())
        for _ in range(number):
            for which in draw.sample((0, 1), 2):
                begun = time.perf_counter()
                ended = engines[which].run(launch)
                found[which].append(time.perf_counter() - begun)
                assert ended.exit_code == 0, ended.log_tail
    return found


def steps(shape: str, rounds: int, pairs: int, turn_s: float) -> Found:
    """``rounds`` times two new worlds."""
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
                each = [statistics.median(step[kind] for step in turn) for turn in (a, b)]
                log_ratios[kind].append(math.log(each[1] / each[0]))
        wall.append(statistics.median(log_ratios[0]))
        processor.append(statistics.median(log_ratios[1]))
        own = [step for turn, letter in enumerate(order) if letter == "A" for step, _ in turns[turn]]
        bare += own
        confined += sum(map(len, turns.values())) - len(own)
        print(
            f"round {number}: step time {math.exp(wall[-1]):.4f}, processor's time {math.exp(processor[-1]):.4f}",
            file=sys.stderr,
            flush=True,
        )
    return Found(interval(wall, ALPHA), interval(processor, ALPHA), bare, confined)


def one_round(
    draw: random.Random, shape: str, pairs: int, turn_s: float
) -> tuple[str, dict[int, list[tuple[float, float]]]]:
    """Both worlds, turn by turn: whose each turn was, and its steps by the clock and by the processor's, in seconds."""
    order = "".join(draw.choice(("ABBA", "BAAB")) for _ in range((pairs + 1) // 2))
    with tempfile.TemporaryDirectory() as name, ThreadPoolExecutor(2) as pool:
        folder = Path(name)
        (folder / "signal").mkdir()
        engines = {"A": LocalEngine(), "B": LocalEngine(sandbox=Sandbox())}
        ends = {
            letter: pool.submit(engine.run, world(shape, folder, letter, order, turn_s))
            for letter, engine in engines.items()
        }
        try:
            wait(folder, ends)
        finally:
            write(folder / "signal" / "begin", str(time.monotonic() + 0.5))
        for end in ends.values():
            assert end.result().exit_code == 0, end.result().log_tail
        turns: dict[int, list[tuple[float, float]]] = {}
        for letter in engines:
            said = json.loads((folder / letter / "turns.json").read_text())
            turns |= {int(turn): [(wall, processor) for wall, processor in each] for turn, each in said.items()}
    return order, turns


def world(shape: str, folder: Path, letter: str, order: str, turn_s: float) -> Launch:
    """One world, whose turns are those of ``letter`` in ``order``."""

    task = smoke_task(load_shape(shape), "cpu")
    record = folder / letter
    document = request_document(task, folder, "benchmark", record / "raw.{rank}.json") | {"steps": 1}
    request = folder / f"request.{letter}.json"
    request.write_text(json.dumps(document), encoding="utf-8")
    settings = {
        "request": str(request), "signal": str(folder / "signal" / "begin"), "turn_s": turn_s,
        "turns": [turn for turn, each in enumerate(order) if each == letter], "record": str(record / "turns.json"),
    }  # fmt: skip
    return Launch(
        command=(sys.executable, __file__), cwd=folder / "signal",
        env=clean_environment({"OMP_NUM_THREADS": "1", "PYTHONPATH": str(GUEST), "TURNS": json.dumps(settings)}),
        log=folder / f"{letter}.log", record_dir=record, timeout_s=600, max_output_bytes=2**20, max_dir_bytes=2**24,
        ranks=RANKS, readable=(Path(__file__), request),
    )  # fmt: skip


def wait(folder: Path, ends: Mapping[str, Future[Ended]]) -> None:
    """Until both worlds have trained their first steps."""
    until = time.monotonic() + READY_S
    while not all(_says(folder / f"{letter}.log", b"ready") for letter in ends):
        for end in ends.values():
            assert not end.done(), end.result()
        assert time.monotonic() < until, "the ranks did not get ready"
        time.sleep(0.2)


def _says(log: Path, word: bytes) -> bool:
    return log.exists() and word in log.read_bytes()


def write(path: Path, text: str) -> None:
    """At one stroke: somebody waits for it."""
    path.with_suffix(".new").write_text(text)
    path.with_suffix(".new").replace(path)


def train() -> None:
    """One rank: steps in the turns that are this world's, sleep in the others."""
    import torch
    import torch.distributed as dist

    from regbot_guest.harness import Training, load_plugin
    from regbot_guest.request import Request
    from regbot_guest.world import open_world

    asked = json.loads(os.environ["TURNS"])
    request = Request.load(Path(asked["request"]))
    found: dict[int, list[tuple[float, float]]] = {}
    with open_world(request.world, request.ep, fake=False) as world:
        training = Training(request, load_plugin(None), world)
        number = 0
        for number in range(WARMUP):
            training.step(number)
        dist.barrier()
        if world.rank == 0:
            print("ready", flush=True)
        signal = Path(asked["signal"])
        while not signal.exists():
            time.sleep(0.05)
        begin = float(signal.read_text())
        for turn in asked["turns"]:
            opens = begin + turn * asked["turn_s"]
            time.sleep(max(0.0, opens - time.monotonic()))
            taken: list[tuple[float, float]] = []
            longest = 0.0
            while True:
                # The last step must not run into the other world's turn; rank 0 says for all whether it may begin.
                room = opens + asked["turn_s"] - time.monotonic() - 1.5 * longest
                on = torch.tensor([int(room > 0)])
                dist.broadcast(on, 0)
                if not on.item():
                    break
                number += 1
                started, used = time.perf_counter(), time.process_time()
                training.step(number)
                dist.barrier()
                taken.append((time.perf_counter() - started, time.process_time() - used))
                longest = max(longest, taken[-1][0])
            found[turn] = taken[1:] or taken  # the first finds cold caches
        if world.rank == 0:
            Path(asked["record"]).write_text(json.dumps(found))


if __name__ == "__main__":
    if "TURNS" in os.environ:
        train()
    else:
        sys.exit(main())
