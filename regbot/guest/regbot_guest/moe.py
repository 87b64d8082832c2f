"""regbot's own MoE layer: router, dispatch, grouped expert MLP, combine. It follows the module contract it documents.

The layer is the smoke workload of the ``smoke`` adapter and the example for the ``module`` adapter: a layer of your own
has the same ``build_layer`` signature.
"""

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regbot_guest.availability import Resolution, resolve
from regbot_guest.dispatch import new_dispatcher
from regbot_guest.routing import forced_experts

grouped_mm = getattr(torch.nn.functional, "grouped_mm", None) or getattr(torch, "_grouped_mm", None)


def build_layer(config: dict[str, Any], mesh: Any, device: torch.device, dtype: torch.dtype) -> nn.Module:
    """The module contract: a layer that maps ``[tokens, hidden]`` to ``[tokens, hidden]``."""
    return MoE(config, mesh["ep"].get_group() if mesh is not None else None, device, dtype)


class MoE(nn.Module):
    """Router, then the experts wherever they live."""

    def __init__(self, config: dict[str, Any], group: Any, device: torch.device, dtype: torch.dtype) -> None:
        super().__init__()
        self.group = group
        self.num_experts: int = config["experts"]
        self.dispatcher = resolved_dispatcher(config, group, device, dtype)
        self.router = Router(config, device, dtype)
        self.experts = Experts(config, group, device, dtype)

    def forward(self, x: Tensor) -> Tensor:
        weights, experts = self.router(x)
        dispatcher = new_dispatcher(self.dispatcher.resolved, self.num_experts, self.group, self.dispatcher.buffer)
        rows = dispatcher.dispatch(x, experts, weights)
        return dispatcher.combine(self.experts(rows.x, rows.counts))

    def expert_parameters(self) -> list[nn.Parameter]:
        """The parameters that are different on every expert-parallel rank."""
        return list(self.experts.parameters())


def resolved_dispatcher(config: dict[str, Any], group: Any, device: torch.device, dtype: torch.dtype) -> Resolution:
    """The dispatcher that this layer runs where ``config`` asks for one; alone, a rank has nobody to ask for."""
    asked = config.get("dispatcher") or "alltoall"
    if group is None or group.size() == 1:
        return Resolution(asked)
    return resolve(asked, device, dtype, config.get("deepep_buffer") or "")


class Router(nn.Module):
    """Softmax over the top-k logits, in float32. Forced routing keeps the weights real and chooses the experts."""

    def __init__(self, config: dict[str, Any], device: torch.device, dtype: torch.dtype) -> None:
        super().__init__()
        self.num_experts, self.top_k = config["experts"], config["top_k"]
        self.routing, self.seed = config["routing"], config.get("seed", 0)
        self.weight = nn.Parameter(torch.empty(self.num_experts, config["hidden"], device=device, dtype=dtype))
        nn.init.normal_(self.weight, std=0.02)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """``[tokens, hidden]`` -> weights float32 and experts int64, both ``[tokens, top_k]``."""
        logits = F.linear(x.float(), self.weight.float())
        if self.routing == "natural":
            chosen, experts = torch.topk(logits, self.top_k, dim=-1)
        else:
            experts = forced_experts(x.shape[0], self.num_experts, self.top_k, self.routing, self.seed, x.device)
            chosen = logits.gather(1, experts)
        # Softmax over the chosen logits equals the full softmax renormalised over them.
        return torch.softmax(chosen, dim=-1), experts


class Experts(nn.Module):
    """This rank's experts: a SwiGLU MLP each, all computed by three grouped matrix products."""

    def __init__(self, config: dict[str, Any], group: Any, device: torch.device, dtype: torch.dtype) -> None:
        super().__init__()
        ranks, rank = (group.size(), group.rank()) if group is not None else (1, 0)
        local, hidden, width = config["experts"] // ranks, config["hidden"], config["expert_width"]
        self.first, self.seed = rank * local, config.get("seed", 0)
        self.gate = nn.Parameter(torch.empty(local, hidden, width, device=device, dtype=dtype))
        self.up = nn.Parameter(torch.empty(local, hidden, width, device=device, dtype=dtype))
        self.down = nn.Parameter(torch.empty(local, width, hidden, device=device, dtype=dtype))
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Every expert from a seed of its own, so that an expert is the same wherever it lives."""
        for number, parameter in enumerate(self.parameters()):
            for expert in range(parameter.shape[0]):
                generator = torch.Generator(device=parameter.device)
                generator.manual_seed(self.seed + 7919 * (self.first + expert) + number)
                parameter[expert].normal_(std=0.02, generator=generator)

    def forward(self, x: Tensor, counts: Tensor) -> Tensor:
        """``x [rows, hidden]`` grouped by expert, ``counts`` rows per expert."""
        product = _grouped if runs_grouped_mm(x.dtype, x.device) else _looped
        hidden = F.silu(product(x, self.gate, counts)) * product(x, self.up, counts)
        return product(hidden, self.down, counts)


def _grouped(x: Tensor, weight: Tensor, counts: Tensor) -> Tensor:
    assert grouped_mm is not None
    out: Tensor = grouped_mm(x, weight, offs=torch.cumsum(counts, 0, dtype=torch.int32))
    return out


def _looped(x: Tensor, weight: Tensor, counts: Tensor) -> Tensor:
    """One product per expert, where the grouped kernel does not run. Slower, and recorded as such."""
    parts: Iterator[tuple[Tensor, Tensor]] = zip(x.split(counts.tolist()), weight.unbind(0), strict=True)
    return torch.cat([rows @ matrix for rows, matrix in parts])


_RUNS: dict[tuple[torch.dtype, str], bool] = {}


def runs_grouped_mm(dtype: torch.dtype, device: torch.device) -> bool:
    """Whether the grouped product runs here, forward and backward and without values: tried once, never assumed."""
    key = (dtype, device.type)
    if key not in _RUNS:
        _RUNS[key] = _try_grouped_mm(dtype, device)
    return _RUNS[key]


def _try_grouped_mm(dtype: torch.dtype, device: torch.device) -> bool:
    if grouped_mm is None:
        return False
    try:
        x = torch.ones(32, 16, dtype=dtype, device=device, requires_grad=True)
        weight = torch.ones(2, 16, 16, dtype=dtype, device=device, requires_grad=True)
        counts = torch.tensor([16, 16], device=device)
        _grouped(x, weight, counts).backward(torch.ones(32, 16, dtype=dtype, device=device))
        _grouped(x.to("meta"), weight.to("meta"), counts.to("meta"))  # a kernel may run where its shape rule does not
    except (RuntimeError, TypeError, NotImplementedError):
        return False
    return x.grad is not None and weight.grad is not None
