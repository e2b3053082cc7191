"""Signs: +1 and -1, with the gradient of something that has one.

All functions here have the same values, ``+1`` where ``x >= 0`` and ``-1`` below, zero of either sign included, and nan
for nan. They differ in the function whose derivative they use. For a learned shift, as ReActNet has, write
``approx_sign(x - shift)``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

from gradwright.authoring.catalogue import Example, around, catalogued, grid, joined
from gradwright.authoring.decorator import custom_gradient
from gradwright.errors import OptionError
from gradwright.ste.masks import Edges, check_mask, passing, positive, working_dtype
from gradwright.ste.stochastic import uniform

F = TypeVar("F", bound=Callable[..., Any])


def signs(x: Tensor) -> Tensor:
    """Return +1 where ``x >= 0``, -1 below, nan for nan."""
    return 1 - 2 * positive(-x)  # not torch.where, which takes ten times as long on a CPU (torch 2.13)


def _values(x: Tensor, **_: Any) -> Tensor:
    return torch.copysign(torch.ones_like(x), x + 0.0)  # which turns -0 into 0


def _codes(x: Tensor, **_: Any) -> Tensor:
    return torch.tensor([-1.0, 1.0], dtype=torch.float64)


def _points(dtype: torch.dtype) -> Tensor:
    """Return zero of both signs, the usual bounds with their neighbours, and points out to where exponentials end."""
    far = torch.tensor([-1e4, -800.0, -100.0, -20.0, -6.0, -0.0, 6.0, 20.0, 100.0, 800.0, 1e4], dtype=dtype)
    return joined([around(-2.0, -1.0, -0.5, 0.0, 0.5, 1.0, 2.0, dtype=dtype), far, grid(-2.5, 2.5, 9, dtype)])


def _binary(
    gradient: str,
    surrogate: Callable[..., Tensor],
    paper: str,
    options: Sequence[dict[str, Any]] = ({},),
) -> Callable[[F], F]:
    """Enter a function that returns signs; there is one example for each of ``options``."""

    def examples(dtype: torch.dtype) -> Sequence[Example]:
        return [Example((_points(dtype),), each, str(each)) for each in options]

    return catalogued(
        forward="out = +1 where x >= 0, else -1",
        gradient={"x": gradient},
        surrogate=surrogate,
        examples=examples,
        values=_values,
        codes=_codes,
        paper=paper,
    )


def _check_positive(function: str, name: str, value: float) -> None:
    if not value > 0:
        raise OptionError(f"{function}: {name} is {value!r}; expected a positive number.")


# -------------------------------------------------------------------- straight-through


@_binary("g everywhere", lambda x: x.clone(), "Courbariaux, Bengio, David 2015, arXiv 1511.00363")
@custom_gradient
def sign(x: Tensor) -> Tensor:
    """Return signs; the gradient passes as if nothing had happened.

    Arguments:
        x: floating point, of any shape.

    Returns:
        +1 and -1, a tensor like ``x``.

    Example:
        >>> import torch, gradwright as gw
        >>> x = torch.tensor([-3.0, -0.0, 0.5], requires_grad=True)
        >>> gw.ste.sign(x).tolist()
        [-1.0, 1.0, 1.0]
        >>> torch.autograd.grad(gw.ste.sign(x).sum(), x)
        (tensor([1., 1., 1.]),)
    """
    return signs(x)


@sign.vjp
def sign_vjp(g: Tensor) -> Tensor:
    return g


def _clipped_surrogate(x: Tensor, bound: float = 1.0, edges: str | None = None) -> Tensor:
    size = x.detach().abs()
    return torch.where(size >= bound if edges == "exclusive" else size > bound, 0.0, x)


@_binary(
    "g where |x| <= bound, else 0 (edges)",
    _clipped_surrogate,
    "Hubara et al. 2016, arXiv 1602.02830",
    ({}, {"edges": "exclusive"}, {"bound": 2.0}),
)
@custom_gradient
def clipped_sign(x: Tensor, *, bound: float = 1.0, edges: Edges | None = None) -> Tensor:
    """Return signs; the gradient is that of hardtanh.

    Arguments:
        x: floating point, of any shape.
        bound: beyond it the gradient is zero, positive.
        edges: whether the bound itself is inside; None: it is.

    Returns:
        +1 and -1, a tensor like ``x``.

    Raises:
        OptionError: an option has no value that is known.

    Example:
        >>> import torch, gradwright as gw
        >>> x = torch.tensor([-3.0, -1.0, 0.5], requires_grad=True)
        >>> torch.autograd.grad(gw.ste.clipped_sign(x).sum(), x)
        (tensor([0., 1., 1.]),)
    """
    _check_positive("clipped_sign", "bound", bound)
    check_mask("clipped_sign", "range", edges)
    return signs(x)


@clipped_sign.vjp
def clipped_sign_vjp(g: Tensor, x: Tensor, bound: float, edges: Edges | None) -> Tensor:
    dtype = working_dtype(x.dtype)  # the bound need be no number of a half-precision dtype
    with torch.no_grad():  # where the gradient passes is a constant
        inside = passing(x.to(dtype), -bound, bound, edges or "inclusive")
    return inside(g.to(dtype))


# -------------------------------------------------------------------- smooth steps


def _approx_surrogate(x: Tensor) -> Tensor:
    return torch.where(x.detach().abs() >= 1, 0.0, x * 2 - x * x.abs())


@_binary(
    "g max(0, 2 - 2|x|)",
    _approx_surrogate,
    "Liu et al. 2018 (Bi-Real Net), arXiv 1808.00278; Liu et al. 2020 (ReActNet), arXiv 2003.03488",
)
@custom_gradient
def approx_sign(x: Tensor) -> Tensor:
    """Return signs; the gradient is that of two parabolas, a triangle of height 2 over (-1, 1).

    Arguments:
        x: floating point, of any shape.

    Returns:
        +1 and -1, a tensor like ``x``.

    Example:
        >>> import torch, gradwright as gw
        >>> x = torch.tensor([-1.0, -0.25, 0.0], requires_grad=True)
        >>> torch.autograd.grad(gw.ste.approx_sign(x).sum(), x)
        (tensor([0.0000, 1.5000, 2.0000]),)
    """
    return signs(x)


@approx_sign.vjp
def approx_sign_vjp(g: Tensor, x: Tensor) -> Tensor:
    return g * torch.relu(2 - 2 * x.to(working_dtype(x.dtype)).abs())  # whose derivative at zero is zero everywhere


def _swish_surrogate(x: Tensor, beta: float = 5.0) -> Tensor:
    u = x * beta
    return 2 * torch.sigmoid(u) * (1 + u * torch.sigmoid(-u)) - 1


@_binary(
    "g beta (2 - u tanh(u/2)) / (1 + cosh u), u = beta x",
    _swish_surrogate,
    "Darabi et al. 2018 (BNN+), arXiv 1812.11800",
    ({}, {"beta": 2.0}),
)
@custom_gradient
def swish_sign(x: Tensor, *, beta: float = 5.0) -> Tensor:
    """Return signs; the gradient is that of ``2 s(u) (1 + u (1 - s(u))) - 1`` for ``u = beta x`` and the sigmoid ``s``.

    It is negative for ``|u| > 2.4`` and computed without overflow for any ``x``.

    Arguments:
        x: floating point, of any shape.
        beta: the steepness, positive.

    Returns:
        +1 and -1, a tensor like ``x``.

    Raises:
        OptionError: ``beta`` is not positive.

    Example:
        >>> import torch, gradwright as gw
        >>> x = torch.tensor([-1e30, 0.0, 0.5], requires_grad=True)
        >>> torch.autograd.grad(gw.ste.swish_sign(x).sum(), x)
        (tensor([-0.0000,  5.0000, -0.0846]),)
    """
    _check_positive("swish_sign", "beta", beta)
    return signs(x)


@swish_sign.vjp
def swish_sign_vjp(g: Tensor, x: Tensor, beta: float) -> Tensor:
    # Beyond 1000 the factor is zero in float64 too, and infinity times zero would be nan.
    u = (x.to(working_dtype(x.dtype)) * beta).clamp(-1000, 1000)
    return g * (beta * (2 - u * torch.tanh(u / 2)) * 2 * torch.sigmoid(u) * torch.sigmoid(-u))


def _ede_surrogate(x: Tensor, t: float) -> Tensor:
    return max(1 / t, 1.0) * torch.tanh(x * t)


@_binary(
    "g k t (1 - tanh(t x)^2), k = max(1/t, 1)",
    _ede_surrogate,
    "Qin et al. 2020 (IR-Net), arXiv 1909.10788",
    ({"t": 0.125}, {"t": 1.0}, {"t": 8.0}),
)
@custom_gradient
def error_decay_sign(x: Tensor, *, t: float) -> Tensor:
    """Return signs; the gradient is that of ``k tanh(t x)``, for a ``t`` that grows while training (EDE).

    The paper goes from ``t = 0.1``, nearly the identity, to ``t = 10``, nearly the sign, in equal factors:
    ``t = 0.1 * 100 ** (epoch / epochs)``.

    Arguments:
        x: floating point, of any shape.
        t: the steepness, positive.

    Returns:
        +1 and -1, a tensor like ``x``.

    Raises:
        OptionError: ``t`` is not positive.

    Example:
        >>> import torch, gradwright as gw
        >>> x = torch.tensor([-1e30, 0.0, 0.5], requires_grad=True)
        >>> torch.autograd.grad(gw.ste.error_decay_sign(x, t=2.0).sum(), x)
        (tensor([0.0000, 2.0000, 0.8399]),)
    """
    _check_positive("error_decay_sign", "t", t)
    return signs(x)


@error_decay_sign.vjp
def error_decay_sign_vjp(g: Tensor, x: Tensor, t: float) -> Tensor:
    u = 2 * t * x.to(working_dtype(x.dtype))
    # Not 1 - tanh^2, whose digits cancel: four times the product of two sigmoids is the same.
    return g * (max(1.0, t) * 4 * torch.sigmoid(u) * torch.sigmoid(-u))


# -------------------------------------------------------------------- at random


def _stochastic_examples(dtype: torch.dtype) -> Sequence[Example]:
    return [Example((_points(dtype),)), Example((_points(dtype),), {"training": False}, "evaluation")]


def _possible(x: Tensor, **_: Any) -> Tensor:
    """Return the signs that are possible: one of them from -1 down and from 1 up."""
    return torch.stack([torch.where(x >= 1, 1.0, -1.0), torch.where(x <= -1, -1.0, 1.0)], -1).double()


@catalogued(
    forward="out = +1 with probability clip((x + 1) / 2, 0, 1), else -1; in evaluation +1 where x >= 0, else -1",
    gradient={"x": "g everywhere"},
    surrogate=lambda x, **_: x.clone(),
    examples=_stochastic_examples,
    codes=_possible,
    random="E[out] = clip(x, -1, 1); the error of the probability is at most 2 ** -24 (2 ** -53 in float64)",
    paper="Courbariaux, Bengio, David 2015, arXiv 1511.00363",
)
@custom_gradient
def stochastic_sign(x: Tensor, *, generator: torch.Generator | None = None, training: bool = True) -> Tensor:
    """Return signs at random whose mean is ``x`` clipped to [-1, 1]; the gradient passes as if nothing had happened.

    The paper (BinaryConnect) clips the weights themselves to [-1, 1] after each step of the optimiser: beyond, their
    sign is certain and they could grow without an effect. That is no part of the gradient; do it with
    ``weight.clamp_(-1, 1)``. Under ``vmap`` say ``randomness="different"`` or ``"same"``.

    Arguments:
        x: floating point, of any shape.
        generator: draws the numbers; None for PyTorch's own.
        training: whether to draw; otherwise as :func:`sign`.

    Returns:
        +1 and -1, a tensor like ``x``.

    Example:
        >>> import torch, gradwright as gw
        >>> x = torch.full((10000,), 0.5, requires_grad=True)
        >>> out = gw.ste.stochastic_sign(x, generator=torch.Generator().manual_seed(0))
        >>> sorted(set(out.tolist())), abs(out.mean().item() - 0.5) < 0.02
        ([-1.0, 1.0], True)
    """
    if not training:
        return signs(x)
    wide = x.to(working_dtype(x.dtype))
    drawn = uniform(wide, generator)
    # The smallest number that is drawn is -1, which must not be below an x of -1, nor all of them below one of 1.
    return -signs(2 * drawn - 1 - wide).to(x.dtype)


@stochastic_sign.vjp
def stochastic_sign_vjp(g: Tensor) -> Tensor:
    return g
