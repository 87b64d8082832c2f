"""Cost of recording each collective, so that a hang can be explained (``regbot_guest.hang_recorder``).

It times an empty collective and its wait, alternately without and with the recorder. It prints the time that the
recorder adds to one collective, and its share of a step of each smoke model.

    python benchmarks/hang_recorder_cost.py [--blocks N] [--calls N]
"""

import argparse
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from types import SimpleNamespace

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "regbot" / "guest"))

import torch  # noqa: E402 (only after the guest's folder is in sys.path)

from regbot_guest.hang_recorder import HangRecorder  # noqa: E402

STEPS = {"mixtral-8x7b@1 cpu": (18, 0.165), "qwen3-30b-a3b@1 cpu": (18, 0.23)}
"""Collectives of one rank in a step, and the step's seconds on two cores without much other load."""


class Work:
    def wait(self) -> bool:
        return True


class ProcessGroup:
    work = Work()

    def alltoall_base(self, *_: object) -> Work:
        return self.work


class BareWork(Work):
    pass


class BareGroup(ProcessGroup):
    work = BareWork()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--blocks", type=int, default=50)
    parser.add_argument("--calls", type=int, default=2000)
    options = parser.parse_args()
    BareGroup.alltoall_base, BareWork.wait = ProcessGroup.alltoall_base, Work.wait  # type: ignore[method-assign]
    output, source = torch.empty(1024), torch.zeros(1024)
    splits: list[int] = []

    def seconds(group: ProcessGroup) -> float:
        begun = time.perf_counter()
        for _ in range(options.calls):
            group.alltoall_base(output, source, splits, splits).wait()
        return (time.perf_counter() - begun) / options.calls

    with tempfile.TemporaryDirectory() as folder:
        HangRecorder(Path(folder), 0, 3600).record_collectives(SimpleNamespace(ProcessGroup=ProcessGroup, Work=Work))
        bare, recorded = BareGroup(), ProcessGroup()
        times = [(seconds(bare), seconds(recorded), seconds(recorded), seconds(bare)) for _ in range(options.blocks)]
    added = sorted(1e6 * (b + c - a - d) / 2 for a, b, c, d in times)
    spread = f"{added[len(added) // 4]:.2f} to {added[-len(added) // 4]:.2f}"
    print(f"recording a collective: {median(added):.2f} us (middle half of {options.blocks} blocks: {spread})")
    for name, (count, step_s) in STEPS.items():
        share = median(added) * 1e-6 * count / step_s
        print(f"{name}: {count} collectives in a step of {1000 * step_s:.0f} ms: {share:.3%} of it")


if __name__ == "__main__":
    main()
