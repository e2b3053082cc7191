"""Derivatives by simultaneous perturbation: random estimates whose cost does not grow with the variables."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from gradwright.errors import OptionError
from gradwright.wrapping.points import Array, Caller, Evaluate, Neighbourhood
from gradwright.wrapping.stencils import by_place, is_count, is_number, is_positive, spread


def spsa(num_samples: int = 16, *, step: Any = 1e-2, seed: int = 0) -> Spsa:
    """Make a random estimate of derivatives, for ``gw.external(..., derivative=gw.spsa(16, step=1e-2, seed=0))``.

    All variables are moved at once along random signs d, and the estimates of ``num_samples`` pairs are averaged::

        gradient = mean of d <g, f(x + step d) - f(x - step d)> / (2 step)

    A gradient costs 2 num_samples evaluations however many variables there are, and is right on average only: its
    relative error is about sqrt((n - 1) / num_samples) for n variables. That serves a stochastic optimiser and nothing
    else; ``gw.fd`` gives the derivative itself. The signs follow from the seed and the arguments, so that the same call
    has the same gradient, and another point gets other signs. For given signs the estimate is linear in the cotangent,
    and forward mode uses the same ones: both modes are of one matrix.

    Arguments:
        num_samples: pairs of evaluations.
        step: how far each variable moves, in its own unit; a dict gives it by the name or position of the argument.
        seed: of the signs.

    Raises:
        OptionError: an option has a value that it cannot have.

    Source: Spall, IEEE Trans. Automat. Control 37 (1992) 332.

    Example:
        >>> import numpy as np
        >>> from gradwright.wrapping.simultaneous import spsa
        >>> def f(points):
        ...     return [(np.array(x @ x),) for (x,) in points]
        >>> x = np.array([3.0])
        >>> [gradient] = spsa(1, step=1e-2, seed=0).vjp(f, [x], [0], (np.array(9.0),), [np.array(1.0)])
        >>> np.allclose(gradient, 6.0)
        True
    """
    if not is_count(num_samples, least=1):
        raise OptionError(f"spsa: num_samples is {num_samples!r}; expected a number of pairs from 1.")
    for one in step.values() if isinstance(step, Mapping) else [step]:
        if not (is_number(one) and is_positive(one)):
            raise OptionError(f"spsa: step is {one!r}; expected a finite number above 0.")
    if not is_count(seed, least=0):
        raise OptionError(f"spsa: seed is {seed!r}; expected an integer from 0.")
    return Spsa(num_samples, step, seed)


@dataclass
class Spsa:
    """A random estimate of the derivatives of one function; :func:`spsa` makes it and says what the options mean."""

    num_samples: int
    step: Any
    seed: int
    workers: Any = None
    caller: Caller = field(default_factory=Caller, repr=False)
    _size: int = field(default=0, repr=False, compare=False)

    def of(self, function: str, arguments: Sequence[str]) -> Spsa:
        """Return an estimate for a function of this name and arguments."""
        return replace(self, caller=Caller(function, tuple(arguments)), _size=0)

    @property
    def accuracy(self) -> float:
        """The typical relative error, sqrt((n - 1) / num_samples); infinite before the number of variables is known."""
        return math.sqrt((self._size - 1) / self.num_samples) if self._size else math.inf

    def vjp(
        self,
        evaluate: Evaluate,
        values: Sequence[Any],
        places: Sequence[int],
        outs: Sequence[Array],
        cotangents: Sequence[Array | None],
    ) -> list[Array]:
        """Return the estimated gradient by each differentiable argument; arguments as for ``FiniteDifferences.vjp``."""
        hood = Neighbourhood(evaluate, values, places, outs, self.caller)
        cotangent, used = hood.flat_outputs(cotangents)
        total = np.zeros(hood.x.size)
        if hood.x.size and cotangent.any():
            for direction, slope in self._slopes(hood, used):
                total += direction * np.where(cotangent != 0, cotangent * slope, 0.0).sum()
        return hood.by_argument(total / self.num_samples)

    def jvp(
        self,
        evaluate: Evaluate,
        values: Sequence[Any],
        places: Sequence[int],
        outs: Sequence[Array],
        tangents: Sequence[Array | None],
    ) -> tuple[Array, ...]:
        """Return the estimated derivative of each output along a direction, by the same matrix as :meth:`vjp`."""
        hood = Neighbourhood(evaluate, values, places, outs, self.caller)
        tangent = hood.flat_variables(tangents)
        total = np.zeros(hood.f.size)
        if tangent.any():
            for direction, slope in self._slopes(hood, np.ones(hood.f.size, dtype=bool)):
                total += slope * (direction @ tangent)
        return hood.by_output(total / self.num_samples)

    def _slopes(self, hood: Neighbourhood, used: Array) -> Iterator[tuple[Array, Array]]:
        """Give, for each pair, the inverse of the move of each variable and half the change of each output."""
        self._size = max(self._size, hood.x.size)
        steps = spread("step", by_place("step", self.step, hood, np.nan), hood)
        if np.isnan(steps).any():
            raise OptionError(
                f"{self.caller.function}: the step of spsa has no entry for the argument of "
                f"{hood.variable(int(np.argmax(np.isnan(steps))))}; expected one for each differentiable argument."
            )
        digest = hashlib.blake2b(hood.x.tobytes(), digest_size=16).digest()
        random = np.random.default_rng([self.seed, int.from_bytes(digest, "little")])
        for start, stop in hood.chunks(self.num_samples, 2):
            moves = steps * random.choice([-1.0, 1.0], size=(stop - start, hood.x.size))
            ends = [hood.rounded(hood.x + sign * move) for move in moves for sign in (1, -1)]
            found = hood.at([hood.everywhere(end) for end in ends])
            for number, move in enumerate(moves):
                plus, minus = found[2 * number : 2 * number + 2]
                for out in (plus, minus):
                    hood.require_finite(out, used, lambda: "a point beside this one, all elements moved")
                with np.errstate(invalid="ignore"):
                    yield 1 / move, (plus - minus) / 2
