"""How finely a foreign function is computed, and how strongly it curves: what a step must be chosen by.

A solver that stops at a tolerance, single precision inside or a result that is printed with few digits leave noise that
is far above rounding. It is told from seven values close together by a table of differences: those of a smooth function
die out with their order, those of noise do not (Moré and Wild, SIAM J. Sci. Comput. 33 (2011) 1292). Two more values at
a wider distance give the second and third derivatives.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from gradwright.wrapping.points import Array, Neighbourhood
from gradwright.wrapping.stencils import Method, lengths, relative_step

WIDE = 1e-2
"""The largest relative change of the arguments that measuring makes."""
OFFSETS = (-3.0, -2.13, -0.89, 0.0, 1.27, 1.93, 3.09)
"""Where the seven values are, in units of the spacing: unevenly, as rounding inside f may be in step with a grid."""
SPACING = 1e-6
"""The relative spacing of the values in double precision."""
MOST_SHORTER = 30.0
"""Where steps are shorter than the typical length by more than this, the elements are of different units."""
SEEN = 8.0
"""Units of rounding by which an output moves at all."""


@dataclass
class Learned:
    """What is known of a function near a point.

    Arguments:
        noise: relative to the values.
        step: the relative step, for the method that was asked for.
        least: a length on which it varies, where the values of the arguments are no guide; else 0.
        error: the relative error of a derivative with that step.
    """

    noise: float
    step: float
    least: float = 0.0
    error: float = 0.0


def stated(method: Method, noise: float, epsilon: float) -> Learned:
    """Return what follows from a stated noise."""
    noise = max(noise, epsilon)
    return Learned(noise, relative_step(method, noise), error=usual_error(method, noise))


def usual_error(method: Method, noise: float) -> float:
    """Return the relative error at the best step where the derivatives are about as large as the function."""
    return float({"3-point": noise ** (2 / 3), "2-point": noise**0.5, "cs": noise}[method])


def shorter(hood: Neighbourhood, least: float = 0.0) -> float:
    """Return how much shorter steps are, in the mean, than the typical length: so much larger is the error of noise."""
    return min(MOST_SHORTER, max(1.0, _rms(lengths(hood, least, shortest=1.0) / lengths(hood, least))))


def measured(method: Method, hood: Neighbourhood, down: Array, up: Array, known: float | None = None) -> Learned:
    """Measure slope, curvature and, where it is not known, noise along one direction in which all variables move.

    It costs 8 evaluations, and 8 more each time that nothing moves.
    """
    precision = max(hood.epsilon, known or 0.0) / np.finfo(np.float64).eps
    least, spacing = 0.0, min(WIDE / 10, float(SPACING * precision ** (1 / 3)))
    while True:
        direction = _direction(hood, lengths(hood, least, shortest=0.0), down, up)
        reach = float(np.abs(direction).max())
        if reach == 0:
            return stated(method, known or 0.0, hood.epsilon)
        steps = [k * spacing for k in OFFSETS if k]
        *rows, below, above = _line(hood, direction, [*steps, -WIDE, WIDE], down, up)
        table, wide = np.stack([*rows[:3], hood.f, *rows[3:]]), np.stack([below, above])
        if _stuck(table, wide, spacing, hood) and spacing < WIDE:
            spacing = min(WIDE, 100 * spacing)
        elif not _moves(wide - hood.f, hood, hood.epsilon**-0.5) and max(least, reach) < 1:
            least = min(1.0, 100 * max(least, reach))
        else:
            moving = int(np.count_nonzero(direction))
            return _concluded(method, hood, table, spacing, wide, least, moving, known)


def _direction(hood: Neighbourhood, scales: Array, down: Array, up: Array) -> Array:
    """Return a random direction, shorter where bounds are near; not along x itself, where a norm does not curve."""
    random = np.random.default_rng(2011)
    factors = random.choice([-1.0, 1.0], scales.size) * random.uniform(0.5, 1.0, scales.size)
    return factors * np.minimum(scales, np.minimum(down, up) / (4 * WIDE))


def _line(hood: Neighbourhood, direction: Array, steps: list[float], down: Array, up: Array) -> list[Array]:
    lower, upper = hood.x - down, hood.x + up
    points = [hood.everywhere(np.clip(hood.rounded(hood.x + step * direction), lower, upper)) for step in steps]
    return hood.at(points)


def _stuck(table: Array, wide: Array, spacing: float, hood: Neighbourhood) -> bool:
    """Tell whether most outputs that should move are all alike, as results with few digits are, or nothing moves."""
    with np.errstate(invalid="ignore"):
        expected = np.abs(wide[1] - wide[0]) * spacing / WIDE > SEEN * hood.epsilon * np.abs(hood.f)
        alike = (table == hood.f).all(axis=0)
    if not expected.any():
        return not _moves(table - hood.f, hood, SEEN)
    return bool(2 * np.count_nonzero(alike & expected) > np.count_nonzero(expected))


def _moves(changes: Array, hood: Neighbourhood, units: float) -> bool:
    """Tell whether any output moves by more than some units of rounding."""
    with np.errstate(invalid="ignore"):
        return bool((np.abs(changes) > units * hood.epsilon * np.abs(hood.f)).any())


def _concluded(
    method: Method,
    hood: Neighbourhood,
    table: Array,
    spacing: float,
    wide: Array,
    least: float,
    moving: int,
    known: float | None,
) -> Learned:
    """Put noise, slope and curvature together; every output counts relative to the size of its array."""
    with np.errstate(all="ignore"):
        noise = max(known or 0.0, hood.epsilon) * np.abs(table).max(axis=0)
        if known is None:
            noise = np.maximum(_table_noise(table), noise)
        # One output may look quiet by chance; the others of its array tell.
        pooled = np.concatenate([np.maximum(part, _rms(part)) for part in hood.split(noise)])
        slope = (table[6] - table[0]) / ((OFFSETS[6] - OFFSETS[0]) * spacing)
        curvature, third = np.zeros_like(slope), np.zeros_like(slope)
        # What is too small to be seen behind the noise is at most so large, and taken to be as large as f at most.
        unseen_curvature, unseen_third = 16 / WIDE**2, 8 / (spacing * WIDE**2)
        if spacing < WIDE / 8:
            curvature = np.abs(wide[1] - 2 * hood.f + wide[0]) / WIDE**2
            curvature = np.where(curvature > unseen_curvature * pooled, curvature, 0.0)
            third = 6 * np.abs((wide[1] - wide[0]) / (2 * WIDE) - slope) / WIDE**2
            third = np.where(third > unseen_third * pooled, third, 0.0)
        slope = np.where(np.abs(slope) * spacing > pooled, slope, (wide[1] - wide[0]) / (2 * WIDE))
        finite = np.isfinite(noise + slope + curvature + third)
    totals = np.zeros(4)
    for parts in zip(*[hood.split(each) for each in (noise, slope, curvature, third, finite, hood.f)]):
        mask = parts[4]
        if not mask.any():
            continue
        rms = [_rms(part[mask]) for part in parts[:4]]
        size = max(_rms(parts[5][mask]), rms[1] / math.sqrt(moving))
        if size > 0:
            totals = np.maximum(totals, np.array(rms) / size)
    relative, steepness, second, third_size = (float(total) for total in totals)
    if relative == 0:
        return stated(method, known or 0.0, hood.epsilon)
    relative = max(relative, hood.epsilon)
    # Where the slope vanishes, the error is relative to what the slope is nearby.
    each = max(steepness, WIDE * second) / math.sqrt(moving)
    usual = relative_step(method, relative)
    second = max(second, min(1.0, unseen_curvature * relative))
    third_size = max(third_size, min(1.0, unseen_third * relative))
    if method == "2-point":
        step = 2 * math.sqrt(relative / second)
        step = min(max(step, usual / 1000), max(usual, WIDE))
        errors = relative / step, second * step / 2
    else:
        step = float((3 * relative / third_size) ** (1 / 3))
        step = min(max(step, usual / 1000), max(usual, WIDE))
        errors = relative / step, third_size * step**2 / 6
    error = min(1.0, (shorter(hood, least) * errors[0] + errors[1]) / each) if each else 0.0
    return Learned(max(relative, known or 0.0), step, least, max(error, usual_error(method, hood.epsilon)))


def _rms(values: Array) -> float:
    finite = values[np.isfinite(values)]
    return float(np.sqrt(np.mean(finite**2))) if finite.size else 0.0


def _contrasts(order: int) -> Array:
    """Return the divided differences of an order over the seven values, scaled to the variance that the noise has."""
    rows = np.zeros((7 - order, 7))
    for first, row in enumerate(rows):
        for i in range(first, first + order + 1):
            row[i] = 1 / math.prod(OFFSETS[i] - OFFSETS[j] for j in range(first, first + order + 1) if j != i)
        row /= np.linalg.norm(row)
    return rows


def _table_noise(table: Array) -> Array:
    """Estimate the noise of each output from seven values, shape (7, m); 0 where none is seen.

    Scaled differences of noise are alike in all orders. Those of a smooth function shrink with the order. Those of a
    kink do not, but it bends in one place and to one side.
    """
    variances = []
    for order in range(2, 7):
        differences = _contrasts(order) @ table
        variances.append(np.mean(differences**2, axis=0))
        if order == 2:
            visible = np.where(np.abs(differences) > np.abs(differences).max(axis=0) / 8, differences, 0.0)
            both_signs = (visible.max(axis=0) > 0) & (visible.min(axis=0) < 0)
            kink = ~both_signs & (np.count_nonzero(visible, axis=0) <= 2)
    late = np.mean(variances[2:], axis=0)
    return np.where(~kink & (late >= variances[1] / 64), np.sqrt(late), 0.0)
