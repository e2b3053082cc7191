"""What the tests of rotations share."""

from __future__ import annotations

import math

import torch
from torch import Tensor

ANGLES = (0.0, 1e-300, 1e-160, 1e-12, 1e-4, 0.5, 1.0, 2.0, 3.0, math.pi - 1e-7)


def turns(dtype: torch.dtype = torch.float64) -> Tensor:
    """Return random axes, each with every angle."""
    torch.manual_seed(0)
    axes = torch.nn.functional.normalize(torch.randn(6, 3, dtype=torch.float64), dim=-1)
    return (torch.tensor(ANGLES, dtype=torch.float64)[:, None, None] * axes).to(dtype)
