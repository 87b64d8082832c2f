from types import SimpleNamespace

import torch
import torch.distributed as dist
from megatron.bridge.training.model import Model


def pretrain(configuration):
    assert configuration.tokenizer.tokenizer_type == "NullTokenizer"
    assert (
        configuration.checkpoint.save is configuration.checkpoint.load is configuration.logger.tensorboard_dir is None
    )
    assert configuration.logger.wandb_project is None
    assert configuration.tokenizer.use_tokenizer_vocab_size
    configuration.model.vocab_size = configuration.tokenizer.vocab_size
    dist.init_process_group("nccl")
    torch.cuda.set_device(0)
    model = configuration.model
    ranks = list(range(model.expert_model_parallel_size))
    expert_group = dist.new_group(ranks, group_desc="EXPERT_MODEL_PARALLEL_GROUP")
    data_group = dist.new_group(list(range(0, dist.get_world_size(), 2)), group_desc="DATA_PARALLEL_GROUP")
    numbers = {**vars(model), "num_experts": model.num_moe_experts}
    chunks = [Model(SimpleNamespace(**numbers), expert_group).cuda()]
    optimizer = torch.optim.SGD(chunks[0].parameters(), lr=0.1)
    ranks_of_a_batch = model.tensor_model_parallel_size * model.pipeline_model_parallel_size
    sequences = configuration.train.micro_batch_size * dist.get_world_size() // ranks_of_a_batch
    state = SimpleNamespace(cfg=configuration, micro_batches=configuration.train.global_batch_size // sequences)
    for _ in range(configuration.train.train_iters):
        train_step(None, None, chunks, optimizer, None, global_state=state, data_group=data_group)


def train_step(forward_step_func, data_iterator, model, optimizer, scheduler, global_state, data_group):
    for _ in range(global_state.micro_batches):
        rows = torch.randn(model[0].tokens, model[0].width, device="cuda")
        model[0](rows).float().pow(2).mean().backward()
    for parameter in model[0].parameters():
        if parameter.grad is not None:
            dist.all_reduce(parameter.grad, group=data_group)
    optimizer.step()
