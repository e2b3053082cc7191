"""The alpha-entmax of rows: the one number that decides each, found by Newton's method without sorting.

``out = [(alpha - 1) x - tau]_+ ^ (1 / (alpha - 1))``, where the threshold ``tau`` makes the row sum to 1 (Peters,
Niculae and Martins 2019). Here the unknown is not ``tau`` but the largest share ``m`` of the row. With
``a = alpha - 1`` and ``d = x - max(x)``,

    ``out / m = rho = (1 + a d m^-a)_+ ^ (1 / a)``    and    ``d sum(out) / dm = sum(rho^(1 - a))``,

so that nothing is lost as ``alpha`` goes to 1: ``rho`` goes to ``exp(d)``, and one step gives the softmax. Up to
``alpha = 2`` the sum is a convex function of ``m``. Newton's method from above then stays above, and of the product of
what the sum is too large by and the slope each step leaves at most a quarter (the two ratios sum to at most 1, as in
Dinkelbach's method). Both are at most ``n`` at first, and the slope is at least 1. It is usually done after six to ten
steps, each of a few passes over a block of rows in the cache; sorting takes longer than all of them. Beyond
``alpha = 2``, where it is not convex, the interval is halved.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from gradwright.fused.route import block_rows, by_hand
from gradwright.stable.arguments import widened
from gradwright.stable.seen import visible

GROUPS = 32
"""How many numbers of a long row are first taken together, as their maximum."""
LONG = 2048


def over_rows(formula: Callable[..., Tensor], dim: int, *tensors: Tensor) -> Tensor:
    """Return what a formula makes of the rows of tensors, which are along ``dim``, in the dtype of the first one.

    The formula sees rows along the last dimension, in at least float32 (integers as they are): in blocks that stay in
    the cache, or all at once where a derivative may be asked for.
    """
    first, *_ = tensors
    if not first.dim():
        return over_rows(formula, 0, *(each.reshape(1) for each in tensors)).reshape(())
    turned = [each.movedim(dim, -1) for each in tensors]
    dtype = widened(first[:0]).dtype

    def wide(x: Tensor) -> Tensor:
        return x.to(dtype) if x.is_floating_point() else x

    if torch.is_grad_enabled() or not by_hand(*tensors):
        return formula(*map(wide, turned)).to(first.dtype).movedim(-1, dim)
    rows = [each.reshape(-1, each.shape[-1]) for each in turned]
    count = len(rows[0])
    step = block_rows(count, 2 * first.shape[dim], dtype.itemsize, first.device)
    out: Tensor | None = None
    for start in range(0, count, step):
        found = formula(*(wide(each[start : start + step]) for each in rows))
        if out is None:
            out = torch.empty(count, found.shape[-1], dtype=first.dtype, device=first.device)
        out[start : start + step] = found
    assert out is not None, "empty tensors do not come here"
    return out.reshape(*turned[0].shape[:-1], -1).movedim(-1, dim)


def shares(x: Tensor, alpha: float | Tensor) -> Tensor:
    """Return the alpha-entmax of rows along the last dimension; zeros in a row of ``-inf``.

    Arguments:
        x: rows, at least float32.
        alpha: a number from 1 on, or one for each row, with a last dimension of 1.
    """
    top = x.amax(-1, keepdim=True).clamp(min=torch.finfo(x.dtype).min)
    d = x - top
    if not visible(top) or bool((top == math.inf).any()):
        d = torch.where(x == top, 0.0, d)
    part = d[..., : d.shape[-1] // GROUPS * GROUPS]
    start = torch.ones_like(top)
    if d.shape[-1] >= LONG:  # the largest share of some of the numbers is at least that of all
        start = _largest_share(part.unflatten(-1, (GROUPS, -1)).amax(-2), alpha, start)
    m = _largest_share(d, alpha, start)
    out = _shares_at(d, m, alpha)
    total = out.sum(-1, keepdim=True)
    return out / torch.where(total > 0, total, 1.0)


def _is(alpha: float | Tensor, value: float) -> bool:
    return not isinstance(alpha, Tensor) and alpha == value


def _is_below_2(alpha: float | Tensor) -> bool:
    return not isinstance(alpha, Tensor) and alpha < 2


def _largest_share(d: Tensor, alpha: float | Tensor, m: Tensor) -> Tensor:
    """Return the ``m`` at which the shares of rows sum to 1, or one where they are less and ``m`` is 1."""
    size, info = math.log2(d.shape[-1]), torch.finfo(d.dtype)
    bits = -math.log2(info.eps)
    convex = _is(alpha, 2.0) or _is_below_2(alpha)
    low, high = torch.full_like(m, 1 / d.shape[-1]), m
    looked = visible(d)
    for _ in range(math.ceil(size + bits / 2 if convex else size + bits) + 1):
        total, slope = _total_and_slope(d, m, alpha)
        following = torch.minimum(m, m - (total - 1) / slope)
        if not convex:
            low, high = torch.where(total < 1, m, low), torch.where(total < 1, high, m)
            following = torch.where(torch.as_tensor(alpha) > 2, (low + high) / 2, following)
        if looked and not bool(((following - m).abs() > info.eps * m).any()):
            break
        m = following
    return m


def _total_and_slope(d: Tensor, m: Tensor, alpha: float | Tensor) -> tuple[Tensor, Tensor]:
    """Return the sum of the shares, and its derivative by ``m``."""
    if _is(alpha, 2.0):
        u = (d + m).relu()
        return u.sum(-1, keepdim=True), u.sign().sum(-1, keepdim=True)
    if _is(alpha, 1.5):
        root = m.sqrt()
        u = (0.5 * d + root).relu()
        return (u * u).sum(-1, keepdim=True), u.sum(-1, keepdim=True) / root
    logs = _log_ratio(d, m, alpha)
    slopes = ((2 - alpha) * logs).exp2()
    if not _is_below_2(alpha):
        slopes = torch.where(logs > -math.inf, slopes, 0.0)
    return m * logs.exp2().sum(-1, keepdim=True), slopes.sum(-1, keepdim=True)


def _shares_at(d: Tensor, m: Tensor, alpha: float | Tensor) -> Tensor:
    if _is(alpha, 2.0):
        return (d + m).relu()
    if _is(alpha, 1.5):
        return (0.5 * d + m.sqrt()).relu().square()
    return m * _log_ratio(d, m, alpha).exp2()


def _log_ratio(d: Tensor, m: Tensor, alpha: float | Tensor) -> Tensor:
    """Return the logarithm to base 2 of each share as a part of the largest one; ``exp2`` is faster than ``exp``."""
    a, info = alpha - 1, torch.finfo(d.dtype)
    scale = (m**-a).clamp(max=info.max)
    if not isinstance(a, Tensor):
        return (d * (a * scale).clamp(max=info.max)).clamp(min=-1.0).log1p() * (1 / (a * math.log(2)))
    d = d.clamp(min=info.min)  # 0 times -inf would be nan where alpha is 1
    w = (d * (a * scale).clamp(max=info.max)).clamp(min=-1.0)
    return torch.where(w == 0, scale * d, w.log1p() / a) / math.log(2)


def slope(g: Tensor, p: Tensor, alpha: float | Tensor) -> Tensor:
    """Return ``s (g - sum(s g) / sum(s))`` with ``s = p^(2 - alpha)`` where ``p`` is not 0.

    It is the derivative of the alpha-entmax ``p``, a symmetric map of ``g``.
    """
    inside = p != 0
    s = _weights(p, inside, alpha)
    g = torch.where(inside, g, 0.0)
    parts = s
    if not (_is(alpha, 2.0) or _is_below_2(alpha)):  # beyond 2 they are large, and their sum may be infinite
        s = s.clamp(max=torch.finfo(s.dtype).max)
        most = s.detach().amax(-1, keepdim=True)
        parts = s / torch.where(most > 0, most, 1.0)
    total = parts.sum(-1, keepdim=True)
    mean = (parts * g).sum(-1, keepdim=True) / torch.where(total > 0, total, 1.0)
    return s * (g - mean)


def _weights(p: Tensor, inside: Tensor, alpha: float | Tensor) -> Tensor:
    if _is(alpha, 2.0):
        return p.sign()  # and not a boolean one, so that a second derivative of zero is there
    safe = torch.where(inside, p, 1.0)  # a power of 0 would have an infinite derivative
    return torch.where(inside, safe.sqrt() if _is(alpha, 1.5) else safe ** (2 - alpha), 0.0)


def alpha_slope(pulled: Tensor, p: Tensor, alpha: Tensor) -> Tensor:
    """Return the gradient by ``alpha`` of rows, from that by ``x``: the derivative of ``p`` is the slope of ``k``.

    ``k = (exp(y) (1 - y) - 1) / (alpha - 1)^2`` with ``y = (alpha - 1) log p``: the formula of Correia, Niculae and
    Martins 2019 without its difference of two shares over ``(alpha - 1)^2``.
    """
    inside = p != 0
    logs = torch.where(inside, p, 1.0).log()
    k = -logs.square() * _bend((alpha - 1) * logs)
    return torch.where(inside, pulled * k, 0.0).sum(-1, keepdim=True)


def _bend(y: Tensor) -> Tensor:
    """Return ``(1 - exp(y) (1 - y)) / y^2`` for ``y <= 0``: 1/2 at 0."""
    near = y > -1
    low = torch.where(near, -1.0, y)
    closed = (1 - low.exp() * (1 - low)) / low.square()
    high = torch.where(near, y, 0.0)
    series = torch.zeros_like(y)
    for n in range(20 if y.dtype == torch.float64 else 12, 1, -1):
        series = series * high + (n - 1) / math.factorial(n)
    return torch.where(near, series, closed)
