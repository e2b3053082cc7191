"""The normal distribution far out: its distribution function and the logarithm of that.

PyTorch writes ``1 + erf(x)``, which is zero from -9 on, and differentiates ``log_ndtr`` by a quotient that loses all
digits in the tail. Here everything comes from erfcx, whose derivatives do not cancel. With ``u = -x / sqrt(2)``, for
``x < 0``:

    Phi(x)         = exp(-x ** 2 / 2) erfcx(u) / 2
    log_ndtr'(x)   = phi(x) / Phi(x) = sqrt(2 / pi) / erfcx(u)
    log_ndtr''(x)  = erfcx'(u) / (sqrt(pi) erfcx(u) ** 2)

and for the others ``Phi(x) = 1 - Phi(-x)``, ``log_ndtr'' = -h (h + x)`` with ``h = log_ndtr'``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from gradwright.authoring.catalogue import Example, grid, joined
from gradwright.authoring.decorator import custom_gradient
from gradwright.authoring.exact import HALF, Point, exact, relative, sweep, ulps
from gradwright.stable.arguments import require_floating, widened
from gradwright.stable.scaled_erfc import ROOT_2, ROOT_2_PI, ROOT_HALF_PI, decaying, square_exp

ROOT_PI = math.sqrt(math.pi)
FAR = 1e9
"""From here on, ``h + x`` is zero in every dtype."""


def lower_tail(x: Tensor) -> Tensor:
    """Return ``Phi(-abs(x))``."""
    return 0.5 * square_exp(x, -0.5) * decaying(x.abs() / ROOT_2, 0)


def density_value(x: Tensor) -> Tensor:
    """Return the density, without the rounding error of the square, in the dtype that is computed with."""
    return square_exp(x, -0.5) / ROOT_2_PI


@custom_gradient
def density(x: Tensor) -> Tensor:
    """Return the density of the normal distribution."""
    return density_value(widened(x)).to(x.dtype)


@density.vjp
def density_vjp(g: Tensor, x: Tensor, out: Tensor) -> Tensor:
    return -(g * torch.where(x.isinf(), 0.0, x * out))


def _examples(dtype: torch.dtype) -> Sequence[Example]:
    bulk = joined([torch.zeros(1, dtype=dtype), grid(-4.0, 4.0, 12, dtype), sweep(-20, -2, dtype, 6)])
    tails = torch.tensor([-38.0, -26.5, -14.25, -9.0, -6.0, 6.0, 9.0, 13.0], dtype=dtype)
    return [Point((bulk,), note="bulk"), Point((tails,), note="tails", extreme=True)]


def _log_examples(dtype: torch.dtype) -> Sequence[Example]:
    if dtype == torch.float16:
        return _examples(dtype)
    far = torch.tensor([-1e8, -1e5, -1e4, -1000.0, -100.0, 20.0, 38.0], dtype=dtype)
    return [*_examples(dtype), Point((far,), note="far", extreme=True)]


@exact(
    forward="out = Phi(x), the integral of the density up to x",
    gradient={"x": "g exp(-x^2 / 2) / sqrt(2 pi)"},
    reference=lambda mp, x: mp.erfc(-x / mp.sqrt(2)) / 2,
    domain="every number",
    bars=ulps(8),
    examples=_examples,
    replaces=torch.special.ndtr,
    slower="exp(-x^2 / 2) and erfcx are computed for every element",
    paper="DLMF 7.2; pytorch#192295",
)
@custom_gradient
def ndtr(x: Tensor) -> Tensor:
    """Return the distribution function of the normal distribution, which PyTorch's own loses from -6 on.

    Arguments:
        x: floating point, of any shape.

    Returns:
        a tensor like ``x``.

    Example:
        >>> import torch, gradwright as gw
        >>> gw.stable.ndtr(torch.tensor(-12.0))
        tensor(1.7765e-33)
    """
    require_floating("ndtr", x=x)
    wide = widened(x)
    lower = lower_tail(wide)
    return torch.where(wide < 0, lower, 1 - lower).to(x.dtype)


@ndtr.vjp
def ndtr_vjp(g: Tensor, x: Tensor) -> Tensor:
    return g * density(x)


@exact(
    forward="out = log(Phi(x))",
    gradient={"x": "g phi(x) / Phi(x)"},
    reference=lambda mp, x: mp.log(mp.erfc(-x / mp.sqrt(2)) / 2),
    domain="every number",
    bars=relative(2e-15, 8e-7, *HALF),
    examples=_log_examples,
    replaces=torch.special.log_ndtr,
    slower="exp(-x^2 / 2) and erfcx are computed for every element",
    paper="Mills' ratio; DLMF 7.8",
)
@custom_gradient
def log_ndtr(x: Tensor) -> Tensor:
    """Return the logarithm of the normal distribution function, with its gradient in the tail.

    Arguments:
        x: floating point, of any shape.

    Returns:
        a tensor like ``x``.

    Example:
        >>> import torch, gradwright as gw
        >>> torch.func.grad(gw.stable.log_ndtr)(torch.tensor(-1e4))
        tensor(10000.0010)
    """
    require_floating("log_ndtr", x=x)
    return log_ndtr_value(widened(x)).to(x.dtype)


@log_ndtr.vjp
def log_ndtr_vjp(g: Tensor, x: Tensor) -> Tensor:
    return g * hazard(x)


@custom_gradient
def hazard(x: Tensor) -> Tensor:
    """Return ``phi(x) / Phi(x)``."""
    return hazard_value(widened(x)).to(x.dtype)


@hazard.vjp
def hazard_vjp(g: Tensor, x: Tensor) -> Tensor:
    return g * hazard_slope(x)


@custom_gradient(double_backward="once")
def hazard_slope(x: Tensor) -> Tensor:
    """Return the derivative of ``phi(x) / Phi(x)``."""
    return hazard_slope_value(widened(x)).to(x.dtype)


@hazard_slope.vjp
def hazard_slope_vjp(g: Tensor, x: Tensor) -> Tensor:
    wide = widened(x)
    h, slope = hazard_value(wide), hazard_slope_value(wide)
    bend = -slope * (2 * h + wide) - h
    return g * torch.where(wide < -FAR, 0.0, bend).to(x.dtype)


def log_ndtr_value(x: Tensor) -> Tensor:
    """Return ``log(Phi(x))`` in the dtype that is computed with."""
    scaled = decaying(x.abs() / ROOT_2, 0)
    lower = -0.5 * x.square() + torch.log(0.5 * scaled)
    return torch.where(x < 0, lower, torch.log1p(-0.5 * square_exp(x, -0.5) * scaled))


def hazard_value(x: Tensor) -> Tensor:
    """Return ``phi(x) / Phi(x)`` in the dtype that is computed with."""
    scaled = decaying(x.abs() / ROOT_2, 0)
    upper = square_exp(x, -0.5)
    return torch.where(x < 0, 1 / (ROOT_HALF_PI * scaled), upper / (ROOT_2_PI * (1 - 0.5 * upper * scaled)))


def hazard_slope_value(x: Tensor) -> Tensor:
    """Return the derivative of ``phi(x) / Phi(x)`` in the dtype that is computed with."""
    u = x.clamp(-FAR, FAR).abs() / ROOT_2
    scaled = decaying(u, 0)
    left = -decaying(u, 1) / scaled / (ROOT_PI * scaled)
    h = hazard_value(x)
    right = -h * (h + x.clamp(max=FAR))
    return torch.where(x < 0, torch.where(x < -FAR, -1.0, left), right)
