"""The parts of the normal distribution between two bounds, each in a form that does not cancel.

The bounds are mirrored so that ``a <= b`` and the middle ``m`` is not negative; ``w = b - a``, ``h = w / 2``. The
density falls by ``E = exp(-m w)`` from the one to the other, ``p`` and ``q`` are the truncated densities there, ``u``
and ``v`` the distances of the mean from them. Three forms:

narrow (``m w <= 1``, ``w ** 2 <= 2``): moments about the middle, ``integral of t**k exp(-m t - t**2 / 2)`` over
    ``-h < t < h``, by Gauss and Legendre with ten nodes, whose error is 1e-18 there (DLMF 3.5.4); everything in
    units of ``h``, so that nothing is divided by a width of zero.
in the tail (``a > 0``): moments about ``a`` from Mills' ratio ``M`` and its derivatives,
    ``D = M(a) - E M(b)``, ``D p = 1``, ``D q = E``.
wide: the mass is one minus both tails.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from gradwright.stable.normal import density_value, lower_tail
from gradwright.stable.scaled_erfc import ROOT_2_PI, mills_derivative
from gradwright.torch_compat import kernels

NODES = (
    (0.14887433898163122, 0.29552422471475287),
    (0.4333953941292472, 0.26926671930999635),
    (0.6794095682990244, 0.21908636251598204),
    (0.8650633666889845, 0.1494513491505806),
    (0.9739065285171717, 0.06667134430868814),
)
"""The positive nodes on (-1, 1) and twice the halves of their weights, which sum to one."""
VANISHED = 800.0
"""``exp(-x)`` is zero in every dtype from here on."""
SERIES_FROM = {torch.float64: 11.0, torch.float32: 7.0}
"""From here on the asymptotic series of the hazard has more digits of its second derivative than Mills' ratio."""


def _hazard_coefficients(count: int) -> list[int]:
    """Return ``d`` of ``phi(x) / Phi(-x) = sum(d[n] x ** (1 - 2 n))``, from ``y' = y (y - x)``."""
    d = [1, 1]
    while len(d) < count:
        n = len(d) - 1
        d.append((1 - 2 * n) * d[n] - sum(d[i] * d[n + 1 - i] for i in range(1, n + 1)))
    return d


BENDS = tuple(float(d * 2 * n * (2 * n - 1)) for n, d in enumerate(_hazard_coefficients(20)))
"""The coefficients of the second derivative of the hazard, of ``x ** (-1 - 2 n)``."""


class _Mirrored(NamedTuple):
    a: Tensor
    b: Tensor
    w: Tensor
    m: Tensor
    flip: Tensor
    narrow: Tensor
    tail: Tensor


class _Tail(NamedTuple):
    a: Tensor
    b: Tensor
    near: Tensor
    """Whether the density at ``b`` is not negligible."""
    falls: Tensor
    """``E``."""
    a0: Tensor
    """Mills' ratio at ``a``."""
    b0: Tensor
    total: Tensor
    """``D``."""


def log_mass(low: Tensor, high: Tensor) -> Tensor:
    """Return ``log(Phi(high) - Phi(low))``, of float32 or float64."""
    x = _mirrored(low, high)
    near = -0.5 * x.m.square() + torch.log(x.w / ROOT_2_PI * _narrow_total(x))
    far = -0.5 * x.a.square() + torch.log(_tail(x).total / ROOT_2_PI)
    return _chosen(x, near, far, torch.log1p(-_outside(x)))


def edges(low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
    """Return ``p`` and ``q``, the truncated densities at the bounds."""
    x = _mirrored(low, high)
    p, q = _narrow_levels(x, _narrow_total(x))
    tail = _tail(x)
    mass = 1 - _outside(x)
    p = _chosen(x, p / x.w, 1 / tail.total, density_value(x.a) / mass)
    q = _chosen(x, q / x.w, tail.falls / tail.total, density_value(x.b) / mass)
    return _mirrored_back(x, p, q)


def mean(low: Tensor, high: Tensor) -> Tensor:
    """Return the mean."""
    x = _mirrored(low, high)
    h = 0.5 * x.w
    near = x.m * (1 - h.square() * (_narrow_second(x, odd=True) / _narrow_total(x)))
    own = _chosen(x, near, x.a + _tail_mean(_tail(x)), _wide_mean(x, density_value(x.a) / (1 - _outside(x))))
    return torch.where(x.flip, -own, own)


def shares(low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
    """Return ``p u`` and ``q v``, with ``u = mean - low``, ``v = high - mean``: how far the mean follows the bounds."""
    x = _mirrored(low, high)
    first, second, *_ = _narrow_shares(x)
    p, q, u, v = _tail_parts(_tail(x))
    wide_p, wide_q, wide_u, wide_v, _ = _wide_parts(x)
    return _mirrored_back(x, _chosen(x, first, p * u, wide_p * wide_u), _chosen(x, second, q * v, wide_q * wide_v))


def bends(low: Tensor, high: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the derivatives of ``p u`` and ``q v`` along a shift of both bounds, and the second mixed one of the mean.

    They are ``p (u ** 2 - variance)``, ``q (variance - v ** 2)`` and ``p q (v - u)``.
    """
    x = _mirrored(low, high)
    t = _tail(x)
    p, q, u, v = _tail_parts(t)
    bend = _tail_bend(t)
    far = bend, q * (u.square() - t.total * bend - v.square()), p * q * (v - u)
    p, q, u, v, variance = _wide_parts(x)
    wide = p * (u.square() - variance), q * (variance - v.square()), p * q * (v - u)
    _, _, *near = _narrow_shares(x)
    first, second, mixed = (_chosen(x, *forms) for forms in zip(near, far, wide))
    first, second = torch.where(x.flip, -second, first), torch.where(x.flip, -first, second)
    return first, second, torch.where(x.flip, -mixed, mixed)


def _mirrored(low: Tensor, high: Tensor) -> _Mirrored:
    flip = low + high < 0
    a, b = torch.where(flip, -high, low), torch.where(flip, -low, high)
    w, m = b - a, 0.5 * a + 0.5 * b
    narrow = (w <= math.sqrt(2)) & (m * w <= 1)
    return _Mirrored(a, b, w, m, flip, narrow, (a > 0) & ~narrow)


def _chosen(x: _Mirrored, near: Tensor, far: Tensor, wide: Tensor) -> Tensor:
    return torch.where(x.narrow, near, torch.where(x.tail, far, wide))


def _mirrored_back(x: _Mirrored, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
    return torch.where(x.flip, high, low), torch.where(x.flip, low, high)


# -------------------------------------------------------------------- narrow


def _halves(x: _Mirrored) -> tuple[Tensor, Tensor]:
    """Return ``h`` and ``m h``; zero in other intervals."""
    h = torch.where(x.narrow, 0.5 * x.w, 0.0)
    return h, torch.where(x.narrow, x.m, 0.0) * h


def _narrow_total(x: _Mirrored) -> Tensor:
    """Return the integral of ``exp(-m t - t ** 2 / 2)``, divided by the width."""
    h, c = _halves(x)
    square = h.square()
    total = torch.zeros_like(h)
    for node, weight in NODES:
        total += torch.exp(square * (-0.5 * node * node)).mul_(torch.cosh(c * node)).mul_(weight)
    return total


def _narrow_second(x: _Mirrored, odd: bool = False) -> Tensor:
    """Return the integral of ``(t / h) ** 2`` times the same, divided by the width; or that of ``-t / (m h ** 2)``."""
    h, c = _halves(x)
    square = h.square()
    total = torch.zeros_like(h)
    for node, weight in NODES:
        t = c * node
        part = torch.where(t == 0, 1.0, torch.sinh(t) / t) if odd else torch.cosh(t)
        total += torch.exp(square * (-0.5 * node * node)).mul_(part).mul_(weight * node * node)
    return total


def _narrow_levels(x: _Mirrored, total: Tensor) -> tuple[Tensor, Tensor]:
    """Return ``p w`` and ``q w``."""
    h, c = _halves(x)
    level = torch.exp(-0.5 * h.square()) / total
    return level * torch.exp(c), level * torch.exp(-c)


def _narrow_shares(x: _Mirrored) -> tuple[Tensor, ...]:
    """Return ``p u``, ``q v`` and the three of :func:`bends`, without a division by the width."""
    h, c = _halves(x)
    m = torch.where(x.narrow, x.m, 0.0)
    total = _narrow_total(x)
    odd = _narrow_second(x, odd=True) / total
    k = -c * odd  # the mean, from the middle in units of h
    variance = _narrow_second(x) / total - k.square()
    p, q = (0.5 * level for level in _narrow_levels(x, total))
    bent = p * h * ((1 + k).square() - variance), q * h * (variance - (1 - k).square())
    return p * (1 + k), q * (1 - k), *bent, p * q * (2 * m * odd)


# -------------------------------------------------------------------- in the tail


def _tail(x: _Mirrored) -> _Tail:
    a = torch.where(x.tail, x.a, 1.0)
    near = x.tail & (x.m * x.w < VANISHED)
    b = torch.where(near, x.b, a)
    falls = torch.where(near, _fall(a, b), 0.0)
    a0, b0 = mills_derivative(a, 0), mills_derivative(b, 0)
    return _Tail(a, b, near, falls, a0, b0, a0 - falls * b0)


def _tail_mean(t: _Tail) -> Tensor:
    """Return the mean, from ``a`` on."""
    beyond = -mills_derivative(t.b, 1) + (t.b - t.a) * t.b0
    return (-mills_derivative(t.a, 1) - t.falls * beyond) / t.total


def _tail_bend(t: _Tail) -> Tensor:
    """Return ``p (u ** 2 - variance)``: the second derivative of ``1 / M`` and what is less beyond ``b``."""
    w = t.b - t.a
    a1, a2 = -mills_derivative(t.a, 1), mills_derivative(t.a, 2)
    b1, b2 = -mills_derivative(t.b, 1), mills_derivative(t.b, 2)
    first = b1 + w * t.b0  # moments about a of what is beyond b
    second = b2 + w * (2 * b1 + w * t.b0)
    once = t.a0 * second + t.b0 * a2 - 4 * a1 * first
    twice = 2 * first.square() - t.b0 * second
    change = torch.where(t.near, t.falls * (once + t.falls * twice) / t.a0**3, 0.0)
    return (_hazard_bend(t.a, t.a0, a1, a2) + change) * (t.a0 / t.total) ** 3


def _tail_parts(t: _Tail) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return ``p``, ``q``, ``u`` and ``v``."""
    u = _tail_mean(t)
    return 1 / t.total, t.falls / t.total, u, t.b - t.a - u


def _fall(a: Tensor, b: Tensor) -> Tensor:
    """Return ``exp((a ** 2 - b ** 2) / 2)`` for ``0 < a <= b``, where the exponent is rounded nowhere it matters.

    Sum and difference are exact with what they lost, and so is the product of their upper halves (Dekker 1971).
    """
    total, difference = b + a, b - a
    lost_total, lost_difference = a - (total - b), (b - difference) - a
    upper, upper_difference = _upper_half(total), _upper_half(difference)
    rest = upper_difference * (total - upper) + (difference - upper_difference) * total
    rest = rest + lost_difference * total + lost_total * difference
    return torch.exp(-0.5 * upper_difference * upper) * torch.exp(-0.5 * rest)


def _upper_half(x: Tensor) -> Tensor:
    scaled = x * (2**27 + 1 if x.dtype == torch.float64 else 2**12 + 1)
    return scaled - (scaled - x)


def _hazard_bend(a: Tensor, a0: Tensor, a1: Tensor, a2: Tensor) -> Tensor:
    """Return ``(1 / M)''`` from Mills' ratio and its derivatives, and from its series where that cancels."""
    start = SERIES_FROM[a.dtype]
    inverse = 1 / a.clamp(min=start)
    square = inverse.square()
    total = torch.zeros_like(a)
    for number in reversed(BENDS):
        total = total * square + number
    return torch.where(a < start, (2 * a1.square() - a0 * a2) / a0**3, total * inverse)


# -------------------------------------------------------------------- wide


def _outside(x: _Mirrored) -> Tensor:
    return torch.where(x.narrow | x.tail, 0.5, lower_tail(x.a) + lower_tail(x.b))


def _wide_mean(x: _Mirrored, p: Tensor) -> Tensor:
    return torch.where(p > 0, p * -kernels.expm1(-x.m * x.w), 0.0)


def _wide_parts(x: _Mirrored) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return ``p``, ``q``, ``u``, ``v`` and the variance."""
    mass = 1 - _outside(x)
    p, q = density_value(x.a) / mass, density_value(x.b) / mass
    mu = _wide_mean(x, p)
    a, b = torch.where(p > 0, x.a, 0.0), torch.where(q > 0, x.b, 0.0)  # where infinite ones do not matter
    return p, q, mu - a, b - mu, 1 + a * p - b * q - mu.square()
