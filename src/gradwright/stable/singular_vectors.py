"""Singular values and singular vectors: a gradient where the loss has one, and else an error.

With ``K`` and ``J`` the skew parts of ``U^H g_U`` and ``V^H g_V``, the gradient through ``A = U diag(S) V^H`` is::

    U ((K + J) / (s_j - s_i) + (K - J) / (s_i + s_j) + diag(g_S)) V^H

and, where ``A`` is not square, what turns the vectors out of their space (Townsend 2016; here sums and differences of
singular values are kept apart, so that only what needs a difference has one). What holds of eigenvectors where values
coincide (``stable/eigenvectors.py``) holds of these.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gradwright.authoring.catalogue import Example
from gradwright.authoring.decorator import custom_gradient
from gradwright.authoring.exact import Point, exact, relative
from gradwright.stable.gauges import (
    ROTATION,
    SPLIT,
    TANGENT,
    ZERO,
    Gap,
    check_gap,
    clusters,
    determined,
    inverse_gaps,
    ratio,
    refuse_violations,
    splitting,
    spread,
    turned,
    vanishing,
)
from gradwright.stable.linear_algebra import (
    anywhere,
    complex_of,
    each,
    from_array,
    hermitian_part,
    largest,
    planted,
    reciprocal,
    skew_part,
    to_array,
)
from gradwright.stable.matrices import check_matrix, check_rank


class Svd(NamedTuple):
    """Singular values and vectors of a matrix."""

    U: Tensor
    """Left singular vectors, in the columns, of shape (..., m, k)."""
    S: Tensor
    """Singular values in descending order, of shape (..., k)."""
    Vh: Tensor
    """Right singular vectors, conjugated, in the rows, of shape (..., k, n)."""


def _svd_examples(dtype: torch.dtype) -> Sequence[Example]:
    return [
        Point((planted([3.0, 1.5, 0.5], 3, 30, dtype),), note="three by three"),
        Point((planted([2.0, 1.0], 3, 31, dtype),), note="tall"),
        Point((planted([2.0, 1.0], 3, 32, dtype).mT.contiguous(),), note="wide"),
        Point((planted([2.0, 1.0], 3, 33, complex_of(dtype)),), note="complex"),
        Point((planted([2.0, 1.0], 3, 34, complex_of(dtype)).mT.contiguous(),), note="complex and wide"),
        Point((torch.stack([planted([s, 1.0], 2, 35, dtype) for s in (2.0, 8.0)]),), note="a batch"),
        Point((planted([2.0, 1.0, 0.9], 3, 36, dtype),), {"gap": "zero"}, note="nearly equal"),
    ]


def _svd_observed(found: Svd) -> Tensor:
    """Return what does not depend on signs and phases: values, squares, and each term of the sum that is the matrix."""
    joint = found.U[..., :, None, :] * found.Vh.mT[..., None, :, :]
    parts = torch.cat([joint.real, joint.imag], -1) if joint.is_complex() else joint
    return torch.cat([found.S, parts.flatten(-3)], -1)


def _svd_reference(mp: Any, matrix: Any, rank: int | None = None) -> Any:
    import numpy as np

    u, s, vh = (to_array(x) for x in mp.svd(from_array(mp, matrix), full_matrices=False))
    joint = (u[:, None, :] * vh.T[None, :, :])[..., :rank]
    if matrix.dtype == object and any(isinstance(x, mp.mpc) for x in matrix.reshape(-1)):
        real, imaginary = (np.vectorize(part, otypes=[object])(joint) for part in (mp.re, mp.im))
        joint = np.concatenate([real, imaginary], -1)
    return np.concatenate([s.reshape(-1)[:rank], joint.reshape(-1)])


@exact(
    forward="U, S, V^H with A = U diag(S) V^H",
    gradient={
        "A": "U ((K + J) / (s_j - s_i) + (K - J) / (s_i + s_j) + diag(g_S)) V^H, K, J skew parts of U^H g_U, V^H g_V; "
        "(1 - U U^H) g_U S^-1 V^H; U S^-1 g_V^H (1 - V V^H)"
    },
    reference=lambda mp, matrix, gap, eta: each(lambda a: _svd_reference(mp, a), matrix),
    domain="every matrix; where singular values coincide or are zero, a gradient only for losses that have one",
    bars=relative(1e-12, 1e-5),
    examples=_svd_examples,
    elementwise=False,
    measure="tensor",
    observed=_svd_observed,
    replaces=lambda A: torch.linalg.svd(A, full_matrices=False),
    ordinary=lambda: (planted(torch.arange(32.0, 0.0, -1.0).tolist(), 32, 0, torch.float32).expand(64, 32, 32),),
    slower="singular values that coincide, or are zero, are looked for in both directions",
    paper="Townsend 2016; Liao et al. 2019, arXiv 1903.09650; pytorch#47599",
)
def svd(A: Tensor, *, gap: Gap = "raise", eta: float | None = None) -> Svd:
    """Return singular values and vectors of a matrix, in the reduced form; never a gradient that is not one.

    Where singular values coincide, or are zero, the loss may have no gradient. What is done then is as with
    :func:`~gradwright.stable.eigh`. For ``U V^H`` there is :func:`~gradwright.stable.orthogonal_factor`, for a sum of
    the largest terms :func:`~gradwright.stable.low_rank`: both have gradients there.

    Arguments:
        A: of shape (..., m, n), real or complex.
        gap: as for ``eigh``.
        eta: as for ``eigh``.

    Returns:
        ``(U, S, Vh)``, with ``k = min(m, n)`` values in descending order.

    Raises:
        UndefinedGradientError: the loss has no gradient. (In compiled code it is nan.)

    Example:
        >>> import torch, gradwright as gw
        >>> gw.stable.svd(torch.tensor([[0.0, 2.0], [1.0, 0.0]])).S
        tensor([2., 1.])
    """
    check_matrix("svd", "A", A)
    check_gap("svd", gap, eta)
    return Svd(*_svd(A, gap=gap, eta=eta))


@exact(
    forward="U, S, V^H of the largest singular values",
    gradient={"A": "that of svd, with cotangents of zero for what is left out"},
    reference=lambda mp, matrix, rank, gap, eta: each(lambda a: _svd_reference(mp, a, rank), matrix),
    domain="every matrix; where singular values coincide or are zero, a gradient only for losses that have one",
    bars=relative(1e-12, 1e-5),
    examples=lambda dtype: [Point((*p.args, 1), p.kwargs, p.note) for p in _svd_examples(dtype)[:6]],
    elementwise=False,
    measure="tensor",
    observed=_svd_observed,
    paper="Townsend 2016; Liao et al. 2019, arXiv 1903.09650",
)
def truncated_svd(A: Tensor, rank: int, *, gap: Gap = "raise", eta: float | None = None) -> Svd:
    """Return the largest singular values of a matrix with their vectors; never a gradient that is not one.

    Its gradient exists where those that are kept differ from each other and from the rest, and for losses that depend
    on spaces only, as :func:`~gradwright.stable.svd` says. The whole decomposition is computed.

    Arguments:
        A: of shape (..., m, n), real or complex.
        rank: how many are kept, from 1 to the smaller side.
        gap: as for ``eigh``.
        eta: as for ``eigh``.

    Returns:
        ``(U, S, Vh)``, with ``rank`` values in descending order.

    Raises:
        UndefinedGradientError: the loss has no gradient. (In compiled code it is nan.)

    Example:
        >>> import torch, gradwright as gw
        >>> gw.stable.truncated_svd(torch.diag(torch.tensor([1.0, 3.0, 2.0])), 2).S
        tensor([3., 2.])
    """
    check_matrix("truncated_svd", "A", A)
    check_rank("truncated_svd", rank, min(A.shape[-2:]))
    check_gap("truncated_svd", gap, eta)
    u, s, vh = _svd(A, gap=gap, eta=eta)
    return Svd(u[..., :rank], s[..., :rank], vh[..., :rank, :])


@custom_gradient
def _svd(A: Tensor, *, gap: Gap, eta: float | None) -> tuple[Tensor, Tensor, Tensor]:
    u, s, vh = torch.linalg.svd(A, full_matrices=False)
    if not s.shape[-1]:
        return u, s, vh
    same, zero = clusters(s), vanishing(s)
    v = turned(vh.mH, same)
    # Vectors of the singular value zero are turned independently on both sides.
    return turned(u, same), s, turned(v, zero[..., :, None] & zero[..., None, :]).mH


_JOINT = (
    "use gw.stable.low_rank or orthogonal_factor if the loss is of these, or choose gap='lorentzian' or gap='zero' for "
    "a derivative by convention."
)


@_svd.vjp
def _svd_vjp(
    g: tuple[Tensor, Tensor, Tensor], A: Tensor, out: tuple[Tensor, Tensor, Tensor], gap: Gap, eta: float | None
) -> Tensor:
    g_u, g_s, g_vh = g
    u, s, vh = out
    if not s.shape[-1]:
        return torch.zeros_like(A)
    same, inverse, inverse_sums, zero = _inverses(s)
    left, right = u.mH @ g_u, vh @ g_vh.mH
    k, j = skew_part(left), skew_part(right)
    inner = (k + j) * inverse_gaps(s, same, gap, eta) + (k - j) * inverse_sums + torch.diag_embed(g_s)
    outer_u, outer_v = g_u - u @ left, g_vh - right.mH @ vh
    found = u @ inner @ vh
    if A.shape[-2] > A.shape[-1]:
        found = found + (outer_u * inverse[..., None, :]) @ vh
    elif A.shape[-2] < A.shape[-1]:
        found = found + u @ (inverse[..., :, None] * outer_v)
    if gap != "raise" or (determined(u, same) and anywhere(zero) is False):
        return found
    size = torch.maximum(largest(g_u), largest(g_vh))
    both = zero[..., :, None] & zero[..., None, :]
    of_zero = torch.maximum(ratio(k, both, size), ratio(j, both, size))
    of_zero = torch.maximum(of_zero, _on_diagonal(g_s[..., None, :], zero))
    of_zero = torch.maximum(of_zero, _on_diagonal(outer_u, zero, size))
    of_zero = torch.maximum(of_zero, _on_diagonal(outer_v.mT, zero, size))
    violations = {
        ROTATION: ratio(k + j, same & ~both, size),
        SPLIT: torch.where(both, 0.0, spread(g_s, same)),
        ZERO: of_zero,
    }
    return refuse_violations("svd", [found], violations, s, _JOINT)[0]


def _inverses(s: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return which values are the same, ``1 / s``, ``1 / (s_i + s_j)``, both 0 for zeros, and which are zero."""
    zero = vanishing(s)
    sums = s[..., :, None] + s[..., None, :]
    both = zero[..., :, None] & zero[..., None, :]
    inverse = reciprocal(torch.where(zero, 0.0, s))
    return clusters(s), inverse, reciprocal(torch.where(both, 0.0, sums)), zero


def _on_diagonal(x: Tensor, zero: Tensor, size: Tensor | None = None) -> Tensor:
    """Return for each singular value of zero the largest element of its column, relative to the size."""
    with torch.no_grad():
        size = largest(x) if size is None else size
        columns = x.abs().amax(-2) if x.shape[-2] else torch.zeros_like(zero, dtype=x.real.dtype)
        return torch.diag_embed(torch.where(zero, columns * reciprocal(size)[..., None], 0.0))


@_svd.jvp
def _svd_jvp(
    t: Tensor, A: Tensor, out: tuple[Tensor, Tensor, Tensor], gap: Gap, eta: float | None
) -> tuple[Tensor, Tensor, Tensor]:
    u, s, vh = out
    if not s.shape[-1]:
        return out
    same, inverse, inverse_sums, zero = _inverses(s)
    v = vh.mH
    moved = u.mH @ t @ v
    together = 2 * hermitian_part(moved) * inverse_gaps(s, same, gap, eta)
    against = 2 * skew_part(moved) * inverse_sums
    outer_u, outer_v = t @ v - u @ moved, t.mH @ u - v @ moved.mH
    t_u = u @ ((together + against) * 0.5) + outer_u * inverse[..., None, :]
    t_v = v @ ((together - against) * 0.5) + outer_v * inverse[..., None, :]
    t_s = moved.diagonal(dim1=-2, dim2=-1).real
    if gap != "raise" or (determined(u, same) and anywhere(zero) is False):
        return t_u, t_s, t_v.mH
    size = largest(t)
    both = zero[..., :, None] & zero[..., None, :]
    split = torch.maximum(splitting(hermitian_part(moved), same), ratio(moved, both, size))
    split = torch.maximum(split, _on_diagonal(torch.cat([outer_u, outer_v], -2), zero, size))
    found = refuse_violations("svd", [t_u, t_s, t_v.mH], {TANGENT: split}, s, _JOINT)
    return found[0], found[1], found[2]
