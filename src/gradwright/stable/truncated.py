"""The normal distribution between two bounds: the logarithm of its mass, and its mean.

``log(Phi(high) - Phi(low))`` is minus infinity in either tail and has few digits for narrow intervals. With ``Z`` the
mass, ``p = phi(low) / Z``, ``q = phi(high) / Z``, ``mu`` the mean and ``var`` the variance,

    d log Z / d low = -p,                    d log Z / d high = q
    d mu / d low = p (mu - low),             d mu / d high = q (high - mu)
    d var / d low = p (var - (mu - low)**2), d var / d high = q ((high - mu)**2 - var)

Second derivatives of one bound alone are of the size ``1 / width ** 2``, and cancel where both bounds move. So the
rules are written in the movement of one bound and the difference of the two (:mod:`~gradwright.stable.interval` has
the parts). The truncated normal in Johnson, Kotz, Balakrishnan, Continuous Univariate Distributions 1, 13.10.1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from gradwright.authoring.catalogue import Example, around
from gradwright.authoring.decorator import custom_gradient
from gradwright.authoring.exact import HALF, Point, exact, relative
from gradwright.errors import ArgumentError
from gradwright.stable.arguments import require_floating, widened
from gradwright.stable.interval import bends, edges, log_mass, mean, shares

INF = math.inf


def _pairs(dtype: torch.dtype, *pairs: tuple[float, float]) -> tuple[Tensor, Tensor]:
    low, high = torch.tensor(pairs, dtype=dtype).unbind(-1)
    return low.clone(), high.clone()


def _examples(dtype: torch.dtype) -> Sequence[Example]:
    eps = torch.finfo(dtype).eps
    bulk = _pairs(dtype, (-1, 1), (0, 1), (-2, -1), (0.5, 3), (-3, 0.25), (1, 1.25), (-0.3, -0.2), (-1.5, -0.05))
    narrow = _pairs(dtype, (1, 1 + 4 * eps), (-5, -5 + 32 * eps), (-eps, eps), (0, 3 * eps), (12, 12 + 16 * eps))
    tails = _pairs(dtype, (5, 6), (-40, -39), (-30, -29.75), (100, 101), (3.5, 20))
    wide = _pairs(dtype, (-9, 9), (-6, 8), (-40, 0.5), (-0.25, 40), (-INF, 1.5), (-2, INF), (6, INF), (-INF, -12))
    found = [Point(bulk, note="bulk")]
    found += [Point(x, note=n, extreme=True) for x, n in ((narrow, "narrow"), (tails, "tails"), (wide, "wide"))]
    sides = around(math.sqrt(3), dtype=dtype), around(math.sqrt(0.5), dtype=dtype), around(math.sqrt(102), dtype=dtype)
    lows = torch.ones_like(sides[0]), -sides[1].flip(0), torch.full_like(sides[2], 10.0)
    found += [Point((torch.cat(lows), torch.cat(sides)), note="where the forms change", extreme=True)]
    if dtype in HALF:
        return found
    far = _pairs(
        dtype, (1e4, 1e4 + 1 / 1024), (-1e8, -1e7), (1e5, INF), (11, INF), (10.875, 12), (8, 9), (0, 2.0**-120)
    )
    return [*found, Point(far, note="far", extreme=True)]


def _upper(low: Any, high: Any) -> tuple[Any, Any, int]:
    """Return the bounds on the side where distribution functions are small, and the sign of what is odd."""
    return (-high, -low, -1) if low + high < 0 else (low, high, 1)


def _mass(mp: Any, low: Any, high: Any) -> Any:
    low, high, _ = _upper(low, high)
    return (mp.erfc(low / mp.sqrt(2)) - mp.erfc(high / mp.sqrt(2))) / 2


def _mean(mp: Any, low: Any, high: Any) -> Any:
    a, b, sign = _upper(low, high)
    difference = mp.exp(-a * a / 2) - mp.exp(-b * b / 2)
    return sign * difference / mp.sqrt(2 * mp.pi) / _mass(mp, low, high)


# -------------------------------------------------------------------- mass


@exact(
    forward="out = log(Phi(high) - Phi(low))",
    gradient={"low": "-g phi(low) / exp(out)", "high": "g phi(high) / exp(out)"},
    reference=lambda mp, low, high: mp.log(_mass(mp, low, high)),
    domain="low < high, infinite ones too; minus infinity where they are equal, nan where low is above",
    bars=relative(4e-15, 2e-6, *HALF),
    examples=_examples,
    replaces=lambda low, high: torch.log(torch.special.ndtr(high) - torch.special.ndtr(low)),
    ordinary=lambda: (torch.randn(1_000_000), 3 + torch.rand(1_000_000)),
    slower="three forms, for intervals that are narrow, wide and in a tail, are computed for every element",
    paper="Mills' ratio; Johnson, Kotz, Balakrishnan 1994, 13.10.1",
)
def log_ndtr_between(low: Tensor, high: Tensor) -> Tensor:
    """Return the logarithm of the mass of the normal distribution between two bounds, right in both tails.

    It serves censored and rounded observations: ``log_ndtr`` is the case of one infinite bound.

    Arguments:
        low: floating point.
        high: like ``low``; the two broadcast.

    Returns:
        a tensor of the common shape: minus infinity, with infinite gradients, where the bounds are equal, nan where
        ``low`` is above ``high``.

    Raises:
        ArgumentError: the bounds are not floating point, or of two dtypes.

    Example:
        >>> import torch, gradwright as gw
        >>> gw.stable.log_ndtr_between(torch.tensor([-1.0, 30.0]), torch.tensor([1.0, 31.0]))
        tensor([-3.8172e-01, -4.5432e+02])
    """
    return _log_mass(*_bounds("log_ndtr_between", low, high))


@custom_gradient
def _log_mass(low: Tensor, high: Tensor) -> Tensor:
    return _where_ordered(low, high, log_mass(widened(low), widened(high)))


@_log_mass.vjp
def _log_mass_vjp(g: Tensor, low: Tensor, high: Tensor) -> dict[str, Tensor]:
    p, q = _edges(low, high)
    return {"low": -g * p, "high": g * q}


@custom_gradient(double_backward="once")
def _edges(low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
    """Return the truncated densities ``p`` and ``q`` at the bounds."""
    p, q = edges(widened(low), widened(high))
    return _where_ordered(low, high, p), _where_ordered(low, high, q)


@_edges.vjp
def _edges_vjp(g: Sequence[Tensor], low: Tensor, high: Tensor) -> dict[str, Tensor]:
    p, q = edges(widened(low), widened(high))
    first, second = shares(widened(low), widened(high))
    both = g[0] + g[1]  # zero where the bounds move alike
    return {
        "low": (g[0] * first + (both * q) * p).to(low.dtype),
        "high": -(g[1] * second + (both * p) * q).to(low.dtype),
    }


# -------------------------------------------------------------------- mean


@exact(
    forward="out = (phi(low) - phi(high)) / (Phi(high) - Phi(low))",
    gradient={
        "low": "g phi(low) (out - low) / (Phi(high) - Phi(low))",
        "high": "g phi(high) (high - out) / (Phi(high) - Phi(low))",
    },
    reference=_mean,
    domain="low < high, infinite ones too; their value where they are equal, nan where low is above",
    bars=relative(4e-15, 2e-6, *HALF),
    examples=_examples,
    replaces=lambda low, high: (
        (torch.exp(-low * low / 2) - torch.exp(-high * high / 2))
        / (math.sqrt(2 * math.pi) * (torch.special.ndtr(high) - torch.special.ndtr(low)))
    ),
    ordinary=lambda: (torch.randn(1_000_000), 3 + torch.rand(1_000_000)),
    slower="three forms, for intervals that are narrow, wide and in a tail, are computed for every element",
    paper="Johnson, Kotz, Balakrishnan 1994, 13.10.1",
)
def truncated_normal_mean(low: Tensor, high: Tensor) -> Tensor:
    """Return the mean of the normal distribution between two bounds, right in both tails and for narrow intervals.

    Arguments:
        low: floating point.
        high: like ``low``; the two broadcast.

    Returns:
        a tensor of the common shape: the bound itself where the two are equal, nan where ``low`` is above ``high``.

    Raises:
        ArgumentError: the bounds are not floating point, or of two dtypes.

    Example:
        >>> import torch, gradwright as gw
        >>> gw.stable.truncated_normal_mean(torch.tensor([0.0, 30.0]), torch.tensor([torch.inf, 31.0]))
        tensor([ 0.7979, 30.0333])
    """
    return _truncated_mean(*_bounds("truncated_normal_mean", low, high))


@custom_gradient
def _truncated_mean(low: Tensor, high: Tensor) -> Tensor:
    return _where_ordered(low, high, mean(widened(low), widened(high)))


@_truncated_mean.vjp
def _truncated_mean_vjp(g: Tensor, low: Tensor, high: Tensor) -> dict[str, Tensor]:
    first, second = _shares(low, high)
    return {"low": g * first, "high": g * second}


@custom_gradient(double_backward="once")
def _shares(low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
    """Return how much of the movement of each bound the mean follows."""
    first, second = shares(widened(low), widened(high))
    return _where_ordered(low, high, first), _where_ordered(low, high, second)


@_shares.vjp
def _shares_vjp(g: Sequence[Tensor], low: Tensor, high: Tensor) -> dict[str, Tensor]:
    first, second, mixed = bends(widened(low), widened(high))
    apart = (g[1] - g[0]) * mixed
    return {"low": (g[0] * first + apart).to(low.dtype), "high": (g[1] * second - apart).to(low.dtype)}


# -------------------------------------------------------------------- arguments


def _bounds(name: str, low: Tensor, high: Tensor) -> list[Tensor]:
    require_floating(name, low=low, high=high)
    if low.dtype != high.dtype:
        raise ArgumentError(f"{name}: low is {low.dtype} and high {high.dtype}; expected one dtype; convert one.")
    return list(torch.broadcast_tensors(low, high))


def _where_ordered(low: Tensor, high: Tensor, x: Tensor) -> Tensor:
    return torch.where(low <= high, x, torch.nan).to(low.dtype)
