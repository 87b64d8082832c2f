import json
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

from transformers.utils import hub


@dataclass
class Model:
    num_layers: int = 2
    hidden_size: int = 64
    num_moe_experts: int = 16
    moe_router_topk: int = 2
    seq_length: int = 32
    vocab_size: int = 512
    tensor_model_parallel_size: int = 2
    pipeline_model_parallel_size: int = 1
    virtual_pipeline_model_parallel_size: int | None = None
    pipeline_model_parallel_layout: str | None = None
    microbatch_group_size_per_vp_stage: int | None = None
    context_parallel_size: int = 1
    expert_model_parallel_size: int = 4
    moe_token_dispatcher_type: str = "flex"
    moe_flex_dispatcher_backend: str | None = "deepep"


@dataclass
class Train:
    micro_batch_size: int = 2
    global_batch_size: int = 64
    train_iters: int = 100


@dataclass
class Tokenizer:
    tokenizer_type: str = "HuggingFaceTokenizer"
    tokenizer_model: str | None = "Qwen/Qwen3-30B-A3B"
    use_tokenizer_vocab_size: bool = True
    vocab_size: int | None = None


@dataclass
class Checkpoint:
    save: str | None = "/nemo/checkpoints"
    load: str | None = "/nemo/checkpoints"


@dataclass
class Logger:
    tensorboard_dir: str | None = "/nemo/logs"
    wandb_project: str | None = "nights"


@dataclass
class Validation:
    eval_iters: int = 32


@dataclass
class Dataset:
    num_workers: int = 8


@dataclass
class Container:
    model: Model = field(default_factory=Model)
    train: Train = field(default_factory=Train)
    tokenizer: Tokenizer = field(default_factory=Tokenizer)
    checkpoint: Checkpoint = field(default_factory=Checkpoint)
    logger: Logger = field(default_factory=Logger)
    validation: Validation = field(default_factory=Validation)
    dataset: Dataset = field(default_factory=Dataset)


def own_tokenizer_pretrain_config():
    container = Container()
    container.tokenizer.tokenizer_model = "a/b"
    return container


def null_tokenizer_pretrain_config():
    container = Container()
    container.tokenizer = Tokenizer("NullTokenizer", None, True, 777)
    return container


def qwen3_30b_a3b_pretrain_config():
    (path,) = hub.cached_files("Qwen/Qwen3-30B-A3B", filenames=["config.json"], revision="0123")
    published = SimpleNamespace(**json.loads(Path(path).read_text()))
    assert (published.num_hidden_layers, published.num_experts) == (48, 128)
    return Container()
