"""A timed run of the smoke model on two gloo ranks, one of which is slowed down without changing its code.

    python slowed.py REQUEST [SHARE]     rank 1 uses SHARE more CPU time than it needs

A timer on CPU time interrupts the rank, which then computes uselessly for a share of its own CPU time. So the slowdown
does not depend on other load, and waiting is not slowed down. The ranks are forked from one process that has imported
torch.
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
        signal.setitimer(
            signal.ITIMER_VIRTUAL, PERIOD_S
        )  # set again here, so that it does not fire during this computation

    signal.signal(signal.SIGVTALRM, compute)
    signal.setitimer(signal.ITIMER_VIRTUAL, PERIOD_S)


if __name__ == "__main__":
    main(*sys.argv[1:])
