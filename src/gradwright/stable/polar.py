"""Polar decomposition and the nearest orthogonal matrix, also where singular values are repeated.

``A = Q P`` with ``Q`` orthogonal (unitary) and ``P`` positive definite, for ``A = U diag(s) V^H`` that is ``Q = U V^H``
and ``P = V diag(s) V^H``. PyTorch differentiates through ``U`` and ``V``, which need ``s_i - s_j``: nan where two are
the same, and wrong where they nearly are. ``Q`` needs none of that. From ``P W + W P = Q^H dA - dA^H Q``::

    dQ = Q W + (I - Q Q^H) dA P^-1,        in the basis V:  W_ij = (Q^H dA - dA^H Q)_ij / (s_i + s_j)

(Kenney and Laub 1991; Higham, *Functions of Matrices*, 8.4). The map ``dA -> dQ`` is its own adjoint, since ``Q`` is
the gradient of the nuclear norm. Second derivatives come from the same two equations.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from gradwright.authoring.catalogue import Example
from gradwright.authoring.decorator import custom_gradient
from gradwright.authoring.exact import Point, exact, relative
from gradwright.errors import unknown_choice
from gradwright.stable.linear_algebra import (
    complex_of,
    each,
    from_array,
    hermitian_part,
    is_zero,
    planted,
    reciprocal,
    refuse,
    resolution,
    to_array,
)
from gradwright.stable.matrices import check_matrix


class Polar(NamedTuple):
    """The two factors of a polar decomposition."""

    orthogonal: Tensor
    """``Q``, of the shape of the matrix, with orthonormal columns or rows."""
    positive: Tensor
    """``P``, square and positive semidefinite."""


def _examples(dtype: torch.dtype) -> Sequence[Example]:
    return [
        Point((planted([1.7, 1.1, 0.6], 3, 0, dtype),), note="three by three"),
        Point((torch.eye(3, dtype=dtype),), note="the identity"),
        Point((-2.0 * torch.eye(2, dtype=dtype),), note="a multiple of the identity"),
        Point((planted([2.0, 2.0, 0.5], 3, 1, dtype),), note="two equal singular values"),
        Point((planted([1.0, 1.0, 1e-2], 3, 2, dtype),), note="nearly singular"),
        Point((planted([1.0, 1.0 + 1e-6], 3, 3, dtype),), note="tall, nearly equal"),
        Point((planted([1.5, 1.5], 3, 4, dtype).mT.contiguous(),), note="wide"),
        Point((planted([1.2, 1.2, 0.7], 3, 5, complex_of(dtype)),), note="complex"),
        Point((planted([1.0, 1.0], 3, 6, complex_of(dtype)).mT.contiguous(),), note="complex and wide"),
        Point((torch.stack([planted([1.0, 1.0], 2, 7, dtype), planted([3.0, 0.5], 2, 8, dtype)]),), note="a batch"),
        Point((2.0**60 * planted([1.0, 1.0], 2, 11, dtype),), note="huge", extreme=True),
        Point((2.0**-60 * planted([1.0, 1.0], 2, 9, dtype),), note="tiny", extreme=True),
    ]


def _rotations(dtype: torch.dtype) -> Sequence[Example]:
    mirrored, flat = (planted(singular, 3, 10, dtype) for singular in ([1.5, 1.5, 0.5], [1.0, 1.0, 0.0]))
    mirrored = mirrored * -torch.linalg.det(mirrored).sign()
    return [
        *_examples(dtype),
        Point((mirrored,), {"proper": True}, note="a mirror image"),
        Point((torch.eye(3, dtype=dtype),), {"proper": True}, note="the identity, as a rotation"),
        Point((flat,), {"proper": True}, note="flat"),
    ]


def _sides(dtype: torch.dtype) -> Sequence[Example]:
    return [*_examples(dtype), *(Point(e.args, {"side": "left"}, f"{e.note}, left") for e in _examples(dtype)[4:7])]


def _reference(mp: Any, matrix: Any, *, proper: bool = False, side: str = "right") -> Any:
    """Return both factors of one matrix."""
    u, s, vh = mp.svd(from_array(mp, matrix), full_matrices=False)
    if proper and mp.det(u * vh) < 0:
        u[:, u.cols - 1] = -u[:, u.cols - 1]
    p = vh.H * mp.diag(list(s)) * vh if side == "right" else u * mp.diag(list(s)) * u.H
    return to_array(u * vh), to_array(p)


def _through_svd(A: Tensor) -> Tensor:
    u, _, vh = torch.linalg.svd(A, full_matrices=False)
    out: Tensor = u @ vh
    return out


@exact(
    forward="out = U V^H, for A = U diag(s) V^H",
    gradient={"A": "Q W + (I - Q Q^H) g P^-1 with P W + W P = Q^H g - g^H Q"},
    reference=lambda mp, matrix, proper: each(lambda one: _reference(mp, one, proper=proper)[0], matrix),
    domain="matrices of full rank; for others one of their factors, and no gradient",
    bars=relative(1e-12, 1e-5),
    examples=_rotations,
    elementwise=False,
    measure="tensor",
    replaces=_through_svd,
    ordinary=lambda: (torch.randn(64, 32, 32),),
    paper="Kenney, Laub 1991; Higham 2008, chapter 8; pytorch#47599",
)
def orthogonal_factor(A: Tensor, *, proper: bool = False) -> Tensor:
    """Return the orthogonal (unitary) matrix that is nearest to a matrix, differentiable at repeated singular values.

    It is ``U V^H`` of the singular value decomposition, also called the polar factor, or the solution of the orthogonal
    Procrustes problem: of all matrices with orthonormal columns (rows, if it is wide) it maximises ``Re tr(Q^H A)``.

    Arguments:
        A: of shape (..., m, n), real or complex.
        proper: whether the determinant is to be 1, as that of rotations: the nearest such matrix. For square, real
            matrices. It has a derivative as long as at most one singular value is zero, and the smallest two are not
            the same where the determinant of ``A`` is negative.

    Returns:
        a tensor like ``A``.

    Raises:
        UndefinedGradientError: a gradient is asked for where ``A`` has not the rank that it takes. (In compiled code
            the gradient is nan there.)

    Example:
        >>> import torch, gradwright as gw
        >>> A = torch.eye(2, dtype=torch.float64, requires_grad=True)
        >>> out = gw.stable.orthogonal_factor(A)
        >>> torch.autograd.grad(out[0, 1], A)[0]
        tensor([[ 0.0000,  0.5000],
                [-0.5000,  0.0000]], dtype=torch.float64)
    """
    check_matrix("orthogonal_factor", "A", A, square=proper)
    if proper and A.is_complex():
        raise unknown_choice("orthogonal_factor: proper, for a complex matrix", proper, ("False",))
    return _nearest("orthogonal_factor", A, proper=proper)


def _nearest(name: str, A: Tensor, *, proper: bool) -> Tensor:
    """Return the orthogonal factor of a matrix; errors speak of the function with that name."""
    if A.shape[-2] < A.shape[-1]:
        return _nearest(name, A.mH, proper=proper).mH
    return factor(A, *factors(A, proper=proper), proper=proper, name=name)


def factors(A: Tensor, *, proper: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Return ``u, s, v`` with ``A = u diag(s) v^H`` and no derivatives; the last ``s`` may be negative if proper."""
    u, s, vh = torch.linalg.svd(A.detach(), full_matrices=False)
    if proper and s.shape[-1]:
        flip = torch.linalg.det(u).sign() * torch.linalg.det(vh).sign()
        last = torch.cat([torch.ones_like(s[..., 1:]), flip[..., None]], -1)
        u, s = u * last[..., None, :], s * last
    return u, s, vh.mH


@exact(
    forward="Q = U V^H, P = V diag(s) V^H, for A = U diag(s) V^H",
    gradient={"A": "that of Q for g_Q + A (g_P + g_P^H) / 2, and Q (g_P + g_P^H) / 2"},
    reference=lambda mp, matrix, side: each(lambda one: _side_by_side(*_reference(mp, one, side=side)), matrix),
    domain="matrices of full rank; for others one of their factors, and no gradient",
    bars=relative(1e-12, 1e-5),
    examples=_sides,
    elementwise=False,
    measure="tensor",
    observed=lambda found: torch.cat([found.orthogonal.flatten(-2), found.positive.flatten(-2)], -1),
    replaces=lambda A: Polar(_through_svd(A), _through_svd(A).mH @ A),
    ordinary=lambda: (torch.randn(64, 32, 32),),
    paper="Higham 2008, chapter 8",
)
def polar(A: Tensor, *, side: Literal["right", "left"] = "right") -> Polar:
    """Return the polar decomposition of a matrix, differentiable at repeated singular values.

    Arguments:
        A: of shape (..., m, n), real or complex.
        side: ``"right"``: ``A = Q P``; ``"left"``: ``A = P Q``.

    Returns:
        ``Q``, like ``A``, and ``P``, of shape (..., n, n), or (..., m, m) on the left: the square root of ``A^H A``, or
        of ``A A^H``.

    Raises:
        UndefinedGradientError: a gradient is asked for where ``A`` has not full rank. (In compiled code it is nan.)

    Example:
        >>> import torch, gradwright as gw
        >>> polar = gw.stable.polar(torch.tensor([[0.0, -2.0], [2.0, 0.0]]))
        >>> polar.orthogonal
        tensor([[ 0., -1.],
                [ 1.,  0.]])
        >>> polar.positive
        tensor([[2., 0.],
                [0., 2.]])
    """
    check_matrix("polar", "A", A)
    if side not in ("right", "left"):
        raise unknown_choice("polar: side", side, ("right", "left"))
    q = _nearest("polar", A, proper=False)
    return Polar(q, hermitian_part(q.mH @ A if side == "right" else A @ q.mH))


def _side_by_side(*arrays: Any) -> Any:
    import numpy as np

    return np.concatenate([array.reshape(-1) for array in arrays])


@custom_gradient(nondiff=("u", "s", "v"))
def factor(A: Tensor, u: Tensor, s: Tensor, v: Tensor, *, proper: bool, name: str) -> Tensor:
    """Return ``u v^H``, the orthogonal factor of a matrix with at least as many rows as columns.

    What it is made of stands for ``A``, and is no argument of its own: it has no derivative. The values in ``s`` are
    positive, but the last one may be negative where the factor is to be proper.
    """
    return u @ v.mH


@factor.vjp
def factor_vjp(g: Tensor, A: Tensor, s: Tensor, v: Tensor, proper: bool, name: str, out: Tensor) -> dict[str, Tensor]:
    return {"A": unique(_turned(g, A, out, s, v), g, s, proper, name)}


@factor.jvp
def factor_jvp(t: dict[str, Any], A: Tensor, s: Tensor, v: Tensor, proper: bool, name: str, out: Tensor) -> Tensor:
    return unique(_turned(t["A"], A, out, s, v), t["A"], s, proper, name)


def _turned(g: Tensor, A: Tensor, q: Tensor, s: Tensor, v: Tensor) -> Tensor:
    """Return how the orthogonal factor moves when the matrix moves along ``g``; this is its own adjoint."""
    along = q.mH @ g
    p = hermitian_part(q.mH @ A)
    found = q @ _sylvester(p, along, s, v)
    if A.shape[-2] > A.shape[-1]:
        found = found + _divided(g - q @ along, p, s, v)
    return found


def unique(found: Tensor, g: Tensor, s: Tensor, proper: bool, name: str) -> Tensor:
    """Refuse a derivative where the orthogonal factor is not unique."""
    size = s.shape[-1]
    if size == 0 or (proper and size == 1):  # one number has the sign that is prescribed
        return found
    least = s[..., -1] + s[..., -2] if proper else s[..., -1]
    bad = (least <= resolution(size, s.dtype) * s[..., 0]) & ~is_zero(g)

    def message(most: float, least: float) -> str:
        return f"{name}: a gradient is asked for {_PROPER if proper else _ANY}".format(most=most, least=least)

    return refuse([found], bad, lambda: (s[..., 0], least), message)[0]


_ANY = (
    "at a matrix without full rank (singular values from {most:.3g} down to {least:.3g}), whose orthogonal factor is "
    "not unique; expected full rank; keep the matrix away from singular ones, or use "
    "gw.stable.orthogonal_factor(proper=True) for rotations, which takes one rank less."
)
_PROPER = (
    "where two rotations are equally near (of the matrix, or the covariance of the points, the two smallest singular "
    "values, the last one with the sign of the determinant, add up to {least:.3g}, and the largest is {most:.3g}); "
    "expected one nearest rotation; points must not all lie on a line, nor be a mirror image with two equal extents."
)


@custom_gradient(nondiff=("s", "v"))
def _sylvester(p: Tensor, c: Tensor, s: Tensor, v: Tensor) -> Tensor:
    """Return the skew solution of ``p x + x p = c - c^H``, for a Hermitian ``p = v diag(s) v^H``."""
    c = v.mH @ c @ v
    sums = s[..., :, None] + s[..., None, :]
    # The difference is formed last: its diagonal is exactly zero for real numbers, where a sum may be so too.
    return v @ ((c - c.mH) * reciprocal(sums)) @ v.mH


@_sylvester.vjp
def _sylvester_vjp(g: Tensor, p: Tensor, s: Tensor, v: Tensor, out: Tensor, needs: dict[str, bool]) -> dict[str, Any]:
    back = _sylvester(p, g, s, v)
    return {"c": back, "p": (back @ out + out @ back) * 0.5 if needs["p"] else None}


@custom_gradient(nondiff=("s", "v"))
def _divided(c: Tensor, p: Tensor, s: Tensor, v: Tensor) -> Tensor:
    """Return ``c p^-1``, for a Hermitian ``p = v diag(s) v^H``."""
    return (c @ v) * reciprocal(s)[..., None, :] @ v.mH


@_divided.vjp
def _divided_vjp(g: Tensor, p: Tensor, s: Tensor, v: Tensor, out: Tensor, needs: dict[str, bool]) -> dict[str, Any]:
    back = _divided(g, p, s, v)
    return {"c": back, "p": -(out.mH @ back) if needs["p"] else None}
