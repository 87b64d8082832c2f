"""Grow one short original, in any format that ``regbot compare`` reads, into the runs of base and head.

    python docs/examples/grow.py docs/examples/originals/maxtext.log out --runs 4 --slower 5

writes out/base-01.log to base-04.log and head-01.log to head-04.log: logs of one job that was launched eight times, in
the original's own format. Nothing is measured. What the times are made of is stated here and on the command line, so
that a verdict on them can be held against the truth. For step i of a run

    seconds = usual x shape(i) x exp(run + noise(i)) x (1 + slower / 100, in head)

usual     median of the second half of the original
shape     the original's first half over usual: its warm-up, MaxText's dispatch that was not waited for; then 1
run       one normal number for every run, of --run-noise percent: placement, clocks, allocator
noise     autoregressive of order one with 0.4, of --step-noise percent: neighbouring steps are alike

``--stall`` makes every fifth step of head slower by so many percent, ``--late`` every step of head after 60% of them,
``--warm-up`` lets the first N steps of head take 30% longer. The same command writes the same files. Speeds that stand
beside a time (TFLOP/s, tokens per second) follow it, other fields are the original's. Standard library only.
"""

import argparse
import json
import math
import random
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import median

RHO = 0.4

Write = Callable[[Sequence[float]], str]
"""Seconds of all steps -> the text of a log."""

LINES = {
    "iteration": (r"(?P<number>(?<=iteration)\s+\d+)(?=/)", r"(?<=per iteration \(ms\): )[\d.]+", 1000.0),
    "completed step": (r"(?P<number>(?<=completed step: )\d+)", r"(?<=seconds: )[\d.]+", 1.0),
}
"""A word of a step line -> its number, its time, and how many of its units are a second."""
SPEEDS = re.compile(r"(?<=\(TFLOP/s/GPU\): )[\d.]+|(?<=TFLOP/s/device: )[\d.]+|(?<=Tokens/s/device: )[\d.]+")
TITAN = {"tps": r"(?<=tps: )[\d,]+", "tflops": r"(?<=tflops: )[\d.,]+", "mfu": r"(?<=mfu: )[\d.]+"}


def read(path: Path) -> tuple[list[float], Write]:
    """The original's seconds (of torchtitan in seconds for one token), and what writes a log like it."""
    text = path.read_text()
    if text.startswith("step,step_s"):
        return [float(line.split(",")[1]) for line in text.split()[1:]], _csv
    if text.startswith("{"):
        document = json.loads(text)
        return _megatron_golden(document) if "iteration-time" in document else _bridge_golden(document)
    lines = text.splitlines()
    for word, (number, time, units) in LINES.items():
        found = [line for line in lines if word in line and re.search(time, line)]
        if found:
            return [float(_find(time, line)) / units for line in found], _step_lines(found, number, time, units)
    found = [line for line in lines if "tps: " in line]
    if not found:
        sys.exit(f"{path}: no step of a known format")
    return [1 / float(_find(TITAN["tps"], line).replace(",", "")) for line in found], _titan_lines(found)


def _csv(seconds: Sequence[float]) -> str:
    return "step,step_s\n" + "".join(f"{step},{value:.6f}\n" for step, value in enumerate(seconds))


def _megatron_golden(document: dict[str, dict[str, object]]) -> tuple[list[float], Write]:
    """Step 1 is the string "nan", as in every golden file: TensorBoard has no value of it."""
    values = document["iteration-time"]["values"]
    assert isinstance(values, dict)

    def write(seconds: Sequence[float]) -> str:
        steps = {str(step): "nan" if step == 1 else round(value, 5) for step, value in enumerate(seconds, start=1)}
        series = {"start_step": 1, "end_step": len(seconds), "step_interval": 1, "values": steps}
        return json.dumps({"iteration-time": series}, indent=4) + "\n"

    return [float(value) for value in values.values() if value != "nan"], write


def _bridge_golden(document: dict[str, dict[str, float]]) -> tuple[list[float], Write]:
    time, speed = "elapsed time per iteration (ms)", "GPU utilization"
    entries = [entry for entry in document.values() if isinstance(entry, dict)]  # and the memory beside them
    work = entries[-1][time] * entries[-1][speed]

    def write(seconds: Sequence[float]) -> str:
        steps = {
            str(step): {
                **entries[min(step, len(entries) - 1)],
                time: round(1000 * value, 1),
                speed: round(work / value / 1000, 1),
            }
            for step, value in enumerate(seconds)
        }
        return json.dumps(steps, indent=4) + "\n"

    return [entry[time] / 1000 for entry in entries], write


def _step_lines(lines: Sequence[str], number: str, time: str, units: float) -> Write:
    """Lines of Megatron and MaxText: the original's last one with another number, another time, other speeds."""
    template, first = lines[-1], int(_find(number, lines[0]))
    usual = float(_find(time, template))
    digits = len(_find(time, template).partition(".")[2])

    def line(step: int, seconds: float) -> str:
        written = f"{units * seconds:.{digits}f}"
        text = re.sub(number, lambda found: f"{first + step:>{len(found.group())}}", template)
        text = SPEEDS.sub(lambda found: _scaled(found.group(), usual / (units * seconds)), text)
        return re.sub(time, written, text) + "\n"

    return lambda seconds: "".join(line(step, value) for step, value in enumerate(seconds))


def _titan_lines(lines: Sequence[str]) -> Write:
    """Lines of torchtitan, which have no time: tokens per second and what follows from them."""
    template = lines[-1]
    usual = float(_find(TITAN["tps"], template).replace(",", ""))

    def line(step: int, seconds: float) -> str:
        text = re.sub(r"step:\s+\d+", f"step: {step:2}", template)
        for name, pattern in TITAN.items():
            speed = float(_find(pattern, template).replace(",", "")) / seconds / usual
            text = re.sub(pattern, f"{speed:,.0f}" if name == "tps" else f"{speed:,.2f}", text)
        return text + "\n"

    return lambda seconds: "".join(line(step, value) for step, value in enumerate(seconds, start=1))


def _scaled(speed: str, factor: float) -> str:
    """``speed`` times ``factor``, with as many digits."""
    return f"{float(speed) * factor:.{len(speed.partition('.')[2])}f}"


def _find(pattern: str, line: str) -> str:
    found = re.search(pattern, line)
    if found is None:
        sys.exit(f"no {pattern!r} in {line[:100]!r}")
    return found.group()


def run(original: Sequence[float], asked: argparse.Namespace, arm: str, number: int) -> Iterator[float]:
    """Seconds of every step of one run."""
    chance = random.Random(f"{asked.seed} {arm} {number}")
    half = len(original) // 2
    usual, head = median(original[half:]), arm == "head"
    level = chance.gauss(0, asked.run_noise / 100)
    noise = 0.0
    for step in range(asked.steps):
        noise = RHO * noise + chance.gauss(0, asked.step_noise / 100 * math.sqrt(1 - RHO**2))
        shape = original[step] / usual if step < half else 1.0
        if head:
            shape *= 1 + asked.slower / 100
            shape *= 1 + asked.stall / 100 * (step % 5 == 4)
            shape *= 1 + asked.late / 100 * (step >= 0.6 * asked.steps)
            shape *= 1.3 if step < asked.warm_up else 1.0
        yield usual * shape * math.exp(level + noise)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("original", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--runs", type=int, default=4, help="of each arm (default 4)")
    parser.add_argument("--steps", type=int, default=50, help="of each run (default 50)")
    parser.add_argument("--slower", type=float, default=0.0, metavar="PCT", help="head's true slowdown (default 0)")
    parser.add_argument("--run-noise", type=float, default=0.3, metavar="PCT", help="default 0.3")
    parser.add_argument("--step-noise", type=float, default=0.5, metavar="PCT", help="default 0.5")
    parser.add_argument("--stall", type=float, default=0.0, metavar="PCT", help="of every fifth step of head")
    parser.add_argument("--late", type=float, default=0.0, metavar="PCT", help="of head's steps after 60%% of them")
    parser.add_argument("--warm-up", type=int, default=0, metavar="N", help="of head, on top of the original's")
    parser.add_argument("--seed", default="1")
    asked = parser.parse_args()
    original, write = read(asked.original)
    asked.out.mkdir(parents=True, exist_ok=True)
    for arm in ("base", "head"):
        for number in range(1, asked.runs + 1):
            path = asked.out / f"{arm}-{number:02}{asked.original.suffix}"
            path.write_text(write([*run(original, asked, arm, number)]))


if __name__ == "__main__":
    main()
