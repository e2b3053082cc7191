"""Norms and what is divided by them, right over the whole range of a dtype and at zero.

PyTorch's norms square numbers as they are, which overflows or vanishes beyond the square root of the range, and their
second derivative at zero is nan. Here numbers are scaled by a power of two first (:mod:`~gradwright.stable.scaling`;
Higham, Accuracy and Stability of Numerical Algorithms, 27.8), and what is divided by the norm of zero is zero, as
the subgradient of minimum norm says. No function adds an ``eps``, which makes short vectors wrong.

The norm is homogeneous: ``|x| = |a x| / a``. The rules use ``s = |a x|``, which is neither too large nor too small, and
take ``a`` as a constant. With ``u = x / |x|``, the derivatives are ``u`` and ``(I - u u') / |x|``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor

from gradwright.authoring.catalogue import Example, grid
from gradwright.authoring.decorator import custom_gradient
from gradwright.authoring.exact import Point, exact, ulps
from gradwright.errors import OptionError
from gradwright.stable.arguments import require_dim, require_floating, require_number, widened
from gradwright.stable.scaling import over, scale_for

Dims: TypeAlias = int | tuple[int, ...] | None
LARGEST_ORD = 500.0
"""Up to here powers of scaled numbers stay in the range of float64."""


def row_vectors(dtype: torch.dtype) -> Tensor:
    """Return two ordinary vectors of three numbers."""
    return grid(-2.0, 2.0, 6, dtype).reshape(2, 3)


def end_vectors(dtype: torch.dtype) -> list[Tensor]:
    """Return vectors of the smallest and the largest numbers of a dtype, and one whose numbers are of many sizes."""
    info = torch.finfo(dtype)
    small, normal, large = info.smallest_normal * info.eps, info.smallest_normal, info.max
    middle = 2.0 ** (math.frexp(large)[1] // 2 - 3)
    rows = [[-3 * small, small], [large, large], [4 * normal, -normal], [1 / middle, 1.0, -1.5, middle]]
    return [torch.tensor(row, dtype=dtype) for row in rows]


# -------------------------------------------------------------------- Euclidean vectors


@custom_gradient
def _euclidean(x: Tensor, dim: Dims) -> tuple[Tensor, Tensor, Tensor]:
    """Return the norm, that of the scaled numbers, and the scale, with all dimensions; the last two are for the rule.

    Arguments:
        x: float32 or float64.
        dim: the dimensions of a vector; None for all.
    """
    scale = scale_for(torch.linalg.vector_norm(x, 2, dim, True))
    scaled = torch.linalg.vector_norm(x * scale, 2, dim, True)
    return scaled / scale, scaled, scale


@_euclidean.vjp
def _euclidean_vjp(g: Sequence[Tensor], x: Tensor, dim: Dims, out: Sequence[Tensor]) -> Tensor:
    return _along(g[0], x, out[1], out[2], dim)


@custom_gradient
def _along(g: Tensor, x: Tensor, scaled: Tensor, scale: Tensor, dim: Dims) -> Tensor:
    """Return ``g x / |x|``; ``scaled`` and ``scale`` follow from ``x``, so that its derivative is the whole one."""
    return (x * scale) * over(g, scaled)  # not in place: under vmap, `g` may have a batch that `x` has not


@_along.vjp
def _along_vjp(h: Tensor, g: Tensor, x: Tensor, dim: Dims) -> dict[str, Tensor]:
    unit, scaled, scale = direction(x, dim)
    part = summed(h * unit, dim)
    return {"g": part, "x": g * over((h - unit * part) * scale, scaled)}


@custom_gradient
def direction(x: Tensor, dim: Dims) -> tuple[Tensor, Tensor, Tensor]:
    """Return ``x / |x|``, and the norm of the scaled numbers and the scale as they are in :func:`_euclidean`."""
    scale = scale_for(torch.linalg.vector_norm(x, 2, dim, True))
    unit = x * scale
    scaled = torch.linalg.vector_norm(unit, 2, dim, True)
    return unit.div_(scaled.clamp_min(torch.finfo(x.dtype).smallest_normal)), scaled, scale


@direction.vjp
def direction_vjp(g: Sequence[Tensor], dim: Dims, out: Sequence[Tensor]) -> Tensor:
    g_unit, g_scaled, _ = g
    unit, scaled, scale = out
    across = g_unit - unit * (summed(g_unit * unit, dim) - g_scaled * scaled)
    return over(across * scale, scaled)


def summed(x: Tensor, dim: Dims) -> Tensor:
    """Return the sum over the dimensions of a vector, which stay."""
    return x.sum(dim, True)


def whole(dim: Dims) -> Dims:
    """Return the dimensions of a vector, with None for all: PyTorch takes an empty tuple for that as well."""
    return None if isinstance(dim, (tuple, list)) and not dim else dim


def squeezed(x: Tensor, dim: Dims) -> Tensor:
    """Return a tensor without the dimensions of a vector, in which it has one element."""
    return x.reshape(()) if dim is None else x.squeeze(dim)


# -------------------------------------------------------------------- other powers


@custom_gradient
def _power_norm(x: Tensor, ord: float, dim: Dims) -> tuple[Tensor, Tensor, Tensor]:
    """Return the norm, the sum of the powers of the scaled numbers, and the scale, with all dimensions."""
    size = x.abs()
    scale = scale_for(_largest(size, dim))
    powers = summed((size * scale).pow_(ord), dim)
    return powers ** (1 / ord) / scale, powers, scale


@_power_norm.vjp
def _power_norm_vjp(g: Sequence[Tensor], x: Tensor, ord: float, dim: Dims, out: Sequence[Tensor]) -> Tensor:
    g_norm, g_powers, _ = g
    _, powers, scale = out
    root = powers.sign() * powers.clamp_min(1.0) ** (1 / ord - 1)  # the largest scaled number is 0, or at least 1
    factor = g_norm * root + g_powers * (ord * scale)
    return _signed_power(x * scale, ord - 1) * factor


@custom_gradient
def _signed_power(x: Tensor, exponent: float) -> Tensor:
    """Return ``sign(x) |x| ** exponent`` for a positive exponent."""
    return x.abs().pow_(exponent).mul_(x.sign())


@_signed_power.vjp
def _signed_power_vjp(g: Tensor, x: Tensor, exponent: float) -> Tensor:
    size = x.abs()
    if exponent < 1:  # infinitely steep at zero
        size = torch.where(x == 0, torch.inf, size)
    return g * (exponent * size ** (exponent - 1))


def _largest(size: Tensor, dim: Dims) -> Tensor:
    return size.amax(() if dim is None else dim, True)


# -------------------------------------------------------------------- norm


def _norm_reference(mp: Any, x: Any, ord: float = 2.0, dim: Dims = None, keepdim: bool = False) -> Any:
    size = abs(x)
    if ord == math.inf:
        return size.max(axis=dim, keepdims=keepdim)
    return (size**ord).sum(axis=dim, keepdims=keepdim) ** (1 / mp.mpf(ord))


def _norm_examples(dtype: torch.dtype) -> Sequence[Example]:
    x = row_vectors(dtype)
    zeros = torch.zeros(3, dtype=dtype)
    found = [Point((x,), {"dim": -1}, "rows")]
    found += [Point((x, 3.0, 0, True), note="ord 3 of columns, kept")]
    found += [Point((x, ord), note=f"ord {ord}") for ord in (1.5, 10.0)]
    found += [Point((x, ord), note=f"ord {ord}", second={"x": 0.0}) for ord in (1, math.inf)]
    ties = torch.tensor([2.0, -2.0, 1.0], dtype=dtype)
    found.append(Point((ties, math.inf), note="ties", second={"x": 0.0}))
    found += [Point((zeros, ord), note=f"zero, ord {ord}", second={"x": 0.0}) for ord in (1.5, 2, 3)]
    ends = end_vectors(dtype)
    found += [Point((row,), note="ends", extreme=True) for row in ends]
    return found + [Point((row, 3.0), note="ends, ord 3", extreme=True) for row in ends[:2]]


@exact(
    forward="out = sum(|x| ** ord) ** (1 / ord); max |x| for ord inf",
    gradient={"x": "g sign(x) (|x| / out) ** (ord - 1); for ord inf g sign(x) shared among the largest; 0 at x = 0"},
    reference=_norm_reference,
    domain="every finite vector; infinite, without a gradient, where an element is",
    bars=ulps(4),
    examples=_norm_examples,
    elementwise=False,
    second_measure="tensor",
    replaces=torch.linalg.vector_norm,
    ordinary=lambda: (torch.randn(1000, 1000), 2, -1),
    paper="pytorch#193006; Higham, Accuracy and Stability of Numerical Algorithms, 27.8",
)
def norm(x: Tensor, ord: float = 2.0, dim: Dims = None, keepdim: bool = False) -> Tensor:
    """Return the norm of vectors: its gradient is right over the whole range, its second derivative zero at zero.

    Arguments:
        x: floating point, of any shape.
        ord: the power, from 1 to 500, or infinity. Below 2, the second derivative with respect to an element that is
            zero is infinite, and given as zero.
        dim: the dimension or dimensions of a vector; None for all.
        keepdim: whether they stay, with one element each.

    Returns:
        the norms, without the dimensions of a vector.

    Raises:
        ArgumentError: ``x`` is of integers or complex.
        OptionError: ``ord`` is none of the powers.

    Example:
        >>> import torch, gradwright as gw
        >>> x = torch.tensor([3e-30, 4e-30], requires_grad=True)
        >>> gw.stable.norm(x)
        tensor(5.0000e-30, grad_fn=...)
        >>> torch.autograd.grad(gw.stable.norm(x), x)
        (tensor([0.6000, 0.8000]),)
    """
    require_floating("norm", x=x)
    require_number("norm", ord=ord)
    require_dim("norm", dim, several=True, none=True)
    dim = whole(dim)
    if not (1 <= ord <= LARGEST_ORD or ord == math.inf):
        raise OptionError(
            f"norm: ord is {ord}; expected a number from 1 to {LARGEST_ORD:g}, or infinity; "
            "below 1 it is no norm, above give math.inf."
        )
    if ord == 1 or x.numel() == 0:
        out: Tensor = torch.linalg.vector_norm(x, ord, dim, keepdim)
        return out
    if ord == math.inf:
        return x.abs().amax(() if dim is None else dim, keepdim)
    if ord == 2:
        out = _euclidean(widened(x), dim)[0]
    else:
        # Twice, since one scale does not reach from the ends of the range of float64 to its middle.
        scale = scale_for(_largest(x.detach().double().abs(), dim))
        out = _power_norm(x.double() * scale, float(ord), dim)[0] / scale
    return (out if keepdim else squeezed(out, dim)).to(x.dtype)
