"""The adjugate of a diagonal matrix and its derivatives: products of all but one, two or three numbers.

No product is divided by what it is to leave out: it is made of the products before, between and after.
"""

from __future__ import annotations

import torch
from torch import Tensor


def without_one(s: Tensor) -> Tensor:
    """Return, for each number of the last dimension, the product of all others."""
    before, _, after = _pieces(s)
    return before * after


def without_two(s: Tensor) -> Tensor:
    """Return, for each pair of different numbers, the product of all others; zero on the diagonal."""
    before, between, after = _pieces(s)
    upper = before.unsqueeze(-1) * between * after.unsqueeze(-2)
    return upper + upper.mT


def moved_adjugate(X: Tensor, s: Tensor) -> Tensor:
    """Return the derivative of the adjugate at ``diag(s)`` along ``X``."""
    two = without_two(s)
    own = torch.diagonal(X, dim1=-2, dim2=-1)
    return torch.diag_embed((two.to(X.dtype) @ own.unsqueeze(-1)).squeeze(-1)) - two * X


def bent_adjugate(X: Tensor, Y: Tensor, s: Tensor) -> Tensor:
    """Return the second derivative of the adjugate at ``diag(s)`` along ``X`` and ``Y``.

    With ``p`` the products of all but three different numbers, it is on the diagonal the sum over ``k`` and ``l`` of
    ``p_ikl (X_kk Y_ll - X_kl Y_lk)``, and elsewhere the sum over ``k`` of
    ``p_ijk (X_ik Y_kj + Y_ik X_kj - X_ij Y_kk - Y_ij X_kk)``.
    """
    p = _without_three(s).to(X.dtype)
    x, y = torch.diagonal(X, dim1=-2, dim2=-1), torch.diagonal(Y, dim1=-2, dim2=-1)
    own = torch.einsum("...ikl,...k,...l->...i", p, x, y) - torch.einsum("...ikl,...kl,...lk->...i", p, X, Y)
    other = torch.einsum("...ijk,...ik,...kj->...ij", p, X, Y) + torch.einsum("...ijk,...ik,...kj->...ij", p, Y, X)
    other = other - X * torch.einsum("...ijk,...k->...ij", p, y) - Y * torch.einsum("...ijk,...k->...ij", p, x)
    return torch.diag_embed(own) + other


def _pieces(s: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the products of what is before each number, between the two of each pair, and after each; 0 below."""
    n = s.shape[-1]
    one = torch.ones_like(s[..., :1])
    before = torch.cat([one, s[..., :-1]], -1).cumprod(-1)
    after = torch.cat([s[..., 1:], one], -1).flip(-1).cumprod(-1).flip(-1)
    later = torch.ones(n, n, dtype=torch.bool, device=s.device).triu(1)
    shifted = torch.cat([one, s[..., :-1]], -1).unsqueeze(-2).expand(*s.shape, n)
    between = torch.where(later.triu(2), shifted, 1.0).cumprod(-1)
    return before, torch.where(later, between, 0.0), after


def _without_three(s: Tensor) -> Tensor:
    before, between, after = _pieces(s)
    rising = (
        before[..., :, None, None] * between[..., :, :, None] * between[..., None, :, :] * after[..., None, None, :]
    )
    total = torch.zeros_like(rising)
    for order in ((-3, -2, -1), (-3, -1, -2), (-2, -3, -1), (-2, -1, -3), (-1, -3, -2), (-1, -2, -3)):
        total = total + rising.movedim(order, (-3, -2, -1))
    return total
