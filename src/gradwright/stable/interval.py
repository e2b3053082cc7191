"""The parts of the normal distribution between two bounds, each in a form that does not cancel.

The bounds are mirrored so that ``a <= b`` and the middle ``m`` is not negative; ``w = b - a``, ``h = w / 2``. The
density falls by ``E = exp(-m w)`` from the one to the other. Three forms:

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


class Parts(NamedTuple):
    """What derivatives are made of; ``u = mean - low``, ``v = high - mean``."""

    p: Tensor
    """The truncated density at the lower bound."""
    q: Tensor
    """The same at the upper bound."""
    pu: Tensor
    """``p u``, the derivative of the mean by the lower bound."""
    qv: Tensor
    """``q v``."""
    mixed: Tensor
    """``p q (v - u)``, the second derivative of the mean by both bounds."""
    bend_low: Tensor
    """``p (u ** 2 - variance)``, the derivative of ``p u`` along a shift of both bounds."""
    bend_high: Tensor
    """``q (variance - v ** 2)``, that of ``q v``."""


class _Mirrored(NamedTuple):
    a: Tensor
    b: Tensor
    w: Tensor
    m: Tensor
    flip: Tensor
    narrow: Tensor
    tail: Tensor


def log_mass(low: Tensor, high: Tensor) -> Tensor:
    """Return ``log(Phi(high) - Phi(low))``, of float32 or float64."""
    x = _mirrored(low, high)
    near = -0.5 * x.m.square() + torch.log(x.w / ROOT_2_PI * _narrow(x)[0])
    far = -0.5 * x.a.square() + torch.log(_tail(x)[0] / ROOT_2_PI)
    return _chosen(x, near, far, torch.log1p(-_outside(x)))


def mean(low: Tensor, high: Tensor) -> Tensor:
    """Return the mean."""
    x = _mirrored(low, high)
    total, first, _, h = _narrow(x)
    near = x.m * (1 - h.square() * first / total)
    mass, moment, _, _ = _tail(x)
    own = _chosen(x, near, x.a + moment / mass, _wide_mean(x))
    return torch.where(x.flip, -own, own)


def parts(low: Tensor, high: Tensor) -> Parts:
    """Return what the derivatives are made of."""
    x = _mirrored(low, high)
    p, q, pu, qv, mixed, bend_low, bend_high = (
        _chosen(x, near, far, wide) for near, far, wide in zip(_narrow_parts(x), _tail_parts(x), _wide_parts(x))
    )
    first = Parts(p, q, pu, qv, mixed, bend_low, bend_high)
    second = Parts(q, p, qv, pu, -mixed, -bend_high, -bend_low)
    return Parts(*(torch.where(x.flip, mirrored, own) for own, mirrored in zip(first, second)))


def _mirrored(low: Tensor, high: Tensor) -> _Mirrored:
    flip = low + high < 0
    a, b = torch.where(flip, -high, low), torch.where(flip, -low, high)
    w, m = b - a, 0.5 * a + 0.5 * b
    narrow = (w <= math.sqrt(2)) & (m * w <= 1)
    return _Mirrored(a, b, w, m, flip, narrow, (a > 0) & ~narrow)


def _chosen(x: _Mirrored, near: Tensor, far: Tensor, wide: Tensor) -> Tensor:
    return torch.where(x.narrow, near, torch.where(x.tail, far, wide))


# -------------------------------------------------------------------- narrow


def _narrow(x: _Mirrored) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return moments in units of ``h``: the total, minus the first by ``m h``, the second; and ``h``, 0 elsewhere."""
    h = torch.where(x.narrow, 0.5 * x.w, 0.0)
    c = torch.where(x.narrow, x.m, 0.0) * h
    total, first, second = (torch.zeros_like(h) for _ in range(3))
    for node, weight in NODES:
        t = c * node
        falling = weight * torch.exp(h.square() * (-0.5 * node * node))
        even = falling * torch.cosh(t)
        total += even
        second += node * node * even
        first += node * node * falling * torch.where(t == 0, 1.0, torch.sinh(t) / t)
    return total, first, second, h


def _narrow_parts(x: _Mirrored) -> Parts:
    total, first, second, h = _narrow(x)
    m = torch.where(x.narrow, x.m, 0.0)
    k = -m * h * first / total  # the mean, from the middle in units of h
    variance = second / total - k.square()
    level = torch.exp(-0.5 * h.square()) / (2 * total)
    p, q = level * torch.exp(m * h), level * torch.exp(-m * h)
    return Parts(
        p / h,
        q / h,
        p * (1 + k),
        q * (1 - k),
        p * q * (2 * m * first / total),
        p * h * ((1 + k).square() - variance),
        q * h * (variance - (1 - k).square()),
    )


# -------------------------------------------------------------------- in the tail


def _tail(x: _Mirrored) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return moments about ``a``: total, first, and ``p (2 first ** 2 - total second) / total ** 2``; and ``E``."""
    a = torch.where(x.tail, x.a, 1.0)
    near = x.tail & (x.m * x.w < VANISHED)
    b = torch.where(near, x.b, a)
    w = b - a
    falls = torch.where(near, _fall(a, b), 0.0)
    a0, a1, a2 = mills_derivative(a, 0), -mills_derivative(a, 1), mills_derivative(a, 2)
    b0, b1, b2 = mills_derivative(b, 0), -mills_derivative(b, 1), mills_derivative(b, 2)
    first = b1 + w * b0  # moments about a of what is beyond b
    second = b2 + w * (2 * b1 + w * b0)
    once = a0 * second + b0 * a2 - 4 * a1 * first
    twice = 2 * first.square() - b0 * second
    total = a0 - falls * b0
    change = torch.where(near, falls * (once + falls * twice) / a0**3, 0.0)
    bend = _hazard_bend(a, a0, a1, a2) + change
    return total, a1 - falls * first, bend * (a0 / total) ** 3, falls


def _tail_parts(x: _Mirrored) -> Parts:
    total, first, bend, falls = _tail(x)
    p, q, u = 1 / total, falls / total, first / total
    w = torch.where(falls > 0, x.w, 0.0)
    v = w - u
    variance = u.square() - total * bend
    return Parts(p, q, p * u, q * v, p * q * (v - u), bend, q * (variance - v.square()))


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


def _wide_mean(x: _Mirrored) -> Tensor:
    p = density_value(x.a) / (1 - _outside(x))
    return torch.where(p > 0, p * -torch.expm1(-x.m * x.w), 0.0)


def _wide_parts(x: _Mirrored) -> Parts:
    mass = 1 - _outside(x)
    p, q, mu = density_value(x.a) / mass, density_value(x.b) / mass, _wide_mean(x)
    a, b = torch.where(p > 0, x.a, 0.0), torch.where(q > 0, x.b, 0.0)  # where infinite ones do not matter
    u, v = mu - a, b - mu
    variance = 1 + a * p - b * q - mu.square()
    return Parts(p, q, p * u, q * v, p * q * (v - u), p * (u.square() - variance), q * (variance - v.square()))
