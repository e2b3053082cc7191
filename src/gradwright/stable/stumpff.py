"""The even series that all formulae of rotations are made of: Stumpff functions of the squared angle.

``c_k(s) = sum_j (-s)^j / (2 j + k)!``, so with ``s = x^2``: ``c_0 = cos x``, ``c_1 = sin x / x``,
``c_2 = (1 - cos x) / x^2``, ``c_3 = (x - sin x) / x^3``. They are entire in ``s``, hence smooth at the identity, and
their derivatives are again such functions: ``c_k' = (k c_{k+2} - c_{k+1}) / 2``, in which nothing cancels.
Up to ``s = 1`` the Taylor series of the two of highest index and ``c_k = 1/k! - s c_{k+2}`` from there; beyond it the
same recurrence in the other direction from sine and cosine, whose errors it then does not enlarge.
K. Stumpff, Himmelsmechanik I, 1959.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from gradwright.authoring.decorator import custom_gradient

SWITCH = 1.0
TERMS = {torch.float64: 9, torch.float32: 5}
"""The next term at the switch is below half an ulp: at most 1 / 19! and 1 / 11!, those of index 1."""


def series(s: Tensor, first: int, count: int) -> list[Tensor]:
    """Return the values of ``c_first`` and those that follow; not to be differentiated.

    Arguments:
        s: squared angles, float64 or float32.
        first: the lowest index, at least 1.
        count: how many.
    """
    last = first + count - 1
    below, beyond = s.clamp(max=SWITCH), s.clamp(min=SWITCH)
    low = {k: _taylor(below, k) for k in (last, last - 1)}
    for k in range(last - 2, first - 1, -1):
        low[k] = (below * low[k + 2]).neg_().add_(1 / math.factorial(k))
    angle = beyond.sqrt()
    high = {0: angle.cos(), 1: angle.sin().div_(angle)}
    for k in range(last - 1):
        high[k + 2] = (1 / math.factorial(k) - high[k]).div_(beyond)
    near = (s <= SWITCH).to(s.dtype)
    far = 1 - near
    return [chosen(near, low[k], far, high[k]) for k in range(first, last + 1)]


def chosen(one: Tensor, a: Tensor, other: Tensor, b: Tensor) -> Tensor:
    """Return ``a`` or ``b``, both finite, by weights that are 1 and 0: ten times as fast as ``torch.where``."""
    return torch.addcmul(b * other, a, one)


def _taylor(s: Tensor, k: int) -> Tensor:
    terms = TERMS[s.dtype]
    total = torch.full_like(s, (-1) ** (terms - 1) / math.factorial(2 * (terms - 1) + k))
    for j in range(terms - 2, -1, -1):
        total.mul_(s).add_((-1) ** j / math.factorial(2 * j + k))
    return total


@custom_gradient
def stumpff(s: Tensor, first: int, count: int) -> Tensor:
    """Return ``c_first`` and those that follow, ``count`` of them, along a new first dimension; differentiable."""
    return torch.stack(series(s, first, count))


@stumpff.vjp
def stumpff_vjp(g: Tensor, s: Tensor, first: int, count: int) -> Tensor:
    c = stumpff(s, first + 1, count + 1)
    index = torch.arange(first, first + count, dtype=s.dtype, device=s.device).reshape(-1, *[1] * s.dim())
    return (g * (index * c[1:] - c[:-1])).sum(0) / 2
