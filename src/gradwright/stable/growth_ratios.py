"""Quotients of exponentials and logarithms like expm1(x) / x, with every derivative where they are 0 / 0."""

from __future__ import annotations

import torch
from torch import Tensor

from gradwright.authoring.exact import exact
from gradwright.stable.arguments import require_floating
from gradwright.stable.switched import BARS, SLOWER, examples_of, made

_tanh_over_x = made("tanh_over_x")


@exact(
    forward="out = tanh(x) / x, 1 at 0",
    gradient={"x": "g times (1 / cosh(x)^2 - out) / x, 0 at 0"},
    reference=lambda mp, x: mp.tanh(x) / x if x else mp.mpf(1),
    domain="every number",
    bars=BARS,
    examples=examples_of("tanh_over_x"),
    replaces=lambda x: torch.where(x == 0, 1.0, torch.tanh(x) / x),
    slower=SLOWER,
    paper="Taylor series",
)
def tanh_over_x(x: Tensor) -> Tensor:
    """Return tanh(x) / x.

    Arguments:
        x: floating point, of any shape.

    Returns:
        a tensor like ``x``.

    Example:
        >>> import torch, gradwright as gw
        >>> torch.func.grad(torch.func.grad(gw.stable.tanh_over_x))(torch.tensor(0.0))
        tensor(-0.6667)
    """
    require_floating("tanh_over_x", x=x)
    return _tanh_over_x(x)


_sinh_over_x = made("sinh_over_x")


@exact(
    forward="out = sinh(x) / x, 1 at 0",
    gradient={"x": "g times (cosh(x) - out) / x, 0 at 0"},
    reference=lambda mp, x: mp.sinh(x) / x if x else mp.mpf(1),
    domain="every number",
    bars=BARS,
    examples=examples_of("sinh_over_x"),
    replaces=lambda x: torch.where(x == 0, 1.0, torch.sinh(x) / x),
    slower=SLOWER,
    paper="Taylor series",
)
def sinh_over_x(x: Tensor) -> Tensor:
    """Return sinh(x) / x.

    Arguments:
        x: floating point, of any shape.

    Returns:
        a tensor like ``x``.

    Example:
        >>> import torch, gradwright as gw
        >>> torch.func.grad(torch.func.grad(gw.stable.sinh_over_x))(torch.tensor(0.0))
        tensor(0.3333)
    """
    require_floating("sinh_over_x", x=x)
    return _sinh_over_x(x)


_expm1_over_x = made("expm1_over_x")


@exact(
    forward="out = (exp(x) - 1) / x, 1 at 0",
    gradient={"x": "g times (exp(x) - out) / x, 1/2 at 0"},
    reference=lambda mp, x: mp.expm1(x) / x if x else mp.mpf(1),
    domain="every number",
    bars=BARS,
    examples=examples_of("expm1_over_x"),
    replaces=lambda x: torch.where(x == 0, 1.0, torch.expm1(x) / x),
    slower=SLOWER,
    paper="Taylor series",
)
def expm1_over_x(x: Tensor) -> Tensor:
    """Return (exp(x) - 1) / x.

    Arguments:
        x: floating point, of any shape.

    Returns:
        a tensor like ``x``.

    Example:
        >>> import torch, gradwright as gw
        >>> torch.func.grad(torch.func.grad(gw.stable.expm1_over_x))(torch.tensor(0.0))
        tensor(0.3333)
    """
    require_floating("expm1_over_x", x=x)
    return _expm1_over_x(x)


_log1p_over_x = made("log1p_over_x")


@exact(
    forward="out = log(1 + x) / x, 1 at 0",
    gradient={"x": "g times (1 / (1 + x) - out) / x, -1/2 at 0"},
    reference=lambda mp, x: mp.log1p(x) / x if x else mp.mpf(1),
    domain="x > -1; infinite at -1, nan below",
    bars=BARS,
    examples=examples_of("log1p_over_x"),
    replaces=lambda x: torch.where(x == 0, 1.0, torch.log1p(x) / x),
    slower=SLOWER,
    paper="Taylor series",
)
def log1p_over_x(x: Tensor) -> Tensor:
    """Return log(1 + x) / x.

    Arguments:
        x: floating point, of any shape.

    Returns:
        a tensor like ``x``.

    Example:
        >>> import torch, gradwright as gw
        >>> torch.func.grad(torch.func.grad(gw.stable.log1p_over_x))(torch.tensor(0.0))
        tensor(0.6667)
    """
    require_floating("log1p_over_x", x=x)
    return _log1p_over_x(x)


_log_over_x_minus_1 = made("log_over_x_minus_1")


@exact(
    forward="out = log(x) / (x - 1), 1 at 1",
    gradient={"x": "g times (1 / x - out) / (x - 1), -1/2 at 1"},
    reference=lambda mp, x: mp.log(x) / (x - 1) if x != 1 else mp.mpf(1),
    domain="x > 0; infinite at 0, nan below",
    bars=BARS,
    examples=examples_of("log_over_x_minus_1"),
    replaces=lambda x: torch.where(x == 1, 1.0, torch.log(x) / (x - 1)),
    slower=SLOWER,
    paper="Taylor series",
)
def log_over_x_minus_1(x: Tensor) -> Tensor:
    """Return log(x) / (x - 1).

    Arguments:
        x: floating point, of any shape.

    Returns:
        a tensor like ``x``.

    Example:
        >>> import torch, gradwright as gw
        >>> torch.func.grad(torch.func.grad(gw.stable.log_over_x_minus_1))(torch.tensor(1.0))
        tensor(0.6667)
    """
    require_floating("log_over_x_minus_1", x=x)
    return _log_over_x_minus_1(x)
