"""Eigenvalues and eigenvectors of Hermitian matrices: a gradient where the loss has one, and else an error.

With ``E_ij = 1 / (w_j - w_i)`` and ``K`` the skew part of ``V^H g_V``, the gradient through ``A = V diag(w) V^H`` is::

    V (diag(g_w) + E * K) V^H

(Giles 2008). Where eigenvalues coincide PyTorch gives nan, or the quotient of two rounding errors. Here such pairs
contribute nothing if the loss allows it, which is tested, and else an error says so (``stable/gauges.py``). What is
left grows with the inverse of the gap, and so do its rounding errors: for functions of a space there is ``projector``.

Values count as the same where they differ by at most ``8 sqrt(n) eps`` times the largest one, ``eps`` being that of the
dtype: rounding alone moves them as far. A violation counts from the square root of ``eps`` on, relative to the largest
term of its kind.
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
)
from gradwright.stable.linear_algebra import (
    complex_of,
    each,
    from_array,
    hermitian_part,
    largest,
    planted_hermitian,
    skew_part,
    to_array,
)
from gradwright.stable.matrices import check_matrix, hermitian


class Eigh(NamedTuple):
    """Eigenvalues and eigenvectors of a Hermitian matrix."""

    eigenvalues: Tensor
    """Real, in ascending order, of shape (..., n)."""
    eigenvectors: Tensor
    """In the columns, of shape (..., n, n)."""


def _eigh_examples(dtype: torch.dtype) -> Sequence[Example]:
    return [
        Point((planted_hermitian([3.0, 1.5, -0.5], 1, dtype),), note="three by three"),
        Point((planted_hermitian([3.0, 1.5, -0.5], 2, complex_of(dtype)),), note="Hermitian"),
        Point((torch.stack([planted_hermitian([s, 1.0], 3, dtype) for s in (2.0, 8.0)]),), note="a batch"),
        Point((planted_hermitian([2.0, 1.1, 1.0], 4, dtype),), {"gap": "zero"}, note="nearly equal"),
    ]


def _weighed(vectors: Any, values: Any) -> Any:
    """Return values and, of each vector, the squares of its elements: neither depends on signs and phases."""
    return torch.cat([values, vectors.abs().square().flatten(-2)], -1)


@exact(
    forward="w, V with A V = V diag(w), V^H V = 1",
    gradient={"A": "V (diag(g_w) + E * K) V^H, E_ij = 1 / (w_j - w_i), 0 in clusters, K the skew part of V^H g_V"},
    reference=lambda mp, matrix, gap, eta: each(lambda a: _eigh_reference(mp, a), matrix),
    domain="symmetric and Hermitian matrices; where eigenvalues coincide, a gradient only for losses that have one",
    bars=relative(1e-12, 1e-5),
    examples=_eigh_examples,
    elementwise=False,
    measure="tensor",
    observed=lambda found: _weighed(found.eigenvectors, found.eigenvalues),
    replaces=torch.linalg.eigh,
    ordinary=lambda: (planted_hermitian(torch.arange(32.0).tolist(), 0, torch.float32).expand(64, 32, 32),),
    slower="the matrix is made Hermitian, and eigenvalues that coincide are looked for in both directions",
    paper="Giles 2008; Liao et al. 2019, arXiv 1903.09650; pytorch#47599",
)
def eigh(A: Tensor, *, gap: Gap = "raise", eta: float | None = None) -> Eigh:
    """Return eigenvalues and eigenvectors of a symmetric or Hermitian matrix; never a gradient that is not one.

    Where eigenvalues coincide, their eigenvectors are any basis of a space, so that a loss that depends on the basis
    has no gradient; one that does not has the right one here. Which is the case is tested in the backward, for second
    derivatives as well. Forward mode, which does not see the loss, raises if the tangent splits the eigenvalues.

    Of a space there is more to say with :func:`~gradwright.stable.projector`, to all orders.

    Arguments:
        A: of shape (..., n, n), real or complex; only its Hermitian part ``(A + A^H) / 2`` is used.
        gap: what is done about eigenvalues that coincide. ``"raise"``: they contribute nothing if the loss does not
            depend on the choice of eigenvectors, and else the backward raises; ``"zero"``: they contribute nothing, and
            nothing is tested; ``"lorentzian"``: each ``1 / d`` is replaced by ``d / (d^2 + eta)``, so that pairs that
            are nearly the same are damped too. The last two are another derivative, on request.
        eta: for ``"lorentzian"``, in the square of the unit of ``A``.

    Returns:
        ``(eigenvalues, eigenvectors)``, ascending. The basis of eigenvalues that coincide, and complex phases, are
        turned by fixed angles, so that the test cannot pass by chance.

    Raises:
        UndefinedGradientError: the loss has no gradient. (In compiled code it is nan.)

    Example:
        >>> import torch, gradwright as gw
        >>> A = torch.eye(2, dtype=torch.float64, requires_grad=True)
        >>> w, V = gw.stable.eigh(A)
        >>> torch.autograd.grad(w.sum(), A)[0].round(decimals=12)
        tensor([[1., 0.],
                [0., 1.]], dtype=torch.float64)
    """
    check_matrix("eigh", "A", A, square=True)
    hermitian("eigh", A)
    check_gap("eigh", gap, eta)
    return Eigh(*_eigh(A, gap=gap, eta=eta))


def _eigh_reference(mp: Any, matrix: Any) -> Any:
    import numpy as np

    a = from_array(mp, matrix)
    w, v = mp.eigh((a + a.H) / 2)
    squares = [mp.re(x * mp.conj(x)) for x in to_array(v).reshape(-1)]
    return np.array([*w, *squares], dtype=object)


@custom_gradient
def _eigh(A: Tensor, *, gap: Gap, eta: float | None) -> tuple[Tensor, Tensor]:
    w, v = torch.linalg.eigh(hermitian_part(A))
    return w, turned(v, clusters(w)) if w.shape[-1] else v


_SPACE = "use gw.stable.projector for spaces, or choose gap='lorentzian' or gap='zero' for a derivative by convention."


@_eigh.vjp
def _eigh_vjp(g: tuple[Tensor, Tensor], out: tuple[Tensor, Tensor], gap: Gap, eta: float | None) -> Tensor:
    g_w, g_v = g
    w, v = out
    if not w.shape[-1]:
        return torch.zeros_like(v)
    same = clusters(w)
    turning = v.mH @ g_v
    skew = skew_part(turning)
    found = v @ (inverse_gaps(w, same, gap, eta) * skew + torch.diag_embed(g_w)) @ v.mH
    if gap != "raise" or determined(v, same):
        return found
    violations = {ROTATION: ratio(skew, same, largest(turning)), SPLIT: spread(g_w, same)}
    return refuse_violations("eigh", [found], violations, w, _SPACE)[0]


@_eigh.jvp
def _eigh_jvp(t: Tensor, out: tuple[Tensor, Tensor], gap: Gap, eta: float | None) -> tuple[Tensor, Tensor]:
    w, v = out
    if not w.shape[-1]:
        return w, v
    same = clusters(w)
    moved = v.mH @ hermitian_part(t) @ v
    t_w = moved.diagonal(dim1=-2, dim2=-1).real
    t_v = v @ (inverse_gaps(w, same, gap, eta) * moved)
    if gap != "raise" or determined(v, same):
        return t_w, t_v
    found = refuse_violations("eigh", [t_w, t_v], {TANGENT: splitting(moved, same)}, w, _SPACE)
    return found[0], found[1]
