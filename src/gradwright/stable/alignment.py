"""Rigid alignment of two sets of points, with gradients at symmetric and at flat sets, and where they coincide.

The rotation that brings points ``p`` as near as possible to points ``q`` is the proper orthogonal factor of their
covariance (Kabsch 1976; Umeyama 1991 for the sign). PyTorch differentiates through its singular vectors, which gives
nan or wrong numbers for a cube or a tetrahedron, whose extents are equal. The gradient needs only sums of two singular
values, of which the last one has the sign of the determinant (``stable/polar.py``).

The deviation that is left is stationary with respect to the rotation, so that its gradient needs no derivative of that
at all; only second derivatives do. Where it is zero it has a kink, as the norm of a vector has, and the subgradient of
least norm there is zero. Where several rotations are the best, it has a kink, too, in as many directions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gradwright.authoring.catalogue import Example
from gradwright.authoring.decorator import custom_gradient
from gradwright.authoring.exact import Point, exact, relative
from gradwright.errors import ArgumentError
from gradwright.stable.arguments import not_a_tensor
from gradwright.stable.linear_algebra import from_array, reciprocal, to_array
from gradwright.stable.matrices import check_matrix, readable
from gradwright.stable.polar import factor, factors, unique


class Alignment(NamedTuple):
    """A rigid motion, and what it leaves."""

    rotation: Tensor
    """Of shape (..., d, d)."""
    translation: Tensor
    """Of shape (..., d)."""
    rmsd: Tensor
    """The root of the weighted mean of the squared distances that are left, of shape (...)."""


TETRAHEDRON = ((1.0, 1.0, 1.0), (1.0, -1.0, -1.0), (-1.0, 1.0, -1.0), (-1.0, -1.0, 1.0))
ROTATION = ((0.0, -1.0, 0.0), (1.0, 0.0, 0.0), (0.0, 0.0, 1.0))


def _examples(dtype: torch.dtype) -> Sequence[Example]:
    def normal(*shape: int, seed: int) -> Tensor:
        return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)).to(dtype)

    regular = torch.tensor(TETRAHEDRON, dtype=dtype)
    turned = regular @ torch.tensor(ROTATION, dtype=dtype).mT
    points = normal(4, 3, seed=1)
    flat = points * torch.tensor([1.0, 1.0, 0.0], dtype=dtype)
    plane = normal(3, 2, seed=2)
    mirror = torch.tensor([-1.0, 1.0, 1.0], dtype=dtype)
    return [
        Point((points, points + normal(4, 3, seed=3) / 4), note="four points"),
        Point((regular, 1.5 * turned + 2), note="a tetrahedron and a larger one"),
        Point((flat, flat[:, [1, 0, 2]] * mirror + normal(4, 3, seed=4) / 4 * (flat != 0)), note="flat"),
        Point((points, points * mirror), note="a mirror image"),
        Point((plane, plane + normal(3, 2, seed=5) / 4, torch.tensor([1.0, 2.0, 0.5], dtype=dtype)), note="weights"),
        Point((plane, plane * mirror[:2]), {"reflection": True}, note="a mirror image, reflected", orders=1),
        Point((plane, plane.clone()), note="the same points", orders=1),
        Point((regular, turned + 1), note="the same tetrahedron, moved", orders=1),
        Point((torch.stack([plane, 2 * plane]), normal(2, 3, 2, seed=6)), note="a batch"),
    ]


def _reference(mp: Any, p: Any, q: Any, weights: Any, reflection: bool) -> Any:
    import numpy as np

    if p.ndim > 2:
        rest = weights if weights is not None else [None] * len(p)
        return np.stack([_reference(mp, *each, reflection) for each in zip(p, q, rest)])
    w = np.array([mp.mpf(1)] * len(p)) if weights is None else weights
    w = w / sum(w)
    p_mean, q_mean = w @ p, w @ q
    p, q = p - p_mean, q - q_mean
    u, _, vh = mp.svd(from_array(mp, q.T @ (w[:, None] * p)))
    if mp.det(u * vh) < 0 and not reflection:
        u[:, u.cols - 1] = -u[:, u.cols - 1]
    r = to_array(u * vh)
    left = (w[:, None] * (p @ r.T - q) ** 2).sum()
    return np.concatenate([r.reshape(-1), q_mean - r @ p_mean, [mp.sqrt(left)]])


def _through_svd(P: Tensor, Q: Tensor) -> Alignment:
    p, q = P.mean(-2), Q.mean(-2)
    u, _, vh = torch.linalg.svd((Q - q[..., None, :]).mT @ (P - p[..., None, :]))
    signs = torch.ones_like(p)
    signs[..., -1] = torch.linalg.det(u @ vh)
    r = u * signs[..., None, :] @ vh
    left = (P - p[..., None, :]) @ r.mT - (Q - q[..., None, :])
    return Alignment(r, q - (r @ p[..., None])[..., 0], left.square().sum(-1).mean(-1).sqrt())


@exact(
    forward="R, t with the least sum of w |R p + t - q|^2, and the root of that mean",
    gradient={
        "P": "of R: that of the factor of the covariance; of rmsd: w R^T (R p + t - q) / rmsd, and 0 where that is 0",
        "Q": "likewise",
        "weights": "likewise",
    },
    reference=_reference,
    domain="points in one or more dimensions that do not all lie on a line (in a plane, with reflections)",
    bars=relative(1e-12, 1e-5),
    examples=_examples,
    elementwise=False,
    measure="tensor",
    observed=lambda found: torch.cat([found.rotation.flatten(-2), found.translation, found.rmsd[..., None]], -1),
    replaces=_through_svd,
    ordinary=lambda: (torch.randn(256, 64, 3), torch.randn(256, 64, 3)),
    paper="Kabsch 1976; Umeyama 1991; pytorch#47599",
)
def kabsch(P: Tensor, Q: Tensor, weights: Tensor | None = None, *, reflection: bool = False) -> Alignment:
    """Return the rigid motion that brings points as near as possible to others, by the Kabsch algorithm.

    It minimises the weighted sum of ``|R p + t - q|^2`` over rotations ``R`` and translations ``t``.

    Arguments:
        P: points to be moved, of shape (..., n, d).
        Q: where they are to go, of the same shape.
        weights: of shape (..., n), not negative; by default all the same.
        reflection: whether a mirror image may be made, too.

    Returns:
        ``(rotation, translation, rmsd)``. A deviation that is not larger than rounding makes it is zero, and so is its
        gradient (the subgradient of least norm).

    Raises:
        ArgumentError: the shapes or dtypes do not fit, or a weight is negative. (In compiled code the weights are not
            looked at.)
        UndefinedGradientError: a gradient is asked for where several rotations are the best: for points on a line, or a
            mirror image with two equal extents. (In compiled code it is nan.)

    Example:
        >>> import torch, gradwright as gw
        >>> P = torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.0, 2.0]])
        >>> found = gw.stable.kabsch(P, P @ torch.tensor([[0.0, 1.0], [-1.0, 0.0]]) + 3)
        >>> found.rotation.round(decimals=4) + 0
        tensor([[ 0., -1.],
                [ 1.,  0.]])
        >>> found.translation.round(decimals=4)
        tensor([3., 3.])
    """
    _check(P, Q, weights)
    w = torch.full_like(P[..., 0], 1 / max(P.shape[-2], 1)) if weights is None else weights / weights.sum(-1, True)
    w = w[..., None]
    p, q = (w * P).sum(-2), (w * Q).sum(-2)
    moved, still = P - p[..., None, :], Q - q[..., None, :]
    covariance, proper = still.mT @ (w * moved), not reflection
    u, s, v = factors(covariance, proper=proper)
    r = factor(covariance, u, s, v, proper=proper, name="kabsch")
    size = (w * (P.square() + Q.square())).detach().sum((-2, -1)).sqrt()
    deviation = _deviation(moved, still, w, r, s, 16 * torch.finfo(P.dtype).eps * size, proper=proper)
    return Alignment(r, q - (r @ p[..., None])[..., 0], deviation)


def _check(P: Tensor, Q: Tensor, weights: Tensor | None) -> None:
    for argument, x in (("P", P), ("Q", Q)):
        check_matrix("kabsch", argument, x)
        if x.is_complex():
            raise ArgumentError(
                f"kabsch: {argument} has dtype {x.dtype}; expected real points; give real and imaginary "
                "parts as two coordinates."
            )
    if P.shape != Q.shape or P.dtype != Q.dtype:
        raise ArgumentError(
            f"kabsch: P is {P.dtype} of shape {tuple(P.shape)} and Q is {Q.dtype} of shape {tuple(Q.shape)}; expected "
            "the same, since each point has its counterpart; make them alike."
        )
    if weights is not None and not isinstance(weights, Tensor):
        raise not_a_tensor("kabsch", "weights", weights, "a floating-point tensor")
    if weights is not None and (weights.shape != P.shape[:-1] or weights.dtype != P.dtype):
        raise ArgumentError(
            f"kabsch: weights is {weights.dtype} of shape {tuple(weights.shape)}; expected {P.dtype} and one for each "
            f"point, {tuple(P.shape[:-1])}; expand or convert it."
        )
    if weights is not None and readable(weights) and bool((weights < 0).any()):
        raise ArgumentError(
            f"kabsch: weights has negative elements, down to {float(weights.min()):.3g}; expected none below 0, since "
            "then no motion need be the best; leave points out with a weight of 0."
        )


@custom_gradient(nondiff=("s", "rounding"))
def _deviation(
    moved: Tensor, still: Tensor, w: Tensor, r: Tensor, s: Tensor, rounding: Tensor, *, proper: bool
) -> Tensor:
    """Return the deviation that is left, stationary with respect to the rotation, of which it has no gradient.

    Where it is no larger than what ``rounding`` makes it, it is zero.
    """
    left = (w * (moved @ r.mT - still).square()).sum((-2, -1)).sqrt()
    return torch.where(left > rounding, left, 0.0)


@_deviation.vjp
def _deviation_vjp(
    g: Tensor, moved: Tensor, still: Tensor, w: Tensor, r: Tensor, s: Tensor, proper: bool, out: Tensor
) -> dict[str, Tensor]:
    left = moved @ r.mT - still
    scale = (g * reciprocal(out))[..., None, None]
    pulled = unique(scale * w * left, scale, s, proper, "kabsch")
    return {
        "moved": pulled @ r,
        "still": -pulled,
        "w": 0.5 * scale * left.square().sum(-1, keepdim=True),
        "r": torch.zeros_like(r),
    }
