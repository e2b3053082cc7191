"""Quantisation to levels that are not evenly spaced: the best for half a normal density (HWGQ), sums of powers of two
(APoT).

Values go to the nearest level, and to the smaller one from the middle between two.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from gradwright import torch_compat
from gradwright.authoring.catalogue import Example, around, catalogued, grid, joined
from gradwright.authoring.decorator import custom_gradient
from gradwright.errors import OptionError
from gradwright.ste.masks import passing, working_dtype
from gradwright.ste.parameters import arranged, by_element, summed_product, whole


def nearest(x: Tensor, levels: Sequence[float], edges: Sequence[float]) -> Tensor:
    """Return 0 up to the first edge, the first level up to the second edge, and so on; nan stays.

    Levels are positive and increase, so that the one of an element is the largest whose edge it has passed. For the few
    that there are this is several times faster than to search the edges for each element.
    """
    found = x.clamp(0.0, 0.0)
    for level, edge in zip(levels, edges):
        found = torch.maximum(found, torch_compat.where_above(level, x, edge))
    return found


def between(levels: Sequence[float]) -> tuple[float, ...]:
    """Return the middle between each level and the next."""
    return tuple((a + b) / 2 for a, b in itertools.pairwise(levels))


def nearest_in_float64(x: Tensor, levels: Sequence[float]) -> Tensor:
    """Return the nearest level by looking at all of them, the first of two (for proofs)."""
    table = torch.tensor(levels, dtype=torch.float64)
    return table[(x.double().unsqueeze(-1) - table).abs().argmin(-1)]


# -------------------------------------------------------------------- HWGQ

HALF_NORMAL_LEVELS: Mapping[int, tuple[float, ...]] = {
    1: (0.7978845608028654,),
    2: (0.3177163692948399, 1.000106046197546, 1.893594811641728),
    3: (
        0.14570624414160468,
        0.44132088937749536,
        0.7504426179788403,
        1.0856353124958127,
        1.4675282679862445,
        1.9386124064875407,
        2.6250625081564682,
    ),
    4: (
        0.07015524584671913,
        0.2109280945109285,
        0.3531096294953523,
        0.4977137046377175,
        0.6458762917773739,
        0.7989269802946012,
        0.9584903552101123,
        1.1266398574579761,
        1.3061468361310438,
        1.5009123334548051,
        1.716778862843311,
        1.9632237951157738,
        2.257440319612993,
        2.636614204229077,
        3.2135622376218,
    ),
}
"""By bits, the levels with the least mean squared error for the positive half of a standard normal density; each is the
mean of what goes to it (Lloyd's condition)."""


@custom_gradient
def _hwgq(x: Tensor, bits: int) -> Tensor:
    positive = HALF_NORMAL_LEVELS[bits]
    return nearest(x.to(working_dtype(x.dtype)), positive, (0.0, *between(positive))).to(x.dtype)


@_hwgq.vjp
def _hwgq_vjp(g: Tensor, x: Tensor, bits: int) -> dict[str, Tensor]:
    g = g.to(working_dtype(x.dtype))
    with torch.no_grad():  # where the gradient passes is a constant
        wide = x.to(g.dtype)
        positive = passing(wide, 0.0, torch.inf, "exclusive")
        bounded = passing(wide, -torch.inf, HALF_NORMAL_LEVELS[bits][-1], "inclusive")
    return {"x": positive(bounded(g))}


def _hwgq_points(dtype: torch.dtype) -> Sequence[Example]:
    # The bound is no number of any dtype: points next to it, and not the one it is rounded to.
    found = []
    for bits, levels in HALF_NORMAL_LEVELS.items():
        bound = around(levels[-1], dtype=dtype, steps=2)
        x = joined([around(0.0, dtype=dtype), bound[[2, 4]], grid(-1.0, 4.0, 29, dtype)])
        found.append(Example((x,), {"bits": bits}, f"{bits} bits"))
    return found


@catalogued(
    forward="out = 0 where x <= 0, else the nearest of 2^bits - 1 positive levels",
    gradient={"x": "g where 0 < x <= the highest level, else 0"},
    surrogate=lambda x, *, bits: torch.where((x > 0) & (x <= HALF_NORMAL_LEVELS[bits][-1]), x, 0.0 * x),
    examples=_hwgq_points,
    values=lambda x, *, bits: torch.where(x > 0, nearest_in_float64(x, HALF_NORMAL_LEVELS[bits]), 0.0),
    codes=lambda x, *, bits: torch.tensor([0.0, *HALF_NORMAL_LEVELS[bits]], dtype=torch.float64),
    paper="Cai et al. 2017, Half-wave Gaussian quantization, arXiv 1702.00953",
)
def hwgq(x: Tensor, *, bits: int) -> Tensor:
    """Quantise activations of unit variance to the levels that are best for normal data, after a ReLU (HWGQ).

    The gradient is that of a clipped ReLU. Batch normalisation before it keeps the levels right.

    Arguments:
        x: floating point, of any shape, about normal with variance 1.
        bits: 1 to 4.

    Returns:
        a tensor of the shape and dtype of ``x``.

    Raises:
        OptionError: there are no levels for ``bits``.

    Example:
        >>> import torch, gradwright as gw
        >>> x = torch.tensor([-1.0, 0.1, 1.2, 3.0], requires_grad=True)
        >>> out = gw.ste.hwgq(x, bits=2)
        >>> [round(value, 3) for value in out.tolist()], torch.autograd.grad(out.sum(), x)
        ([0.0, 0.318, 1.0, 1.894], (tensor([0., 1., 1., 0.]),))
    """
    if bits not in HALF_NORMAL_LEVELS:
        raise OptionError(f"hwgq: bits is {bits}; expected one of {', '.join(map(str, HALF_NORMAL_LEVELS))}.")
    return _hwgq(x, bits)


# -------------------------------------------------------------------- APoT


def apot_levels(bits: int, *, signed: bool = True) -> tuple[float, ...]:
    """Return the levels of APoT from 0 to 1: scaled sums of powers of two.

    Each sum takes one of four numbers from every pair of bits, the powers of two being dealt out in turn, so that all
    sums differ: ``{0, 1/2, 1/8, 1/32} + {0, 1/4, 1/16, 1/64}`` for four bits. A bit that is left over adds one of two.

    Arguments:
        bits: at least 1, and 2 if signed.
        signed: one bit is the sign.

    Example:
        >>> import gradwright as gw
        >>> gw.ste.apot_levels(3), gw.ste.apot_levels(2)
        ((0.0, 0.25, 0.5, 1.0), (0.0, 1.0))
    """
    least = 1 + int(signed)
    if not whole(bits, least):
        raise OptionError(f"apot_levels: bits is {bits!r}; expected a whole number from {least} with signed={signed}.")
    pairs, single = divmod(bits - int(signed), 2)
    powers = (2.0**-k for k in itertools.count(1))
    terms = [[0.0] for _ in range(pairs)]
    for turn in range(3):
        if turn == 2 and single:
            terms.append([0.0, next(powers)])
        for term in terms[:pairs]:
            term.append(next(powers))
    sums = sorted(map(sum, itertools.product(*terms)))
    return tuple(value / sums[-1] for value in sums)


@custom_gradient(double_backward="once")  # the gradients of x and bound are not those of one function
def _apot(x: Tensor, bound: Tensor | float, bits: int, signed: bool) -> Tensor:
    return _level(x.to(working_dtype(x.dtype)) / bound, bits, signed).mul_(bound).to(x.dtype)


@_apot.vjp
def _apot_vjp(
    g: Tensor, x: Tensor, bound: Any, bits: int, signed: bool, needs: Mapping[str, bool]
) -> dict[str, Tensor]:
    g = g.to(working_dtype(x.dtype))
    wide = x.to(g.dtype)
    size = wide.abs() if signed else wide
    bounded = passing(size - bound, -torch.inf, 0.0, "inclusive", overwrite=True)  # the sign is exact
    positive = passing(size, 0.0, torch.inf, "inclusive")
    grads = {"x": positive(bounded(g))}
    if needs["bound"]:
        v = wide / bound
        grads["bound"] = summed_product(g, _level(v, bits, signed) - positive(bounded(v)), bound)
    return grads


def _level(v: Tensor, bits: int, signed: bool) -> Tensor:
    """Return the level of values in units of the bound, a new tensor."""
    levels = apot_levels(bits, signed=signed)
    found = nearest(v.abs() if signed else v, levels[1:], between(levels))
    return torch.copysign(found, v) if signed else found


def _apot_values(
    x: Tensor, bound: Any, *, bits: int, signed: bool = True, axis: Any = None, group_size: Any = None
) -> Tensor:
    most = by_element(x, bound, axis, group_size)
    v = x / most
    levels = apot_levels(bits, signed=signed)
    return (torch.sign(v) * nearest_in_float64(v.abs(), levels) if signed else nearest_in_float64(v, levels)) * most


def _apot_surrogate(
    x: Tensor,
    bound: Any,
    *,
    bits: int,
    signed: bool = True,
    axis: int | None = None,
    group_size: int | None = None,
) -> Tensor:
    level = _apot_values(x.detach(), bound, bits=bits, signed=signed, axis=axis, group_size=group_size).detach()
    grouped, (most,) = arranged("apot", x, (bound,), axis, group_size)
    most = torch.as_tensor(most, dtype=x.dtype)
    q, v = level.reshape(grouped.shape) / most.detach(), (grouped / most).detach()
    inside = (grouped <= most) & (grouped >= (-most if signed else 0.0))
    return torch.where(inside, grouped + (q - v) * most, q * most).reshape(x.shape)


def _apot_codes(
    x: Tensor, bound: Any, *, bits: int, signed: bool = True, axis: Any = None, group_size: Any = None
) -> Tensor:
    levels = torch.tensor(apot_levels(bits, signed=signed), dtype=torch.float64)
    levels = torch.cat([levels, -levels]) if signed else levels
    return levels * by_element(x, bound, axis, group_size)[..., None]


def _sums(dtype: torch.dtype) -> Sequence[Example]:
    bound = torch.tensor(2.0, dtype=dtype)
    x = joined([around(-2.0, 0.0, 2.0, dtype=dtype), grid(-3.0, 3.0, 25, dtype)])
    ties = torch.tensor([-1.5, -0.75, -0.25, 0.25, 0.75, 1.5], dtype=dtype)
    rows, bounds = grid(-2, 2, 24, dtype).reshape(3, 8), torch.tensor([0.5, 1.0, 2.0], dtype=dtype)
    groups = torch.tensor([[0.5, 1.0], [2.0, 4.0], [0.25, 1.0]], dtype=dtype)
    return [
        Example((joined([x, ties]), bound), {"bits": 3}, "weights"),
        Example((x, 2.0), {"bits": 4}, "fixed"),
        Example((x, bound), {"bits": 5}, "5 bits"),
        Example((x, bound), {"bits": 2, "signed": False}, "activations"),
        Example((rows, bounds), {"bits": 3, "axis": 0}, "per channel"),
        Example((rows, groups), {"bits": 4, "axis": 1, "group_size": 4}, "per group"),
    ]


@catalogued(
    forward="out = a times the nearest sum of powers of two to clip(x / a, -1, 1)",
    gradient={
        "x": "g where |x| <= a (0 <= x <= a if unsigned), else 0",
        "bound": "sum of g (out / a - x / a) where it passes, of g out / a elsewhere",
    },
    surrogate=_apot_surrogate,
    examples=_sums,
    values=_apot_values,
    codes=_apot_codes,
    second_order="raises",
    paper="Li et al. 2020, Additive powers-of-two quantization, arXiv 1909.13144",
)
def apot(
    x: Tensor,
    bound: Tensor | float,
    *,
    bits: int,
    signed: bool = True,
    axis: int | None = None,
    group_size: int | None = None,
) -> Tensor:
    """Quantise to sums of powers of two up to a learned bound (APoT): products with them are shifts and additions.

    Arguments:
        x: floating point, of any shape; the paper normalises weights to mean 0 and variance 1 first.
        bound: the highest level ``a``, positive; one number or scalar tensor, or with ``axis`` one for each slice or
            group.
        bits, signed: the levels, as in :func:`apot_levels`, on both sides of zero if signed.
        axis: the dimension along which ``bound`` changes.
        group_size: with ``axis``, how many neighbours along it share a bound.

    Returns:
        a tensor of the shape and dtype of ``x``.

    Raises:
        OptionError: an option has no value that is known.
        ArgumentError: the shape of ``bound`` does not fit.

    Example:
        >>> import torch, gradwright as gw
        >>> x, a = torch.tensor([0.3, -3.0], requires_grad=True), torch.tensor(1.0, requires_grad=True)
        >>> out = gw.ste.apot(x, a, bits=3)
        >>> out.tolist(), torch.autograd.grad(out.sum(), (x, a))
        ([0.25, -1.0], (tensor([1., 0.]), tensor(-1.0500)))
    """
    apot_levels(bits, signed=signed)
    grouped, (most,) = arranged("apot", x, (bound,), axis, group_size)
    assert most is not None
    return _apot(grouped, most, bits, signed).reshape(x.shape)
