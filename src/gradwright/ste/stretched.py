"""Stretched elastic quantisation (SEQ of ParetoQ): few levels that are symmetric, with a learned range.

For ``2 L`` levels the codes of ``L x / a`` are centred: -1, 0 and 1 for three levels (``L = 3/2``), halves of odd
numbers for an even number of them. So the range is divided evenly, where rounding to integers leaves narrow bins at its
ends.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from gradwright.authoring.catalogue import Example, around, catalogued, grid, joined
from gradwright.authoring.decorator import custom_gradient
from gradwright.errors import OptionError
from gradwright.ste.masks import passing, working_dtype
from gradwright.ste.parameters import arranged, by_element, elements_sharing, summed_product, weighed, whole


@custom_gradient(double_backward="once")  # the gradients of x and bound are not those of one function
def _seq(x: Tensor, bound: Tensor | float, levels: int, clip: float, gradient_scale: float) -> Tensor:
    return _rounded(x.to(working_dtype(x.dtype)) / bound, levels, clip).mul_(bound).to(x.dtype)


@_seq.vjp
def _seq_vjp(
    g: Tensor, x: Tensor, bound: Any, levels: int, clip: float, gradient_scale: float, needs: Mapping[str, bool]
) -> dict[str, Tensor]:
    g = g.to(working_dtype(x.dtype))
    v = x.to(g.dtype) / bound
    inside = passing(v, -clip, clip, "inclusive")
    grads = {"x": inside(g)}
    if needs["bound"]:
        slope = _rounded(v, levels, clip).sub_(inside(v))
        grads["bound"] = summed_product(g, slope, bound) * gradient_scale
    return grads


def _rounded(v: Tensor, levels: int, clip: float) -> Tensor:
    """Return the level of values in units of the bound, a new tensor."""
    shift = 0.5 if levels % 2 == 0 else 0.0
    return v.clamp(-clip, clip).mul_(levels / 2).sub_(shift).round_().add_(shift).div_(levels / 2)


def _surrogate(
    x: Tensor,
    bound: Any,
    *,
    levels: int,
    clip: float = 0.99,
    axis: int | None = None,
    group_size: int | None = None,
    gradient_scale: float | None = None,
) -> Tensor:
    sharing = x.numel() / (bound.numel() if isinstance(bound, Tensor) else 1)
    factor = 1 / math.sqrt(sharing * ((levels - 1) // 2)) if gradient_scale is None else gradient_scale
    level = _values(x, bound, levels=levels, clip=clip, axis=axis, group_size=group_size)
    grouped, (most,) = arranged("seq", x, (bound,), axis, group_size)
    most = torch.as_tensor(most, dtype=x.dtype)
    v = (grouped / most).detach()
    q = (level.reshape(grouped.shape) / most).detach()
    most = weighed(most, factor)
    return torch.where(v.abs() <= clip, grouped + (q - v) * most, q * most).reshape(x.shape)


def _values(
    x: Tensor, bound: Any, *, levels: int, clip: float = 0.99, axis: Any = None, group_size: Any = None, **_: Any
) -> Tensor:
    most = by_element(x, bound, axis, group_size)
    shift = 0.5 * (1 - levels % 2)
    return (torch.round((x / most).clamp(-clip, clip) * levels / 2 - shift) + shift) / (levels / 2) * most


def _codes(x: Tensor, bound: Any, *, levels: int, axis: Any = None, group_size: Any = None, **_: Any) -> Tensor:
    most = by_element(x, bound, axis, group_size)[..., None]
    return torch.arange(1 - levels, levels, 2, dtype=torch.float64) / levels * most


def _examples(dtype: torch.dtype) -> Sequence[Example]:
    # Without neighbours of ties, where the difference to 1/2 is rounded. Here the mask ends at 63/64 times the bound.
    clip, bound = 63 / 64, torch.tensor(2.0, dtype=dtype)
    edges = around(-2 * clip, 2 * clip, dtype=dtype)
    x = joined([edges, torch.tensor([-8.0, -2.0, -1.0, 0.0, 1.0, 2.0, 8.0], dtype=dtype), grid(-3.0, 3.0, 15, dtype)])
    rows, bounds = grid(-2, 2, 24, dtype).reshape(3, 8), torch.tensor([0.5, 1.0, 2.0], dtype=dtype)
    groups = torch.tensor([[0.5, 1.0], [2.0, 4.0], [0.25, 1.0]], dtype=dtype)
    return [
        Example((x, bound), {"levels": 4, "clip": clip}, "two bits"),
        Example((x, bound), {"levels": 3, "clip": clip}, "ternary"),
        Example((x, 2.0), {"levels": 4}, "fixed"),
        Example((x, bound), {"levels": 8, "gradient_scale": 0.5}, "gradient scale"),
        Example((rows, bounds), {"levels": 4, "axis": 0}, "per channel"),
        Example((rows, groups), {"levels": 3, "axis": 1, "group_size": 4}, "per group"),
    ]


@catalogued(
    forward="out = a (round(L clip(x / a, -c, c) - e) + e) / L for 2 L levels; e = 1/2 if they are even, else 0",
    gradient={
        "x": "g where |x / a| <= c, else 0",
        "bound": "sum of g (out / a - x / a) where |x / a| <= c, of g out / a elsewhere, times 1 / sqrt(N p)",
    },
    surrogate=_surrogate,
    examples=_examples,
    values=_values,
    codes=_codes,
    second_order="raises",
    paper="Liu et al. 2025, ParetoQ, arXiv 2502.02631",
)
def seq(
    x: Tensor,
    bound: Tensor | float,
    *,
    levels: int,
    clip: float = 0.99,
    axis: int | None = None,
    group_size: int | None = None,
    gradient_scale: float | None = None,
) -> Tensor:
    """Quantise to few symmetric levels with a learned bound (SEQ), for weights of two bits or three levels.

    Arguments:
        x: floating point, of any shape.
        bound: the range ``a``, positive; one number or scalar tensor, or with ``axis`` one for each slice or group (the
            paper takes one for each row). The outermost levels are ``a (1 - 1 / levels)``.
        levels: how many values, at least 3: 3 for ternary weights, 4 for two bits.
        clip: the fraction ``c`` of the range that is used, so that the bound itself is not rounded outward.
        axis: the dimension along which ``bound`` changes.
        group_size: with ``axis``, how many neighbours along it share a bound.
        gradient_scale: the factor of the gradient of ``bound``; None is ``1 / sqrt(N p)`` for the ``N`` elements of
            ``x`` that share it and ``p`` levels above the middle ones.

    Returns:
        a tensor of the shape and dtype of ``x``.

    Raises:
        OptionError: an option has no value that is known.
        ArgumentError: the shape of ``bound`` does not fit.

    Example:
        >>> import torch, gradwright as gw
        >>> x, a = torch.tensor([0.3, -3.0], requires_grad=True), torch.tensor(1.0, requires_grad=True)
        >>> out = gw.ste.seq(x, a, levels=4, gradient_scale=1.0)
        >>> out.tolist(), torch.autograd.grad(out.sum(), (x, a))
        ([0.25, -0.75], (tensor([1., 0.]), tensor(-0.8000)))
    """
    if not whole(levels, 3):
        raise OptionError(
            f"seq: levels is {levels!r}; expected a whole number from 3; for two see the binary functions of gw.ste."
        )
    if not 0 < clip <= 1:
        raise OptionError(f"seq: clip is {clip}; expected more than 0 and at most 1.")
    sharing = elements_sharing(x, bound) * ((levels - 1) // 2)
    factor = 1 / math.sqrt(sharing) if gradient_scale is None else gradient_scale
    grouped, (most,) = arranged("seq", x, (bound,), axis, group_size)
    assert most is not None
    return _seq(grouped, most, levels, clip, factor).reshape(x.shape)
