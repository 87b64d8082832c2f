"""Cost of monitoring the node of a run: the CPU seconds that it adds to regbot's own process for each minute of a run.

The run is a process that sleeps, started by the local engine, so that all CPU time is that of regbot. ``--gpus`` is the
number of simulated GPUs, which answer at once. The result therefore does not include the time of NVML itself; measure
it on a node with GPUs (``--real``).

python benchmarks/monitor_cost.py [--seconds 20] [--pairs 5] [--gpus 8] [--real]
"""

import argparse
import resource
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from regbot.engines import Launch, LocalEngine, clean_environment
from regbot.engines.health.monitor import Monitor
from regbot.engines.health.nvml import find_nvml
from support.nvml_stand_in import Card, StandIn


def cpu_s() -> float:
    """Return the CPU seconds of all threads of this process."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def run(seconds: float, folder: Path) -> None:
    """Run a process that sleeps."""
    launch = Launch(
        command=(sys.executable, "-S", "-c", f"import time; time.sleep({seconds})"),
        cwd=folder,
        env=clean_environment({}),
        log=folder / "output.log",
        record_dir=folder / "record",
        timeout_s=seconds + 60,
        max_output_bytes=2**16,
        max_dir_bytes=2**16,
    )
    LocalEngine().run(launch)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--gpus", type=int, default=8)
    parser.add_argument("--real", action="store_true", help="query the GPUs of this node")
    options = parser.parse_args()

    def nvml() -> Any:
        return find_nvml() if options.real else StandIn(*[Card() for _ in range(options.gpus)])

    extra, opening = [], []
    with tempfile.TemporaryDirectory() as name:
        for _ in range(options.pairs):
            begun = cpu_s()
            run(options.seconds, Path(name))
            without = cpu_s() - begun
            begun, started = cpu_s(), time.perf_counter()
            with Monitor(nvml=nvml) as monitor:
                opening.append(time.perf_counter() - started)
                run(options.seconds, Path(name))
            extra.append((cpu_s() - begun - without) * 60 / options.seconds)
    print(f"GPUs              {len(monitor.health.during.gpus)}{'' if options.real else ' of a stand-in'}")
    print(f"CPU s per minute  median {statistics.median(extra):.3f}, {min(extra):.3f} to {max(extra):.3f}")
    print(f"share of one core median {statistics.median(extra) / 60:.3%}")
    print(f"before a run      median {1000 * statistics.median(opening):.1f} ms, at most {1000 * max(opening):.1f} ms")
    print(f"record            {len(monitor.health.model_dump_json())} bytes")
    for warning in monitor.warnings:
        print(warning)


if __name__ == "__main__":
    main()
