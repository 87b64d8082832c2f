"""Two gloo ranks of the smoke model, timed by the guest itself, one of them made slower from outside of its code.

    python slowed.py REQUEST [SHARE]     rank 1 computes for SHARE of its own CPU time more than it has to

A timer of the process's CPU time interrupts the rank, which then computes for nothing: in proportion to what it has
worked, so that the slowdown is known whatever else the machine does, and never while it waits. The ranks are forked
from one process that has torch.
"""

import os
import signal
import socket
import sys
import time

import torch

from regbot_guest import process

PERIOD_S = 0.002


def main(request: str, share: str = "") -> None:
    torch.set_num_threads(1)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    os.environ.update(WORLD_SIZE="2", LOCAL_WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    ranks = [rank_of(request, rank, float(share or 0) if rank == 1 else 0.0) for rank in range(2)]
    sys.exit(max(abs(os.waitstatus_to_exitcode(os.waitpid(rank, 0)[1])) for rank in ranks))


def rank_of(request: str, rank: int, share: float) -> int:
    if child := os.fork():
        return child
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank))
    if share:
        slow_down(share)
    os._exit(process.main([request]))


def slow_down(share: float) -> None:
    worked = [time.process_time()]

    def compute(*_: object) -> None:
        until = (now := time.process_time()) + share * (now - worked[0])
        while (now := time.process_time()) < until:
            pass
        worked[0] = now
        signal.setitimer(signal.ITIMER_VIRTUAL, PERIOD_S)  # once more, and not while this computes

    signal.signal(signal.SIGVTALRM, compute)
    signal.setitimer(signal.ITIMER_VIRTUAL, PERIOD_S)


if __name__ == "__main__":
    main(*sys.argv[1:])
