r"""How far values and gradients may differ because numbers are rounded.

What changes of one unit in the last place of the data do to the exact gradient is what an implementation may do:

    s_i = rms over draws of |g(x (1 + u d), v (1 + u d')) - g(x, v)|_i        d, d' uniform in [-1, 1]
    |g_low - g|_i <= C (u |g|_i + s_i + u sqrt(L) max |g|)                      C = 8

u is the unit roundoff of the low precision and L the longest reduction, at most the size of the larger side. This is
mixed forward-backward error: Higham, Accuracy and Stability of Numerical Algorithms, chapters 1 and 3.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from gradwright.checking.case import Case
from gradwright.checking.judge import largest_entry

BUDGET = 8.0
DRAWS = 4
SCATTER_DRAWS = 12
SAME_SUM = 1e-9
"""Two orders of summation in float64 agree to this fraction; memory that is misread does not."""


@dataclass
class Moved:
    """How far the output and the gradients of a case move when its data move by some units."""

    value: Tensor
    gradients: list[Tensor]


def nudged(x: Tensor, unit: float, generator: torch.Generator) -> Tensor:
    """Return ``x`` with each element moved by up to ``unit`` of its size (zeros: of a thousandth of the typical)."""
    size = x.to(torch.float64).abs().nan_to_num(0.0, 0.0, 0.0)
    typical = float(size.mean()) if size.numel() else 0.0
    shift = 2 * torch.rand(x.shape, generator=generator, dtype=torch.float64) - 1
    return (x.to(torch.float64) + unit * size.clamp(min=1e-3 * typical) * shift).to(x.dtype)


def sensitivity_to_rounding(case: Case, v: Tensor, unit: float, salt: str) -> Moved:
    """Return the rms move of value and gradients over draws of the data moved by one ``unit``."""
    generator = case.generator(salt)
    value, gradients = case.value(), case.pull_all(v)
    squares = Moved(torch.zeros_like(value), [torch.zeros_like(g) for g in gradients])
    for _ in range(DRAWS):
        flats = {k: nudged(x, unit, generator) for k, x in enumerate(case.base)}
        squares.value += (case.value(flats) - value).nan_to_num(0.0, 0.0, 0.0).square()
        moved = case.pull_all(nudged(v, unit, generator), flats)
        for total, now, then in zip(squares.gradients, moved, gradients):
            total += (now - then).nan_to_num(0.0, 0.0, 0.0).square()
    return Moved((squares.value / DRAWS).sqrt(), [(total / DRAWS).sqrt() for total in squares.gradients])


def scatter(case: Case, v: Tensor, salt: str = "scatter", units: float = 4.0) -> Moved:
    """Return the largest move of value and gradients when the inputs move by a few rounding units.

    Ties are broken either way by some of the draws, so that whatever depends on one shows here.
    """
    generator = case.generator(salt)
    value, gradients = case.value(), case.pull_all(v)
    largest = Moved(torch.zeros_like(value), [torch.zeros_like(g) for g in gradients])
    for _ in range(SCATTER_DRAWS):
        flats = {k: nudged(x, units * case.epsilon, generator) for k, x in enumerate(case.base)}
        largest.value = largest.value.maximum((case.value(flats) - value).abs().nan_to_num(0.0, 0.0, 0.0))
        largest.gradients = [
            most.maximum((now - then).abs().nan_to_num(0.0, 0.0, 0.0))
            for most, now, then in zip(largest.gradients, case.pull_all(v, flats), gradients)
        ]
    return largest


def budget(exact: Tensor, moved: Tensor, unit: float, reduction: int) -> Tensor:
    """Return the allowance of each element of a value or gradient in a precision of roundoff ``unit``."""
    largest = largest_entry(exact)
    spread = moved + unit * math.sqrt(max(1, reduction)) * largest
    return BUDGET * (unit * exact.abs().nan_to_num(0.0, 0.0, 0.0) + spread)


def outside(got: Tensor, want: Tensor, allowed: Tensor) -> Tensor:
    """Return which elements differ by more than is allowed; two NaN, or two equal infinities, are the same."""
    same = ((got - want).abs() <= allowed) | (got == want) | (got.isnan() & want.isnan())
    return ~same


def misread(
    case: Case, got: Tensor, want: Tensor, moved: Callable[[], Tensor], granted: Tensor | float = 0.0
) -> Tensor:
    """Return which elements differ by more than another order of summation explains.

    Arguments:
        moved: called only when something differs; how far each element scatters under changes of a few units.
        granted: allowed besides.
    """
    tolerance = max(SAME_SUM, 64 * case.epsilon)
    allowed = tolerance * (want.abs().nan_to_num(0.0, 0.0, 0.0) + largest_entry(want)) + granted
    bad = outside(got, want, allowed)
    return outside(got, want, allowed + 8 * moved()) if bool(bad.any()) else bad


def worst(got: Tensor, want: Tensor, bad: Tensor) -> int:
    """Return the position of the worst of the elements marked bad; one that is not finite is the worst."""
    gap = (got - want).abs().nan_to_num(torch.inf, torch.inf, torch.inf)
    return int(torch.where(bad, gap, -1.0).argmax())
