"""How finely a function is computed near a point, told from its values alone.

Rounding is not always eps times the value: arithmetic in a lower precision inside, cancellation and ill-conditioning
leave more. Four witnesses look at the values that the differences need anyway; the largest one counts.

Moré and Wild, SIAM J. Sci. Comput. 33 (2011) 1292.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

GRID_UNITS = 8.0
"""A common divisor of all values that is this many rounding units wide is no accident."""
HALVINGS = 32
STRETCHES = (1e-5, 1e-7, 1e-9)


@dataclass
class Points:
    """Values of a function near a point, for C directions and m outputs."""

    plus: Tensor
    minus: Tensor
    """Along the ladder, shape (K, C, m)."""
    centre: Tensor
    """Shape (m,)."""
    around: Tensor
    """Seven equally spaced values at two spacings, shape (2, 7, C, m)."""


def noise_of(
    f: Callable[[Tensor], Tensor],
    x: Tensor,
    directions: Tensor,
    steps: Tensor,
    points: Points,
    slopes: Tensor,
    epsilon: Tensor,
    rounding: Tensor,
) -> Tensor:
    """Return the noise of each output along each direction, shape (C, m), at least ``rounding``.

    Arguments:
        f: the function.
        x: the point.
        directions: shape (C, n).
        steps: largest step along each direction, shape (C,).
        points: the values.
        slopes: central differences along the ladder, shape (K, C, m).
        epsilon: rounding unit of each output, shape (m,).
        rounding: rounding of the values themselves, shape (C, m).
    """
    noise = rounding.maximum(epsilon * _conditioning(x, directions, slopes))
    for table in points.around:
        noise = noise.maximum(3 * _table_noise(table))
    noise = noise.maximum(_grid(points, rounding))
    return noise.maximum(_quantum(f, x, directions, steps, points, rounding))


def _conditioning(x: Tensor, directions: Tensor, slopes: Tensor) -> Tensor:
    """Return the slope times the inputs that are moved: eps of it is what rounding an argument costs."""
    moved = directions != 0
    ratios = torch.where(moved, x.to(torch.float64) / torch.where(moved, directions, 1.0), 0.0).abs()
    reach = ratios.amax(dim=1) if ratios.numel() else ratios.sum(dim=1)
    return slopes[-1].abs().nan_to_num(0.0, posinf=0.0) * reach.unsqueeze(1)


def _grid(points: Points, rounding: Tensor) -> Tensor:
    """Return the common divisor of all values where it is far wider than their rounding (0 elsewhere).

    Values that were rounded to a coarser grid, by a float32 result or by ``(x + 1e5) - 1e5``, have zeros for last bits.
    """
    values = points.around.flatten(0, 1)
    bits = values.view(torch.int64)
    # Clearing the lowest set bit of a number subtracts its last digit; a power of two is its own last digit.
    power = (bits & ((1 << 52) - 1)) == 0
    last = torch.where(power, values, values - (bits & (bits - 1)).view(torch.float64)).abs()
    unit = torch.where(values == 0, math.inf, last.nan_to_num(math.inf)).amin(dim=0)
    varies = (values != points.centre).any(dim=0)
    return torch.where(varies & (unit > GRID_UNITS * rounding) & unit.isfinite(), unit, 0.0)


def _table_noise(points: Tensor) -> Tensor:
    """Estimate the noise of f from seven equally spaced values (7, C, m) by a difference table (0: none seen)."""
    sigmas, changes = [], []
    table = points
    for order in range(1, 7):
        table = table[1:] - table[:-1]
        gamma = math.factorial(order) ** 2 / math.factorial(2 * order)
        sigmas.append((gamma * table.square().mean(dim=0)).sqrt())
        signs = table.sign()
        changes.append((signs.amax(dim=0) > 0) & (signs.amin(dim=0) < 0))
    noise = torch.zeros_like(sigmas[0])
    found = torch.zeros_like(noise, dtype=torch.bool)
    for order in range(4):
        window = torch.stack(sigmas[order : order + 3])
        settled = (window.amax(dim=0) <= 4 * window.amin(dim=0)) & changes[order] & window.isfinite().all(dim=0)
        noise = torch.where(settled & ~found, sigmas[order], noise)
        found |= settled
    return noise


def _quantum(
    f: Callable[[Tensor], Tensor], x: Tensor, directions: Tensor, steps: Tensor, points: Points, rounding: Tensor
) -> Tensor:
    """Return the smallest move of outputs that climb in stairs (0 for the others).

    Where some steps move f and others do not, f is either flat near x (one side of a relu) or a staircase. A staircase
    stays where it is when the largest step is lengthened a little, although its slope predicts a visible move.
    """
    plus, minus, centre = points.plus, points.minus, points.centre
    quantum = torch.zeros_like(rounding)
    close = points.around[1]
    moves = torch.cat([plus - centre, minus - centre, close[1:] - close[:-1]]).abs()
    still, going = (moves == 0).any(dim=0), (moves > 0).any(dim=0)
    smallest = torch.where(moves > 0, moves, torch.full_like(moves, math.inf)).amin(dim=0)
    for column in (still & going).any(dim=1).nonzero().flatten().tolist():
        u, first = directions[column].to(x.dtype), float(steps[column])
        stairs = torch.zeros_like(centre, dtype=torch.bool)
        for sign, reached in ((1.0, plus[0, column]), (-1.0, minus[0, column])):
            move = (reached - centre).abs()
            for stretch in STRETCHES:
                expected = move * stretch > 64 * rounding[column]
                if bool(expected.any()):
                    stairs |= expected & (f(x + (sign * first * (1 + stretch)) * u) == reached)
        mixed = still[column] & going[column] & stairs
        quantum[column] = torch.where(mixed, smallest[column], quantum[column])
    return quantum


def jumps_within(f: Callable[[float], float], reach: float, slope: float, rounding: float) -> bool:
    """Tell whether ``f`` jumps between 0 and ``reach``: halve, keep the half that departs more from ``slope``.

    Across a jump the departure stays what it is however close the ends; anything continuous closes up.
    """
    low, high, departures = 0.0, reach, []
    at_low, at_high = f(low), f(high) - slope * high
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        here = f(middle) - slope * middle
        if abs(here - at_low) >= abs(at_high - here):
            high, at_high = middle, here
        else:
            low, at_low = middle, here
        departures.append(abs(at_high - at_low))
    return departures[-1] > max(64 * rounding, departures[-9] / 2)
