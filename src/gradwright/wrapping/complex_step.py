"""The complex step: f'(x) = Im f(x + i h) / h with a tiny h, to full precision.

Squire and Trapp, SIAM Rev. 40 (1998) 110. It is right only where f is analytic in code: ``abs``, ``norm``, a
conjugation, a real work array or a float() inside drop the imaginary part, and the derivative is zero without an error.
So it is compared with central differences before it is used.
"""

from __future__ import annotations

import numpy as np

from gradwright.errors import RuleError, describe_exception
from gradwright.wrapping.noise import measured
from gradwright.wrapping.points import Array, Neighbourhood
from gradwright.wrapping.stencils import lengths, relative_step

STEP = 1e-20
"""Relative to the length on which f varies; its square is lost in rounding, and it is far from underflow in float32."""
TOLERANCE = 1e-5
"""How well the complex step and the best of some central differences agree, where f has no noise."""


def at(hood: Neighbourhood, points: list[list[object]]) -> list[Array]:
    """Evaluate complex points.

    Raises:
        RuleError: the function does not take complex values, or returns real ones.
    """
    try:
        found = hood.at(points)
    except Exception as error:
        raise RuleError(
            f"{hood.caller.function}: it failed when gw.fd(method='cs') called it with complex values "
            f"({describe_exception(error)}); expected a function that takes them; use method='3-point'."
        ) from error
    if any(not np.iscomplexobj(each) for each in found):
        raise RuleError(
            f"{hood.caller.function}: it returned real values for the complex ones of gw.fd(method='cs'), so that the "
            "derivative is lost; expected complex ones (a real work array, float(), abs or norm inside drops them); "
            "use method='3-point'."
        )
    return found


def verify(hood: Neighbourhood, down: Array, up: Array, noise: float | None) -> None:
    """Compare the complex step along one random direction with central differences, at 9 evaluations.

    Where they disagree and the noise was not stated, it is measured before anything is said.

    Raises:
        RuleError: they disagree.
    """
    base = max(1e-5, relative_step("3-point", hood.epsilon) / 5)
    steps = [base * factor for factor in ((1, 10, 100, 1000) if base < 1e-4 else (1, 3, 10, 30))]
    random, scales = np.random.default_rng(1998), lengths(hood, shortest=0.0)
    direction = random.choice([-1.0, 1.0], scales.size) * random.uniform(0.5, 1.0, scales.size)
    direction = direction * np.minimum(scales, np.minimum(down, up) / steps[-1])
    [analytic] = at(hood, [hood.everywhere(hood.x + 1j * STEP * direction)])
    analytic = analytic.imag / STEP
    lower, upper = hood.x - down, hood.x + up
    places = [np.clip(hood.rounded(hood.x + s * direction), lower, upper) for step in steps for s in (step, -step)]
    values = hood.at([hood.everywhere(place) for place in places])
    with np.errstate(invalid="ignore", over="ignore"):
        slopes = [(plus - minus) / (2 * step) for step, plus, minus in zip(steps, values[::2], values[1::2])]
    known = max(noise or 0.0, hood.epsilon)
    if _apart(hood, analytic, slopes, steps, known) is not None and noise is None:
        known = measured("3-point", hood, down, up).noise
    wrong = _apart(hood, analytic, slopes, steps, known)
    if wrong is not None:
        difference = min((slope[wrong] for slope in slopes), key=lambda slope: abs(slope - analytic[wrong]))
        raise RuleError(
            f"{hood.caller.function}: along a random direction the complex step gives {analytic[wrong]:.6g} for the "
            f"derivative of {hood.output(wrong)}, and differences give {difference:.6g}; expected the same (abs, norm, "
            "conj, a real work array or float() inside drop the imaginary part); use method='3-point', or state the "
            "`noise` of the function if it is that."
        )


def _apart(hood: Neighbourhood, analytic: Array, slopes: list[Array], steps: list[float], noise: float) -> int | None:
    """Return an output for which no step gives what the complex step gives, or None."""
    tolerance = max(TOLERANCE, 100 * noise ** (2 / 3))
    least = relative_step("3-point", noise) / 10
    floor = 16 * noise * sizes(hood, hood.f)
    excess = np.full(hood.f.size, np.inf)
    with np.errstate(invalid="ignore", over="ignore"):
        for slope, step in zip(slopes, steps):
            if step >= least or step == steps[-1]:
                allowed = tolerance * np.maximum(np.abs(analytic), np.abs(slope)) + floor / step
                here = np.abs(analytic - slope) - allowed
                excess = np.fmin(excess, np.where(np.isfinite(slope), here, np.inf))
    # Where no difference is finite there is nothing to compare with.
    excess = np.where(np.isinf(excess), -1.0, excess)
    wrong = excess > 0
    return int(np.argmax(np.where(wrong, excess, -np.inf))) if wrong.any() else None


def sizes(hood: Neighbourhood, flat: Array) -> Array:
    """Return how large each output is, with the typical size of its array: what its rounding is relative to."""
    with np.errstate(invalid="ignore", over="ignore"):
        parts = [np.abs(part) for part in hood.split(flat)]
        return np.concatenate(
            [part + (np.sqrt(np.nanmean(part**2)) if np.isfinite(part).any() else 0.0) for part in parts]
        )
