"""The logistic function and its inverse, whose gradients do not vanish in the tails.

PyTorch forms ``1 - sigmoid(x)`` from the rounded value, which is zero from 37 on (17 in float32). Here both factors of
a derivative are computed from ``x``, each by a form that loses nothing: ``sigmoid'(x) = sigmoid(x) sigmoid(-x)``.
The logarithm of a ratio near one is taken from the ratio minus one:
``logit(x) = 2 log1p((sqrt(x) - sqrt(1 - x)) / sqrt(1 - x))`` below one half, and its mirror image above.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from gradwright.authoring.catalogue import Example, around, grid, joined
from gradwright.authoring.decorator import custom_gradient
from gradwright.authoring.exact import Point, exact, sweep, ulps, whole_range
from gradwright.errors import OptionError
from gradwright.stable.arguments import require_floating, require_number, scaled, widened


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
    slower="one more exponential: PyTorch takes the derivative from the value alone, which no longer has the tail",
    paper="pytorch#195527; both factors from x",
)
@custom_gradient
def sigmoid(x: Tensor) -> Tensor:
    """Return the logistic function, with a gradient that does not vanish before it must.

    Arguments:
        x: floating point, of any shape.

    Returns:
        a tensor like ``x``.

    Raises:
        ArgumentError: ``x`` is not floating point.

    Example:
        >>> import torch, gradwright as gw
        >>> x = torch.tensor(40.0, requires_grad=True)
        >>> torch.autograd.grad(gw.stable.sigmoid(x), x)
        (tensor(4.2484e-18),)
    """
    require_floating("sigmoid", x=x)
    return torch.sigmoid(x)


@sigmoid.vjp
def sigmoid_vjp(g: Tensor, x: Tensor, out: Tensor) -> Tensor:
    return sigmoid_pulled(g, x, out)


@custom_gradient
def sigmoid_pulled(weight: Tensor, x: Tensor, s: Tensor) -> Tensor:
    """Return ``weight sigmoid(x) sigmoid(-x)``, where ``s`` is ``sigmoid(x)`` already, and no argument of its own.

    ``softplus_backward(s, x, -1, 40)`` is ``s sigmoid(-x)`` in one pass over the memory: beyond 40 the second factor is
    one in every dtype.
    """
    return scaled(torch.ops.aten.softplus_backward(s, x, -1, 40), weight)


@sigmoid_pulled.vjp
def sigmoid_pulled_vjp(g: Tensor, weight: Tensor, x: Tensor, s: Tensor) -> dict[str, Tensor]:
    return {"weight": sigmoid_pulled(g, x, s), "x": sigmoid_pulled(g * weight, x, s) * torch.tanh(x * -0.5)}


def logistic_slope(weight: Tensor, x: Tensor) -> Tensor:
    """Return ``weight`` times the derivative of the logistic function at ``x``."""
    return sigmoid_pulled(weight, x, torch.sigmoid(x.detach()))


def _probabilities(dtype: torch.dtype) -> Sequence[Example]:
    info = torch.finfo(dtype)
    inner = grid(0.03, 0.97, 12, dtype)
    middle = joined([around(0.5, dtype=dtype, steps=2), around(0.25, 0.75, dtype=dtype)])
    low = sweep(-996, -8, dtype, 76)  # down to where the second derivative overflows, and beyond
    ends = torch.tensor([info.smallest_normal * info.eps, info.smallest_normal, 1 - info.eps / 2], dtype=dtype)
    limits: dict[str, Any] = {"first": {"x": [torch.inf, torch.inf]}, "second": {"x": [-torch.inf, torch.inf]}}
    return [
        Point((inner,), note="inside"),
        Point((middle,), note="around one half"),
        Point((joined([low[low > 0], ends]),), note="next to the ends", extreme=True),
        Point((torch.tensor([0.0, 1.0], dtype=dtype),), value=[-torch.inf, torch.inf], **limits, extreme=True),
    ]


@exact(
    forward="out = log(x / (1 - x))",
    gradient={"x": "g / (x (1 - x)), and 0 where eps holds x"},
    reference=lambda mp, x, eps: mp.log(x) - mp.log(1 - x),
    domain="between 0 and 1, infinite at both; nan beyond, unless eps holds it",
    bars=ulps(4),
    examples=_probabilities,
    replaces=torch.logit,
    ordinary=lambda: (torch.rand(1_000_000, generator=torch.Generator().manual_seed(0)),),
    slower="a square root and more passes over the memory, for values that are right around one half",
    paper="Higham, Accuracy and Stability, 1.14: the logarithm of a ratio near one",
)
def logit(x: Tensor, eps: float | None = None) -> Tensor:
    """Return the logarithm of the odds, to the last digits also around one half, where it is zero.

    Arguments:
        x: probabilities, floating point, of any shape.
        eps: holds ``x`` between ``eps`` and ``1 - eps``.

    Returns:
        a tensor like ``x``.

    Raises:
        ArgumentError: ``x`` is not floating point.
        OptionError: ``eps`` is not between 0 and one half.

    Example:
        >>> import torch, gradwright as gw
        >>> gw.stable.logit(torch.tensor([0.25, 0.5, 1.0]))
        tensor([-1.0986,  0.0000,     inf])
    """
    require_floating("logit", x=x)
    if eps is None:
        return _logit(widened(x)).to(x.dtype)
    require_number("logit", eps=eps)
    if not 0 <= eps <= 0.5:
        raise OptionError(f"logit: eps is {eps}; expected a number from 0 to 0.5, or None; correct it.")
    return _logit(widened(x).clamp(eps, 1 - eps)).to(x.dtype)


@custom_gradient
def _logit(x: Tensor) -> Tensor:
    rest = 1 - x
    away = x - 0.5
    root = rest.mul(x).sqrt_()  # nan beyond the domain
    ratio = away.abs().mul_(2).div_(root.add_(torch.minimum(x, rest)))
    return ratio.log1p_().mul_(2).copysign_(away)


@_logit.vjp
def _logit_vjp(g: Tensor, x: Tensor) -> Tensor:
    return _logit_pulled(g, x)


@custom_gradient
def _logit_pulled(weight: Tensor, x: Tensor) -> Tensor:
    pulled: Any = torch.ops.aten.logit_backward(weight, x)
    return pulled  # type: ignore[no-any-return]


@_logit_pulled.vjp
def _logit_pulled_vjp(g: Tensor, weight: Tensor, x: Tensor) -> dict[str, Tensor]:
    curved = _logit_pulled(_logit_pulled(g * weight, x) * (2 * x - 1), x)
    return {"weight": _logit_pulled(g, x), "x": curved}
