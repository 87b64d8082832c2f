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


def creation(device: str, line: Line) -> None:
    a = torch.zeros(3, 5, dtype=torch.int64, device=device)
    line("zeros", a)
    b = torch.ones(4, dtype=torch.int32, device=device)
    line("ones", b)
    c = torch.full((2, 3), 7, device=device)
    line("full", c)
    d = torch.arange(3, 30, 4, device=device)
    line("arange", d)
    e = torch.tensor([[1, 2], [3, 4]], device=device)
    line("tensor", e)
    line("scalar tensor", torch.scalar_tensor(3, dtype=torch.int64, device=device))
    line("empty", torch.empty(2, 3, 4, 5, memory_format=torch.channels_last, device=device).fill_(2.0))
    line("empty_strided", torch.empty_strided((2, 3), (1, 4), dtype=torch.int16, device=device).fill_(9))
    line("zeros_like", torch.zeros_like(e.t()), torch.ones_like(e, dtype=torch.bool), torch.empty_like(a).zero_())
    line("new", a.new_zeros(2), a.new_empty(3).fill_(1), a.new_ones(2, 2), a.new_full((2,), 5))
    line("eye", torch.eye(4, dtype=torch.int64, device=device), torch.linspace(0, 1, 5, device=device))
    line("random", torch.randn(7, device=device), torch.rand(3, 3, device=device).uniform_())
    line("scalar", torch.tensor(3, device=device), torch.tensor(True, device=device))
    line("random integers", torch.randint(9, (3, 2), device=device).float(), torch.ones(3, device=device).random_(4))
    line("empty of nothing", torch.empty(0, device=device), torch.zeros(3, 0, 2, device=device))


def views(device: str, line: Line) -> None:
    a = torch.arange(24, device=device)
    b = a.view(2, 3, 4)
    line("view", a, b)
    line("transpose", b.transpose(0, 2), b.t() if b.dim() < 3 else b.permute(2, 0, 1), a.view(4, 6).t())
    line("select", b[1], b[:, 1], b[..., 2], b.select(1, 2)[1:])
    line("slice", b[:, 1:], b[:, ::2, 1:3], a[3:20:5], a[5:5])
    line("narrow", b.narrow(2, 1, 2), b.narrow(0, 1, 1).narrow(1, 1, 2))
    line("unsqueeze", a.unsqueeze(0), b.unsqueeze(-1), b[:1].squeeze(0), b[:1].squeeze())
    line("expand", a[:3].view(3, 1).expand(3, 4), a[2].expand(2, 2))
    line("split", *a.split(7), *b.split([1, 2], 1), *b.chunk(2, 2), *a.tensor_split(5))
    line("unbind", *b.unbind(1))
    line(
        "as_strided",
        a.as_strided((3, 3), (1, 2), 4),
        a[6:].as_strided((2, 2), (5, 1)),
        a[3:5].as_strided((4,), (5,), 0),
    )
    line("unfold", a.unfold(0, 5, 3), b.unfold(2, 2, 1))
    line(
        "dtype view", a.view(torch.int32), a[3:].view(torch.int16), a.view(torch.int32)[1::2], a.view(torch.uint8)[8:16]
    )
    line("flatten", b.flatten(1), b.reshape(6, 4), b.transpose(0, 1).reshape(-1))
    line("movedim", b.movedim(0, 2), b.swapaxes(0, 1), b.diagonal(0, 1, 2), b.mT, a.ravel(), b.unflatten(2, (2, 2)))
    c = torch.arange(6, device=device).view(2, 3)
    line("in place", c.t_(), c.unsqueeze_(0), c.squeeze_(0), c.transpose_(0, 1), c.as_strided_((2,), (1,), 1))
    line("detach", a.detach(), a.alias() if hasattr(a, "alias") else a.view_as(a))
    z = torch.zeros(4, dtype=torch.complex64, device=device)
    line(
        "complex",
        torch.view_as_real(z),
        torch.view_as_real(z[1:]),
        torch.view_as_real(z[2:]),
        z.real,
        z[1:].imag,
        z.conj(),
    )
    d = torch.arange(4, device=device)
    d.resize_(2, 3).fill_(1)
    line("resize_", d, d.resize_(2), d.t().resize_(2))
    e = torch.empty(0, dtype=torch.int64, device=device)
    e.set_(a)
    line("set_ of a tensor", e)
    e.set_(a.untyped_storage(), 3, (2, 2), (1, 5))
    line("set_ of a storage", e)
    e.set_()
    line("set_ of nothing", e, a)


def in_place(device: str, line: Line) -> None:
    a = torch.zeros(4, 6, dtype=torch.int64, device=device)
    a.add_(3)
    line("add_", a)
    a[1].mul_(4)
    line("part", a)
    a[:, ::2] = torch.arange(3, device=device)
    line("columns", a)
    a.t()[2:4].copy_(torch.arange(8).view(2, 4))
    line("from the host", a)
    a[a > 3] = -1
    line("mask", a)
    a.masked_fill_(a < 0, 5)
    line("masked_fill_", a)
    b = torch.empty(3, 3, dtype=torch.int32, device=device)
    b[0] = 1
    b[1:].fill_(2)
    line("rows one by one", b)
    c = a.view(-1)
    c[3:9].sub_(c[3:9] * 2)
    line("through a view", a, c)
    d = torch.arange(5, device=device)
    d.clamp_(1, 3)
    d.neg_()
    d.floor_divide_(2)
    line("chain", d)
    d.zero_()
    line("zero_", d)
    e = torch.ones(3, dtype=torch.bool, device=device)
    e &= torch.tensor([True, False, True], device=device)
    e.logical_not_()
    line("bool", e)
    out = torch.empty(0, dtype=torch.int64, device=device)
    torch.add(a, 1, out=out)
    line("out", out)
    wide = torch.zeros(6, 8, dtype=torch.int64, device=device).t()[:6, :]
    torch.mul(a.t(), 2, out=wide[:, :4])
    line("out of strides", wide)
    torch.cumsum(d, 0, out=d)
    line("out is an input", d)
    f = torch.zeros(2, 3, device=device)
    torch.add(torch.ones(2, 3, dtype=torch.int64, device=device), 1, out=f)
    line("out of another dtype", f)


def integers(device: str, line: Line) -> None:
    a = torch.tensor([5, 3, 3, 0, 7, 1], device=device)
    b = torch.tensor([[1, 0, 2], [2, 2, 1]], device=device)
    line("arithmetic", a + 1, a * a, a - 2, a // 2, a % 3, -a, a**2, a << 1, torch.bitwise_and(a, 3))
    line("dtypes", a.int() + 1, a + 1.5, a / 2, a.bool(), a.to(torch.uint8), a.float(), a.half() + a, a.to(torch.int64))
    line("mixed", a.int() + a, a.int() + torch.tensor(3, device=device), a.int() + torch.tensor(3), a * True)
    line("comparison", a > 2, a == a.flip(0), a.eq(3) | a.eq(5), ~a.bool(), a.ne(3).all(), a.gt(6).any())
    line("reduction", a.sum(), b.sum(0), b.sum(1, keepdim=True), b.max(), b.amax(1), a.prod(), b.argmax(1), a.min())
    line("pairs", *b.max(1), *b.min(0), *a.sort(), *a.sort(descending=True, stable=True), *a.topk(3), a.argsort())
    line("cumulative", a.cumsum(0), b.cumsum(1), *b.cummax(1), a.cumprod(0), a.diff())
    line("counts", a.bincount(minlength=4), a.unique(), *a.unique(return_inverse=True))
    line(
        "index",
        a[b],
        b[:, torch.tensor([2, 0], device=device)],
        b[torch.tensor([1, 0])],
        a.index_select(0, b[0]),
        b[1, None],
    )
    line(
        "mask",
        a[a > 2],
        b[b == 2],
        a.masked_select(a > 3),
        b[torch.tensor([True, False], device=device)],
        a.where(a > 2, -1),
    )
    line(
        "nonzero", a.nonzero(), *b.nonzero(as_tuple=True), torch.where(a > 2, a, 0), torch.where(a > 2)[0], b.argwhere()
    )
    line("gather", a.gather(0, b[0]), b.gather(1, b), torch.take_along_dim(b, b.argsort(1), 1), b.take(a.clamp(max=5)))
    line(
        "scatter",
        b.scatter(1, b, 9),
        b.scatter_add(1, b, b),
        torch.zeros(8, dtype=torch.int64, device=device).scatter_(0, a, 1),
        torch.zeros(8, dtype=torch.int64, device=device).scatter_add_(0, a, torch.ones_like(a)),
    )
    line("index_add", b.index_add(0, a[1:3] // 3, b), b.index_copy(1, b[0], b), b.index_fill(1, b[0, :1], 8))
    line("index_put", b.index_put((b[0] % 2,), a[:3]), b.index_put((b[0] % 2,), a[:3], accumulate=True))
    line(
        "repeat",
        a.repeat(2),
        b.repeat(2, 1, 2),
        a.repeat_interleave(2),
        a.repeat_interleave(a),
        b.repeat_interleave(b[0], 1),
    )
    line(
        "repeat known", torch.repeat_interleave(b[1], output_size=5), a.repeat_interleave(a, output_size=19), b.tile(2)
    )
    line("cat", torch.cat([a, a[:2]]), torch.stack([b, b], 1), torch.cat([b, b.float()]), torch.hstack([a, a]))
    line(
        "triangles",
        torch.ones(3, 3, dtype=torch.bool, device=device).tril(),
        b.triu(1),
        b.flip(1),
        b.roll(1, 0),
        b.rot90(),
    )
    line("clone", b.t().clone(), b.t().contiguous(), b[:, 1].clone(), b.expand(2, 2, 3).clone(), b.contiguous())
    line("one hot", F.one_hot(b, 3), torch.bucketize(a, a.sort().values), torch.searchsorted(a.sort().values, b))
    line("where", torch.where(b > 1, b, b * 10), torch.minimum(b, b.flip(0)), torch.maximum(a, a[0]), b.clamp(1, 1))
    line("isin", torch.isin(a, b), torch.equal(a, a) and a, a.logical_xor(a.roll(1)), torch.remainder(a, 4), a.fmod(2))
    line("foreach", *torch._foreach_add([a, b], 1), *torch._foreach_mul([a, b], [a, b]), *torch._foreach_neg([a]))
    c, d = a.clone(), b.clone()
    torch._foreach_add_([c, d], 2)
    line("foreach in place", c, d)
    torch._foreach_copy_([c, d], [a, b])
    line("foreach copy", c, d)
    torch._foreach_zero_([c])
    line("foreach zero", c, d)
    parts = [torch.zeros(2, 1, dtype=torch.int64, device=device), torch.zeros(2, 2, dtype=torch.int64, device=device)]
    torch.split_with_sizes_copy(b, [1, 2], dim=1, out=parts)
    line("split copy", *parts, *torch.split_with_sizes_copy(b, [1, 2], dim=1))
    line("chunk cat", torch._chunk_cat([b.t().contiguous(), a[:3]], 0, 2))
    line("to the host and back", b.to("cpu", copy=True).to(device, copy=True), b.to("cpu").to(device, torch.int32))
    line("lists", torch.tensor(b.tolist(), device=device), torch.tensor([int(a[0]), a[1].item()], device=device))
    line("neg inf", torch.isneginf(b), b.abs(), b.sign(), b.bitwise_not())
    line("bounds", a >= 3, a <= 5, torch.isinf(b), torch.isnan(b), a.clone().clamp_max_(4))
    torch._assert_async((a >= 0).all())
    line("assertion", a)


def floats(device: str, line: Line) -> None:
    torch.manual_seed(0)
    x = torch.randn(4, 8, device=device, requires_grad=True)
    w = torch.randn(8, 8, device=device, requires_grad=True)
    y = x @ w
    line("mm", y)
    line("views of it", y.view(2, 2, 8), y.t(), y[1:], y.unsqueeze(0).expand(3, 4, 8))
    z = (y.float() * 2 + 1 - y / 3).pow(2).neg().cos().sin().exp()
    line(
        "pointwise", z, z.to(torch.bfloat16), z.sum(1), z.mean(), z.softmax(-1), z.log_softmax(0), z.cumsum(1), z.var(0)
    )
    line(
        "types",
        z + 1,
        z.bfloat16() + z,
        z.bfloat16() + torch.ones((), device=device),
        z.bfloat16() * 2.5,
        z.half() @ z.half().t(),
    )
    line("functions", z.sigmoid(), z.abs().log(), 1 - z, torch.rsub(z, 2), torch.full_like(z, 0.5))
    inner = z.detach().clone()
    line("in place", inner.div_(2), inner.exp_(), inner.pow_(2), inner.clamp_max_(3.0))
    rows, mask = torch.zeros(6, 8, device=device), torch.arange(6, device=device).view(6, 1) >= 2
    line("masked scatter", rows.masked_scatter(mask, inner), rows.masked_scatter_(mask, inner))
    del inner, rows, mask
    loss = F.cross_entropy(z, torch.arange(4, device=device))
    line("loss", loss)
    del y, z
    line("del")
    loss.backward()
    line("backward", x.grad, w.grad)
    del loss
    line("del loss")
    x.grad = None
    line("grad is None", x)
    line(
        "bmm", torch.bmm(x.detach().expand(2, 4, 8), w.detach().expand(2, 8, 8)), torch.baddbmm(x[:1], x[None], w[None])
    )
    line("einsum", torch.einsum("ab,cb->ac", x, w), x.addmm(x, w), torch.addmv(x[:, 0], x, w[0]), x.matmul(w[0]))
    line(
        "sort",
        *[t for pair in (x.sort(1), x.topk(2), x.max(1)) for t in (pair[0],)],
        x.argsort(1) * 0 if False else None,
    )
    line("out", torch.mm(x.detach(), w.detach(), out=torch.empty(0, device=device)))
    line(
        "embedding", F.embedding(torch.tensor([1, 3, 1], device=device), w), F.linear(x, w, w[0]), F.silu(x), F.gelu(x)
    )
    line(
        "norms",
        F.layer_norm(x, (8,)),
        F.normalize(x),
        x.norm(),
        torch.linalg.vector_norm(x, dim=1),
        F.rms_norm(x, (8,)),
    )
    line(
        "dropout",
        F.dropout(x, 0.5),
        F.dropout(x, 0.5, training=False),
        torch.bernoulli(torch.full((3,), 0.5, device=device)),
    )
    line(
        "padding",
        F.pad(x, (1, 2)),
        F.pad(x, (-1, 0)),
        x.tril(),
        x.new_zeros(4, 8).scatter_add(1, torch.zeros(4, 1, dtype=torch.int64, device=device), x[:, :1]),
    )
    line(
        "index",
        x[torch.tensor([2, 0], device=device)],
        x[:, [1, 1]],
        x[torch.tensor([True, False, True, False], device=device)],
    )
    x.detach()[0].fill_(3)
    line("write under autograd", x)


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


def norms(device: str, line: Line) -> None:
    x = torch.randn(4, 16, device=device, requires_grad=True)
    norm = nn.RMSNorm(16, device=device)
    y = norm(x)
    line("rms norm", y)
    (y.sum() + x[1].sum() + torch.ops.aten._safe_softmax(x, -1).sum()).backward()
    line("backward", x.grad, norm.weight.grad)
    q = torch.randn(2, 4, 8, 16, device=device, requires_grad=True)
    out = F.scaled_dot_product_attention(q, q, q, is_causal=True)
    line("attention", out)
    out.sum().backward()
    line("attention's backward", q.grad)
    del out
    q = torch.randn(2, 4, 8, 16, device=device, dtype=torch.bfloat16, requires_grad=True)
    out = F.scaled_dot_product_attention(q, q, q, is_causal=True)
    line("flash attention", out)
    out.sum().backward()
    del out
    line("flash attention's backward", q.grad)
    tokens, weights = torch.randn(8, 16, device=device), torch.randn(3, 16, 32, device=device)
    ends = torch.tensor([2, 5, 8], dtype=torch.int32, device=device)
    line("grouped product", torch._grouped_mm(tokens.bfloat16(), weights.bfloat16(), offs=ends))


def optimizers(device: str, line: Line) -> None:
    for name, make in (
        ("adamw", lambda p: torch.optim.AdamW(p, fused=True)),
        ("foreach adamw", lambda p: torch.optim.AdamW(p, foreach=True)),
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


PROGRAMS: tuple[Callable[[str, Line], None], ...] = (
    creation, views, in_place, integers, floats, layers, norms, optimizers, sharding,
)  # fmt: skip


def record(program: Callable[[str, Line], None], device: str) -> Run:
    with recording(device) as run:
        program(device, run)
    return run


if __name__ == "__main__":
    answer: dict[str, Any] = {"operators": []}
    for program in PROGRAMS:
        host, paper = record(program, "cpu"), record(program, "cuda")
        answer[program.__name__] = {"cpu": host.lines, "cuda": paper.lines}
        answer["operators"] = sorted({*answer["operators"], *paper.operators.names})
    print(json.dumps(answer))
