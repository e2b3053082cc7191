"""Kernels of torch that have no public name, each in place of several passes over the memory."""

from __future__ import annotations

import torch
from torch import Tensor


def softmax_backward(g: Tensor, out: Tensor, dim: int) -> Tensor:
    """Return ``out * (g - (out * g).sum(dim))``, the gradient of ``softmax``."""
    gradient: Tensor = torch.ops.aten._softmax_backward_data(g, out, dim, out.dtype)
    return gradient


def log_softmax_backward(g: Tensor, out: Tensor, dim: int) -> Tensor:
    """Return ``g - exp(out) * g.sum(dim)``, the gradient of ``log_softmax``."""
    gradient: Tensor = torch.ops.aten._log_softmax_backward_data(g, out, dim, out.dtype)
    return gradient


def cdist_backward(g: Tensor, x1: Tensor, x2: Tensor, p: float, distances: Tensor) -> Tensor:
    """Return the gradient of ``torch.cdist`` with respect to ``x1``, without a tensor of all differences.

    Under vmap torch 2.13 loses the batch of ``g`` where one of the other tensors has none (functorch#306).
    """
    gradient: Tensor = torch.ops.aten._cdist_backward(g.contiguous(), x1, x2, p, distances)
    return gradient
