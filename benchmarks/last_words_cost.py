"""What it costs a rank to note each collective for the case that it hangs: see ``regbot_guest.last_words``.

A collective that does nothing, called and waited for: bare and noted in turns. Printed: what the note adds to one, and
that as a share of a step of each smoke model that issues as many.

    python benchmarks/last_words_cost.py [--blocks N] [--calls N]
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

import torch  # noqa: E402 (the guest's folder first)

from regbot_guest.last_words import LastWords  # noqa: E402

STEPS = {"mixtral-8x7b@1 cpu": (18, 0.165), "qwen3-30b-a3b@1 cpu": (18, 0.23)}
"""Collectives that a rank issues in a step, and its seconds on two cores with little beside it."""


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
    asked = parser.parse_args()
    BareGroup.alltoall_base, BareWork.wait = ProcessGroup.alltoall_base, Work.wait  # type: ignore[method-assign]
    out, given = torch.empty(1024), torch.zeros(1024)
    splits: list[int] = []

    def seconds(group: ProcessGroup) -> float:
        begun = time.perf_counter()
        for _ in range(asked.calls):
            group.alltoall_base(out, given, splits, splits).wait()
        return (time.perf_counter() - begun) / asked.calls

    with tempfile.TemporaryDirectory() as folder:
        LastWords(Path(folder), 0, 3600).follow(SimpleNamespace(ProcessGroup=ProcessGroup, Work=Work))
        bare, noted = BareGroup(), ProcessGroup()
        times = [(seconds(bare), seconds(noted), seconds(noted), seconds(bare)) for _ in range(asked.blocks)]
    added = sorted(1e6 * (b + c - a - d) / 2 for a, b, c, d in times)
    spread = f"{added[len(added) // 4]:.2f} to {added[-len(added) // 4]:.2f}"
    print(f"a collective's note: {median(added):.2f} us (middle half of {asked.blocks} blocks: {spread})")
    for name, (count, step_s) in STEPS.items():
        share = median(added) * 1e-6 * count / step_s
        print(f"{name}: {count} collectives in a step of {1000 * step_s:.0f} ms: {share:.3%} of it")


if __name__ == "__main__":
    main()
