"""Muon: momentum whose step is made orthogonal, for the matrices of the layers.

Matrices of one shape go through the iteration together, in bfloat16, which is what a CPU with AMX multiplies fast.
Source: Keller Jordan's Muon (Newton-Schulz of order five); step size as in Moonlight: AdamW takes the same rate.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

COEFFICIENTS = (3.4445, -4.7750, 2.0315)
ITERATIONS = 5


def orthogonal(x: Tensor) -> Tensor:
    """Nearly the nearest orthogonal matrices to a stack (count, rows, columns) with rows <= columns."""
    a, b, c = COEFFICIENTS
    x = (x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)).bfloat16()
    for _ in range(ITERATIONS):
        gram = x @ x.mT
        x = a * x + (b * gram + c * (gram @ gram)) @ x
    return x


class Muon(torch.optim.Optimizer):
    """One group of matrices; `lr` is the root mean square of a step, over 0.2."""

    def __init__(
        self, matrices: Iterable[Tensor], lr: float, momentum: float = 0.95, weight_decay: float = 0.01
    ) -> None:
        super().__init__(matrices, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            stacks: dict[torch.Size, list[Tensor]] = defaultdict(list)
            for matrix in group["params"]:
                stacks[matrix.shape].append(matrix)
            for matrices in stacks.values():
                self._step_stack(matrices, group)

    def _step_stack(self, matrices: list[Tensor], group: dict[str, Any]) -> None:
        steps = torch.stack([self._momentum(matrix, group["momentum"]) for matrix in matrices])
        tall = steps.shape[-2] > steps.shape[-1]
        steps = orthogonal(steps.mT if tall else steps)
        steps = (steps.mT if tall else steps).float()
        size = group["lr"] * 0.2 * max(matrices[0].shape) ** 0.5
        for matrix, step in zip(matrices, steps, strict=True):
            matrix.mul_(1 - group["lr"] * group["weight_decay"]).add_(step, alpha=-size)

    def _momentum(self, matrix: Tensor, share: float) -> Tensor:
        """Nesterov's momentum of a matrix."""
        assert matrix.grad is not None
        held = self.state[matrix].setdefault("momentum", torch.zeros_like(matrix))
        held.lerp_(matrix.grad, 1 - share)
        return matrix.grad.lerp(held, share)
