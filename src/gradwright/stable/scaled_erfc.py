"""The scaled complementary error function, Mills' ratio and their derivatives, and Gaussians that lose no digits.

``erfcx(u) = exp(u ** 2) erfc(u)`` has ``erfcx' = 2 u erfcx - 2 / sqrt(pi)``, which cancels for large ``u``. So each
derivative has a polynomial of its own (``tools/erfcx_series.py``). For negative ``u`` the reflection
``erfcx(u) = 2 exp(u ** 2) - erfcx(-u)`` and its derivatives add numbers of one sign, or of very different sizes
(DLMF 7.4).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from gradwright.stable.erfcx_series import CENTRE, SERIES

ROOT_2 = math.sqrt(2)
ROOT_HALF_PI = math.sqrt(math.pi / 2)
ROOT_2_PI = math.sqrt(2 * math.pi)


def decaying(u: Tensor, order: int) -> Tensor:
    """Return ``(-1) ** order`` times a derivative of erfcx, which is positive, for ``u >= 0`` (infinity included).

    Arguments:
        u: of float32 or float64.
        order: 0 to 3.
    """
    inverse = (u + 1).reciprocal_()
    # (u - c) / (u + c), in a form that infinity does not break
    t = (u + CENTRE).reciprocal_().mul_(-2 * CENTRE).add_(1.0)
    last, *rest = reversed(SERIES[u.dtype][order])
    total = torch.full_like(t, last)
    for number in rest:
        total.mul_(t).add_(number)
    return total.mul_(inverse if order == 0 else inverse.pow_(order + 1))


def square_exp(x: Tensor, factor: float) -> Tensor:
    """Return ``exp(factor x ** 2)`` without the rounding error of the square: ``x = h + l``, ``h ** 2`` exact."""
    h = torch.round(x * 16) / 16
    h = torch.where(h.abs() < 128, h, x)  # beyond, the result is zero or infinite
    rest = torch.where(h == x, 0.0, (x - h) * (x + h))
    return torch.exp(factor * h.square()) * torch.exp(factor * rest)


def erfcx_derivative(u: Tensor, order: int) -> Tensor:
    """Return a derivative of erfcx, for every ``u``."""
    own = decaying(u.abs(), order)
    hermite = (torch.ones_like(u), 2 * u, 4 * u * u + 2, u * (8 * u * u + 12))[order]
    growing = 2 * hermite * square_exp(u.clamp(max=0.0), 1.0)
    return torch.where(u < 0, growing - own, -own if order % 2 else own)


def mills_derivative(x: Tensor, order: int) -> Tensor:
    """Return a derivative of Mills' ratio ``(1 - Phi(x)) / phi(x)``, for every ``x``."""
    own = decaying(x.abs() / ROOT_2, order) * (ROOT_HALF_PI / ROOT_2**order)
    hermite = (torch.ones_like(x), x, x * x + 1, x * (x * x + 3))[order]
    growing = ROOT_2_PI * hermite * square_exp(x.clamp(max=0.0), 0.5)
    return torch.where(x < 0, growing - own, -own if order % 2 else own)
