"""The source line of a collective: the innermost frame in the checkout, in backward also that of the forward."""

import importlib.util
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensorMode

from regbot_guest import source_lines
from regbot_guest.observer import Observer
from regbot_guest.world import open_world

CHECKOUT = """
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch.utils.checkpoint import checkpoint

def exchange(x, group):
    out = torch.empty_like(x)
    dist.all_to_all_single(out, x, group=group)  # exchange
    return out

class Exchange(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        return exchange(x, group)

    @staticmethod
    def backward(ctx, grad):
        out = torch.empty_like(grad)
        dist.all_to_all_single(out, grad, group=ctx.group)  # backward
        return out, None

def plain(x, group):
    exchange(x, group)

def own_function(x, group):
    Exchange.apply(x, group).sum().backward()

def functional_collective(x, group):
    y = functional.all_to_all_single_autograd(x, [2, 2], [2, 2], group)  # functional
    y.sum().backward()

def gathered(x, group):
    (functional.all_gather_tensor_autograd(x * 2, 0, group) * 3).sum().backward()  # gathered

def hook(x, group):
    y = x * 2
    y.register_hook(lambda grad: dist.all_reduce(grad, group=group))  # hook
    y.sum().backward()

def recompute(x, group):
    checkpoint(lambda y: Exchange.apply(y, group) * y, x, use_reentrant=False).sum().backward()

def reentrant(x, group):
    checkpoint(lambda y: Exchange.apply(y, group) * y, x, use_reentrant=True).sum().backward()

def outside(x, group):
    Installed.apply(x, group).sum().backward()  # outside

def generated(x, group):
    exec(compile("dist.all_reduce(x.detach(), group=group)", "<generated>", "exec"))  # generated
"""
EXPECTED = {
    "plain": ["exchange"],
    "own_function": ["exchange", "backward"],
    "functional_collective": ["functional", "functional"],
    "gathered": ["gathered", "gathered"],
    "hook": ["hook"],
    "recompute": ["exchange", "exchange", "backward"],
    "reentrant": ["exchange", "exchange", "backward"],
    "outside": ["outside"],
    "generated": ["generated"],
}


class Installed(torch.autograd.Function):
    """Stands for code of an installed package: only its call is in the checkout."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: Any) -> torch.Tensor:
        ctx.group = group
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None]:
        dist.all_reduce(grads[0], group=ctx.group)
        return grads[0], None


def number_of(comment: str) -> int:
    return next(number for number, line in enumerate(CHECKOUT.splitlines(), 1) if line.endswith(f"# {comment}"))


def count(folder: Path, name: str) -> Observer:
    """Count one function of the checkout in ``folder``, which is reached through a link."""
    (folder / "checkout").mkdir()
    (folder / "checkout" / "layer.py").write_text(CHECKOUT)
    (folder / "link").symlink_to(folder / "checkout")
    source_lines.watch(str(folder / "link"))
    spec = importlib.util.spec_from_file_location("layer", folder / "link" / "layer.py")
    assert spec is not None
    assert spec.loader is not None
    module: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.Installed = Installed
    with open_world(size=2, ep=2, fake=True) as world, FakeTensorMode(), Observer(world.axes) as observer:
        assert world.expert is not None
        x = torch.ones(4, 4, requires_grad=True)
        group = world.expert["ep"].get_group()
        Installed.apply(x, group)  # the newest node when the function begins: no line of the checkout called it
        getattr(module, name)(x, group)
    return observer


@pytest.mark.parametrize("name", EXPECTED)
def test_a_collective_has_the_line_that_issued_it(tmp_path: Path, name: str) -> None:
    observer = count(tmp_path, name)
    lines = [entry["line"] for entry in observer.tally.entries() for _ in range(entry["count"])]
    assert sorted(lines) == sorted(f"layer.py:{number_of(comment)}" for comment in EXPECTED[name])
    assert all(line in source_lines.frames() for line in lines)
