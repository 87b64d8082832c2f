"""Stand-in for ``transformer_engine_torch``, the compiled extension of Transformer Engine, in bf16. It follows the
calls in ``transformer_engine/pytorch/cpp_extensions`` of version 2.20.

Matrix products call torch's operators, so that they are counted as such. FP8 and FP4 recipes are refused.
"""

import enum
import importlib
import importlib.metadata
import importlib.util
import os
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from regbot_guest.paper.device import Device
from regbot_guest.paper.libraries.attention import Work, backward_work, forward_work
from regbot_guest.paper.libraries.stand_in import StandIn

NAME = "transformer_engine_torch"
PACKAGE = "transformer_engine"
SEED_WORDS = 2


class DType(enum.IntEnum):
    """Element types. The numbers are those that the Python part of Transformer Engine expects."""

    kByte, kInt32, kFloat32, kFloat16, kBFloat16 = 0, 2, 4, 5, 6
    kFloat8E4M3, kFloat8E5M2, kFloat4E2M1 = 7, 8, 10


class FusedAttention(enum.IntEnum):
    NVTE_No_Backend, NVTE_F16_arbitrary_seqlen, NVTE_FP8 = -1, 1, 2


class FP8FwdTensors(enum.IntEnum):
    """Indices into Transformer Engine's list of the quantizers of forward, which convert tensors to FP8."""

    GEMM1_INPUT, GEMM1_WEIGHT, GEMM1_OUTPUT = 0, 1, 2
    GEMM2_INPUT, GEMM2_WEIGHT, GEMM2_OUTPUT = 3, 4, 5
    GEMM3_INPUT, GEMM3_WEIGHT, GEMM3_OUTPUT = 6, 7, 8


class FP8BwdTensors(enum.IntEnum):
    """Indices into Transformer Engine's list of the quantizers of backward, which convert tensors to FP8."""

    GRAD_OUTPUT1, GRAD_INPUT1, GRAD_OUTPUT2, GRAD_INPUT2, GRAD_OUTPUT3, GRAD_INPUT3 = 0, 1, 2, 3, 4, 5


def prepare() -> None:
    """Let the installed Python part of Transformer Engine load without its compiled libraries."""
    if importlib.util.find_spec(PACKAGE) is None:
        return
    os.environ["NVTE_PROJECT_BUILDING"] = "1"  # Transformer Engine's own switch for loading no library
    # With another value, the import below would look for the extension, which does not exist yet.
    os.environ["NVTE_FRAMEWORK"] = "none"
    version = importlib.metadata.version

    def version_of_package(name: str) -> str:
        # The packages of the compiled parts may not be installed. They get the version of the main package.
        is_part = name.replace("_", "-").startswith("transformer-engine")
        return version(PACKAGE) if is_part else version(name)

    setattr(importlib.metadata, "version", version_of_package)  # noqa: B010 (typed by the name of its parameter)
    common: Any = importlib.import_module(f"{PACKAGE}.common")
    common.load_framework_extension = lambda _: None
    os.environ["NVTE_FRAMEWORK"] = "pytorch"


def stand_in(device: Device) -> StandIn:
    """Return the stand-in module. The import of Transformer Engine already reads some of its attributes."""
    kernels: dict[str, Callable[..., Any]] = {
        "rmsnorm_fwd": _rms_norm,
        "rmsnorm_bwd": lambda gradient, rows, scale, weight, *_: _empty_like(rows, weight),
        "layernorm_fwd": _layer_norm,
        "layernorm_bwd": lambda gradient, rows, mean, scale, weight, *_: _empty_like(rows, weight, weight),
        "fused_attn_fwd": _attention,
        "fused_attn_bwd": _attention_backward,
        "fused_rope_forward": lambda rows, *_: torch.empty_like(rows),
        "fused_rope_backward": lambda gradient, *_: torch.empty_like(gradient),
        "multi_tensor_l2norm": _norms,
        "multi_tensor_unscale_l2norm": _norms,
        "fused_topk_with_score_function_fwd": _top_k(device),
        "fused_topk_with_score_function_bwd": _top_k_backward,
        "fused_score_for_moe_aux_loss_fwd": _scores(device),
        "fused_score_for_moe_aux_loss_bwd": _top_k_backward,
        "fused_moe_aux_loss_fwd": _auxiliary_loss,
        "fused_moe_aux_loss_fwd_graph_safe": _auxiliary_loss,
        "fused_moe_aux_loss_bwd": _auxiliary_loss_backward,
    }
    kernels |= dict.fromkeys(("swiglu", "geglu", "reglu", "glu"), _gated)
    gradients = ("dswiglu", "dgeglu", "dreglu", "dglu", "dgelu", "drelu", "dsilu")
    kernels |= dict.fromkeys(gradients, lambda gradient, rows, *_, **__: torch.empty_like(rows))
    kernels |= dict.fromkeys(("gelu", "relu", "silu", "srelu"), lambda rows, *_: torch.empty_like(rows))
    for softmax in ("scaled_softmax", "scaled_masked_softmax", "scaled_upper_triang_masked_softmax",
                    "scaled_aligned_causal_masked_softmax"):  # fmt: skip
        kernels |= dict.fromkeys((f"{softmax}_forward", f"{softmax}_backward"), lambda rows, *_: torch.empty_like(rows))
    kernels |= dict.fromkeys(("multi_tensor_adam", "multi_tensor_adam_capturable", "multi_tensor_scale",
        "multi_tensor_adam_capturable_master", "multi_tensor_adam_param_remainder", "multi_tensor_sgd",
        "multi_tensor_scale_tensor"), lambda *_, **__: None)  # fmt: skip
    # Not counted as launches here: constants, and the products, because torch's own operators compute these.
    uncounted: dict[str, Any] = {
        "DType": DType,
        "NVTE_Fused_Attn_Backend": FusedAttention,
        "FP8FwdTensors": FP8FwdTensors,
        "FP8BwdTensors": FP8BwdTensors,
        "__version__": importlib.metadata.version(PACKAGE) if importlib.util.find_spec(PACKAGE) else "2.20.2",
        "generic_gemm": _product,
        "get_fused_attn_backend": lambda *_, **__: (FusedAttention.NVTE_F16_arbitrary_seqlen, ""),
        "get_cudnn_version": lambda: 92000,
        "get_cublasLt_version": lambda: 130000,
        "get_num_cublas_streams": lambda: 4,
        "get_stream_priority_range": lambda *_: (0, -5),
        "device_supports_multicast": lambda *_: True,
        "ubuf_built_with_mpi": lambda: False,
        "get_grouped_gemm_setup_workspace_size": lambda *_: 1 << 20,
    }

    def grouped_product(*args: Any, **kwargs: Any) -> Any:
        with device.flop_class("grouped"):
            return _grouped_product(*args, **kwargs)

    uncounted["te_general_grouped_gemm"] = grouped_product
    works = {"fused_attn_fwd": _attention_work, "fused_attn_bwd": _attention_backward_work}
    return StandIn(NAME, device, kernels, uncounted, enumerations=("NVTE", "FP8"), works=works)


@torch.no_grad()  # autograd records nothing in a compiled function either
def _product(
    first: Tensor,
    is_first_transposed: bool,
    second: Tensor,
    is_second_transposed: bool,
    out: "Tensor | None",
    quantizer: Any,
    out_type: Any,
    bias: "Tensor | None",
    bias_type: Any,
    gelu: bool,
    gelu_input: Any,
    is_gradient: bool,
    workspace: Any,
    workspace_size: int,
    accumulate: bool,
    *_: Any,
    extra_output: Any = None,
    **__: Any,
) -> tuple[Any, Any, Any, Any]:
    """Return ``op(second) @ op(first)``, the gradient of the bias, the input of the activation, and the extra output.
    ``op`` transposes an operand whose flag is set. ``accumulate`` adds the product to ``out``.
    """
    product = _multiply(first, is_first_transposed, second, is_second_transposed)
    if not is_second_transposed:
        product = product.reshape(*second.shape[:-1], product.shape[-1])
    torch_types = {DType.kFloat32: torch.float32, DType.kFloat16: torch.float16, DType.kBFloat16: torch.bfloat16}
    dtype = torch_types.get(out_type) if out is None else out.dtype
    if dtype is not None and product.dtype != dtype:
        product = torch.empty_like(product, dtype=dtype)  # cuBLAS writes this type without a further kernel
    if out is not None:
        product = out.add_(product.reshape(out.shape)) if accumulate else out.copy_(product.reshape(out.shape))
    bias_gradient = second.reshape(-1, second.shape[-1]).sum(0) if is_gradient and bias is not None else None
    return product, bias_gradient, torch.empty_like(product) if gelu and not is_gradient else None, extra_output


@torch.no_grad()
def _grouped_product(
    firsts: Sequence[Tensor],
    is_first_transposed: bool,
    seconds: Sequence[Tensor],
    is_second_transposed: bool,
    outs: Sequence[Tensor],
    out_type: Any,
    splits: Sequence[int],
    bias: Any,
    bias_type: Any,
    has_single_out: bool,
    pre_activations: Any,
    is_gradient: bool,
    workspace: Any,
    workspace_size: int,
    accumulate: bool,
    *_: Any,
    **__: Any,
) -> Any:
    """Write one product per expert, as in ``_product``, into ``outs``, or with ``has_single_out`` into the rows of
    ``outs[0]``.
    """
    start = 0  # first row of the next product, if all products are in one tensor
    for index, (first, second) in enumerate(zip(firsts, seconds)):
        product = _multiply(first, is_first_transposed, second, is_second_transposed)
        if has_single_out:
            target = outs[0].reshape(-1, product.shape[-1])[start : start + product.shape[0]]
            start += product.shape[0]
        else:
            target = outs[index].reshape(product.shape)
        if accumulate:
            target.add_(product)
        else:
            target.copy_(product)
    return bias


def _multiply(first: Tensor, is_first_transposed: bool, second: Tensor, is_second_transposed: bool) -> Tensor:
    left, right = second.reshape(-1, second.shape[-1]), first.reshape(-1, first.shape[-1])
    return (left.t() if is_second_transposed else left) @ (right.t() if is_first_transposed else right)


def _rms_norm(rows: Tensor, weight: Tensor, epsilon: float, out: Any, *_: Any) -> tuple[Any, None, Tensor]:
    scale = torch.empty(rows.numel() // rows.shape[-1], dtype=torch.float32, device=rows.device)
    return torch.empty_like(rows) if out is None else out, None, scale


def _layer_norm(
    rows: Tensor, weight: Tensor, bias: Tensor, epsilon: float, out: Any, *_: Any
) -> tuple[Any, Tensor, Tensor]:
    mean = torch.empty(rows.numel() // rows.shape[-1], dtype=torch.float32, device=rows.device)
    return torch.empty_like(rows) if out is None else out, mean, torch.empty_like(mean)


def _gated(rows: Tensor, *_: Any, **__: Any) -> Tensor:
    return rows.new_empty(*rows.shape[:-1], rows.shape[-1] // 2)


def _empty_like(*tensors: Tensor) -> tuple[Tensor, ...]:
    return tuple(torch.empty_like(tensor) for tensor in tensors)


def _float_tensors(values: Sequence[Any]) -> list[Tensor]:
    return [value for value in values if isinstance(value, Tensor) and value.is_floating_point()]


def _attention(longest: int, longest_kv: int, *args: Any) -> list[Tensor]:
    """Query, key and value are the first three float tensors of ``args``. Return output, log-sum-exp, random state."""
    query, _, value = _float_tensors(args)[:3]
    output = query.new_empty(*query.shape[:-1], value.shape[-1])
    heads = query.shape[-2]
    batch = max(1, query.numel() // (query.shape[-1] * heads * longest))
    log_sum_exp = torch.empty(batch, heads, longest, 1, dtype=torch.float32, device=query.device)
    return [output, log_sum_exp, torch.zeros(SEED_WORDS, dtype=torch.int64, device=query.device)]


def _attention_work(longest: int, longest_kv: int, *args: Any) -> Work:
    query, _, value = _float_tensors(args)[:3]
    return forward_work(query, value, _count_scores(longest, longest_kv, query))


def _attention_backward_work(longest: int, longest_kv: int, *args: Any) -> Work:
    query, _, value = _float_tensors(args)[:3]
    return backward_work(query, value, _count_scores(longest, longest_kv, query))


def _count_scores(longest: int, longest_kv: int, query: Tensor) -> int:
    """Of one head. The layout of the query is unknown, so each sequence counts as one of the longest."""
    tokens = query.numel() // (query.shape[-1] * query.shape[-2])
    return tokens * longest_kv


def _attention_backward(*args: Any) -> list[Any]:
    """Return the gradients of query, key and value, and None for those of the bias and the softmax offset."""
    query, key, value = _float_tensors(args)[:3]
    return [*_empty_like(query, key, value), None, None]


def _norms(chunk: int, overflow: Tensor, lists: Sequence[Sequence[Tensor]], *args: Any) -> tuple[Tensor, Tensor]:
    """Return the norm of all tensors of ``lists[0]`` and, if a further argument is true, of each tensor."""
    count = len(lists[0]) if any(args) else 0
    return torch.empty(1, device="cuda"), torch.empty(count, device="cuda")


def _top_k(device: Device) -> Callable[..., Any]:
    """Return the fused router: probabilities, routing map ``[tokens, experts]`` (bool), and values for backward."""

    def forward(logits: Tensor, top_k: int, *_: Any, **__: Any) -> tuple[Tensor, Tensor, Tensor]:
        # The router selects as torch's topk would: choose_experts knows only operators of torch.
        chosen = device.choose_experts(
            "aten::topk", logits, logits.new_empty(logits.shape[0], top_k, dtype=torch.int64)
        )
        routing = torch.empty(logits.shape, dtype=torch.bool, device=logits.device)
        known = None
        if chosen.numel():  # otherwise the experts are unknown
            known = torch.zeros(tuple(logits.shape), dtype=torch.bool).scatter_(1, chosen.view(len(logits), -1), True)
        device.write(routing, known)
        probabilities = torch.empty_like(logits)
        return probabilities, routing, torch.empty_like(logits, dtype=torch.float32)

    return forward


def _top_k_backward(*args: Any, **kwargs: Any) -> Any:
    return torch.empty_like(_float_tensors([*args, *kwargs.values()])[-1])


def _scores(device: Device) -> Callable[..., Any]:
    def forward(logits: Tensor, topk: int, *_: Any, **__: Any) -> tuple[Tensor, Tensor, Tensor]:
        scores, routing, state = _top_k(device)(logits, topk)
        return scores.float(), routing, state

    return forward


def _auxiliary_loss(probs: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
    loss = torch.empty((), dtype=probs.dtype, device=probs.device)
    return loss, torch.empty((), dtype=torch.float32, device=probs.device)


def _auxiliary_loss_backward(*, num_rows: int, num_cols: int, grad_aux_loss: Tensor, **_: Any) -> Tensor:
    return torch.empty(num_rows, num_cols, dtype=torch.float32, device=grad_aux_loss.device)
