"""Scores of a router that are compared with zero, and torchtitan's calls of DeepEP's ``ElasticBuffer``. Prints JSON."""

import json
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from regbot_guest.paper import libraries
from regbot_guest.paper.device import paper_gpu
from regbot_guest.routing import forced_experts
from regbot_guest.world import open_world

device = paper_gpu()
assert device is not None
libraries.install(device)

TOKENS, EXPERTS, TOP_K, HIDDEN, RANKS = 16, 8, 2, 4, 4


def route(operator: str, scores: Tensor, indices: Tensor) -> Tensor:
    return forced_experts(TOKENS, EXPERTS, TOP_K, "balanced", 1, torch.device("cpu"))


device.set_expert_choice(EXPERTS, route)


def logits(width: int = EXPERTS) -> Tensor:
    return torch.randn(TOKENS, width, device="cuda")


def choose(scores: Tensor, scale: float = 1.0) -> tuple[Tensor, Tensor]:
    """Scores and numbers of the chosen experts, normalised as in torchtitan's router."""
    experts = torch.topk(scores, TOP_K, dim=-1, sorted=False)[1]
    chosen = scores.gather(-1, experts)
    return chosen / (chosen.sum(-1, keepdim=True) + 1e-20) * scale, experts


def written(scores: Tensor) -> Tensor:
    scores[0] = torch.randn(scores.shape[1], device="cuda")
    return scores


SCORES: dict[str, Callable[[], Tensor]] = {
    "sigmoid": lambda: choose(torch.sigmoid(logits()))[0],
    "softmax": lambda: choose(torch.softmax(logits(), -1))[0].bfloat16().contiguous(),
    "logits": lambda: choose(logits())[0],
    "negative scale": lambda: choose(torch.sigmoid(logits()), -1.0)[0],
    "masked": lambda: torch.sigmoid(logits()).masked_fill(logits() > 0, 0.0),
    "partly written": lambda: written(torch.sigmoid(logits())),
}


def exchange() -> dict[str, Any]:
    """The calls that torchtitan makes for one layer, forward and backward."""
    from deep_ep import ElasticBuffer  # type: ignore[import-not-found]

    group = dist.group.WORLD
    size = ElasticBuffer.get_buffer_size_hint(group, TOKENS, HIDDEN, num_topk=TOP_K, use_fp8_dispatch=False)
    buffer = ElasticBuffer(
        group, num_bytes=size, num_max_tokens_per_rank=TOKENS, hidden=HIDDEN, explicitly_destroy=True
    )
    scores, experts = choose(torch.softmax(logits(), -1))
    experts = experts.masked_fill(scores == 0, -1)
    rows, received, weights, handle, event = buffer.dispatch(
        logits(HIDDEN), topk_idx=experts, topk_weights=scores, num_experts=EXPERTS, num_max_tokens_per_rank=TOKENS,
        num_sms=buffer.get_theoretical_num_sms(EXPERTS, TOP_K), do_expand=False, do_cpu_sync=True,
    )  # fmt: skip
    event.current_stream_wait()
    back, _, _ = buffer.combine(rows, handle=handle, topk_weights=None, async_with_compute_stream=True)
    again, *_ = buffer.dispatch(back, handle=handle, num_sms=handle.num_sms, do_cpu_sync=False)
    return {
        "size": [size, buffer.num_bytes, buffer.num_max_tokens_per_rank],
        "rows": [list(tensor.shape) for tensor in (rows, received, weights, back, again)],
        "tokens per expert": handle.num_recv_tokens_per_expert_list,
        "local choices": int((received != -1).sum()),
    }


with open_world(RANKS, RANKS, fake=True, device="cuda"):
    answer = {
        "known": {name: [device.is_known(make() == 0), device.is_known(make() > 0)] for name, make in SCORES.items()},
        "zeros": [bool((SCORES["sigmoid"]() == 0).any()), bool((SCORES["sigmoid"]() != 0).all())],
        "exchange": exchange(),
        "notes": device.notes(),
    }
print(json.dumps(answer))
