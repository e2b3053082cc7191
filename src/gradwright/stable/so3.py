"""The exponential and the logarithm of rotations, SO(3), smooth through the identity.

Written as people write them, both divide by the angle, and their gradient at the identity is nan: where a pose is
started from. Here they are polynomials in the argument whose coefficients are entire functions of the squared angle.
J. Solà, J. Deray and D. Atchuthan, A micro Lie theory for state estimation in robotics, arXiv 1812.01537.
"""

from __future__ import annotations

import torch
from torch import Tensor

from gradwright.authoring.decorator import custom_gradient
from gradwright.authoring.exact import exact
from gradwright.stable import rotation_references as plain
from gradwright.stable.components import (
    checked,
    cross,
    dot,
    joined,
    joined_matrix,
    matrix,
    moved,
    plus,
    scaled,
    vector,
)
from gradwright.stable.nearest import nearest_rotation
from gradwright.stable.quaternions import quaternion_log
from gradwright.stable.rotation_matrices import rotation_to_quaternion
from gradwright.stable.rotation_samples import BARS, NEAREST, matrix_examples, vector_examples
from gradwright.stable.stumpff import series, stumpff


def _written_exp(w: Tensor) -> Tensor:
    angle: Tensor = w.norm(dim=-1)[..., None, None]
    x, y, z = w.unbind(-1)
    o = torch.zeros_like(x)
    k = torch.stack([o, -z, y, z, o, -x, -y, x, o], -1).reshape(*w.shape[:-1], 3, 3)
    eye = torch.eye(3, dtype=w.dtype, device=w.device)
    return eye + torch.sin(angle) / angle * k + (1 - torch.cos(angle)) / angle**2 * (k @ k)


@exact(
    forward="out = I + sin(a)/a [w] + (1 - cos(a))/a^2 [w]^2, a = |w|",
    gradient={"w": "the derivative of that polynomial, with coefficients that are entire in a^2"},
    reference=lambda mp, w: plain.each(lambda v: plain.exponential(mp, v), w),
    domain="every vector whose square is in range; the error grows with the angle as that of sine does",
    bars=BARS,
    examples=vector_examples,
    elementwise=False,
    measure="tensor",
    replaces=_written_exp,
    ordinary=lambda: (torch.randn(100_000, 3),),
    paper="Rodrigues; arXiv 1812.01537; pytorch3d#188",
)
def so3_exp(w: Tensor) -> Tensor:
    """Return the rotation matrix of a rotation vector.

    Arguments:
        w: rotation vectors, axis times angle in radians, ``(..., 3)``.

    Returns:
        matrices that turn column vectors, ``(..., 3, 3)``.

    Raises:
        ArgumentError: the shape or the dtype is another.

    Example:
        >>> import torch, gradwright as gw
        >>> w = torch.zeros(3, requires_grad=True)
        >>> torch.autograd.grad(gw.stable.so3_exp(w)[2, 1], w)
        (tensor([1., 0., 0.]),)
    """
    return exponential(checked("so3_exp", "w", w, (3,), "rotation vectors")).to(w.dtype)


@custom_gradient
def exponential(w: Tensor) -> Tensor:
    """Return the rotation matrix; the vector is float64 or float32."""
    x, y, z = v = vector(w)
    c1, c2 = series(dot(v, v), 1, 2)
    a, b, c = scaled(c1, v)
    p, q, r = scaled(c2, v)
    xx, yy, zz = p * x, q * y, r * z
    xy, xz, yz = p * y, p * z, q * z
    rows = ((1 - (yy + zz), xy - c, xz + b), (xy + c, 1 - (xx + zz), yz - a), (xz - b, yz + a, 1 - (xx + yy)))
    return joined_matrix(rows)


@exponential.vjp
def exponential_vjp(g: Tensor, w: Tensor) -> Tensor:
    # Of c_0 I + c_1 [w] + c_2 w w^T, where c_0' = -c_1 / 2, c_1' = (c_3 - c_2) / 2 and c_2' = (2 c_4 - c_3) / 2.
    v = vector(w)
    (a, b, c), (d, e, f), (h, i, j) = matrix(g)
    c1, c2, c3, c4 = stumpff(dot(v, v), 1, 4).unbind()
    skew = (i - f, c - h, d - b)
    row = (dot((a + a, b + d, c + h), v), dot((b + d, e + e, f + i), v), dot((c + h, f + i, j + j), v))
    along = (c3 - c2) * dot(skew, v) + (c4 - c3 / 2) * dot(row, v) - c1 * (a + e + j)
    return joined(moved(moved(scaled(c1, skew), c2, row), along, v))


def _written_log(m: Tensor) -> Tensor:
    angle = torch.acos((m.diagonal(dim1=-2, dim2=-1).sum(-1) - 1) / 2)
    skew = torch.stack([m[..., 2, 1] - m[..., 1, 2], m[..., 0, 2] - m[..., 2, 0], m[..., 1, 0] - m[..., 0, 1]], -1)
    return (angle / (2 * torch.sin(angle)))[..., None] * skew


@exact(
    forward="out = w with exp([w]) = R and |w| <= pi, R the rotation nearest to m",
    gradient={"m": "1/2 [J^-T g] R in the tangent space at R, J = the left Jacobian at out"},
    reference=lambda mp, m: plain.each(lambda r: plain.logarithm(mp, r), m, dims=2),
    domain="matrices whose nearest rotation is unique, else nan; at pi the axis with a positive largest component",
    bars=BARS,
    examples=matrix_examples,
    elementwise=False,
    measure="tensor",
    replaces=_written_log,
    slower=NEAREST,
    ordinary=lambda: (so3_exp(torch.randn(100_000, 3)),),
    paper="arXiv 1812.01537; Shepperd 1978; kornia#4228",
)
def so3_log(m: Tensor) -> Tensor:
    """Return the rotation vector of a rotation matrix, of angle at most pi.

    A matrix that is not exactly a rotation stands for the nearest one: the gradient lies in the tangent space there.
    Where that is not unique, as for a reflection, the result is nan.

    Arguments:
        m: matrices that turn column vectors, ``(..., 3, 3)``.

    Returns:
        rotation vectors, axis times angle in radians, ``(..., 3)``. At half a turn, where both signs of the axis are
        right, the one whose largest component is positive; within rounding of it, either.

    Raises:
        ArgumentError: the shape or the dtype is another.

    Example:
        >>> import torch, gradwright as gw
        >>> m = torch.eye(3, requires_grad=True)
        >>> torch.autograd.grad(gw.stable.so3_log(m)[0], m)
        (tensor([[ 0.0000,  0.0000,  0.0000],
                [ 0.0000,  0.0000, -0.5000],
                [ 0.0000,  0.5000,  0.0000]]),)
    """
    return logarithm(checked("so3_log", "m", m, (3, 3), "rotation matrices")).to(m.dtype)


def logarithm(m: Tensor) -> Tensor:
    """Return the rotation vector; the matrix is float64 or float32."""
    return quaternion_log(rotation_to_quaternion(nearest_rotation(m)))


def left_jacobian(w: Tensor, v: Tensor) -> Tensor:
    """Return ``J v`` with ``J = I + c_2 [w] + c_3 [w]^2``, the integral of ``exp(t [w]) v`` over ``t`` from 0 to 1."""
    a, b = vector(w), vector(v)
    c1, c2, c3 = stumpff(dot(a, a), 1, 3).unbind()
    return joined(moved(moved(scaled(c1, b), c2, cross(a, b)), c3 * dot(a, b), a))


def left_jacobian_inverse(w: Tensor, v: Tensor) -> Tensor:
    """Return ``J^-1 v = v - w x v / 2 + e w x (w x v)``, where ``e = (c_3 - 2 c_4) / (2 c_2)``."""
    a, b = vector(w), vector(v)
    c2, c3, c4 = stumpff(dot(a, a), 2, 3).unbind()
    turn = cross(a, b)
    return joined(moved(plus(b, scaled(torch.full_like(c2, -0.5), turn)), (c3 - 2 * c4) / (2 * c2), cross(a, turn)))
