"""Derivatives of functions that offer none: finite differences and the complex step.

``gw.fd`` and ``gw.spsa`` make objects for ``gw.external(..., derivative=)``. They see arrays only: values of the
arguments, and a function that evaluates many points, which workers can do at the same time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, get_args

import numpy as np

from gradwright.errors import DomainError, OptionError, unknown_choice
from gradwright.wrapping import complex_step
from gradwright.wrapping.columns import Pattern, Sweep, pattern_of
from gradwright.wrapping.noise import Learned, measured, shorter, stated
from gradwright.wrapping.points import Array, Caller, Evaluate, Neighbourhood
from gradwright.wrapping.simultaneous import spsa as spsa
from gradwright.wrapping.stencils import (
    LEAST_ROOM,
    Method,
    Stencil,
    by_place,
    columns,
    is_number,
    is_positive,
    lengths,
    offsets,
    rooms,
    spread,
    weights_of,
)

SAFETY = 10.0
"""By how much the promised error is above the estimated one."""


def fd(
    method: Method = "3-point",
    *,
    rel_step: Any = None,
    abs_step: Any = None,
    noise: float | None = None,
    sparsity: Any = None,
    bounds: Any = None,
    workers: Any = None,
) -> FiniteDifferences:
    """Make derivatives by finite differences, for ``gw.external(..., derivative=gw.fd())``.

    A step h has an error of truncation and one of noise, eps being the noise of f::

        "3-point"   (f(x + h) - f(x - h)) / 2h     h^2 |f'''| / 6 + eps / h    best h = (3 eps / |f'''|)^(1/3)
        "2-point"   (f(x + h) - f(x)) / h          h |f''| / 2 + 2 eps / h     best h = 2 (eps / |f''|)^(1/2)
        "cs"        Im f(x + ih) / h               none                        h = 1e-20

    so that the best relative error is about eps^(2/3), eps^(1/2) and eps. The noise is not that of rounding where f
    stops at a tolerance, computes in single precision or reads printed digits: with a tolerance of 1e-6 inside f, the
    step that is best for rounding is off by 3 % and more. Unless a step is given, the curvature and, where it is not
    stated, the noise are therefore measured when the function is first used with arguments of some shapes and magnitude
    (a power of 2), at 8 evaluations or a few more that change the arguments by up to 1 % (Moré and Wild 2011). One
    column of the Jacobian takes 2, 1 and 1 evaluations, and so does a derivative in forward mode. Those of a gradient
    are made in one batch, in parallel where there are workers.

    Arguments:
        method: the formula. ``"cs"`` needs a function that is analytic in code; it is compared with central differences
            once, and refused where ``abs``, ``norm`` or a real work array drop the imaginary part.
        rel_step: the step relative to |x| (a number, an array that fits the argument, or a dict of these by the name or
            position of the argument). An element that is 0 takes it relative to min(1, rms of the argument).
        abs_step: the step itself, given likewise.
        noise: relative noise of the values of f, as a solver's tolerance; 0 for rounding only. None: it is measured,
            or, with a step given, taken to be rounding.
        sparsity: which entries of the Jacobian can differ from zero, shape (out.size, x.size): a boolean array, a SciPy
            sparse matrix, or a function of the two shapes that returns one (tuples of shapes where there are several
            outputs or arguments). Columns that share no row are moved together. That it is complete is checked.
        bounds: a pair (lower, upper) of numbers or arrays, None for no bound, or a dict of pairs by argument. f is
            never evaluated outside; next to a bound a difference is one-sided, of the same order.
        workers: what evaluates the points in parallel, as for ``gw.external``.

    Returns:
        An object for ``derivative=``; its ``accuracy`` is the relative error that it promises for a smooth function.

    Raises:
        OptionError: an option has a value that it cannot have.

    Sources: Gill, Murray and Wright, Practical Optimization (1981), section 8.6; Curtis, Powell and Reid (1974); Squire
    and Trapp (1998).

    Example:
        >>> import numpy as np
        >>> from gradwright.wrapping.derivatives import fd
        >>> def f(points):
        ...     return [(np.sin(x),) for (x,) in points]
        >>> x = np.array([0.0, 1.0])
        >>> [gradient] = fd(noise=0).vjp(f, [x], [0], (np.sin(x),), [np.ones(2)])
        >>> np.abs(gradient - np.cos(x)).max() < 1e-9
        np.True_
        >>> fd("2-point", noise=1e-6).accuracy
        0.01
    """
    if method not in get_args(Method):
        raise unknown_choice("fd: method", method, get_args(Method))
    if rel_step is not None and abs_step is not None:
        raise OptionError("fd: got both rel_step and abs_step; expected one of them; leave the other away.")
    if noise is not None and not (is_number(noise) and 0 <= noise < 1):
        raise OptionError(
            f"fd: noise is {noise!r}; expected a relative noise from 0 to 1, such as a tolerance of 1e-8."
        )
    for option, steps in (("rel_step", rel_step), ("abs_step", abs_step)):
        for one in steps.values() if isinstance(steps, Mapping) else [steps]:
            if one is not None and not is_positive(one):
                raise OptionError(f"fd: {option} is {one!r}; expected finite numbers above 0.")
    for pair in bounds.values() if isinstance(bounds, Mapping) else [bounds]:
        if pair is not None and not (isinstance(pair, (tuple, list)) and len(pair) == 2):
            raise OptionError(
                f"fd: bounds is {pair!r}; expected a pair (lower, upper); write (0.0, None) for one side."
            )
    return FiniteDifferences(method, rel_step, abs_step, noise, sparsity, bounds, workers)


@dataclass
class _Shape:
    """What is known for arguments of some shapes; steps for each magnitude that the arguments had."""

    pattern: Pattern | None
    learned: dict[tuple[int, ...], Learned] = field(default_factory=dict)
    covered: bool = False


@dataclass
class FiniteDifferences:
    """Differences of one function; :func:`fd` makes it and says what the options mean."""

    method: Method
    rel_step: Any = None
    abs_step: Any = None
    noise: float | None = None
    sparsity: Any = None
    bounds: Any = None
    workers: Any = None
    caller: Caller = field(default_factory=Caller, repr=False)
    _known: dict[Any, _Shape] = field(default_factory=dict, repr=False, compare=False)
    _last: Learned | None = field(default=None, repr=False, compare=False)
    """What was known where a derivative was taken last."""

    def of(self, function: str, arguments: Sequence[str]) -> FiniteDifferences:
        """Return differences for one function, named in messages; what is learned of one is not used for another."""
        return replace(self, caller=Caller(function, tuple(arguments)), _known={}, _last=None)

    @property
    def accuracy(self) -> float:
        """The relative error of the last derivative of a smooth function; before the first, what is usual."""
        last = self._last or stated(self.method, self.noise or 0.0, float(np.finfo(np.float64).eps))
        return min(1.0, SAFETY * last.error)

    def vjp(
        self,
        evaluate: Evaluate,
        values: Sequence[Any],
        places: Sequence[int],
        outs: Sequence[Array],
        cotangents: Sequence[Array | None],
    ) -> list[Array]:
        """Return the gradient by each differentiable argument; all points are evaluated together, as memory allows.

        Arguments:
            evaluate: gives the outputs at each of many lists of arguments.
            values: the arguments, arrays and constants.
            places: positions of the differentiable ones.
            outs: the outputs at ``values``.
            cotangents: one for each output, None for one that was not used.

        Raises:
            ArgumentError: a differentiable argument or an output is not real and floating.
            DomainError: the function is not finite at a point, or bounds leave no room.
            RuleError: the complex step or the pattern does not fit the function.
        """
        hood = Neighbourhood(evaluate, values, places, outs, self.caller)
        cotangent, used = hood.flat_outputs(cotangents)
        if hood.x.size == 0 or not cotangent.any():
            return hood.by_argument(np.zeros(hood.x.size))
        down, up = rooms(hood, self.bounds)
        shape = self._shape(hood, down, up)
        learned = self._learned(hood, shape, down, up)
        h = self._steps(hood, learned)
        stencil = self._stencil(hood, h, down, up)
        sweep = Sweep(hood, stencil, self._change(hood), shape.pattern, self._noise(hood, learned))
        if shape.pattern is None or shape.covered:
            return hood.by_argument(sweep.pull(cotangent, used)[0])
        random = np.random.default_rng(1974)
        direction = random.choice([-1.0, 1.0], h.size) * random.uniform(0.5, 1.0, h.size)
        direction = direction * np.minimum(h, np.minimum(down, up))
        change, probe = self._along(hood, direction, down, up, used)
        gradient, along, size = sweep.pull(cotangent, used, probe)
        change = np.where(used, change, along)
        for row in sweep.apart(change, along, size, max(1e-12, SAFETY * learned.error)):
            # Truncation sets them apart as well; so the columns outside the pattern are moved alone.
            outside = sweep.outside(row)
            sweep.require_still(self._along(hood, np.where(outside, direction, 0.0), down, up, used)[0], row)
        shape.covered = True
        return hood.by_argument(gradient)

    def jvp(
        self,
        evaluate: Evaluate,
        values: Sequence[Any],
        places: Sequence[int],
        outs: Sequence[Array],
        tangents: Sequence[Array | None],
    ) -> tuple[Array, ...]:
        """Return the derivative of each output along one direction; an output of integers does not move.

        Arguments:
            evaluate: as for :meth:`vjp`, and so are ``values``, ``places`` and ``outs``.
            tangents: one for each differentiable argument, None for one that does not move.

        Raises:
            ArgumentError, DomainError, RuleError: as :meth:`vjp`.
        """
        hood = Neighbourhood(evaluate, values, places, outs, self.caller)
        tangent = hood.flat_variables(tangents)
        if not tangent.any() or not hood.f.size or not np.isfinite(tangent).all():
            return hood.by_output(np.full(hood.f.size, 0.0 if not tangent.any() else np.nan))
        down, up = rooms(hood, self.bounds)
        learned = self._learned(hood, self._shape(hood, down, up), down, up)
        step = 1 / np.max(np.abs(tangent) / self._steps(hood, learned))
        if self.method == "cs":
            change, _ = self._along(hood, step * tangent, down, up, np.ones(hood.f.size, dtype=bool))
            return hood.by_output(change / step)
        return hood.by_output(self._directional(hood, tangent, step, down, up))

    # --- one function at one point --------------------------------------------------------------------

    def _shape(self, hood: Neighbourhood, down: Array, up: Array) -> _Shape:
        """Return what is known for these shapes; the complex step is compared where nothing is."""
        if hood.key not in self._known:
            pattern = None if self.sparsity is None else pattern_of(self.sparsity, hood)
            if self.method == "cs":
                complex_step.verify(hood, down, up, self.noise)
            self._known[hood.key] = _Shape(pattern)
        return self._known[hood.key]

    def _learned(self, hood: Neighbourhood, shape: _Shape, down: Array, up: Array) -> Learned:
        """Return what is known for arguments of this magnitude; measure where nothing is."""
        if hood.magnitude not in shape.learned:
            shape.learned[hood.magnitude] = self._learn(hood, down, up)
        self._last = shape.learned[hood.magnitude]
        return self._last

    def _learn(self, hood: Neighbourhood, down: Array, up: Array) -> Learned:
        given = self.rel_step if self.abs_step is None else self.abs_step
        if given is None and self.method != "cs":
            return measured(self.method, hood, down, up, self.noise)
        learned = stated(self.method, self.noise or 0.0, hood.epsilon)
        learned.error *= shorter(hood) if self.method != "cs" else 1.0
        if given is not None and self.method != "cs":
            relative = self._steps(hood, learned) / lengths(hood)
            order = 2 if self.method == "3-point" else 1
            learned.error = float(learned.noise / relative.min() + relative.max() ** order)
        return learned

    def _steps(self, hood: Neighbourhood, learned: Learned) -> Array:
        """Return the step of each variable."""
        scales = lengths(hood, learned.least)
        usual = scales * (complex_step.STEP if self.method == "cs" else learned.step)
        if self.abs_step is not None:
            given = spread("abs_step", by_place("abs_step", self.abs_step, hood, np.nan), hood)
        else:
            relative = spread("rel_step", by_place("rel_step", self.rel_step, hood, np.nan), hood)
            given = relative * np.where(hood.x != 0, np.abs(hood.x), scales)
        return np.where(np.isnan(given), usual, given)

    def _stencil(self, hood: Neighbourhood, h: Array, down: Array, up: Array) -> Stencil:
        if self.method == "cs":
            return Stencil((hood.x + 1j * h)[None], (1 / h)[None])
        return columns(self.method, hood, h, down, up)

    def _change(self, hood: Neighbourhood) -> Any:
        return np.imag if self.method == "cs" else lambda f: f - hood.f

    def _noise(self, hood: Neighbourhood, learned: Learned) -> Any:
        """Return what gives the noise of changes."""
        if self.method == "cs":
            return lambda change: hood.epsilon * complex_step.sizes(hood, change)
        constant = learned.noise * complex_step.sizes(hood, hood.f)
        return lambda change: constant

    def _along(self, hood: Neighbourhood, direction: Array, down: Array, up: Array, used: Array) -> tuple[Array, Array]:
        """Return half the change from one side of the point to the other, and the direction that rounding left."""
        if self.method == "cs":
            [out] = complex_step.at(hood, [hood.everywhere(hood.x + 1j * direction)])
            outs, left = [out], direction
        else:
            lower, upper = hood.x - down, hood.x + up
            sides = [np.clip(hood.rounded(hood.x + sign * direction), lower, upper) for sign in (1, -1)]
            outs, left = hood.at([hood.everywhere(side) for side in sides]), (sides[0] - sides[1]) / 2
        for out in outs:
            hood.require_finite(out, used, lambda: "a point beside this one, all elements moved")
        with np.errstate(invalid="ignore"):
            return (outs[0].imag if self.method == "cs" else (outs[0] - outs[1]) / 2), left

    def _directional(self, hood: Neighbourhood, tangent: Array, step: float, down: Array, up: Array) -> Array:
        """Return the derivative along a direction, which is a function of one variable."""
        with np.errstate(divide="ignore", invalid="ignore"):
            forward = np.where(tangent > 0, up / tangent, np.where(tangent < 0, -down / tangent, np.inf))
            backward = np.where(tangent > 0, down / tangent, np.where(tangent < 0, -up / tangent, np.inf))
        room = [np.array([backward.min()]), np.array([forward.min()])]
        shifts = offsets(self.method, np.array([step]), *room)
        if np.abs(shifts).min() < LEAST_ROOM * step:
            blocking = hood.variable(int(np.argmin(np.maximum(forward, backward))))
            raise DomainError(
                f"{self.caller.function}: the bounds of {blocking} leave no room along this direction for a step of "
                f"{step:.3g}; expected wider bounds, a smaller `abs_step=`, or a smaller `noise=`."
            )
        lower, upper = hood.x - down, hood.x + up
        places = [np.clip(hood.rounded(hood.x + shift * tangent), lower, upper) for (shift,) in shifts]
        outs = hood.at([hood.everywhere(place) for place in places])
        everything = np.ones(hood.f.size, dtype=bool)
        for out, (shift,) in zip(outs, shifts):
            hood.require_finite(out, everything, lambda shift=shift: f"{shift:.3g} along the tangent")  # type: ignore[misc]
        with np.errstate(invalid="ignore"):
            terms = [weight * (out - hood.f) for (weight,), out in zip(weights_of(shifts), outs)]
            return sum(terms[1:], terms[0])
