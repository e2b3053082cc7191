"""Kernels that torch has under private names only: what its modules and distributions call."""

from __future__ import annotations

import torch
from torch import Tensor


def weight_norm(v: Tensor, g: Tensor, dim: int) -> Tensor:
    """Return ``g * v / norm(v)`` as :func:`torch.nn.utils.parametrizations.weight_norm` computes it."""
    out: Tensor = torch._weight_norm(v, g, dim)
    return out


def standard_gamma_grad(concentration: Tensor, sample: Tensor) -> Tensor:
    """Return the derivative of a sample of a Gamma distribution of rate 1 by its concentration."""
    out: Tensor = torch._standard_gamma_grad(concentration, sample)
    return out


def dirichlet_grad(sample: Tensor, concentration: Tensor, total: Tensor) -> Tensor:
    """Return the derivative of each element of a Dirichlet sample by its own concentration; ``total`` is their sum."""
    out: Tensor = torch._dirichlet_grad(sample, concentration, total)
    return out
