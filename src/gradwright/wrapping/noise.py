"""How finely a foreign function is computed, and how strongly it curves: what a step must be chosen by.

A solver that stops at a tolerance, single precision inside or a result that is printed with few digits leave noise that
is far above rounding. It is told from seven equally spaced values by a table of differences: those of a smooth function
die out with their order, those of noise do not (Moré and Wild, SIAM J. Sci. Comput. 33 (2011) 1292). Two more values at
a wider distance give the second and third derivatives.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from gradwright.wrapping.points import Array, Neighbourhood, np
from gradwright.wrapping.stencils import Method, lengths, relative_step

WIDE = 1e-2
"""The largest relative change of the arguments that measuring makes."""
SPACING = 1e-6
"""The relative spacing of the seven values in double precision."""
ALIKE = 4.0
"""Estimates of the noise from differences of three successive orders agree within this factor."""


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


def measured(method: Method, hood: Neighbourhood, down: Array, up: Array) -> Learned:
    """Measure noise, slope and curvature along one direction in which all variables move.

    It costs 8 evaluations, and 6 more for each time that nothing moves.
    """
    least, spacing = 0.0, min(WIDE, SPACING * (hood.epsilon / np.finfo(np.float64).eps) ** (1 / 3))
    while True:
        direction = _direction(hood, lengths(hood, least), down, up)
        rows = _line(hood, direction, [k * spacing for k in (-3, -2, -1, 1, 2, 3)], down, up)
        table = np.stack([*rows[:3], hood.f, *rows[3:]])
        if not direction.any() or _moves(table, hood.epsilon):
            break
        if spacing < WIDE:
            spacing = min(WIDE, 100 * spacing)
        elif 0 < np.abs(direction).max() < 1:
            least = min(1.0, 100 * float(np.abs(direction).max()))
        else:
            return stated(method, 0.0, hood.epsilon)
    if not direction.any():
        return stated(method, 0.0, hood.epsilon)
    wide = _line(hood, direction, [-WIDE, WIDE], down, up) if spacing < WIDE / 8 else None
    return _concluded(method, hood, table, spacing, wide, least, int(np.count_nonzero(direction)))


def _direction(hood: Neighbourhood, scales: Array, down: Array, up: Array) -> Array:
    """Return a direction of random signs, shorter where bounds are near."""
    signs = np.random.default_rng(20110).choice([-1.0, 1.0], size=scales.size)
    return signs * np.minimum(scales, np.minimum(down, up) / (4 * WIDE))


def _line(hood: Neighbourhood, direction: Array, steps: list[float], down: Array, up: Array) -> list[Array]:
    lower, upper = hood.x - down, hood.x + up
    points = [hood.everywhere(np.clip(hood.rounded(hood.x + step * direction), lower, upper)) for step in steps]
    return hood.at(points)


def _moves(table: Array, epsilon: float) -> bool:
    """Tell whether any output moves by more than rounding."""
    with np.errstate(invalid="ignore"):
        return bool((np.abs(table - table[3]) > 8 * epsilon * np.abs(table[3])).any())


def _concluded(
    method: Method,
    hood: Neighbourhood,
    table: Array,
    spacing: float,
    wide: list[Array] | None,
    least: float,
    moving: int,
) -> Learned:
    """Put noise, slope and curvature together; every output counts relative to the size of its array."""
    with np.errstate(all="ignore"):
        noise = np.maximum(_table_noise(table), hood.epsilon * np.abs(table).max(axis=0))
        slope = (table[6] - table[0]) / (6 * spacing)
        curvature, third = np.zeros_like(slope), np.zeros_like(slope)
        # What is too small to be seen behind the noise is at most so large, and taken to be as large as f at most.
        unseen_curvature, unseen_third = 16 / WIDE**2, 8 / (spacing * WIDE**2)
        if wide is not None:
            curvature = np.abs(wide[1] - 2 * hood.f + wide[0]) / WIDE**2
            curvature = np.where(curvature > unseen_curvature * noise, curvature, 0.0)
            third = 6 * np.abs((wide[1] - wide[0]) / (2 * WIDE) - slope) / WIDE**2
            third = np.where(third > unseen_third * noise, third, 0.0)
        known = np.isfinite(noise + slope + curvature + third)
    totals = np.zeros(4)
    for parts in zip(*[hood.split(each) for each in (noise, slope, curvature, third, known, hood.f)]):
        mask = parts[4]
        if not mask.any():
            continue
        rms = [float(np.sqrt(np.mean(part[mask] ** 2))) for part in parts[:4]]
        size = max(float(np.sqrt(np.mean(parts[5][mask] ** 2))), rms[1] / math.sqrt(moving))
        if size > 0:
            totals = np.maximum(totals, np.array(rms) / size)
    relative, steepness, second, third_size = (float(total) for total in totals)
    if relative == 0:
        return stated(method, 0.0, hood.epsilon)
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
    if method == "cs":
        return Learned(relative, step, least, hood.epsilon)
    each = max(steepness / math.sqrt(moving), 1e-6)
    return Learned(relative, step, least, max(min(1.0, sum(errors) / each), usual_error(method, hood.epsilon)))


def _table_noise(table: Array) -> Array:
    """Estimate the noise of each output from seven equally spaced values, shape (7, m); 0 where none is seen."""
    sigmas, noise = [], np.zeros(table.shape[1])
    found = np.zeros(table.shape[1], dtype=bool)
    for order in range(1, 7):
        table = table[1:] - table[:-1]
        gamma = math.factorial(order) ** 2 / math.factorial(2 * order)
        sigmas.append(np.sqrt(gamma * np.mean(table**2, axis=0)))
        if order == 2:
            # The bend of a kink has one sign, noise has both.
            visible = np.where(np.abs(table) > np.abs(table).max(axis=0) / 8, table, 0.0)
            irregular = (visible.max(axis=0) > 0) & (visible.min(axis=0) < 0)
    for order in range(4):
        window = np.stack(sigmas[order : order + 3])
        settled = irregular & (window.max(axis=0) <= ALIKE * window.min(axis=0)) & ~found
        noise, found = np.where(settled, sigmas[order], noise), found | settled
    return noise
