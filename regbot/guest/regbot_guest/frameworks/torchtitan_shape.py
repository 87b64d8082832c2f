"""A shape's numbers in torchtitan: put on its configuration, and compared with what it built.

Where the model of the pinned recipe has the numbers already it is left alone; else torchtitan's own builder makes the
layers anew with the shape's. What counts is what was built: its configuration after torchtitan's last word on it, and
the number of its parameters.
"""

import dataclasses
import importlib
from collections.abc import Iterator
from typing import Any

from regbot_guest.harness import ContractError
from regbot_guest.request import Geometry, Request

MODELS = "torchtitan.models"
PINNED = ("qwen3", "qwen3_30b_a3b")
"""Module and recipe that a pinned shape starts from. There is no Mixtral in torchtitan 0.3.0; without QK norms and with
other numbers the same blocks are Mixtral's."""


def pin(config: Any, request: Request) -> None:
    """Put the shape's numbers on ``config``."""
    shape, model = request.geometry, config.model_spec.model
    config.training.seq_len, config.training.local_batch_size = shape.sequence, shape.micro_batch
    config.training.global_batch_size = -1
    config.training.mixed_precision_param = request.dtype
    config.activation_checkpoint = None
    if _differs(model, shape):
        model = _resized(model, shape)
    config.model_spec = dataclasses.replace(config.model_spec, model=model)
    loss = getattr(config.loss, "loss_fn", config.loss)
    if getattr(loss, "global_vocab_size", None) is not None:
        loss.global_vocab_size = shape.vocabulary


def _resized(model: Any, shape: Geometry) -> Any:
    """The model's configuration with the numbers of ``shape``; its layers are made by torchtitan's builder."""
    qwen3 = importlib.import_module(f"{MODELS}.{PINNED[0]}")
    replace, first = dataclasses.replace, model.layers[0]
    try:
        layers = qwen3._build_qwen3_moe_layers(
            n_layers=shape.layers,
            dim=shape.hidden,
            n_heads=shape.heads,
            n_kv_heads=shape.kv_heads,
            head_dim=shape.head_dim,
            moe_hidden_dim=shape.expert_width,
            num_experts=shape.experts,
            top_k=shape.top_k,
            attn_backend="flex",
            moe_comm_backend="standard",
            rope=replace(first.attention.rope, dim=shape.head_dim, theta=shape.rope_theta, max_seq_len=shape.sequence),
        )
        if not shape.qk_norm:
            for layer in layers:
                layer.attention.qk_norm = None
        return replace(
            model,
            dim=shape.hidden,
            vocab_size=shape.vocabulary,
            norm=replace(model.norm, normalized_shape=shape.hidden),
            tok_embeddings=replace(model.tok_embeddings, num_embeddings=shape.vocabulary, embedding_dim=shape.hidden),
            lm_head=replace(model.lm_head, in_features=shape.hidden, out_features=shape.vocabulary),
            layers=layers,
        )
    except (AttributeError, TypeError) as error:
        raise ContractError(
            "config",
            f"this torchtitan's qwen3 cannot be given other numbers the way 0.3.0 can ({error}); name a 'recipe' of "
            "the repository instead, or use the shape that it ships",
        ) from error


def check(trainer: Any, request: Request) -> list[str]:
    """Warnings where a recipe is not of the shape that it is listed under. Raises ContractError where a pinned one is
    not what was asked for."""
    try:
        wrong = [f"{key} {found}, not {asked}" for key, found, asked in _differences(trainer, request.geometry)]
    except AttributeError as error:
        wrong = [f"its numbers cannot be read where torchtitan 0.3.0 has them ({error})"]
    told = "; ".join(wrong[:12])
    if wrong and not request.recipe:
        raise ContractError("shape", f"torchtitan built another model than was asked for: {told}")
    return [f"recipe {request.recipe} is not of this shape: {told}"] if wrong else []


def _differs(model: Any, shape: Geometry) -> bool:
    try:
        return any(True for _ in _model_differences(model, shape))
    except AttributeError:  # not where 0.3.0 has them: made anew, and checked once it is built
        return True


Difference = tuple[str, Any, Any]
"""Name, found, asked for."""


def _differences(trainer: Any, shape: Geometry) -> Iterator[Difference]:
    yield from _model_differences(trainer.model_config, shape)
    built: list[Difference] = [
        ("sequence", trainer.config.training.seq_len, shape.sequence),
        ("micro_batch", trainer.config.training.local_batch_size, shape.micro_batch),
        ("gradient accumulation", trainer.gradient_accumulation_steps, 1),
        ("parameters", sum(p.numel() for part in trainer.model_parts for p in part.parameters()), parameters(shape)),
    ]
    yield from (each for each in built if each[1] != each[2])


def _model_differences(model: Any, shape: Geometry) -> Iterator[Difference]:
    """Numbers of the model's configuration that are not the shape's."""
    found: list[Difference] = [
        ("layers", len(model.layers), shape.layers),
        ("hidden", model.dim, shape.hidden),
        ("vocabulary", model.vocab_size, shape.vocabulary),
    ]
    for layer in model.layers:
        attention, moe = layer.attention, layer.moe
        found += [
            ("heads", attention.n_heads, shape.heads),
            ("kv_heads", attention.n_kv_heads or attention.n_heads, shape.kv_heads),
            ("head_dim", attention.head_dim or attention.dim // attention.n_heads, shape.head_dim),
            ("qk_norm", attention.qk_norm is not None, shape.qk_norm),
            ("rope_theta", attention.rope.theta, shape.rope_theta),
            ("experts", moe.router.num_experts, shape.experts),
            ("top_k", moe.router.top_k, shape.top_k),
            ("expert_width", moe.routed_experts.inner_experts.hidden_dim, shape.expert_width),
        ]
    yield from (each for each in dict.fromkeys(found) if each[1] != each[2])


def parameters(shape: Geometry) -> int:
    """Parameters of the transformer that ``shape`` describes: untied embeddings, no biases, one router per layer."""
    attention = shape.hidden * shape.head_dim * (2 * shape.heads + 2 * shape.kv_heads)
    norms = 2 * shape.hidden + (2 * shape.head_dim if shape.qk_norm else 0)
    experts = shape.experts * (3 * shape.hidden * shape.expert_width + shape.hidden)
    return shape.layers * (attention + norms + experts) + 2 * shape.vocabulary * shape.hidden + shape.hidden
