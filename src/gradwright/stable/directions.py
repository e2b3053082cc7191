"""Vectors divided by their norm, and what is made of them: for vectors of any length, and zero for the zero vector.

PyTorch's functions divide by ``max(|x|, eps)`` or ``|x| |y| + eps``: a vector shorter than ``eps`` gets neither its
value nor its gradient. Without an ``eps``, weight norm is nan at a row of zeros. Here each vector is divided by its own
norm with a scale (:func:`~gradwright.stable.norms.direction`), once, and the derivative ``(I - u u') / |x|`` is formed
in that order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from gradwright.authoring.catalogue import Example
from gradwright.authoring.exact import Point, exact, ulps
from gradwright.errors import ArgumentError
from gradwright.stable.arguments import require_dim, require_floating, require_number, widened
from gradwright.stable.norms import Dims, direction, end_vectors, norm, row_vectors
from gradwright.torch_compat import kernels


def _over_norm(mp: Any, x: Any, dim: Dims) -> Any:
    """Return vectors of numbers of any precision, divided by their norm."""
    size = (x * x).sum(axis=dim, keepdims=True) ** (1 / mp.mpf(2))
    return x / (size + (size == 0))


def _orders(row: Tensor) -> int:
    """Return how many derivatives the dtype can hold: they grow with each power of ``1 / |x|``."""
    info = torch.finfo(row.dtype)
    largest = float(row.abs().max())
    return sum(largest > (1000 / info.max) ** (1 / k) for k in (1, 2))


# -------------------------------------------------------------------- one vector


def _normalize_examples(dtype: torch.dtype) -> Sequence[Example]:
    x = row_vectors(dtype)
    found = [Point((x,), {"dim": -1}, "rows"), Point((x, 0), note="columns"), Point((x, None), note="all at once")]
    found.append(
        Point((torch.zeros(3, dtype=dtype), 0), note="zero", first={"x": 0.0}, second={"x": 0.0}, extreme=True)
    )
    return found + [Point((row, 0), note="ends", extreme=True, orders=_orders(row)) for row in end_vectors(dtype)]


@exact(
    forward="out = x / |x|; 0 at x = 0",
    gradient={"x": "(g - out <out, g>) / |x|; 0 at x = 0"},
    reference=lambda mp, x, dim=1: _over_norm(mp, x, dim),
    domain="every finite vector",
    bars=ulps(4),
    examples=_normalize_examples,
    elementwise=False,
    measure="tensor",
    replaces=lambda x, dim: torch.nn.functional.normalize(x, dim=dim),
    ordinary=lambda: (torch.randn(1000, 1000), -1),
    paper="pytorch#193006",
)
def normalize(x: Tensor, dim: Dims = 1) -> Tensor:
    """Divide vectors by their Euclidean norm, however short they are; zero stays zero.

    Arguments:
        x: floating point, of any shape.
        dim: the dimension or dimensions of a vector; None for all.

    Returns:
        a tensor like ``x``.

    Raises:
        ArgumentError: ``x`` is of integers or complex.

    Example:
        >>> import torch, gradwright as gw
        >>> gw.stable.normalize(torch.tensor([3e-30, 4e-30]), dim=0)
        tensor([0.6000, 0.8000])
    """
    require_floating("normalize", x=x)
    require_dim("normalize", dim, several=True, none=True)
    return direction(widened(x), dim)[0].to(x.dtype)


# -------------------------------------------------------------------- weight norm


def _weight_norm_reference(mp: Any, v: Any, g: Any, dim: int | None = 0) -> Any:
    return g * _over_norm(mp, v, _others(v.ndim, dim))


def _weight_norm_examples(dtype: torch.dtype) -> Sequence[Example]:
    v = row_vectors(dtype)
    column, row = torch.tensor([[0.5], [-2.0]], dtype=dtype), torch.tensor([[0.5, 1.0, -2.0]], dtype=dtype)
    zeros = {"v": 0.0, "g": 0.0}
    found = [Point((v, column), note="rows"), Point((v, row, 1), note="columns")]
    found.append(Point((v, column[:1], None), note="all at once"))
    found.append(
        Point((torch.zeros(1, 3, dtype=dtype), column[:1]), note="a zero row", first=zeros, second=zeros, extreme=True)
    )
    for row in end_vectors(dtype):
        found.append(Point((row[None], column[1:]), note="ends", extreme=True, orders=_orders(row)))
    return found


@exact(
    forward="out = g v / |v|; 0 at v = 0",
    gradient={"v": "g (h - u <u, h>) / |v| with u = v / |v|, for a cotangent h; 0 at v = 0", "g": "<u, h>"},
    reference=_weight_norm_reference,
    domain="finite weights; 0 for a row of zeros",
    bars=ulps(4),
    examples=_weight_norm_examples,
    elementwise=False,
    measure="tensor",
    replaces=kernels.weight_norm,
    ordinary=lambda: (torch.randn(1000, 1000), torch.rand(1000, 1), 0),
    slower="each norm is taken twice, for a scale and with it, and in passes of its own; PyTorch has a fused kernel",
    paper="Salimans and Kingma 2016 (arXiv 1602.07868)",
)
def weight_norm(v: Tensor, g: Tensor, dim: int | None = 0) -> Tensor:
    """Return weights of the norm ``g`` in the direction of ``v``; a row of zeros gives zeros, with zero gradients.

    Arguments:
        v: floating point, of any shape.
        g: the norms, with one element in each dimension but ``dim``.
        dim: the dimension with a norm for each of its elements; None for one norm of all.

    Returns:
        a tensor of the shape of ``v``.

    Raises:
        ArgumentError: ``v`` or ``g`` is of integers or complex, or their shapes do not fit.

    Example:
        >>> import torch, gradwright as gw
        >>> v, g = torch.tensor([[3.0, 4.0], [0.0, 0.0]]), torch.tensor([[10.0], [1.0]])
        >>> gw.stable.weight_norm(v, g)
        tensor([[6., 8.],
                [0., 0.]])
    """
    require_floating("weight_norm", v=v, g=g)
    require_dim("weight_norm", dim, none=True)
    wide = widened(v)
    dims = _others(v.dim(), dim)
    expected = tuple(1 if k in dims else n for k, n in enumerate(v.shape))
    if g.dim() and g.shape != expected:
        raise ArgumentError(
            f"weight_norm: g has shape {tuple(g.shape)} and v {tuple(v.shape)}; expected {expected} for dim {dim}; "
            "reshape g."
        )
    return (g * direction(wide, dims)[0]).to(torch.promote_types(v.dtype, g.dtype))


def _others(count: int, dim: int | None) -> tuple[int, ...]:
    """Return the dimensions of a vector: all but one."""
    kept = None if dim is None else range(count)[dim]
    return tuple(k for k in range(count) if k != kept)


# -------------------------------------------------------------------- two vectors


def _cosine_reference(mp: Any, x1: Any, x2: Any, dim: int = 1) -> Any:
    return (_over_norm(mp, x1, dim) * _over_norm(mp, x2, dim)).sum(axis=dim)


def _cosine_examples(dtype: torch.dtype) -> Sequence[Example]:
    x = row_vectors(dtype)
    y = x.flip(1) + torch.tensor([1.0, 0.25, -2.0], dtype=dtype)
    found = [Point((x, y), note="rows"), Point((x, y, 0), note="columns"), Point((x, y[1:]), note="broadcast")]
    zeros, none = torch.zeros(3, dtype=dtype), {"x1": 0.0, "x2": 0.0}
    found.append(Point((zeros, y[0], 0), note="zero", first=none, second=none, extreme=True))
    for row in end_vectors(dtype):
        other = torch.tensor([1.0, 0.25, -0.5, 2.0], dtype=dtype)[: row.numel()]
        found.append(Point((row, other, 0), note="ends", extreme=True, orders=_orders(row)))
    return found


@exact(
    forward="out = <x1, x2> / (|x1| |x2|); 0 where one is 0",
    gradient={"x1": "g (u2 - out u1) / |x1| with u = x / |x|; 0 at x1 = 0", "x2": "g (u1 - out u2) / |x2|"},
    reference=_cosine_reference,
    domain="finite vectors; errors are relative to 1 / |x|, so that parallel ones have a gradient of about eps / |x|",
    bars=ulps(4),
    examples=_cosine_examples,
    elementwise=False,
    measure="tensor",
    replaces=lambda x1, x2, dim: torch.cosine_similarity(x1, x2, dim),
    ordinary=lambda: (torch.randn(1000, 1000), torch.randn(1000, 1000), -1),
    paper="pytorch#193006",
)
def cosine_similarity(x1: Tensor, x2: Tensor, dim: int = 1) -> Tensor:
    """Return the cosine of the angle between vectors, however short or long they are; zero where one of them is zero.

    Arguments:
        x1, x2: floating point; they are broadcast against each other.
        dim: the dimension of a vector.

    Returns:
        the cosines, without that dimension.

    Raises:
        ArgumentError: a tensor is of integers or complex.

    Example:
        >>> import torch, gradwright as gw
        >>> gw.stable.cosine_similarity(torch.tensor([1e-25, 0.0]), torch.tensor([1e-25, 1e-25]), dim=0)
        tensor(0.7071)
    """
    require_floating("cosine_similarity", x1=x1, x2=x2)
    require_dim("cosine_similarity", dim)
    cosines = (direction(widened(x1), dim)[0] * direction(widened(x2), dim)[0]).sum(dim)
    return cosines.to(torch.promote_types(x1.dtype, x2.dtype))


def _distance_reference(mp: Any, x1: Any, x2: Any, p: float = 2.0, keepdim: bool = False) -> Any:
    return (abs(x1 - x2) ** p).sum(axis=-1, keepdims=keepdim) ** (1 / mp.mpf(p))


def _distance_examples(dtype: torch.dtype) -> Sequence[Example]:
    x = row_vectors(dtype)
    y = x.flip(1) + torch.tensor([1.0, 0.25, -2.0], dtype=dtype)
    none = {"x1": 0.0, "x2": 0.0}
    found = [Point((x, y), note="rows"), Point((x, y[0], 3.0), note="p 3")]
    found.append(Point((x[0], x[0].clone()), note="the same", first=none, second=none))
    found += [Point((row, torch.zeros_like(row)), note="ends", extreme=True) for row in end_vectors(dtype)]
    return found


@exact(
    forward="out = |x1 - x2|",
    gradient={"x1": "g (x1 - x2) / out for p 2; 0 at x1 = x2", "x2": "minus that"},
    reference=_distance_reference,
    domain="finite vectors whose difference is finite",
    bars=ulps(4),
    examples=_distance_examples,
    elementwise=False,
    second_measure="tensor",
    replaces=torch.nn.functional.pairwise_distance,
    ordinary=lambda: (torch.randn(1000, 1000), torch.randn(1000, 1000)),
    paper="pytorch#193006",
)
def pairwise_distance(x1: Tensor, x2: Tensor, p: float = 2.0, *, keepdim: bool = False) -> Tensor:
    """Return the distance between vectors in the last dimension, with derivatives that are zero where they coincide.

    Arguments:
        x1, x2: floating point; they are broadcast against each other.
        p: the power of the norm, from 1 to 500, or infinity.
        keepdim: whether the last dimension stays, with one element.

    Returns:
        the distances.

    Raises:
        ArgumentError: a tensor is of integers or complex.
        OptionError: ``p`` is none of the powers.

    Example:
        >>> import torch, gradwright as gw
        >>> gw.stable.pairwise_distance(torch.tensor([[3e-30, 0.0]]), torch.tensor([[0.0, 4e-30]]))
        tensor([5.0000e-30])
    """
    require_floating("pairwise_distance", x1=x1, x2=x2)
    require_number("pairwise_distance", p=p)
    return norm(widened(x1) - widened(x2), p, -1, keepdim).to(torch.promote_types(x1.dtype, x2.dtype))
