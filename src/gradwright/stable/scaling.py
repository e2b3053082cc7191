"""Powers of two that bring numbers into the middle of the range of their dtype.

A product with a power of two is exact, so that squares and sums of what is scaled neither overflow nor underflow, and
nothing is lost. The scale depends on the numbers, but a function that is scaled back does not depend on the scale:
derivatives take it as a constant.
"""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from gradwright.stable.seen import seen_within

ORDINARY = (2.0**-8, 2.0**8)
"""Sizes whose eighth powers, and their reciprocals, are in the range of float32."""


def together(*tensors: Tensor) -> list[Tensor]:
    """Return tensors in the dtype in which functions of them are computed: their common one, at least float32."""
    dtype = functools.reduce(torch.promote_types, (x.dtype for x in tensors))
    return [x.to(dtype if dtype in (torch.float32, torch.float64) else torch.float32) for x in tensors]


def scale_for(size: Tensor) -> Tensor:
    """Return the reciprocal of the power of two just below a size, where that is not near the ends of the range.

    Sizes beyond 0.8 of the exponents of the dtype (a sum that overflowed, a square that vanished) get the scale of
    that bound: the numbers themselves, and their squares, are then in the range nevertheless.

    Arguments:
        size: not negative, float32 or float64; nan gets some power of two.

    Returns:
        a tensor like ``size``.

    Example:
        >>> scale_for(torch.tensor([1.0, 3.0, 1000.0]))
        tensor([1.0000, 0.5000, 0.0020])
    """
    wide = size.dtype == torch.float64
    bound, integers, fraction = (800, torch.int64, 52) if wide else (100, torch.int32, 23)
    exponents = size.clamp(2.0**-bound, 2.0**bound).view(integers) >> fraction  # biased: that of 1 is the middle
    middle = 1023 if wide else 127
    return ((2 * middle - exponents).clamp(middle - bound, middle + bound) << fraction).view(size.dtype)


def unit_sized(x: Tensor, dims: int = 1) -> Tensor:
    """Return vectors times powers of two that bring their largest elements near 1, for functions of directions alone.

    Such a function has the same value there, and derivatives that are the power of two times larger: the scale is a
    constant. What is seen to be of about that size already is returned as it is.

    Arguments:
        x: float32 or float64.
        dims: how many of the last dimensions make up a vector.
    """
    size = x.detach().abs().amax(tuple(range(-dims, 0)), keepdim=True)
    return x if seen_within(size, *ORDINARY) else x * scale_for(size)


def over(x: Tensor, size: Tensor) -> Tensor:
    """Return ``x / size``; zero where the size is zero, and so are its derivatives there.

    Arguments:
        x: any tensor.
        size: not negative, of numbers that were scaled: never near the smallest of the dtype.
    """
    return x * size.sign() / size.clamp_min(torch.finfo(size.dtype).smallest_normal)
