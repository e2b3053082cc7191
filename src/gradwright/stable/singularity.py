"""A template for functions with a removable singularity: a series near the point, the closed form elsewhere.

``sin(x) / x`` has a value at zero and a derivative there, but its formula has none, and the formula of its derivative
loses all digits before it gets there. Where each derivative must change from the closed form to the series, and how
many terms the series needs up to there, is measured: against the series in fifty digits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, TypeAlias

import torch
from torch import Tensor

from gradwright.authoring.constructors import define
from gradwright.errors import DefinitionError, kind_of

Form: TypeAlias = Callable[[Tensor], Tensor]
Coefficient: TypeAlias = Callable[[int], "float | Fraction"]

ORDERS = 4
"""The function and three derivatives; a fourth is left to PyTorch."""
MOST_TERMS = 64
OCTAVE = 8
"""How many distances are tried between one and its half."""
POWERS = 2 * MOST_TERMS + 20
"""How many coefficients the truth is made of."""
TOLERANCE = (4.0, 4.0, 64.0, 64.0)
"""How many units in the last place a closed form may be off, by derivative."""
SHARE = 0.25
"""What the terms that are left out may add up to, in units of the last place."""


@dataclass(frozen=True)
class Switch:
    """Where one derivative changes from the series to the closed form."""

    distance: float
    """The series is used up to this distance from the point."""
    terms: int
    """So many coefficients are used, from the first that is not zero."""


Switches: TypeAlias = Mapping[torch.dtype, Sequence[Switch]]


def removable(
    closed: Sequence[Form],
    coefficient: Coefficient,
    *,
    name: str,
    at: float = 0.0,
    low: float = -math.inf,
    high: float = math.inf,
    switches: Switches | None = None,
    tolerance: Sequence[float] = TOLERANCE,
    radius: float = 2.0,
) -> Callable[[Tensor], Tensor]:
    """Return a function of one tensor that is right at a removable singularity, with three derivatives.

    Arguments:
        closed: the function and its first three derivatives as formulae that hold away from the point; they take a
            tensor. :func:`quotient` makes them for a quotient.
        coefficient: takes ``n`` and returns the coefficient of ``(x - at) ** n`` of the Taylor series, best as a
            ``Fraction``.
        name: what the function is called in messages.
        at: the point.
        low, high: where the function is defined; beyond, it and its derivatives are nan.
        switches: where to change, for each dtype, as :func:`find_switches` returns it; by default it is found now, for
            float32 and float64.
        tolerance: how many units in the last place each closed form may be off.
        radius: the series is used at most so far from the point; it must be inside its radius of convergence.

    Returns:
        a function of a tensor of floating point. Half types are computed in float32.

    Raises:
        DefinitionError: there are not four closed forms, or series and closed form do not meet.

    Example:
        >>> import math, torch, gradwright as gw
        >>> from gradwright.stable.singularity import quotient, removable
        >>> sines = (torch.sin, torch.cos, lambda x: -torch.sin(x), lambda x: -torch.cos(x))
        >>> def taylor(n):
        ...     return 0.0 if n % 2 else (-1) ** (n // 2) / math.factorial(n + 1)
        >>> sin_over_x = removable(quotient(sines, 1), taylor, name="sin_over_x")
        >>> torch.func.grad(torch.func.grad(sin_over_x))(torch.tensor(0.0))
        tensor(-0.3333)
    """
    if not isinstance(closed, (tuple, list)):
        raise _no_sequence("removable", "closed", closed, "the function and its first three derivatives")
    if not callable(coefficient):
        raise DefinitionError(
            f"removable: coefficient is {kind_of(coefficient)}; expected a function of n; write `lambda n: ...`."
        )
    if len(closed) != ORDERS:
        raise DefinitionError(
            f"removable: {name} has {len(closed)} closed forms; expected {ORDERS}: the function and its first three "
            "derivatives; `quotient` makes them for a quotient."
        )
    if switches is None:
        found = {}
        for dtype in (torch.float64, torch.float32):
            found[dtype] = find_switches(
                closed, coefficient, dtype, name=name, at=at, tolerance=tolerance, radius=radius
            )
        switches = found
    parts = [_Order(order, closed[order], coefficient, at, switches, (low, high)) for order in range(ORDERS)]
    function: Any = parts[-1]  # differentiated by PyTorch
    for order in reversed(range(ORDERS - 1)):
        function = _chained(parts[order], function, name if not order else f"{name} (derivative {order})")
    result: Callable[[Tensor], Tensor] = function
    return result


def _chained(value: _Order, derivative: Callable[[Tensor], Tensor], name: str) -> Any:
    return define(lambda x: value(x), vjp=lambda g, x: g * derivative(x), name=name)


def quotient(numerator: Sequence[Form], power: int, at: float = 0.0) -> tuple[Form, ...]:
    """Return ``f(x) = numerator(x) / (x - at) ** power`` and its derivatives, from those of the numerator.

    By the rule of Leibniz, ``f_n = (numerator_n - sum_j C(n, j) d_j f_(n - j)) / d_0`` with the derivatives ``d_j`` of
    ``(x - at) ** power``.

    Arguments:
        numerator: it and its derivatives, as many as are wanted of the quotient.
        power: a positive integer.
        at: where the denominator is zero.

    Raises:
        DefinitionError: there is no sequence of functions.
    """
    if not isinstance(numerator, (tuple, list)):
        raise _no_sequence("quotient", "numerator", numerator, "the numerator and its derivatives")

    def form(order: int) -> Form:
        def evaluate(x: Tensor) -> Tensor:
            d = x - at
            found: list[Tensor] = []
            for n in range(order + 1):
                total = numerator[n](x)
                for j in range(1, min(n, power) + 1):
                    part = (math.comb(n, j) * math.perm(power, j)) * found[n - j]
                    for _ in range(power - j):  # no power of d, which may be beyond the range where this is not
                        part = part * d
                    total = total - part
                for _ in range(power):
                    total = total / d
                found.append(total)
            return found[-1]

        return evaluate

    return tuple(form(order) for order in range(len(numerator)))


def _no_sequence(name: str, argument: str, value: object, what: str) -> DefinitionError:
    return DefinitionError(
        f"{name}: {argument} is {kind_of(value)}; expected a tuple of functions, {what}; write (torch.sin, torch.cos, "
        "...)."
    )


class _Order:
    """One derivative: the series near the point, the closed form elsewhere."""

    def __init__(
        self,
        order: int,
        closed: Form,
        coefficient: Coefficient,
        at: float,
        switches: Switches,
        domain: tuple[float, float],
    ) -> None:
        self.closed = closed
        self.at = at
        self.domain = domain
        last = order == ORDERS - 1  # differentiated by PyTorch, so that nothing may be changed in place
        self.series = {dtype: _series(coefficient, order, each[order], last) for dtype, each in switches.items()}
        self.distance = {dtype: each[order].distance for dtype, each in switches.items()}

    def __call__(self, x: Tensor) -> Tensor:
        """Return the derivative; what is selected nowhere is computed at a safe place, so that autograd may pass."""
        dtype = x.dtype if x.dtype in self.series else torch.float32
        wide = x.to(dtype)
        distance = self.distance[dtype]
        near = (wide - self.at).abs() <= distance
        inside = torch.where(near, wide - self.at, 0.0)
        outside = torch.where(near, self.at + max(distance, 0.5), wide)
        out = torch.where(near, self.series[dtype](inside), self.closed(outside))
        low, high = self.domain
        if low > -math.inf or high < math.inf:
            out = torch.where((wide >= low) & (wide <= high), out, math.nan)
        return out.to(x.dtype)


def _series(coefficient: Coefficient, order: int, switch: Switch, differentiable: bool) -> Form:
    """Return the polynomial of the terms that are used; in the square where every other one is zero."""
    first, step, numbers = _terms(coefficient, order, switch.terms)
    lead, rest = numbers[-1], numbers[-2::-1]

    def evaluate(d: Tensor) -> Tensor:
        z = d * d if step == 2 else d
        total = torch.full_like(d, lead)
        for number in rest:
            total = total * z + number if differentiable else total.mul_(z).add_(number)
        return total * d if first else total

    return evaluate


def _terms(coefficient: Coefficient, order: int, terms: int) -> tuple[int, int, list[float]]:
    """Return exponent of the first term (0 or 1), step of the exponents (1 or 2) and coefficients of a derivative."""
    numbers = [float(coefficient(n + order) * math.perm(n + order, order)) for n in range(2 * terms + 2)]
    even, odd = any(numbers[::2]), any(numbers[1::2])
    if even and odd:
        return 0, 1, numbers[:terms]
    return int(odd), 2, numbers[int(odd) :: 2][:terms]


# -------------------------------------------------------------------- where to change


def find_switches(
    closed: Sequence[Form],
    coefficient: Coefficient,
    dtype: torch.dtype,
    *,
    name: str = "the function",
    at: float = 0.0,
    tolerance: Sequence[float] = TOLERANCE,
    radius: float = 2.0,
) -> tuple[Switch, ...]:
    """Measure for each derivative from where on its closed form is right, and how many terms the series needs.

    The truth is the series in fifty digits, on both sides of the point (where the closed form is defined). A form
    that is right everywhere is used down to where the first term of the series suffices.

    Arguments:
        closed, coefficient, name, at, tolerance, radius: as for :func:`removable`.
        dtype: what the closed forms are computed in.

    Raises:
        DefinitionError: series and closed form disagree where both should be right, or the series needs too many terms.
    """
    import mpmath

    if len(tolerance) != len(closed):
        raise DefinitionError(
            f"removable: {name} has {len(closed)} closed forms and {len(tolerance)} tolerances; expected one for each."
        )
    eps = torch.finfo(dtype).eps
    found = []
    with mpmath.workdps(50):
        for order, form in enumerate(closed):
            series = _Series(
                [_exact(mpmath, coefficient(n + order)) * math.perm(n + order, order) for n in range(POWERS)]
            )
            start = _closed_from(series, form, dtype, at, radius, tolerance[order] * eps, SHARE * eps)
            if start >= radius:
                raise DefinitionError(
                    f"removable: the series of {name} (derivative {order}) and its closed form differ by more than "
                    f"{tolerance[order]:g} units in the last place at a distance of {radius:g}; expected that they "
                    "agree; correct one of the two, or give a larger radius or tolerance."
                )
            terms = series.needed(start, SHARE * eps)
            if terms > MOST_TERMS:
                raise DefinitionError(
                    f"removable: the series of {name} (derivative {order}) needs more than {MOST_TERMS} terms at a "
                    f"distance of {start:.3g}; expected that the closed form is right from nearer on; write it such "
                    "that it cancels less, or give a larger tolerance."
                )
            found.append(Switch(start, terms))
    return tuple(found)


class _Series:
    """A Taylor series in fifty digits."""

    def __init__(self, numbers: Sequence[Any]) -> None:
        self.numbers = numbers
        used = [n for n, number in enumerate(numbers) if number != 0]
        self.step = 2 if all(n % 2 == used[0] % 2 for n in used) else 1
        self.first = used[0] % self.step
        self.least = 1 + used[0] // self.step
        """How many terms end with the first that is not zero."""

    def at(self, d: Any) -> Any:
        import mpmath

        # Far inside, where the closed forms are tried most often, a few terms give the fifty digits.
        count = len(self.numbers) if abs(d) > 2**-4 else min(40 + self.first, len(self.numbers))
        return mpmath.polyval(self.numbers[count - 1 :: -1], d)

    def needed(self, distance: float, share: float) -> int:
        """Return how many terms suffice at a distance: what is left out is at most ``share`` of the sum."""
        import mpmath

        d = mpmath.mpf(distance)
        terms = [number * d**n for n, number in enumerate(self.numbers)]
        left, total = mpmath.fsum(map(abs, terms)), abs(mpmath.fsum(terms))
        for count in range(1, MOST_TERMS + 1):
            place = 0 if count == 1 else self.first + self.step * (count - 1)
            left -= mpmath.fsum(map(abs, terms[place : self.first + self.step * count]))
            if left <= share * total:
                return count
        return MOST_TERMS + 1


def _closed_from(
    series: _Series, form: Form, dtype: torch.dtype, at: float, radius: float, bar: float, share: float
) -> float:
    """Return the smallest distance from which on the closed form is within the bar; ``radius`` where it never is."""
    import mpmath

    single: float = next(d for d in (radius * 2.0**-k for k in range(200)) if series.needed(d, share) <= series.least)
    distances = [d for d in (radius * 2.0 ** (-k / OCTAVE) for k in range(200 * OCTAVE)) if d > single]
    signs = [sign * (1 - j / 64) for sign in (1, -1) for j in range(4)]
    points = torch.tensor([[at + sign * d for sign in signs] for d in distances], dtype=dtype)
    values = form(points).double().tolist()
    sizes = [abs(series.at(mpmath.mpf(d))) for d in distances]
    for number in range(len(distances)):
        for place, got in enumerate(values[number]):
            if math.isnan(got):
                continue
            want = series.at(mpmath.mpf(float(points[number, place])) - mpmath.mpf(at))
            # Next to a zero no formula has a small relative error: what counts is the size around it.
            size = max([abs(want), *sizes[number : number + OCTAVE]])
            if abs(got - want) > bar * size:
                return float(distances[max(number - 1, 0)])
    return single


def _exact(mp: Any, number: float | Fraction) -> Any:
    return mp.mpf(number.numerator) / number.denominator if isinstance(number, Fraction) else mp.mpf(number)
