"""Time of ``regbot demo`` divided by the time of one trace of Qwen3 at full shape, measured in turns.

    python benchmarks/demo.py [--repeat 3]

Each run is a fresh process with an empty cache folder. The paper GPU is built before; ``benchmarks/paper.py`` measures
its build. The demo traces four programs, two at a time. Other work on the machine slows the demo more than one trace,
because a trace needs a single core.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from promises import Promise, report_promises

LIMIT_RATIO = 6.5
"""Limit on the time of the demo divided by the time of one trace on the paper GPU. The demo has four traces, two at a
time, and also makes checkouts and a report."""

QUIET_S = 90.0
"""Limit on the seconds of the demo on two quiet cores. It is printed but not checked, because other work on the machine
makes all times longer."""

REGBOT = str(Path(sys.executable).with_name("regbot"))
TRACE = ("ledger", "trace", "qwen3-30b-a3b", "--world", "16", "--ep", "16")
DEMO = ("demo", "--out", "demo-out")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeat", type=int, default=3)
    repeat = parser.parse_args().repeat
    with tempfile.TemporaryDirectory(prefix="regbot-paper-") as folder:
        os.environ["REGBOT_PAPER_CACHE"] = folder
        return measure(repeat)


def measure(repeat: int) -> int:
    """Run the demo and the trace in turns, print their times, and check the ratio. Return the exit code."""
    load = os.getloadavg()[0]
    seconds(TRACE)  # builds the paper GPU, and fills the file cache
    trace_s, demo_s = zip(*[(seconds(TRACE), seconds(DEMO)) for _ in range(repeat)], strict=True)
    ratios = [demo / trace for demo, trace in zip(demo_s, trace_s, strict=True)]
    print(f"{os.cpu_count()} cores, load {load:.1f} before; minimum, median, maximum of {repeat}")
    print(f"one trace of Qwen3   {spread(trace_s, 1)} s")
    print(f"regbot demo          {spread(demo_s, 1)} s; at most {QUIET_S:.0f} s on two quiet cores")
    print(f"ratio                {spread(ratios, 2)}")
    ratio = statistics.median(ratios)
    return report_promises(
        [Promise(f"the demo takes at most {LIMIT_RATIO} times one trace", f"{ratio:.2f}", ratio <= LIMIT_RATIO)]
    )


def seconds(arguments: tuple[str, ...]) -> float:
    """Return the wall time of one ``regbot`` process in an empty folder, with an empty cache."""
    with tempfile.TemporaryDirectory(prefix="regbot-") as folder:
        environment = {**os.environ, "REGBOT_CACHE": str(Path(folder) / "cache")}
        start = time.perf_counter()
        subprocess.run([REGBOT, *arguments], cwd=folder, env=environment, check=True, capture_output=True)
        return time.perf_counter() - start


def spread(values: tuple[float, ...] | list[float], digits: int) -> str:
    return " ".join(f"{value:.{digits}f}" for value in (min(values), statistics.median(values), max(values)))


if __name__ == "__main__":
    sys.exit(main())
