"""Distances of points to points, with second derivatives and forward mode, and without cancellation.

PyTorch multiplies matrices for the Euclidean distance, ``|a| ** 2 + |b| ** 2 - 2 a b``, which has no digits left for
points that are close to each other and far from the origin; and its ``cdist`` and ``pdist`` have neither a second
derivative nor forward mode. Here differences come first, always. With ``u = a - b``, ``n = u / |u|_p`` and
``s = sign(n) |n| ** (p - 1)``, the derivatives with respect to ``u`` are

    first:   s
    second:  (p - 1) (diag(|n| ** (p - 2)) - s s') / |u|_p

and zero where the points are the same, as the subgradient of minimum norm says. The sums of the backward pass could
be products of matrices as well, ``a sum(w) - w b``; they cancel in the same way, so that they are not.

No tensor of all differences is kept, and none is made for the values and the first derivatives of p = 1 and 2, for
which PyTorch has kernels. Where there is none, differences are formed for some rows of points at a time.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from gradwright.authoring.catalogue import Example, grid
from gradwright.authoring.decorator import custom_gradient
from gradwright.authoring.exact import HALF, Point, exact, relative
from gradwright.errors import ArgumentError, OptionError
from gradwright.stable.arguments import require_floating, require_number, widened
from gradwright.stable.scaling import scale_for
from gradwright.torch_compat.kernels import cdist_backward

BLOCK = 2**20
"""How many numbers of differences there are at a time."""
KERNEL = "donot_use_mm_for_euclid_dist"


# -------------------------------------------------------------------- the rules


@custom_gradient
def _distances(x1: Tensor, x2: Tensor, p: float) -> Tensor:
    """Return the distances (..., n, m) of points (..., n, d) to points (..., m, d), of the same batches."""
    return _values(x1, x2, p)


@_distances.vjp
def _distances_vjp(g: Tensor, x1: Tensor, x2: Tensor, p: float, out: Tensor, needs: Any) -> dict[str, Tensor | None]:
    return {
        "x1": _pulled(g, x1, x2, out, p) if needs["x1"] else None,
        "x2": _pulled(g.mT, x2, x1, out.mT, p) if needs["x2"] else None,
    }


@custom_gradient
def _pulled(g: Tensor, x1: Tensor, x2: Tensor, distances: Tensor, p: float) -> Tensor:
    """Return the sums over the other points of ``g s``; ``distances`` follow from the points."""
    a, b, weight = widened(x1), widened(x2), widened(g)
    if p in (1, 2):
        # The scale hands the batch of the cotangent on to the others, since the kernel wants it in each (torch 2.13).
        scale = _scale(a, b) + weight.new_zeros(())
        total = cdist_backward(weight, a * scale, b * scale, p, widened(distances) * scale)
    else:
        rows = [(weight[..., at, :, None] * _parts(u, p)[0]).sum(-2) for at, u in _blocks(a, b)]
        total = torch.cat(rows, -2)
    return total.to(x1.dtype)


@_pulled.vjp
def _pulled_vjp(h: Tensor, g: Tensor, x1: Tensor, x2: Tensor, p: float) -> dict[str, Tensor]:
    first, second = _curved(g, h, x1, x2, p)
    return {"g": _along(h, x1, x2, p), "x1": first, "x2": second}


@custom_gradient
def _along(h: Tensor, x1: Tensor, x2: Tensor, p: float) -> Tensor:
    """Return how the distances change as the first points move along ``h``: ``s`` times it."""
    a, b, moved = widened(x1), widened(x2), widened(h)
    rows = [(moved[..., at, None, :] * _parts(u, p)[0]).sum(-1) for at, u in _blocks(a, b)]
    return torch.cat(rows, -2).to(x1.dtype)


@_along.vjp
def _along_vjp(g: Tensor, h: Tensor, x1: Tensor, x2: Tensor, p: float) -> dict[str, Tensor]:
    first, second = _curved(g, h, x1, x2, p)
    # The distances are not at hand; where PyTorch's kernel wants them, they are found once more.
    return {"h": _pulled(g, x1, x2, _distances(x1, x2, p).detach(), p), "x1": first, "x2": second}


@custom_gradient
def _among(x: Tensor, p: float) -> Tensor:
    """Return the distances (..., n, n) of points to each other."""
    return _values(x, x, p)


@_among.vjp
def _among_vjp(g: Tensor, x: Tensor, p: float, out: Tensor) -> Tensor:
    return _pulled(g + g.mT, x, x, out, p)


# -------------------------------------------------------------------- values


def _values(x1: Tensor, x2: Tensor, p: float) -> Tensor:
    a, b = widened(x1), widened(x2)
    if p == 2:
        scale = _scale(a, b)
        out = torch.cdist(a * scale, b * scale, compute_mode=KERNEL) / scale
    elif p in (0, 1, math.inf):
        out = torch.cdist(a, b, p)
    else:
        out = torch.cat([_parts(u, p)[2][..., 0] for _, u in _blocks(a, b)], -2)
    return out.to(x1.dtype)


def _scale(a: Tensor, b: Tensor) -> Tensor:
    """Return a power of two for each batch, so that squares neither overflow nor vanish."""
    if a.numel() == 0 or b.numel() == 0:
        return torch.ones((), dtype=a.dtype, device=a.device)
    return scale_for(torch.maximum(a.abs().amax((-2, -1), True), b.abs().amax((-2, -1), True)))


def _blocks(a: Tensor, b: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """Give the differences (..., rows, m, d) of some rows of ``a`` at a time, at least once."""
    each = max(a.shape[:-2].numel() * b.shape[-2] * b.shape[-1], 1)
    rows = max(BLOCK // each, 1)
    for start in range(0, max(a.shape[-2], 1), rows):
        at = slice(start, start + rows)
        yield at, a[..., at, None, :] - b[..., None, :, :]


def _parts(u: Tensor, p: float) -> tuple[Tensor, Tensor, Tensor]:
    """Return ``s``, ``n`` and the distance of differences, the last with a dimension of one; zeros where it is zero."""
    largest = u.detach().abs().amax(-1, keepdim=True) if u.shape[-1] else u.new_zeros(*u.shape[:-1], 1)
    apart = largest > 0
    q = u / torch.where(apart, largest, 1.0)
    if p == 0:
        return torch.zeros_like(q), q, (q != 0).to(q.dtype).sum(-1, keepdim=True)
    if p == math.inf:
        ties = torch.where(apart, (q.abs() == 1).to(q.dtype), 0.0)
        return q.sign() * ties / ties.sum(-1, keepdim=True).clamp(min=1.0), q, largest
    total = torch.where(apart, (q * q if p == 2 else q.abs() ** p).sum(-1, keepdim=True), 1.0)
    root = total.sqrt() if p == 2 else total ** (1 / p)
    n = q / root
    return n if p == 2 else n.sign() * _power(n, p - 1), n, largest * root


def _power(n: Tensor, exponent: float) -> Tensor:
    """Return ``|n| ** exponent``, and zero for zero."""
    return torch.where(n == 0, 0.0, torch.where(n == 0, 1.0, n.abs()) ** exponent)


def _curved(g: Tensor, h: Tensor, x1: Tensor, x2: Tensor, p: float) -> tuple[Tensor, Tensor]:
    """Return the gradients of ``sum(g s h)`` with respect to the points. It has no rule: PyTorch differentiates it."""
    if p in (0, 1, math.inf):
        return torch.zeros_like(x1), torch.zeros_like(x2)
    a, b, weight, moved = map(widened, (x1, x2, g, h))
    rows, total = [], torch.zeros_like(b)
    for at, u in _blocks(a, b):
        s, n, size = _parts(u, p)
        apart = size > 0
        factor = torch.where(apart, (p - 1) * weight[..., at, :, None] / torch.where(apart, size, 1.0), 0.0)
        here = moved[..., at, None, :]
        change = factor * (_bent(here, n, apart, p) - s * (here * s).sum(-1, keepdim=True))
        rows.append(change.sum(-2))
        total = total - change.sum(-3)
    return torch.cat(rows, -2).to(x1.dtype), total.to(x2.dtype)


def _bent(h: Tensor, n: Tensor, apart: Tensor, p: float) -> Tensor:
    """Return ``|n| ** (p - 2) h``, which may be infinite for p < 2, but not where ``h`` or the distance is zero."""
    if p == 2:
        return h
    if p > 2:
        return _power(n, p - 2) * h
    still = (n == 0) & ((h == 0) | ~apart)
    return torch.where(still, 0.0, torch.where(still, 1.0, n.abs()) ** (p - 2) * h)


# -------------------------------------------------------------------- the functions


def _length(mp: Any, u: Any, p: float) -> Any:
    if p == math.inf:
        return abs(u).max(axis=-1)
    return (abs(u) ** mp.mpf(p)).sum(axis=-1) ** (1 / mp.mpf(p))


def _cdist_reference(mp: Any, x1: Any, x2: Any, p: float = 2.0) -> Any:
    return _length(mp, x1[..., :, None, :] - x2[..., None, :, :], p)


def _pdist_reference(mp: Any, x: Any, p: float = 2.0) -> Any:
    n = x.shape[-2]
    first, second = zip(*((i, j) for i in range(n) for j in range(i + 1, n)))
    return _length(mp, x[..., list(first), :] - x[..., list(second), :], p)


def _points(dtype: torch.dtype) -> Tensor:
    return grid(-2.0, 2.0, 12, dtype).reshape(4, 3).flip(1)


def _far(dtype: torch.dtype) -> Tensor:
    """Return points that are far from the origin and close to each other, by a few steps of the dtype."""
    far = math.pow(torch.finfo(dtype).eps, -0.75)
    steps = torch.tensor([[0.0, 1.0], [3.0, 5.0], [8.0, 2.0]], dtype=torch.float64)
    return (far * (1 + 4 * torch.finfo(dtype).eps * steps)).to(dtype)


def _ends(dtype: torch.dtype) -> list[Tensor]:
    info = torch.finfo(dtype)
    rows = torch.tensor([[1.0, -1.5], [0.25, 2.0], [-1.25, 0.75]], dtype=torch.float64)
    return [(rows * size).to(dtype) for size in (info.smallest_normal * 64, info.max / 8)]


def _cdist_examples(dtype: torch.dtype) -> Sequence[Example]:
    x = _points(dtype)
    found: list[Example] = [Point((x[:2], x[2:]), note="points")]
    found += [Point((x[:2], x[2:], p), note=f"p {p}") for p in (1.5, 3.0, 20.0)]
    found += [Point((x[:2], x[2:], p), note=f"p {p}", second={"x1": 0.0, "x2": 0.0}) for p in (1.0, math.inf)]
    found += [Point((x[:2, :1], x[2:, :1]), note="on a line", second={"x1": 0.0, "x2": 0.0})]
    found += [Point((_far(dtype)[:1], _far(dtype)[1:], p), note=f"far, p {p}", extreme=True) for p in (2.0, 3.0)]
    same = x[:1].expand(2, 3).clone()
    found += [
        Point((same, same.clone(), p), note=f"the same, p {p}", second={"x1": 0.0, "x2": 0.0})
        for p in (1.0, 1.5, 2.0, 3.0, math.inf)
    ]
    found += [Point((e[:1], e[1:], p), note=f"ends, p {p}", extreme=True) for e in _ends(dtype) for p in (2.0, 3.0)]
    return found


@exact(
    forward="out[i, j] = sum(|x1[i] - x2[j]| ** p) ** (1 / p)",
    gradient={
        "x1": "sum over j of g sign(u) (|u| / out) ** (p - 1), u = x1[i] - x2[j]; 0 where out = 0; shared for p inf",
        "x2": "the negative, over i",
    },
    reference=_cdist_reference,
    domain="distances that the dtype holds as normal numbers; those of one batch within half of its exponents",
    bars=relative(4e-15, 2e-6, *HALF),
    examples=_cdist_examples,
    elementwise=False,
    measure="tensor",
    replaces=torch.cdist,
    ordinary=lambda: (torch.randn(1000, 3), torch.randn(1000, 3)),
    slower="with many coordinates PyTorch multiplies matrices, which cancels; without that it is as fast",
    paper="differences first; PyTorch 2.13 has no derivative of `_cdist_backward` and `_pdist_backward`",
)
def cdist(x1: Tensor, x2: Tensor, p: float = 2.0) -> Tensor:
    """Return the distances of all pairs of points, with two derivatives, and right for close points far out.

    Arguments:
        x1: floating point, (..., n, d).
        x2: floating point, (..., m, d), with batch dimensions that broadcast against those of ``x1``.
        p: the power, not negative; infinity for the largest difference, 0 for the number of them. Below 2, second
            derivatives are infinite where a coordinate is the same and the points are not.

    Returns:
        a tensor (..., n, m).

    Raises:
        ArgumentError: the tensors are not floating point, or their shapes or dtypes do not fit.
        OptionError: ``p`` is negative.

    Example:
        >>> import torch, gradwright as gw
        >>> x = torch.tensor([[0.0, 0.0], [3.0, 4.0]], requires_grad=True)
        >>> gw.stable.cdist(x, x)
        tensor([[0., 5.],
                [5., 0.]], grad_fn=...)
    """
    _require("cdist", p, x1=x1, x2=x2)
    if x1.dtype != x2.dtype:
        raise ArgumentError(f"cdist: x1 is {x1.dtype} and x2 {x2.dtype}; expected one dtype; convert one of them.")
    if x1.shape[-1] != x2.shape[-1]:
        raise ArgumentError(
            f"cdist: x1 has points of {x1.shape[-1]} numbers and x2 of {x2.shape[-1]} (shapes {tuple(x1.shape)} and "
            f"{tuple(x2.shape)}); expected (..., n, d) and (..., m, d); points are rows: transpose, or cut them."
        )
    try:
        batch = torch.broadcast_shapes(x1.shape[:-2], x2.shape[:-2])
    except RuntimeError:
        raise ArgumentError(
            f"cdist: the batches of x1 {tuple(x1.shape)} and x2 {tuple(x2.shape)} do not fit; expected dimensions "
            "before the last two that broadcast; insert ones."
        ) from None
    # Only where it is needed: under torch.compile, forward mode of a view of the whole raises (torch 2.13).
    a, b = (x if x.shape[:-2] == batch else x.expand(*batch, *x.shape[-2:]) for x in (x1, x2))
    return _distances(a, b, float(p))


def _pdist_examples(dtype: torch.dtype) -> Sequence[Example]:
    x = _points(dtype)
    found: list[Example] = [Point((x,), note="points")]
    found += [Point((x, p), note=f"p {p}") for p in (1.5, 3.0)]
    found += [Point((x, p), note=f"p {p}", second={"x": 0.0}) for p in (1.0, math.inf)]
    same = x[:1].expand(2, 3).clone()
    found += [Point((same, p), note=f"the same, p {p}", second={"x": 0.0}) for p in (1.0, 2.0, 3.0, math.inf)]
    found += [Point((_far(dtype),), note="far", extreme=True)]
    return found + [Point((e,), note="ends", extreme=True) for e in _ends(dtype)]


@exact(
    forward="out = sum(|x[i] - x[j]| ** p) ** (1 / p) for all i < j, in the order of the pairs",
    gradient={"x": "the sum over the pairs of g sign(u) (|u| / out) ** (p - 1) with u = x[i] - x[j], and the negative"},
    reference=_pdist_reference,
    domain="as for cdist",
    bars=relative(4e-15, 2e-6, *HALF),
    examples=_pdist_examples,
    elementwise=False,
    measure="tensor",
    replaces=torch.pdist,
    ordinary=lambda: (torch.randn(1000, 3),),
    slower="the distance of each pair is computed twice",
    paper="as for cdist",
)
def pdist(x: Tensor, p: float = 2.0) -> Tensor:
    """Return the distances of points to each other, each pair once, with two derivatives and for batches.

    Arguments:
        x: floating point, (..., n, d).
        p: as for :func:`cdist`.

    Returns:
        a tensor (..., n (n - 1) / 2), in the order (0, 1), (0, 2), ..., (1, 2), ...

    Raises:
        ArgumentError: ``x`` is not floating point, or has fewer than two dimensions.
        OptionError: ``p`` is negative.

    Example:
        >>> import torch, gradwright as gw
        >>> gw.stable.pdist(torch.tensor([[0.0, 0.0], [3.0, 4.0], [0.0, 1.0]]))
        tensor([5.0000, 1.0000, 4.2426])
    """
    _require("pdist", p, x=x)
    first, second = torch.triu_indices(x.shape[-2], x.shape[-2], 1, device=x.device)
    return _among(x, float(p))[..., first, second]


def _require(name: str, p: float, **tensors: Tensor) -> None:
    require_floating(name, **tensors)
    require_number(name, p=p)
    for argument, x in tensors.items():
        if x.dim() < 2:
            raise ArgumentError(
                f"{name}: {argument} has shape {tuple(x.shape)}; expected points as the rows of a matrix, "
                f"(..., number, coordinates); write {argument}.reshape(-1, d)."
            )
    if not p >= 0:
        raise OptionError(f"{name}: p is {p}; expected a number from 0 on, or infinity; for the Euclidean distance 2.")
