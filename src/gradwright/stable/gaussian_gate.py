"""The Gaussian error linear unit, whose value and gradient are right far out on the left.

PyTorch forms ``1 + erf(x / sqrt(2))``, which is zero from -8.3 on (-5.6 in float32), and off long before. Here it is
``erfc(-x / sqrt(2))``. Out there the rounding of an argument counts: ``exp(-s)`` is off by ``s`` times its relative
error. So arguments of exponentials are computed in two parts, a number of the dtype and what its rounding left, and the
second part is brought in to first order: ``exp(-(s + r)) = exp(-s) (1 - r)``. In float32 float64 gives both parts; in
float64 products are exact for a multiple of 1 / 64 next to ``x`` (Dekker 1971, "A floating-point technique for
extending the available precision").
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Any, Literal, TypeAlias, get_args

import torch
from torch import Tensor
from torch.nn import functional

from gradwright.authoring.catalogue import Example, around
from gradwright.authoring.decorator import custom_gradient
from gradwright.authoring.exact import Point, exact, ulps
from gradwright.errors import unknown_choice
from gradwright.stable.arguments import require_floating, widened
from gradwright.stable.gates import gate_examples

Approximate: TypeAlias = Literal["none", "tanh"]
Parts: TypeAlias = tuple[Tensor, Tensor]

SETTLED = 40.0
"""Where the gate is zero or one in every dtype."""
STEPS = 64.0
"""Multiples of its inverse up to ``SETTLED`` have 12 bits, so that their products with 30 bits are exact."""
ROOT_DIGITS = Fraction("0.707106781186547524400844362104849039")
"""``1 / sqrt(2)``."""
LINEAR_DIGITS = Fraction("1.595769121605730711759784239737527474")
"""``2 sqrt(2 / pi)``: twice what is in the tanh of the approximation is ``LINEAR x + CUBIC x ** 3``."""
CUBIC_DIGITS = LINEAR_DIGITS * Fraction("0.044715")
ROOT, LINEAR, CUBIC = map(float, (ROOT_DIGITS, LINEAR_DIGITS, CUBIC_DIGITS))


def _examples(dtype: torch.dtype) -> Sequence[Example]:
    points = gate_examples((-6.0, -1.2), (-0.5, 1.2), (1.6, 8.0))(dtype)
    tails = torch.tensor([-37.3, -30.1, -20.7, -12.9, -12.3, -9.3, -8.1, -5.7, -5.3, 9.7, 38.1], dtype=dtype)
    held = around(SETTLED, -SETTLED, dtype=dtype)
    extra = [Point((tails,), note="far left", extreme=True), Point((held,), note="where it is held", extreme=True)]
    exactly = [*points, *extra]
    return exactly + [_approximated(point) for point in exactly]


def _approximated(point: Any) -> Point:
    return Point(
        point.args, {"approximate": "tanh"}, f"{point.note}, tanh", point.value, point.first, extreme=point.extreme
    )


def _reference(mp: Any, x: Any, approximate: Approximate) -> Any:
    if approximate == "none":
        return x * mp.erfc(-x / mp.sqrt(2)) / 2
    return x / (1 + mp.exp(-2 * mp.sqrt(2 / mp.pi) * (x + mp.mpf("0.044715") * x**3)))


@exact(
    forward='out = x (1 + erf(x / sqrt(2))) / 2; with "tanh" x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x ** 3))) / 2',
    gradient={"x": "g (P + x P'), P the factor of x"},
    reference=_reference,
    domain="every number; 0 at minus infinity. Next to -0.752, where the derivative is zero, its error is 4 ulp of one",
    bars=ulps(4),
    examples=_examples,
    replaces=functional.gelu,
    slower="erfc and exponentials of arguments in two parts; PyTorch's fused kernel has neither, and no tail",
    paper="Hendrycks, Gimpel 2016, arXiv:1606.08415; pytorch#189234, #192295",
)
def gelu(x: Tensor, approximate: Approximate = "none") -> Tensor:
    """Return ``x`` times the probability that a normal number is below it.

    Arguments:
        x: floating point, of any shape.
        approximate: ``"none"``, or ``"tanh"`` for the formula with tanh, which is another function.

    Returns:
        a tensor like ``x``.

    Raises:
        ArgumentError: ``x`` is not floating point.
        OptionError: ``approximate`` is none of the two.

    Example:
        >>> import torch, gradwright as gw
        >>> x = torch.tensor(-9.0, dtype=torch.float64)
        >>> torch.func.grad(gw.stable.gelu)(x)
        tensor(-9.1389e-18, dtype=torch.float64)
    """
    require_floating("gelu", x=x)
    if approximate not in get_args(Approximate):
        raise unknown_choice("gelu: approximate", approximate, get_args(Approximate))
    wide = widened(x)
    held = _held(wide)
    below = _below(held) if approximate == "none" else _roughly_below(held)
    return (held * below + (wide - held).relu()).to(x.dtype)


@custom_gradient
def _held(x: Tensor) -> Tensor:
    return x.clamp(-SETTLED, SETTLED)


@_held.vjp
def _held_vjp(g: Tensor, x: Tensor) -> Tensor:
    """A nan is not beyond the ends, and gets the gradient that makes it nan; that of ``clamp`` is zero."""
    return g.masked_fill(x.abs() > SETTLED, 0)


# -------------------------------------------------------------------- the normal distribution


@custom_gradient
def _below(x: Tensor) -> Tensor:
    """Return the probability that a normal number is below ``x``, which is not far out here.

    ``normal.ndtr``, which is right everywhere, would take twice as long.
    """
    u, rest = _over_root_two(x)
    return torch.addcmul(torch.erfc(-u) * 0.5, torch.exp(-u * u), rest, value=1 / math.sqrt(math.pi))


@_below.vjp
def _below_vjp(g: Tensor, x: Tensor) -> Tensor:
    return _density(g, x)


@custom_gradient
def _density(weight: Tensor, x: Tensor) -> Tensor:
    """Return ``weight`` times the density of the normal distribution."""
    s, rest = _half_square(x)
    return weight * (torch.exp(-s) * (1 - rest) * (1 / math.sqrt(2 * math.pi)))


@_density.vjp
def _density_vjp(g: Tensor, weight: Tensor, x: Tensor) -> dict[str, Tensor]:
    return {"weight": _density(g, x), "x": -x * _density(g * weight, x)}


def _over_root_two(x: Tensor) -> Parts:
    """Return ``x / sqrt(2)``."""
    if x.dtype == torch.float32:
        return _rounded(x.double() * ROOT)
    near, off = _near(x)
    head, tail = _constant(ROOT_DIGITS, 30)
    return _sum(near * head, off * ROOT + near * tail)


def _half_square(x: Tensor) -> Parts:
    """Return ``x ** 2 / 2``."""
    if x.dtype == torch.float32:
        return _rounded(x.double().square() * 0.5)
    near, off = _near(x)
    return _sum(near * near * 0.5, off * (x + near) * 0.5)


# -------------------------------------------------------------------- its approximation


@custom_gradient
def _roughly_below(x: Tensor) -> Tensor:
    """Return ``sigmoid(z)`` with ``z = LINEAR x + CUBIC x ** 3``."""
    z, rest = _exponent(x)
    return torch.sigmoid(z) * (1 + rest * torch.sigmoid(-z))


@_roughly_below.vjp
def _roughly_below_vjp(g: Tensor, x: Tensor) -> Tensor:
    return _rough_density(g, x)


@custom_gradient
def _rough_density(weight: Tensor, x: Tensor) -> Tensor:
    z, rest = _exponent(x)
    slope = torch.sigmoid(z) * torch.sigmoid(-z) * (1 - rest * torch.tanh(z * 0.5))
    return weight * (slope * (LINEAR + 3 * CUBIC * x * x))


@_rough_density.vjp
def _rough_density_vjp(g: Tensor, weight: Tensor, x: Tensor) -> dict[str, Tensor]:
    steep = LINEAR + 3 * CUBIC * x * x
    relative = 6 * CUBIC * x / steep - steep * torch.tanh((LINEAR + CUBIC * x * x) * x * 0.5)
    return {"weight": _rough_density(g, x), "x": _rough_density(g * weight, x) * relative}


def _exponent(x: Tensor) -> Parts:
    """Return ``LINEAR x + CUBIC x ** 3``."""
    if x.dtype == torch.float32:
        wide = x.double()
        return _rounded((LINEAR + CUBIC * wide * wide) * wide)
    near, off = _near(x)
    square = near * near
    (line, line_tail), (cube, cube_tail) = _constant(LINEAR_DIGITS, 30), _constant(CUBIC_DIGITS, 16)
    first, second = near * line, square * near * cube  # both exact
    total = first + second
    part = total - first
    lost = (first - (total - part)) + (second - part)
    rest = off * (LINEAR + CUBIC * (x * x + x * near + square)) + near * (line_tail + cube_tail * square)
    return _sum(total, rest + lost)


# -------------------------------------------------------------------- numbers in two parts


def _near(x: Tensor) -> Parts:
    """Return a multiple of one step near ``x`` and what is left, both exact."""
    near = (x * STEPS).round() / STEPS
    return near, x - near


def _constant(value: Fraction, bits: int) -> tuple[float, float]:
    """Return the first bits of a constant, and the rest."""
    scale = 2 ** (bits - math.frexp(float(value))[1])
    head = Fraction(round(value * scale), scale)
    return float(head), float(value - head)


def _sum(head: Tensor, tail: Tensor) -> Parts:
    """Return the sum of a number and a much smaller one: rounded, and what its rounding left."""
    total = head + tail
    return total, (head - total) + tail


def _rounded(wide: Tensor) -> Parts:
    """Return the nearest numbers of float32, and what is left."""
    head = wide.float()
    return head, (wide - head).float()
