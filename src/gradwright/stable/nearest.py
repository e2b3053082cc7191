"""The rotation nearest to a matrix, which is what a matrix that is read as a rotation stands for.

``R = argmin |R - M|`` is smooth where the nearest one is unique, and its derivative has no part outside the tangent
space: what moves a rotation out of the rotations has no effect. With ``M = S R``, ``S`` symmetric, and ``lam = tr S``::

    kappa = (lam^2 - |M|^2) / 2        zeta = kappa lam - det M
    R = ((kappa + |M|^2) M + lam cof M - M M^T M) / zeta
    dR = [h] R,    h = (kappa I + M M^T) / zeta (sum over the columns of R x dM)

``lam`` is the largest root of ``(x^2 - |M|^2)^2 - 8 x det M - 4 |cof M|^2``, whose roots are all real (FOAM: Markley,
J. Astronautical Sciences 41, 1993); Laguerre's method finds it from above, where ``sqrt(3) |M|`` is a start that is
exact for a rotation.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from gradwright.authoring.decorator import custom_gradient
from gradwright.stable.components import (
    Matrix,
    applied,
    cross,
    dot,
    joined_matrix,
    matrix,
    moved,
    scaled,
    transposed,
    turned,
    turning,
)
from gradwright.stable.scaling import unit_sized

STEPS = 5
"""Enough for every matrix that is answered; one is, for a rotation with errors of rounding."""
LEAST = 0.02
"""Of ``zeta`` for ``|M| = 1``, the product of the sums of two singular values, the last one with the sign of the
determinant: 1.54 for a rotation, 0 where the nearest one is not unique, as for a reflection. Below it the answer is
nan."""


def nearest_rotation(m: Tensor) -> Tensor:
    """Return the nearest rotation, in the Frobenius norm; nan where it is not, or hardly, unique.

    Arguments:
        m: ``(..., 3, 3)``, float64 or float32.
    """
    return _nearest(unit_sized(m, 2))


@custom_gradient
def _nearest(m: Tensor) -> Tensor:
    whole = matrix(m)
    shrink = _inner(whole, whole).rsqrt_()
    b = scaled(shrink, whole[0]), scaled(shrink, whole[1]), scaled(shrink, whole[2])
    cof = cross(b[1], b[2]), cross(b[2], b[0]), cross(b[0], b[1])
    det = dot(b[0], cof[0])
    lam = _largest_root(det, _inner(cof, cof))
    kappa = (lam * lam).sub_(1).mul_(0.5)
    zeta = torch.addcmul(-det, kappa, lam)
    zeta = zeta.masked_fill(zeta < LEAST, math.nan)
    own, other, third = (kappa + 1).div_(zeta), lam.div_(zeta), zeta.reciprocal().neg_()
    first = (third * dot(b[0], b[0]), third * dot(b[0], b[1]), third * dot(b[0], b[2]))
    second = (first[1], third * dot(b[1], b[1]), third * dot(b[1], b[2]))
    last = (first[2], second[2], third * dot(b[2], b[2]))
    rows = []
    for k, gram in enumerate((first, second, last)):
        row = moved(scaled(own, b[k]), other, cof[k])
        rows.append(moved(moved(moved(row, gram[0], b[0]), gram[1], b[1]), gram[2], b[2]))
    return joined_matrix((rows[0], rows[1], rows[2]))


@_nearest.vjp
def _nearest_vjp(g: Tensor, m: Tensor, out: Tensor) -> Tensor:
    b, r = matrix(m), matrix(out)
    lam = _inner(b, r)
    kappa = (lam * lam - _inner(b, b)) / 2
    zeta = kappa * lam - dot(b[0], cross(b[1], b[2]))
    u = turning(r, matrix(g))
    spread = applied(b, applied(transposed(b), u))
    return joined_matrix(turned(scaled(1 / zeta, moved(spread, kappa, u)), r))


def _inner(a: Matrix, b: Matrix) -> Tensor:
    return dot(a[0], b[0]) + dot(a[1], b[1]) + dot(a[2], b[2])


def _largest_root(det: Tensor, cofactors: Tensor) -> Tensor:
    """Return the largest root of ``(x^2 - 1)^2 - 8 x det - 4 cofactors``."""
    x = torch.full_like(det, 3**0.5)
    for _ in range(STEPS):
        square = x * x
        less = square - 1
        value = torch.addcmul((less * less).sub_(cofactors, alpha=4), x, det, value=-8)
        slope = (x * less).mul_(4).sub_(det, alpha=8)
        curve = square.mul_(12).sub_(4)
        root = torch.addcmul((slope * slope).mul_(9), value, curve, value=-12).clamp(min=0).sqrt_()
        x = torch.addcdiv(x, value, slope.add_(root), value=-4)
    return x
