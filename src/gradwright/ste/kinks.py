"""The absolute value and the step, whose usual derivatives vanish where they are needed."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from gradwright.authoring.catalogue import Example, around, catalogued, grid, joined
from gradwright.authoring.decorator import custom_gradient
from gradwright.ste.masks import passing, working_dtype
from gradwright.ste.rounding import BENGIO


def _abs_examples(dtype: torch.dtype) -> Sequence[Example]:
    special = torch.tensor([-0.0, 1e4, -1e4, torch.inf, -torch.inf], dtype=dtype)
    return [Example((joined([around(0.0, dtype=dtype, steps=2), grid(-2.0, 2.0, 8, dtype), special]),))]


@catalogued(
    forward="out = |x|",
    gradient={"x": "-g where x < 0, else g"},
    surrogate=lambda x: torch.where(x < 0, -x, x),
    examples=_abs_examples,
    values=torch.abs,
    paper="quantisers that divide by |x|, whose gradient must not vanish at 0",
)
@custom_gradient
def abs(x: Tensor) -> Tensor:
    """Return the absolute value; at zero, also the negative one, the derivative is 1 instead of 0.

    Arguments:
        x: floating point, of any shape.

    Returns:
        a tensor like ``x``.

    Example:
        >>> import torch, gradwright as gw
        >>> x = torch.tensor([-2.0, 0.0, 2.0], requires_grad=True)
        >>> torch.autograd.grad(gw.ste.abs(x).sum(), x)
        (tensor([-1.,  1.,  1.]),)
    """
    return torch.abs(x)


@abs.vjp
def _abs_vjp(g: Tensor, x: Tensor) -> Tensor:
    with torch.no_grad():  # the sign is a constant
        not_negative = passing(x, 0.0, math.inf, "inclusive")
    kept = not_negative(g)
    return kept - (g - kept)


def _threshold_examples(dtype: torch.dtype) -> Sequence[Example]:
    special = torch.tensor([1e4, -1e4, torch.inf, -torch.inf, torch.nan], dtype=dtype)
    x = joined([around(-0.25, 0.0, 0.5, dtype=dtype), grid(-1.0, 1.0, 8, dtype), special])
    return [Example((x,)), Example((x[:8].reshape(2, 4), -0.25), note="another threshold")]


@catalogued(
    forward="out = 1 where x > threshold, else 0",
    gradient={"x": "g everywhere"},
    surrogate=lambda x, threshold=0.5: x.clone(),
    examples=_threshold_examples,
    values=lambda x, threshold=0.5: (x > threshold).double(),
    codes=lambda x, threshold=0.5: torch.tensor([0.0, 1.0], dtype=torch.float64),
    paper=BENGIO,
)
@custom_gradient
def threshold(x: Tensor, threshold: float = 0.5) -> Tensor:
    """Return 1 above a threshold and 0 elsewhere; the gradient passes as if nothing had happened.

    Arguments:
        x: floating point, of any shape.
        threshold: what is exactly there gives 0, as nan does.

    Returns:
        a tensor like ``x``, of zeros and ones.

    Example:
        >>> import torch, gradwright as gw
        >>> x = torch.tensor([0.2, 0.5, 0.9], requires_grad=True)
        >>> gw.ste.threshold(x).tolist()
        [0.0, 0.0, 1.0]
        >>> torch.autograd.grad(gw.ste.threshold(x).sum(), x)
        (tensor([1., 1., 1.]),)
    """
    return (x.to(working_dtype(x.dtype)) > threshold).to(x.dtype)


@threshold.vjp
def _threshold_vjp(g: Tensor) -> Tensor:
    return g
