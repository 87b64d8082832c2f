"""A training script of a project that has Megatron-core and ``megatron.training`` from a package.

The packages of Megatron-core have no such script. It has only what every script for ``pretrain`` needs: a forward step
with a loss, and the mock dataset.
"""

from functools import partial

import torch
from megatron.core.datasets.blended_megatron_dataset_builder import BlendedMegatronDatasetBuilder
from megatron.core.datasets.gpt_dataset import GPTDatasetConfig, MockGPTDataset
from megatron.core.enums import ModelType
from megatron.core.tokenizers.utils.build_tokenizer import build_tokenizer
from megatron.training import get_args, pretrain
from megatron.training.argument_utils import gpt_config_from_args, pretrain_cfg_container_from_args
from megatron.training.arguments import parse_and_validate_args


def compute_loss(mask, output):
    mask = mask.view(-1).float()
    loss = torch.sum(output.view(-1).float() * mask)
    tokens = mask.sum().clone().detach().to(torch.int)
    return loss, tokens, {"lm loss": torch.cat([loss.detach().view(1), tokens.view(1)])}


def forward_step(data_iterator, model):
    batch = {name: tensor.cuda(non_blocking=True) for name, tensor in next(data_iterator).items()}
    output = model(batch["tokens"], batch["position_ids"], None, labels=batch["labels"], loss_mask=batch["loss_mask"])
    return output, partial(compute_loss, batch["loss_mask"])


def build_datasets(samples, vp_stage=None):
    arguments = get_args()
    config = GPTDatasetConfig(
        random_seed=arguments.seed,
        sequence_length=arguments.seq_length,
        split="1,0,0",
        tokenizer=build_tokenizer(arguments),
        reset_position_ids=False,
        reset_attention_mask=False,
        eod_mask_loss=False,
        create_attention_mask=False,
    )
    return BlendedMegatronDatasetBuilder(MockGPTDataset, samples, lambda: True, config).build()


if __name__ == "__main__":
    build_datasets.is_distributed = True
    arguments = parse_and_validate_args()
    config = pretrain_cfg_container_from_args(arguments, gpt_config_from_args(arguments))
    pretrain(config, build_datasets, ModelType.encoder_or_decoder, forward_step)
