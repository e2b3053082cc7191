"""Rounding whose gradient does not vanish.

The derivative of a staircase is zero almost everywhere. Each function here has the values of one and the gradient of
something else, which it declares. Values are exact: none is made of ``x + (round(x) - x)``, which returns other numbers
than the codes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

from gradwright.authoring.catalogue import Example, around, catalogued, grid, joined
from gradwright.authoring.decorator import custom_gradient

F = TypeVar("F", bound=Callable[..., Any])

BENGIO = "Bengio, Léonard, Courville 2013, arXiv 1308.3432"


def _identity(x: Tensor) -> Tensor:
    return x.clone()


def _passes(g: Tensor) -> Tensor:
    return g


def _points(dtype: torch.dtype) -> Sequence[Example]:
    """Return ties, integers and zero with their neighbours, and points in between."""
    edges = around(-2.5, -2.0, -1.5, -1.0, -0.5, 0.0, 0.5, 1.0, 1.5, 2.5, dtype=dtype)
    x = joined([edges, grid(-3.3, 3.3, 9, dtype)])
    return [Example((x,), note="ties and integers"), Example((x[:6].reshape(2, 3),))]


def _half_away(x: Tensor) -> Tensor:
    return torch.where(x.frac().abs() >= 0.5, x.trunc() + x.sign(), x.trunc())


def _integers(x: Tensor) -> Tensor:
    return torch.arange(-8, 9, dtype=torch.float64)


def _staircase(forward: str, values: Callable[[Tensor], Tensor], paper: str = BENGIO) -> Callable[[F], F]:
    """Enter a function that rounds to integers and whose gradient passes."""
    return catalogued(
        forward=forward,
        gradient={"x": "g everywhere"},
        surrogate=_identity,
        examples=_points,
        codes=_integers,
        paper=paper,
        values=values,
    )


@_staircase("out = round(x), ties to the even neighbour", torch.round)
@custom_gradient
def round(x: Tensor) -> Tensor:
    """Round to the nearest integer, ties to even; the gradient passes as if nothing had happened.

    Arguments:
        x: floating point, of any shape.

    Returns:
        a tensor like ``x``.

    Example:
        >>> import torch, gradwright as gw
        >>> x = torch.tensor([0.4, 1.5, -2.5], requires_grad=True)
        >>> gw.ste.round(x).tolist()
        [0.0, 2.0, -2.0]
        >>> torch.autograd.grad(gw.ste.round(x).sum(), x)
        (tensor([1., 1., 1.]),)
    """
    return torch.round(x)


@_staircase("out = floor(x)", torch.floor)
@custom_gradient
def floor(x: Tensor) -> Tensor:
    """Round down; the gradient passes as if nothing had happened. As :func:`round` else."""
    return torch.floor(x)


@_staircase("out = ceil(x)", torch.ceil)
@custom_gradient
def ceil(x: Tensor) -> Tensor:
    """Round up; the gradient passes as if nothing had happened. As :func:`round` else."""
    return torch.ceil(x)


@_staircase("out = trunc(x), toward zero", torch.trunc)
@custom_gradient
def trunc(x: Tensor) -> Tensor:
    """Round toward zero; the gradient passes as if nothing had happened. As :func:`round` else."""
    return torch.trunc(x)


@_staircase(
    "out = sign(x) floor(|x| + 1/2), ties away from zero", _half_away, "rounding of fixed-point accelerators; " + BENGIO
)
@custom_gradient
def round_half_away(x: Tensor) -> Tensor:
    """Round to the nearest integer, ties away from zero; the gradient passes as if nothing had happened.

    As :func:`round` else.
    """
    size = x.abs()
    whole = torch.floor(size)
    # Not floor(size + 1/2): that sum is rounded too, so that the number below 1/2 would become 1.
    return torch.copysign(whole + (size - whole >= 0.5).to(x.dtype), x)


round.vjp(_passes)
floor.vjp(_passes)
ceil.vjp(_passes)
trunc.vjp(_passes)
round_half_away.vjp(_passes)
