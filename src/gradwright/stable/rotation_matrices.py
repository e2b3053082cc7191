"""Rotation matrices from and to quaternions and the 6-D representation.

A matrix that is read need not be a rotation: it stands for the nearest one (:mod:`gradwright.stable.nearest`).
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
from gradwright.stable.components import (
    checked,
    cross,
    dot,
    joined,
    joined_matrix,
    matrix,
    moved,
    scaled,
    transposed,
    turned,
    vector,
)
from gradwright.stable.nearest import nearest_rotation
from gradwright.stable.quaternions import checked_quaternion, parts
from gradwright.stable.rotation_samples import BARS, NEAREST, matrices, matrix_examples, quaternions
from gradwright.stable.scaling import unit_sized
from gradwright.stable.stumpff import chosen


@custom_gradient
def rotation_to_quaternion(r: Tensor) -> Tensor:
    """Return the quaternion of a rotation, whose derivative is taken within the rotations.

    Each row of ``4 q q^T`` is ``q`` but for a factor; the one with the largest diagonal element loses nothing
    (S. Shepperd, J. Guidance and Control 1, 1978).
    """
    (a, b, c), (d, e, f), (g, h, i) = matrix(r)
    x, y, z, xy, xz, yz = h - f, c - g, d - b, b + d, c + g, f + h
    diagonal = (1 + a + e + i, 1 + a - e - i, 1 - a + e - i, 1 - a - e + i)
    rows = ((diagonal[0], x, y, z), (x, diagonal[1], xy, xz), (y, xy, diagonal[2], yz), (z, xz, yz, diagonal[3]))
    first, second = (
        _larger(diagonal[0], rows[0], diagonal[1], rows[1]),
        _larger(diagonal[2], rows[2], diagonal[3], rows[3]),
    )
    row = _larger(torch.maximum(diagonal[0], diagonal[1]), first, torch.maximum(diagonal[2], diagonal[3]), second)
    length = (row[0] * row[0] + row[1] * row[1] + row[2] * row[2] + row[3] * row[3]).sqrt()
    inverse = torch.where(row[0] < 0, -1.0, 1.0) / length
    return joined([inverse * part for part in row])


def _larger(x: Tensor, row: Sequence[Tensor], y: Tensor, other: Sequence[Tensor]) -> list[Tensor]:
    """Return the row whose number is the larger one; the first where they are equal."""
    one = (x >= y).to(x.dtype)
    return [chosen(one, a, 1 - one, b) for a, b in zip(row, other)]


@rotation_to_quaternion.vjp
def rotation_to_quaternion_vjp(g: Tensor, r: Tensor, out: Tensor) -> Tensor:
    # dR = [h] R moves q by h q / 2, and <g, h q> = h . Im(g q*).
    (w, v), (g0, gv) = parts(out), parts(g)
    h = moved(moved(cross(v, gv), w, gv), -g0, v)
    quarter = torch.full_like(w, 0.25)
    return joined_matrix(turned(scaled(quarter, h), matrix(r)))


def _written_from_matrix(m: Tensor) -> Tensor:
    w = torch.sqrt(1 + m.diagonal(dim1=-2, dim2=-1).sum(-1)) / 2
    skew = torch.stack([m[..., 2, 1] - m[..., 1, 2], m[..., 0, 2] - m[..., 2, 0], m[..., 1, 0] - m[..., 0, 1]], -1)
    return torch.cat([w[..., None], skew / (4 * w[..., None])], -1)


def _ordinary_matrices() -> tuple[Tensor]:
    return (quaternion_to_matrix(torch.randn(100_000, 4)),)


@exact(
    forward="out = q with R(q) = R and Re q >= 0, R the rotation nearest to m",
    gradient={"m": "1/4 [Im(g q*)] R in the tangent space at R"},
    reference=lambda mp, m: plain.each(lambda r: plain.quaternion(mp, plain.logarithm(mp, r)), m, dims=2),
    domain="matrices whose nearest rotation is unique, else nan; where Re q = 0 the largest component is positive",
    bars=BARS,
    examples=matrix_examples,
    elementwise=False,
    measure="tensor",
    replaces=_written_from_matrix,
    slower=NEAREST,
    ordinary=_ordinary_matrices,
    paper="Shepperd 1978; Markley 1993",
)
def matrix_to_quaternion(m: Tensor) -> Tensor:
    """Return the unit quaternion of a rotation matrix, with a real part that is not negative.

    A matrix that is not exactly a rotation stands for the nearest one: the gradient lies in the tangent space there.
    Where that is not unique, as for a reflection, the result is nan.

    Arguments:
        m: matrices that turn column vectors, ``(..., 3, 3)``.

    Returns:
        quaternions, real part first, ``(..., 4)``. At half a turn, where the real part is zero, the one whose largest
        component is positive; within rounding of it, either.

    Raises:
        ArgumentError: the shape or the dtype is another.

    Example:
        >>> import torch, gradwright as gw
        >>> gw.stable.matrix_to_quaternion(torch.diag(torch.tensor([1.0, -1.0, -1.0])))
        tensor([0., 1., 0., 0.])
    """
    r = nearest_rotation(checked("matrix_to_quaternion", "m", m, (3, 3), "rotation matrices"))
    return rotation_to_quaternion(r).to(m.dtype)


def _quaternion_examples(dtype: torch.dtype) -> Sequence[Example]:
    one = torch.tensor([1.0, 0.0, 0.0, 0.0], dtype=dtype)
    return [
        Point((quaternions(0.3, 1.1, 4.0, dtype=dtype, length=1.5),), note="ordinary"),
        Point((one,), note="identity"),
        Point((one.roll(2),), note="half a turn"),
    ]


def _written_to_matrix(q: Tensor) -> Tensor:
    w, x, y, z = q.unbind(-1)
    s = 2 / (q * q).sum(-1)
    rows = [
        1 - s * (y * y + z * z),
        s * (x * y - w * z),
        s * (x * z + w * y),
        s * (x * y + w * z),
        1 - s * (x * x + z * z),
        s * (y * z - w * x),
        s * (x * z - w * y),
        s * (y * z + w * x),
        1 - s * (x * x + y * y),
    ]
    return torch.stack(rows, -1).reshape(*q.shape[:-1], 3, 3)


def _to_matrix_reference(mp: Any, q: Any) -> list[Any]:
    columns = [plain.rotated(mp, q, [mp.mpf(int(i == k)) for i in range(3)]) for k in range(3)]
    return [list(row) for row in zip(*columns)]


@exact(
    forward="out = the matrix of v -> q v q^-1",
    gradient={"q": "the derivative of that, orthogonal to q"},
    reference=lambda mp, q: plain.each(lambda row: _to_matrix_reference(mp, row), q),
    domain="every quaternion but zero, there nan",
    bars=BARS,
    examples=_quaternion_examples,
    elementwise=False,
    measure="tensor",
    replaces=_written_to_matrix,
    ordinary=lambda: (torch.randn(100_000, 4),),
    paper="Shoemake 1985",
)
def quaternion_to_matrix(q: Tensor) -> Tensor:
    """Return the rotation matrix of a quaternion.

    Arguments:
        q: quaternions, real part first, ``(..., 4)``, of any length but zero.

    Returns:
        matrices that turn column vectors, ``(..., 3, 3)``.

    Raises:
        ArgumentError: the shape or the dtype is another.

    Example:
        >>> import torch, gradwright as gw
        >>> gw.stable.quaternion_to_matrix(torch.tensor([0.0, 0.0, 0.0, 2.0]))
        tensor([[-1.,  0.,  0.],
                [ 0., -1.,  0.],
                [ 0.,  0.,  1.]])
    """
    w, (x, y, z) = parts(unit_sized(checked_quaternion("quaternion_to_matrix", "q", q)))
    s = 2 / (w * w + x * x + y * y + z * z)
    a, b, c = s * x, s * y, s * z
    xx, yy, zz, xy, xz, yz = a * x, b * y, c * z, a * y, a * z, b * z
    p, r, t = a * w, b * w, c * w
    rows = ((1 - (yy + zz), xy - t, xz + r), (xy + t, 1 - (xx + zz), yz - p), (xz - r, yz + p, 1 - (xx + yy)))
    return joined_matrix(rows).to(q.dtype)


def _six_examples(dtype: torch.dtype) -> Sequence[Example]:
    turned_first, identity = matrices(1.1, dtype=torch.float64)[0], torch.eye(3, dtype=torch.float64)
    general = torch.tensor([[1.5, -0.25, 0.5, 0.75, 2.0, -1.0], [-0.5, 0.125, 3.0, 1.0, 0.0, 0.25]])
    close = torch.tensor([1.0, 2.0, -1.0, 1.0, 2.0, -0.9])
    rotations = torch.stack([turned_first, identity])[..., :2].mT.flatten(-2)
    notes = {"ordinary": general, "rotations": rotations, "almost parallel": close}
    return [Point((x.to(dtype),), note=note) for note, x in notes.items()]


def _six_reference(mp: Any, x: Any) -> list[Any]:
    first = [a / plain.norm(mp, x[:3]) for a in x[:3]]
    along = sum(a * b for a, b in zip(first, x[3:]))
    rest = [b - along * a for a, b in zip(first, x[3:])]
    second = [b / plain.norm(mp, rest) for b in rest]
    return [list(row) for row in zip(first, second, plain.cross(first, second))]


def _written_six(x: Tensor) -> Tensor:
    a, b = x[..., :3], x[..., 3:]
    first = torch.nn.functional.normalize(a, dim=-1)
    second = torch.nn.functional.normalize(b - (first * b).sum(-1, keepdim=True) * first, dim=-1)
    return torch.stack([first, second, torch.linalg.cross(first, second)], -1)


@exact(
    forward="out = [b1 b2 b3]: b1 = a1 / |a1|, b2 the unit vector of a2 - (b1.a2) b1, b3 = b1 x b2; x = (a1, a2)",
    gradient={"x": "the derivative of that"},
    reference=lambda mp, x: plain.each(lambda row: _six_reference(mp, row), x),
    domain="two vectors that are not parallel, there nan or of errors that grow as they become so",
    bars=BARS,
    examples=_six_examples,
    elementwise=False,
    measure="tensor",
    replaces=_written_six,
    ordinary=lambda: (torch.randn(100_000, 6),),
    paper="Zhou, Barnes, Lu, Yang and Li, On the continuity of rotation representations, CVPR 2019",
)
def rotation_6d(x: Tensor) -> Tensor:
    """Return the rotation matrix whose first two columns are two vectors made orthonormal.

    Arguments:
        x: two vectors one after the other, ``(..., 6)``; of any lengths, not parallel.

    Returns:
        matrices that turn column vectors, ``(..., 3, 3)``.

    Raises:
        ArgumentError: the shape or the dtype is another.

    Example:
        >>> import torch, gradwright as gw
        >>> gw.stable.rotation_6d(torch.tensor([0.0, 2.0, 0.0, -3.0, 1.0, 0.0]))
        tensor([[ 0., -1.,  0.],
                [ 1.,  0., -0.],
                [ 0.,  0.,  1.]])
    """
    both = checked("rotation_6d", "x", x, (6,), "two vectors of three one after the other").unflatten(-1, (2, 3))
    u, v = (vector(each) for each in unit_sized(both).unbind(-2))
    first = scaled(dot(u, u).rsqrt(), u)
    rest = moved(v, -dot(first, v), first)
    second = scaled(dot(rest, rest).rsqrt(), rest)
    return joined_matrix(transposed((first, second, cross(first, second)))).to(x.dtype)


@exact(
    forward="out = the first two columns of m, one after the other",
    gradient={"m": "g in these columns, zero in the third"},
    reference=lambda mp, m: plain.each(lambda r: [r[i][k] for k in range(2) for i in range(3)], m, dims=2),
    domain="every matrix",
    bars=BARS,
    examples=matrix_examples,
    elementwise=False,
    measure="tensor",
    replaces=lambda m: m[..., :2].mT.flatten(-2),
    ordinary=_ordinary_matrices,
    paper="Zhou, Barnes, Lu, Yang and Li, CVPR 2019",
)
def matrix_to_rotation_6d(m: Tensor) -> Tensor:
    """Return the first two columns of a rotation matrix, of which :func:`rotation_6d` makes it again.

    Arguments:
        m: matrices that turn column vectors, ``(..., 3, 3)``.

    Returns:
        two vectors one after the other, ``(..., 6)``.

    Raises:
        ArgumentError: the shape or the dtype is another.

    Example:
        >>> import torch, gradwright as gw
        >>> gw.stable.matrix_to_rotation_6d(torch.eye(3))
        tensor([1., 0., 0., 0., 1., 0.])
    """
    checked("matrix_to_rotation_6d", "m", m, (3, 3), "rotation matrices")
    return m[..., :2].mT.flatten(-2)
