"""The transformer around the MoE layer: ``build_layer`` builds the layer under test, which becomes ``layers.N.moe``.
The dense counterpart has one SwiGLU MLP in the same place.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regbot_guest.request import Geometry

LayerBuilder = Callable[[], nn.Module]


class Transformer(nn.Module):
    """Pre-norm decoder. ``forward`` maps token ids ``[batch, sequence]`` to logits ``[batch, sequence, vocabulary]``,
    or without a vocabulary ``[batch, sequence, hidden]`` to the same shape.
    """

    def __init__(self, shape: Geometry, build_layer: LayerBuilder, device: torch.device, dtype: torch.dtype) -> None:
        super().__init__()
        self.embedding: nn.Module = nn.Identity()
        if shape.vocabulary:
            self.embedding = nn.Embedding(shape.vocabulary, shape.hidden, device=device, dtype=dtype)
        self.layers = nn.ModuleList(Block(shape, build_layer, device, dtype) for _ in range(shape.layers))
        self.norm = nn.RMSNorm(shape.hidden, eps=1e-6, device=device, dtype=dtype)
        self.head: nn.Module = nn.Identity()
        if shape.vocabulary:
            self.head = nn.Linear(shape.hidden, shape.vocabulary, bias=False, device=device, dtype=dtype)
            nn.init.normal_(self.embedding.weight, std=0.02)  # type: ignore[arg-type]
            nn.init.normal_(self.head.weight, std=0.02)
        cos, sin = rotary_tables(shape.sequence, shape.head_dim, shape.rope_theta, device)
        # With float32 tables, every operator of ``rotate`` would compute and write float32.
        self.register_buffer("cos", cos.to(dtype), persistent=False)
        self.register_buffer("sin", sin.to(dtype), persistent=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x, self.cos, self.sin)
        logits: Tensor = self.head(self.norm(x))
        return logits


class Block(nn.Module):
    """One block: attention and then the MoE layer, each with a norm before it and a residual connection."""

    def __init__(self, shape: Geometry, build_layer: LayerBuilder, device: torch.device, dtype: torch.dtype) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(shape.hidden, eps=1e-6, device=device, dtype=dtype)
        self.attention = Attention(shape, device, dtype)
        self.moe_norm = nn.RMSNorm(shape.hidden, eps=1e-6, device=device, dtype=dtype)
        self.moe = build_layer()

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x), cos, sin)
        rows = self.moe_norm(x).flatten(0, 1)  # [tokens, hidden], as the module contract requires
        return x + self.moe(rows).view_as(x)


class Attention(nn.Module):
    """Grouped-query attention with rotary positions, and with QK norm if the shape has it."""

    def __init__(self, shape: Geometry, device: torch.device, dtype: torch.dtype) -> None:
        super().__init__()
        self.head_dim = shape.head_dim

        def linear(inputs: int, outputs: int) -> nn.Linear:
            layer = nn.Linear(inputs, outputs, bias=False, device=device, dtype=dtype)
            nn.init.normal_(layer.weight, std=0.02)
            return layer

        self.query = linear(shape.hidden, shape.heads * shape.head_dim)
        self.key = linear(shape.hidden, shape.kv_heads * shape.head_dim)
        self.value = linear(shape.hidden, shape.kv_heads * shape.head_dim)
        self.output = linear(shape.heads * shape.head_dim, shape.hidden)
        self.query_norm: nn.Module = nn.Identity()
        self.key_norm: nn.Module = nn.Identity()
        if shape.qk_norm:
            self.query_norm = nn.RMSNorm(shape.head_dim, eps=1e-6, device=device, dtype=dtype)
            self.key_norm = nn.RMSNorm(shape.head_dim, eps=1e-6, device=device, dtype=dtype)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        batch, sequence, _ = x.shape

        def heads(rows: Tensor) -> Tensor:  # [batch, heads, sequence, head_dim]
            return rows.view(batch, sequence, -1, self.head_dim).transpose(1, 2)

        query = rotate(self.query_norm(heads(self.query(x))), cos, sin)
        key = rotate(self.key_norm(heads(self.key(x))), cos, sin)
        out = F.scaled_dot_product_attention(query, key, heads(self.value(x)), is_causal=True, enable_gqa=True)
        projected: Tensor = self.output(out.transpose(1, 2).reshape(batch, sequence, -1))
        return projected


class DenseMLP(nn.Module):
    """The dense counterpart: one SwiGLU MLP with as many active weights as the routed experts of a token."""

    def __init__(self, shape: Geometry, device: torch.device, dtype: torch.dtype) -> None:
        super().__init__()
        self.gate = nn.Linear(shape.hidden, shape.dense_width, bias=False, device=device, dtype=dtype)
        self.up = nn.Linear(shape.hidden, shape.dense_width, bias=False, device=device, dtype=dtype)
        self.down = nn.Linear(shape.dense_width, shape.hidden, bias=False, device=device, dtype=dtype)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down(F.silu(self.gate(x)) * self.up(x))
        return out


def rotary_tables(sequence: int, head_dim: int, theta: float, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return cosines and sines, float32 ``[sequence, head_dim]`` (Su et al., arXiv:2104.09864). The halves of a row are
    equal.
    """
    frequency = theta ** (-torch.arange(0, head_dim, 2, device=device).float() / head_dim)
    angle = torch.outer(torch.arange(sequence, device=device).float(), frequency).repeat(1, 2)
    return angle.cos(), angle.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Apply rotary positions to ``x [batch, heads, sequence, head_dim]``. Element i rotates with i + head_dim / 2."""
    first, second = x.chunk(2, dim=-1)
    rotated = torch.cat((-second, first), dim=-1)
    return x * cos + rotated * sin


def token_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """Return the mean cross-entropy over this rank's tokens, in float32. For hidden states, the mean squared
    difference.
    """
    if targets.is_floating_point():
        return F.mse_loss(logits.float(), targets.float())
    return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())
