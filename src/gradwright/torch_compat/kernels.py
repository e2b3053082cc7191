"""Kernels that torch has under private names only: what its modules and distributions call."""

from __future__ import annotations

import torch
from torch import Tensor


def weight_norm(v: Tensor, g: Tensor, dim: int) -> Tensor:
    """Return ``g * v / norm(v)`` as :func:`torch.nn.utils.parametrizations.weight_norm` computes it."""
    out: Tensor = torch._weight_norm(v, g, dim)
    return out


def standard_gamma_grad(concentration: Tensor, sample: Tensor) -> Tensor:
    """Return the derivative of a sample of :class:`torch.distributions.Gamma` by its concentration, the rate being 1."""
    out: Tensor = torch._standard_gamma_grad(concentration, sample)
    return out
