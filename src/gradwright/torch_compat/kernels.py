"""Kernels of torch that have no public name, each in place of several passes over the memory, or that are mended."""

from __future__ import annotations

import math

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


def expm1(x: Tensor) -> Tensor:
    """Return ``torch.expm1(x)``, in compiled code as ``2 sinh(x / 2) exp(x / 2)``.

    Inductor writes vectorised code for ``expm1`` as ``exp(x) - 1``, which has no digits left near zero (torch 2.13;
    a test tells when that ends).
    """
    if not torch.compiler.is_compiling():
        return torch.expm1(x)
    half = (x * 0.5).clamp(min=-30.0)  # below, the result is -1 in every dtype, and sinh might be infinite
    return torch.where(x.abs() < 2.0**-60, x, 2 * torch.sinh(half) * torch.exp(half))  # half of the least is zero


def acosh(x: Tensor) -> Tensor:
    """Return ``torch.acosh(x)``, in compiled code as ``log(x) + log(2)`` where numbers are large.

    The code that Inductor writes squares them (torch 2.13; a test tells when that ends).
    """
    if not torch.compiler.is_compiling():
        return torch.acosh(x)
    large = 2.0**26
    return torch.where(x > large, torch.log(x) + math.log(2), torch.acosh(x.clamp(max=large)))


def expm1_(own: Tensor) -> Tensor:
    """Return the same in the memory of a tensor that nobody else has."""
    return expm1(own) if torch.compiler.is_compiling() else own.expm1_()


def frexp(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return ``torch.frexp(x)``, for float64 in compiled code from the bits.

    The vectorised code that Inductor writes for it there does not compile in C++ (torch 2.13; a test tells when that
    ends). Zero, infinities and nan are their own mantissa, with the exponent 0.
    """
    if x.dtype != torch.float64 or not torch.compiler.is_compiling():
        return torch.frexp(x)
    tiny = x.abs() < 2.0**-1000  # among them the subnormal numbers, which have their exponent in the fraction
    bits = torch.where(tiny, x * 2.0**100, x).view(torch.int64)
    biased = (bits >> 52) & 2047
    plain = (biased > 0) & (biased < 2047)
    mantissa = ((bits & ~(2047 << 52)) | (1022 << 52)).view(torch.float64)
    exponent = biased - torch.where(tiny, 1122, 1022)
    return torch.where(plain, mantissa, x), torch.where(plain, exponent, 0).to(torch.int32)


def cdist_backward(g: Tensor, x1: Tensor, x2: Tensor, p: float, distances: Tensor) -> Tensor:
    """Return the gradient of ``torch.cdist`` with respect to ``x1``, without a tensor of all differences.

    Under vmap torch 2.13 loses the batch of ``g`` where one of the other tensors has none (functorch#306).
    """
    gradient: Tensor = torch.ops.aten._cdist_backward(g.contiguous(), x1, x2, p, distances)
    return gradient


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
