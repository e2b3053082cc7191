"""Hyperbolic functions: a tanh whose gradient does not vanish, and logarithms that do not overflow.

``tanh'(x) = 4 sigmoid(2x) sigmoid(-2x)`` where PyTorch forms ``1 - tanh(x) ** 2``, which is zero from 19 on (9 in
float32). ``log(cosh(x)) = log1p(2 sinh(x / 2) ** 2)`` loses nothing near zero, and is ``abs(x) - log(2)`` far out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from gradwright.authoring.catalogue import Example, around, grid, joined
from gradwright.authoring.decorator import custom_gradient
from gradwright.authoring.exact import Point, exact, sweep, ulps, whole_range
from gradwright.stable.arguments import require_floating, scaled, widened
from gradwright.stable.exponential import expm1
from gradwright.torch_compat import kernels

LINEAR_FROM = 20.0
"""Where ``exp(-2x)`` is below the last digit of every dtype, beside one."""


def _examples(dtype: torch.dtype, value: list[float], first: list[float]) -> list[Example]:
    bulk = joined([torch.zeros(1, dtype=dtype), grid(-6.0, 6.0, 12, dtype), sweep(-8, 2, dtype, 3)])
    tails = joined([grid(-40.0, 40.0, 6, dtype), torch.tensor([-350.0, -20.0, 20.0, 350.0], dtype=dtype)])
    infinite = torch.tensor([torch.inf, -torch.inf], dtype=dtype)
    return [
        Point((bulk,), note="bulk"),
        Point((tails,), note="tails", extreme=True),
        Point((around(LINEAR_FROM, -LINEAR_FROM, dtype=dtype),), note="switch", extreme=True),
        Point((whole_range(dtype, 6),), note="whole range", extreme=True),
        Point((infinite,), note="infinity", value=value, first={"x": first}, extreme=True),
    ]


@exact(
    forward="out = tanh(x)",
    gradient={"x": "g / cosh(x) ** 2"},
    reference=lambda mp, x: mp.tanh(x),
    domain="every number; -1 and 1 at the infinities",
    bars=ulps(4),
    examples=lambda dtype: _examples(dtype, [1.0, -1.0], [0.0, 0.0]),
    replaces=torch.tanh,
    slower="a sigmoid for the gradient: PyTorch takes it from the value, which no longer has the tail",
    paper="pytorch#195527; 4 sigmoid(2x) sigmoid(-2x)",
)
@custom_gradient
def tanh(x: Tensor) -> Tensor:
    """Return the hyperbolic tangent, with a gradient that does not vanish before it must.

    Arguments:
        x: floating point, of any shape.

    Returns:
        a tensor like ``x``.

    Raises:
        ArgumentError: ``x`` is not floating point.

    Example:
        >>> import torch, gradwright as gw
        >>> torch.func.grad(gw.stable.tanh)(torch.tensor(20.0))
        tensor(1.6993e-17)
    """
    require_floating("tanh", x=x)
    return torch.tanh(x)


@tanh.vjp
def tanh_vjp(g: Tensor, x: Tensor) -> Tensor:
    return tanh_pulled(g, x)


@custom_gradient
def tanh_pulled(weight: Tensor, x: Tensor) -> Tensor:
    """Return ``weight / cosh(x) ** 2``; of the two sigmoids the smaller one gives the other without loss."""
    small = x.abs().mul_(-2).sigmoid_()
    pulled: Any = torch.ops.aten.sigmoid_backward(weight, small)
    return pulled.mul_(4)  # type: ignore[no-any-return]


@tanh_pulled.vjp
def tanh_pulled_vjp(g: Tensor, weight: Tensor, x: Tensor) -> dict[str, Tensor]:
    return {"weight": tanh_pulled(g, x), "x": tanh_pulled(g * weight, x) * tanh(x) * -2}


@exact(
    forward="out = log(cosh(x))",
    gradient={"x": "g tanh(x)"},
    reference=lambda mp, x: mp.log(mp.cosh(x)),
    domain="every number",
    bars=ulps(4),
    examples=lambda dtype: _examples(dtype, [torch.inf, torch.inf], [1.0, -1.0]),
    replaces=lambda x: torch.log(torch.cosh(x)),
    paper="log1p(2 sinh(x / 2) ** 2)",
)
def logcosh(x: Tensor) -> Tensor:
    """Return ``log(cosh(x))``, to the last digits near zero and without overflow.

    Arguments:
        x: floating point, of any shape.

    Returns:
        a tensor like ``x``.

    Raises:
        ArgumentError: ``x`` is not floating point.

    Example:
        >>> import torch, gradwright as gw
        >>> gw.stable.logcosh(torch.tensor([1e-4, 1.0, 800.0]))
        tensor([5.0000e-09, 4.3378e-01, 7.9931e+02])
    """
    require_floating("logcosh", x=x)
    return _logcosh(widened(x)).to(x.dtype)


@custom_gradient
def _logcosh(x: Tensor) -> Tensor:
    near = x.clamp(-LINEAR_FROM, LINEAR_FROM)
    far = (x - near).abs_()
    half = near.div_(2).sinh_()
    return half.mul_(half).mul_(2).log1p_().add_(far)


@_logcosh.vjp
def _logcosh_vjp(g: Tensor, x: Tensor) -> Tensor:
    return _logcosh_pulled(g, x)


@custom_gradient
def _logcosh_pulled(weight: Tensor, x: Tensor) -> Tensor:
    """Return ``weight tanh(x)``, by ``expm1``, which takes half the time of ``torch.tanh``."""
    u = kernels.expm1_(x.clamp(-LINEAR_FROM, LINEAR_FROM).mul_(-2))
    return scaled(u.div_(u + 2).neg_(), weight)


@_logcosh_pulled.vjp
def _logcosh_pulled_vjp(g: Tensor, weight: Tensor, x: Tensor) -> dict[str, Tensor]:
    return {"weight": _logcosh_pulled(g, x), "x": tanh_pulled(g * weight, x)}


def _logsinh_examples(dtype: torch.dtype) -> Sequence[Example]:
    away = torch.cat([grid(0.05, 0.6, 6, dtype), grid(1.2, 20.0, 8, dtype)])
    wide = torch.cat([sweep(-100, -6, dtype, 13), sweep(3, 9, dtype), whole_range(dtype, 6)])
    ends = torch.tensor([0.0, torch.inf], dtype=dtype)
    limits: dict[str, Any] = {"first": {"x": [torch.inf, 1.0]}, "second": {"x": [-torch.inf, 0.0]}}
    return [
        Point((away,), note="to both sides of the root"),
        Point((wide[wide > 0],), note="whole range", extreme=True),
        Point((ends,), note="ends", value=[-torch.inf, torch.inf], **limits, extreme=True),
    ]


@exact(
    forward="out = log(sinh(x))",
    gradient={"x": "g / tanh(x)"},
    reference=lambda mp, x: mp.log(mp.sinh(x)),
    domain="above zero, minus infinity at zero, nan below; next to the root 0.8814 the error is 4 ulp of one",
    bars=ulps(4),
    examples=_logsinh_examples,
    replaces=lambda x: torch.log(torch.sinh(x)),
    ordinary=lambda: (torch.rand(1_000_000, generator=torch.Generator().manual_seed(0)) * 8,),
    paper="x - log(2) + log(1 - exp(-2x))",
)
def logsinh(x: Tensor) -> Tensor:
    """Return ``log(sinh(x))``, also where ``sinh(x)`` overflows.

    Arguments:
        x: positive, floating point, of any shape.

    Returns:
        a tensor like ``x``.

    Raises:
        ArgumentError: ``x`` is not floating point.

    Example:
        >>> import torch, gradwright as gw
        >>> torch.func.grad(gw.stable.logsinh)(torch.tensor(800.0))
        tensor(1.)
    """
    require_floating("logsinh", x=x)
    return _logsinh(widened(x)).to(x.dtype)


@custom_gradient
def _logsinh(x: Tensor) -> Tensor:
    return kernels.expm1_(x.mul(-2)).neg_().log_().add_(x.sub(math.log(2)))


@_logsinh.vjp
def _logsinh_vjp(g: Tensor, x: Tensor) -> Tensor:
    return _logsinh_pulled(g, x)


@custom_gradient
def _logsinh_pulled(weight: Tensor, x: Tensor) -> Tensor:
    """Return ``weight / tanh(x)``."""
    u = kernels.expm1_(x.mul(-2)).neg_()
    return scaled((2 - u).div_(u), weight)


@_logsinh_pulled.vjp
def _logsinh_pulled_vjp(g: Tensor, weight: Tensor, x: Tensor) -> dict[str, Tensor]:
    """The second derivative is ``-1 / sinh(x) ** 2``."""
    return {"weight": _logsinh_pulled(g, x), "x": 4 * (g * weight / expm1(2 * x) / expm1(-2 * x))}
