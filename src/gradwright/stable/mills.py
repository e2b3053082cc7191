"""The scaled complementary error function and Mills' ratio, whose derivatives do not cancel.

``erfcx(u) = exp(u ** 2) erfc(u)`` and ``M(x) = (1 - Phi(x)) / phi(x) = sqrt(pi / 2) erfcx(x / sqrt(2))``. PyTorch's
gradient ``2 u erfcx(u) - 2 / sqrt(pi)`` has lost every digit at 1e8 (1e4 in float32). DLMF 7.2.3, 7.8.1.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import torch
from torch import Tensor

from gradwright.authoring.catalogue import Example, grid, joined
from gradwright.authoring.constructors import define
from gradwright.authoring.decorator import custom_gradient
from gradwright.authoring.exact import HALF, Point, exact, relative, sweep
from gradwright.stable.arguments import require_floating, widened
from gradwright.stable.scaled_erfc import ROOT_2, ROOT_HALF_PI, erfcx_derivative, mills_derivative

Derivative: TypeAlias = Callable[[Tensor, int], Tensor]

BARS = relative(2e-15, 8e-7, *HALF)


def _examples(negative: Sequence[float]) -> Callable[[torch.dtype], Sequence[Example]]:
    def examples(dtype: torch.dtype) -> Sequence[Example]:
        bulk = joined([torch.zeros(1, dtype=dtype), grid(-2.0, 6.0, 12, dtype), sweep(-20, -2, dtype, 6)])
        far = torch.tensor([20.0, 150.0, 1e3, 1e4, 1e6, 1e8], dtype=dtype)
        far = torch.cat([far[far.isfinite()], torch.tensor([*negative, torch.inf], dtype=dtype)])
        return [Point((bulk,), note="bulk"), Point((far,), note="far", extreme=True)]

    return examples


def _slope_of(derivative: Derivative, name: str) -> Callable[[Tensor], Tensor]:
    """Return the first derivative as a function; its rule gives the second, and the rule of that the third and last."""

    def order(number: int) -> Callable[[Tensor], Tensor]:
        return lambda x: derivative(widened(x), number).to(x.dtype)

    third = order(3)
    bend = define(order(2), vjp=lambda g, x: g * third(x), name=f"{name}_bend", double_backward="once")
    return define(order(1), vjp=lambda g, x: g * bend(x), name=f"{name}_slope")


erfcx_slope = _slope_of(erfcx_derivative, "erfcx")
mills_slope = _slope_of(mills_derivative, "mills")


@exact(
    forward="out = exp(x^2) erfc(x)",
    gradient={"x": "g (2 x out - 2 / sqrt(pi))"},
    reference=lambda mp, x: mp.exp(x * x) * mp.erfc(x) if mp.isfinite(x) else mp.mpf(0),
    domain="every number; infinite below -26.6",
    bars=BARS,
    examples=_examples([-2.5, -3.0]),
    replaces=torch.special.erfcx,
    slower="each term of a polynomial is a pass over the memory; PyTorch's kernel is fused, and cancels",
    paper="DLMF 7.2.3; pytorch#195679",
)
@custom_gradient
def erfcx(x: Tensor) -> Tensor:
    """Return the scaled complementary error function, exp(x ** 2) erfc(x).

    Arguments:
        x: floating point, of any shape.

    Returns:
        a tensor like ``x``.

    Example:
        >>> import torch, gradwright as gw
        >>> torch.func.grad(gw.stable.erfcx)(torch.tensor(1e4))
        tensor(-5.6419e-09)
    """
    require_floating("erfcx", x=x)
    return erfcx_derivative(widened(x), 0).to(x.dtype)


@erfcx.vjp
def erfcx_vjp(g: Tensor, x: Tensor) -> Tensor:
    return g * erfcx_slope(x)


@exact(
    forward="out = (1 - Phi(x)) / phi(x)",
    gradient={"x": "g (x out - 1)"},
    reference=lambda mp, x: (
        mp.sqrt(mp.pi / 2) * mp.exp(x * x / 2) * mp.erfc(x / mp.sqrt(2)) if mp.isfinite(x) else mp.mpf(0)
    ),
    domain="every number; infinite below -37.6",
    bars=BARS,
    examples=_examples([-3.0, -3.25]),
    replaces=lambda x: ROOT_HALF_PI * torch.special.erfcx(x / ROOT_2),
    slower="each term of a polynomial is a pass over the memory; PyTorch's kernel is fused, and cancels",
    paper="Mills 1926; DLMF 7.8.1",
)
@custom_gradient
def mills_ratio(x: Tensor) -> Tensor:
    """Return Mills' ratio of the normal distribution, (1 - Phi(x)) / phi(x).

    Arguments:
        x: floating point, of any shape.

    Returns:
        a tensor like ``x``.

    Example:
        >>> import torch, gradwright as gw
        >>> gw.stable.mills_ratio(torch.tensor([0.0, 100.0]))
        tensor([1.2533, 0.0100])
    """
    require_floating("mills_ratio", x=x)
    return mills_derivative(widened(x), 0).to(x.dtype)


@mills_ratio.vjp
def mills_ratio_vjp(g: Tensor, x: Tensor) -> Tensor:
    return g * mills_slope(x)
