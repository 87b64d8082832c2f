"""Common styles of MoE code can be traced with fake tensors, without patching the code."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from regbot_guest.axes import Axes
from regbot_guest.observer import Observer
from regbot_guest.request import Geometry, Request
from regbot_guest.routing import forced_experts, make_expert_choice
from regbot_guest.shadow_values import ShadowValues
from regbot_guest.untraceable import Untraceable

pytestmark = pytest.mark.long

TOKENS, EXPERTS, TOP_K = 64, 8, 2
GEOMETRY = Geometry(
    layers=1, hidden=32, heads=2, kv_heads=1, head_dim=16, qk_norm=False, rope_theta=1e4,
    experts=EXPERTS, top_k=TOP_K, expert_width=16, vocabulary=64, sequence=TOKENS, micro_batch=1,
)  # fmt: skip
REQUEST = Request("r", "w", "v", "", ".", GEOMETRY, 1, 1, seed=1)


@contextmanager
def without_values(routing: str = "balanced") -> Iterator[ShadowValues]:
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        shadows = ShadowValues(mode, EXPERTS, make_expert_choice(replace(REQUEST, routing=routing)))
        with shadows.patched_torch(), Observer(Axes(), None, shadows):
            yield shadows


def logits() -> Tensor:
    return torch.randn(TOKENS, EXPERTS)


def topk(scores: Tensor) -> Tensor:
    return torch.topk(scores, TOP_K, dim=-1)[1]


def _by_cumsum(experts: Tensor) -> list[int]:
    ends = torch.bincount(experts.flatten(), minlength=EXPERTS).cumsum(0)
    return [int(end - start) for start, end in zip([0, *ends[:-1]], ends, strict=True)]


COUNTS: dict[str, Callable[[Tensor], list[int]]] = {
    "bincount": lambda e: torch.bincount(e.flatten(), minlength=EXPERTS).tolist(),
    "one-hot and sum": lambda e: F.one_hot(e, EXPERTS).sum((0, 1)).tolist(),
    "routing map like the logits": lambda e: torch.zeros_like(logits()).int().scatter(1, e, 1).bool().sum(0).tolist(),
    "sort and unique_consecutive": lambda e: torch.unique_consecutive(e.flatten().sort()[0], return_counts=True)[
        1
    ].tolist(),
    "cumsum": _by_cumsum,
    "nonzero per expert": lambda e: [(e == expert).nonzero().shape[0] for expert in range(EXPERTS)],
    "masked_select": lambda e: [torch.masked_select(e, e == expert).numel() for expert in range(EXPERTS)],
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


def unknown(size: int = EXPERTS) -> Tensor:
    return torch.randn(size).long()


WRITES: dict[str, Callable[[Tensor], object]] = {
    "add_": lambda counts: counts.add_(unknown()),
    "random_": lambda counts: counts.random_(0, 5),
    "a view of a view": lambda counts: counts.view(2, 4)[1].view(2, 2)[0].copy_(unknown(2)),
    "out=": lambda counts: torch.add(unknown(), 1, out=counts),
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
