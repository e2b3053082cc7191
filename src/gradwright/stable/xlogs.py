"""Products of a number and a logarithm, where ``0 log 0 = 0``.

PyTorch's derivatives there are ``0 / 0`` and ``0 * inf``. A slope that is a sum of logarithms is one logarithm here, of
a number near which it keeps its digits: ``log x + 1 = log1p(e (x - 1/e))``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from gradwright.authoring.catalogue import Example, around, grid
from gradwright.authoring.decorator import custom_gradient
from gradwright.authoring.exact import HALF, Point, exact, relative, whole_range
from gradwright.stable.arguments import require_floating, widened
from gradwright.stable.rows import pairs
from gradwright.stable.seen import seen_within

BARS = relative(1e-14, 1e-6, *HALF)
INF = math.inf
INVERSE_E = (0.36787944117144233, -1.2428753672788363e-17)
"""``1 / e`` as the sum of two numbers of double precision."""
MIDDLE = (0.25, 4.0)
"""Around it: outside, ``log(x)`` and 1 do not cancel. Powers of two, by which subnormal numbers are divided exactly."""


# -------------------------------------------------------------------- x log x


def _xlogx_examples(dtype: torch.dtype) -> Sequence[Example]:
    return [
        Point((grid(0.05, 5.0, 12, dtype),), note="ordinary"),
        Point((around(INVERSE_E[0], 1.0, dtype=dtype, steps=2),), note="where the slope is 0, where the value is"),
        Point((torch.zeros(2, dtype=dtype),), value=0.0, first={"x": -INF}, second={"x": INF}, note="0", extreme=True),
        Point((whole_range(dtype, 8).abs(),), note="the whole range", extreme=True),
    ]


@exact(
    forward="out = x log(x), 0 at 0",
    gradient={"x": "g (log(x) + 1), -inf at 0"},
    reference=lambda mp, x: x * mp.log(x) if x else x,
    domain="x >= 0, else nan",
    bars=BARS,
    examples=_xlogx_examples,
    replaces=lambda x: torch.xlogy(x, x),
    ordinary=lambda: (torch.rand(1000000),),
    paper="pytorch#15288; one logarithm for the slope",
)
@custom_gradient
def xlogx(x: Tensor) -> Tensor:
    """Return ``x log(x)``, which is 0 at 0; minus this is a term of an entropy.

    Arguments:
        x: floating point, of any shape, not negative.

    Returns:
        a tensor like ``x``.

    Raises:
        ArgumentError: ``x`` is not floating point.

    Example:
        >>> import torch, gradwright as gw
        >>> x = torch.tensor([0.0, 1.0], requires_grad=True)
        >>> torch.autograd.grad(gw.stable.xlogx(x).sum(), x)
        (tensor([  -inf, 1.0000]),)
    """
    require_floating("xlogx", x=x)
    return torch.xlogy(x, x)


@xlogx.vjp
def xlogx_vjp(g: Tensor, x: Tensor) -> Tensor:
    return g * log_plus_one(x)


@custom_gradient
def log_plus_one(x: Tensor) -> Tensor:
    """Return ``log(x) + 1``, with all digits where it is nearly zero."""
    wide = widened(x)
    head = torch.tensor(INVERSE_E[0], dtype=wide.dtype).item()
    # Two logarithms, of which the second is 0 in the middle, and the first does not cancel it elsewhere.
    middle = wide.clamp(*MIDDLE)
    outside = (wide / middle).log_()
    near = middle.sub_(head).sub_(INVERSE_E[0] - head + INVERSE_E[1]).mul_(math.e)
    return near.log1p_().add_(outside).to(x.dtype)


@log_plus_one.vjp
def log_plus_one_vjp(g: Tensor, x: Tensor) -> Tensor:
    return g / x


# -------------------------------------------------------------------- x log y


def _xlogy_examples(dtype: torch.dtype) -> Sequence[Example]:
    x, y = grid(-3.0, 4.0, 9, dtype), grid(0.05, 6.0, 9, dtype)
    constant, zeros = torch.zeros(2, dtype=dtype), torch.tensor([0.0, 2.0], dtype=dtype).requires_grad_()
    return [
        Point((x, y), note="ordinary"),
        Point((x[:3], y[:2].unsqueeze(1)), note="broadcast"),
        Point((constant, zeros), value=0.0, first={"y": 0.0}, second={"y": 0.0}, note="0 log 0, the 0 a constant"),
        Point(
            (torch.zeros(1, dtype=dtype), torch.zeros(1, dtype=dtype)),
            value=0.0,
            first={"x": -INF, "y": 0.0},
            orders=1,
            note="0 log 0",
            extreme=True,
        ),
        Point(pairs(dtype, [(0.0, 3.0), (-0.0, 0.5), (2.0, 1.0)]), note="0 log y, x log 1"),
        Point(
            pairs(dtype, [(2.0, INF), (0.0, INF)]),
            value=[INF, 0.0],
            first={"x": INF},
            orders=1,
            note="inf",
            extreme=True,
        ),
        Point(
            (whole_range(dtype, 4), whole_range(dtype, 4).flip(0).abs()), orders=1, note="the whole range", extreme=True
        ),
    ]


@exact(
    forward="out = x log(y), 0 where x is 0",
    gradient={"x": "g log(y), -inf at y = 0", "y": "g x / y, 0 where x is 0"},
    reference=lambda mp, x, y: x * mp.log(y) if x else x,
    domain="y >= 0, else nan",
    bars=BARS,
    examples=_xlogy_examples,
    replaces=torch.xlogy,
    ordinary=lambda: (torch.randn(1000000), torch.rand(1000000)),
    paper="pytorch#80488",
)
def xlogy(x: Tensor | float, y: Tensor | float) -> Tensor:
    """Return ``x log(y)``, which is 0 with gradient 0 for ``y`` where ``x`` is 0.

    Arguments:
        x: floating point, of any shape.
        y: of a shape that can be broadcast with it, not negative. One of the two may be a number.

    Returns:
        a tensor of the broadcast shape.

    Raises:
        ArgumentError: one of them is not floating point.

    Example:
        >>> import torch, gradwright as gw
        >>> y = torch.tensor(0.0, requires_grad=True)
        >>> torch.autograd.grad(gw.stable.xlogy(torch.tensor(0.0), y), y)
        (tensor(0.),)
    """
    a, b = _beside(x, y), _beside(y, x)
    require_floating("xlogy", x=a, y=b)
    return _xlogy(a, b)


def _beside(x: Any, other: Any) -> Any:
    """Return a number as a tensor of the dtype of the other argument."""
    if isinstance(other, Tensor) and isinstance(x, (int, float)):
        return torch.full((), x, dtype=other.dtype, device=other.device)
    return x


@custom_gradient
def _xlogy(x: Tensor, y: Tensor) -> Tensor:
    return torch.xlogy(x, y)


@_xlogy.vjp
def xlogy_vjp(g: Tensor, x: Tensor, y: Tensor, needs: dict[str, bool]) -> dict[str, Tensor | None]:
    return {
        "x": g * y.log() if needs["x"] else None,
        "y": g * over(x, y) if needs["y"] else None,
    }


@custom_gradient
def over(x: Tensor, y: Tensor) -> Tensor:
    """Return ``x / y``; 0 where ``x`` is 0."""
    out = x / y
    return out if seen_within(out, -INF, INF) else torch.where(x == 0, 0.0, out)


@over.vjp
def over_vjp(g: Tensor, x: Tensor, y: Tensor, out: Tensor) -> dict[str, Tensor]:
    return {"x": g / y, "y": -g * over(out, y)}
