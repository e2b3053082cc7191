"""Fake quantisation with a range that is measured: the largest value (absmax), or the best one for normal data (QuEST).

The codes of QuEST are halves of odd numbers, so that they are symmetric and none is wasted: ``-3/2, -1/2, 1/2, 3/2``
for two bits. Zero is no value then.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from gradwright.authoring.catalogue import Example, around, catalogued, grid, joined
from gradwright.authoring.decorator import custom_gradient
from gradwright.errors import OptionError, unknown_choice
from gradwright.ste.bounds import bound_codes, on_bound
from gradwright.ste.masks import clipped_in_place, passing, working_dtype
from gradwright.ste.parameters import arranged, by_element, shared_dims, total
from gradwright.ste.uniform import codes

# -------------------------------------------------------------------- absmax


@custom_gradient(nondiff=("amax",))
def _absmax(x: Tensor, amax: Tensor | float, low: int, high: int, mask: str) -> Tensor:
    return on_bound(x, amax, low, high).to(x.dtype)


@_absmax.vjp
def _absmax_vjp(g: Tensor, x: Tensor, amax: Any, mask: str) -> dict[str, Tensor]:
    if mask == "none":
        return {"x": g}
    g = g.to(working_dtype(x.dtype))
    with torch.no_grad():  # where the gradient passes is a constant
        above = x.to(g.dtype).abs() - amax  # its sign is exact
        within = passing(above, -torch.inf, 0.0, "inclusive", overwrite=True)
    return {"x": within(g)}


def _absmax_surrogate(
    x: Tensor,
    amax: Any,
    *,
    bits: int,
    signed: bool = True,
    narrow: bool = False,
    mask: str = "range",
    axis: int | None = None,
    group_size: int | None = None,
) -> Tensor:
    if mask == "none":
        return x.clone()
    grouped, (most,) = arranged("absmax", x, (amax,), axis, group_size)
    return torch.where(grouped.abs() <= torch.as_tensor(most), grouped, 0.0).reshape(x.shape)


def _absmax_values(
    x: Tensor,
    amax: Any,
    *,
    bits: int,
    signed: bool = True,
    narrow: bool = False,
    axis: Any = None,
    group_size: Any = None,
    **_: Any,
) -> Tensor:
    low, high = codes(bits, signed=signed, narrow=narrow)
    most = by_element(x, amax, axis, group_size)
    return torch.where(most == 0, 0.0, torch.round(x * high / most).clamp(low, high) * most / high)


def _absmax_codes(
    x: Tensor,
    amax: Any,
    *,
    bits: int,
    signed: bool = True,
    narrow: bool = False,
    axis: Any = None,
    group_size: Any = None,
    **_: Any,
) -> Tensor:
    return bound_codes(x, amax, *codes(bits, signed=signed, narrow=narrow), axis, group_size)


def _absmaxima(dtype: torch.dtype) -> Sequence[Example]:
    # No number lies on a tie between codes of a third or a seventh of a power of two.
    amax = torch.tensor(2.0, dtype=dtype)
    x = joined([around(-4.0, -2.0, 0.0, 2.0, 4.0, dtype=dtype), grid(-3.0, 3.0, 17, dtype)]).requires_grad_()
    rows, maxima = grid(-2, 2, 24, dtype).reshape(3, 8).requires_grad_(), torch.tensor([0.5, 1.0, 2.0], dtype=dtype)
    groups = torch.tensor([[0.5, 1.0], [2.0, 0.0], [0.25, 1.0]], dtype=dtype)
    return [
        Example((x, amax), {"bits": 4}, "a tensor"),
        Example((x, 2.0), {"bits": 3, "narrow": True}, "a number, narrow"),
        Example((x, amax), {"bits": 2, "signed": False}, "unsigned"),
        Example((x, amax), {"bits": 8, "mask": "none"}, "no mask"),
        Example((rows, maxima), {"bits": 4, "axis": 0}, "per channel"),
        Example((rows, groups), {"bits": 4, "axis": 1, "group_size": 4}, "per group, one of zeros"),
    ]


@catalogued(
    forward="out = a clip(round(x p / a), n, p) / p for a = amax, and 0 where a = 0",
    gradient={"x": "g where |x| <= amax, else 0; everywhere with mask='none'"},
    surrogate=_absmax_surrogate,
    examples=_absmaxima,
    values=_absmax_values,
    codes=_absmax_codes,
    paper="Krishnamoorthi 2018, arXiv 1806.08342",
)
def absmax(
    x: Tensor,
    amax: Tensor | float,
    *,
    bits: int,
    signed: bool = True,
    narrow: bool = False,
    mask: Literal["range", "none"] = "range",
    axis: int | None = None,
    group_size: int | None = None,
) -> Tensor:
    """Quantise to a range that is known by its largest absolute value, where the gradient passes up to it.

    Arguments:
        x: floating point, of any shape.
        amax: the largest absolute value, measured before; a number or scalar tensor, or with ``axis`` one for each
            slice or group. It has no gradient; ``x.detach().abs().amax()`` is the one of ``x`` itself.
        bits, signed, narrow: the codes ``n`` to ``p``, as in :func:`codes`; ``p`` stands for ``amax``.
        mask: ``"none"`` lets the gradient pass everywhere, as is usual for small groups with a measured maximum.
        axis: the dimension along which ``amax`` changes.
        group_size: with ``axis``, how many neighbours along it share a maximum.

    Returns:
        a tensor of the shape and dtype of ``x``; zeros where ``amax`` is zero, or next to it (4e-37).

    Raises:
        OptionError: an option has no value that is known.
        ArgumentError: the shape of ``amax`` does not fit.

    Example:
        >>> import torch, gradwright as gw
        >>> x = torch.tensor([0.3, 3.5, -9.0], requires_grad=True)
        >>> out = gw.ste.absmax(x, 3.5, bits=4)
        >>> out.tolist(), torch.autograd.grad(out.sum(), x)
        ([0.5, 3.5, -4.0], (tensor([1., 1., 0.]),))
    """
    if mask not in ("range", "none"):
        raise unknown_choice("absmax: mask", mask, ("range", "none"))
    low, high = codes(bits, signed=signed, narrow=narrow)
    if high < 1:
        raise OptionError(f"absmax: bits is {bits} with signed codes; expected at least 2, or signed=False.")
    grouped, (most,) = arranged("absmax", x, (amax,), axis, group_size)
    assert most is not None
    return _absmax(grouped, most, low, high, mask).reshape(x.shape)


# -------------------------------------------------------------------- QuEST

GAUSSIAN_CLIPS: tuple[float, ...] = (0.797885, 1.493535, 2.051068, 2.513931, 2.916094, 3.276597, 3.601050, 3.884939)
"""The bounds for 1 to 8 bits in units of the standard deviation, that QuEST uses: with ``2^bits`` evenly spaced values
the mean squared error for normal data is (almost) the least there."""


def quest_scale(x: Tensor, bits: int, *, axis: int | None = None, group_size: int | None = None) -> Tensor:
    """Return the step of QuEST for normal data, ``2 c sqrt(mean x^2) / (2^bits - 1)``, without a gradient.

    Arguments:
        x: floating point.
        bits: 1 to 8; they determine the constant ``c``.
        axis: one step for each slice along it; None is one for all. (The paper takes one for each row.)
        group_size: with ``axis``, one for so many neighbours along it.

    Example:
        >>> import torch, gradwright as gw
        >>> gw.ste.quest_scale(torch.tensor([1.0, -1.0]), bits=1)
        tensor(1.5958)
    """
    if not 1 <= bits <= len(GAUSSIAN_CLIPS):
        raise OptionError(f"quest_scale: bits is {bits}; expected 1 to {len(GAUSSIAN_CLIPS)}; or give quest a scale.")
    grouped, _ = arranged("quest_scale", x.detach(), (), axis, group_size)
    dims = shared_dims("quest_scale", x, axis, group_size)
    count = math.prod([grouped.shape[d] for d in dims])
    square = total(grouped.to(working_dtype(x.dtype)).square(), dims) / count
    step: Tensor = (square.sqrt() + 1e-8) * (2 * GAUSSIAN_CLIPS[bits - 1] / (2**bits - 1))
    return step.to(working_dtype(x.dtype)).squeeze(dims)


@custom_gradient(nondiff=("scale",))
def _quest(x: Tensor, scale: Tensor | float, most: float, trust: float) -> Tensor:
    return _halves(x.to(working_dtype(x.dtype)) / scale, most).mul_(scale).to(x.dtype)


@_quest.vjp
def _quest_vjp(g: Tensor, x: Tensor, scale: Any, most: float, trust: float) -> dict[str, Tensor]:
    g = g.to(working_dtype(x.dtype))
    with torch.no_grad():  # where the gradient passes is a constant
        v = x.to(g.dtype) / scale
        if trust >= 0.5:  # only clipped values can be farther from theirs; ties are not left to rounding errors
            inside = passing(v, -most - trust, most + trust, "inclusive", overwrite=True)
        else:
            inside = passing(_halves(v, most) - v, -trust, trust, "inclusive", overwrite=True)
    return {"x": inside(g)}


def _halves(v: Tensor, most: float) -> Tensor:
    """Return the nearest half of an odd number, a new tensor."""
    return clipped_in_place((v + 0.5).round_().sub_(0.5), -most, most)


def _quest_values(x: Tensor, scale: Any, *, bits: int, axis: Any = None, group_size: Any = None, **_: Any) -> Tensor:
    step = by_element(x, scale, axis, group_size)
    most = step * ((2**bits - 1) / 2)
    values: Tensor = (torch.round(torch.maximum(torch.minimum(x, most), -most) / step + 0.5) - 0.5) * step
    return values


def _quest_surrogate(
    x: Tensor,
    scale: Any = None,
    *,
    bits: int,
    trust: float = 1.0,
    axis: int | None = None,
    group_size: int | None = None,
) -> Tensor:
    scale = quest_scale(x, bits, axis=axis, group_size=group_size) if scale is None else scale
    half = by_element(x, scale, axis, group_size) / 2
    quantized = _quest_values(x.detach(), scale, bits=bits, axis=axis, group_size=group_size)
    return torch.where((quantized - x).abs() <= trust * half, x, quantized)


def _quest_codes(x: Tensor, scale: Any, *, bits: int, axis: Any = None, group_size: Any = None, **_: Any) -> Tensor:
    step = by_element(x, scale, axis, group_size)[..., None]
    return torch.arange(1 - 2**bits, 2**bits, 2, dtype=torch.float64) / 2 * step


def _trusts(dtype: torch.dtype) -> Sequence[Example]:
    # Without neighbours of ties, where the sum with 1/2 is rounded. The mask ends at 1, a step of 1/2 further with more
    # trust, and with less at 1/8 from each value.
    ties = torch.arange(-2.0, 2.5, 0.5, dtype=torch.float64).to(dtype)
    x = joined([around(-1.0, 1.0, dtype=dtype), ties, grid(-2.0, 2.0, 15, dtype)]).requires_grad_()
    inner = joined(
        [around(-0.875, -0.625, 0.375, 0.625, 0.875, dtype=dtype), grid(-2.0, 2.0, 15, dtype)]
    ).requires_grad_()
    rows, scales = grid(-2, 2, 24, dtype).reshape(3, 8).requires_grad_(), torch.tensor([0.125, 0.25, 0.5], dtype=dtype)
    groups = torch.tensor([[0.125, 0.25], [0.5, 1.0], [0.0625, 0.25]], dtype=dtype)
    return [
        Example((x, 0.5), {"bits": 2}, "a number"),
        Example((x, torch.tensor(0.5, dtype=dtype)), {"bits": 2, "trust": 2.0}, "more trust"),
        Example((inner, 0.5), {"bits": 2, "trust": 0.5}, "less trust"),
        Example((x, 0.5), {"bits": 1}, "1 bit"),
        Example((rows, scales), {"bits": 3, "axis": 0}, "per channel"),
        Example((rows, groups), {"bits": 2, "axis": 1, "group_size": 4}, "per group"),
    ]


@catalogued(
    forward="out = s (round(clip(x / s, -h, h) + 1/2) - 1/2), h = (2^bits - 1) / 2, s = sqrt(mean x^2) c / h",
    gradient={"x": "g where |out - x| <= trust s / 2, else 0; the step s is a constant"},
    surrogate=_quest_surrogate,
    examples=_trusts,
    values=_quest_values,
    codes=_quest_codes,
    paper="Panferov et al. 2025, QuEST, arXiv 2502.05003",
)
def quest(
    x: Tensor,
    scale: Tensor | float | None = None,
    *,
    bits: int,
    trust: float = 1.0,
    axis: int | None = None,
    group_size: int | None = None,
) -> Tensor:
    """Quantise as is best for normal data, where the gradient passes if quantising changed the value little (QuEST).

    The Hadamard transform that makes the data normal is not part of it.

    Arguments:
        x: floating point, of any shape.
        scale: the step; None measures it (:func:`quest_scale`). It has no gradient.
        bits: how many, 1 to 8 without ``scale``.
        trust: the largest change that is trusted, in halves of the step. With 1 all pass but those that were clipped by
            more than that.
        axis: the dimension along which ``scale`` changes; a row of a matrix has its own step with 0.
        group_size: with ``axis``, how many neighbours along it share a step.

    Returns:
        a tensor of the shape and dtype of ``x``.

    Raises:
        OptionError: an option has no value that is known.
        ArgumentError: the shape of ``scale`` does not fit.

    Example:
        >>> import torch, gradwright as gw
        >>> x = torch.tensor([0.3, -0.9, 1.4, 3.0], requires_grad=True)
        >>> out = gw.ste.quest(x, 0.5, bits=2)
        >>> out.tolist(), torch.autograd.grad(out.sum(), x)
        ([0.25, -0.75, 0.75, 0.75], (tensor([1., 1., 0., 0.]),))
    """
    codes(bits)
    if trust <= 0:
        raise OptionError(f"quest: trust is {trust}; expected a positive number, 1 as in the paper.")
    measured = quest_scale(x, bits, axis=axis, group_size=group_size) if scale is None else scale
    grouped, (step,) = arranged("quest", x, (measured,), axis, group_size)
    assert step is not None
    return _quest(grouped, step, (2**bits - 1) / 2, trust / 2).reshape(x.shape)
