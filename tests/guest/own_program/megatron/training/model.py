import torch
from torch import nn
from torch.distributed.nn.functional import all_to_all_single


class MoE(nn.Module):
    """Every token goes to the ranks of its experts and back, by the dispatcher that the arguments name."""

    def __init__(self, arguments, group):
        super().__init__()
        self.group, self.experts, self.top_k = group, arguments.num_experts, arguments.moe_router_topk
        self.flex = arguments.moe_token_dispatcher_type == "flex"
        self.router = nn.Linear(arguments.hidden_size, self.experts, bias=False)
        self.expert = nn.Linear(arguments.hidden_size, arguments.hidden_size, bias=False)

    def forward(self, rows):
        scores, chosen = self.router(rows).softmax(-1).topk(self.top_k)
        weights = scores.sum(-1, keepdim=True)
        if self.flex:
            return self._flex(rows, chosen, scores) * weights
        order = chosen.flatten().argsort()
        counts = torch.bincount(chosen.flatten(), minlength=self.experts).view(self.group.size(), -1).sum(1).tolist()
        sent = rows[order // self.top_k]
        received = all_to_all_single(torch.empty_like(sent), sent, counts, counts, group=self.group)
        returned = all_to_all_single(torch.empty_like(sent), self.expert(received), counts, counts, group=self.group)
        return torch.zeros_like(rows).index_add(0, order // self.top_k, returned) * weights

    def _flex(self, rows, chosen, scores):
        import deep_ep

        buffer = deep_ep.Buffer(self.group, 1, 1)
        per_rank, _, per_expert, in_rank, _ = buffer.get_dispatch_layout(chosen, self.experts)
        received, local, _, counts, handle, _ = buffer.dispatch(
            rows,
            topk_idx=chosen,
            topk_weights=scores.float(),
            num_tokens_per_rank=per_rank,
            is_token_in_rank=in_rank,
            num_tokens_per_expert=per_expert,
        )
        assert received.shape[0] == local.shape[0] == per_rank[0].item() * self.group.size()
        assert sum(counts) == (local >= 0).sum().item()
        return buffer.combine(self.expert(received), handle)[0]


class Model(nn.Module):
    def __init__(self, arguments, group):
        super().__init__()
        self.tokens, self.width = arguments.seq_length, arguments.hidden_size
        self.layers = nn.ModuleList(nn.Sequential() for _ in range(arguments.num_layers))
        for layer in self.layers:
            layer.mlp = MoE(arguments, group)

    def forward(self, rows):
        for layer in self.layers:
            rows = rows + layer.mlp(rows)
        return rows
