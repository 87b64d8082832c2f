"""The same lines on the CPU and on the paper GPU: ``side_by_side.py``. Prints the results of every line, by program.

Each program takes the device and ``line``, which it calls after each line with the tensors that the line made or wrote.
"""

import json
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed.fsdp  # registers the operators fsdp::*
import torch.nn.functional as F
from recording import Run, recording
from torch import nn
from torch.utils.checkpoint import checkpoint

Line = Callable[..., None]


def layers(device: str, line: Line) -> None:
    torch.manual_seed(0)
    tokens = torch.tensor([[1, 2, 3, 2], [0, 1, 0, 3]], device=device)
    embedding = nn.Embedding(4, 16, device=device)
    x = embedding(tokens)
    line("embedding", x)
    gate = nn.Linear(16, 32, bias=False, device=device)
    norm = nn.LayerNorm(16, device=device)
    h = F.silu(gate(norm(x)))
    line("gate", h)
    chosen = torch.tensor([0, 1, 1, 0, 2, 2, 1, 0], device=device)
    order = chosen.argsort(stable=True)
    counts = chosen.bincount(minlength=3)
    rows = h.view(8, 32).index_select(0, order)
    line("permute", order, counts, rows)
    back = torch.zeros_like(rows).index_add(0, order, rows)
    line(
        "combine",
        back,
        h.view(8, 32).index_copy(0, order, rows),
        torch.empty_like(rows).scatter_(0, order[:, None].expand(8, 32), rows),
    )
    probabilities = h.view(8, 32)[:, :3].softmax(-1)
    weights = probabilities.gather(1, chosen[:, None])
    line("weights", probabilities, weights, back * weights)
    q = (back * weights).view(2, 4, 2, 16).transpose(1, 2)
    scores = (q @ q.transpose(-2, -1)).masked_fill(torch.ones(4, 4, dtype=torch.bool, device=device).triu(1), -1e9)
    line("scores", q, scores, scores.softmax(-1))
    out = (scores.softmax(-1) @ q).transpose(1, 2).reshape(2, 4, 32)
    line("attention", out)
    loss = F.cross_entropy(out.view(8, 32), tokens.view(-1))
    line("loss", loss)
    loss.backward()
    line("backward", embedding.weight.grad, gate.weight.grad, norm.weight.grad)


def optimizers(device: str, line: Line) -> None:
    for name, make in (
        ("adamw", lambda p: torch.optim.AdamW(p, fused=True)),
        ("sgd", lambda p: torch.optim.SGD(p, momentum=0.9, foreach=False)),
    ):
        model = nn.Sequential(
            nn.Linear(8, 12, device=device), nn.LayerNorm(12, device=device), nn.Linear(12, 4, device=device)
        )
        optimizer = make(model.parameters())
        for _ in range(2):
            loss = checkpoint(model, torch.randn(3, 8, device=device), use_reentrant=False).square().mean()
            line(f"{name}: forward", loss)
            loss.backward()
            line(f"{name}: backward", *(p.grad for p in model.parameters()))
            norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            line(f"{name}: clip", norm)
            optimizer.step()
            line(f"{name}: step", *model.parameters())
            optimizer.zero_grad()
            del loss, norm
            line(f"{name}: zero_grad")
        del model, optimizer
        line(f"{name}: del")


def sharding(device: str, line: Line) -> None:
    """FSDP's operators on parameters and gradients around its collectives, for 2 ranks."""
    a = torch.arange(6, dtype=torch.int64, device=device).view(2, 3)
    b = torch.arange(8, dtype=torch.int64, device=device)
    flat = torch.zeros(28, dtype=torch.int64, device=device)
    inputs, gathered = torch.ops.fsdp.all_gather_copy_in([a.view(-1), b], flat, [6, 8], 14, 0)
    line("copy in", inputs, gathered)
    gathered.view(2, 14)[1].copy_(inputs)
    outs = [torch.empty(2, 6, dtype=torch.int64, device=device), torch.empty(2, 8, dtype=torch.int64, device=device)]
    torch.ops.fsdp.split_with_sizes_copy(gathered.view(2, -1), [6, 8], dim=1, out=outs)
    line("copy out", *outs)
    del flat, inputs, gathered
    line("del")
    whole = outs[0].view(4, 3)
    shard = torch.empty(2, 14, device=device, dtype=torch.int64)
    torch.ops.fsdp.chunk_cat([whole, outs[1].view(4, 4)], dim=0, num_chunks=2, out=shard)
    line("chunk cat", shard, whole)
    if hasattr(torch.ops.fsdp, "chunk_cat_mixed_dtype"):  # from torch 2.15 on
        torch.ops.fsdp.chunk_cat_mixed_dtype([whole, outs[1].view(4, 4)], dim=0, num_chunks=2, out=shard)
        torch.ops.fsdp.record_grad_output_stream(shard, 0, 0, 0)
        line("chunk cat of mixed dtypes", shard, whole)
    storage = outs[1].untyped_storage()
    storage.resize_(0)
    line("free")
    storage.resize_(128)
    outs[1].fill_(4)
    line("allocate again", outs[1])
    parameter = nn.Parameter(torch.ones(4, 4, device=device))
    with torch.no_grad():
        parameter.set_(torch.ones(2, 2, device=device))
    line("set_", parameter)
    parameter.data = torch.zeros(3, 3, device=device)
    line("data", parameter)


PROGRAMS: tuple[Callable[[str, Line], None], ...] = (layers, optimizers, sharding)


def record(program: Callable[[str, Line], None], device: str) -> Run:
    with recording(device) as run:
        program(device, run)
    return run


if __name__ == "__main__":
    answer: dict[str, Any] = {}
    for program in PROGRAMS:
        host, paper = record(program, "cpu"), record(program, "cuda")
        answer[program.__name__] = {"cpu": host.lines, "cuda": paper.lines}
    print(json.dumps(answer))
