"""Activations with kinks, whose output tells exactly on which side of a kink the argument was.

PyTorch keeps the input; here the output is kept alone, which the next layer keeps anyway (pytorch#63644). Nothing is
rounded: each element has one of two slopes, and the same comparison on the output chooses the same one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from gradwright.authoring.catalogue import Example, grid
from gradwright.authoring.cheaper import Goal, cheaper
from gradwright.authoring.decorator import custom_gradient
from gradwright.authoring.exact import HALF, Point, relative
from gradwright.stable.arguments import require_floating, require_number


def _examples(dtype: torch.dtype, *calls: dict[str, float]) -> Sequence[Example]:
    middle = grid(-8.0, 8.0, 12, dtype)
    return [
        point
        for kwargs in calls
        for point in (
            Point((middle,), kwargs, note="ordinary"),
            Point((middle.reshape(3, 4).t(),), kwargs, note="not contiguous"),
        )
    ]


@cheaper(
    forward="out = x where x > 0, else negative_slope x",
    gradient={"x": "g where out > 0, else g negative_slope"},
    replaces=functional.leaky_relu,
    goal=Goal(time=1.1),
    domain="every number",
    bars=relative(1e-14, 1e-7, *HALF),
    examples=lambda dtype: _examples(
        dtype, {}, {"negative_slope": 0.25}, {"negative_slope": 0}, {"negative_slope": -2}
    ),
    ordinary=lambda: (torch.randn(2048, 2048),),
    paper="Maas, Hannun, Ng 2013; the sign of the output: Rota Bulò, Porzi, Kontschieder 2018, arXiv:1712.02616",
)
def leaky_relu(x: Tensor, negative_slope: float = 0.01) -> Tensor:
    """Return ``x`` where it is positive, else ``negative_slope x``, and keep nothing but that.

    With a negative slope the sign of the output does not tell that of ``x``: then PyTorch's own function is called,
    which keeps the input.

    Arguments:
        x: floating point, of any shape.
        negative_slope: the slope where ``x`` is not positive.

    Returns:
        a tensor like ``x``.

    Raises:
        ArgumentError: ``x`` is not floating point, or ``negative_slope`` is no number.

    Example:
        >>> import torch, gradwright as gw
        >>> x = torch.tensor([-1.0, 0.0, 2.0], requires_grad=True)
        >>> torch.autograd.grad(gw.fused.leaky_relu(x).sum(), x)
        (tensor([0.0100, 0.0100, 1.0000]),)
    """
    require_floating("leaky_relu", x=x)
    require_number("leaky_relu", negative_slope=negative_slope)
    if negative_slope >= 0:
        return _leaky_relu(x, negative_slope)
    return functional.leaky_relu(x, negative_slope)


@custom_gradient
def _leaky_relu(x: Tensor, negative_slope: float) -> Tensor:
    return functional.leaky_relu(x, negative_slope)


@_leaky_relu.vjp
def _leaky_relu_vjp(g: Tensor, out: Tensor, negative_slope: float) -> dict[str, Tensor]:
    return {"x": torch.ops.aten.leaky_relu_backward(g, out, negative_slope, True)}


@cheaper(
    forward="out = min(max(x, min_val), max_val)",
    gradient={"x": "g where min_val < out < max_val, else 0"},
    replaces=functional.hardtanh,
    goal=Goal(time=1.1),
    domain="every number",
    bars=relative(1e-14, 1e-7, *HALF),
    examples=lambda dtype: _examples(dtype, {}, {"min_val": -0.3, "max_val": 0.7}, {"min_val": 0, "max_val": 6}),
    ordinary=lambda: (torch.randn(2048, 2048),),
    paper="pytorch#63644",
)
def hardtanh(x: Tensor, min_val: float = -1.0, max_val: float = 1.0) -> Tensor:
    """Return ``x`` between two bounds, and keep nothing but that.

    With a bound that a half type does not hold exactly, PyTorch's own function is called, which keeps the input.

    Arguments:
        x: floating point, of any shape.
        min_val: the lower bound.
        max_val: the upper bound.

    Returns:
        a tensor like ``x``.

    Raises:
        ArgumentError: ``x`` is not floating point, or a bound is no number.
        ValueError: ``min_val`` is above ``max_val`` (PyTorch's own).

    Example:
        >>> import torch, gradwright as gw
        >>> x = torch.tensor([-2.0, 0.5, 1.0], requires_grad=True)
        >>> torch.autograd.grad(gw.fused.hardtanh(x).sum(), x)
        (tensor([0., 1., 0.]),)
    """
    require_floating("hardtanh", x=x)
    require_number("hardtanh", min_val=min_val, max_val=max_val)
    return _between(x, min_val, max_val)


@cheaper(
    forward="out = min(max(x, 0), 6)",
    gradient={"x": "g where 0 < out < 6, else 0"},
    replaces=functional.relu6,
    goal=Goal(time=1.1),
    domain="every number",
    bars=relative(1e-14, 1e-7, *HALF),
    examples=lambda dtype: _examples(dtype, {}),
    ordinary=lambda: (torch.randn(2048, 2048),),
    paper="Howard et al. 2017, arXiv:1704.04861; pytorch#63644",
)
def relu6(x: Tensor) -> Tensor:
    """Return ``x`` between 0 and 6, and keep nothing but that.

    Arguments:
        x: floating point, of any shape.

    Returns:
        a tensor like ``x``.

    Raises:
        ArgumentError: ``x`` is not floating point.

    Example:
        >>> import torch, gradwright as gw
        >>> x = torch.tensor([-2.0, 0.5, 7.0], requires_grad=True)
        >>> torch.autograd.grad(gw.fused.relu6(x).sum(), x)
        (tensor([0., 1., 0.]),)
    """
    require_floating("relu6", x=x)
    return _between(x, 0.0, 6.0)


def _between(x: Tensor, low: float, high: float) -> Tensor:
    if low <= high and (x.dtype not in HALF or (_held(low, x.dtype) and _held(high, x.dtype))):
        return _hardtanh(x, low, high)
    return functional.hardtanh(x, low, high)


def _held(bound: float, dtype: torch.dtype) -> bool:
    """Tell whether a half type has this number: then the output at the bound is the bound that it is compared with."""
    info = torch.finfo(dtype)
    mantissa, _ = math.frexp(bound)
    return bound == 0 or (info.tiny <= abs(bound) <= info.max and (mantissa * 2 / info.eps).is_integer())


@custom_gradient
def _hardtanh(x: Tensor, low: float, high: float) -> Tensor:
    return functional.hardtanh(x, low, high)


@_hardtanh.vjp
def _hardtanh_vjp(g: Tensor, out: Tensor, low: float, high: float) -> dict[str, Tensor]:
    return {"x": torch.ops.aten.hardtanh_backward(g, out, low, high)}
