"""Variance and standard deviation: at constants, near them, and over the whole range of a dtype.

PyTorch's gradient of ``std`` divides by its value, and numbers are squared as they are, which overflows or vanishes
beyond the square root of the range. Here ``std(x)`` is the norm of the scaled deviations from the mean, its gradient
their direction (:func:`~gradwright.stable.norms.direction`), and zero at constants. The deviations are computed with a
correction of the mean, so that they are right for numbers that hardly differ.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from gradwright.authoring.decorator import custom_gradient
from gradwright.authoring.exact import Point, exact, ulps
from gradwright.stable.arguments import require_dim, require_floating, require_number, widened
from gradwright.stable.norms import Dims, direction, row_vectors, squeezed, whole
from gradwright.stable.scaling import scale_for


def _centred(x: Tensor, dim: Dims) -> tuple[Tensor, Tensor]:
    """Return the scaled deviations from the mean, and the scale.

    The mean of what is left is subtracted once more, which removes the rounding error of the first one.
    """
    scale = scale_for(torch.linalg.vector_norm(x, 2, dim, True))
    out = x * scale
    out.sub_(out.mean(dim, True))
    return out.sub_(out.mean(dim, True)), scale


@custom_gradient
def _scaled_deviations(x: Tensor, dim: Dims) -> tuple[Tensor, Tensor]:
    """Return the scaled deviations from the mean, and the scale, which is taken as a constant."""
    return _centred(x, dim)


@_scaled_deviations.vjp
def _scaled_deviations_vjp(g: Sequence[Tensor], dim: Dims, out: Sequence[Tensor]) -> Tensor:
    return (g[0] - g[0].mean(dim, True)) * out[1]


@custom_gradient
def _deviations(x: Tensor, dim: Dims) -> Tensor:
    """Return the deviations from the mean."""
    out, scale = _centred(x, dim)
    return out.div_(scale)


@_deviations.vjp
def _deviations_vjp(g: Tensor, dim: Dims) -> Tensor:
    return g - g.mean(dim, True)


@custom_gradient
def _variance(x: Tensor, divisor: float, dim: Dims) -> Tensor:
    """Return the variance, with all dimensions."""
    out, scale = _centred(x, dim)
    return out.mul_(out).sum(dim, True).div_(divisor).div_(scale).div_(scale)


@_variance.vjp
def _variance_vjp(g: Tensor, x: Tensor, divisor: float, dim: Dims) -> Tensor:
    return _deviations(x, dim) * (g * (2 / divisor))


@custom_gradient
def _deviation(x: Tensor, divisor: float, dim: Dims) -> Tensor:
    """Return the standard deviation, with all dimensions."""
    out, scale = _centred(x, dim)
    length: Tensor = torch.linalg.vector_norm(out, 2, dim, True)
    return length.div_(math.sqrt(divisor)).div_(scale)


@_deviation.vjp
def _deviation_vjp(g: Tensor, x: Tensor, divisor: float, dim: Dims) -> Tensor:
    return direction(_scaled_deviations(x, dim)[0], dim)[0] * (g / math.sqrt(divisor))


def _count(shape: Sequence[int], dim: Dims) -> int:
    """Return how many numbers are in the dimensions of a vector."""
    dims = range(len(shape)) if dim is None else (dim,) if isinstance(dim, int) else dim
    return math.prod([shape[k] for k in dims]) if shape else 1  # a list: torch.compile takes no generator


def _freedom(x: Tensor, dim: Dims, correction: float) -> float:
    """Return by what the sum of squares is divided; nan where there are too few numbers."""
    count = _count(x.shape, dim)
    return count - correction if count > correction else math.nan


def _reference(mp: Any, x: Any, dim: Dims, correction: float, keepdim: bool) -> Any:
    """Return the variance of numbers of any precision."""
    count = _count(x.shape, dim)
    off = x - x.sum(axis=dim, keepdims=True) / count
    return (off * off).sum(axis=dim, keepdims=keepdim) / (count - mp.mpf(correction))


def _examples(dtype: torch.dtype, second_at_constants: Mapping[str, Any]) -> list[Point]:
    x = torch.cat([row_vectors(dtype), row_vectors(dtype).flip(0) ** 2 + 0.25], 1)
    found = [Point((x, -1), note="rows"), Point((x,), {"correction": 0}, "all at once, correction 0")]
    found.append(Point((x.t(), 0), {"correction": 0.5, "keepdim": True}, "columns, kept"))
    close = torch.full((4,), 3.0, dtype=dtype)
    close[1] = torch.nextafter(close[1], torch.tensor(4.0, dtype=dtype))
    close[2] = torch.nextafter(close[2], torch.tensor(0.0, dtype=dtype))
    found.append(Point((close,), note="hardly different", extreme=True))
    constant = torch.full((3,), 0.3, dtype=dtype)
    found.append(Point((constant,), note="constant", first={"x": 0.0}, second=second_at_constants))
    info = torch.finfo(dtype)
    rows = [[3.0, 1.0, -2.0], [1.0, 0.25, 0.75]]
    for size, row in zip((info.smallest_normal * info.eps * 4, info.max / 4), rows):
        found.append(Point((torch.tensor(row, dtype=torch.float64).mul(size).to(dtype),), note="ends", extreme=True))
    return found


@exact(
    forward="out = sum((x - mean(x)) ** 2) / (n - correction)",
    gradient={"x": "2 g (x - mean(x)) / (n - correction)"},
    reference=lambda mp, x, dim=None, *, correction=1, keepdim=False: _reference(mp, x, dim, correction, keepdim),
    domain="finite numbers whose differences are finite; nan where there are not more than the correction",
    bars=ulps(4),
    examples=lambda dtype: _examples(dtype, {}),
    elementwise=False,
    measure="tensor",
    replaces=torch.var,
    ordinary=lambda: (torch.randn(1000, 1000), -1),
    paper="the two-pass algorithm with a correction; Chan, Golub and LeVeque 1983",
)
def var(x: Tensor, dim: Dims = None, *, correction: float = 1, keepdim: bool = False) -> Tensor:
    """Return the variance, with a gradient that is right for numbers that hardly differ, and of any size.

    Arguments:
        x: floating point, of any shape.
        dim: the dimension or dimensions over which it is taken; None for all.
        correction: the sum of squares is divided by the number of elements minus this.
        keepdim: whether the dimensions stay, with one element each.

    Returns:
        the variances.

    Raises:
        ArgumentError: ``x`` is of integers or complex.

    Example:
        >>> import torch, gradwright as gw
        >>> gw.stable.var(torch.tensor([1.0, 2.0, 4.0]))
        tensor(2.3333)
    """
    require_floating("var", x=x)
    require_number("var", correction=correction)
    require_dim("var", dim, several=True, none=True)
    dim = whole(dim)
    out = _variance(widened(x), _freedom(x, dim, correction), dim)
    return (out if keepdim else squeezed(out, dim)).to(x.dtype)


def _std_reference(mp: Any, x: Any, dim: Dims = None, *, correction: float = 1, keepdim: bool = False) -> Any:
    return _reference(mp, x, dim, correction, keepdim) ** (1 / mp.mpf(2))


@exact(
    forward="out = sqrt(sum((x - mean(x)) ** 2) / (n - correction))",
    gradient={"x": "g (x - mean(x)) / ((n - correction) out); 0 at constants"},
    reference=_std_reference,
    domain="finite numbers whose differences are finite; nan where there are not more than the correction",
    bars=ulps(4),
    examples=lambda dtype: _examples(dtype, {"x": 0.0}),
    elementwise=False,
    measure="tensor",
    replaces=torch.std,
    ordinary=lambda: (torch.randn(1000, 1000), -1),
    paper="the norm of the deviations; pytorch#4320",
)
def std(x: Tensor, dim: Dims = None, *, correction: float = 1, keepdim: bool = False) -> Tensor:
    """Return the standard deviation, whose derivatives are right at any size, and zero at constants.

    Arguments:
        x: floating point, of any shape.
        dim: the dimension or dimensions over which it is taken; None for all.
        correction: the sum of squares is divided by the number of elements minus this.
        keepdim: whether the dimensions stay, with one element each.

    Returns:
        the standard deviations.

    Raises:
        ArgumentError: ``x`` is of integers or complex.

    Example:
        >>> import torch, gradwright as gw
        >>> x = torch.tensor([1e-30, 3e-30], requires_grad=True)
        >>> torch.autograd.grad(gw.stable.std(x), x)
        (tensor([-0.7071,  0.7071]),)
    """
    require_floating("std", x=x)
    require_number("std", correction=correction)
    require_dim("std", dim, several=True, none=True)
    dim = whole(dim)
    out = _deviation(widened(x), _freedom(x, dim, correction), dim)
    return (out if keepdim else squeezed(out, dim)).to(x.dtype)
