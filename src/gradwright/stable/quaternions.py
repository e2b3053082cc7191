"""Quaternions of rotations: exponential, logarithm, products and interpolation, smooth through the identity.

The convention: ``(w, x, y, z)``, real part first, Hamilton's product (``i j = k``), and ``q v q^-1`` turns ``v``; ``q``
and ``-q`` are the same rotation. Wherever a quaternion is read as a rotation it may have any length but zero: it
stands for ``q / |q|``, so that gradients are orthogonal to it.
K. Shoemake, Animating rotation with quaternion curves, SIGGRAPH 1985.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from gradwright.authoring.catalogue import Example
from gradwright.authoring.decorator import custom_gradient
from gradwright.authoring.exact import Point, exact
from gradwright.stable import rotation_references as plain
from gradwright.stable.arguments import require_floating, require_number
from gradwright.stable.components import Vector, checked, dot, joined, moved, scaled, vector
from gradwright.stable.rotation_samples import BARS, quaternions, vector_examples
from gradwright.stable.scaling import unit_sized
from gradwright.stable.stumpff import stumpff


def parts(q: Tensor) -> tuple[Tensor, Vector]:
    """Return the real and the imaginary part."""
    w, x, y, z = q.unbind(-1)
    return w, (x, y, z)


def checked_quaternion(name: str, argument: str, q: Tensor) -> Tensor:
    """Return quaternions as they are computed with.

    Raises:
        ArgumentError: they are none.
    """
    return checked(name, argument, q, (4,), "quaternions, real part first")


def _written_exp(w: Tensor) -> Tensor:
    angle = w.norm(dim=-1, keepdim=True)
    return torch.cat([torch.cos(angle / 2), torch.sin(angle / 2) * w / angle], -1)


@exact(
    forward="out = (cos(a/2), sin(a/2) w/a), a = |w|",
    gradient={"w": "the derivative of that, with coefficients that are entire in a^2"},
    reference=lambda mp, w: plain.each(lambda v: plain.quaternion(mp, v), w),
    domain="every vector whose square is in range; the error grows with the angle as that of sine does",
    bars=BARS,
    examples=vector_examples,
    elementwise=False,
    measure="tensor",
    replaces=_written_exp,
    ordinary=lambda: (torch.randn(100_000, 3),),
    paper="arXiv 1812.01537",
)
def quaternion_exp(w: Tensor) -> Tensor:
    """Return the unit quaternion of a rotation vector.

    Arguments:
        w: rotation vectors, axis times angle in radians, ``(..., 3)``.

    Returns:
        quaternions, real part first, ``(..., 4)``; the real part is not negative up to half a turn.

    Raises:
        ArgumentError: the shape or the dtype is another.

    Example:
        >>> import torch, gradwright as gw
        >>> gw.stable.quaternion_exp(torch.zeros(3))
        tensor([1., 0., 0., 0.])
    """
    v = vector(checked("quaternion_exp", "w", w, (3,), "rotation vectors"))
    quarter = dot(v, v) / 4
    c1, c2 = stumpff(quarter, 1, 2).unbind()
    return joined((1 - quarter * c2, *scaled(c1 / 2, v))).to(w.dtype)


def _log_examples(dtype: torch.dtype) -> Sequence[Example]:
    tiny = torch.finfo(dtype).tiny
    return [
        Point((quaternions(0.3, 1.1, 2.9, dtype=dtype),), note="ordinary"),
        Point((torch.tensor([1.0, 0.0, 0.0, 0.0], dtype=dtype),), note="identity"),
        Point((torch.tensor([-1.0, 0.0, 0.0, 0.0], dtype=dtype),), note="identity, of the other sign"),
        Point((torch.tensor([1.0, tiny, 0.0, -tiny], dtype=dtype),), note="the smallest numbers", extreme=True),
        Point((quaternions(1e-9, 1e-3, dtype=dtype),), note="small"),
        Point((torch.tensor([tiny, 0.6, 0.0, 0.8], dtype=dtype),), note="almost half a turn", extreme=True),
        Point((torch.tensor([0.0, 0.6, 0.0, 0.8], dtype=dtype),), note="half a turn", orders=0, extreme=True),
        Point((quaternions(4.0, 1.0, dtype=dtype, length=1.75),), note="other lengths, more than half a turn"),
    ]


def _log_reference(mp: Any, q: Any) -> list[Any]:
    sign = -1 if q[0] < 0 else 1
    sine = plain.norm(mp, q[1:])
    factor = 2 / abs(q[0]) if sine == 0 else 2 * mp.atan2(sine, abs(q[0])) / sine
    return [sign * factor * x for x in q[1:]]


def _written_log(q: Tensor) -> Tensor:
    v = q[..., 1:]
    sine = v.norm(dim=-1, keepdim=True)
    factor: Tensor = 2 * torch.atan2(sine, q[..., :1]) / sine
    return v * factor


@exact(
    forward="out = 2 atan2(|v|, |w|) v/|v| sign(w), q = (w, v); sign(0) = 1",
    gradient={"q": "(-2 (v.g)/|q|^2, sign(w) (f g - f^3 c_3(|out|^2) (v.g) v)), f = 2 atan2(|v|, |w|) / |v|"},
    reference=lambda mp, q: plain.each(lambda row: _log_reference(mp, row), q),
    domain="every quaternion but zero, there nan; where w = 0 the angle is pi and the axis v/|v|",
    bars=BARS,
    examples=_log_examples,
    elementwise=False,
    measure="tensor",
    replaces=_written_log,
    ordinary=lambda: (torch.nn.functional.normalize(torch.randn(100_000, 4), dim=-1),),
    paper="arXiv 1812.01537; Sophus#269; kornia#4228",
)
def quaternion_log(q: Tensor) -> Tensor:
    """Return the rotation vector of a quaternion, of angle at most pi.

    Arguments:
        q: quaternions, real part first, ``(..., 4)``, of any length but zero.

    Returns:
        rotation vectors, axis times angle in radians, ``(..., 3)``. At half a turn, where the real part is zero and
        both signs of the axis are right, it is that of the imaginary part.

    Raises:
        ArgumentError: the shape or the dtype is another.

    Example:
        >>> import torch, gradwright as gw
        >>> q = torch.tensor([1.0, 0.0, 0.0, 0.0], requires_grad=True)
        >>> torch.autograd.grad(gw.stable.quaternion_log(q)[0], q)
        (tensor([-0., 2., 0., 0.]),)
    """
    return _logarithm(unit_sized(checked_quaternion("quaternion_log", "q", q))).to(q.dtype)


@custom_gradient
def _logarithm(q: Tensor) -> Tensor:
    w, v = parts(q)
    sine, cosine = dot(v, v).sqrt_(), w.abs()
    factor = torch.where(sine > 0, 2 * torch.atan2(sine, cosine) / sine, 2 / cosine)
    return joined(scaled(factor.mul_(_sign(w)), v))


@_logarithm.vjp
def _logarithm_vjp(g: Tensor, q: Tensor, out: Tensor) -> Tensor:
    # With a the angle and f = 2 atan2(|v|, |w|) / |v|, that is a / (|q| sin(a/2)) = 2 / (|q| c_1(a^2 / 4)), the
    # derivative of f along |v|, divided by |v|, is -f^3 c_3(a^2): nothing cancels at the identity.
    w, v = parts(q)
    u, h = vector(out), vector(g)
    square = dot(u, u)
    length = w * w + dot(v, v)
    (half,) = stumpff(square / 4, 1, 1).unbind()
    (third,) = stumpff(square, 3, 1).unbind()
    f = 2 / (length.sqrt() * half)
    along = dot(v, h)
    turned = moved(scaled(f, h), -(f**3) * third * along, v)
    return joined((-2 * along / length, *scaled(_sign(w), turned)))


def _sign(w: Tensor) -> Tensor:
    return torch.where(w < 0, -1.0, 1.0).to(w.dtype)


# -------------------------------------------------------------------- interpolation


def _slerp_examples(dtype: torch.dtype) -> Sequence[Example]:
    p, q = quaternions(0.3, 1.1, dtype=dtype), quaternions(-0.7, 2.0, dtype=dtype, length=1.5)
    one = torch.tensor([1.0, 0.0, 0.0, 0.0], dtype=dtype)
    tiny = torch.finfo(dtype).tiny
    step = torch.tensor([1.0, tiny, 0.0, -tiny], dtype=dtype)
    near = quaternions(1e-9, 1e-3, dtype=dtype).requires_grad_()
    inside = torch.tensor([0.25, 1.0], dtype=dtype)
    return [
        Point((p, q, inside), note="ordinary"),
        Point((one, one, inside[0]), note="both the same"),
        Point((p, -p, inside), note="both the same rotation"),
        Point((one, step, inside[0]), note="the smallest numbers", extreme=True),
        Point((one.clone().requires_grad_(), near, inside), note="near each other"),
        Point((one, quaternions(3.1, 3.2, dtype=dtype), inside - 0.75), note="far from each other, and outside"),
    ]


def _slerp_reference(mp: Any, p: Any, q: Any, t: Any) -> list[Any]:
    a, b = ([x / plain.norm(mp, v) for x in v] for v in (p, q))
    if sum(x * y for x, y in zip(a, b)) < 0:
        b = [-x for x in b]
    angle = 2 * mp.atan2(plain.norm(mp, [x - y for x, y in zip(a, b)]), plain.norm(mp, [x + y for x, y in zip(a, b)]))
    if angle == 0:
        return [(1 - t) * x + t * y for x, y in zip(a, b)]
    return [(mp.sin((1 - t) * angle) * x + mp.sin(t * angle) * y) / mp.sin(angle) for x, y in zip(a, b)]


def _written_slerp(p: Tensor, q: Tensor, t: Tensor) -> Tensor:
    dot_product = (p * q).sum(-1, keepdim=True)
    q = torch.where(dot_product < 0, -q, q)
    angle = torch.acos(dot_product.abs())
    return (torch.sin((1 - t[..., None]) * angle) * p + torch.sin(t[..., None] * angle) * q) / torch.sin(angle)


def _slerp_ordinary() -> tuple[Tensor, Tensor, Tensor]:
    p, q = torch.nn.functional.normalize(torch.randn(2, 100_000, 4), dim=-1)
    return p, q, torch.rand(100_000)


@exact(
    forward="out = (sin((1 - t) a) p + sin(t a) q) / sin(a), a the angle between p and q; q negated where p.q < 0",
    gradient={
        "p": "the derivative of that, with the weights t sinc(t a) / sinc(a) as functions of a^2",
        "q": "the same",
        "t": "the same",
    },
    reference=lambda mp, p, q, t: plain.each(
        lambda a, b, rows: _slerp_reference(mp, a, b, rows[0]), p, q, t[..., None] if t.ndim else t.reshape(1)
    ),
    domain="quaternions of any length but zero, any t; the two at right angles (half a turn apart) are not negated; of "
    "nearly equal rotations the gradient in t, as small as the angle, has a relative error of about eps / angle",
    bars=BARS,
    examples=_slerp_examples,
    elementwise=False,
    measure="tensor",
    replaces=_written_slerp,
    slower="the ratios of sines are series and closed forms, for three angles",
    ordinary=_slerp_ordinary,
    paper="Shoemake 1985",
)
def slerp(p: Tensor, q: Tensor, t: Tensor | float) -> Tensor:
    """Return the rotation at the part ``t`` of the shorter way from ``p`` to ``q``, at constant speed.

    Arguments:
        p: quaternions, ``(..., 4)``, of any length but zero.
        q: the same; it is negated where it is the farther of the two that are the same rotation.
        t: 0 at ``p`` and 1 at ``q``, ``(...)``; beyond them the motion goes on.

    Returns:
        unit quaternions, broadcast. The derivative with respect to ``t`` is as small as the angle between the two, and
        its relative error about the rounding of the quaternions over that angle.

    Raises:
        ArgumentError: a shape or a dtype is another.

    Example:
        >>> import torch, gradwright as gw
        >>> p = torch.tensor([1.0, 0.0, 0.0, 0.0], requires_grad=True)
        >>> torch.autograd.grad(gw.stable.slerp(p, p, 0.5)[0], p)
        (tensor([0., 0., 0., 0.]),)
    """
    require_floating("slerp", p=p, q=q)
    dtype = torch.promote_types(p.dtype, q.dtype)
    if isinstance(t, Tensor):
        dtype = torch.promote_types(dtype, t.dtype)
    else:
        require_number("slerp", t=t)
        t = torch.tensor(t, dtype=dtype, device=p.device)
    a, b = _unit(checked_quaternion("slerp", "p", p)), _unit(checked_quaternion("slerp", "q", q))
    t = checked("slerp", "t", t, (), "a number for each quaternion")
    flip = _sign(a[0] * b[0] + a[1] * b[1] + a[2] * b[2] + a[3] * b[3])
    b = [flip * x for x in b]
    gap = [x - y for x, y in zip(a, b)]
    s = _squared_angle((gap[0] * gap[0] + gap[1] * gap[1] + gap[2] * gap[2] + gap[3] * gap[3]) / 4)
    (whole,) = stumpff(s, 1, 1).unbind()
    rest = 1 - t
    first = rest * stumpff(rest * rest * s, 1, 1)[0] / whole
    second = t * stumpff(t * t * s, 1, 1)[0] / whole
    return joined([first * x + second * y for x, y in zip(a, b)]).to(dtype)


def _unit(q: Tensor) -> list[Tensor]:
    w, x, y, z = unit_sized(q).unbind(-1)
    inverse = (w * w + x * x + y * y + z * z).rsqrt()
    return [inverse * w, inverse * x, inverse * y, inverse * z]


@custom_gradient
def _squared_angle(x: Tensor) -> Tensor:
    """Return ``a^2`` where ``x = sin(a/2)^2``, which is smooth at zero."""
    return 4 * torch.atan2(x.sqrt(), (1 - x).sqrt()) ** 2


@_squared_angle.vjp
def _squared_angle_vjp(g: Tensor, out: Tensor) -> Tensor:
    return g * 4 / stumpff(out, 1, 1)[0]  # d(a^2)/dx = 2 a / (sin(a) / 2)
