"""The angle between two vectors, for angles of every size.

``acos`` of the normalised inner product knows no angle below 1e-8 and has no gradient at one of zero. Here the angle
is ``atan2(|u| |w|, u.v)``, where ``w`` is the part of ``v`` orthogonal to ``u``, and the gradient goes along ``w``.
Both are as accurate as ``w``, which is found with products of twice the digits and made orthogonal a second time.
W. Kahan, How futile are mindless assessments of roundoff in floating-point computation?, 2006, section 12.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from gradwright.authoring.catalogue import Example
from gradwright.authoring.decorator import custom_gradient
from gradwright.authoring.exact import Point, exact
from gradwright.errors import ArgumentError
from gradwright.stable import rotation_references as plain
from gradwright.stable.arguments import require_dim, require_floating, widened
from gradwright.stable.rotation_samples import BARS
from gradwright.stable.scaling import unit_sized

SPLIT = {torch.float64: 2.0**27 + 1, torch.float32: 2.0**12 + 1}
"""Divides a number into two halves whose products are exact (T. Dekker, Numerische Mathematik 18, 1971)."""


def _examples(dtype: torch.dtype) -> Sequence[Example]:
    tiny, eps = torch.finfo(dtype).tiny ** 0.6, torch.finfo(dtype).eps

    def point(u: Sequence[float], v: Sequence[float], note: str, orders: int = 2, extreme: bool = False) -> Point:
        # Of u and v together, what is large in the second derivative cancels in some directions.
        pair = torch.tensor(u, dtype=dtype), torch.tensor(v, dtype=dtype).requires_grad_(extreme)
        return Point(pair, note=note, orders=orders, extreme=extreme)

    return [
        point([0.3, -1.2, 0.5], [1.1, 0.4, -0.7], "ordinary"),
        point([0.3, -1.2, 0.5, 2.0], [0.375, -1.125, 0.5, 2.25], "an acute angle in four dimensions"),
        point([1.5, 2.0, -0.25], [1.5, 2.0 + 8 * eps, -0.25 + 4 * eps], "almost the same", extreme=True),
        point([1.5, 2.0, -0.25], [-1.5, -2.0 + 8 * eps, 0.25], "almost opposite", extreme=True),
        point([2.0, 0.0, 0.0], [2.0, tiny, 0.0], "a tiny angle", orders=1, extreme=True),
        point([0.0, 2.0, 0.0], [0.0, 3.0, 0.0], "parallel: a kink", orders=1, extreme=True),
        point([0.0, 2.0, 0.0], [0.0, -3.0, 0.0], "opposite: a kink", orders=1, extreme=True),
    ]


def _reference(mp: Any, u: Any, v: Any) -> Any:
    a, b = plain.norm(mp, u), plain.norm(mp, v)
    apart, together = ([b * x + sign * a * y for x, y in zip(u, v)] for sign in (-1, 1))
    return 2 * mp.atan2(plain.norm(mp, apart), plain.norm(mp, together))


def _written(u: Tensor, v: Tensor) -> Tensor:
    return torch.acos(torch.nn.functional.cosine_similarity(u, v, dim=-1))


@exact(
    forward="out = the angle in [0, pi] with cos(out) = u.v / (|u| |v|)",
    gradient={
        "u": "-g w / (|w| |u|), w the part of v orthogonal to u; 0 where they are parallel (minimum norm)",
        "v": "the same with u and v exchanged",
    },
    reference=lambda mp, u, v, dim: plain.each(lambda a, b: _reference(mp, a, b), u, v),
    domain="every vector but zero, there nan; a kink at angles of 0 and pi",
    bars=BARS,
    examples=_examples,
    elementwise=False,
    measure="tensor",
    replaces=_written,
    ordinary=lambda: (torch.randn(100_000, 3), torch.randn(100_000, 3)),
    slower="three orthogonal parts, each by products of twice the digits; what it replaces knows no angle below 1e-8",
    paper="Kahan 2006",
)
def angle_between(u: Tensor, v: Tensor, dim: int = -1) -> Tensor:
    """Return the angle between two vectors, in radians.

    Arguments:
        u: vectors, along ``dim``.
        v: the same; the two are broadcast.
        dim: the dimension that holds the components.

    Returns:
        angles from 0 to pi, without that dimension.

    Raises:
        ArgumentError: a dtype is not floating point, or the two have different numbers of components.

    Example:
        >>> import torch, gradwright as gw
        >>> u, v = torch.tensor([1.0, 0.0]), torch.tensor([1.0, 2.0**-60], requires_grad=True)
        >>> torch.autograd.grad(gw.stable.angle_between(u, v), v)
        (tensor([-8.6736e-19,  1.0000e+00]),)
    """
    require_floating("angle_between", u=u, v=v)
    require_dim("angle_between", dim)
    if u.dim() == 0 or v.dim() == 0 or u.shape[dim] != v.shape[dim]:
        raise ArgumentError(
            f"angle_between: u has shape {tuple(u.shape)} and v {tuple(v.shape)}; expected as many components in both "
            f"along dim={dim}; say with dim which dimension holds them."
        )
    dtype = torch.promote_types(u.dtype, v.dtype)
    a, b = (unit_sized(widened(x.to(dtype)).movedim(dim, -1)) for x in (u, v))
    shape = torch.broadcast_shapes(a.shape, b.shape)
    return _angle(a.expand(shape), b.expand(shape)).to(dtype)


@custom_gradient
def _angle(u: Tensor, v: Tensor) -> Tensor:
    square, other = _dot(u, u), _dot(v, v)
    angle = torch.atan2(_norm(_rejected(u, v)) * square.sqrt(), _dot(u, v)).squeeze(-1)
    return torch.where((torch.minimum(square, other) > 0).squeeze(-1), angle, math.nan)


@_angle.vjp
def _angle_vjp(g: Tensor, u: Tensor, v: Tensor) -> dict[str, Tensor]:
    g = -g.unsqueeze(-1)
    return {"u": g * (_unit(_rejection(u, v)) / _length(u)), "v": g * (_unit(_rejection(v, u)) / _length(v))}


@custom_gradient
def _rejection(u: Tensor, v: Tensor) -> Tensor:
    """Return ``w = v - (u.v / u.u) u``."""
    return _rejected(u, v)


@_rejection.vjp
def _rejection_vjp(g: Tensor, u: Tensor, v: Tensor, out: Tensor) -> dict[str, Tensor]:
    # Of v it is a projection; of u, the same of g times -u.v / u.u, and w times -u.g / u.u.
    across, square = _rejection(u, g), _dot(u, u)
    return {"v": across, "u": -(_dot(u, v) * across + _dot(u, g) * out) / square}


@custom_gradient
def _length(w: Tensor) -> Tensor:
    """Return ``|w|``."""
    return _norm(w)


@_length.vjp
def _length_vjp(g: Tensor, w: Tensor) -> Tensor:
    return g * _unit(w)


@custom_gradient
def _unit(w: Tensor) -> Tensor:
    """Return ``w / |w|``, and zero where ``w`` is."""
    length = _norm(w)
    return w / length.masked_fill(length == 0, 1.0)


@_unit.vjp
def _unit_vjp(g: Tensor, w: Tensor, out: Tensor) -> Tensor:
    length = _length(w)
    none = length == 0
    return ((g - out * _dot(out, g)) / length.masked_fill(none, 1.0)).masked_fill(none, 0.0)


# -------------------------------------------------------------------- values, not to be differentiated


def _rejected(u: Tensor, v: Tensor) -> Tensor:
    """Return ``v - (u.v / u.u) u``, accurate however small it is; zero if it is but rounding."""
    square = _dot(u, u)
    part = _dot(u, v) / square
    product = part * u
    once = (v - product) - _rest(part, u, product)
    twice = once - _dot(u, once) / square * u
    some = twice.abs().amax(-1, keepdim=True) > 8 * torch.finfo(u.dtype).eps * once.abs().amax(-1, keepdim=True)
    # What is left of u in it is eps of `once`, which at angles below eps is more than eps of the result.
    return (twice - _dot(u, twice) / square * u) * some


def _rest(a: Tensor, b: Tensor, product: Tensor) -> Tensor:
    """Return what rounding left of a product."""
    (high, low), (upper, lower) = _halves(a), _halves(b)
    return low * lower - (((product - high * upper) - low * upper) - high * lower)


def _halves(x: Tensor) -> tuple[Tensor, Tensor]:
    large = x * SPLIT[x.dtype]
    high = large - (large - x)
    return high, x - high


def _norm(w: Tensor) -> Tensor:
    """Return the length, also of ``w`` whose square is not in range, with the dimension kept."""
    largest = w.abs().amax(-1, keepdim=True)
    inside = w / largest.masked_fill(largest == 0, 1.0)
    return largest * _dot(inside, inside).sqrt()


def _dot(a: Tensor, b: Tensor) -> Tensor:
    return (a * b).sum(-1, keepdim=True)
