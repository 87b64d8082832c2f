"""Stand-in for ``fused_weight_gradient_mlp_cuda`` of Apex, which adds weight gradients to main ones in place."""

import torch
from torch import Tensor

from regbot_guest.paper.device import Device
from regbot_guest.paper.libraries.stand_in import StandIn

NAME = "fused_weight_gradient_mlp_cuda"


def stand_in(device: Device) -> StandIn:
    uncounted = {"wgrad_gemm_accum_fp32": _accumulate, "wgrad_gemm_accum_fp16": _accumulate}
    return StandIn(NAME, device, {}, uncounted)


@torch.no_grad()  # autograd records nothing in a compiled function either
def _accumulate(rows: Tensor, gradient: Tensor, main_gradient: Tensor) -> None:
    """Add ``gradientᵀ @ rows`` to ``main_gradient``. torch computes the product, so that it is counted as such."""
    product = gradient.reshape(-1, gradient.shape[-1]).t() @ rows.reshape(-1, rows.shape[-1])
    main_gradient.add_(product.to(main_gradient.dtype) if torch.is_tensor(product) else product)
