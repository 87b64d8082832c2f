"""Sets the numbers of a shape in torchtitan's configuration, and checks that the built model has these numbers. If the
recipe ``PINNED_RECIPE`` lacks them, torchtitan's own builder creates its layers.
"""

import dataclasses
import importlib
from collections.abc import Iterable
from typing import Any

from regbot_guest.contract import ContractError, refuse_revision
from regbot_guest.request import Geometry, Request

MODELS = "torchtitan.models"
PINNED_RECIPE = ("qwen3", "qwen3_30b_a3b")
"""torchtitan 0.3.0 has no Mixtral, but Qwen3's blocks without QK norms and with its numbers are the same."""
GLOBAL_BATCH_OF_ONE_MICRO_BATCH = -1
"""With this global batch, torchtitan makes a step of one micro-batch on each rank, without gradient accumulation."""

CHECKPOINTING = "activation_checkpoint"
BATCH_KEYS = (
    ("seq_len", "local_batch_size", "global_batch_size"),
    ("max_context_length", "num_tokens_per_microbatch_per_dp_rank", "num_tokens_per_train_step"),
)
"""Fields for sequence length, micro-batch and global batch: of torchtitan 0.3.0, and from August 2026 on."""
COUNTS_TOKENS = {"num_tokens_per_microbatch_per_dp_rank"}
"""Fields that count tokens. The other fields count sequences."""
MAX_LISTED_MISMATCHES = 12


def moe_layers(model: Any) -> list[Any]:
    """Return the MoE layers in the model's configuration. Until April 2026 there is one template for all layers."""
    layers = getattr(model, "layers", None) or [getattr(model, "layer", None)]
    return [layer for layer in layers if getattr(layer, "moe", None) is not None]


def read_routing(config: Any) -> tuple[int, int]:
    """Return number of experts and top-k of the first MoE layer. Raises ContractError if there is none."""
    layers = moe_layers(config.model_spec.model)
    if not layers:
        raise ContractError(
            "config", f"the model of {config.model_spec.flavor!r} has no MoE layer; choose a recipe that has one"
        )
    moe = layers[0].moe
    router = getattr(moe, "router", None)

    def read_number(name: str) -> int | None:
        number = getattr(router, name, None)
        return number if number is not None else getattr(moe, name, None)

    experts, top_k = read_number("num_experts"), read_number("top_k")
    if experts is None or top_k is None:
        raise refuse_revision(
            "the configuration of its MoE layers has no num_experts or no top_k. Update regbot",
        )
    return experts, top_k


def find_dispatcher(layer: Any) -> Any:
    """Return the section of an MoE layer's configuration that has a ``token_dispatcher``, or None."""
    sections = (getattr(layer.moe, name, None) for name in ("routed_experts", "experts"))
    return next((section for section in sections if hasattr(section, "token_dispatcher")), None)


def pin(config: Any, request: Request) -> None:
    shape, model = request.geometry, config.model_spec.model
    sequence_key, micro_batch_key, global_batch_key = _batch_keys(config.training)
    units_per_sequence = shape.sequence if micro_batch_key in COUNTS_TOKENS else 1
    setattr(config.training, sequence_key, shape.sequence)
    setattr(config.training, micro_batch_key, shape.micro_batch * units_per_sequence)
    setattr(config.training, global_batch_key, GLOBAL_BATCH_OF_ONE_MICRO_BATCH)
    config.training.mixed_precision_param = request.dtype
    set_checkpointing(config, "none")
    if _differs(model, shape):
        model = _resize(model, shape)
    config.model_spec = dataclasses.replace(config.model_spec, model=model)
    loss = getattr(config.loss, "loss_fn", config.loss)  # in some revisions, config.loss wraps the loss
    if getattr(loss, "global_vocab_size", None) is not None:
        loss.global_vocab_size = shape.vocabulary


def _batch_keys(training: Any) -> tuple[str, str, str]:
    for names in BATCH_KEYS:
        if all(hasattr(training, name) for name in names):
            return names
    raise refuse_revision(
        "torchtitan's training configuration has neither "
        f"{' nor '.join(' and '.join(names) for names in BATCH_KEYS)}. Update regbot",
    )


def set_checkpointing(config: Any, value: Any) -> None:
    """Set activation checkpointing to ``value``: none, full or selective. Raises ContractError."""
    policy_classes = {"none": None, "full": "FullAC", "selective": "SelectiveAC"}
    if value not in policy_classes:
        raise ContractError("config", f"{CHECKPOINTING}: write none, full or selective, not {value!r}")
    if hasattr(config.activation_checkpoint, "mode"):  # until June 2026
        config.activation_checkpoint.mode = value
        return
    policies = importlib.import_module("torchtitan.distributed.activation_checkpoint")
    policy_class = policy_classes[value]
    config.activation_checkpoint = None if policy_class is None else getattr(policies, policy_class).Config()


def _resize(model: Any, shape: Geometry) -> Any:
    module, _ = PINNED_RECIPE
    qwen3 = importlib.import_module(f"{MODELS}.{module}")
    replace = dataclasses.replace
    rope_numbers = {"dim": shape.head_dim, "theta": shape.rope_theta, "max_seq_len": shape.sequence}
    try:
        rope = model.layers[0].attention.rope
        rope_numbers = {name: number for name, number in rope_numbers.items() if hasattr(rope, name)}
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
            moe_comm_backend="standard",  # all-to-all; choose_dispatcher sets the requested dispatcher later
            rope=replace(rope, **rope_numbers),
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
            f"regbot cannot resize this torchtitan's qwen3 as in 0.3.0 ({error}); set 'recipe' to a recipe of the "
            "repository instead, or use a shape that the repository has",
        ) from error


def check_shape(trainer: Any, request: Request) -> list[str]:
    """Compare the numbers of the built model with the shape. Differences of a recipe are returned as warnings. Without
    a recipe they raise ContractError.
    """
    shape = request.geometry
    try:
        training = trainer.config.training
        sequence_key, micro_batch_key, _ = _batch_keys(training)
        sequence = getattr(training, sequence_key)
        units_per_sequence = sequence if micro_batch_key in COUNTS_TOKENS else 1
        parameters = sum(parameter.numel() for part in trainer.model_parts for parameter in part.parameters())
        numbers = [
            *_model_numbers(trainer.model_config, shape),
            ("sequence", sequence, shape.sequence),
            ("micro_batch", getattr(training, micro_batch_key) // units_per_sequence, shape.micro_batch),
            ("gradient accumulation", trainer.gradient_accumulation_steps, 1),
            ("parameters", parameters, count_parameters(shape)),
        ]
        mismatches = [f"{name} {actual}, not {expected}" for name, actual, expected in _keep_differing(numbers)]
    except AttributeError as error:
        mismatches = [f"its numbers cannot be read as in torchtitan 0.3.0 ({error})"]
    summary = "; ".join(mismatches[:MAX_LISTED_MISMATCHES])
    if mismatches and not request.recipe:
        raise ContractError("shape", f"torchtitan built another model than requested: {summary}")
    return [f"recipe {request.recipe} is not of this shape: {summary}"] if mismatches else []


def _differs(model: Any, shape: Geometry) -> bool:
    try:
        return bool(_keep_differing(_model_numbers(model, shape)))
    except AttributeError:  # The fields differ from those of 0.3.0. New layers are built, and check_shape checks them.
        return True


Comparison = tuple[str, Any, Any]
"""Name of a number, its value in torchtitan, and that of the shape."""


def _model_numbers(model: Any, shape: Geometry) -> list[Comparison]:
    numbers: list[Comparison] = [
        ("layers", len(model.layers), shape.layers),
        ("hidden", model.dim, shape.hidden),
        ("vocabulary", model.vocab_size, shape.vocabulary),
    ]
    for layer in model.layers:
        attention, moe = layer.attention, layer.moe
        numbers += [
            ("heads", attention.n_heads, shape.heads),
            ("kv_heads", attention.n_kv_heads or attention.n_heads, shape.kv_heads),
            ("head_dim", attention.head_dim or attention.dim // attention.n_heads, shape.head_dim),
            ("qk_norm", attention.qk_norm is not None, shape.qk_norm),
            ("rope_theta", attention.rope.theta, shape.rope_theta),
            ("experts", moe.router.num_experts, shape.experts),
            ("top_k", moe.router.top_k, shape.top_k),
            ("expert_width", moe.routed_experts.inner_experts.hidden_dim, shape.expert_width),
        ]
    return numbers


def _keep_differing(numbers: Iterable[Comparison]) -> list[Comparison]:
    return [(name, actual, expected) for name, actual, expected in dict.fromkeys(numbers) if actual != expected]


def count_parameters(shape: Geometry) -> int:
    """No linear layer has a bias, and embedding and output head do not share their weights."""
    attention = shape.hidden * shape.head_dim * (2 * shape.heads + 2 * shape.kv_heads)  # Q, output; K, V
    norms = 2 * shape.hidden + (2 * shape.head_dim if shape.qk_norm else 0)
    experts = shape.experts * 3 * shape.hidden * shape.expert_width  # gate, up and down projection
    router = shape.experts * shape.hidden
    embedding_and_head = 2 * shape.vocabulary * shape.hidden
    final_norm = shape.hidden
    return shape.layers * (attention + norms + experts + router) + embedding_and_head + final_norm
