"""What the device says a step computes and holds, beside what torch says: ``step_program.py FOLDER`` prints one object.

FOLDER has the requests ``NAME.json`` of ``test_program.py``.
"""

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode, sdpa_backward_flop_count, sdpa_flop_count
from torch.utils.weak import WeakIdKeyDictionary

from regbot_guest.axes import Axes
from regbot_guest.harness import Training, load_plugin
from regbot_guest.model import Block
from regbot_guest.moe import Experts
from regbot_guest.paper.counter import PaperCounter
from regbot_guest.paper.device import paper_gpu
from regbot_guest.paper.libraries import flash_attn
from regbot_guest.replaced import replaced
from regbot_guest.request import Request
from regbot_guest.static_trace import count_step
from regbot_guest.world import open_world

device = paper_gpu()
assert device is not None
folder = Path(sys.argv[1])


def random(*sizes: int, **settings: Any) -> Tensor:
    return torch.randn(*sizes, device="cuda", dtype=torch.bfloat16, **settings)


def attend(*more: Any, kv_heads: int = 4, **settings: Any) -> None:
    query, key, value = (random(2, heads, 24, 16, requires_grad=True) for heads in (4, kv_heads, kv_heads))
    F.scaled_dot_product_attention(query, key, value, *more, **settings).sum().backward()


PRODUCTS: dict[str, Callable[[], Any]] = {
    "mm": lambda: random(5, 7) @ random(7, 3),
    "mm of a transposed matrix": lambda: random(5, 7) @ random(3, 7).t(),
    "addmm": lambda: torch.addmm(random(3), random(5, 7), random(7, 3)),
    "bmm": lambda: torch.bmm(random(4, 5, 7), random(4, 7, 3)),
    "baddbmm": lambda: torch.baddbmm(random(4, 5, 3), random(4, 5, 7), random(4, 7, 3)),
    "einsum": lambda: torch.einsum("bij,bkj->bik", random(4, 5, 7), random(4, 3, 7)),
    "flash attention": lambda: attend(is_causal=True, enable_gqa=True, kv_heads=2),
    "attention with a mask": lambda: attend(random(2, 4, 24, 24)),
}


WAITS: dict[str, Callable[[], Any]] = {
    "item": lambda: numbers[2].item(),
    "tolist": lambda: numbers.tolist(),
    "cpu": lambda: rows.cpu(),
    "copy that does not block": lambda: rows.to("cpu", non_blocking=True),
    "nonzero": lambda: numbers.nonzero(),
    "where of a mask": lambda: torch.where(numbers > 2),
    "rows of a mask": lambda: rows[numbers > 2],
    "rows of positions": lambda: rows[numbers],
    "write of a number by a mask": lambda: rows.__setitem__(numbers > 2, 0),
    "write of rows by a mask": lambda: rows.__setitem__(numbers > 2, random(3, 4)),
    "masked_select": lambda: rows.masked_select(numbers[:4] > 2),
    "unique": lambda: numbers.unique(),
    "bincount": lambda: numbers.bincount(),
    "repeat_interleave": lambda: rows.repeat_interleave(numbers, 0),
    "repeat_interleave of known size": lambda: rows.repeat_interleave(numbers, 0, output_size=15),
    "synchronize": lambda: torch.cuda.synchronize(),
    "synchronize a stream": lambda: torch.cuda.current_stream().synchronize(),
    "synchronize an event": lambda: torch.cuda.current_stream().record_event().synchronize(),
    "wait of a stream": lambda: torch.cuda.Stream().wait_stream(torch.cuda.current_stream()),
    "tensor of the host": lambda: torch.tensor([1, 2], device="cuda"),
    "tensor of the device": lambda: torch.zeros(2, device="cuda"),
}


def list_waits(run: Callable[[], Any]) -> list[Any]:
    """Kind, phase and number of the waits."""
    assert device is not None
    counter = PaperCounter(device, Axes())
    counter.new_step()
    with counter:
        counter.phase = "forward"
        run()
        counter.phase = "unknown"
    return [[wait["kind"], wait["phase"], wait["count"]] for wait in counter.program()["waits"]]


@contextmanager
def with_mistakes() -> Iterator[None]:
    """Eight times the work of the experts, and three waits in each layer."""
    forward = Experts.forward

    def compute(self: Experts, x: Tensor, counts: Tensor) -> Tensor:
        mask = counts > 0
        counts[mask], torch.where(mask)
        torch.cuda.synchronize()
        return torch.stack([forward(self, x, counts) for _ in range(8)]).mean(0)

    with replaced(Experts, "forward", compute):
        yield


def count_products(run: Callable[[], Any]) -> list[int]:
    """FLOPs of the same operators by the device and by torch."""
    assert device is not None
    device.ops.begin_step(False)
    with FlopCounterMode(display=False) as counter:
        run()
    return [sum(kernels.flops for kernels in device.kernels()), counter.get_total_flops()]


def count_flash_attention() -> dict[str, list[int]]:
    """FLOPs of the kernels of flash-attn by its stand-in, and by torch: of two sequences of 24, and of 10 and 14."""
    assert device is not None
    flash = flash_attn.stand_in(device)
    starts = torch.tensor([0, 10, 24], dtype=torch.int32, device="cuda")
    query, key = random(2, 24, 4, 16), random(2, 24, 2, 16)
    shapes = [((batch, 4, length, 16), (batch, 2, length, 16)) for batch, length in ((2, 24), (1, 10), (1, 14))]
    forward = [sdpa_flop_count(queries, keys, keys) for queries, keys in shapes]
    backward = [sdpa_backward_flop_count(queries, queries, keys, keys) for queries, keys in shapes]
    inputs, packed, none = (query, key, key), (query[0], key[0], key[0]), (None, None, None)
    log_sum_exp = torch.empty(2, 4, 24, device="cuda")
    calls: dict[str, tuple[Callable[[], Any], int]] = {
        "fwd": (lambda: flash.fwd(*inputs, None), forward[0]),
        "varlen_fwd": (lambda: flash.varlen_fwd(*packed, None, starts, starts), sum(forward[1:])),
        "bwd": (lambda: flash.bwd(query, *inputs, query, log_sum_exp, *none), backward[0]),
        "varlen_bwd": (
            lambda: flash.varlen_bwd(query[0], *packed, query[0], log_sum_exp[0], *none, starts, starts),
            sum(backward[1:]),
        ),
    }
    return {name: [count_products(run)[0], flops] for name, (run, flops) in calls.items()}


@contextmanager
def recomputing(use_reentrant: bool) -> Iterator[None]:
    forward = Block.forward
    with replaced(Block, "forward", lambda *args: checkpoint(forward, *args, use_reentrant=use_reentrant)):
        yield


def trace(name: str) -> Any:
    assert device is not None
    return count_step(Request.load(folder / f"{name}.json"), device)["ledger"]["program"]


class StorageCounter(TorchDispatchMode):
    """Counts the bytes of all storages on the host, each rounded up to 512, and the most of them since ``reset``."""

    def __init__(self) -> None:
        super().__init__()
        self.live = self.peak = 0
        self._storages = WeakIdKeyDictionary()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for value in result if isinstance(result, (list, tuple)) else [result]:
            if isinstance(value, Tensor):
                self._add(value.untyped_storage())
        return result

    def _add(self, storage: Any) -> None:
        if storage not in self._storages:
            num_bytes = -(-storage.nbytes() // 512) * 512
            self._storages[storage] = _Release(self, num_bytes)
            self.live += num_bytes
            self.peak = max(self.peak, self.live)


class _Release:
    def __init__(self, counter: StorageCounter, num_bytes: int) -> None:
        self._counter, self._bytes = counter, num_bytes

    def __del__(self) -> None:
        self._counter.live -= self._bytes


def run_on_host(name: str) -> dict[str, int]:
    """FLOPs and peak of the same step on host tensors with values, by torch's counter and by counting storages."""
    request = Request.load(folder / f"{name}.json")
    optimizer = torch.optim.AdamW

    def fused(*args: Any, **kwargs: Any) -> Any:
        return optimizer(*args, **{**kwargs, "fused": True, "foreach": None})

    with (
        open_world(1, 1, fake=True, device="cpu") as world,
        replaced(torch.optim, "AdamW", fused),
        sdpa_kernel(SDPBackend.MATH),  # as on a GPU in float32
        StorageCounter() as storages,
    ):
        training = Training(request, load_plugin(None), world)
        training.step(0)
        storages.peak = storages.live
        with FlopCounterMode(display=False) as flops:
            training.step(1)
    return {"flops": flops.get_total_flops(), "peak_bytes": storages.peak}


traces = {name: trace(name) for name in ("one", "half")}
left_over = torch.empty(2**24, device="cuda")  # of another program of this process
traces["again"] = trace("half")
for name, use_reentrant in (("reentrant", True), ("checkpoint", False)):
    with recomputing(use_reentrant):
        traces[name] = trace("half")
numbers = torch.arange(6, device="cuda")
rows = random(6, 4)
with with_mistakes():
    traces["mistakes"] = trace("half")
print(
    json.dumps(
        {
            "waits": {name: list_waits(run) for name, run in WAITS.items()},
            "products": {name: count_products(run) for name, run in PRODUCTS.items()} | count_flash_attention(),
            "traces": traces,
            "host": run_on_host("one"),
        }
    )
)
