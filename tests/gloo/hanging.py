"""Two gloo ranks for each kind of hang, all in parallel. Each rank records its hang and is killed at the time limit.

The ranks are forked from one process that has imported torch, because importing it takes longer than the hang.

    python hanging.py FOLDER FAULT...     writes the files of each fault to FOLDER/FAULT
"""

import os
import signal
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

from regbot_guest.hang_recorder import HangRecorder

RANKS = 2
HANGS_S = 4.0
"""Seconds of hanging before a rank writes its stacks: enough for the other rank to reach its wait."""
PATIENCE_S = 60.0


class Exchange(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, layer):  # type: ignore[no-untyped-def]
        ctx.layer = layer
        out = torch.empty_like(x)
        dist.all_to_all_single(out, x.contiguous(), group=layer.group)
        return out

    @staticmethod
    def backward(ctx, grad):  # type: ignore[no-untyped-def]
        ctx.layer.fault("backward")
        out = torch.empty_like(grad)
        dist.all_to_all_single(out, grad.contiguous(), group=ctx.layer.group)
        return out, None


class Layer(nn.Module):
    def __init__(self, group, fault):  # type: ignore[no-untyped-def]
        super().__init__()
        self.group, self._fault, self.calls = group, fault, 0
        self.expert = nn.Linear(8, 8)

    def fault(self, place: str) -> None:
        if self.calls == 3 and dist.get_rank() == 1:
            FAULTS.get(f"{self._fault} in {place}", nothing)(self)

    def forward(self, x):  # type: ignore[no-untyped-def]
        self.calls += 1
        self.fault("forward")
        return self.expert(Exchange.apply(x, self))


def nothing(_: Layer) -> None:
    pass


def sleep_in_expert(_: Layer) -> None:
    time.sleep(3600)


def stuck_in_c(_: Layer) -> None:
    import ctypes

    ctypes.PyDLL(None).pause()  # holds the GIL


FAULTS = {
    "sleep in forward": sleep_in_expert,
    "backward in backward": sleep_in_expert,
    "lock in forward": stuck_in_c,
}


def rank_of(folder: Path, rank: int, fault: str) -> None:
    recorder = HangRecorder(folder, rank, 3600)
    recorder.record_collectives()
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=RANKS)
    group = dist.new_group([0, 1], group_desc="ep")
    model = nn.Sequential(nn.Linear(8, 8), nn.Sequential(nn.ReLU(), Layer(group, fault)))
    for step in range(10):
        if step == 2:
            recorder.schedule_dump(HANGS_S)
        model(torch.randn(4, 8)).sum().backward()
    time.sleep(3600)


def main(folder: Path, faults: list[str]) -> None:
    ranks = []
    for fault in faults:
        place = folder / fault
        place.mkdir(parents=True)
        for rank in range(RANKS):
            if not (child := os.fork()):
                try:
                    rank_of(place, rank, fault)
                finally:
                    os._exit(1)
            ranks.append(child)
    until = time.monotonic() + PATIENCE_S
    while not all(written(folder / fault / f"stacks.{rank}") for fault in faults for rank in range(RANKS)):
        if time.monotonic() > until:
            break
        time.sleep(0.1)
    for child in ranks:
        os.kill(child, signal.SIGKILL)
    for child in ranks:
        os.waitpid(child, 0)


def written(stacks: Path) -> bool:
    return stacks.exists() and "Thread" in stacks.read_text() and time.time() - stacks.stat().st_mtime > 0.5


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
