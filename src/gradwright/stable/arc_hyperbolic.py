"""The inverse hyperbolic sine and cosine, whose gradients are right where ``x ** 2`` overflows.

``asinh'(x) = 1 / hypot(1, x)`` and ``acosh'(x) = 1 / (sqrt(x - 1) sqrt(x + 1))``: nothing is squared.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from gradwright.authoring.catalogue import Example, around, grid, joined
from gradwright.authoring.decorator import custom_gradient
from gradwright.authoring.exact import Point, exact, sweep, ulps, whole_range
from gradwright.stable.arguments import require_floating, widened
from gradwright.torch_compat import kernels


def _asinh_examples(dtype: torch.dtype) -> Sequence[Example]:
    ends = torch.tensor([torch.inf, -torch.inf], dtype=dtype)
    bulk = joined([torch.zeros(1, dtype=dtype), grid(-4.0, 4.0, 12, dtype), sweep(-8, 8, dtype, 4)])
    return [Point((bulk,), note="bulk"), Point((torch.cat([whole_range(dtype), ends]),), note="ends", extreme=True)]


@exact(
    forward="out = log(x + sqrt(x ** 2 + 1))",
    gradient={"x": "g / hypot(1, x)"},
    reference=lambda mp, x: mp.asinh(x),
    domain="all numbers",
    bars=ulps(4),
    examples=_asinh_examples,
    replaces=torch.asinh,
    paper="pytorch#193006",
)
def asinh(x: Tensor) -> Tensor:
    """Return the inverse hyperbolic sine, whose gradient does not vanish where ``x ** 2`` overflows.

    Arguments:
        x: floating point, of any shape.

    Returns:
        a tensor like ``x``.

    Raises:
        ArgumentError: ``x`` is of integers or complex.

    Example:
        >>> import torch, gradwright as gw
        >>> x = torch.tensor(1e25, requires_grad=True)
        >>> torch.autograd.grad(gw.stable.asinh(x), x)
        (tensor(1.0000e-25),)
    """
    require_floating("asinh", x=x)
    return _asinh(widened(x)).to(x.dtype)


@custom_gradient
def _asinh(x: Tensor) -> Tensor:
    return torch.asinh(x)


@_asinh.vjp
def _asinh_vjp(g: Tensor, x: Tensor) -> Tensor:
    return g * _asinh_slope(x)


@custom_gradient
def _asinh_slope(x: Tensor) -> Tensor:
    """Return ``1 / sqrt(1 + x ** 2)``."""
    return torch.hypot(x, torch.ones_like(x)).reciprocal_()


@_asinh_slope.vjp
def _asinh_slope_vjp(g: Tensor, x: Tensor, out: Tensor) -> Tensor:
    return -g * _tangent(x, out) * out * out


def _tangent(x: Tensor, slope: Tensor) -> Tensor:
    """Return ``x`` times a slope that falls like ``1 / x``; zero at infinity."""
    largest = torch.finfo(x.dtype).max
    return x.clamp(-largest, largest) * slope


def _acosh_examples(dtype: torch.dtype) -> Sequence[Example]:
    above = around(1.0, dtype=dtype, steps=2)
    near = torch.cat([above[above > 1], 1 + sweep(-6, 3, dtype, 2).abs().unique()])
    large = whole_range(dtype)
    far = torch.cat([large[large > 2], torch.tensor([torch.inf], dtype=dtype)])
    found = [Point((grid(1.5, 6.0, 8, dtype),), note="bulk"), Point((near,), note="near 1", extreme=True)]
    found.append(
        Point((torch.ones(1, dtype=dtype),), note="1", first={"x": torch.inf}, second={"x": -torch.inf}, extreme=True)
    )
    return [*found, Point((far,), note="ends", extreme=True)]


@exact(
    forward="out = log(x + sqrt(x ** 2 - 1))",
    gradient={"x": "g / (sqrt(x - 1) sqrt(x + 1)); infinite at 1"},
    reference=lambda mp, x: mp.acosh(x),
    domain="numbers from 1 on; nan below",
    bars=ulps(4),
    examples=_acosh_examples,
    replaces=torch.acosh,
    ordinary=lambda: (torch.rand(1_000_000) + 1.5,),
    paper="both factors of x ** 2 - 1 from x",
)
def acosh(x: Tensor) -> Tensor:
    """Return the inverse hyperbolic cosine, whose gradient does not vanish where ``x ** 2`` overflows.

    For its square, which has a derivative at 1 too, see :func:`~gradwright.stable.arc_squares.acosh_squared`.

    Arguments:
        x: floating point, of any shape.

    Returns:
        a tensor like ``x``; nan below 1.

    Raises:
        ArgumentError: ``x`` is of integers or complex.

    Example:
        >>> import torch, gradwright as gw
        >>> x = torch.tensor(1e25, requires_grad=True)
        >>> torch.autograd.grad(gw.stable.acosh(x), x)
        (tensor(1.0000e-25),)
    """
    require_floating("acosh", x=x)
    return _acosh(widened(x)).to(x.dtype)


@custom_gradient
def _acosh(x: Tensor) -> Tensor:
    return kernels.acosh(x)


@_acosh.vjp
def _acosh_vjp(g: Tensor, x: Tensor) -> Tensor:
    return g * _acosh_slope(x)


@custom_gradient
def _acosh_slope(x: Tensor) -> Tensor:
    """Return ``1 / (sqrt(x - 1) sqrt(x + 1))``."""
    return (x - 1).sqrt_().mul_((x + 1).sqrt_()).reciprocal_()


@_acosh_slope.vjp
def _acosh_slope_vjp(g: Tensor, x: Tensor, out: Tensor) -> Tensor:
    return -g * _tangent(x, out) * out * out
