"""Products and cumulative products, with zeros, and where an intermediate product leaves the range of the dtype.

PyTorch divides the product by each number for its gradient (and takes another way where one is zero), and multiplies
numbers as they come: ``1e-30 * 1e-30 * 1e30`` is zero in float32, with a gradient of zeros. Here nothing is divided and
partial products are kept as a number near 1 and an exponent (:mod:`~gradwright.stable.exponents`).

Where no product of some of the numbers of a row can come near the ends of the range, and this is seen (in eager mode),
none of that is needed: the quotient is as good as the product of the others, and takes the short way.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from gradwright.authoring.catalogue import Example
from gradwright.authoring.decorator import custom_gradient
from gradwright.authoring.exact import Point, exact, ulps
from gradwright.stable.arguments import require_dim, require_floating, widened
from gradwright.stable.exponents import Dual, joined, mapped, one, others, pulled, running, scaled
from gradwright.stable.seen import seen_below, seen_within, visible

# -------------------------------------------------------------------- ordinary numbers


def _middle(dtype: torch.dtype) -> float:
    """Return the end of the middle third of exponents: three numbers there have their product in the range."""
    return 2.0 ** (math.frexp(torch.finfo(dtype).max)[1] // 3)


def _ordinary_rows(x: Tensor) -> bool:
    """Tell whether it is seen that every product of some numbers of a row is in the middle of the range."""
    if not visible(x):
        return False
    high, size = _middle(x.dtype), x.abs()
    reach = high ** (1 / x.shape[-1])
    if seen_within(size, 1 / reach, reach):
        return True
    # The largest of these products is that of all numbers above 1, and the smallest that of all below.
    return seen_below(size.clamp(min=1).prod(-1), high) and seen_within(size.clamp(max=1).prod(-1), 1 / high, math.inf)


def _ordinary_or_zero(g: Tensor) -> bool:
    """Tell whether it is seen that all numbers are zero or in the middle of the range."""
    high, size = _middle(g.dtype), g.abs()
    return seen_within(size, 1 / high, high) or seen_within(size.masked_fill(size == 0, 1), 1 / high, high)


# -------------------------------------------------------------------- product


@custom_gradient
def _product(x: Tensor) -> Tensor:
    """Return the product along the last dimension, which stays."""
    if _ordinary_rows(x):
        return x.prod(-1, keepdim=True)
    found = scaled(x)
    while (size := found.mantissa.shape[-1]) > 1:
        if size % 2:
            found = joined(found, one(found))
        even, odd = (mapped(lambda t, k=k: t[..., k::2], found) for k in (0, 1))
        found = even.times(odd)
    return found.value()


@_product.vjp
def _product_vjp(g: Tensor, x: Tensor) -> Tensor:
    return g * _others(x)


@custom_gradient
def _others(x: Tensor) -> Tensor:
    """Return, for each number along the last dimension, the product of the others."""
    if _ordinary_rows(x):
        return x.prod(-1, keepdim=True) / x
    return others(scaled(x), x.shape[-1]).value()


@_others.vjp
def _others_vjp(g: Tensor, x: Tensor) -> Tensor:
    return _others_along(g, x)


@custom_gradient
def _others_along(t: Tensor, x: Tensor) -> Tensor:
    """Return the derivative of :func:`_others` along ``t``: the second derivatives of the product, times ``t``."""
    return others(_dual(x, t), x.shape[-1]).slope.value()  # type: ignore[no-any-return]


@_others_along.vjp
def _others_along_vjp(g: Tensor, t: Tensor, x: Tensor) -> dict[str, Tensor]:
    return {"t": _others_along(g, x), "x": others(_dual(x, t, g), x.shape[-1]).slope.slope.value()}


def _dual(x: Tensor, *directions: Tensor) -> Dual:
    """Return numbers with their derivatives along one direction, or along two."""
    number, *slopes = map(scaled, (x, *directions))
    if len(slopes) == 1:
        return Dual(number, slopes[0])
    nothing = scaled(torch.zeros_like(x))
    return Dual(Dual(number, slopes[0]), Dual(slopes[1], nothing))


def _rows(dtype: torch.dtype) -> list[tuple[str, Tensor]]:
    """Return numbers to be multiplied, and what is special about them."""
    middle = 2.0 ** (math.frexp(torch.finfo(dtype).max)[1] * 3 // 4)
    rows = {
        "numbers": [[1.5, -2.0, 0.75, 1.25, -0.5], [0.3, 2.5, 1.75, -1.0, 3.0]],
        "a zero": [2.0, 0.0, -1.5],
        "two zeros": [0.0, 0.0],
        "underflow on the way": [1.5 / middle, 1.25 / middle, middle, -middle / 2],
        "overflow on the way": [middle, -1.5 * middle, 1 / middle, 0.5 / middle],
    }
    return [(note, torch.tensor(row, dtype=dtype)) for note, row in rows.items()]


def _product_reference(mp: Any, x: Any, dim: int | None = None, keepdim: bool = False) -> Any:
    return x.prod(axis=dim, keepdims=keepdim)


def _product_examples(dtype: torch.dtype) -> Sequence[Example]:
    found = [Point((x, -1), note=note, extreme="way" in note) for note, x in _rows(dtype)]
    x = found[0].args[0]
    return [*found, Point((x, 0, True), note="columns, kept"), Point((x[0],), note="all")]


@exact(
    forward="out = the product of x",
    gradient={"x": "g times the product of the others"},
    reference=_product_reference,
    domain="all numbers",
    bars=ulps(4),
    examples=_product_examples,
    elementwise=False,
    replaces=torch.prod,
    ordinary=lambda: (torch.rand(100_000, 10) + 0.5, -1),
    paper="pytorch#193012",
)
def prod(x: Tensor, dim: int | None = None, keepdim: bool = False) -> Tensor:
    """Return the product of numbers, with gradients that know zeros and no intermediate over- or underflow.

    In eager mode ordinary numbers cost what they cost in PyTorch. One zero in the tensor, or a product near the ends of
    the range, makes it ten times as much; so does compiled code, which cannot look.

    Arguments:
        x: floating point, of any shape.
        dim: the dimension along which is multiplied; None for all.
        keepdim: whether it stays, with one element.

    Returns:
        the products.

    Raises:
        ArgumentError: ``x`` is of integers or complex.

    Example:
        >>> import torch, gradwright as gw
        >>> x = torch.tensor([1e-30, 1e-30, 1e30], requires_grad=True)
        >>> torch.autograd.grad(gw.stable.prod(x), x)
        (tensor([1., 1., 0.]),)
    """
    require_floating("prod", x=x)
    require_dim("prod", dim, none=True)
    flat = x.reshape(-1) if dim is None or x.dim() == 0 else x.movedim(dim, -1)
    if flat.shape[-1] == 0:
        out = flat.new_ones((*flat.shape[:-1], 1))
    else:
        out = _product(widened(flat)).to(x.dtype)
    if dim is None or x.dim() == 0:
        return out.reshape([1] * x.dim() if keepdim else [])
    out = out.movedim(-1, dim)
    return out if keepdim else out.squeeze(dim)


# -------------------------------------------------------------------- cumulative product


@custom_gradient
def _cumulative(x: Tensor) -> Tensor:
    """Return the cumulative product along the last dimension."""
    if _ordinary_rows(x):
        return x.cumprod(-1)
    return _cumulated(scaled(x), x.shape[-1]).value()  # type: ignore[no-any-return]


@_cumulative.vjp
def _cumulative_vjp(g: Tensor, x: Tensor) -> Tensor:
    return _pull(g, x)


@custom_gradient
def _pull(g: Tensor, x: Tensor) -> Tensor:
    """Return the gradient of the cumulative product.

    Short: ``r[k]`` times the product up to ``x[k]`` is a sum from the end.
    """
    if _ordinary_rows(x) and _ordinary_or_zero(g):
        return x.cumprod(-1).mul_(g).flip(-1).cumsum(-1).flip(-1).div_(x)
    return pulled(scaled(g), scaled(x), x.shape[-1]).value()


@_pull.vjp
def _pull_vjp(h: Tensor, g: Tensor, x: Tensor) -> dict[str, Tensor]:
    return {"g": _push(h, x), "x": _pull_along(h, g, x)}


@custom_gradient
def _push(t: Tensor, x: Tensor) -> Tensor:
    """Return the derivative of the cumulative product along ``t``."""
    return _cumulated(_dual(x, t), x.shape[-1]).slope.value()  # type: ignore[no-any-return]


@_push.vjp
def _push_vjp(g: Tensor, t: Tensor, x: Tensor) -> dict[str, Tensor]:
    return {"t": _pull(g, x), "x": _pull_along(t, g, x)}


@custom_gradient
def _pull_along(t: Tensor, g: Tensor, x: Tensor) -> Tensor:
    """Return the derivative of :func:`_pull` along ``t`` in ``x``."""
    fixed = _dual(g, torch.zeros_like(g))
    return pulled(fixed, _dual(x, t), x.shape[-1]).slope.value()  # type: ignore[no-any-return]


@_pull_along.vjp
def _pull_along_vjp(h: Tensor, t: Tensor, g: Tensor, x: Tensor) -> dict[str, Tensor]:
    nothing, twice = torch.zeros_like(g), _dual(x, t, h)
    return {
        "t": _pull_along(h, g, x),
        "g": _cumulated(twice, x.shape[-1]).slope.slope.value(),
        "x": pulled(_dual(g, nothing, nothing), twice, x.shape[-1]).slope.slope.value(),
    }


def _cumulated(x: Any, size: int) -> Any:
    """Return the product of each number and all before it."""
    return running(x, lambda early, late: early.times(late), size)


def _cumulative_examples(dtype: torch.dtype) -> Sequence[Example]:
    found = []
    for note, x in _rows(dtype):
        orders = 0 if "overflow" in note else 2  # there the product before a number, its derivative, is infinite
        found.append(Point((x, -1), note=note, extreme="way" in note, orders=orders))
    return [*found, Point((found[0].args[0], 0), note="columns")]


@exact(
    forward="out[k] = x[0] x[1] ... x[k]",
    gradient={"x": "the product before k times r[k], r[k] = g[k] + x[k + 1] r[k + 1]"},
    reference=lambda mp, x, dim: x.cumprod(axis=dim),
    domain="all numbers",
    bars=ulps(4),
    examples=_cumulative_examples,
    elementwise=False,
    second_measure="tensor",
    replaces=torch.cumprod,
    ordinary=lambda: (torch.rand(100_000, 10) + 0.5, -1),
    slower="the numbers are looked at in each direction, and multiplied again for the gradient",
    paper="pytorch#193012",
)
def cumprod(x: Tensor, dim: int) -> Tensor:
    """Return cumulative products, with gradients that know zeros and no intermediate over- or underflow.

    What it costs depends on the numbers as in :func:`prod`.

    Arguments:
        x: floating point, of any shape.
        dim: the dimension along which is multiplied.

    Returns:
        a tensor like ``x``.

    Raises:
        ArgumentError: ``x`` is of integers or complex.

    Example:
        >>> import torch, gradwright as gw
        >>> gw.stable.cumprod(torch.tensor([1e-30, 1e-30, 1e30, 1.0]), 0)
        tensor([1.0000e-30, 0.0000e+00, 1.0000e-30, 1.0000e-30])
    """
    require_floating("cumprod", x=x)
    require_dim("cumprod", dim)
    if x.dim() == 0 or x.numel() == 0:
        return torch.cumprod(x, dim)
    return _cumulative(widened(x).movedim(dim, -1)).movedim(-1, dim).to(x.dtype)
