"""Softplus and the functions that are softplus in other words: the logarithms of a sigmoid and of what it leaves.

PyTorch's softplus is the identity from 20 on, with a gradient of one, and its second derivatives are formed from
``1 - sigmoid(x)``, which is zero in the tail. Here ``softplus'(x) = sigmoid(x)`` has the derivative of
:func:`~gradwright.stable.sigmoid`, and the identity begins at 40, where ``log(1 + exp(-x))`` is below the last digit of
every dtype. With ``beta = -1`` the same formula is ``log(sigmoid(x))``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from gradwright.authoring.catalogue import Example, around, grid, joined
from gradwright.authoring.decorator import custom_gradient
from gradwright.authoring.exact import Point, exact, sweep, ulps, whole_range
from gradwright.errors import OptionError
from gradwright.stable.arguments import require_floating, require_number
from gradwright.stable.exponential import log_expm1
from gradwright.stable.logistic import logistic_slope

LINEAR_FROM = 40
"""Where ``log(1 + exp(x))`` is ``x`` to the last digit of every dtype."""


def _points(dtype: torch.dtype, at_infinity: tuple[float, float], value: list[float]) -> list[Point]:
    """Return points for a function of the whole line, with its derivatives at plus and minus infinity."""
    bulk = joined([torch.zeros(1, dtype=dtype), grid(-8.0, 8.0, 12, dtype), sweep(-6, 3, dtype, 3)])
    tails = joined([grid(-80.0, 80.0, 6, dtype), torch.tensor([-700.0, -45.0, 45.0, 700.0], dtype=dtype)])
    switches = around(20.0, LINEAR_FROM, -LINEAR_FROM, dtype=dtype)
    infinite = torch.tensor([torch.inf, -torch.inf], dtype=dtype)
    return [
        Point((bulk,), note="bulk"),
        Point((tails,), note="tails", extreme=True),
        Point((switches,), note="switches", extreme=True),
        Point((whole_range(dtype, 5),), note="whole range", extreme=True),
        Point((infinite,), note="infinity", value=value, first={"x": list(at_infinity)}, extreme=True),
    ]


def _softplus_examples(dtype: torch.dtype) -> Sequence[Example]:
    sharp = joined([grid(-6.0, 6.0, 8, dtype), torch.tensor([-90.0, 90.0], dtype=dtype)])
    return [
        *_points(dtype, (1.0, 0.0), [torch.inf, 0.0]),
        Point((sharp,), {"beta": 4.0}, note="sharp", extreme=True),
    ]


@exact(
    forward="out = log(1 + exp(beta x)) / beta",
    gradient={"x": "g sigmoid(beta x)"},
    reference=lambda mp, x, beta: mp.log(1 + mp.exp(beta * x)) / beta,
    domain="every number",
    bars=ulps(4),
    examples=_softplus_examples,
    replaces=functional.softplus,
    paper="pytorch#31856, #171249; no threshold",
)
def softplus(x: Tensor, beta: float = 1.0) -> Tensor:
    """Return a smooth maximum of ``x`` and zero, with true values and derivatives on the whole line.

    The relative error grows with ``abs(beta x)`` where ``beta x`` is no number of the dtype, as it does for every
    function of a product. There is no threshold to set.

    Arguments:
        x: floating point, of any shape.
        beta: how sharp it is; a negative one gives a smooth minimum.

    Returns:
        a tensor like ``x``.

    Raises:
        ArgumentError: ``x`` is not floating point.
        OptionError: ``beta`` is zero.

    Example:
        >>> import torch, gradwright as gw
        >>> x = torch.tensor(20.5, dtype=torch.float64)
        >>> torch.func.grad(torch.func.grad(gw.stable.softplus))(x)
        tensor(1.2502e-09, dtype=torch.float64)
    """
    _require("softplus", x, beta)
    return _softplus(x, beta)


def _require(name: str, x: Tensor, beta: float) -> None:
    require_floating(name, x=x)
    require_number(name, beta=beta)
    if beta == 0:
        raise OptionError(f"{name}: beta is 0; expected another number; leave it away for 1.")


@custom_gradient
def _softplus(x: Tensor, beta: float) -> Tensor:
    return functional.softplus(x, beta, LINEAR_FROM)


@_softplus.vjp
def _softplus_vjp(g: Tensor, x: Tensor, beta: float) -> Tensor:
    return _softplus_pulled(g, x, beta)


@custom_gradient
def _softplus_pulled(weight: Tensor, x: Tensor, beta: float) -> Tensor:
    """Return ``weight sigmoid(beta x)``."""
    pulled: Any = torch.ops.aten.softplus_backward(weight, x, beta, LINEAR_FROM)
    return pulled  # type: ignore[no-any-return]


@_softplus_pulled.vjp
def _softplus_pulled_vjp(g: Tensor, weight: Tensor, x: Tensor, beta: float) -> dict[str, Tensor]:
    return {"weight": _softplus_pulled(g, x, beta), "x": logistic_slope(g * weight * beta, x * beta)}


@exact(
    forward="out = log(sigmoid(x))",
    gradient={"x": "g sigmoid(-x)"},
    reference=lambda mp, x: -mp.log(1 + mp.exp(-x)),
    domain="every number",
    bars=ulps(4),
    examples=lambda dtype: _points(dtype, (0.0, 1.0), [0.0, -torch.inf]),
    replaces=functional.logsigmoid,
    paper="pytorch#195530, #195685",
)
def logsigmoid(x: Tensor) -> Tensor:
    """Return the logarithm of the logistic function, whose second derivative does not vanish in the tail.

    Arguments:
        x: floating point, of any shape.

    Returns:
        a tensor like ``x``.

    Raises:
        ArgumentError: ``x`` is not floating point.

    Example:
        >>> import torch, gradwright as gw
        >>> x = torch.tensor(50.0, dtype=torch.float64)
        >>> torch.func.grad(torch.func.grad(gw.stable.logsigmoid))(x)
        tensor(-1.9287e-22, dtype=torch.float64)
    """
    require_floating("logsigmoid", x=x)
    return _softplus(x, -1.0)


@exact(
    forward="out = log(1 - sigmoid(x))",
    gradient={"x": "-g sigmoid(x)"},
    reference=lambda mp, x: -mp.log(1 + mp.exp(x)),
    domain="every number",
    bars=ulps(4),
    examples=lambda dtype: _points(dtype, (-1.0, 0.0), [-torch.inf, 0.0]),
    replaces=lambda x: torch.log(1 - torch.sigmoid(x)),
    paper="pytorch#195677; -softplus(x)",
)
def log1msigmoid(x: Tensor) -> Tensor:
    """Return ``log(1 - sigmoid(x))``, the log-probability of the other outcome.

    Arguments:
        x: floating point, of any shape.

    Returns:
        a tensor like ``x``.

    Raises:
        ArgumentError: ``x`` is not floating point.

    Example:
        >>> import torch, gradwright as gw
        >>> gw.stable.log1msigmoid(torch.tensor([-40.0, 0.0, 40.0]))
        tensor([-4.2484e-18, -6.9315e-01, -4.0000e+01])
    """
    require_floating("log1msigmoid", x=x)
    return -_softplus(x, 1.0)


def _inverse_examples(dtype: torch.dtype) -> Sequence[Example]:
    away = torch.cat([grid(0.05, 0.5, 6, dtype), grid(1.0, 30.0, 6, dtype)])
    tails = torch.cat([x[x > 0] for x in (sweep(-100, -6, dtype, 13), sweep(5, 9, dtype))])
    return [
        Point((away,), note="to both sides of the root"),
        Point((tails,), note="tails", extreme=True),
        Point((away / 2,), {"beta": 2.0}, note="sharp"),
    ]


@exact(
    forward="out = log(expm1(beta x)) / beta",
    gradient={"x": "-g / expm1(-beta x)"},
    reference=lambda mp, x, beta: mp.log(mp.exp(beta * x) - 1) / beta,
    domain="above zero, minus infinity at zero, nan below; next to the root log(2) the error is 4 ulp of one",
    bars=ulps(4),
    examples=_inverse_examples,
    replaces=lambda x, beta=1.0: torch.log(torch.expm1(beta * x)) / beta,
    ordinary=lambda: (torch.rand(1_000_000, generator=torch.Generator().manual_seed(0)) * 8,),
    paper="pytorch#31856; x + log(-expm1(-x))",
)
def inverse_softplus(x: Tensor, beta: float = 1.0) -> Tensor:
    """Return the number whose softplus is ``x``, also where ``exp(x)`` overflows.

    Arguments:
        x: positive, floating point, of any shape.
        beta: that of the softplus.

    Returns:
        a tensor like ``x``.

    Raises:
        ArgumentError: ``x`` is not floating point.
        OptionError: ``beta`` is zero.

    Example:
        >>> import torch, gradwright as gw
        >>> gw.stable.inverse_softplus(torch.tensor([1e-3, 1.0, 1e3]))
        tensor([-6.9073e+00,  5.4132e-01,  1.0000e+03])
    """
    _require("inverse_softplus", x, beta)
    return log_expm1(x) if beta == 1 else log_expm1(x * beta) / beta
