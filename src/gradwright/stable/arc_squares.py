"""Squares of arc functions: smooth where the arc functions themselves have an infinite slope."""

from __future__ import annotations

import torch
from torch import Tensor

from gradwright.authoring.exact import exact
from gradwright.stable.arguments import require_floating
from gradwright.stable.switched import BARS, SLOWER, examples_of, made

_acos_squared = made("acos_squared")


@exact(
    forward="out = acos(x)^2",
    gradient={"x": "g times -2 acos(x) / sqrt(1 - x^2), -2 at 1"},
    reference=lambda mp, x: mp.re(mp.acos(x) ** 2),
    domain="-1 to 1; the gradient is infinite at -1; nan outside",
    bars=BARS,
    examples=examples_of("acos_squared"),
    replaces=lambda x: torch.acos(x) ** 2,
    slower=SLOWER,
    paper="acos(x)^2 = 2 sum (2 (1 - x))^n / (n^2 C(2n, n))",
)
def acos_squared(x: Tensor) -> Tensor:
    """Return the square of acos(x), which is smooth at 1, where acos is not.

    Arguments:
        x: floating point, of any shape.

    Returns:
        a tensor like ``x``.

    Example:
        >>> import torch, gradwright as gw
        >>> torch.func.grad(torch.func.grad(gw.stable.acos_squared))(torch.tensor(1.0))
        tensor(0.6667)
    """
    require_floating("acos_squared", x=x)
    return _acos_squared(x)


_acosh_squared = made("acosh_squared")


@exact(
    forward="out = acosh(x)^2",
    gradient={"x": "g times 2 acosh(x) / sqrt(x^2 - 1), 2 at 1"},
    reference=lambda mp, x: mp.re(mp.acosh(x) ** 2),
    domain="x >= 1; nan below",
    bars=BARS,
    examples=examples_of("acosh_squared"),
    replaces=lambda x: torch.acosh(x) ** 2,
    slower=SLOWER,
    paper="acosh(x)^2 = -2 sum (2 (1 - x))^n / (n^2 C(2n, n))",
)
def acosh_squared(x: Tensor) -> Tensor:
    """Return the square of acosh(x), which is smooth at 1, where acosh is not.

    Arguments:
        x: floating point, of any shape.

    Returns:
        a tensor like ``x``.

    Example:
        >>> import torch, gradwright as gw
        >>> torch.func.grad(torch.func.grad(gw.stable.acosh_squared))(torch.tensor(1.0))
        tensor(-0.6667)
    """
    require_floating("acosh_squared", x=x)
    return _acosh_squared(x)
