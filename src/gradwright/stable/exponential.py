"""Exponentials, and logarithms of what exponentials leave: gradients that neither vanish nor overflow before they must.

PyTorch's ``expm1`` has the derivative ``result + 1``, which is zero from -37 on; that of ``exp2`` is a multiple of the
value, infinite where the value alone is. ``log(1 - exp(-x))`` is taken from ``expm1`` below log 2 and with ``log1p``
above (Maechler 2012, "Accurately computing log(1 - exp(-|a|))").
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
from gradwright.stable.seen import seen_within
from gradwright.torch_compat import kernels


def _everywhere(dtype: torch.dtype, limit: float) -> Sequence[Example]:
    """Return points for an exponential that overflows at ``limit``."""
    bulk = joined([torch.zeros(1, dtype=dtype), grid(-8.0, 8.0, 12, dtype), sweep(-8, 3, dtype, 3)])
    tails = torch.cat([grid(-80.0, 8.0, 6, dtype), torch.tensor([-700.0, -63.996, -17.5, 0.98 * limit], dtype=dtype)])
    infinite = torch.tensor([torch.inf, -torch.inf], dtype=dtype)
    limits: dict[str, Any] = {"first": {"x": [torch.inf, 0.0]}, "second": {"x": [torch.inf, 0.0]}}
    return [
        Point((bulk,), note="bulk"),
        Point((tails,), note="tails", extreme=True),
        Point((whole_range(dtype, 5),), note="whole range", extreme=True),
        Point((infinite,), note="infinity", **limits, extreme=True),
    ]


@exact(
    forward="out = exp(x) - 1",
    gradient={"x": "g exp(x)"},
    reference=lambda mp, x: mp.exp(x) - 1,
    domain="every number",
    bars=ulps(4),
    examples=lambda dtype: _everywhere(dtype, math.log(torch.finfo(dtype).max)),
    replaces=torch.expm1,
    slower="one more exponential: PyTorch takes the derivative from the value, which no longer has the tail",
    paper="pytorch#192406",
)
@custom_gradient
def expm1(x: Tensor) -> Tensor:
    """Return ``exp(x) - 1``, with a gradient that does not vanish where the value is near minus one.

    Arguments:
        x: floating point, of any shape.

    Returns:
        a tensor like ``x``.

    Raises:
        ArgumentError: ``x`` is not floating point.

    Example:
        >>> import torch, gradwright as gw
        >>> torch.func.grad(gw.stable.expm1)(torch.tensor(-40.0))
        tensor(4.2484e-18)
    """
    require_floating("expm1", x=x)
    return kernels.expm1(x)


@expm1.vjp
def expm1_vjp(g: Tensor, x: Tensor) -> Tensor:
    return _exp_pulled(g, x)


@custom_gradient
def _exp_pulled(weight: Tensor, x: Tensor) -> Tensor:
    """Return ``weight exp(x)``."""
    return scaled(torch.exp(x), weight)


@_exp_pulled.vjp
def _exp_pulled_vjp(g: Tensor, weight: Tensor, x: Tensor) -> dict[str, Tensor]:
    return {"weight": _exp_pulled(g, x), "x": _exp_pulled(g * weight, x)}


def _exp2_examples(dtype: torch.dtype) -> Sequence[Example]:
    top = math.frexp(torch.finfo(dtype).max)[1]
    edge = torch.tensor([top, top + 0.25], dtype=dtype)
    return [
        *_everywhere(dtype, top),
        Point((edge,), note="where the value overflows and the slope does not", value=torch.inf, extreme=True),
    ]


@exact(
    forward="out = 2 ** x",
    gradient={"x": "g log(2) 2 ** x"},
    reference=lambda mp, x: mp.mpf(2) ** x,
    domain="every number",
    bars=ulps(4),
    examples=_exp2_examples,
    replaces=torch.exp2,
    paper="2 ** (x / 2) log(2) 2 ** (x / 2), which overflows no earlier than the derivative",
)
@custom_gradient
def exp2(x: Tensor) -> Tensor:
    """Return two to the power of ``x``, with a gradient that is finite as long as the true one is.

    Arguments:
        x: floating point, of any shape.

    Returns:
        a tensor like ``x``.

    Raises:
        ArgumentError: ``x`` is not floating point.

    Example:
        >>> import torch, gradwright as gw
        >>> torch.func.grad(gw.stable.exp2)(torch.tensor(128.0))
        tensor(2.3587e+38)
    """
    require_floating("exp2", x=x)
    return torch.exp2(x)


@exp2.vjp
def exp2_vjp(g: Tensor, x: Tensor, out: Tensor) -> Tensor:
    return _exp2_pulled(g, x, out.detach())


@custom_gradient
def _exp2_pulled(weight: Tensor, x: Tensor, power: Tensor) -> Tensor:
    """Return ``weight log(2) 2 ** x``, where the root of the power overflows nowhere, and half of ``x`` is exact.

    Where the power itself is seen to be a normal number, it is as good; it follows from ``x``.
    """
    if seen_within(power, 2 * torch.finfo(power.dtype).smallest_normal, math.inf):
        return scaled(power.mul(math.log(2)), weight)
    root = x.mul(0.5).exp2_()
    return weight * root * math.log(2) * root  # not in place: a weight may be a zero that PyTorch keeps no memory for


@_exp2_pulled.vjp
def _exp2_pulled_vjp(g: Tensor, weight: Tensor, x: Tensor, power: Tensor) -> dict[str, Tensor]:
    return {"weight": _exp2_pulled(g, x, power), "x": _exp2_pulled(g * weight, x, power) * math.log(2)}


# -------------------------------------------------------------------- logarithms


def _positive(dtype: torch.dtype, bulk: Tensor, *switches: float) -> list[Point]:
    """Return points above zero: ordinary ones, next to switches, over the whole range."""
    wide = torch.cat([sweep(-100, -6, dtype, 13), sweep(5, 9, dtype), whole_range(dtype, 5)])
    return [
        Point((bulk,), note="bulk"),
        *([Point((around(*switches, dtype=dtype),), note="switches")] if switches else []),
        Point((wide[wide > 0],), note="whole range", extreme=True),
    ]


def _log1mexp_examples(dtype: torch.dtype) -> Sequence[Example]:
    ends = torch.tensor([0.0, torch.inf], dtype=dtype)
    limits: dict[str, Any] = {"first": {"x": [torch.inf, 0.0]}, "second": {"x": [-torch.inf, 0.0]}}
    return [
        *_positive(dtype, grid(0.05, 30.0, 14, dtype), math.log(2)),
        Point((ends,), note="ends", value=[-torch.inf, 0.0], **limits, extreme=True),
    ]


def _in_two_parts(x: Tensor) -> Tensor:
    """Return ``log(1 - exp(-x))`` as people write it."""
    return torch.where(x < math.log(2), torch.log(-torch.expm1(-x)), torch.log1p(-torch.exp(-x)))


@exact(
    forward="out = log(1 - exp(-x))",
    gradient={"x": "g / expm1(x)"},
    reference=lambda mp, x: mp.log(1 - mp.exp(-x)),
    domain="above zero, minus infinity at zero, nan below",
    bars=ulps(4),
    examples=_log1mexp_examples,
    replaces=_in_two_parts,
    ordinary=lambda: (torch.rand(1_000_000, generator=torch.Generator().manual_seed(0)) * 4,),
    paper="Maechler 2012; pytorch#39242",
)
def log1mexp(x: Tensor) -> Tensor:
    """Return ``log(1 - exp(-x))``, the logarithm of the probability that is left.

    Arguments:
        x: positive, floating point, of any shape.

    Returns:
        a tensor like ``x``.

    Raises:
        ArgumentError: ``x`` is not floating point.

    Example:
        >>> import torch, gradwright as gw
        >>> gw.stable.log1mexp(torch.tensor([1e-10, 1.0, 40.0]))
        tensor([-2.3026e+01, -4.5868e-01, -4.2484e-18])
    """
    require_floating("log1mexp", x=x)
    return _log1mexp(widened(x)).to(x.dtype)


@custom_gradient
def _log1mexp(x: Tensor) -> Tensor:
    """Return the sum of two parts of which one is constant on each side of log 2, and exactly zero on the right."""
    below = kernels.expm1_(x.neg()).mul_(-2).clamp(max=1).log_()
    return x.neg().exp_().clamp(max=0.5).neg_().log1p_().add_(below)


@_log1mexp.vjp
def _log1mexp_vjp(g: Tensor, x: Tensor) -> Tensor:
    return _log1mexp_pulled(g, x)


@custom_gradient
def _log1mexp_pulled(weight: Tensor, x: Tensor) -> Tensor:
    return weight / kernels.expm1(x)


@_log1mexp_pulled.vjp
def _log1mexp_pulled_vjp(g: Tensor, weight: Tensor, x: Tensor) -> dict[str, Tensor]:
    return {"weight": _log1mexp_pulled(g, x), "x": _curved(g * weight, x)}


def _curved(weight: Tensor, x: Tensor) -> Tensor:
    """Return ``-weight / (4 sinh(x / 2) ** 2)``: the second derivative of both logarithms here."""
    return weight / expm1(x) / expm1(-x)


def _log_expm1_examples(dtype: torch.dtype) -> Sequence[Example]:
    away = torch.cat([grid(0.05, 0.5, 6, dtype), grid(1.0, 30.0, 8, dtype)])
    ends = torch.tensor([0.0, torch.inf], dtype=dtype)
    limits: dict[str, Any] = {"first": {"x": [torch.inf, 1.0]}, "second": {"x": [-torch.inf, 0.0]}}
    return [
        *_positive(dtype, away),
        Point((ends,), note="ends", value=[-torch.inf, torch.inf], **limits, extreme=True),
    ]


@exact(
    forward="out = log(exp(x) - 1)",
    gradient={"x": "-g / expm1(-x)"},
    reference=lambda mp, x: mp.log(mp.exp(x) - 1),
    domain="above zero, minus infinity at zero, nan below; next to the root log(2) the error is 4 ulp of one",
    bars=ulps(4),
    examples=_log_expm1_examples,
    replaces=lambda x: torch.log(torch.expm1(x)),
    ordinary=lambda: (torch.rand(1_000_000, generator=torch.Generator().manual_seed(0)) * 8,),
    slower="one more expm1, of -x: PyTorch keeps that of the forward, which overflows",
    paper="x + log(-expm1(-x))",
)
def log_expm1(x: Tensor) -> Tensor:
    """Return ``log(exp(x) - 1)``, also where ``exp(x)`` overflows.

    Arguments:
        x: positive, floating point, of any shape.

    Returns:
        a tensor like ``x``.

    Raises:
        ArgumentError: ``x`` is not floating point.

    Example:
        >>> import torch, gradwright as gw
        >>> torch.func.grad(gw.stable.log_expm1)(torch.tensor(800.0))
        tensor(1.)
    """
    require_floating("log_expm1", x=x)
    return _log_expm1(widened(x)).to(x.dtype)


@custom_gradient
def _log_expm1(x: Tensor) -> Tensor:
    return kernels.expm1_(x.neg()).neg_().log_().add_(x)


@_log_expm1.vjp
def _log_expm1_vjp(g: Tensor, x: Tensor) -> Tensor:
    return _log_expm1_pulled(g, x)


@custom_gradient
def _log_expm1_pulled(weight: Tensor, x: Tensor) -> Tensor:
    return weight / kernels.expm1_(x.neg()).neg_()


@_log_expm1_pulled.vjp
def _log_expm1_pulled_vjp(g: Tensor, weight: Tensor, x: Tensor) -> dict[str, Tensor]:
    return {"weight": _log_expm1_pulled(g, x), "x": _curved(g * weight, x)}
