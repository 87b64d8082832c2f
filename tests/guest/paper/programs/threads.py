"""Run operators on three threads while a data loader forks workers: the main thread, another one, and autograd's device
thread. Print what every thread computed, and what the device counted.
"""

import json
import threading

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from regbot_guest.paper.device import paper_gpu

ROUNDS, FORKS, WORKERS = 40, 3, 2
device = paper_gpu()
assert device is not None


class Squares(Dataset[Tensor]):
    """Squares that a worker computes on the host."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> Tensor:
        return torch.tensor(index) ** 2


def load() -> list[int]:
    """Return the sum of all squares, once for each data loader. Each data loader forks new workers."""
    return [
        sum(
            int(batch.cuda().sum())
            for batch in DataLoader(Squares(), batch_size=2, num_workers=WORKERS, pin_memory=True)
        )
        for _ in range(FORKS)
    ]


def train(gradients: list[bool], stop: threading.Event) -> None:
    """Run forward and backward until ``stop`` is set, and at least ``ROUNDS`` times. Backward runs on the device
    thread."""
    weight = torch.randn(64, 64, device="cuda", requires_grad=True)
    names = set()
    weight.register_hook(lambda _: names.add(threading.get_ident()))
    rounds = 0
    while rounds < ROUNDS or not stop.is_set():
        weight.grad = None
        (weight @ weight).relu().sum().backward()
        gradients.append(weight.grad is not None and not device.is_known(weight.grad))
        rounds += 1
    gradients.append(threading.get_ident() not in names)


# A worker that is forked while another thread imports a module waits for that module without end, on any device.
# So each function runs once before, and has imported what it needs.
stop = threading.Event()
stop.set()
train([], stop)
load()
stop.clear()

live_before = device.live_bytes
device.ops.begin_step(False)
gradients: list[bool] = []
thread = threading.Thread(target=train, args=(gradients, stop))
thread.start()
loaded = load()
stop.set()
thread.join()
launches = {kernels.operator: kernels.launches for kernels in device.kernels()}
print(
    json.dumps(
        {
            "loaded": loaded,
            "gradients": sorted(set(gradients)),
            "launches": launches["aten::mm"] - 3 * (len(gradients) - 1),
            "live": device.live_bytes - live_before,
        }
    )
)
