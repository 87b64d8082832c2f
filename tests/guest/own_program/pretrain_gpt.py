"""A training script like Megatron-LM's: a command line, process groups of its own, a loop that makes steps."""

import argparse
import sys
import traceback

import torch
import torch.distributed as dist
from megatron.training import set_args
from megatron.training.model import Model
from megatron.training.training import train

OTHER_FLAGS = (
    "ffn-hidden-size", "num-attention-heads", "group-query-attention", "num-query-groups", "kv-channels",
    "qk-layernorm", "rotary-base", "max-position-embeddings", "micro-batch-size", "global-batch-size", "vocab-size",
    "bf16", "moe-ffn-hidden-size", "lr", "swiglu", "disable-bias-linear", "normalization",
    "untie-embeddings-and-output-weights", "position-embedding-type", "hidden-dropout", "attention-dropout",
    "moe-router-dtype", "moe-router-load-balancing-type", "use-distributed-optimizer", "overlap-grad-reduce",
    "overlap-param-gather", "moe-grouped-gemm", "mock-data", "tokenizer-type", "eval-iters", "eval-interval",
    "log-interval", "distributed-timeout-minutes",
)  # fmt: skip
"""Flags of Megatron-LM that change nothing here."""


def read_value(text):
    return int(text) if text.isdecimal() else text


parser = argparse.ArgumentParser(allow_abbrev=False)
for name in OTHER_FLAGS:
    parser.add_argument(f"--{name}", nargs="?", const=True, type=read_value)
for name in ("num-layers", "hidden-size", "num-experts", "moe-router-topk", "seq-length", "expert-model-parallel-size"):
    parser.add_argument(f"--{name}", type=int)
parser.add_argument("--moe-token-dispatcher-type", default="alltoall")
parser.add_argument("--moe-flex-dispatcher-backend", default="deepep")
parser.add_argument("--train-iters", type=int)
parser.add_argument("--steps-to-make", type=int, default=0)
arguments = parser.parse_args()
set_args(arguments)

dist.init_process_group("nccl", timeout=None)
torch.cuda.set_device(0)
ranks = list(range(arguments.expert_model_parallel_size))
expert_group = dist.new_group(ranks, group_desc="EXPERT_MODEL_PARALLEL_GROUP")
data_group = dist.new_group(None, backend="nccl", group_desc="DATA_PARALLEL_GROUP")
model = Model(arguments, expert_group).cuda()
try:
    train([model], data_group, arguments.steps_to_make or arguments.train_iters)
except Exception:  # a script may well do this; it must not catch the end of the counted step
    traceback.print_exc()
    sys.exit("caught")
