"""regbot's own MoE layer: router, dispatch, grouped expert MLP, combine. It is the workload of the ``smoke`` adapter,
and an example for a user's ``build_layer``.
"""

from collections.abc import Callable, Iterator
from functools import cache, partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regbot_guest.availability import Resolution, resolve
from regbot_guest.dispatch import new_dispatcher
from regbot_guest.routing import forced_experts

grouped_mm = getattr(torch.nn.functional, "grouped_mm", None) or getattr(torch, "_grouped_mm", None)


def build_layer(config: dict[str, Any], mesh: Any, device: torch.device, dtype: torch.dtype) -> nn.Module:
    """Return a layer that maps ``[tokens, hidden]`` to ``[tokens, hidden]``, as the module contract requires."""
    return MoE(config, mesh["ep"].get_group() if mesh is not None else None, device, dtype)


class MoE(nn.Module):
    """Every forward creates a new dispatcher object, because the object keeps the state of one exchange."""

    def __init__(self, config: dict[str, Any], group: Any, device: torch.device, dtype: torch.dtype) -> None:
        super().__init__()
        self.group = group
        self.num_experts: int = config["experts"]
        self.dispatcher = resolve_dispatcher(config, group, device, dtype)
        self.router = Router(config, device, dtype)
        self.experts = Experts(config, group, device, dtype)

    def forward(self, x: Tensor) -> Tensor:
        weights, experts = self.router(x)
        # ``resolved`` is the name of the dispatcher that runs, and ``buffer`` the class of deep_ep that it uses.
        dispatcher = new_dispatcher(self.dispatcher.resolved, self.num_experts, self.group, self.dispatcher.buffer)
        rows = dispatcher.dispatch(x, experts, weights)
        return dispatcher.combine(self.experts(rows.x, rows.counts))

    def expert_parameters(self) -> list[nn.Parameter]:
        return list(self.experts.parameters())


def resolve_dispatcher(config: dict[str, Any], group: Any, device: torch.device, dtype: torch.dtype) -> Resolution:
    """On a single rank nothing is exchanged, so the requested dispatcher is returned without testing its library.
    ``deepep_buffer`` of ``config`` names the only class of deep_ep that may be used.
    """
    requested = config.get("dispatcher") or "alltoall"
    if group is None or group.size() == 1:
        return Resolution(requested)
    return resolve(requested, device, dtype, config.get("deepep_buffer") or "", group.size())


class Router(nn.Module):
    """Softmax over the top-k logits, in float32. With forced routing, the weights still come from the logits."""

    def __init__(self, config: dict[str, Any], device: torch.device, dtype: torch.dtype) -> None:
        super().__init__()
        self.num_experts, self.top_k = config["experts"], config["top_k"]
        self.routing, self.seed = config["routing"], config.get("seed", 0)
        self.forced_experts: Tensor | None = None  # made in the first forward; None with natural routing
        self.weight = nn.Parameter(torch.empty(self.num_experts, config["hidden"], device=device, dtype=dtype))
        nn.init.normal_(self.weight, std=0.02)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return weights (float32) and experts (int64) for ``x [tokens, hidden]``. Both are ``[tokens, top_k]``."""
        logits = F.linear(x.float(), self.weight.float())
        if self.routing == "natural":
            expert_logits, experts = torch.topk(logits, self.top_k, dim=-1)
        else:
            experts = self._force_experts(x)
            expert_logits = logits.gather(1, experts)
        # A softmax over the chosen logits equals the softmax over all logits, renormalised over the chosen experts.
        return torch.softmax(expert_logits, dim=-1), experts

    def _force_experts(self, x: Tensor) -> Tensor:
        if self.forced_experts is None or self.forced_experts.shape[0] != x.shape[0]:
            self.forced_experts = forced_experts(
                x.shape[0], self.num_experts, self.top_k, self.routing, self.seed, x.device
            )
        return self.forced_experts


class Experts(nn.Module):
    """The experts of this rank. Each is a SwiGLU MLP. Three grouped matrix products compute all of them together."""

    def __init__(self, config: dict[str, Any], group: Any, device: torch.device, dtype: torch.dtype) -> None:
        super().__init__()
        ranks, rank = (group.size(), group.rank()) if group is not None else (1, 0)
        # ``local`` is the number of experts of this rank, and ``first_expert`` the number of the first one.
        local, hidden, width = config["experts"] // ranks, config["hidden"], config["expert_width"]
        self.first_expert, self.seed = rank * local, config.get("seed", 0)
        self.gate = nn.Parameter(torch.empty(local, hidden, width, device=device, dtype=dtype))
        self.up = nn.Parameter(torch.empty(local, hidden, width, device=device, dtype=dtype))
        self.down = nn.Parameter(torch.empty(local, width, hidden, device=device, dtype=dtype))
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Initialise every expert from its own seed, so that its weights do not depend on which rank holds it."""
        for number, parameter in enumerate(self.parameters()):
            for expert in range(parameter.shape[0]):
                generator = torch.Generator(device=parameter.device)
                # 7919 exceeds the number of parameters, so all parameters of all experts have different seeds.
                generator.manual_seed(self.seed + 7919 * (self.first_expert + expert) + number)
                parameter[expert].normal_(std=0.02, generator=generator)

    def forward(self, x: Tensor, counts: Tensor) -> Tensor:
        """Apply the experts to ``x [rows, hidden]``, grouped by expert. ``counts`` has the rows per expert."""
        product: Callable[[Tensor, Tensor], Tensor]
        if runs_grouped_mm(x.dtype, x.device):
            product = partial(_grouped_product, ends=torch.cumsum(counts, 0, dtype=torch.int32))
        else:
            product = partial(_looped_product, splits=counts.tolist())
        return product(F.silu(product(x, self.gate)) * product(x, self.up), self.down)


def _grouped_product(x: Tensor, weight: Tensor, ends: Tensor) -> Tensor:
    """``weight`` is ``[experts, inputs, outputs]``. ``ends``, int32, has the end of the rows of each expert."""
    assert grouped_mm is not None
    out: Tensor = grouped_mm(x, weight, offs=ends)
    return out


def _looped_product(x: Tensor, weight: Tensor, splits: list[int]) -> Tensor:
    """For machines on which torch's grouped operator does not run. ``splits`` has the number of rows of each expert."""
    parts: Iterator[tuple[Tensor, Tensor]] = zip(x.split(splits), weight.unbind(0), strict=True)
    return torch.cat([rows @ matrix for rows, matrix in parts])


@cache
def runs_grouped_mm(dtype: torch.dtype, device: torch.device) -> bool:
    """Whether the grouped product runs here, in forward, in backward and on meta tensors; tried once. Raises
    RuntimeError if a GPU reports an error of the kernel, because the process can then run no further kernel.
    """
    if grouped_mm is None:
        return False
    if device.type == "cuda":
        torch.cuda.synchronize(device)  # errors of earlier kernels are not those of the grouped product
    try:
        x = torch.ones(32, 16, dtype=dtype, device=device, requires_grad=True)
        weight = torch.ones(2, 16, 16, dtype=dtype, device=device, requires_grad=True)
        ends = torch.tensor([16, 32], dtype=torch.int32, device=device)
        _grouped_product(x, weight, ends).backward(torch.ones(32, 16, dtype=dtype, device=device))
        # A kernel may exist without a meta function.
        _grouped_product(x.to("meta"), weight.to("meta"), ends.to("meta"))
    except (RuntimeError, TypeError, NotImplementedError):
        return False
    if device.type == "cuda":
        try:
            torch.cuda.synchronize(device)  # otherwise a failed kernel is reported in a later step, at another operator
        except RuntimeError as error:
            raise RuntimeError(f"the kernel of the grouped product fails on this GPU: {error}") from error
    return x.grad is not None and weight.grad is not None
