"""Products of quaternions; the convention is that of :mod:`gradwright.stable.quaternions`."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from gradwright.authoring.catalogue import Example
from gradwright.authoring.exact import Point, exact
from gradwright.stable import rotation_references as plain
from gradwright.stable.components import checked, cross, dot, joined, moved, plus, scaled, vector
from gradwright.stable.quaternions import checked_quaternion, parts
from gradwright.stable.rotation_samples import BARS, quaternions, turns
from gradwright.stable.scaling import unit_sized

ONE = (1.0, 0.0, 0.0, 0.0)


def _pair_examples(dtype: torch.dtype) -> Sequence[Example]:
    p, q = quaternions(0.3, 1.1, dtype=dtype), quaternions(-2.0, 5.0, dtype=dtype, length=1.5).roll(1, -1)
    one = torch.tensor(ONE, dtype=dtype)
    return [Point((p, q), note="ordinary"), Point((one, one), note="identity"), Point((p, q[0]), note="broadcast")]


def _written_multiply(p: Tensor, q: Tensor) -> Tensor:
    a, b, c, d = p.unbind(-1)
    w, x, y, z = q.unbind(-1)
    product = [
        a * w - b * x - c * y - d * z,
        a * x + b * w + c * z - d * y,
        a * y - b * z + c * w + d * x,
        a * z + b * y - c * x + d * w,
    ]
    return torch.stack(product, -1)


@exact(
    forward="out = p q, Hamilton's product",
    gradient={"p": "g q*", "q": "p* g"},
    reference=lambda mp, p, q: plain.each(plain.multiplied, p, q),
    domain="every pair of quaternions",
    bars=BARS,
    examples=_pair_examples,
    elementwise=False,
    measure="tensor",
    replaces=_written_multiply,
    ordinary=lambda: (torch.randn(100_000, 4), torch.randn(100_000, 4)),
    paper="Hamilton 1843",
)
def quaternion_multiply(p: Tensor, q: Tensor) -> Tensor:
    """Return the product of two quaternions: first the rotation ``q``, then ``p``.

    Arguments:
        p: quaternions, real part first, ``(..., 4)``, of any length.
        q: the same.

    Returns:
        quaternions, broadcast.

    Raises:
        ArgumentError: a shape or a dtype is another.

    Example:
        >>> import torch, gradwright as gw
        >>> i, j = torch.eye(4)[1], torch.eye(4)[2]
        >>> gw.stable.quaternion_multiply(i, j)
        tensor([0., 0., 0., 1.])
    """
    a, u = parts(checked_quaternion("quaternion_multiply", "p", p))
    w, v = parts(checked_quaternion("quaternion_multiply", "q", q))
    imaginary = moved(moved(cross(u, v), a, v), w, u)
    return joined((a * w - dot(u, v), *imaginary)).to(torch.promote_types(p.dtype, q.dtype))


@exact(
    forward="out = (w, -v), q = (w, v)",
    gradient={"q": "g*"},
    reference=lambda mp, q: plain.each(lambda r: [r[0], -r[1], -r[2], -r[3]], q),
    domain="every quaternion",
    bars=BARS,
    examples=lambda dtype: [Point((quaternions(0.3, 5.0, dtype=dtype),), note="ordinary")],
    elementwise=False,
    measure="tensor",
    replaces=lambda q: torch.cat([q[..., :1], -q[..., 1:]], -1),
    ordinary=lambda: (torch.randn(100_000, 4),),
    paper="Hamilton 1843",
)
def quaternion_conjugate(q: Tensor) -> Tensor:
    """Return the conjugate, which for a unit quaternion is the inverse.

    Arguments:
        q: quaternions, real part first, ``(..., 4)``.

    Returns:
        quaternions, like ``q``.

    Raises:
        ArgumentError: the shape or the dtype is another.

    Example:
        >>> import torch, gradwright as gw
        >>> gw.stable.quaternion_conjugate(torch.tensor([1.0, 2.0, 3.0, 4.0]))
        tensor([ 1., -2., -3., -4.])
    """
    checked_quaternion("quaternion_conjugate", "q", q)
    return torch.cat([q[..., :1], -q[..., 1:]], -1)


def _rotate_examples(dtype: torch.dtype) -> Sequence[Example]:
    q, v = quaternions(0.3, 4.0, dtype=dtype, length=1.5), turns(1.0, 100.0, dtype=dtype).roll(1, -1)
    one = torch.tensor(ONE, dtype=dtype)
    return [Point((q, v), note="ordinary"), Point((one, v[0]), note="identity"), Point((q, v[0]), note="broadcast")]


def _written_rotate(q: Tensor, v: Tensor) -> Tensor:
    conjugate = torch.cat([q[..., :1], -q[..., 1:]], -1)
    pure = torch.cat([torch.zeros_like(v[..., :1]), v], -1)
    return _written_multiply(_written_multiply(q, pure), conjugate)[..., 1:]


@exact(
    forward="out = q v q^-1",
    gradient={"q": "the derivative of that, orthogonal to q", "v": "q^-1 g q"},
    reference=lambda mp, q, v: plain.each(lambda a, b: plain.rotated(mp, a, b), q, v),
    domain="every quaternion but zero, there nan; every vector",
    bars=BARS,
    examples=_rotate_examples,
    elementwise=False,
    measure="tensor",
    replaces=_written_rotate,
    ordinary=lambda: (torch.nn.functional.normalize(torch.randn(100_000, 4), dim=-1), torch.randn(100_000, 3)),
    paper="Hamilton 1843",
)
def quaternion_rotate(q: Tensor, v: Tensor) -> Tensor:
    """Return vectors turned by quaternions.

    Arguments:
        q: quaternions, real part first, ``(..., 4)``, of any length but zero.
        v: vectors, ``(..., 3)``.

    Returns:
        vectors, broadcast.

    Raises:
        ArgumentError: a shape or a dtype is another.

    Example:
        >>> import torch, gradwright as gw
        >>> gw.stable.quaternion_rotate(torch.tensor([1.0, 0.0, 0.0, 1.0]), torch.tensor([1.0, 0.0, 0.0]))
        tensor([0., 1., 0.])
    """
    w, u = parts(unit_sized(checked_quaternion("quaternion_rotate", "q", q)))
    x = vector(checked("quaternion_rotate", "v", v, (3,), "vectors"))
    turn = scaled(2 / (w * w + dot(u, u)), cross(u, x))
    return joined(plus(moved(x, w, turn), cross(u, turn))).to(torch.promote_types(q.dtype, v.dtype))
