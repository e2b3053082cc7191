"""Divided differences of the functions that matrices are put into, in forms that do not cancel.

Each is a closed form of a pair of numbers, right to a few roundings however close they are; only if they are equal is
the limit put in its place. ``f[x, x, y]`` is small beside its parts where the numbers are close: there it is a series
in their distance, beyond it the difference of first divided differences.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from gradwright.stable.hermitian import Spectrum

TERMS = 16
"""How many terms a series has: with arguments up to a half, the next one is below a rounding in float64."""
NEAR = 0.5


class Sqrt(Spectrum):
    """The square root: ``f[x, y] = 1 / (s + t)`` with ``s`` and ``t`` the roots."""

    singular = True

    def value(self, x: Tensor) -> Tensor:
        return x.sqrt()

    def slope(self, x: Tensor, y: Tensor) -> Tensor:
        return _finite_at_zero(1 / (x.sqrt() + y.sqrt()), x)

    def bend(self, x: Tensor, y: Tensor) -> Tensor:
        s, t = x.sqrt(), y.sqrt()
        return torch.where(x == 0, _finite_at_zero(1 / (y * t), y), -1 / (s + t).square() / (2 * s))


class InverseSqrt(Spectrum):
    """One over the square root: ``f[x, y] = -1 / (s t (s + t))`` with ``s`` and ``t`` the roots."""

    singular = open = True

    def value(self, x: Tensor) -> Tensor:
        return 1 / _positive(x).sqrt()

    def slope(self, x: Tensor, y: Tensor) -> Tensor:
        s, t = x.sqrt(), y.sqrt()
        return -1 / (s + t) / s / t

    def bend(self, x: Tensor, y: Tensor) -> Tensor:
        s, t = x.sqrt(), y.sqrt()
        return (s + (s + t)) / (s + t).square() / (2 * s) / x / t


class Log(Spectrum):
    """The natural logarithm: ``f[x, y] = log1p(d / m) / d`` with ``d`` the distance and ``m`` the smaller one."""

    singular = open = True

    def value(self, x: Tensor) -> Tensor:
        return _positive(x).log()

    def slope(self, x: Tensor, y: Tensor) -> Tensor:
        low, gap = torch.minimum(x, y), (y - x).abs()
        return torch.where(gap == 0, 1 / low, torch.log1p(gap / low) / gap)

    def bend(self, x: Tensor, y: Tensor) -> Tensor:
        u = (y - x) / x
        # log1p(u) = 2 atanh(w) with w = u / (2 + u); what is left of it is w + w^3 / 3 + ... without its first term.
        w = u / (2 + u)
        series = (_horner([2 / (2 * k + 3) for k in range(TERMS)], w * w) * w / (2 + u) - 1) / (2 + u)
        return torch.where(u.abs() <= NEAR, series / x / x, (self.slope(x, y) - 1 / x) / (y - x))


class Exp(Spectrum):
    """The exponential: ``f[x, y] = exp(m) (1 - exp(-d)) / d`` with ``d`` the distance and ``m`` the larger one."""

    def value(self, x: Tensor) -> Tensor:
        return x.exp()

    def slope(self, x: Tensor, y: Tensor) -> Tensor:
        gap = (y - x).abs()
        return torch.maximum(x, y).exp() * torch.where(gap == 0, 1.0, _one_minus_exp(gap) / gap)

    def bend(self, x: Tensor, y: Tensor) -> Tensor:
        u = y - x
        return torch.where(u.abs() <= NEAR, x.exp() * _exp_rest(u), (self.slope(x, y) - x.exp()) / u)


class Power(Spectrum):
    """A power, of any sign where the exponent is an integer.

    With ``l`` the logarithm of the ratio of the larger number to the smaller one,
    ``f[x, y] = x^p (1 - exp(-p l)) / (x - y)``; that one is factored out which has the larger power.
    """

    def __init__(self, exponent: float) -> None:
        self.exponent = float(exponent)
        self.singular = not self.exponent.is_integer() or self.exponent < 0
        self.open = self.exponent < 0

    def value(self, x: Tensor) -> Tensor:
        return (_positive(x) if self.open else x) ** self.exponent

    def slope(self, x: Tensor, y: Tensor) -> Tensor:
        p = self.exponent
        sizes = (x, y) if self.singular else (x.abs(), y.abs())
        low, high = torch.minimum(*sizes), torch.maximum(*sizes)
        gap = high - low
        power = (high if p > 0 else low) ** p
        same = math.copysign(1.0, p) * power * _one_minus_exp(abs(p) * torch.log1p(gap / low)) / gap
        at_zero = 1.0 if p == 1 else 0.0
        same = torch.where(gap == 0, torch.where(high == 0, at_zero, p * power / high), same)
        if self.singular:
            return same
        same = same * torch.where(x + y < 0, (-1.0) ** round(p - 1), 1.0)
        return torch.where(x * y < 0, (y**p - x**p) / (y - x), same)

    def bend(self, x: Tensor, y: Tensor) -> Tensor:
        p = self.exponent
        u = torch.where(x == y, 0.0, (y - x) / x)
        ratio = torch.log1p(u)
        # (1 + u)^p - 1 - p u = p l^2 (p r(p l) - r(l)) with r(l) = (exp(l) - 1 - l) / l^2, by the series of r.
        most = max(1.0, abs(p))
        series = _horner([_geometric(p, k) / (most**k * math.factorial(k + 2)) for k in range(TERMS)], most * ratio)
        near = self._half_curve(x) * 2 * series * torch.where(u == 0, 1.0, ratio / u).square()
        far = (self.slope(x, y) - self._tangent(x)) / (y - x)
        return torch.where(most * ratio.abs() <= NEAR, near, far)

    def _tangent(self, x: Tensor) -> Tensor:
        """Return ``f'(x)``."""
        p = self.exponent
        return _finite_at_zero(p * x ** (p - 1), x) if p else torch.zeros_like(x)

    def _half_curve(self, x: Tensor) -> Tensor:
        """Return ``f''(x) / 2``."""
        p = self.exponent
        return _finite_at_zero(p * (p - 1) / 2 * x ** (p - 2), x) if p * (p - 1) else torch.zeros_like(x)


def _geometric(p: float, k: int) -> float:
    """Return ``(p^(k + 1) - 1) / (p - 1)``."""
    return sum([p**i for i in range(k + 1)])


def _one_minus_exp(x: Tensor) -> Tensor:
    """Return ``1 - exp(-x)`` for ``x >= 0``; torch.compile makes ``expm1`` a difference that cancels (torch 2.13)."""
    t = torch.tanh(x / 2)
    return 2 * t / (1 + t)


def _exp_rest(u: Tensor) -> Tensor:
    """Return ``(exp(u) - 1 - u) / u^2`` by its series."""
    return _horner([1 / math.factorial(k + 2) for k in range(TERMS)], u)


def _horner(coefficients: list[float], x: Tensor) -> Tensor:
    total = torch.full_like(x, coefficients[-1])
    for c in reversed(coefficients[:-1]):
        total = total * x + c
    return total


def _positive(x: Tensor) -> Tensor:
    """Return nan for what is not positive: one such eigenvalue, and the matrix has no function."""
    return torch.where(x > 0, x, torch.nan)


def _finite_at_zero(slope: Tensor, x: Tensor) -> Tensor:
    """Return 0 for what is infinite because eigenvalues are zero."""
    return torch.where((x == 0) & slope.isinf(), 0.0, slope)
