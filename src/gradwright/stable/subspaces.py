"""Spectral projectors and best approximations of low rank, whatever multiplicities there are on either side of the gap.

The projector onto the eigenspace of the ``k`` largest eigenvalues is a smooth function of the matrix as long as the
eigenvalues ``k`` and ``k + 1`` differ, while the eigenvectors that span it need not be. PyTorch differentiates through
these, and divides by every difference of eigenvalues. With ``G`` in the basis of eigenvectors only pairs across the gap
count (Daleckii and Krein 1965; Kato, *Perturbation Theory*, II.2)::

    dP_ij = G_ij / (w_i - w_j)     for i inside and j outside, or the other way round with its conjugate; else 0

This map is its own adjoint, since ``P`` is the gradient of the sum of the ``k`` largest eigenvalues; what moves it is
symmetric in both directions. With ``J = 2 P - 1`` and commutators ``[A, B] = A B - B A``::

    d2P(G, H) = - J (dP_G dP_H + dP_H dP_G) - L(J ([G, dP_H] + [H, dP_G]))

where ``L`` is the map ``G -> dP_G`` itself. No difference inside of either part occurs, in any order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

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
    planted_hermitian,
    reciprocal,
    refuse,
    resolution,
    to_array,
)
from gradwright.stable.matrices import check_matrix, check_rank, hermitian


def _projector_examples(dtype: torch.dtype) -> Sequence[Example]:
    paired = planted_hermitian([2.0, 2.0, 1.0, 1.0], 0, dtype)
    return [
        Point((planted_hermitian([3.0, 1.5, -0.5], 1, dtype), 1), note="three by three"),
        Point((paired, 2), note="equal eigenvalues on both sides"),
        Point((paired, 2), {"which": "smallest"}, note="the smallest ones"),
        Point((torch.diag(torch.tensor([1.0, 1.0, -2.0], dtype=dtype)), 2), note="diagonal"),
        Point((planted_hermitian([1.0, 1.0 - 1e-6, 0.2], 2, dtype), 2), note="nearly equal inside"),
        Point((planted_hermitian([1.0, 0.5, 0.5 - 1e-3], 3, dtype), 1), note="nearly equal outside"),
        Point((planted_hermitian([1.0, 1.0, -1.0], 4, complex_of(dtype)), 2), note="Hermitian"),
        Point((torch.stack([planted_hermitian([s, s, -s], 5, dtype) for s in (1.0, 8.0)]), 2), note="a batch"),
        Point((planted_hermitian([1.0, 0.5], 6, dtype), 2), note="all of it"),
        Point(
            (planted_hermitian([2.0, 1.0], 7, dtype) + torch.tensor([[0.0, 0.03], [-0.03, 0.0]], dtype=dtype), 1),
            note="not quite symmetric",
        ),
        Point((2.0**40 * planted_hermitian([2.0, 2.0, 1.0], 8, dtype), 2), note="huge", extreme=True),
        Point((2.0**-40 * planted_hermitian([2.0, 2.0, 1.0], 8, dtype), 2), note="tiny", extreme=True),
    ]


def _projector_reference(mp: Any, matrix: Any, rank: int, which: str) -> Any:
    def one(a: Any) -> Any:
        a = from_array(mp, a)
        n = a.rows
        _, v = mp.eigh((a + a.H) / 2)
        chosen = v[:, n - rank :] if which == "largest" else v[:, :rank]
        return to_array(chosen * chosen.H)

    return each(one, matrix)


def _through_eigh(A: Tensor, rank: int, *, which: str = "largest") -> Tensor:
    _, v = torch.linalg.eigh(A)
    v = v[..., -rank:] if which == "largest" else v[..., :rank]
    out: Tensor = v @ v.mH
    return out


@exact(
    forward="out = V V^H, of the eigenvectors V of the largest (smallest) eigenvalues w",
    gradient={"A": "V ((V^H g V)_ij / |w_i - w_j|) V^H over pairs of which one is inside, for the Hermitian part of g"},
    reference=_projector_reference,
    domain="symmetric and Hermitian matrices with a gap between the eigenvalues; else one of them, and no gradient",
    bars=relative(1e-12, 1e-5),
    examples=_projector_examples,
    elementwise=False,
    measure="tensor",
    replaces=_through_eigh,
    ordinary=lambda: (planted_hermitian(torch.arange(32.0).tolist(), 0, torch.float32).expand(64, 32, 32), 8),
    slower="the matrix is made Hermitian, and the gap at the edge of the space is judged",
    paper="Kato 1966; Daleckii, Krein 1965; pytorch#47599, #69532",
)
def projector(A: Tensor, rank: int, *, which: Literal["largest", "smallest"] = "largest") -> Tensor:
    """Return the projector onto the space of the eigenvectors with the largest or the smallest eigenvalues.

    It is differentiable to all orders as long as there is a gap at the edge of that space, however many eigenvalues
    coincide inside or outside of it. Second derivatives grow with the inverse square of the gap.

    Arguments:
        A: of shape (..., n, n), real or complex; only its Hermitian part ``(A + A^H) / 2`` is used.
        rank: how many eigenvectors, from 1 to n; the trace of the result.
        which: ``"largest"`` or ``"smallest"`` eigenvalues, sign included.

    Returns:
        a Hermitian tensor like ``A``.

    Raises:
        UndefinedGradientError: a gradient is asked for where there is no gap. (In compiled code it is nan.)

    Example:
        >>> import torch, gradwright as gw
        >>> A = torch.diag(torch.tensor([2.0, 2.0, 1.0])).requires_grad_()
        >>> P = gw.stable.projector(A, 2)
        >>> P.detach().diagonal()
        tensor([1., 1., 0.])
        >>> torch.autograd.grad(P[0, 2], A)[0]
        tensor([[0.0000, 0.0000, 0.5000],
                [0.0000, 0.0000, 0.0000],
                [0.5000, 0.0000, 0.0000]])
    """
    check_matrix("projector", "A", A, square=True)
    hermitian("projector", A)
    check_rank("projector", rank, A.shape[-1])
    if which not in ("largest", "smallest"):
        raise unknown_choice("projector: which", which, ("largest", "smallest"))
    w, v = torch.linalg.eigh(hermitian_part(A.detach()))
    inside = torch.zeros_like(w)
    edge = A.shape[-1] - rank if which == "largest" else rank
    (inside[..., edge:] if which == "largest" else inside[..., :edge]).fill_(1.0)
    f = _divided(inside, w[..., :, None] - w[..., None, :])
    scale = torch.maximum(w[..., -1].abs(), w[..., 0].abs()) if A.shape[-1] else w.sum(-1)
    return _projector(hermitian_part(A), v, inside, f, *_edge(w, edge, scale), name="projector")


def _low_rank_examples(dtype: torch.dtype) -> Sequence[Example]:
    return [
        Point((planted([2.0, 1.2, 0.5], 3, 20, dtype), 1), note="three by three"),
        Point((torch.eye(2, dtype=dtype), 2), note="all of the identity"),
        Point((planted([2.0, 2.0, 1.0], 3, 21, dtype), 2), note="two equal singular values inside"),
        Point((planted([1.5, 0.5, 0.5], 3, 22, dtype), 1), note="two outside"),
        Point((planted([1.0, 1.0], 4, 23, dtype), 2), note="tall, all of it"),
        Point((planted([1.0, 0.0], 3, 24, dtype), 1), note="of lower rank already"),
        Point((planted([2.0, 1.0], 3, 25, dtype).mT.contiguous(), 1), note="wide"),
        Point((planted([2.0, 2.0, 0.5], 3, 26, complex_of(dtype)), 2), note="complex"),
        Point((torch.stack([planted([s, 1.0], 2, 27, dtype) for s in (2.0, 3.0)]), 1), note="a batch"),
    ]


def _low_rank_reference(mp: Any, matrix: Any, rank: int) -> Any:
    def one(a: Any) -> Any:
        u, s, vh = mp.svd(from_array(mp, a), full_matrices=False)
        return to_array(u[:, :rank] * mp.diag(list(s)[:rank]) * vh[:rank, :])

    return each(one, matrix)


def _through_svd(A: Tensor, rank: int) -> Tensor:
    u, s, vh = torch.linalg.svd(A, full_matrices=False)
    out: Tensor = (u[..., :rank] * s[..., None, :rank]) @ vh[..., :rank, :]
    return out


@exact(
    forward="out = sum of s_i u_i v_i^H over the largest singular values s",
    gradient={"A": "g P + 2 A L(A^H g), with out = A P and the gradient L of the projector P of A^H A"},
    reference=_low_rank_reference,
    domain="matrices with a gap between the singular values at the rank; else one of them, and no gradient",
    bars=relative(1e-12, 1e-5),
    examples=_low_rank_examples,
    elementwise=False,
    measure="tensor",
    replaces=_through_svd,
    ordinary=lambda: (torch.randn(64, 32, 32), 8),
    paper="Eckart, Young 1936; Kato 1966",
)
def low_rank(A: Tensor, rank: int) -> Tensor:
    """Return the best approximation of a matrix by one of lower rank: a truncated singular value decomposition, joined.

    It is differentiable to all orders as long as there is a gap after the singular values that are kept, however many
    coincide on either side of it.

    Arguments:
        A: of shape (..., m, n), real or complex.
        rank: how many singular values are kept, from 1 to the smaller side.

    Returns:
        a tensor like ``A``.

    Raises:
        UndefinedGradientError: a gradient is asked for where there is no gap. (In compiled code it is nan.)

    Example:
        >>> import torch, gradwright as gw
        >>> gw.stable.low_rank(torch.diag(torch.tensor([3.0, 3.0, 1.0])), 2)
        tensor([[3., 0., 0.],
                [0., 3., 0.],
                [0., 0., 0.]])
    """
    check_matrix("low_rank", "A", A)
    check_rank("low_rank", rank, min(A.shape[-2:]))
    if A.shape[-2] < A.shape[-1]:
        return low_rank(A.mH, rank).mH
    _, s, vh = torch.linalg.svd(A.detach(), full_matrices=False)
    inside = torch.zeros_like(s)
    inside[..., :rank].fill_(1.0)
    # The eigenvalues of A^H A are squares, whose differences lose digits unless they are formed so.
    f = _divided(inside, (s[..., :, None] - s[..., None, :]) * (s[..., :, None] + s[..., None, :]))
    return A @ _projector(A.mH @ A, vh.mH, inside, f, *_edge(s, rank, s[..., 0]), name="low_rank")


def _divided(inside: Tensor, differences: Tensor) -> Tensor:
    """Return the divided differences of ``inside``, which is 1 or 0, with respect to the eigenvalues."""
    return (inside[..., :, None] - inside[..., None, :]) * reciprocal(differences)


def _edge(w: Tensor, place: int, scale: Tensor) -> tuple[Tensor, Tensor]:
    """Return the two sorted values around the edge, and whether they count as the same."""
    if place in (0, w.shape[-1]):
        return w.new_zeros((*w.shape[:-1], 2)), torch.zeros(w.shape[:-1], dtype=torch.bool, device=w.device)
    edge = w[..., place - 1 : place + 1]
    return edge, (edge[..., 0] - edge[..., 1]).abs() <= resolution(w.shape[-1], w.dtype) * scale


@custom_gradient(nondiff=("v", "inside", "f", "edge", "closed"))
def _projector(A: Tensor, v: Tensor, inside: Tensor, f: Tensor, edge: Tensor, closed: Tensor, *, name: str) -> Tensor:
    """Return the projector onto those eigenvectors ``v`` of a Hermitian matrix that are ``inside``.

    The rest stands for ``A``, and is no argument of its own: divided differences ``f`` of ``inside`` with respect to
    the eigenvalues, the two values at the ``edge``, and whether the gap between them is ``closed``.
    """
    return (v * inside[..., None, :]) @ v.mH


@_projector.vjp
def _projector_vjp(
    g: Tensor, A: Tensor, v: Tensor, inside: Tensor, f: Tensor, edge: Tensor, closed: Tensor, name: str
) -> dict[str, Tensor]:
    return {"A": _open(_moved(g, A, v, inside, f), g, edge, closed, name)}


@_projector.jvp
def _projector_jvp(
    t: dict[str, Any], A: Tensor, v: Tensor, inside: Tensor, f: Tensor, edge: Tensor, closed: Tensor, name: str
) -> Tensor:
    return _open(_moved(t["A"], A, v, inside, f), t["A"], edge, closed, name)


def _open(found: Tensor, g: Tensor, edge: Tensor, closed: Tensor, name: str) -> Tensor:
    """Refuse a derivative where there is no gap."""

    def message(one: float, other: float) -> str:
        values = "singular values" if name == "low_rank" else "eigenvalues"
        return (
            f"{name}: a gradient is asked for where there is no gap: the {values} on both sides of the edge are "
            f"{one:.6g} and {other:.6g}; expected different ones; choose a rank that takes all or none of those which "
            "coincide."
        )

    return refuse([found], closed & ~is_zero(g), lambda: edge.unbind(-1), message)[0]


@custom_gradient(nondiff=("v", "inside", "f"))
def _moved(g: Tensor, A: Tensor, v: Tensor, inside: Tensor, f: Tensor) -> Tensor:
    """Return how the projector moves when the matrix moves along the Hermitian part of ``g``; its own adjoint in it."""
    return v @ ((v.mH @ hermitian_part(g) @ v) * f) @ v.mH


@_moved.vjp
def _moved_vjp(
    h: Tensor, g: Tensor, A: Tensor, v: Tensor, inside: Tensor, f: Tensor, out: Tensor, needs: dict[str, bool]
) -> dict[str, Any]:
    back = _moved(h, A, v, inside, f)
    if not needs["A"]:
        return {"g": back}
    g, h = hermitian_part(g), hermitian_part(h)
    edge, closed = v.new_zeros((*v.shape[:-2], 2)).real, torch.zeros_like(v[..., 0, 0], dtype=torch.bool)
    signs = 2 * _projector(A, v, inside, f, edge, closed, name="") - torch.eye(v.shape[-1], dtype=v.dtype)
    both = out @ back + back @ out
    turned = g @ back - back @ g + h @ out - out @ h
    return {"g": back, "A": -(signs @ both) - _moved(signs @ turned, A, v, inside, f)}
