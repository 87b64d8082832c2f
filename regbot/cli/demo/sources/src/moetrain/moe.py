"""The MoE layer: router, token exchange, experts."""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from moetrain.dispatch import choose_exchange
from moetrain.experts import Experts
from moetrain.router import Router


class MoELayer(nn.Module):
    """Top-k experts per token, without capacity limit and without dropped tokens.

    The experts are divided over ``ep_group``, in order of rank. Tokens are divided over it too: every rank calls the
    layer with tokens of its own, and all ranks of the group must call it together.
    """

    def __init__(self, router: Router, experts: Experts, ep_group: dist.ProcessGroup | None) -> None:
        super().__init__()
        self.router = router
        self.experts = experts
        self.ep_group = ep_group

    def forward(self, x: Tensor) -> Tensor:
        """``[tokens, hidden]`` -> ``[tokens, hidden]``."""
        routing = self.router(x)
        exchange = choose_exchange(self.ep_group, tokens=x.shape[0])
        return exchange(x, routing, self.experts)

    def expert_parameters(self) -> list[nn.Parameter]:
        """The parameters that differ between the ranks of the expert group."""
        return list(self.experts.parameters())


def build_layer(config: dict[str, Any], mesh: DeviceMesh | None, device: torch.device, dtype: torch.dtype) -> MoELayer:
    """Build the layer that ``config`` describes. ``mesh["ep"]`` is the expert axis; None is a single process."""
    ep_group = mesh["ep"].get_group() if mesh is not None else None
    ep_size, ep_rank = (ep_group.size(), ep_group.rank()) if ep_group is not None else (1, 0)
    num_experts, hidden, seed = config["experts"], config["hidden"], config.get("seed", 0)
    if num_experts % ep_size:
        raise ValueError(f"{num_experts} experts cannot be divided over {ep_size} ranks")
    local = num_experts // ep_size

    router = Router(
        hidden, num_experts, config["top_k"], policy=config["routing"], seed=seed, device=device, dtype=dtype
    )
    experts = Experts(
        range(ep_rank * local, (ep_rank + 1) * local),
        hidden,
        config["expert_width"],
        seed=seed,
        device=device,
        dtype=dtype,
    )
    return MoELayer(router, experts, ep_group)
