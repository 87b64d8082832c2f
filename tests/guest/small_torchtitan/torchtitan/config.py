import importlib
import sys
from dataclasses import dataclass, field
from types import SimpleNamespace

from torchtitan.hf_datasets.text_datasets import Loader
from torchtitan.trainer import Trainer


@dataclass(kw_only=True, slots=True)
class Training:
    seq_len: int = 16
    local_batch_size: int = 1
    global_batch_size: int = -1
    disable_cuda_graphs: bool = False


@dataclass(kw_only=True, slots=True)
class Metrics:
    log_freq: int = 10
    enable_tensorboard: bool = False
    enable_wandb: bool = False
    disable_color_printing: bool = False


@dataclass(kw_only=True, slots=True)
class Enabled:
    enable: bool = True


@dataclass(kw_only=True, slots=True)
class Debug:
    enable_structured_logging: bool = True
    save_config_file: str | None = None
    moe_force_load_balance: bool = False
    seed: int | None = None


@dataclass(kw_only=True, slots=True)
class Parallelism:
    expert_parallel_degree: int = 1
    spmd_backend: str = "partial_dtensor"


class AllToAllDispatcher:
    class Config:
        pass


def make_model():
    router = SimpleNamespace(num_experts=8, top_k=2)
    moe = SimpleNamespace(router=router, routed_experts=SimpleNamespace(token_dispatcher=AllToAllDispatcher.Config()))
    layer = SimpleNamespace(moe=moe, attention=SimpleNamespace(inner_attention=None))
    return SimpleNamespace(flavor="debug", model=SimpleNamespace(layers=[layer], dim=32, vocab_size=64))


@dataclass(kw_only=True)
class Config:
    training: Training = field(default_factory=Training)
    metrics: Metrics = field(default_factory=Metrics)
    checkpoint: Enabled = field(default_factory=Enabled)
    validator: Enabled = field(default_factory=Enabled)
    debug: Debug = field(default_factory=Debug)
    parallelism: Parallelism = field(default_factory=Parallelism)
    activation_checkpoint: object = None
    model_spec: object = field(default_factory=make_model)
    dataloader: Loader = field(default_factory=Loader)
    hf_assets_path: str = ""

    def build(self):
        return Trainer(self)


class ConfigManager:
    def parse_args(self, args=sys.argv[1:]):
        config, _ = self._load_config(args)
        return config

    def _load_config(self, args):
        registry = importlib.import_module(f"torchtitan.models.{args[1]}.config_registry")
        return getattr(registry, args[3])(), []
