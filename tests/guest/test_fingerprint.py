"""The fingerprint of the device program: a refactoring keeps it, a change of the device program changes it."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from regbot_guest.axes import Axes
from regbot_guest.observer import Observer

Program = Callable[[Tensor, Tensor], Any]


def fingerprint(program: Program) -> str:
    a, b = torch.ones(4, 4), torch.ones(4, 4)
    with Observer(Axes()) as observer:
        program(a, b)
    assert observer.digest.operators > 0
    return observer.digest.hexdigest()


class _Saves(torch.autograd.Function):
    """Saves one of two tensors of the same shape for backward. Forward is the same in both cases."""

    @staticmethod
    def forward(ctx: Any, first: Tensor, second: Tensor, which: int) -> Tensor:
        ctx.save_for_backward((first, second)[which])
        return first + second

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None]:
        (saved,) = ctx.saved_tensors
        return grads[0] * saved, grads[0], None


def saved(which: int) -> Program:
    def program(a: Tensor, b: Tensor) -> None:
        a.requires_grad_()
        b.requires_grad_()
        out = _Saves.apply(a * 2, b * 3, which)  # only the graph references the saved tensor
        out.sum().backward()

    return program


PAIRS: dict[str, tuple[Program, Program]] = {
    "another order": (lambda a, b: (a.sin(), b.cos()), lambda a, b: (b.cos(), a.sin())),
    "another factor": (lambda a, b: a * 2.0, lambda a, b: a * 3.0),
    "another shape": (lambda a, b: a[:2] + 1, lambda a, b: a[:3] + 1),
    "another layout": (lambda a, b: a.exp(), lambda a, b: a.t().exp()),
    "squares of one or of the other": (lambda a, b: (a + b, a * a), lambda a, b: (a + b, b * b)),
    "written in place": (lambda a, b: a.add_(b), lambda a, b: a.add(b)),
    "another tensor saved for backward": (saved(0), saved(1)),
    "another of several results": (lambda a, b: a.chunk(2)[0] + b[:2], lambda a, b: a.chunk(2)[1] + b[:2]),
}


@pytest.mark.parametrize("change", PAIRS)
def test_a_change_of_the_device_program_changes_the_fingerprint(change: str) -> None:
    before, after = PAIRS[change]
    assert fingerprint(before) == fingerprint(before)
    assert fingerprint(before) != fingerprint(after)


def test_queries_of_metadata_keep_the_fingerprint() -> None:
    plain = fingerprint(lambda a, b: a * 2)
    assert fingerprint(lambda a, b: ((a * 2).size(), a.numel(), a.stride(), a.is_contiguous())) == plain


# ---- collectives


@pytest.mark.slow
def test_the_name_of_a_group_does_not_change_the_fingerprint(seen: dict[str, Any]) -> None:
    fingerprints = seen["fingerprints"]
    assert fingerprints["ep"] == fingerprints["ep again"] == fingerprints["ep by another name"]
    assert fingerprints["functional ep"] == fingerprints["functional ep by another name"]


@pytest.mark.parametrize(
    ("program", "other"),
    [
        ("ep", "edp"),
        ("functional ep", "functional edp"),
        ("functional ep", "functional ep, largest"),
        ("ep", "ep, largest"),
        ("even splits", "other splits"),
        ("ep", "functional ep"),
    ],
)
def test_another_axis_or_reduction_is_another_program(seen: dict[str, Any], program: str, other: str) -> None:
    assert seen["fingerprints"][program] != seen["fingerprints"][other]
