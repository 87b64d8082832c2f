"""Model configurations that recipes of Megatron Bridge read from Hugging Face, without a network."""

import importlib
import importlib.util
import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from regbot_guest.crash import call_unchanged
from regbot_guest.replaced import replaced

PATCH = "config.json of a model comes from the local cache of Hugging Face or, if that lacks it, from regbot"
FILE_NAME = "config.json"

_QWEN3_MOE: Mapping[str, Any] = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "decoder_sparse_step": 1,
    "head_dim": 128,
    "hidden_act": "silu",
    "initializer_range": 0.02,
    "max_position_embeddings": 40960,
    "mlp_only_layers": [],
    "model_type": "qwen3_moe",
    "norm_topk_prob": True,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "num_key_value_heads": 4,
    "output_router_logits": False,
    "rms_norm_eps": 1e-06,
    "rope_scaling": None,
    "rope_theta": 1000000.0,
    "router_aux_loss_coef": 0.001,
    "sliding_window": None,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "use_sliding_window": False,
    "vocab_size": 151936,
}
CONFIGS: Mapping[str, Mapping[str, Any]] = {
    "Qwen/Qwen3-30B-A3B": {
        **_QWEN3_MOE,
        "hidden_size": 2048,
        "intermediate_size": 6144,
        "max_window_layers": 48,
        "moe_intermediate_size": 768,
        "num_attention_heads": 32,
        "num_hidden_layers": 48,
    },
    "Qwen/Qwen3-235B-A22B": {
        **_QWEN3_MOE,
        "hidden_size": 4096,
        "intermediate_size": 12288,
        "max_window_layers": 94,
        "moe_intermediate_size": 1536,
        "num_attention_heads": 64,
        "num_hidden_layers": 94,
    },
}
"""Published ``config.json`` by the name of the model's repository. Keys without influence on a step are left out."""
TOKENS: Mapping[str, int] = dict.fromkeys(CONFIGS, 151_669)
"""Number of tokens of the tokenizer: 151,643 and 26 added ones, less than the model's ``vocab_size``."""


@contextmanager
def offline() -> Iterator[None]:
    """While active, Hugging Face's libraries use no network. A ``config.json`` that the local cache lacks comes from
    ``CONFIGS``.
    """
    os.environ["HF_HUB_OFFLINE"] = "1"
    if importlib.util.find_spec("transformers") is None:
        yield
        return
    hub: Any = importlib.import_module("transformers.utils.hub")
    original = hub.cached_files
    with tempfile.TemporaryDirectory(prefix="regbot-models-") as folder:

        def cached_files(path_or_repo_id: Any, filenames: Any, *args: Any, **kwargs: Any) -> Any:
            repository = str(path_or_repo_id)
            positional_arguments = (path_or_repo_id, filenames, *args)
            has_copy = list(filenames) == [FILE_NAME] and repository in CONFIGS
            if not has_copy:
                return call_unchanged(original, positional_arguments, kwargs)
            try:
                paths = call_unchanged(original, positional_arguments, kwargs)
            except OSError:  # the cache lacks the file
                paths = None
            if paths:
                return paths
            copy = Path(folder) / repository / FILE_NAME
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_text(json.dumps(CONFIGS[repository]), encoding="utf-8")
            return [str(copy)]

        with replaced(hub, "cached_files", cached_files):
            yield
