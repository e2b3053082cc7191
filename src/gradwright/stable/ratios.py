"""Quotients like sin(x) / x, which have a value and every derivative at zero, where their formulae have none."""

from __future__ import annotations

import torch
from torch import Tensor

from gradwright.authoring.exact import exact
from gradwright.stable.arguments import require_floating
from gradwright.stable.switched import BARS, SLOWER, examples_of, made

_sinc = made("sinc")


@exact(
    forward="out = sin(pi x) / (pi x), 1 at 0",
    gradient={"x": "g times (cos(pi x) - out) / x, 0 at 0"},
    reference=lambda mp, x: mp.sinpi(x) / (mp.pi * x) if x else mp.mpf(1),
    domain="every finite number",
    bars=BARS,
    examples=examples_of("sinc"),
    replaces=torch.sinc,
    slower=SLOWER,
    paper="pytorch#89459",
)
def sinc(x: Tensor) -> Tensor:
    """Return the normalised sinc, sin(pi x) / (pi x), like ``torch.sinc``.

    Arguments:
        x: floating point, of any shape.

    Returns:
        a tensor like ``x``.

    Example:
        >>> import torch, gradwright as gw
        >>> torch.func.grad(torch.func.grad(gw.stable.sinc))(torch.tensor(0.0))
        tensor(-3.2899)
    """
    require_floating("sinc", x=x)
    return _sinc(x)


_sin_over_x = made("sin_over_x")


@exact(
    forward="out = sin(x) / x, 1 at 0",
    gradient={"x": "g times (cos(x) - out) / x, 0 at 0"},
    reference=lambda mp, x: mp.sin(x) / x if x else mp.mpf(1),
    domain="every finite number",
    bars=BARS,
    examples=examples_of("sin_over_x"),
    replaces=lambda x: torch.where(x == 0, 1.0, torch.sin(x) / x),
    slower=SLOWER,
    paper="Taylor series",
)
def sin_over_x(x: Tensor) -> Tensor:
    """Return sin(x) / x.

    Arguments:
        x: floating point, of any shape.

    Returns:
        a tensor like ``x``.

    Example:
        >>> import torch, gradwright as gw
        >>> torch.func.grad(torch.func.grad(gw.stable.sin_over_x))(torch.tensor(0.0))
        tensor(-0.3333)
    """
    require_floating("sin_over_x", x=x)
    return _sin_over_x(x)


_one_minus_cos_over_x2 = made("one_minus_cos_over_x2")


@exact(
    forward="out = (1 - cos(x)) / x^2, 1/2 at 0",
    gradient={"x": "g times (sin(x) - 2 x out) / x^2, 0 at 0"},
    reference=lambda mp, x: (1 - mp.cos(x)) / x**2 if x else mp.mpf(1) / 2,
    domain="every finite number",
    bars=BARS,
    examples=examples_of("one_minus_cos_over_x2"),
    replaces=lambda x: torch.where(x == 0, 0.5, (1 - torch.cos(x)) / x**2),
    slower=SLOWER,
    paper="Taylor series",
)
def one_minus_cos_over_x2(x: Tensor) -> Tensor:
    """Return (1 - cos(x)) / x ** 2.

    Arguments:
        x: floating point, of any shape.

    Returns:
        a tensor like ``x``.

    Example:
        >>> import torch, gradwright as gw
        >>> torch.func.grad(torch.func.grad(gw.stable.one_minus_cos_over_x2))(torch.tensor(0.0))
        tensor(-0.0833)
    """
    require_floating("one_minus_cos_over_x2", x=x)
    return _one_minus_cos_over_x2(x)


_x_minus_sin_over_x3 = made("x_minus_sin_over_x3")


@exact(
    forward="out = (x - sin(x)) / x^3, 1/6 at 0",
    gradient={"x": "g times (1 - cos(x) - 3 x^2 out) / x^3, 0 at 0"},
    reference=lambda mp, x: (x - mp.sin(x)) / x**3 if x else mp.mpf(1) / 6,
    domain="every finite number",
    bars=BARS,
    examples=examples_of("x_minus_sin_over_x3"),
    replaces=lambda x: torch.where(x == 0, 1 / 6, (x - torch.sin(x)) / x**3),
    slower=SLOWER,
    paper="Taylor series",
)
def x_minus_sin_over_x3(x: Tensor) -> Tensor:
    """Return (x - sin(x)) / x ** 3.

    Arguments:
        x: floating point, of any shape.

    Returns:
        a tensor like ``x``.

    Example:
        >>> import torch, gradwright as gw
        >>> torch.func.grad(torch.func.grad(gw.stable.x_minus_sin_over_x3))(torch.tensor(0.0))
        tensor(-0.0167)
    """
    require_floating("x_minus_sin_over_x3", x=x)
    return _x_minus_sin_over_x3(x)


_x_over_tan = made("x_over_tan")


@exact(
    forward="out = x / tan(x), 1 at 0",
    gradient={"x": "g times cot(x) - x / sin(x)^2, 0 at 0"},
    reference=lambda mp, x: x / mp.tan(x) if x else mp.mpf(1),
    domain="every finite number but the other multiples of pi",
    bars=BARS,
    examples=examples_of("x_over_tan"),
    replaces=lambda x: torch.where(x == 0, 1.0, x / torch.tan(x)),
    slower=SLOWER,
    paper="Taylor series",
)
def x_over_tan(x: Tensor) -> Tensor:
    """Return x / tan(x).

    Arguments:
        x: floating point, of any shape.

    Returns:
        a tensor like ``x``.

    Example:
        >>> import torch, gradwright as gw
        >>> torch.func.grad(torch.func.grad(gw.stable.x_over_tan))(torch.tensor(0.0))
        tensor(-0.6667)
    """
    require_floating("x_over_tan", x=x)
    return _x_over_tan(x)
