"""Sums and differences of two numbers that are kept as their logarithms, where ``-inf`` is the number zero.

The weights of ``logaddexp`` are logistic functions of ``x - y``, and so are finite to any order; PyTorch divides zero
by zero where both are ``-inf``. A weight is as exact as ``x - y``: far out, its relative error is the error of that.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from gradwright.authoring.catalogue import Example, around, grid
from gradwright.authoring.decorator import custom_gradient
from gradwright.authoring.exact import HALF, Point, exact, relative, whole_range
from gradwright.stable.arguments import common_dtype, require_floating, widened
from gradwright.stable.logistic import logistic_slope
from gradwright.stable.rows import pairs
from gradwright.stable.seen import seen_below, seen_within
from gradwright.torch_compat import kernels

BARS = relative(1e-14, 1e-6, *HALF)
INF = math.inf


def _sum_examples(dtype: torch.dtype) -> Sequence[Example]:
    far = [(0.0, -40.0), (40.0, 0.25), (-700.5, 0.5), (800.0, 1.0), (-1000.0, -1000.0), (5.0, 4.9375)]
    none = [(-INF, -INF), (-INF, 1.5), (2.5, -INF)]
    ends = whole_range(dtype, 6)
    return [
        Point((grid(-8.0, 8.0, 9, dtype), grid(-4.0, 3.0, 9, dtype).flip(0)), note="ordinary"),
        Point((grid(1.0, 2.0, 3, dtype), grid(-4.0, 3.0, 2, dtype).unsqueeze(1)), note="broadcast"),
        Point(pairs(dtype, none), note="-inf", extreme=True),
        Point(pairs(dtype, far), note="far apart", extreme=True),
        Point((ends, ends.flip(0)), note="the whole range", extreme=True),
        Point(
            pairs(dtype, [(INF, 1.0), (-INF, INF), (INF, INF)]),
            first={"x": [1.0, 0.0, 0.5], "y": [0.0, 1.0, 0.5]},
            note="inf",
            extreme=True,
        ),
    ]


@exact(
    forward="out = log(exp(x) + exp(y))",
    gradient={"x": "g sigmoid(x - y); 0 where x is -inf", "y": "g sigmoid(y - x); 0 where y is -inf"},
    reference=lambda mp, x, y: mp.log(mp.exp(x) + mp.exp(y)),
    domain="every number; two equal infinities are -inf with gradient 0, or inf in equal shares",
    bars=BARS,
    examples=_sum_examples,
    replaces=torch.logaddexp,
    ordinary=lambda: (torch.randn(1000000), torch.randn(1000000)),
    paper="pytorch#31829; jax#6811",
)
@custom_gradient
def logaddexp(x: Tensor, y: Tensor) -> Tensor:
    """Return the logarithm of the sum of two exponentials, with gradient 0 where both are ``-inf``.

    Arguments:
        x: floating point, of any shape.
        y: of a shape that can be broadcast with it.

    Returns:
        a tensor of the broadcast shape.

    Raises:
        ArgumentError: one of them is not floating point.

    Example:
        >>> import torch, gradwright as gw
        >>> x = torch.tensor([-torch.inf, 0.0], requires_grad=True)
        >>> torch.autograd.grad(gw.stable.logaddexp(x, torch.tensor(-torch.inf)).sum(), x)
        (tensor([0., 1.]),)
    """
    require_floating("logaddexp", x=x, y=y)
    return torch.logaddexp(x, y)


@logaddexp.vjp
def logaddexp_vjp(g: Tensor, x: Tensor, y: Tensor, needs: dict[str, bool]) -> dict[str, Tensor | None]:
    return {
        "x": g * first_share(x, y) if needs["x"] else None,
        "y": g * first_share(y, x) if needs["y"] else None,
    }


@custom_gradient
def first_share(x: Tensor, y: Tensor) -> Tensor:
    """Return ``exp(x) / (exp(x) + exp(y))``; 0 where both are ``-inf``."""
    return torch.sigmoid(_gap(x, y, -INF)).to(common_dtype(x, y))


@first_share.vjp
def first_share_vjp(g: Tensor, x: Tensor, y: Tensor) -> dict[str, Tensor]:
    # At the size of the gap, so that both shares move by exactly the same: their sum does not move.
    slope = torch.where(x.isinf(), 0.0, logistic_slope(g, _gap(x, y, 0.0).abs()))
    return {"x": slope, "y": -slope}


def _gap(x: Tensor, y: Tensor, of_nothing: float) -> Tensor:
    """Return ``x - y``, with 0 where both are ``inf`` and a number to choose where both are ``-inf``."""
    gap = widened(x) - widened(y)
    if seen_below(gap, INF):
        return gap
    return torch.where(x == y, torch.where(x == -INF, of_nothing, 0.0), gap)


def _difference_examples(dtype: torch.dtype) -> Sequence[Example]:
    log2 = math.log(2.0)
    near = [(2.0, 2.0 - k * torch.finfo(dtype).eps) for k in (8, 64, 256)]
    far = [(0.0, -40.0), (40.0, 0.25), (0.5, -700.5), (800.0, 1.0), (-1000.0, -1024.0), (4.5, 4.4375)]
    large = torch.finfo(dtype).max / 2
    return [
        Point((grid(3.5, 9.0, 9, dtype), grid(-4.0, 2.5, 9, dtype).flip(0)), note="ordinary"),
        Point((grid(4.0, 5.0, 3, dtype), grid(-4.0, 3.0, 2, dtype).unsqueeze(1)), note="broadcast"),
        Point((torch.zeros(3, dtype=dtype), around(-log2, dtype=dtype)), note="where the formula changes"),
        Point(pairs(dtype, near), note="nearly equal", extreme=True),
        Point(
            pairs(dtype, [(-INF, -INF), (2.5, -INF), (INF, 1.0)]),
            first={"x": [0.0, 1.0, 1.0]},
            note="-inf",
            extreme=True,
        ),
        Point(pairs(dtype, [*far, (large, -large), (large, 0.0)]), note="far apart", extreme=True),
        Point(
            pairs(dtype, [(1.5, 1.5), (0.0, 0.0)]), first={"x": INF, "y": -INF}, orders=1, note="equal", extreme=True
        ),
    ]


@exact(
    forward="out = log(exp(x) - exp(y))",
    gradient={"x": "g / (1 - exp(y - x))", "y": "-g / (exp(x - y) - 1); both 0 where x is -inf"},
    reference=lambda mp, x, y: mp.log(mp.exp(x) - mp.exp(y)),
    domain="x >= y, else nan; -inf where they are equal, with infinite gradients (0 where both are -inf)",
    bars=BARS,
    examples=_difference_examples,
    replaces=lambda x, y: x + torch.log1p(-torch.exp(y - x)),
    slower="two forms, for differences on either side of log 2",
    ordinary=lambda: (torch.rand(1000000) + 2, torch.rand(1000000)),
    paper="Maechler 2012 (Rmpfr note on log1mexp)",
)
@custom_gradient
def logsubexp(x: Tensor, y: Tensor) -> Tensor:
    """Return the logarithm of the difference of two exponentials, of which the first must not be the smaller.

    Arguments:
        x: floating point, of any shape.
        y: of a shape that can be broadcast with it; at most ``x``.

    Returns:
        a tensor of the broadcast shape; nan where ``x < y``.

    Raises:
        ArgumentError: one of them is not floating point.

    Example:
        >>> import torch, gradwright as gw
        >>> gw.stable.logsubexp(torch.tensor([1.0, 2.0]), torch.tensor([-torch.inf, 2.0]))
        tensor([1., -inf])
    """
    require_floating("logsubexp", x=x, y=y)
    gap = _gap(x, y, 0.0)
    log1mexp = gap.neg().exp_().neg_().log1p_()
    if not seen_within(gap, math.log(2.0), INF):
        log1mexp = torch.where(gap < math.log(2.0), kernels.expm1_(gap.neg()).neg_().log_(), log1mexp)
    return (x + log1mexp).to(common_dtype(x, y))


@logsubexp.vjp
def logsubexp_vjp(g: Tensor, x: Tensor, y: Tensor) -> dict[str, Tensor]:
    if not seen_within(x, -INF, INF):
        g = torch.where(x == -INF, 0.0, g)
    lost = g * lost_ratio(x, y)
    return {"x": g + lost, "y": -lost}


@custom_gradient
def lost_ratio(x: Tensor, y: Tensor) -> Tensor:
    """Return ``1 / (exp(x - y) - 1)``; 0 where both are ``-inf``."""
    return kernels.expm1(_gap(x, y, INF)).reciprocal().to(common_dtype(x, y))


@lost_ratio.vjp
def lost_ratio_vjp(g: Tensor, x: Tensor, y: Tensor, out: Tensor) -> dict[str, Tensor]:
    slope = g * out * (1 + out)
    return {"x": -slope, "y": slope}
