import os
from types import SimpleNamespace

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh


class Experts(nn.Module):
    def __init__(self, group):
        super().__init__()
        self.group = group

    def forward(self, rows):
        received = torch.empty_like(rows)
        dist.all_to_all_single(received, rows.detach(), group=self.group)
        return rows + received


class Layer(nn.Module):
    def __init__(self, group):
        super().__init__()
        self.moe = Experts(group)

    def forward(self, hidden):
        return self.moe(hidden.view(-1, hidden.shape[-1])).view_as(hidden)


class Trainer:
    def __init__(self, config):
        self.check(config)
        self.config, self.model_config = config, config.model_spec.model
        self.parallel_dims = self.init_distributed(config)
        group = self.parallel_dims.get_all_one_dimensional_meshes()["ep"].get_group()
        self.model_parts = [nn.Sequential(nn.Embedding(64, 32), Layer(group), nn.Linear(32, 32)).to("cuda")]
        self.dataloader = config.dataloader.build(
            dp_world_size=1,
            dp_rank=0,
            tokenizer=None,
            seq_len=config.training.seq_len,
            local_batch_size=config.training.local_batch_size,
        )

    def check(self, config):
        pass

    def init_distributed(self, config):
        dist.init_process_group("nccl")
        size = config.parallelism.expert_parallel_degree
        meshes = init_device_mesh("cuda", (int(os.environ["WORLD_SIZE"]) // size, size), mesh_dim_names=("efsdp", "ep"))
        dims = {name: meshes[name] for name in meshes.mesh_dim_names if meshes[name].size() > 1}
        return SimpleNamespace(get_all_one_dimensional_meshes=lambda: dims)

    def train(self):
        for tokens in self.dataloader:
            self.train_step(tokens)

    def train_step(self, tokens):
        (model,) = self.model_parts
        model(tokens.to("cuda")).sum().backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
