"""Quotients like sin(x) / x, which have a value and every derivative at a point where their formulae have none.

Each is made by the template of :mod:`~gradwright.stable.singularity`: a Taylor series near the point and the closed
form elsewhere, for the function and for three derivatives. The coefficients are exact fractions; where a function
changes from one to the other was measured by ``tools/switch_points.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from gradwright.authoring.catalogue import Example, around, joined
from gradwright.authoring.exact import HALF, Point, exact, relative, sweep
from gradwright.stable.arguments import require_floating
from gradwright.stable.closed_forms import FORMS
from gradwright.stable.singularity import removable
from gradwright.stable.switch_points import SWITCHES

BARS = relative(2e-15, 1e-6, *HALF)
SLOWER = "a series and a closed form are both computed, for every element"


def _made(name: str) -> Callable[[Tensor], Tensor]:
    form = FORMS[name]
    switches = SWITCHES[name]
    return removable(
        form.closed, form.coefficient, name=name, at=form.at, low=form.low, high=form.high, switches=switches
    )


def _examples(name: str) -> Callable[[torch.dtype], Sequence[Example]]:
    """Return examples where the function is defined: the point, every switch and the numbers next to it, near, far."""
    form = FORMS[name]

    def examples(dtype: torch.dtype) -> Sequence[Example]:
        switches = SWITCHES[name][dtype if dtype in SWITCHES[name] else torch.float32]
        edges = {form.at + sign * switch.distance for switch in switches for sign in (1, -1)}
        bulk = torch.tensor([-7.3, -2.3, -1.3, -0.7, -0.2, 0.3, 0.9, 1.7, 2.9, 5.1], dtype=dtype)
        near = joined([form.at + sweep(-40, -2, dtype, 4), torch.tensor([form.at], dtype=dtype)])
        parts = {"bulk": bulk, "near the point": near, "where it changes": around(*sorted(edges), dtype=dtype)}
        inside = {note: part[(part > form.low) & (part < form.high)] for note, part in parts.items()}
        ends = torch.tensor([end for end in (form.low, form.high) if end == form.at], dtype=dtype)
        return [
            Point((torch.cat([part, ends]) if note != "bulk" else part,), note=note, extreme=note != "bulk")
            for note, part in inside.items()
        ]

    return examples


_sinc = _made("sinc")


@exact(
    forward="out = sin(pi x) / (pi x), 1 at 0",
    gradient={"x": "g times (cos(pi x) - out) / x, 0 at 0"},
    reference=lambda mp, x: mp.sinpi(x) / (mp.pi * x) if x else mp.mpf(1),
    domain="every finite number",
    bars=BARS,
    examples=_examples("sinc"),
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


_sin_over_x = _made("sin_over_x")


@exact(
    forward="out = sin(x) / x, 1 at 0",
    gradient={"x": "g times (cos(x) - out) / x, 0 at 0"},
    reference=lambda mp, x: mp.sin(x) / x if x else mp.mpf(1),
    domain="every finite number",
    bars=BARS,
    examples=_examples("sin_over_x"),
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


_one_minus_cos_over_x2 = _made("one_minus_cos_over_x2")


@exact(
    forward="out = (1 - cos(x)) / x^2, 1/2 at 0",
    gradient={"x": "g times (sin(x) - 2 x out) / x^2, 0 at 0"},
    reference=lambda mp, x: (1 - mp.cos(x)) / x**2 if x else mp.mpf(1) / 2,
    domain="every finite number",
    bars=BARS,
    examples=_examples("one_minus_cos_over_x2"),
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


_x_minus_sin_over_x3 = _made("x_minus_sin_over_x3")


@exact(
    forward="out = (x - sin(x)) / x^3, 1/6 at 0",
    gradient={"x": "g times (1 - cos(x) - 3 x^2 out) / x^3, 0 at 0"},
    reference=lambda mp, x: (x - mp.sin(x)) / x**3 if x else mp.mpf(1) / 6,
    domain="every finite number",
    bars=BARS,
    examples=_examples("x_minus_sin_over_x3"),
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


_x_over_tan = _made("x_over_tan")


@exact(
    forward="out = x / tan(x), 1 at 0",
    gradient={"x": "g times cot(x) - x / sin(x)^2, 0 at 0"},
    reference=lambda mp, x: x / mp.tan(x) if x else mp.mpf(1),
    domain="every finite number but the other multiples of pi",
    bars=BARS,
    examples=_examples("x_over_tan"),
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


_tanh_over_x = _made("tanh_over_x")


@exact(
    forward="out = tanh(x) / x, 1 at 0",
    gradient={"x": "g times (1 / cosh(x)^2 - out) / x, 0 at 0"},
    reference=lambda mp, x: mp.tanh(x) / x if x else mp.mpf(1),
    domain="every number",
    bars=BARS,
    examples=_examples("tanh_over_x"),
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


_sinh_over_x = _made("sinh_over_x")


@exact(
    forward="out = sinh(x) / x, 1 at 0",
    gradient={"x": "g times (cosh(x) - out) / x, 0 at 0"},
    reference=lambda mp, x: mp.sinh(x) / x if x else mp.mpf(1),
    domain="every number",
    bars=BARS,
    examples=_examples("sinh_over_x"),
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


_expm1_over_x = _made("expm1_over_x")


@exact(
    forward="out = (exp(x) - 1) / x, 1 at 0",
    gradient={"x": "g times (exp(x) - out) / x, 1/2 at 0"},
    reference=lambda mp, x: mp.expm1(x) / x if x else mp.mpf(1),
    domain="every number",
    bars=BARS,
    examples=_examples("expm1_over_x"),
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


_log1p_over_x = _made("log1p_over_x")


@exact(
    forward="out = log(1 + x) / x, 1 at 0",
    gradient={"x": "g times (1 / (1 + x) - out) / x, -1/2 at 0"},
    reference=lambda mp, x: mp.log1p(x) / x if x else mp.mpf(1),
    domain="x > -1; infinite at -1, nan below",
    bars=BARS,
    examples=_examples("log1p_over_x"),
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


_log_over_x_minus_1 = _made("log_over_x_minus_1")


@exact(
    forward="out = log(x) / (x - 1), 1 at 1",
    gradient={"x": "g times (1 / x - out) / (x - 1), -1/2 at 1"},
    reference=lambda mp, x: mp.log(x) / (x - 1) if x != 1 else mp.mpf(1),
    domain="x > 0; infinite at 0, nan below",
    bars=BARS,
    examples=_examples("log_over_x_minus_1"),
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


_acos_squared = _made("acos_squared")


@exact(
    forward="out = acos(x)^2",
    gradient={"x": "g times -2 acos(x) / sqrt(1 - x^2), -2 at 1"},
    reference=lambda mp, x: mp.re(mp.acos(x) ** 2),
    domain="-1 to 1; the gradient is infinite at -1; nan outside",
    bars=BARS,
    examples=_examples("acos_squared"),
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


_acosh_squared = _made("acosh_squared")


@exact(
    forward="out = acosh(x)^2",
    gradient={"x": "g times 2 acosh(x) / sqrt(x^2 - 1), 2 at 1"},
    reference=lambda mp, x: mp.re(mp.acosh(x) ** 2),
    domain="x >= 1; nan below",
    bars=BARS,
    examples=_examples("acosh_squared"),
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
