"""Generate log files of runs of base and head from one short original, in any format that ``regbot compare`` reads.

    python docs/examples/grow.py docs/examples/originals/maxtext.log out --runs 4 --slower 5

writes out/base-01.log to base-04.log and head-01.log to head-04.log: logs of one job that was launched eight times, in
the original's own format. Nothing is measured. The times follow the formula below, so a verdict on them can be compared
with the true slowdown. For step i of a run

    seconds = usual x shape(i) x exp(run + noise(i)) x (1 + slower / 100, in head)

usual     median of the second half of the original
shape     in the first half, the original divided by ``usual``: warm-up, short times of MaxText's dispatch. Then 1
run       one normal number for every run, with a standard deviation of --run-noise percent (placement, clocks, ...)
noise     first-order autoregressive with coefficient 0.4 and a standard deviation of --step-noise percent

``--stall`` makes every fifth step of head slower by the given percentage. ``--late`` makes all steps of head slower
after 60% of the run. ``--warm-up N`` makes the first N steps of head 30% longer. The same command always writes the
same files. Speeds beside a time (TFLOP/s, tokens per second) are scaled with the time. Other fields are copied from the
original. The script uses the standard library only.
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
"""Autocorrelation of the noise of neighbouring steps."""

WriteLog = Callable[[Sequence[float]], str]
"""Return the text of a log with these step times in seconds."""

LINES = {
    "iteration": (r"(?P<number>(?<=iteration)\s+\d+)(?=/)", r"(?<=per iteration \(ms\): )[\d.]+", 1000.0),
    "completed step": (r"(?P<number>(?<=completed step: )\d+)", r"(?<=seconds: )[\d.]+", 1.0),
}
"""For the words by which step lines are recognized: a pattern of the step number, one of the time, and the number of
time units per second."""
SPEEDS = re.compile(r"(?<=\(TFLOP/s/GPU\): )[\d.]+|(?<=TFLOP/s/device: )[\d.]+|(?<=Tokens/s/device: )[\d.]+")
TITAN = {"tps": r"(?<=tps: )[\d,]+", "tflops": r"(?<=tflops: )[\d.,]+", "mfu": r"(?<=mfu: )[\d.]+"}


def read(path: Path) -> tuple[list[float], WriteLog]:
    """Return the step times of an original in seconds, and a function that writes a log of the same format. For
    torchtitan the times are seconds per token.
    """
    text = path.read_text()
    if text.startswith("step,step_s"):
        return [float(line.split(",")[1]) for line in text.split()[1:]], _csv
    if text.startswith("{"):
        document = json.loads(text)
        return _megatron_golden(document) if "iteration-time" in document else _bridge_golden(document)
    lines = text.splitlines()
    for word, (number, time, units) in LINES.items():
        steps = [line for line in lines if word in line and re.search(time, line)]
        if steps:
            return [float(_find(time, line)) / units for line in steps], _step_lines(steps, number, time, units)
    steps = [line for line in lines if "tps: " in line]
    if not steps:
        sys.exit(f"{path}: no step of a known format")
    return [1 / float(_find(TITAN["tps"], line).replace(",", "")) for line in steps], _titan_lines(steps)


def _csv(seconds: Sequence[float]) -> str:
    return "step,step_s\n" + "".join(f"{step},{value:.6f}\n" for step, value in enumerate(seconds))


def _megatron_golden(document: dict[str, dict[str, object]]) -> tuple[list[float], WriteLog]:
    """Golden values of Megatron-LM. Step 1 is the string "nan", because TensorBoard has no value for it."""
    values = document["iteration-time"]["values"]
    assert isinstance(values, dict)

    def write(seconds: Sequence[float]) -> str:
        steps = {str(step): "nan" if step == 1 else round(value, 5) for step, value in enumerate(seconds, start=1)}
        series = {"start_step": 1, "end_step": len(seconds), "step_interval": 1, "values": steps}
        return json.dumps({"iteration-time": series}, indent=4) + "\n"

    return [float(value) for value in values.values() if value != "nan"], write


def _bridge_golden(document: dict[str, dict[str, float]]) -> tuple[list[float], WriteLog]:
    """Golden values of Megatron Bridge: one dictionary per step. Other values are skipped, such as peak memory."""
    time, speed = "elapsed time per iteration (ms)", "GPU utilization"
    entries = [entry for entry in document.values() if isinstance(entry, dict)]
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


def _step_lines(lines: Sequence[str], number: str, time: str, units: float) -> WriteLog:
    """Step lines of Megatron and MaxText: the original's last line with new number, time and speeds."""
    template, first = lines[-1], int(_find(number, lines[0]))
    usual = float(_find(time, template))
    digits = len(_find(time, template).partition(".")[2])

    def line(step: int, seconds: float) -> str:
        written = f"{units * seconds:.{digits}f}"
        text = re.sub(number, lambda match: f"{first + step:>{len(match.group())}}", template)
        text = SPEEDS.sub(lambda match: _scaled(match.group(), usual / (units * seconds)), text)
        return re.sub(time, written, text) + "\n"

    return lambda seconds: "".join(line(step, value) for step, value in enumerate(seconds))


def _titan_lines(lines: Sequence[str]) -> WriteLog:
    """Step lines of torchtitan. They contain no time, but tokens per second and speeds computed from these."""
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
    """Return ``speed`` times ``factor``, with the same number of decimals."""
    return f"{float(speed) * factor:.{len(speed.partition('.')[2])}f}"


def _find(pattern: str, line: str) -> str:
    match = re.search(pattern, line)
    if match is None:
        sys.exit(f"no {pattern!r} in {line[:100]!r}")
    return match.group()


def simulate_run(original: Sequence[float], options: argparse.Namespace, arm: str, number: int) -> Iterator[float]:
    """Yield the seconds of every step of one run."""
    rng = random.Random(f"{options.seed} {arm} {number}")
    half = len(original) // 2
    usual, is_head = median(original[half:]), arm == "head"
    level = rng.gauss(0, options.run_noise / 100)
    noise = 0.0
    for step in range(options.steps):
        noise = RHO * noise + rng.gauss(0, options.step_noise / 100 * math.sqrt(1 - RHO**2))
        shape = original[step] / usual if step < half else 1.0
        if is_head:
            shape *= 1 + options.slower / 100
            shape *= 1 + options.stall / 100 * (step % 5 == 4)
            shape *= 1 + options.late / 100 * (step >= 0.6 * options.steps)
            shape *= 1.3 if step < options.warm_up else 1.0
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
    options = parser.parse_args()
    original, write_log = read(options.original)
    options.out.mkdir(parents=True, exist_ok=True)
    for arm in ("base", "head"):
        for number in range(1, options.runs + 1):
            path = options.out / f"{arm}-{number:02}{options.original.suffix}"
            path.write_text(write_log([*simulate_run(original, options, arm, number)]))


if __name__ == "__main__":
    main()
