"""Run a request on real ranks of torchtitan without GPUs: ``torchtitan_on_cpu.py REQUEST.json`` under torchrun.

torchtitan 0.3.0 trains on GPUs only. Here it gets what it asks of a device, an attention that has a backward on a CPU,
and sums that gloo can reduce. These replacements change neither the sharding nor the dispatch.
"""

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

for name, function in {
    "get_device_name": lambda *_: "CPU",
    "get_device_properties": lambda *_: SimpleNamespace(total_memory=1, name="CPU"),
    "reset_peak_memory_stats": lambda *_: None,
    "empty_cache": lambda: None,
    "memory_stats": lambda *_: {},
}.items():
    setattr(torch.cpu, name, function)
torch._utils._get_available_device_type = lambda: "cpu"  # type: ignore[attr-defined]

from torch.distributed.fsdp import FSDPModule  # noqa: E402
from torchtitan.models.common.attention import ScaledDotProductAttention  # noqa: E402
from torchtitan.tools import utils  # noqa: E402
from torchtitan.trainer import Trainer  # noqa: E402

from regbot_guest.frameworks import torchtitan_config  # noqa: E402
from regbot_guest.process import run_requests  # noqa: E402
from regbot_guest.request import Request  # noqa: E402

utils.get_local_device = lambda: torch.device("cpu")
validate, build = torchtitan_config.validate, Trainer.__init__


def validate_with_plain_attention(config: Any) -> None:
    for layer in config.model_spec.model.layers:
        layer.attention.inner_attention = ScaledDotProductAttention.Config()
    validate(config)


def build_with_sums(trainer: Any, config: Any) -> None:
    build(trainer, config)
    for part in trainer.model_parts:
        for module in part.modules():
            if isinstance(module, FSDPModule):
                module.set_force_sum_reduction_for_comms(True)


torchtitan_config.validate = validate_with_plain_attention
Trainer.__init__ = build_with_sums
sys.exit(run_requests([Request.load(Path(sys.argv[1]))])[0])
