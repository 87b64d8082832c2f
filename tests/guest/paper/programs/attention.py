"""Flex attention with selective checkpointing, and torch's truncated normal, as torchtitan uses them."""

import json
from functools import partial

import torch
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

from regbot_guest.axes import Axes
from regbot_guest.compile_watch import CompileWatch
from regbot_guest.paper import libraries
from regbot_guest.paper.counter import PaperCounter
from regbot_guest.paper.device import paper_gpu

device = paper_gpu()
assert device is not None
libraries.install(device)
SAVED = [torch._higher_order_ops.flex_attention]


def draw(*shape: int) -> torch.Tensor:
    tensor = torch.nn.init.trunc_normal_(torch.empty(*shape, device="cuda"), std=0.02)
    return tensor.to(torch.bfloat16).requires_grad_()


with CompileWatch():
    query, key, value = draw(2, 8, 256, 64), draw(2, 2, 256, 64), draw(2, 2, 256, 32)
    mask = create_block_mask(lambda b, h, q, k: q >= k, None, None, 256, 256, device="cuda")
    counter = PaperCounter(device, Axes())
    counter.new_step()
    device.reset_peak()
    before = device.peak_bytes
    with counter:
        attend = partial(flex_attention, block_mask=mask, enable_gqa=True)
        contexts = partial(create_selective_checkpoint_contexts, SAVED)
        output = checkpoint(attend, query, key, value, use_reentrant=False, context_fn=contexts)
        output.sum().backward()
    launches = {name: count for (name, *_), count in counter.launches().items() if "flex" in name}
    host = flex_attention(torch.ones(1, 1, 128, 16), torch.ones(1, 1, 128, 16), torch.ones(1, 1, 128, 16))
print(
    json.dumps(
        {
            "output": [*output.shape, str(output.dtype)],
            "gradients": [list(tensor.grad.shape) for tensor in (query, key, value) if tensor.grad is not None],
            "launches": launches,
            "peak": device.peak_bytes - before,
            "host": host.sum().item(),
            "refusals": device.refusals,
        }
    )
)
