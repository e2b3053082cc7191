"""Sparse softmaxes as they are written with PyTorch: the truth of the proof, and what is timed beside."""

from __future__ import annotations

import torch
from torch import Tensor


def sparsemax_by_sorting(x: Tensor, dim: int = -1) -> Tensor:
    """Return sparsemax from sorted numbers and their cumulative sums."""
    z = x - x.amax(dim, keepdim=True)
    ordered = z.sort(dim, descending=True).values
    sums = ordered.cumsum(dim) - 1
    size = (_ranks(x, dim) * ordered > sums).sum(dim, keepdim=True)
    return (z - sums.gather(dim, size - 1) / size).clamp(min=0)


def entmax15_by_sorting(x: Tensor, dim: int = -1) -> Tensor:
    """Return the 1.5-entmax: sorted numbers tell which take part, their mean and spread the threshold."""
    z = (x - x.amax(dim, keepdim=True)) / 2
    with torch.no_grad():
        ordered, ranks = z.sort(dim, descending=True).values.clamp(min=-2), _ranks(x, dim)
        mean = ordered.cumsum(dim) / ranks
        missing = (1 - ordered.square().cumsum(dim)) / ranks + mean.square()
        size = (mean - missing.clamp(min=0).sqrt() <= ordered).sum(dim, keepdim=True)
        taken = z >= ordered.gather(dim, size - 1)
    mean = torch.where(taken, z, 0.0).sum(dim, keepdim=True) / size
    off = torch.where(taken, z - mean, 0.0)
    tau = mean - ((1 - off.square().sum(dim, keepdim=True)) / size).sqrt()
    return torch.where(taken, z - tau, 0.0).clamp(min=0).square()


def entmax_by_halving(x: Tensor, alpha: float | Tensor, dim: int = -1) -> Tensor:
    """Return the alpha-entmax: the threshold by halving an interval, then two steps of Newton's for gradients."""
    a = alpha - 1
    z = (x - x.amax(dim, keepdim=True)) * a
    with torch.no_grad():
        low, high = torch.full_like(z.narrow(dim, 0, 1), -1.0), torch.zeros_like(z.narrow(dim, 0, 1))
        for _ in range(30 if x.dtype == torch.float32 else 60):
            middle = (low + high) / 2
            more = (z - middle).clamp(min=0).pow(1 / a).sum(dim, keepdim=True) >= 1
            low, high = torch.where(more, middle, low), torch.where(more, high, middle)
        taken = z > low
    tau = low
    for _ in range(2):
        base = torch.where(taken, z - tau, 1.0)
        total = torch.where(taken, base.pow(1 / a), 0.0).sum(dim, keepdim=True)
        slope = torch.where(taken, base.pow(1 / a - 1), 0.0).sum(dim, keepdim=True) / a
        tau = tau + (total - 1) / slope
    return torch.where(taken, torch.where(taken, z - tau, 1.0).pow(1 / a), 0.0)


def _ranks(x: Tensor, dim: int) -> Tensor:
    """Return 1, 2, ... along a dimension."""
    shape = [1] * x.dim()
    shape[dim] = -1
    return torch.arange(1, x.shape[dim] + 1, device=x.device, dtype=x.dtype).reshape(shape)
