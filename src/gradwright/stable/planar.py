"""Length and angle of points in the plane, over the whole range of a dtype.

PyTorch's gradient of ``atan2`` divides by ``x ** 2 + y ** 2``, which vanishes or overflows beyond the square root of
the range; that of ``hypot`` is nan at zero. Here points are scaled to a length of about 1 first. At the origin, where
the functions have no derivative, it is zero.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from gradwright.authoring.catalogue import Example, grid
from gradwright.authoring.decorator import custom_gradient
from gradwright.authoring.exact import Point, exact, sweep, ulps
from gradwright.stable.arguments import common_dtype, not_a_tensor, require_floating
from gradwright.stable.scaling import together

# -------------------------------------------------------------------- points


def _bounds(dtype: torch.dtype) -> tuple[float, float]:
    """Return the lengths between which a point is scaled to the length 1; others by a constant, which is enough."""
    return (2.0**-800, 2.0**800) if dtype == torch.float64 else (2.0**-100, 2.0**100)


def _scaled(a: Tensor, b: Tensor, length: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return a factor, a point times the factor, and its squared length, which is positive. All are new tensors.

    Arguments:
        a, b: the point.
        length: about its length; infinite where that overflows.
    """
    factor = length.clamp(*_bounds(length.dtype)).reciprocal_()
    a, b = a * factor, b * factor
    square = torch.addcmul(a * a, b, b).clamp_min_(torch.finfo(a.dtype).smallest_normal)
    largest = torch.finfo(a.dtype).max
    return factor, a.clamp(-largest, largest), b.clamp(-largest, largest), square  # infinity over infinity is 0


@custom_gradient
def _cosines(a: Tensor, b: Tensor, length: Tensor) -> tuple[Tensor, Tensor]:
    """Return ``a / r`` and ``b / r`` with ``r = hypot(a, b)``, which ``length`` is about; zero at the origin."""
    _, a, b, square = _scaled(a, b, length)
    per_length = square.rsqrt_()
    return a.mul_(per_length), b.mul_(per_length)


@_cosines.vjp
def _cosines_vjp(g: Sequence[Tensor], a: Tensor, b: Tensor, out: Sequence[Tensor]) -> dict[str, Tensor]:
    cos, sin = out
    around_origin = g[0] * sin - g[1] * cos
    per_a, per_b = _inverses(a, b)
    return {"a": around_origin * per_b, "b": -around_origin * per_a}


@custom_gradient
def _inverses(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Return ``a / r ** 2`` and ``b / r ** 2`` with ``r = hypot(a, b)``; zero at the origin."""
    factor, a, b, square = _scaled(a, b, a.abs() + b.abs())
    per_square = square.reciprocal_()
    return a.mul_(per_square).mul_(factor), b.mul_(per_square).mul_(factor)


@_inverses.vjp
def _inverses_vjp(g: Sequence[Tensor], out: Sequence[Tensor]) -> dict[str, Tensor]:
    p, q = out
    difference, product = (q - p) * (q + p), 2 * p * q
    return {"a": g[0] * difference - g[1] * product, "b": -g[1] * difference - g[0] * product}


def _pairs(dtype: torch.dtype) -> list[Point]:
    """Return points for functions of two numbers: of all directions and sizes, at zero and at infinity."""
    angles = grid(-3.1, 3.1, 9, torch.float64)
    ring = (angles.sin().to(dtype), angles.cos().to(dtype))
    found = [Point(ring, note="ring")]
    info = torch.finfo(dtype)
    for size in (4 * info.smallest_normal * info.eps, 8 * info.smallest_normal, info.max / 2, info.max):
        edge = torch.tensor([size, -size, size / 4, size], dtype=dtype)
        other = torch.tensor([size / 2, size / 4, -size, 1.0], dtype=dtype)
        found.append(Point((edge, other), note="ends", extreme=True, orders=2 if size > 1 else 1))
    sizes = sweep(-6, 6, dtype)[:13]
    found.append(Point((sizes, sizes.flip(0) * 0.75), note="of many sizes", extreme=True))
    return found


def _hypot_examples(dtype: torch.dtype) -> Sequence[Example]:
    zero, none = torch.zeros(1, dtype=dtype), {"x": 0.0, "y": 0.0}
    far = torch.tensor([torch.inf, -torch.inf, 1.0, torch.inf], dtype=dtype)
    found = [*_pairs(dtype), Point((zero, zero.clone()), note="origin", first=none, second=none)]
    return [*found, Point((far, far.flip(0)), note="infinite", value=torch.inf, first=none, second=none, extreme=True)]


@exact(
    forward="out = sqrt(x ** 2 + y ** 2)",
    gradient={"x": "g x / out; 0 at the origin", "y": "g y / out; 0 at the origin"},
    reference=lambda mp, x, y: mp.sqrt(x * x + y * y),
    domain="all numbers; with an infinite one the value is infinite and the gradient zero",
    bars=ulps(4),
    examples=_hypot_examples,
    replaces=torch.hypot,
    ordinary=lambda: (torch.randn(1_000_000), torch.randn(1_000_000)),
    slower="PyTorch divides by the value; here the point is scaled and its length computed anew",
    paper="pytorch#193006",
)
def hypot(x: Tensor, y: Tensor) -> Tensor:
    """Return the length of the hypotenuse of a right triangle, with a zero gradient where both sides are zero.

    Arguments:
        x, y: floating point; they are broadcast against each other.

    Returns:
        a tensor of their common shape.

    Raises:
        ArgumentError: a tensor is of integers or complex.

    Example:
        >>> import torch, gradwright as gw
        >>> x = torch.tensor([0.0, 3e-40], requires_grad=True)
        >>> torch.autograd.grad(gw.stable.hypot(x, torch.tensor([0.0, 4e-40])).sum(), x)
        (tensor([0.0000, 0.6000]),)
    """
    require_floating("hypot", x=x, y=y)
    return _hypot(*together(x, y)).to(common_dtype(x, y))


@custom_gradient
def _hypot(x: Tensor, y: Tensor) -> Tensor:
    return torch.hypot(x, y)


@_hypot.vjp
def _hypot_vjp(g: Tensor, x: Tensor, y: Tensor, out: Tensor) -> dict[str, Tensor]:
    cos, sin = _cosines(x, y, out.detach())
    return {"x": g * cos, "y": g * sin}


# -------------------------------------------------------------------- angles


def _atan2_examples(dtype: torch.dtype) -> Sequence[Example]:
    zero, none = torch.zeros(1, dtype=dtype), {"input": 0.0, "other": 0.0}
    far = torch.tensor([torch.inf, -torch.inf, 1.0, 1.0], dtype=dtype)
    beside = torch.tensor([1.0, 2.0, torch.inf, -torch.inf], dtype=dtype)
    angles = [math.pi / 2, -math.pi / 2, 0.0, math.pi]
    found = [*_pairs(dtype), Point((zero, zero.clone()), note="origin", first=none, second=none)]
    return [*found, Point((far, beside), note="infinite", value=angles, first=none, second=none, extreme=True)]


@exact(
    forward="out = the angle of the point (other, input)",
    gradient={
        "input": "g other / (input ** 2 + other ** 2); 0 at the origin",
        "other": "-g input / (input ** 2 + other ** 2); 0 at the origin",
    },
    reference=lambda mp, y, x: mp.atan2(y, x),
    domain="all numbers; the gradient is zero where one is infinite",
    bars=ulps(4),
    examples=_atan2_examples,
    replaces=torch.atan2,
    ordinary=lambda: (torch.randn(1_000_000), torch.randn(1_000_000)),
    paper="pytorch#193040",
)
def atan2(input: Tensor, other: Tensor) -> Tensor:
    """Return the angle of points in the plane, with a gradient for points at any distance.

    Arguments:
        input: the second coordinate, floating point.
        other: the first coordinate, floating point; they are broadcast against each other.

    Returns:
        the angles in radians, from -pi to pi, of their common shape.

    Raises:
        ArgumentError: a tensor is of integers or complex.

    Example:
        >>> import torch, gradwright as gw
        >>> y = torch.tensor(1e-30, requires_grad=True)
        >>> torch.autograd.grad(gw.stable.atan2(y, torch.tensor(1e-30)), y)
        (tensor(5.0000e+29),)
    """
    require_floating("atan2", input=input, other=other)
    return _atan2(*together(input, other)).to(common_dtype(input, other))


@custom_gradient
def _atan2(y: Tensor, x: Tensor) -> Tensor:
    return torch.atan2(y, x)


@_atan2.vjp
def _atan2_vjp(g: Tensor, y: Tensor, x: Tensor) -> dict[str, Tensor]:
    from_y, from_x = _inverses(y, x)
    return {"y": g * from_x, "x": -g * from_y}


def _angle_reference(mp: Any, input: Any) -> Any:
    angles = input.copy()
    angles.flat[:] = [mp.atan2(mp.im(z), mp.re(z)) for z in input.flat]
    return angles


def _angle_examples(dtype: torch.dtype) -> Sequence[Example]:
    found = []
    for pair in _pairs(dtype)[:-1]:
        z = torch.complex(*pair.args)
        orders = 0 if pair.orders == 1 else 2  # of the smallest numbers, some elements have infinite derivatives
        found.append(Point((z,), note=pair.note, extreme=pair.extreme, orders=orders))
    zero = torch.zeros(1, dtype=dtype.to_complex())
    return [*found, Point((zero,), note="zero", first={"input": 0.0}, second={"input": 0.0})]


@exact(
    forward="out = the angle of a complex number",
    gradient={"input": "i g input / |input| ** 2; 0 at zero"},
    reference=_angle_reference,
    domain="complex numbers",
    bars=ulps(4, torch.float64, torch.float32),
    examples=_angle_examples,
    elementwise=False,
    replaces=torch.angle,
    ordinary=lambda: (torch.randn(500_000, dtype=torch.complex64),),
    slower="real and imaginary parts are taken out of memory one by one",
    paper="pytorch#193040",
)
def angle(input: Tensor) -> Tensor:
    """Return the angle of complex numbers of any size, with a gradient that is zero at zero.

    Arguments:
        input: complex, of any shape; real numbers are passed to ``torch.angle``, where nothing is wrong.

    Returns:
        the angles in radians, from -pi to pi, of the real dtype that belongs to ``input``.

    Example:
        >>> import torch, gradwright as gw
        >>> z = torch.tensor(1e-30j, requires_grad=True)
        >>> torch.autograd.grad(gw.stable.angle(z), z)
        (tensor(-1.0000e+30+0.j),)
    """
    if not isinstance(input, Tensor):
        raise not_a_tensor("angle", "input", input, "a complex tensor")
    if not input.is_complex():
        return torch.angle(input)
    # Not through .real and .imag, whose gradient is a complex product, which makes nan of infinity.
    x, y = torch.view_as_real(input.resolve_conj()).unbind(-1)
    return atan2(y, x)
