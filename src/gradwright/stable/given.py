"""Divided differences of a function that somebody gives, by a formula of theirs or by the derivative alone.

Where only the function and its derivative are known, ``f[x, y]`` is found twice: as the quotient of differences, whose
rounding error grows as the numbers come close, and as the mean of the derivative between them (Gauss-Legendre), whose
error vanishes there. Each pair takes the one whose estimated error is smaller.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import torch
from torch import Tensor

from gradwright.stable.hermitian import Spectrum

Elementwise: TypeAlias = Callable[[Tensor], Tensor]
Pairwise: TypeAlias = Callable[[Tensor, Tensor], Tensor]

FINE = (
    (0.009219682876640375, 0.023587668193255914),
    (0.04794137181476257, 0.05346966299765921),
    (0.11504866290284765, 0.08003916427167311),
    (0.2063410228566913, 0.10158371336153296),
    (0.3160842505009099, 0.1167462682691774),
    (0.43738329574426554, 0.12457352290670139),
    (0.5626167042557345, 0.12457352290670139),
    (0.6839157494990901, 0.1167462682691774),
    (0.7936589771433087, 0.10158371336153296),
    (0.8849513370971523, 0.08003916427167311),
    (0.9520586281852375, 0.05346966299765921),
    (0.9907803171233597, 0.023587668193255914),
)
COARSE = (
    (0.019855071751231884, 0.05061426814518813),
    (0.10166676129318664, 0.11119051722668724),
    (0.2372337950418355, 0.15685332293894363),
    (0.4082826787521751, 0.181341891689181),
    (0.591717321247825, 0.181341891689181),
    (0.7627662049581645, 0.15685332293894363),
    (0.8983332387068134, 0.11119051722668724),
    (0.9801449282487681, 0.05061426814518813),
)
"""Nodes and weights of Gauss and Legendre on the interval from 0 to 1; two rules, whose difference is an estimate."""


class Given(Spectrum):
    """A function with a formula for its divided difference."""

    def __init__(self, f: Elementwise, difference: Pairwise) -> None:
        self.f = f
        self.difference = difference

    def value(self, x: Tensor) -> Tensor:
        return self.f(x)

    def slope(self, x: Tensor, y: Tensor) -> Tensor:
        return self.difference(*_pairs(x, y))

    def bend(self, x: Tensor, y: Tensor) -> Tensor:
        x, y = _pairs(x, y)
        out, pull = torch.func.vjp(self.difference, x, y)[:2]
        along_x, along_y = pull(torch.ones_like(out))
        # Where both are equal, a formula may branch to the derivative, and then only the sum of the two is right.
        return torch.where(x == y, (along_x + along_y) / 2, along_x)


class Derived(Spectrum):
    """A function with a formula for its derivative, or none, and then PyTorch's."""

    def __init__(self, f: Elementwise, derivative: Elementwise | None) -> None:
        self.f = f
        self.derivative = derivative or _rate(f)

    def value(self, x: Tensor) -> Tensor:
        return self.f(x)

    def slope(self, x: Tensor, y: Tensor) -> Tensor:
        return self._slope(*_pairs(x, y))[0]

    def _slope(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Return the divided difference and an estimate of its error."""
        fine, coarse = (_mean_between(self.derivative, x, y, rule, weighed=False) for rule in (FINE, COARSE))
        apart = torch.where(x == y, 1.0, y - x)
        low, high = self.f(x), self.f(y)
        return _better(fine, coarse, (high - low) / apart, _rounding(low, high) / apart.abs(), x == y)

    def bend(self, x: Tensor, y: Tensor) -> Tensor:
        x, y = _pairs(x, y)
        curve = _rate(self.derivative)
        fine, coarse = (_mean_between(curve, x, y, rule, weighed=True) for rule in (FINE, COARSE))
        apart = torch.where(x == y, 1.0, y - x)
        tangent = self.derivative(x)
        slope, off = self._slope(x, y)
        return _better(
            fine, coarse, (slope - tangent) / apart, (off + _rounding(slope, tangent)) / apart.abs(), x == y
        )[0]


def _pairs(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    x, y = torch.broadcast_tensors(x, y)
    return x.contiguous(), y.contiguous()


def _rate(f: Elementwise) -> Elementwise:
    """Return the derivative of an elementwise function, as PyTorch has it."""

    def derivative(x: Tensor) -> Tensor:
        out, pull = torch.func.vjp(f, x)[:2]
        rate: Tensor = pull(torch.ones_like(out))[0]
        return rate

    return derivative


def _mean_between(f: Elementwise, x: Tensor, y: Tensor, rule: Sequence[tuple[float, float]], weighed: bool) -> Tensor:
    """Return the mean of a function between two numbers, with weights that fall from 1 to 0 where ``weighed``."""
    shape = (-1, *[1] * x.dim())
    nodes = x.new_tensor([node for node, _ in rule]).reshape(shape)
    weights = x.new_tensor([weight for _, weight in rule]).reshape(shape)
    values = f(x + nodes * (y - x)) * weights
    return (values * (1 - nodes) if weighed else values).sum(0)


def _rounding(a: Tensor, b: Tensor) -> Tensor:
    return torch.finfo(a.dtype).eps * (a.abs() + b.abs())


def _better(fine: Tensor, coarse: Tensor, direct: Tensor, off: Tensor, equal: Tensor) -> tuple[Tensor, Tensor]:
    """Return that of two results which has the smaller error, and the error; nan is no result."""
    error = (fine - coarse).abs() + torch.finfo(fine.dtype).eps * fine.abs()
    mean = equal | (error <= off) | direct.isnan()
    return torch.where(mean, fine, direct), torch.where(mean, error, off)
