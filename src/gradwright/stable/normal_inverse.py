"""The inverse of the logarithm of the normal distribution function, from the far tail to nearly one.

For ``y`` below -log 2, Newton's method on ``log_ndtr(x) = y``; above, on ``Phi(-x) = 1 - exp(y)``, whose digits ``y``
still has. Mills' ratio ``M`` hardly depends on the rounding of ``x``; with ``s = dx / dy = Phi(x) / phi(x)``

    s = M(-x)                        below,   s' = -log_ndtr''(x) s ** 3
    s = exp(y) M(x) / (1 - exp(y))   above,   s' = s (1 + x s)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from gradwright.authoring.catalogue import Example
from gradwright.authoring.decorator import custom_gradient
from gradwright.authoring.exact import HALF, Point, exact, relative
from gradwright.stable.arguments import require_floating, widened
from gradwright.stable.normal import density_value, hazard_slope_value, hazard_value, log_ndtr_value, lower_tail
from gradwright.stable.scaled_erfc import ROOT_2_PI, mills_derivative
from gradwright.torch_compat import kernels

MIDDLE = -math.log(2)
"""Where ``Phi(x)`` is a half: each way is used on its own side of zero only."""
FAR = -50.0
"""Below, the start is asymptotic: ``exp(y)`` would underflow in float32."""
STEPS = 3
"""Newton steps from the asymptotic start to the last digit; from ``torch.special.ndtri`` one would do."""


def _inverse_examples(dtype: torch.dtype) -> Sequence[Example]:
    bulk = torch.tensor([-20.0, -5.0, -2.5, -1.0, -0.75, -0.5, -0.25, -0.125, -0.03], dtype=dtype)
    tails = torch.tensor([-30000.0, -1000.0, -100.0, -1e-4, -6e-5], dtype=dtype)
    found = [Point((bulk,), note="bulk"), Point((tails,), note="tails", extreme=True)]
    if dtype in HALF:
        return found
    far = torch.tensor([-1e30, -1e16, -1e8, -1e-9, -1e-15, -1e-30], dtype=dtype)
    return [*found, Point((far,), note="far", extreme=True)]


def _reference(mp: Any, y: Any) -> Any:
    """Return the root of ``log(Phi(x)) = y`` by Newton's method, in the precision that is asked for."""
    x = -mp.sqrt(-2 * y) if y < -20 else mp.mpf(torch.special.ndtri(torch.tensor(float(y)).double().exp()).item())
    if y > -1e-8:
        x = mp.sqrt(-2 * mp.log(-y))
    for _ in range(60):
        tail = mp.erfc(-x / mp.sqrt(2)) / 2
        step = (mp.log(tail) - y) * tail * mp.sqrt(2 * mp.pi) * mp.exp(x * x / 2)
        x -= max(min(step, mp.mpf(1)), mp.mpf(-1)) if abs(x) < 100 else step
        if abs(step) <= abs(x) * mp.eps * 8:
            break
    return x


@exact(
    forward="out = x with log(Phi(x)) = y",
    gradient={"y": "g Phi(x) / phi(x)"},
    reference=_reference,
    domain="y < 0; infinite at 0, nan above",
    bars=relative(4e-15, 2e-6, *HALF),
    examples=_inverse_examples,
    replaces=lambda y: torch.special.ndtri(torch.exp(y)),
    ordinary=lambda: (-torch.rand(1_000_000) * 10 - 0.01,),
    slower="Newton steps, each with erfcx, are what it takes in the tail",
    paper="Newton's method on log_ndtr, from its asymptotic inverse",
)
@custom_gradient
def ndtri_exp(y: Tensor) -> Tensor:
    """Return the number whose normal distribution function is ``exp(y)``: the inverse of ``log_ndtr``.

    Arguments:
        y: floating point, of any shape, not positive.

    Returns:
        a tensor like ``y``.

    Example:
        >>> import torch, gradwright as gw
        >>> gw.stable.ndtri_exp(torch.tensor([-1e4, -0.5]))
        tensor([-141.3798,    0.2703])
    """
    require_floating("ndtri_exp", y=y)
    return _quantile(widened(y)).to(y.dtype)


@ndtri_exp.vjp
def ndtri_exp_vjp(g: Tensor, y: Tensor) -> Tensor:
    return g * quantile_slope(y)


@custom_gradient(double_backward="once")
def quantile_slope(y: Tensor) -> Tensor:
    """Return ``Phi(x) / phi(x)`` at the quantile of ``y``."""
    wide = widened(y)
    return _slope(wide, _quantile(wide)).to(y.dtype)


@quantile_slope.vjp
def quantile_slope_vjp(g: Tensor, y: Tensor) -> Tensor:
    wide = widened(y)
    x = _quantile(wide)
    s = _slope(wide, x)
    return g * torch.where(wide < MIDDLE, -hazard_slope_value(x) * s**3, s * (1 + x * s)).to(y.dtype)


def _slope(y: Tensor, x: Tensor) -> Tensor:
    return torch.where(y < MIDDLE, 1 / hazard_value(x), torch.exp(y) * mills_derivative(x, 0) / -kernels.expm1(y))


def _quantile(y: Tensor) -> Tensor:
    lower = torch.where(y < MIDDLE, y, MIDDLE)
    far = -2 * lower.clamp(max=FAR)
    start = -torch.sqrt(far - torch.log(ROOT_2_PI**2 * far))
    x = torch.where(lower < FAR, start, torch.special.ndtri(torch.exp(lower)))
    for _ in range(STEPS):
        x = x - (log_ndtr_value(x) - lower) / hazard_value(x)
    x = torch.where(lower.isinf(), lower, x)
    upper = -kernels.expm1(y.clamp(min=MIDDLE))
    other = -torch.special.ndtri(upper)
    step = (lower_tail(other) - upper) / density_value(other)
    other = torch.where(other.isinf(), other, other + step)
    return torch.where(y < MIDDLE, x, other)
