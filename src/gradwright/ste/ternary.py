"""Weights of three values: minus a size, zero, plus a size.

All functions here are ``+a`` where ``w > t``, ``-b`` where ``w < -t`` and zero in between, for a threshold ``t`` that
depends on the weights. Threshold and sizes that are computed from the weights are no part of the gradient. With an
infinity or nan among them all weights that share a threshold become nan.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from gradwright.authoring.catalogue import Example, around, catalogued, grid, joined
from gradwright.authoring.decorator import custom_gradient
from gradwright.errors import OptionError
from gradwright.ste.masks import working_dtype
from gradwright.ste.parameters import arranged, by_element, mean_size, shared_dims, total


def three(w: Tensor, threshold: Tensor, positive: Any, negative: Any) -> Tensor:
    """Return a size where ``w`` is above the threshold, minus another where it is below minus the threshold, else 0."""
    zero = (threshold * 0).to(working_dtype(w.dtype))  # nan where no threshold exists
    return torch.where(w > threshold, positive, torch.where(w < -threshold, -negative, zero))


def _slices(w: Tensor, axis: int | None) -> list[Tensor]:
    """Return the parts of the weights that share a threshold, in float64."""
    w = w.detach().double()
    return [w] if axis is None else list(w.movedim(axis, 0))


def _joined(parts: Sequence[Tensor], axis: int | None) -> Tensor:
    return parts[0] if axis is None else torch.stack(list(parts)).movedim(0, axis)


def either(size: Tensor) -> Tensor:
    """Return the codes of each element: minus its size, zero, plus its size."""
    return size[..., None] * torch.tensor([-1.0, 0.0, 1.0], dtype=torch.float64)


def _straight(w: Tensor, **_: Any) -> Tensor:
    return w.clone()


def _passes(g: Tensor) -> Tensor:
    return g


def weights_of_mean(mean: float, edge: float, dtype: torch.dtype) -> Tensor:
    """Return 16 weights of a mean size, exact in every dtype, with a threshold (no power of two) and its neighbours."""
    # Neighbours in float32 for float64 too, whose sums are then exact in any order.
    edges = around(edge, -edge, dtype=torch.float32 if dtype == torch.float64 else dtype).to(dtype)
    rest = torch.tensor([0.0, -0.0, 2.0, -2.0, 1.0, -1.0, 0.25, -0.25, 1.25], dtype=dtype)
    last = 16 * mean - 6 * edge - float(rest.abs().sum())
    return torch.cat([edges, rest, torch.tensor([-last], dtype=dtype)])


def long_tails(rows: int, columns: int, dtype: torch.dtype) -> Tensor:
    """Return weights many of which are more than twice the mean size, where ``w + (q - w)`` is not ``q``."""
    return grid(-1.5, 1.5, rows * columns, dtype).pow(3).reshape(rows, columns)


def _check_threshold(function: str, threshold: float) -> None:
    if not threshold >= 0:
        raise OptionError(f"{function}: threshold is {threshold!r}; expected a number from 0.")


# -------------------------------------------------------------------- TWN


def _twn_sizes(w: Tensor, threshold: float, axis: int | None) -> tuple[Tensor, Tensor]:
    """Return for each element its threshold and size, slice by slice."""
    limits, sizes = [], []
    for part in _slices(w, axis):
        limit = threshold * part.abs().mean()
        large = part.abs()[part.abs() > limit]
        limits.append(limit.expand(part.shape))
        sizes.append((large.mean() if len(large) else torch.zeros_like(limit)).expand(part.shape))
    return _joined(limits, axis), _joined(sizes, axis)


def _twn_values(w: Tensor, *, threshold: float = 0.7, axis: int | None = None) -> Tensor:
    limit, size = _twn_sizes(w, threshold, axis)
    return torch.sign(w) * size * (w.abs() > limit)


def _twn_codes(w: Tensor, *, threshold: float = 0.7, axis: int | None = None) -> Tensor:
    dims = shared_dims("twn", w, axis)
    return either(_twn_size(w, threshold * mean_size(w, dims), dims))


def _twn_examples(dtype: torch.dtype) -> Sequence[Example]:
    w = weights_of_mean(1.0, 0.75, dtype)
    return [
        Example((w,), {"threshold": 0.75}, "edges"),
        Example((torch.stack([w, w / 4]).T.contiguous(),), {"threshold": 0.75, "axis": -1}, "per column"),
        Example((long_tails(4, 60, dtype),), {"axis": 0}, "per row"),
        Example((torch.zeros(5, dtype=dtype),), {}, "zeros"),
    ]


@catalogued(
    forward="out = a where w > t, -a where w < -t, else 0; t = 0.7 mean |w|, a = mean of |w| where |w| > t",
    gradient={"w": "g everywhere, between the thresholds too"},
    surrogate=_straight,
    examples=_twn_examples,
    values=_twn_values,
    codes=_twn_codes,
    paper="Li, Zhang, Liu 2016, arXiv 1605.04711",
)
@custom_gradient
def twn(w: Tensor, *, threshold: float = 0.7, axis: int | None = None) -> Tensor:
    """Return ternary weights (TWN); the gradient passes everywhere.

    Weights between the thresholds keep their gradient, so that they can leave zero again.

    Arguments:
        w: floating point, of any shape.
        threshold: in units of the mean size.
        axis: the dimension that has a threshold and a size for each slice; None for one of each.

    Returns:
        three values for each size, a tensor like ``w``.

    Raises:
        OptionError: ``w`` has no such axis, or the threshold is negative.

    Example:
        >>> import torch, gradwright as gw
        >>> w = torch.tensor([-3.0, 0.5, 0.0, 1.5, 2.0], requires_grad=True)
        >>> out = gw.ste.twn(w)
        >>> out.tolist(), torch.autograd.grad(out.sum(), w)[0].tolist()
        ([-2.1666667461395264, 0.0, 0.0, 2.1666667461395264, 2.1666667461395264], [1.0, 1.0, 1.0, 1.0, 1.0])
    """
    _check_threshold("twn", threshold)
    dtype, dims = working_dtype(w.dtype), shared_dims("twn", w, axis)
    limit = threshold * mean_size(w, dims)
    size = _twn_size(w, limit, dims).to(dtype)
    return three(w, limit, size, size).to(w.dtype)


def _twn_size(w: Tensor, limit: Tensor, dims: tuple[int, ...]) -> Tensor:
    """Return the mean of the sizes above the threshold, zero where there is none."""
    sizes = w.abs()
    large = sizes > limit
    return total(torch.where(large, sizes, 0.0), dims) / total(large, dims).clamp(min=1)


twn.vjp(_passes)


# -------------------------------------------------------------------- TTQ


def _plain_limit(w: Tensor, threshold: float, axis: int | None) -> Tensor:
    """Return the threshold of each element, slice by slice."""
    return _joined([(threshold * part.abs().max()).expand(part.shape) for part in _slices(w, axis)], axis)


def _ttq_surrogate(
    w: Tensor, positive: Any, negative: Any, *, threshold: float = 0.05, axis: int | None = None
) -> Tensor:
    _, (a, b) = arranged("ttq", w, (positive, negative), axis, None)
    a, b = torch.as_tensor(a, dtype=w.dtype), torch.as_tensor(b, dtype=w.dtype)
    limit = _plain_limit(w, threshold, axis)
    above, below = w.detach() > limit, w.detach() < -limit
    moved = w - w.detach()  # zero, with the gradient of w
    return torch.where(above, a + moved * a.detach(), torch.where(below, -b + moved * b.detach(), moved))


def _ttq_values(w: Tensor, positive: Any, negative: Any, *, threshold: float = 0.05, axis: int | None = None) -> Tensor:
    limit = _plain_limit(w, threshold, axis)
    a, b = (by_element(w, size, axis, None) for size in (positive, negative))
    return a * (w > limit) - b * (w < -limit)


def _ttq_codes(w: Tensor, positive: Any, negative: Any, *, axis: int | None = None, **_: Any) -> Tensor:
    a, b = (by_element(w, size, axis, None) for size in (positive, negative))
    return torch.stack([a, -b, torch.zeros_like(a)], -1)


def _ttq_examples(dtype: torch.dtype) -> Sequence[Example]:
    def tensor(*values: float) -> Tensor:
        return torch.tensor(values, dtype=dtype)

    w = joined([around(0.1875, -0.1875, dtype=dtype), grid(-2.5, 2.5, 9, dtype), tensor(0.0, -3.0)])
    rows = torch.stack([w, w / 4])
    return [
        Example((w, tensor(1.25).squeeze(), tensor(0.75).squeeze()), {"threshold": 0.0625}, "edges"),
        Example((w, 1.25, tensor(0.75)), {}, "one of them learned"),
        Example((rows, tensor(1.25, 0.5), tensor(0.75, 0.25)), {"threshold": 0.0625, "axis": 0}, "per row"),
        Example((rows.T.contiguous(), tensor(1.25, 0.5), 2.0), {"threshold": 0.0625, "axis": 1}, "per column"),
    ]


@custom_gradient(double_backward="once")  # the gradients of weights and sizes are not those of one function
def two_sizes(
    w: Tensor, positive: Tensor | float, negative: Tensor | float, threshold: float, axis: int | None
) -> Tensor:
    """Return ternary weights with sizes that are broadcast against them; see :func:`ttq`."""
    return three(w, _limit(w, threshold, axis), positive, negative).to(w.dtype)


@two_sizes.vjp
def two_sizes_vjp(
    g: Tensor, w: Tensor, positive: Any, negative: Any, threshold: float, axis: int | None
) -> dict[str, Tensor]:
    g, limit = g.to(working_dtype(w.dtype)), _limit(w, threshold, axis)
    above, below = w > limit, w < -limit
    slope = torch.where(above, positive, torch.where(below, negative, torch.ones_like(g)))
    return {"w": g * slope, "positive": torch.where(above, g, 0.0), "negative": torch.where(below, -g, 0.0)}


def _limit(w: Tensor, threshold: float, axis: int | None) -> Tensor:
    """Return the threshold of each slice, in shapes that broadcast."""
    sizes, dims = w.to(working_dtype(w.dtype)).abs(), shared_dims("ttq", w, axis)
    return threshold * (sizes.amax(dims, keepdim=True) if w.numel() and dims else sizes)


@catalogued(
    forward="out = p where w > t, -n where w < -t, else 0; t = 0.05 max |w|",
    gradient={
        "w": "p g where w > t, n g where w < -t, g in between",
        "positive": "sum of g where w > t",
        "negative": "minus the sum of g where w < -t",
    },
    surrogate=_ttq_surrogate,
    examples=_ttq_examples,
    values=_ttq_values,
    codes=_ttq_codes,
    second_order="raises",
    paper="Zhu et al. 2016, arXiv 1612.01064",
)
def ttq(
    w: Tensor,
    positive: Tensor | float,
    negative: Tensor | float,
    *,
    threshold: float = 0.05,
    axis: int | None = None,
) -> Tensor:
    """Return ternary weights whose two sizes are learned (TTQ).

    The gradients of the sizes are sums, as for any parameter that many elements share, and that of ``negative`` has a
    minus: the output is ``-negative`` there. The paper prints the sum without it, which would make the size grow where
    the loss wants it smaller.

    Arguments:
        w: floating point, of any shape.
        positive, negative: the sizes, positive both; one number or scalar tensor, or with ``axis`` one for each slice.
        threshold: in units of the largest size in ``w``.
        axis: the dimension that has a threshold and sizes for each slice; None for one of each.

    Returns:
        three values, a tensor like ``w``.

    Raises:
        OptionError: ``w`` has no such axis, or the threshold is negative.
        ArgumentError: the shape of a size does not fit.

    Example:
        >>> import torch, gradwright as gw
        >>> w = torch.tensor([-3.0, 0.125, 1.5, 2.0], requires_grad=True)
        >>> sizes = [torch.tensor(size, requires_grad=True) for size in (2.0, 0.5)]
        >>> out = gw.ste.ttq(w, *sizes)
        >>> out.tolist()
        [-0.5, 0.0, 2.0, 2.0]
        >>> torch.autograd.grad(out.sum(), (w, *sizes))
        (tensor([0.5000, 1.0000, 2.0000, 2.0000]), tensor(2.), tensor(-1.))
    """
    _check_threshold("ttq", threshold)
    _, (a, b) = arranged("ttq", w, (positive, negative), axis, None)
    assert a is not None
    assert b is not None
    return two_sizes(w, a, b, threshold, axis)
