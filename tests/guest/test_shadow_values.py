"""Common styles of MoE code can be traced with fake tensors, without patching the code."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from regbot_guest.axes import Axes
from regbot_guest.observer import Observer
from regbot_guest.routing import forced_experts
from regbot_guest.shadow_values import ShadowValues
from regbot_guest.untraceable import Untraceable
from support.guest_runs import TINY, Shared, answer, ask, rows, run_all

pytestmark = pytest.mark.long

TOKENS, EXPERTS, TOP_K = 64, 8, 2


@contextmanager
def without_values(routing: str = "balanced") -> Iterator[ShadowValues]:
    def route(tokens: int, experts: int, top_k: int) -> Tensor:
        return forced_experts(tokens, experts, top_k, routing, 1, torch.device("cpu"))

    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        shadows = ShadowValues(mode, EXPERTS, TOP_K, route)
        with shadows.numpy_from_shadows(), Observer(Axes(), None, shadows):
            yield shadows


def logits() -> Tensor:
    return torch.randn(TOKENS, EXPERTS)


def topk(scores: Tensor) -> Tensor:
    return torch.topk(scores, TOP_K, dim=-1)[1]


def _by_cumsum(experts: Tensor) -> list[int]:
    ends = torch.bincount(experts.flatten(), minlength=EXPERTS).cumsum(0)
    return [int(end - start) for start, end in zip([0, *ends[:-1]], ends, strict=True)]


READS: dict[str, tuple[Callable[[Tensor], object], int]] = {
    "item": (lambda e: e.sum().item(), 1),
    "a branch on a tensor": (lambda e: bool(e.sum() > 3), 1),
    "tolist of the counts": (lambda e: torch.bincount(e.flatten(), minlength=EXPERTS).tolist(), EXPERTS),
    "a size": (lambda e: e.shape[0] * e.numel(), 0),
}


@pytest.mark.parametrize("way", READS)
@pytest.mark.parametrize("phase", ["forward", "optimizer"])
def test_values_that_the_host_reads_are_counted_outside_the_optimizer(way: str, phase: str) -> None:
    read, expected = READS[way]
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        shadows = ShadowValues(mode, EXPERTS, TOP_K, lambda n, e, k: torch.arange(n * k).view(n, k) % e)
        with shadows.numpy_from_shadows(), Observer(Axes(), None, shadows) as observer:
            experts = topk(logits())
            observer.new_step()
            observer.phase = phase
            read(experts)
    assert observer.host_reads.total() == (expected if phase == "forward" else 0)


COUNTS: dict[str, Callable[[Tensor], list[int]]] = {
    "bincount": lambda e: torch.bincount(e.flatten(), minlength=EXPERTS).tolist(),
    "one-hot and sum": lambda e: F.one_hot(e, EXPERTS).sum((0, 1)).tolist(),
    "routing map like the logits": lambda e: torch.zeros_like(logits()).int().scatter(1, e, 1).bool().sum(0).tolist(),
    "sort and unique_consecutive": lambda e: torch.unique_consecutive(e.flatten().sort()[0], return_counts=True)[
        1
    ].tolist(),
    "cumsum": _by_cumsum,
    "nonzero per expert": lambda e: [(e == expert).nonzero().shape[0] for expert in range(EXPERTS)],
    "mask on the tokens": lambda e: [
        torch.randn(TOKENS, 4)[(e == expert).any(-1)].shape[0] for expert in range(EXPERTS)
    ],
    "masked_select": lambda e: [torch.masked_select(e, e == expert).numel() for expert in range(EXPERTS)],
    "repeat_interleave and split": lambda e: [
        part.shape[0]
        for part in torch.arange(EXPERTS)
        .repeat_interleave(torch.bincount(e.flatten(), minlength=EXPERTS))
        .split(torch.bincount(e.flatten(), minlength=EXPERTS).tolist())
    ],
}
ROUTERS: dict[str, Callable[[Tensor], Tensor]] = {
    "topk of logits": topk,
    "topk of sigmoid and bias": lambda scores: topk(scores.sigmoid() + torch.randn(EXPERTS)),
    "sort": lambda scores: scores.sort(dim=-1, descending=True)[1][:, :TOP_K],
}


@pytest.mark.parametrize("routing", ["balanced", "skewed"])
@pytest.mark.parametrize("style", COUNTS)
def test_tokens_per_expert_are_known_for_every_way_of_counting(style: str, routing: str) -> None:
    chosen = forced_experts(TOKENS, EXPERTS, TOP_K, routing, 1, torch.device("cpu"))
    expected = torch.bincount(chosen.flatten(), minlength=EXPERTS).tolist()
    assert (len(set(expected)) == 1) == (routing == "balanced")
    with without_values(routing) as shadows:
        assert COUNTS[style](topk(logits())) == expected
    assert not shadows.guesses


@pytest.mark.parametrize("router", ROUTERS)
def test_a_natural_router_is_traced_as_skewed_if_requested(router: str) -> None:
    chosen = forced_experts(TOKENS, EXPERTS, TOP_K, "skewed", 1, torch.device("cpu"))
    with without_values("skewed"):
        traced = torch.bincount(ROUTERS[router](logits()).flatten(), minlength=EXPERTS).tolist()
    assert traced == torch.bincount(chosen.flatten(), minlength=EXPERTS).tolist()


def unknown(size: int = EXPERTS) -> Tensor:
    return torch.randn(size).long()


def _through_view_of_view(counts: Tensor) -> None:
    counts.view(2, 4)[1].view(2, 2)[0].copy_(unknown(2))


def _out(counts: Tensor) -> None:
    torch.add(unknown(), 1, out=counts)


def _element(counts: Tensor) -> None:
    counts[3] = unknown(1)[0]


WRITES: dict[str, Callable[[Tensor], object]] = {
    "add_": lambda counts: counts.add_(unknown()),
    "random_": lambda counts: counts.random_(0, 5),
    "one element": _element,
    "out=": _out,
    "a view of a view": _through_view_of_view,
    "foreach": lambda counts: torch._foreach_add_([counts], [unknown()]),
}
"""Each writes unknown values to all elements or to some of them."""


@pytest.mark.parametrize("write", WRITES)
def test_a_tensor_is_unknown_after_a_write_of_unknown_values(write: str) -> None:
    with without_values():
        known = torch.bincount(topk(logits()).flatten(), minlength=EXPERTS)
        view, copy = known[:4], known.clone()
        WRITES[write](known)
        for written in (known, view):
            with pytest.raises(Untraceable, match="depends on real data"):
                written.tolist()
        assert copy.tolist() == [16] * EXPERTS


@pytest.mark.parametrize(
    "read",
    [
        lambda: unknown().tolist(),
        lambda: int(unknown().sum()),
        lambda: torch.randn(4, 5).argmax(-1).tolist(),  # not over the experts
        lambda: torch.randn(9).nonzero(),
        lambda: torch.randn(9)[torch.randn(9) > 0],
        lambda: torch.bincount(unknown().abs()),
        lambda: (topk(logits()) + unknown(TOP_K)).unique(),
    ],
)
def test_integers_and_sizes_that_depend_on_data_are_never_guessed(read: Callable[[], object]) -> None:
    with without_values(), pytest.raises(Untraceable):
        read()


def test_reads_of_a_loss_and_a_norm_are_guessed_and_recorded() -> None:
    with without_values() as shadows:
        weight = torch.randn(8, 8, requires_grad=True)
        loss = (torch.randn(4, 8) @ weight).square().mean()
        loss.backward()
        assert not shadows.guesses
        assert loss.item() == 1.0
        assert any("float" in note for note in shadows.guesses)
        norm = torch.nn.utils.clip_grad_norm_([weight], 1.0)
        assert not (norm > 100)
        assert any("condition" in note for note in shadows.guesses)


# ---- exchanges: one layer that computes its splits in different ways, traced and run on real ranks

LAYER = """
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
from torch import nn


class Rows(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, receive, send, group, exchange):
        ctx.args = receive, send, group, exchange
        return exchange(x, receive, send, group)

    @staticmethod
    def backward(ctx, grad):
        receive, send, group, exchange = ctx.args
        return exchange(grad, send, receive, group), None, None, None, None


def single(x, receive, send, group):
    out = x.new_empty(sum(receive), x.shape[1])
    dist.all_to_all_single(out, x.contiguous(), receive, send, group=group)
    return out


def functional(x, receive, send, group):
    return funcol.wait_tensor(funcol.all_to_all_single(x.contiguous(), receive, send, group))


class Layer(nn.Module):
    def __init__(self, config, mesh, device, dtype):
        super().__init__()
        self.config, self.group = config, mesh["ep"].get_group()
        self.router = nn.Linear(config["hidden"], config["experts"], bias=False, device=device, dtype=dtype)
        self.experts = nn.Linear(config["hidden"], config["hidden"], bias=False, device=device, dtype=dtype)

    def expert_parameters(self):
        return list(self.experts.parameters())

    def forward(self, x):
        top_k, number = self.config["top_k"], self.config["experts"]
        weights, experts = self.router(x).softmax(-1).topk(top_k)
        if self.config["routing"] == "balanced":
            experts = (torch.arange(x.shape[0] * top_k) % number).view(-1, top_k)
        order = experts.flatten().argsort(stable=True)
        counts = torch.bincount(experts.flatten(), minlength=number)
        receive, send = self.splits(counts)
        ranks = self.group.size()
        receive = [sum(part) for part in torch.tensor(receive).view(ranks, -1).tolist()]
        send = [sum(part) for part in torch.tensor(send).view(ranks, -1).tolist()]
        rows = Rows.apply(x[order // top_k], receive, send, self.group, EXCHANGE)
        rows = Rows.apply(self.experts(rows), send, receive, self.group, EXCHANGE)
        return torch.zeros_like(x).index_add(0, order // top_k, rows * weights.flatten()[order].unsqueeze(1))

    def splits(self, counts):
SPLITS


def build_layer(config, mesh, device, dtype):
    return Layer(config, mesh, device, dtype)
"""
STYLES = {
    "single": """
        arriving = torch.empty_like(counts)
        dist.all_to_all_single(arriving, counts, group=self.group)
        return arriving.tolist(), counts.tolist()
""",
    "gathered": """
        ranks, rank = self.group.size(), self.group.rank()
        everyone = torch.empty(ranks * len(counts), dtype=torch.int64)
        dist.all_gather_into_tensor(everyone, counts, group=self.group)
        arriving = everyone.view(ranks, ranks, -1)[:, rank].flatten()
        return arriving.tolist(), counts.tolist()
""",
    "largest": """
        dist.all_reduce(largest := counts.max().reshape(1), op=dist.ReduceOp.MAX, group=self.group)
        dist.all_reduce(all := counts.sum().reshape(1), group=self.group)
        assert largest.item() == x_rows(self.config), largest.item()
        assert all.item() == self.group.size() * counts.sum().item()
        return counts.tolist(), counts.tolist()


def x_rows(config):
    return config["sequence"] * config["micro_batch"] * config["top_k"] // config["experts"]
""",
}
EXCHANGES = {"gathered": "functional"}


@pytest.fixture
def styles(shared: Shared) -> Path:
    def run(folder: Path) -> None:
        for mode in ("static", "real"):
            requests = []
            for style, splits in STYLES.items():
                source = LAYER.replace("EXCHANGE", EXCHANGES.get(style, "single")).replace("SPLITS", splits)
                (folder / f"style_{style}.py").write_text(source)
                how: dict[str, Any] = {"mode": mode, "entry": f"style_{style}:build_layer"}
                requests.append(ask(folder, f"{style}.{mode}", geometry=TINY, **how))
            run_all(requests, ranks=2 if mode == "real" else 0)

    return shared("styles", run)


@pytest.mark.parametrize("style", STYLES)
def test_every_style_of_exchange_is_traced_as_on_real_ranks(styles: Path, style: str) -> None:
    traced = answer(styles, f"{style}.static")
    real = answer(styles, f"{style}.real")
    assert rows(traced) == rows(real)
    payload = [e for e in traced["ledger"]["entries"] if e["kind"] == "all_to_all" and e["role"] == "payload"]
    row_bytes = TINY["sequence"] * TINY["top_k"] * TINY["hidden"] * 4
    assert [(e["phase"], e["count"], e["bytes"]) for e in payload] == [
        ("forward", 2, 2 * row_bytes),
        ("backward", 2, 2 * row_bytes),
    ]
