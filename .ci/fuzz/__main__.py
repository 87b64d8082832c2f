"""Fuzz every record, every reader of files, and the artifacts of jobs, each input in a process of its own.

Usage: ``python .ci/fuzz [--seconds 600] [--seed N] [--target TEXT] [--input SEED]``. An input fails if its reader
raises another exception than its own, or exceeds ``SMALL`` or ``LARGE``. Each input is drawn from a seed that is
printed, such as ``7:12:reader kineto``; ``--input`` repeats it and keeps
it as ``fuzz-input``. CPU times are scaled by the speed of the machine, because
other programs slow a busy machine down.
"""

import argparse
import os
import random
import resource
import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(Path(__file__).parent), str(ROOT / "tests"), str(ROOT / "regbot" / "guest")]

from targets import LARGE, TARGETS, Limits, Target  # noqa: E402

LOOP_S = 0.035
"""CPU seconds of ``measure_loop`` on the machine for which the limits are stated."""
LARGE_SHARE = 8
"""Targets with large inputs take turns: one of eight in each round."""
KILLED_BYTES, KILLED_S = 3 * 2**30, 60
"""A process is ended at these limits, so that a fault does not take the machine with it."""


@dataclass(frozen=True)
class Usage:
    """Number of inputs, and the most CPU seconds and megabytes that one of them took."""

    inputs: int = 0
    cpu_s: float = 0.0
    memory_mb: int = 0

    def join(self, other: "Usage") -> "Usage":
        most_s, most_mb = max(self.cpu_s, other.cpu_s), max(self.memory_mb, other.memory_mb)
        return Usage(self.inputs + other.inputs, most_s, most_mb)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    parser.add_argument("--target", default="", help="only targets whose name contains this text")
    parser.add_argument("--input", default="", help="repeat one input")
    options = parser.parse_args()
    targets = {target.name: target for target in TARGETS if options.target in target.name}
    if options.input:
        failure, usage = run_input(targets[options.input.split(":", 2)[2]], options.input, keep=True)
        print(failure or "no failure", usage)
        return bool(failure)
    print(f"seed {options.seed}, {len(targets)} targets")
    failures: dict[str, list[str]] = {}
    most: dict[str, Usage] = dict.fromkeys(targets, Usage())
    end = time.monotonic() + options.seconds
    number = 0
    while time.monotonic() < end:
        for position, target in enumerate(targets.values()):
            if target.limits is LARGE and (position + number) % LARGE_SHARE:
                continue
            seed = f"{options.seed}:{number}:{target.name}"
            failure, usage = run_input(target, seed)
            most[target.name] = most[target.name].join(usage)
            if failure:
                summary = f"{target.name}: {failure.splitlines()[-1]}"
                if summary not in failures:
                    print(f"\n{seed}: {failure}", flush=True)
                failures.setdefault(summary, []).append(seed)
        number += 1
    for name, usage in most.items():
        print(f"{name}: {usage.inputs} inputs, at most {usage.cpu_s:.1f} s and {usage.memory_mb} MB")
    for summary, seeds in failures.items():
        print(f"FAILED {len(seeds)} times, first {seeds[0]}: {summary}")
    return bool(failures)


def run_input(target: Target, seed: str, keep: bool = False) -> tuple[str, Usage]:
    """Return why the input of ``seed`` fails, '' if it does not. The last line is the same for the same fault."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "input"
        if (fault := run_child(lambda: write_input(target, seed, path))[0]) and not path.exists():
            return f"the input could not be made: {fault}", Usage()
        if keep:
            shutil.copy(path, "fuzz-input")
        report, usage = run_child(lambda: read_input(target, path))
    return report or find_excess(target.limits, usage), usage


def run_child(work: Callable[[], str]) -> tuple[str, Usage]:
    """Return what ``work`` returns in a process of its own, or how this process ended, and its use of resources."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        resource.setrlimit(resource.RLIMIT_DATA, (KILLED_BYTES, KILLED_BYTES))
        resource.setrlimit(resource.RLIMIT_CPU, (KILLED_S, KILLED_S))
        os.write(writer, work().encode("utf-8", "replace")[-60_000:])
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        report = pipe.read().decode("utf-8", "replace")
    _, status, used = os.wait4(child, 0)
    usage = Usage(1, used.ru_utime + used.ru_stime, used.ru_maxrss // 1024)
    return report or (f"ended with status {status}" if status else ""), usage


def write_input(target: Target, seed: str, path: Path) -> str:
    sys.setrecursionlimit(50_000)  # an input may be nested deeply
    target.write(random.Random(seed), path)
    return ""


def read_input(target: Target, path: Path) -> str:
    """Return a traceback if the reader raised an exception that is not its own, else ''."""
    try:
        target.read(path)
    except target.errors:
        return ""
    except BaseException:
        return traceback.format_exc()
    return ""


def find_excess(limits: Limits, usage: Usage) -> str:
    """Return which of ``limits`` was exceeded, '' if none."""
    if usage.memory_mb > limits.memory_mb:
        return f"{usage.memory_mb} MB\nmore memory than {limits.memory_mb} MB"
    if usage.cpu_s > limits.cpu_s and usage.cpu_s > limits.cpu_s * measure_loop() / LOOP_S:
        return f"{usage.cpu_s:.1f} s\nmore time than {limits.cpu_s} s"
    return ""


def measure_loop() -> float:
    """Return the CPU seconds of a fixed loop."""
    start = time.process_time()
    for _ in range(10**6):
        pass
    return time.process_time() - start


if __name__ == "__main__":
    sys.exit(main())
