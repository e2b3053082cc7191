"""Gates, ``x`` times something between zero and one: derivatives that do not vanish, and limits at infinity.

PyTorch forms ``1 - sigmoid(x)`` from the rounded value, so that its second derivatives are zero from 37 on (``mish``:
18) and its first ones lose a digit on the way there; at the infinities it has nan. Here no factor is a difference:
``silu' = sigmoid(x) (1 + x sigmoid(-x))`` and ``silu'' = sigmoid'(x) (2 - x tanh(x / 2))``, where only the bracket
changes sign. For ``mish = x t`` with ``t = tanh(softplus(x))``, ``p = exp(min(x, 0))``, ``q = exp(-max(x, 0))`` and
``d = p ** 2 + 2 p q + 2 q ** 2`` (what remains of ``exp(2x) + 2 exp(x) + 2`` when the largest power is taken out)::

    t = p (p + 2 q) / d        t' = 4 p q ** 2 (p + q) / d ** 2        t'' / t' = 1 + p / (p + q) - 4 p (p + q) / d
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from gradwright.authoring.catalogue import Example, grid, joined
from gradwright.authoring.decorator import custom_gradient
from gradwright.authoring.exact import Point, exact, sweep, ulps, whole_range
from gradwright.stable.arguments import require_floating, scaled, widened
from gradwright.stable.logistic import logistic_slope

SETTLED = 2000.0
"""Where the exponentials here are zero in every dtype."""


def gate_examples(*bulk: tuple[float, float]) -> Callable[[torch.dtype], Sequence[Example]]:
    """Return points of a gate: ranges away from the zeros of its derivatives, the tails, the infinities."""

    def examples(dtype: torch.dtype) -> Sequence[Example]:
        inner = [grid(low, high, 6, dtype) for low, high in bulk]
        middle = joined([torch.zeros(1, dtype=dtype), *inner, sweep(-8, -2, dtype, 3)])
        tails = torch.tensor([-700.0, -85.0, -45.0, -20.0, 10.0, 20.0, 40.0, 80.0, 700.0], dtype=dtype)
        infinite = torch.tensor([torch.inf, -torch.inf], dtype=dtype)
        limits: dict[str, Any] = {"value": [torch.inf, 0.0], "first": {"x": [1.0, 0.0]}}
        return [
            Point((middle,), note="bulk"),
            Point((tails,), note="tails", extreme=True),
            Point((whole_range(dtype, 6),), note="whole range", extreme=True),
            Point((infinite,), note="infinity", extreme=True, **limits),
        ]

    return examples


@exact(
    forward="out = x sigmoid(x)",
    gradient={"x": "g sigmoid(x) (1 + x sigmoid(-x))"},
    reference=lambda mp, x: x / (1 + mp.exp(-x)),
    domain="every number; 0 at minus infinity. Next to -1.278, where the derivative is zero, its error is 4 ulp of one",
    bars=ulps(4),
    examples=gate_examples((-6.0, -3.0), (-0.7, 2.0), (3.0, 8.0)),
    replaces=functional.silu,
    slower="two exponentials for the two sigmoids, of which PyTorch has one, and limits at infinity",
    paper="Elfwing, Uchibe, Doya 2017, arXiv:1702.03118; second derivative by two sigmoids",
)
def silu(x: Tensor) -> Tensor:
    """Return ``x sigmoid(x)``, with a second derivative that does not vanish and limits that are no nan.

    Arguments:
        x: floating point, of any shape.

    Returns:
        a tensor like ``x``.

    Raises:
        ArgumentError: ``x`` is not floating point.

    Example:
        >>> import torch, gradwright as gw
        >>> x = torch.tensor(50.0, dtype=torch.float64)
        >>> torch.func.grad(torch.func.grad(gw.stable.silu))(x)
        tensor(-9.2580e-21, dtype=torch.float64)
    """
    require_floating("silu", x=x)
    return _silu(widened(x)).to(x.dtype)


@custom_gradient
def _silu(x: Tensor) -> Tensor:
    return functional.silu(x.clamp(min=-SETTLED), inplace=True)


@_silu.vjp
def _silu_vjp(g: Tensor, x: Tensor) -> Tensor:
    return _silu_pulled(g, x)


@custom_gradient
def _silu_pulled(weight: Tensor, x: Tensor) -> Tensor:
    """Return ``weight silu'(x)``; ``softplus_backward(x, x, -1, 40)`` is ``x sigmoid(-x)`` in one pass."""
    gate = x.clamp(-SETTLED, SETTLED)
    rest = torch.ops.aten.softplus_backward(gate, gate, -1, 40)
    return scaled(gate.sigmoid_().mul_(rest.add_(1)), weight)


@_silu_pulled.vjp
def _silu_pulled_vjp(g: Tensor, weight: Tensor, x: Tensor) -> dict[str, Tensor]:
    held = x.clamp(-SETTLED, SETTLED)
    curved = logistic_slope(g * weight, held) * (2 - held * torch.tanh(held * 0.5))
    return {"weight": _silu_pulled(g, x), "x": curved}


@exact(
    forward="out = x tanh(softplus(x))",
    gradient={"x": "g (t + x t'), t = tanh(softplus(x))"},
    reference=lambda mp, x: x * mp.tanh(mp.log1p(mp.exp(x))),
    domain="every number; 0 at minus infinity. Next to -1.192, where the derivative is zero, its error is 4 ulp of one",
    bars=ulps(4),
    examples=gate_examples((-6.0, -3.0), (-0.7, 2.0), (3.0, 8.0)),
    replaces=functional.mish,
    paper="Misra 2019, arXiv:1908.08681; second derivative in exp(-abs(x))",
)
def mish(x: Tensor) -> Tensor:
    """Return ``x tanh(softplus(x))``, with a second derivative that does not vanish and limits that are no nan.

    Arguments:
        x: floating point, of any shape.

    Returns:
        a tensor like ``x``.

    Raises:
        ArgumentError: ``x`` is not floating point.

    Example:
        >>> import torch, gradwright as gw
        >>> x = torch.tensor(30.0, dtype=torch.float64)
        >>> torch.func.grad(torch.func.grad(gw.stable.mish))(x)
        tensor(-2.0315e-24, dtype=torch.float64)
    """
    require_floating("mish", x=x)
    return _mish(widened(x)).to(x.dtype)


@custom_gradient
def _mish(x: Tensor) -> Tensor:
    return functional.mish(x.clamp(min=-SETTLED))


@_mish.vjp
def _mish_vjp(g: Tensor, x: Tensor) -> Tensor:
    return _mish_pulled(g, x)


@custom_gradient
def _mish_pulled(weight: Tensor, x: Tensor) -> Tensor:
    x = x.clamp(-SETTLED, SETTLED)
    p, q, d = _powers(x)
    rising = torch.add(p, q).mul_(x).mul_(q).mul_(q)
    slope = torch.add(p, q, alpha=2).mul_(d).add_(rising, alpha=4).mul_(p)
    return scaled(slope.div_(d.mul_(d)), weight)


@_mish_pulled.vjp
def _mish_pulled_vjp(g: Tensor, weight: Tensor, x: Tensor) -> dict[str, Tensor]:
    x = x.clamp(-SETTLED, SETTLED)
    p, q, d = _powers(x)
    slope = 4 * p * q * q * (p + q) / (d * d)
    curved = slope * (2 + x * (1 + p / (p + q) - 4 * p * (p + q) / d))
    return {"weight": _mish_pulled(g, x), "x": g * weight * curved}


def _powers(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return ``p``, ``q`` and ``d`` of the module's formulae."""
    lead = x.detach().clamp(min=0)  # the formulae depend on p / q alone, so that derivatives take it as a constant
    p, q = (x - lead).exp_(), lead.neg_().exp_()
    return p, q, torch.add(p, q, alpha=2).mul_(p).add_(q * q, alpha=2)
