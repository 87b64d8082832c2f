"""Refusals of a paper GPU, and its answers to reads of unknown values: one result per case, as JSON."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from regbot_guest.paper.device import paper_gpu

LARGE = 2048
"""Rows and columns of a mask whose values are not kept: 16 MiB of floats."""
device = paper_gpu()
assert device is not None


class Gate(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        best = x.argmax(-1)
        rows = int(best[0])  # THE LINE
        return x[:rows]


def floats(*shape: int) -> Tensor:
    return torch.randn(shape, device="cuda")


def large_mask(value: float) -> Tensor:
    """Return a mask that is too large for its values to be kept."""
    return torch.full((LARGE, LARGE), value, device="cuda")


def offload() -> bool:
    with torch.autograd.graph.save_on_cpu():
        x = floats(4).requires_grad_()
        (x * x).sum().backward()
    back = floats(4).cpu().cuda()
    assert x.grad is not None
    return device.is_known(back) or device.is_known(x.grad)


def aliased() -> list[Any]:
    """A repeated operator returns separate values."""
    a = torch.arange(4, device="cuda")
    b, c = a + 1, a + 1
    b[0] = 9
    c.add_(1)
    return [b.tolist(), c.tolist(), (a + 1).tolist(), a.tolist()]


CASES: dict[str, Callable[[], Any]] = {
    "an integer in a layer": lambda: Gate()(floats(4, 8)),
    "an integer as a list": lambda: floats(4).argsort().tolist(),
    "a condition": lambda: bool(floats(4).max() > 0),
    "a mask": lambda: floats(4)[floats(4) > 0],
    "a float": lambda: floats(1).item(),
    "floats": lambda: floats(3).tolist(),
    "isfinite": lambda: bool(floats(4).isfinite().all()),
    "isfinite of one float": lambda: bool(floats(1).isfinite()),
    "isnan": lambda: bool(floats(4).isnan().any()),
    "isinf": lambda: bool(floats(4).isinf().any()),
    "comparisons with infinity": lambda: [
        bool(flags.any())
        for limit in (math.inf, -math.inf)
        for x in (floats(1),)
        for flags in (x > limit, x >= limit, x < limit, x <= limit, x == limit, x != limit)
    ],
    "finite beside masks": lambda: [
        bool(large_mask(-math.inf).normal_().isfinite().all()),
        bool(large_mask(0.0).isinf().any()),
        bool(torch.softmax(floats(4, 4) + torch.full((4, 4), -math.inf, device="cuda").triu(1), -1).isnan().any()),
    ],
    "isfinite of a row of a large mask": lambda: bool(large_mask(-math.inf).triu(1)[0].clone().isfinite().all()),
    "comparison of masked floats": lambda: bool(
        floats(1).masked_fill(torch.ones(1, device="cuda") > 0, math.inf) > math.inf
    ),
    "a wrong assertion": lambda: torch._assert_async(torch.zeros((), device="cuda")),
    "no shape function": lambda: torch.ops.aten._masked_softmax(floats(4, 4), floats(4, 4) > 0),
    "two GPUs": lambda: torch.zeros(3, device="cuda:0") + torch.zeros(3, device="cuda:1"),
    "storage[i]": lambda: floats(3).untyped_storage()[0],
    "array interface": lambda: floats(3).__cuda_array_interface__,
    "offloaded is known": offload,
    "aliases": aliased,
}


def answer(case: Callable[[], Any]) -> dict[str, Any]:
    assert device is not None
    device.refusals.clear()
    try:
        value = case()
        given = {"answer": value if isinstance(value, (int, float, str, list, type(None))) else str(type(value))}
    except Exception as error:
        given = {"error": type(error).__name__, "text": str(error)}
    return {**given, "refused": len(device.refusals), "refusals": list(device.refusals)}


if __name__ == "__main__":
    answers = {name: answer(case) for name, case in CASES.items()}
    line = next(n for n, text in enumerate(Path(__file__).read_text().splitlines(), 1) if text.endswith("# THE LINE"))
    print(json.dumps({"cases": answers, "line": line, "notes": device.notes()}))
