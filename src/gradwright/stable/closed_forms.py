"""Functions with a removable singularity as closed forms and Taylor coefficients, with three derivatives each.

What :mod:`~gradwright.stable.ratios` makes functions of, and ``tools/switch_points.py`` measures.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

import torch
from torch import Tensor

from gradwright.stable.seen import seen_within
from gradwright.stable.singularity import Form, quotient
from gradwright.torch_compat import kernels


@dataclass(frozen=True)
class Removable:
    """One function with a removable singularity."""

    closed: tuple[Form, ...]
    """The function and three derivatives, away from the point."""
    coefficient: Callable[[int], Fraction | float]
    """The Taylor coefficients at the point."""
    at: float = 0.0
    radius: float = 2.0
    """Up to where the series may be used."""
    low: float = -math.inf
    high: float = math.inf
    """Where the function is defined."""


# -------------------------------------------------------------------- sines


def sin_pi(x: Tensor) -> Tensor:
    """Return ``sin(pi x)``, with a small relative error also next to its zeros."""
    whole = torch.round(x)
    return torch.sin(math.pi * (x - whole)) * _sign(whole)


def cos_pi(x: Tensor) -> Tensor:
    """Return ``cos(pi x)``, with a small relative error also next to its zeros."""
    whole = torch.round(x)
    return torch.sin(math.pi * (0.5 - (x - whole).abs())) * _sign(whole)


def _sign(whole: Tensor) -> Tensor:
    """Return -1 to the power of a whole number."""
    return 1 - 2 * torch.remainder(whole, 2)


def _negative(form: Form) -> Form:
    return lambda x: -form(x)


SINES = (torch.sin, torch.cos, _negative(torch.sin), _negative(torch.cos))
PI_SINES: tuple[Form, ...] = (
    lambda x: sin_pi(x) / math.pi,
    cos_pi,
    lambda x: -math.pi * sin_pi(x),
    lambda x: -(math.pi**2) * cos_pi(x),
)
VERSINES: tuple[Form, ...] = (
    lambda x: 2 * torch.sin(x / 2).square(),
    torch.sin,
    torch.cos,
    _negative(torch.sin),
)
"""``1 - cos(x)`` and its derivatives."""
DEFECTS: tuple[Form, ...] = (
    lambda x: x - torch.sin(x),
    lambda x: 2 * torch.sin(x / 2).square(),
    torch.sin,
    torch.cos,
)
"""``x - sin(x)`` and its derivatives."""


def _alternating(factorial: int) -> Callable[[int], Fraction]:
    """Return the coefficients ``(-1) ** k / (2 k + factorial)!`` of ``x ** (2 k)``."""

    def coefficient(n: int) -> Fraction:
        return Fraction(0) if n % 2 else Fraction((-1) ** (n // 2), math.factorial(n + factorial))

    return coefficient


def _sinc_coefficient(n: int) -> float:
    return float(_alternating(1)(n)) * math.pi**n


# -------------------------------------------------------------------- tangents


def _even(first: Callable[[int], Fraction]) -> Callable[[int], Fraction]:
    """Return coefficients of ``x ** n`` from those of ``x ** (2 k)``."""
    return lambda n: Fraction(0) if n % 2 else first(n // 2)


@functools.cache
def _x_cot(k: int) -> Fraction:
    """Return the coefficients of ``x cot(x)``, from ``x cos(x) = (x cot(x)) sin(x)``."""
    total = Fraction((-1) ** k, math.factorial(2 * k))
    return total - sum(
        (_x_cot(j) * Fraction((-1) ** (k - j), math.factorial(2 * (k - j) + 1)) for j in range(k)), Fraction(0)
    )


@functools.cache
def _tanh_over_x(k: int) -> Fraction:
    """Return the coefficients of ``tanh(x) / x``, from ``sinh(x) = tanh(x) cosh(x)``."""
    total = Fraction(1, math.factorial(2 * k + 1))
    return total - sum((_tanh_over_x(j) * Fraction(1, math.factorial(2 * (k - j))) for j in range(k)), Fraction(0))


def _x_cot_closed() -> tuple[Form, ...]:
    def cot(x: Tensor) -> Tensor:
        return 1 / torch.tan(x)

    def csc2(x: Tensor) -> Tensor:
        return 1 / torch.sin(x).square()

    return (
        lambda x: x * cot(x),
        lambda x: cot(x) - x * csc2(x),
        lambda x: 2 * csc2(x) * (x * cot(x) - 1),
        lambda x: csc2(x) * (6 * cot(x) - 2 * x * (3 * csc2(x) - 2)),
    )


def _tanh_slope(x: Tensor) -> Tensor:
    return torch.cosh(x).square().reciprocal()


TANHS: tuple[Form, ...] = (
    torch.tanh,
    _tanh_slope,
    lambda x: -2 * torch.tanh(x) * _tanh_slope(x),
    lambda x: 2 * _tanh_slope(x) * (2 - 3 * _tanh_slope(x)),
)
SINHS = (torch.sinh, torch.cosh, torch.sinh, torch.cosh)

# -------------------------------------------------------------------- exponentials and logarithms

FAR = 80.0
"""Beyond, exp(-x) is nothing beside exp(x), which soon overflows where exp(x) / x does not."""


def _growing(numerator: tuple[Form, ...], share: float, *, odd: bool) -> tuple[Form, ...]:
    """Return ``f(x) = numerator(x) / x`` and its derivatives, also where only the numerator overflows.

    Far out they are ``share * exp(x)`` times ``h_n = (1 - n h_(n - 1)) / x``; half of the exponent comes after that.

    Arguments:
        numerator: it and its derivatives, which grow as ``share * exp(x)``.
        odd: whether the numerator is odd, and grows as ``-share * exp(-x)`` on the other side.
    """

    def form(order: int, plain: Form) -> Form:
        def evaluate(x: Tensor) -> Tensor:
            low = -FAR if odd else -math.inf
            if seen_within(x, low, FAR):
                return plain(x)
            far = (x < low) | (x > FAR)
            size = torch.where(far, x.abs(), FAR)
            factor = share / size
            for n in range(1, order + 1):
                factor = (share - n * factor) / size
            half = torch.exp(size / 2)
            side = torch.where(x < 0, (-1.0) ** order, 1.0)
            return torch.where(far, side * (factor * half * half), plain(torch.where(far, 1.0, x)))

        return evaluate

    return tuple(form(order, plain) for order, plain in enumerate(quotient(numerator, 1)))


EXPONENTIALS = (kernels.expm1, torch.exp, torch.exp, torch.exp)
LOGARITHMS: tuple[Form, ...] = (
    torch.log1p,
    lambda x: 1 / (1 + x),
    lambda x: -((1 + x) ** -2),
    lambda x: 2 * (1 + x) ** -3,
)
LOGARITHMS_AT_1: tuple[Form, ...] = (torch.log, lambda x: 1 / x, lambda x: -(x**-2), lambda x: 2 * x**-3)


def _log_coefficient(n: int) -> Fraction:
    return Fraction((-1) ** n, n + 1)


# -------------------------------------------------------------------- squares of arc functions


def _arc_square_coefficient(sign: int) -> Callable[[int], Fraction]:
    """Return those of ``acos(x) ** 2 = 2 sum_n (2 (1 - x)) ** n / (n ** 2 C(2 n, n))``, or of ``acosh(x) ** 2``."""

    def coefficient(n: int) -> Fraction:
        return Fraction(0) if n == 0 else sign * Fraction(2 * (-2) ** n, n * n * math.comb(2 * n, n))

    return coefficient


def _acos_squared() -> tuple[Form, ...]:
    """With ``u = (1 - x) (1 + x)``, ``u f'' = x f' + 2`` and ``u f''' = 3 x f'' + f'``."""

    def u(x: Tensor) -> Tensor:
        return (1 - x) * (1 + x)

    def first(x: Tensor) -> Tensor:
        return -2 * torch.acos(x) / u(x).sqrt()

    def second(x: Tensor) -> Tensor:
        return (2 + x * first(x)) / u(x)

    return (
        lambda x: (2 * torch.atan2(torch.sqrt(1 - x), torch.sqrt(1 + x))).square(),
        first,
        second,
        lambda x: (3 * x * second(x) + first(x)) / u(x),
    )


def _acosh_squared() -> tuple[Form, ...]:
    """With ``u = (x - 1) (x + 1)``, ``u f'' = 2 - x f'`` and ``u f''' = -(3 x f'' + f')``."""

    def root(x: Tensor) -> Tensor:
        return torch.sqrt(x - 1) * torch.sqrt(x + 1)

    def first(x: Tensor) -> Tensor:
        return 2 * kernels.acosh(x) / root(x)

    def second(x: Tensor) -> Tensor:
        return (2 - x * first(x)) / root(x) / root(x)

    return (
        lambda x: kernels.acosh(x).square(),
        first,
        second,
        lambda x: -(3 * x * second(x) + first(x)) / root(x) / root(x),
    )


FORMS: dict[str, Removable] = {
    "sinc": Removable(quotient(PI_SINES, 1), _sinc_coefficient, radius=0.9),
    "sin_over_x": Removable(quotient(SINES, 1), _alternating(1), radius=3.0),
    "one_minus_cos_over_x2": Removable(quotient(VERSINES, 2), _alternating(2), radius=3.0),
    "x_minus_sin_over_x3": Removable(quotient(DEFECTS, 3), _alternating(3), radius=5.0),
    "x_over_tan": Removable(_x_cot_closed(), _even(_x_cot), radius=1.5),
    "tanh_over_x": Removable(quotient(TANHS, 1), _even(_tanh_over_x), radius=1.0),
    "sinh_over_x": Removable(
        _growing(SINHS, 0.5, odd=True),
        lambda n: Fraction(0) if n % 2 else Fraction(1, math.factorial(n + 1)),
        radius=4.0,
    ),
    "expm1_over_x": Removable(
        _growing(EXPONENTIALS, 1.0, odd=False), lambda n: Fraction(1, math.factorial(n + 1)), radius=4.0
    ),
    "log1p_over_x": Removable(quotient(LOGARITHMS, 1), _log_coefficient, radius=0.5, low=-1.0),
    "log_over_x_minus_1": Removable(
        quotient(LOGARITHMS_AT_1, 1, at=1.0), _log_coefficient, at=1.0, radius=0.5, low=0.0
    ),
    "acos_squared": Removable(_acos_squared(), _arc_square_coefficient(1), at=1.0, radius=1.0, low=-1.0, high=1.0),
    "acosh_squared": Removable(_acosh_squared(), _arc_square_coefficient(-1), at=1.0, radius=1.0, low=1.0),
}
