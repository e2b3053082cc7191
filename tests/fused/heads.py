"""What the tests of heads have in common."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

IGNORED = -100


def layer(rows: int = 6, features: int = 4, classes: int = 9, dtype: torch.dtype = torch.float64) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(rows * classes)
    x = torch.randn(rows, features, generator=generator, dtype=torch.float64).to(dtype)
    w = torch.randn(classes, features, generator=generator, dtype=torch.float64).to(dtype)
    target = torch.randint(0, classes, (rows,), generator=generator)
    return x.requires_grad_(), w.requires_grad_(), target


def eager(x: Tensor, w: Tensor, target: Tensor, **options: Any) -> Tensor:
    return functional.cross_entropy(functional.linear(x, w), target, **options)


def gradients(loss: Tensor, *leaves: Tensor) -> list[Tensor]:
    return list(torch.autograd.grad(loss, leaves, retain_graph=True))
