"""Where a function is evaluated for a difference, and with which weights.

With offsets a and b from the point x, the derivative at x of the parabola through the three values is::

    D = (f(x + a) - f(x)) b / (a (b - a)) - (f(x + b) - f(x)) a / (b (b - a))

which is the central difference for b = -a, and the one-sided difference of second order for b = 2 a. The offsets are
those that the arguments can have in their dtype: (x + h) - x and not h.
"""

from __future__ import annotations

import numbers
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np

from gradwright.errors import DomainError, OptionError
from gradwright.wrapping.points import Array, Neighbourhood

Method: TypeAlias = Literal["3-point", "2-point", "cs"]

LARGEST = 0.25
"""The largest relative step that noise can ask for."""
NEARLY_ZERO = 1e-9
"""An element that is smaller than this fraction of the typical one is a zero with rounding."""
MANY = 100
"""So many elements are taken to be of one unit."""
LEAST_ROOM = 0.25
"""A step that bounds shorten to less than this fraction of itself is refused: noise would decide the result."""


@dataclass(frozen=True)
class Stencil:
    """New values of each variable, shape (points, n), and the weights of what they change, of the same shape."""

    new: Array
    weights: Array


def relative_step(method: Method, noise: float) -> float:
    """Return the step, relative to the length on which f varies, that balances truncation and noise.

    ``2 sqrt(e)`` for one-sided and ``cbrt(3 e)`` for central differences, with the relative noise e, where the
    derivatives of f are about as large as f (Gill, Murray and Wright, Practical Optimization, 1981, section 8.6).
    """
    step = 2 * noise**0.5 if method == "2-point" else (3 * noise) ** (1 / 3)
    return float(min(LARGEST, step))


def lengths(hood: Neighbourhood, least: float = 0.0, shortest: float | None = None) -> Array:
    """Return the length on which f is taken to vary with each variable: |x|, or a typical one where x is nearly 0.

    Typical is the rms of the argument, 1 at most, and 1 for an argument of zeros. Elements of one argument may be of
    different units, or small by chance; so small ones keep their own length down to a fraction of the typical one.

    Arguments:
        hood: the function at a point.
        least: a length that was measured.
        shortest: that fraction; None for one between the errors of truncation and of noise, smaller where there are few
            elements, among which none is small by chance.
    """
    if shortest is None:
        shortest = hood.epsilon**0.25 * min(1.0, hood.x.size / MANY)
    parts = []
    for array in hood.arrays:
        flat = np.abs(np.ravel(array)).astype(np.float64)
        typical = (min(1.0, float(np.sqrt(np.mean(flat**2)))) or 1.0) if flat.size else 1.0
        own = np.where(flat > NEARLY_ZERO * typical, np.maximum(flat, shortest * typical), typical)
        parts.append(np.maximum(own, least))
    return np.concatenate(parts) if parts else np.zeros(0)


def is_number(value: Any) -> bool:
    """Tell whether an option is one real number."""
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def is_count(value: Any, least: int) -> bool:
    """Tell whether an option is an integer, and not less than the least."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def is_positive(value: Any) -> bool:
    """Tell whether an option has finite numbers above 0."""
    try:
        array = np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError):
        return False
    return bool(np.isfinite(array).all() and (array > 0).all())


def rooms(hood: Neighbourhood, bounds: Any) -> tuple[Array, Array]:
    """Return how far each variable can go down and up.

    Raises:
        DomainError: the point itself is outside the bounds.
    """
    pairs = by_place("bounds", bounds, hood, (None, None))
    sides = []
    for side, unbounded in ((0, -np.inf), (1, np.inf)):
        limits = [unbounded if pair is None or pair[side] is None else pair[side] for pair in pairs]
        # A bound is meant in the precision that the function computes in.
        sides.append(hood.rounded(spread("bounds", limits, hood)))
    lower, upper = sides
    outside = np.flatnonzero((hood.x < lower) | (hood.x > upper))
    if outside.size:
        i = int(outside[0])
        raise DomainError(
            f"{hood.caller.function}: {hood.variable(i)} is {hood.x[i]}, outside the bounds {lower[i]} to {upper[i]} "
            "that gw.fd was given; expected a point inside; correct the bounds or the argument."
        )
    return hood.x - lower, upper - hood.x


def by_place(option: str, given: Any, hood: Neighbourhood, default: Any) -> list[Any]:
    """Return an option for each differentiable argument; a dict gives it by their names or positions.

    Raises:
        OptionError: a key of the dict is no differentiable argument.
    """
    if not isinstance(given, Mapping):
        return [default if given is None else given for _ in hood.places]
    names = dict(enumerate(hood.caller.arguments))
    known = {key for place in hood.places for key in (place, names.get(place)) if key is not None}
    for key in given:
        if key not in known:
            raise OptionError(
                f"{hood.caller.function}: {option} has an entry for {key!r}; expected differentiable arguments "
                f"({', '.join(map(repr, sorted(known, key=str)))}); correct the key."
            )
    return [given.get(place, given.get(names.get(place), default)) for place in hood.places]


def spread(option: str, given: list[Any], hood: Neighbourhood) -> Array:
    """Return one number for each variable from a number or an array for each argument.

    Raises:
        OptionError: an array does not fit its argument.
    """
    parts = []
    for one, array, place in zip(given, hood.arrays, hood.places):
        try:
            parts.append(np.broadcast_to(np.asarray(one, dtype=np.float64), array.shape).ravel())
        except ValueError:
            raise OptionError(
                f"{hood.caller.function}: {option} has the shape {np.shape(one)} for {hood.caller.argument(place)} of "
                f"shape {array.shape}; expected a number or an array that fits it; use a dict by argument for several."
            ) from None
    return np.concatenate(parts) if parts else np.zeros(0)


def offsets(method: Method, h: Array, down: Array, up: Array) -> Array:
    """Return the offsets of the points, shape (points, n), that stay within the room there is.

    A step that has no room is shortened; a central difference next to a bound becomes one-sided.
    """
    if method == "2-point":
        backward = (up < h) & (down > up)
        return np.where(backward, -np.minimum(h, down), np.minimum(h, up))[None]
    central = np.minimum(h, np.minimum(down, up))
    sign = np.where(up >= down, 1.0, -1.0)
    one_sided = np.minimum(h, np.maximum(down, up) / 2)
    inside = central >= one_sided / 4  # a one-sided difference has four times the noise
    first = np.where(inside, central, sign * one_sided)
    return np.stack([first, np.where(inside, -central, 2 * sign * one_sided)])


def weights_of(shifts: Array) -> Array:
    """Return the weights for offsets of shape (points, n); those of a direction are one variable."""
    if len(shifts) == 1:
        return 1 / shifts
    a, b = shifts
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(np.sign(a) != np.sign(b), np.stack([1 / (a - b), -1 / (a - b)]), _parabola(a, b))


def _parabola(a: Array, b: Array) -> Array:
    return np.stack([b / (a * (b - a)), -a / (b * (b - a))])


def columns(method: Method, hood: Neighbourhood, h: Array, down: Array, up: Array) -> Stencil:
    """Return the stencil of each variable for steps ``h``.

    Raises:
        DomainError: bounds leave no room for a step, or a step is lost in rounding.
    """
    wanted = offsets(method, h, down, up)
    new = np.stack([np.clip(hood.rounded(hood.x + each), hood.x - down, hood.x + up) for each in wanted])
    shifts = new - hood.x
    reach = np.abs(shifts).min(axis=0)
    bad = np.flatnonzero(~(reach >= LEAST_ROOM * h) | (reach == 0))
    if bad.size:
        _refuse(hood, int(bad[0]), h, down, up)
    return Stencil(new, weights_of(shifts))


def _refuse(hood: Neighbourhood, i: int, h: Array, down: Array, up: Array) -> None:
    what = f"{hood.caller.function}: {hood.variable(i)} is {hood.x[i]}"
    if min(down[i], up[i]) < h[i]:
        raise DomainError(
            f"{what} with the bounds {hood.x[i] - down[i]} to {hood.x[i] + up[i]}, which leave no room for a step of "
            f"{h[i]:.3g}; expected wider bounds, a smaller `abs_step=`, or a smaller `noise=`."
        )
    raise DomainError(
        f"{what}, which a step of {h[i]:.3g} does not change; expected a step above its rounding; give a larger "
        "`abs_step=`."
    )
