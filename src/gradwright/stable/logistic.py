"""The logistic function and its relatives, whose gradients do not vanish in the tails.

PyTorch forms ``1 - sigmoid(x)`` from the rounded value, which is zero from 37 on (17 in float32). Here both factors of
a derivative are computed from ``x``, each by a form that loses nothing: ``sigmoid'(x) = sigmoid(x) sigmoid(-x)``.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from gradwright.authoring.catalogue import Example, grid, joined
from gradwright.authoring.decorator import custom_gradient
from gradwright.authoring.exact import Point, exact, sweep, ulps, whole_range


def _examples(dtype: torch.dtype) -> Sequence[Example]:
    bulk = joined([torch.zeros(1, dtype=dtype), grid(-8.0, 8.0, 14, dtype), sweep(-6, 3, dtype, 3)])
    tails = joined([grid(-80.0, 80.0, 8, dtype), torch.tensor([-700.0, -40.0, 40.0, 700.0], dtype=dtype)])
    return [
        Point((bulk,), note="bulk"),
        Point((tails,), note="tails", extreme=True),
        Point((torch.cat([whole_range(dtype, 6), torch.tensor([torch.inf, -torch.inf], dtype=dtype)]),), extreme=True),
    ]


@exact(
    forward="out = 1 / (1 + exp(-x))",
    gradient={"x": "g sigmoid(x) sigmoid(-x)"},
    reference=lambda mp, x: 1 / (1 + mp.exp(-x)),
    domain="every number; 0 and 1 at the infinities",
    bars=ulps(4),
    examples=_examples,
    replaces=torch.sigmoid,
    paper="pytorch#195527; both factors from x",
)
@custom_gradient
def sigmoid(x: Tensor) -> Tensor:
    """Return the logistic function, with a gradient that does not vanish before it must.

    Arguments:
        x: floating point, of any shape.

    Returns:
        a tensor like ``x``.

    Example:
        >>> import torch, gradwright as gw
        >>> x = torch.tensor(40.0, requires_grad=True)
        >>> torch.autograd.grad(gw.stable.sigmoid(x), x)
        (tensor(4.2484e-18),)
    """
    return torch.sigmoid(x)


@sigmoid.vjp
def sigmoid_vjp(g: Tensor, x: Tensor) -> Tensor:
    return g * logistic_slope(x)


@custom_gradient
def logistic_slope(x: Tensor) -> Tensor:
    """Return ``sigmoid(x) sigmoid(-x)``, as ``s - s ** 2`` of the smaller of the two, which does not cancel.

    It has a rule of its own, since the derivative of that expression cancels near zero.
    """
    small = x.abs().neg_().sigmoid_()  # in place: no one sees it, and it halves the memory that is written
    return torch.addcmul(small, small, small, value=-1)


@logistic_slope.vjp
def logistic_slope_vjp(g: Tensor, x: Tensor, out: Tensor) -> Tensor:
    return g * (out * torch.tanh(x * -0.5))
