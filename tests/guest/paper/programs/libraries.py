"""Use names that the stand-ins of compiled libraries lack. Print what became of each use."""

import importlib
import json
from collections.abc import Callable
from typing import Any

import torch

from regbot_guest.paper import libraries
from regbot_guest.paper.device import paper_gpu
from regbot_guest.paper.libraries.deep_ep import Route
from regbot_guest.untraceable import Untraceable

device = paper_gpu()
assert device is not None
libraries.install(device)
deep_ep: Any = importlib.import_module("deep_ep")
legacy: Any = importlib.import_module("deep_ep.buffers.legacy")
extension: Any = importlib.import_module("transformer_engine_torch")
wgrad: Any = importlib.import_module("fused_weight_gradient_mlp_cuda")
flash: Any = importlib.import_module("flash_attn_2_cuda")
rows = torch.ones(2, 3, device="cuda")
buffer = deep_ep.Buffer(None)


class Ranks:
    """A group of two ranks."""

    def size(self) -> int:
        return 2


ROUTE: Any = Route(torch.ones(2, 4, dtype=torch.bool), ranks=2)
ROUTE.__dict__["route"] = ROUTE  # ElasticBuffer's handle has its route as an attribute
hybrid = deep_ep.HybridEPBuffer(Ranks(), 3, 2, 2, num_sms_dispatch_api=4)
indices_to_map = importlib.import_module("deep_ep.hybrid_ep_buffer").indices_to_map


def fingerprint(**settings: Any) -> str:
    """Fingerprint of a dispatch with these settings."""
    experts = torch.tensor([[0, 3], [1, 2]], device="cuda")
    routing, weights = indices_to_map(experts, torch.ones(2, 2, device="cuda"), 2, 4)
    assert device is not None
    device.ops.begin_step(True)
    received, *_ = hybrid.dispatch_with_permute(hidden=rows, routing_map=routing, probs=weights, **settings)
    assert received.shape == (4, 3)  # both tokens of both ranks, once for each expert of rank 0
    return device.fingerprint()


class OwnOverlap(extension.CommOverlapCore):  # type: ignore[misc]
    """A class of a framework that extends one of the library."""


USES: dict[str, Callable[[], Any]] = {
    "method of a buffer": lambda: buffer.low_latency_dispatch(rows),
    "function of a submodule": lambda: legacy.Buffer(None),
    "subclass of userbuffers": lambda: OwnOverlap(rows),
    "FP8 of a buffer": lambda: deep_ep.HybridEPBuffer(Ranks(), 3, 2, 2, use_fp8=True),
    "bias of a combine": lambda: buffer.combine(rows, None, bias=rows),
    "FP8 rows": lambda: buffer.dispatch((rows, rows), handle=ROUTE),
    "another layout": lambda: deep_ep.ElasticBuffer(Ranks()).dispatch(rows, handle=ROUTE, do_expand=True),
    "decoding of flash-attn": lambda: flash.fwd_kvcache(rows, rows, rows),
}
LOOKUPS = {
    "enumeration": int(extension.NVTE_QKV_Layout.NVTE_SBHD) == 0,
    "instance": isinstance(rows, extension.Float8Tensor),
    "has": hasattr(buffer, "dispatch"),
    "fused is another program": fingerprint() != fingerprint(fuse_permute_dispatch=True),
    "same settings": fingerprint(pad_multiple=None) == fingerprint(pad_multiple=None),
    "sizes": hybrid.configurer.buffer_config.max_num_of_tokens_per_rank == 2,
    "dunder": hasattr(deep_ep, "__wrapped__") or hasattr(buffer, "__len__"),
}


weight = torch.nn.Parameter(torch.ones(3, 3, device="cuda"))
product, *_ = extension.generic_gemm(
    rows, False, rows, True, weight, None, None, None, None, False, None, True, None, 0, True
)
wgrad.wgrad_gemm_accum_fp32(rows, rows, weight)
# Two sequences of 100 queries, 4 heads of width 8 and 2 heads of keys; packed, the sequences have 60 and 40 queries.
queries, keys = torch.ones(2, 100, 4, 8, device="cuda"), torch.ones(2, 100, 2, 8, device="cuda")
packed, packed_keys = torch.ones(100, 4, 8, device="cuda"), torch.ones(100, 2, 8, device="cuda")
starts = torch.tensor([0, 60, 100], device="cuda")
own = torch.empty_like(queries)
backward = flash.bwd(queries, queries, keys, keys, queries, rows, own, None, None, None, 0.0, 1.0, True)
packed_backward = flash.varlen_bwd(packed, packed, packed_keys, packed_keys, packed, rows, None, None, None, starts)
FLASH = {
    "forward": [list(tensor.shape) for tensor in flash.fwd(queries, keys, keys, None, None, 0.0, 1.0, True)],
    "packed forward": [
        list(tensor.shape) for tensor in flash.varlen_fwd(packed, packed_keys, packed_keys, None, starts)
    ],
    "backward": [list(tensor.shape) for tensor in backward],
    "packed backward": [list(tensor.shape) for tensor in packed_backward],
    "writes to the given gradient": backward[0] is own,
    "log-sum-exp": str(flash.fwd(queries.bfloat16(), keys, keys)[1].dtype),
}
scores = torch.ones(2, 4, 16, 16, device="cuda")
SOFTMAX = list(extension.scaled_softmax_forward(scores, scores, 1.0).shape)
AUTOGRAD = {"a product is added to a parameter": product is weight}
"""What is true of compiled functions, which autograd does not know."""


def use(function: Callable[[], Any]) -> str:
    try:
        return f"returned {function()}"
    except Untraceable as refusal:
        return str(refusal)
    except Exception as error:
        return f"{type(error).__name__}: {error}"


torch.nn.attention.activate_flash_attention_impl("FA3")
NEWER = [torch.nn.attention.current_flash_attention_impl(), *libraries.describe_imported()]
uses = {name: use(function) for name, function in USES.items()}
print(
    json.dumps(
        {"uses": uses, "lookups": LOOKUPS, "autograd": AUTOGRAD, "flash": FLASH, "newer": NEWER, "softmax": SOFTMAX}
    )
)
