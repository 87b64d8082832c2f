"""Flex attention on a paper GPU: output and log-sum-exp, without the matrix of scores.

On a GPU ``torch.compile`` makes one kernel of it, which never stores the scores; torch's eager fallback stores them.
Gradients of tensors that a score function captures are not computed, so a call that needs them is refused.
"""

import importlib
from typing import Any

import torch
from torch import Tensor
from torch._C import DispatchKey

from regbot_guest.paper.device import Device
from regbot_guest.paper.libraries.attention import backward_work, forward_work

FORWARD, BACKWARD = "higher_order::flex_attention", "higher_order::flex_attention_backward"


def replace_kernels(device: Device) -> None:
    """Replace the kernels for GPU tensors: ``differentiate`` for autograd calls the operator again, below autograd,
    which then runs ``attend``. Host tensors still use torch's kernels.
    """
    operator: Any = importlib.import_module("torch._higher_order_ops.flex_attention").flex_attention
    with_autograd = operator.py_kernels[DispatchKey.Autograd]
    without_autograd = operator.py_kernels[DispatchKey.CompositeExplicitAutograd]

    def differentiate(query: Tensor, key: Tensor, value: Tensor, *settings: Any, **keywords: Any) -> Any:
        if not query.is_cuda:
            return with_autograd(query, key, value, *settings, **keywords)
        # After the value, the arguments are score_mod, block_mask, scale, kernel_options and score_mod_other_buffers.
        buffers = keywords.get("score_mod_other_buffers", settings[4] if len(settings) > 4 else ())
        if any(isinstance(buffer, Tensor) and buffer.requires_grad for buffer in buffers):
            device.refuse("flex_attention was called with a score function that captures a tensor with gradients")
        return _FlexAttention.apply(device, lambda *inputs: operator(*inputs, *settings, **keywords), query, key, value)

    def attend(query: Tensor, key: Tensor, value: Tensor, *settings: Any, **keywords: Any) -> Any:
        if not query.is_cuda:
            return without_autograd(query, key, value, *settings, **keywords)
        outputs = _empty_outputs(query, value)
        device.launch(FORWARD, [query, key, value], outputs, forward_work(*_by_token(query, key, value)))
        return outputs

    operator.py_kernels[DispatchKey.Autograd] = differentiate
    operator.py_kernels[DispatchKey.CompositeExplicitAutograd] = attend
    operator._dispatch_cache.clear()  # torch caches which kernel it calls


def _empty_outputs(query: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return output ``[batch, heads, queries, value width]`` in the memory order of the query, as torch's kernel does,
    and log-sum-exp and largest scores ``[batch, heads, queries]`` in float32.
    """
    order = sorted(range(query.dim()), key=query.stride, reverse=True)
    shape = (*query.shape[:-1], value.shape[-1])
    output = torch.empty_permuted(shape, order, dtype=query.dtype, device=query.device)
    log_sum_exp = query.new_empty(query.shape[:-1], dtype=torch.float32)
    return output, log_sum_exp, torch.empty_like(log_sum_exp)


class _FlexAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, device: Device, run_operator: Any, query: Tensor, key: Tensor, value: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        with torch._C._AutoDispatchBelowAutograd():
            output, log_sum_exp, largest_scores = run_operator(query, key, value)
        ctx.mark_non_differentiable(largest_scores)
        ctx.set_materialize_grads(False)
        ctx.device = device
        ctx.save_for_backward(query, key, value, output, log_sum_exp)
        return output, log_sum_exp, largest_scores

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        query, key, value, output, _ = ctx.saved_tensors
        gradients = (torch.empty_like(query), torch.empty_like(key), torch.empty_like(value))
        work = backward_work(*_by_token(query, key, value))
        ctx.device.launch(BACKWARD, [query, key, value, output], gradients, work)
        return None, None, *gradients


def _by_token(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, int]:
    """Return query and value with heads and tokens exchanged, and the scores of one head, as if no block is masked."""
    return query.transpose(1, 2), value.transpose(1, 2), query.shape[0] * query.shape[2] * key.shape[2]
