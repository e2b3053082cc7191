"""Rotations in numbers of any precision: what the entries about them are proved against, and nothing else.

Plain formulae, taken from textbooks; none is used by what it proves. Vectors and matrices are nested sequences.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def each(function: Callable[..., Any], *batches: Any, dims: int = 1) -> Any:
    """Return the results of a function for each element of batches, broadcast; an element has so many dimensions."""
    import numpy as np

    shape = np.broadcast_shapes(*(batch.shape[: batch.ndim - dims] for batch in batches))
    whole = [np.broadcast_to(batch, (*shape, *batch.shape[batch.ndim - dims :])) for batch in batches]

    def inside(*parts: Any) -> Any:
        return function(*parts) if parts[0].ndim == dims else [inside(*elements) for elements in zip(*parts)]

    return inside(*whole)


def norm(mp: Any, v: Any) -> Any:
    """Return the length of a vector."""
    return mp.sqrt(mp.fsum(x * x for x in v))


def cross(a: Any, b: Any) -> list[Any]:
    """Return the vector product."""
    return [a[1] * b[2] - a[2] * b[1], a[2] * b[0] - a[0] * b[2], a[0] * b[1] - a[1] * b[0]]


def product(a: Any, b: Any) -> list[list[Any]]:
    """Return the product of two matrices."""
    return [[sum(x * y for x, y in zip(row, column)) for column in zip(*b)] for row in a]


def nearest(mp: Any, m: Any) -> list[list[Any]]:
    """Return the nearest rotation to a matrix with a positive determinant, by Newton's method for the polar factor."""
    x = [list(row) for row in m]
    while True:
        cof = [cross(x[1], x[2]), cross(x[2], x[0]), cross(x[0], x[1])]
        det = sum(p * q for p, q in zip(x[0], cof[0]))
        new = [[(p + q / det) / 2 for p, q in zip(*rows)] for rows in zip(x, cof)]
        change = max(abs(p - q) for rows in zip(new, x) for p, q in zip(*rows))
        x = new
        if change < mp.mpf(10) ** (5 - mp.mp.dps):
            return x


def hat(w: Any) -> list[list[Any]]:
    """Return the matrix of ``v -> w x v``."""
    x, y, z = w
    return [[0 * x, -z, y], [z, 0 * x, -x], [-y, x, 0 * x]]


def polynomial(mp: Any, w: Any, first: Any, second: Any) -> list[list[Any]]:
    """Return ``I + first [w] + second [w]^2``."""
    one = hat(w)
    two = product(one, one)
    return [[(i == j) + first * one[i][j] + second * two[i][j] for j in range(3)] for i in range(3)]


def exponential(mp: Any, w: Any) -> list[list[Any]]:
    """Return the matrix of a rotation vector, by Rodrigues' formula."""
    angle = norm(mp, w)
    if angle == 0:
        return polynomial(mp, w, 1, 0)
    return polynomial(mp, w, mp.sin(angle) / angle, (1 - mp.cos(angle)) / angle**2)


def left_jacobian(mp: Any, w: Any) -> list[list[Any]]:
    """Return the integral of ``exp(t w)`` over ``t`` from 0 to 1."""
    angle = norm(mp, w)
    if angle == 0:
        return polynomial(mp, w, 0, 0)
    return polynomial(mp, w, (1 - mp.cos(angle)) / angle**2, (angle - mp.sin(angle)) / angle**3)


def left_jacobian_inverse(mp: Any, w: Any) -> list[list[Any]]:
    """Return the inverse of :func:`left_jacobian`."""
    angle = norm(mp, w)
    if angle == 0:
        return polynomial(mp, w, 0, 0)
    return polynomial(mp, w, -mp.mpf(1) / 2, 1 / angle**2 - mp.cot(angle / 2) / (2 * angle))


def logarithm(mp: Any, m: Any) -> list[Any]:
    """Return the rotation vector of the nearest rotation."""
    r = nearest(mp, m)
    v = [(r[2][1] - r[1][2]) / 2, (r[0][2] - r[2][0]) / 2, (r[1][0] - r[0][1]) / 2]
    sine, cosine = norm(mp, v), (r[0][0] + r[1][1] + r[2][2] - 1) / 2
    if sine != 0:
        return [x * mp.atan2(sine, cosine) / sine for x in v]
    if cosine > 0:
        return v
    k = max(range(3), key=lambda k: r[k][k])
    axis = [r[i][k] + (i == k) for i in range(3)]
    return [x * mp.pi / norm(mp, axis) for x in axis]


def quaternion(mp: Any, w: Any) -> list[Any]:
    """Return the quaternion of a rotation vector."""
    angle = norm(mp, w)
    if angle == 0:
        return [mp.mpf(1), *(x / 2 for x in w)]
    return [mp.cos(angle / 2), *(x * mp.sin(angle / 2) / angle for x in w)]


def multiplied(p: Any, q: Any) -> list[Any]:
    """Return the Hamilton product."""
    turn = cross(p[1:], q[1:])
    scalar = p[0] * q[0] - sum(x * y for x, y in zip(p[1:], q[1:]))
    return [scalar, *(p[0] * y + q[0] * x + z for x, y, z in zip(p[1:], q[1:], turn))]


def rotated(mp: Any, q: Any, v: Any) -> list[Any]:
    """Return the vector part of ``q v q^-1``."""
    inverse = [x / norm(mp, q) ** 2 for x in (q[0], -q[1], -q[2], -q[3])]
    return multiplied(multiplied(q, [0 * v[0], *v]), inverse)[1:]
