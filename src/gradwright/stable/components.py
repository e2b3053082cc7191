"""Small vectors and matrices as tuples of their components, each a tensor over the whole batch.

Arithmetic on whole components runs many times faster than along a last dimension of three, and needs no ``matmul``,
which autocast and TF32 would round.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

import torch
from torch import Tensor

from gradwright.errors import ArgumentError
from gradwright.stable.arguments import require_floating, widened

Vector: TypeAlias = tuple[Tensor, Tensor, Tensor]
Matrix: TypeAlias = tuple[Vector, Vector, Vector]
"""Rows."""


def checked(name: str, argument: str, x: Tensor, shape: tuple[int, ...], what: str) -> Tensor:
    """Return an argument as it is computed with: half types in float32.

    Raises:
        ArgumentError: it is not real floating point, or its last dimensions are not ``shape``.
    """
    require_floating(name, **{argument: x})
    if shape and tuple(x.shape[-len(shape) :]) != shape:
        raise ArgumentError(
            f"{name}: {argument} has shape {tuple(x.shape)}; expected (..., {', '.join(map(str, shape))}), {what}; "
            "put the components last, as movedim does."
        )
    return widened(x)


def vector(x: Tensor) -> Vector:
    """Return the components of ``(..., 3)``."""
    a, b, c = x.unbind(-1)
    return a, b, c


def matrix(x: Tensor) -> Matrix:
    """Return the components of ``(..., 3, 3)``."""
    a, b, c = x.unbind(-2)
    return vector(a), vector(b), vector(c)


def joined(parts: Iterable[Tensor]) -> Tensor:
    """Return components as the last dimension."""
    return torch.stack(tuple(parts)).movedim(0, -1).contiguous()  # faster than to write them there one by one


def joined_matrix(m: Matrix) -> Tensor:
    """Return a matrix as the last two dimensions."""
    flat = torch.stack((*m[0], *m[1], *m[2]))
    return flat.reshape(3, 3, *flat.shape[1:]).movedim((0, 1), (-2, -1)).contiguous()


def dot(a: Vector, b: Vector) -> Tensor:
    """Return the inner product."""
    return torch.addcmul(torch.addcmul(a[0] * b[0], a[1], b[1]), a[2], b[2])


def cross(a: Vector, b: Vector) -> Vector:
    """Return the vector product."""
    return (
        torch.addcmul(a[1] * b[2], a[2], b[1], value=-1),
        torch.addcmul(a[2] * b[0], a[0], b[2], value=-1),
        torch.addcmul(a[0] * b[1], a[1], b[0], value=-1),
    )


def scaled(x: Tensor, a: Vector) -> Vector:
    """Return ``x a``."""
    return x * a[0], x * a[1], x * a[2]


def plus(a: Vector, b: Vector) -> Vector:
    """Return ``a + b``."""
    return a[0] + b[0], a[1] + b[1], a[2] + b[2]


def moved(a: Vector, x: Tensor, b: Vector) -> Vector:
    """Return ``a + x b``."""
    return torch.addcmul(a[0], x, b[0]), torch.addcmul(a[1], x, b[1]), torch.addcmul(a[2], x, b[2])


def applied(m: Matrix, v: Vector) -> Vector:
    """Return ``m v``."""
    return dot(m[0], v), dot(m[1], v), dot(m[2], v)


def transposed(m: Matrix) -> Matrix:
    """Return the transpose."""
    (a, b, c), (d, e, f), (g, h, i) = m
    return (a, d, g), (b, e, h), (c, f, i)


def turned(h: Vector, r: Matrix) -> Matrix:
    """Return ``[h] r``: how a matrix moves that begins to turn about ``h``."""
    a, b, c = transposed(r)
    return transposed((cross(h, a), cross(h, b), cross(h, c)))


def turning(r: Matrix, g: Matrix) -> Vector:
    """Return the ``v`` for which ``<g, [h] r>`` is ``v . h``: the derivative along ``turned``."""
    (a, b, c), (p, q, s) = transposed(r), transposed(g)
    return plus(plus(cross(a, p), cross(b, q)), cross(c, s))
