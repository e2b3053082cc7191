"""Numbers of any exponent, and scans over them: for products whose intermediate results leave the range of the dtype.

A number is kept as a mantissa near 1 and an exponent of its own (:class:`Scaled`). The product of all numbers but one
is that of those before it and that of those after it; both come from a scan that doubles its reach in each step
(Hillis and Steele 1986). With ``x`` replaced by ``x + t e``, where ``e ** 2 = 0``, the same scan gives derivatives
along ``t`` (:class:`Dual`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from gradwright import torch_compat
from gradwright.torch_compat import kernels


class Scaled(NamedTuple):
    """Numbers ``mantissa * 2 ** exponent``, with mantissas from 1/2 to 1, or 0."""

    mantissa: Tensor
    exponent: Tensor

    def times(self, other: Scaled) -> Scaled:
        """Return the product."""
        found = scaled(self.mantissa * other.mantissa)
        return Scaled(found.mantissa, found.exponent + self.exponent + other.exponent)

    def plus(self, other: Scaled) -> Scaled:
        """Return the sum."""
        first, second = (torch.where(x.mantissa == 0, _OF_ZERO, x.exponent) for x in (self, other))
        top = torch.maximum(first, second)
        found = scaled(times_power(self.mantissa, first - top) + times_power(other.mantissa, second - top))
        return Scaled(found.mantissa, found.exponent + top)

    def value(self) -> Tensor:
        """Return the numbers in their dtype: infinite or zero where they are beyond its range."""
        return times_power(self.mantissa, self.exponent)


class Dual(NamedTuple):
    """Numbers with their derivative along a direction; those of dual numbers have second derivatives."""

    number: Any
    slope: Any

    def times(self, other: Dual) -> Dual:
        """Return the product."""
        slope = self.number.times(other.slope).plus(self.slope.times(other.number))
        return Dual(self.number.times(other.number), slope)

    def plus(self, other: Dual) -> Dual:
        """Return the sum."""
        return Dual(self.number.plus(other.number), self.slope.plus(other.slope))


N = TypeVar("N", Scaled, Dual)
_OF_ZERO = -(2**28)
"""The exponent of zero in a sum: below all others."""


def scaled(x: Tensor) -> Scaled:
    """Return numbers as mantissa and exponent."""
    return Scaled(*kernels.frexp(x))


def times_power(x: Tensor, exponent: Tensor) -> Tensor:
    """Return ``x * 2 ** exponent`` for any exponent, rounded once, for ``x`` at most 1 or not finite."""
    wide = x.dtype == torch.float64
    largest, integers, fraction = (1022, torch.int64, 52) if wide else (126, torch.int32, 23)
    left = exponent.clamp(-3 * largest, 3 * largest).to(integers)
    for parts in (3, 2, 1):  # no part is beyond the range of exponents, and only the last one can round
        part = torch.div(left, parts, rounding_mode="floor")
        left = left - part
        if torch.compiler.is_compiling() or not torch_compat.may_be_batched(left):
            x = x * ((part + (largest + 1)) << fraction).view(x.dtype)
        else:  # the vmap behind `is_grads_batched=True` cannot view bits; eager exp2 is exact for integers
            x = x * torch.exp2(part.to(x.dtype))
    return x


class Affine(NamedTuple):
    """Functions ``r -> offset + factor * r``."""

    factor: Any
    offset: Any

    def after(self, first: Affine) -> Affine:
        """Return the function that applies ``first`` and then this one."""
        return Affine(self.factor.times(first.factor), self.offset.plus(self.factor.times(first.offset)))


# -------------------------------------------------------------------- along the last dimension


def mapped(change: Callable[..., Tensor], *items: Any) -> Any:
    """Return what ``change`` makes of each tensor in the items."""
    if isinstance(items[0], Tensor):
        return change(*items)
    return type(items[0])(*(mapped(change, *parts) for parts in zip(*items)))


def _reversed(x: N) -> N:
    return mapped(lambda t: t.flip(-1), x)  # type: ignore[no-any-return]


def one(x: N) -> N:
    """Return the number 1, in the form of the first of the numbers."""
    if isinstance(x, Dual):
        return Dual(one(x.number), mapped(lambda t: torch.zeros_like(t[..., :1]), x.slope))
    return scaled(torch.ones_like(x.mantissa[..., :1]))


def joined(*items: N) -> N:
    return mapped(lambda *parts: torch.cat(parts, -1), *items)  # type: ignore[no-any-return]


def running(x: Any, combine: Callable[[Any, Any], Any], size: int) -> Any:
    """Combine each item with all before it; ``combine`` takes what is earlier and what is later."""
    reach = 1
    while reach < size:
        early, late = (mapped(lambda t, part=part: t[..., part], x) for part in (slice(-reach), slice(reach, None)))
        x = joined(mapped(lambda t, reach=reach: t[..., :reach], x), combine(early, late))
        reach *= 2
    return x


def _before(x: N, size: int) -> N:
    """Return the product of all numbers before each."""
    products: N = running(x, lambda early, late: early.times(late), size)
    return joined(one(x), mapped(lambda t: t[..., :-1], products))  # type: ignore[no-any-return]


def others(x: N, size: int) -> N:
    """Return the product of all numbers but each."""
    return _before(x, size).times(_reversed(_before(_reversed(x), size)))


def pulled(g: N, x: N, size: int) -> N:
    """Return the gradient of ``sum(g * cumprod(x))``.

    It is the product before each number times ``r[k] = g[k] + x[k + 1] r[k + 1]``.
    """
    following = joined(mapped(lambda t: t[..., 1:], x), one(x))
    steps: Any = Affine(*map(_reversed, (following, g)))
    rest = running(steps, lambda early, late: late.after(early), size).offset
    return _before(x, size).times(_reversed(rest))
