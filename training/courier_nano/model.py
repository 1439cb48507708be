"""A Llama in plain PyTorch, small enough for two CPU cores.

Positions are an argument, so that training may skip some: a short sequence then shows long distances.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F


@dataclass(frozen=True, slots=True)
class Shape:
    """Widths are multiples of 256, so that every quant of llama.cpp applies to every matrix."""

    vocab: int
    layers: int = 4
    width: int = 256
    heads: int = 4
    hidden: int = 768
    rope_theta: float = 50_000.0
    norm_epsilon: float = 1e-5
    context_tokens: int = 8192

    @property
    def head_width(self) -> int:
        return self.width // self.heads


HALF = torch.bfloat16
"""What matrices are multiplied in; weights, norms and the residual stream stay in float32."""


def rotation(shape: Shape, positions: Tensor) -> tuple[Tensor, Tensor]:
    """Cosines and sines of shape (batch, tokens, 1, 1, head_width / 2)."""
    steps = torch.arange(0, shape.head_width, 2, dtype=torch.float32) / shape.head_width
    angles = positions[:, :, None, None, None].float() * shape.rope_theta**-steps
    return angles.cos().to(HALF), angles.sin().to(HALF)


class Rotate(torch.autograd.Function):
    """Rotates, in place, the first half of each head of q and k against its second half.

    Takes (batch, tokens, 3, heads, head_width) with q, k and v side by side. The way back is the opposite rotation.
    """

    @staticmethod
    def forward(ctx: Any, mapped: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        ctx.save_for_backward(cos, sin)
        ctx.mark_dirty(mapped)
        return _rotate(mapped, cos, sin)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        cos, sin = ctx.saved_tensors
        return _rotate(gradients[0].clone(), cos, -sin), None, None


def _rotate(mapped: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    low, high = mapped[:, :, :2].chunk(2, dim=-1)
    turned = (low * cos).addcmul_(high, sin, value=-1)
    high.mul_(cos).addcmul_(low, sin)
    low.copy_(turned)
    return mapped


class Normalize(torch.autograd.Function):
    """Divides each row by its root mean square; gives `HALF`. The norm's weight is left to the maps behind it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, epsilon: float) -> Tensor:
        scale = (torch.linalg.vector_norm(x, dim=-1, keepdim=True).square_().div_(x.shape[-1]) + epsilon).rsqrt_()
        y = (x * scale).to(HALF)
        ctx.save_for_backward(y, scale)
        return y

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        y, scale = ctx.saved_tensors
        along = (gradients[0] * y).mean(dim=-1, keepdim=True, dtype=torch.float32)
        return torch.addcmul(gradients[0].float(), y.float(), along, value=-1).mul_(scale), None


class Norm(nn.Module):
    """A root mean square norm whose weight is folded into the maps behind it."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(shape.width))
        self.epsilon = shape.norm_epsilon

    def mapped(self, x: Tensor, *maps: nn.Linear | nn.Embedding) -> Tensor:
        """The outputs of several linear maps of the normed input, side by side, in one product."""
        weights = maps[0].weight if len(maps) == 1 else torch.cat([each.weight for each in maps])
        return F.linear(Normalize.apply(x, self.epsilon), (weights * self.weight).to(HALF))


class Layer(nn.Module):
    """One transformer layer: attention, then SwiGLU, each behind a norm."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.attention_norm = Norm(shape)
        self.q, self.k, self.v, self.out = (nn.Linear(shape.width, shape.width, bias=False) for _ in range(4))
        self.hidden_norm = Norm(shape)
        self.gate = nn.Linear(shape.width, shape.hidden, bias=False)
        self.up = nn.Linear(shape.width, shape.hidden, bias=False)
        self.down = nn.Linear(shape.hidden, shape.width, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x = x + F.linear(self._attend(x, cos, sin), self.out.weight.to(HALF))
        gate, up = self.hidden_norm.mapped(x, self.gate, self.up).chunk(2, dim=-1)
        return x + F.linear(F.silu(gate) * up, self.down.weight.to(HALF))

    def _attend(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        batch, tokens, width = x.shape
        mapped = self.attention_norm.mapped(x, self.q, self.k, self.v).view(batch, tokens, 3, self.shape.heads, -1)
        q, k, v = (part.transpose(1, 2) for part in Rotate.apply(mapped, cos, sin).unbind(2))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return mixed.transpose(1, 2).reshape(batch, tokens, width)


class Llama(nn.Module):
    """Token ids and positions, both (batch, tokens), to logits (batch, tokens, vocab); embeddings are tied."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.embedding = nn.Embedding(shape.vocab, shape.width)
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape.layers))
        self.norm = Norm(shape)
        self._start()

    def _start(self) -> None:
        for name, weight in self.named_parameters():
            if weight.dim() == 2:
                nn.init.normal_(weight, std=0.02)
            if name.endswith(("out.weight", "down.weight")):
                nn.init.normal_(weight, std=0.02 / (2 * self.shape.layers) ** 0.5)

    def forward(self, ids: Tensor, positions: Tensor) -> Tensor:
        cos, sin = rotation(self.shape, positions)
        x = self.embedding(ids)
        for layer in self.layers:
            x = layer(x, cos, sin)
        return self.norm.mapped(x, self.embedding)
