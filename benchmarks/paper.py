"""Time and memory of the paper GPU, beside the CPU program that it replaces: an operator, a step, a command and a
check.

    python benchmarks/paper.py [--repeat 3]

All measurements are made in this run, in turns. The library is built first, and the time of the build is printed
separately. The traces are of Qwen3-30B-A3B at full size, each in a fresh process. The check is of the demo's pull
request, with both shapes on both meshes.

The wide trace has 1024 ranks in expert-parallel groups of 16, and not one group of 1024: the model has 128 experts, so
at most 128 ranks can divide them. The rank's program is the same as on 16 ranks, so the ratio is the cost of the ranks
alone. The results are medians with their ranges. ``benchmarks/demo.py`` measures the
demo."""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from promises import Promise, report_promises

from regbot.cli.demo import build_repository
from regbot.engines.guest import guest_folder, write_json
from regbot.workloads.guest import RawRecord, request_document
from regbot.workloads.paper import library_for
from regbot.workloads.shapes import load_shape
from regbot.workloads.task import smoke_task

SHAPE = "qwen3-30b-a3b"
OPERATOR_LIMIT_US = 10.0
MEMORY_LIMIT_GIB = 0.45
STEP_RATIO, COMMAND_RATIO, RANKS_RATIO = 0.1, 0.35, 1.3
CHECK_AIM_S = 20.0
"""Aim for the seconds of a check on two quiet cores. It is printed but not checked."""

REGBOT = str(Path(sys.executable).with_name("regbot"))
OPERATOR = """
import sys, time
from pathlib import Path
guest, paper = sys.argv[1:]
sys.path.insert(0, guest)
if paper:
    from regbot_guest.paper.loading import install
    install(Path(paper))
import torch
torch.set_num_threads(1)
x = torch.randn(64, 64, device="cuda" if paper else "cpu")
for _ in range(3):
    start = time.perf_counter()
    for _ in range(20_000):
        x = x + 1
    taken = (time.perf_counter() - start) / 20_000 * 1e6
print(taken)
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeat", type=int, default=3)
    repeat = parser.parse_args().repeat
    with tempfile.TemporaryDirectory(prefix="regbot-benchmark-") as name:
        return measure(Path(name), repeat)


def measure(folder: Path, repeat: int) -> int:
    """Run all measurements, print them, and check the promises. Return the exit code."""
    os.environ |= {"REGBOT_CACHE": str(folder / "cache"), "REGBOT_PAPER_CACHE": str(folder / "paper")}
    library = library_for(sys.executable, folder / "cache", folder / "spare")
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} before; median (range) of {repeat}")
    print(f"{'build of the paper GPU':<36}{library.built_s or 0.0:8.1f} s")
    paper = str(library.path)
    repository = build_repository(folder / "repository", "harmless").path
    trace = (REGBOT, "ledger", "trace", SHAPE)
    operators, cpu_operators, steps, cpu_steps, memory, cpu_memory = ([] for _ in range(6))
    commands, cpu_commands, wide, checks = ([] for _ in range(4))
    for number in range(repeat):
        operators.append(operator_us(paper))
        cpu_operators.append(operator_us(""))
        for device, times, gibs in ((paper, steps, memory), ("", cpu_steps, cpu_memory)):
            step_s, gib = step(folder, device)
            times.append(step_s)
            gibs.append(gib)
        commands.append(seconds((*trace, "--device", "cuda")))
        cpu_commands.append(seconds((*trace, "--device", "cpu")))
        wide.append(seconds((*trace, "--device", "cuda", "--world", "1024", "--ep", "16")))
        out = str(folder / f"check{number}")
        checks.append(seconds((REGBOT, "check", "--base", "main", "--no-timing", "--out", out), repository))
    show("one operator, paper GPU", operators, "us")
    show("one operator, CPU", cpu_operators, "us")
    show("one step, paper GPU", steps, "s")
    show("one step, CPU program", cpu_steps, "s")
    show("the command, paper GPU, EP 16", commands, "s")
    show("the command, CPU program, EP 16", cpu_commands, "s")
    show("the command, paper GPU, 1024 ranks", wide, "s")
    show("memory, paper GPU", memory, "GiB")
    show("memory, CPU program", cpu_memory, "GiB")
    show("a check of eight traces", checks, f"s; {CHECK_AIM_S:g} s aimed at, on two quiet cores")
    return report_promises(
        [
            limit("an operator takes at most 10 us", statistics.median(operators), OPERATOR_LIMIT_US),
            limit("a trace takes at most 0.45 GiB", max(memory), MEMORY_LIMIT_GIB),
            ratio("a step takes at most a tenth of the CPU program's", steps, cpu_steps, STEP_RATIO),
            ratio("the command takes at most 0.35 of the CPU program's", commands, cpu_commands, COMMAND_RATIO),
            ratio("1024 ranks take at most 1.3 times 16", wide, commands, RANKS_RATIO),
        ]
    )


def operator_us(paper: str) -> float:
    """Return the microseconds of ``x + 1`` on a 64 x 64 tensor, on the paper GPU ``paper``, or on the CPU for ''."""
    command = [sys.executable, "-c", OPERATOR, str(guest_folder()), paper]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def step(folder: Path, paper: str) -> tuple[float, float]:
    """Return the seconds of a step, from traces of two and of six steps, and the peak memory of the process in GiB."""
    record, task = folder / "raw.json", smoke_task(load_shape(SHAPE), "full")
    document = request_document(task, folder, RawRecord(record, "benchmark")) | {"paper": paper}
    two_steps_s, six_steps_s = (
        seconds((sys.executable, str(guest_folder()), str(write_json(folder / f"{n}.json", document | {"steps": n}))))
        for n in (2, 6)
    )
    raw = json.loads(record.read_text(encoding="utf-8"))
    return (six_steps_s - two_steps_s) / 4, raw["peak_rss_bytes"] / 2**30


def seconds(command: Sequence[str], folder: Path | None = None) -> float:
    """Return the wall time of a command. Raises SystemExit if the command fails."""
    start = time.perf_counter()
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(command)}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
    return time.perf_counter() - start


def show(name: str, values: Sequence[float], unit: str) -> None:
    """Print the median and the range of one measurement."""
    print(f"{name:<36}{statistics.median(values):8.2f} ({min(values):.2f} to {max(values):.2f}) {unit}")


def limit(text: str, value: float, most: float) -> Promise:
    return Promise(text, f"{value:.2f}", value <= most)


def ratio(text: str, values: Sequence[float], peers: Sequence[float], most: float) -> Promise:
    quotient = statistics.median(values) / statistics.median(peers)
    return Promise(text, f"{quotient:.3f}", quotient <= most)


if __name__ == "__main__":
    sys.exit(main())
