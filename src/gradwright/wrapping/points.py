"""A function of arrays near one point: its variables and outputs as flat vectors, and its values at many points.

Variables are the elements of the differentiable arguments in their order; outputs are the elements of all outputs that
have a derivative. Both are numbered through, whatever the shapes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from gradwright.errors import ArgumentError, DomainError, RuleError

Array: TypeAlias = Any
"""A NumPy array; NumPy is optional, and so are its types."""

Evaluate: TypeAlias = Callable[[list[list[Any]]], list[tuple[Array, ...]]]
"""Gives the outputs for each of many lists of arguments."""

MEMORY = 1 << 26
"""Bytes of arguments and outputs that are in memory at a time while a Jacobian is swept."""


@dataclass(frozen=True)
class Caller:
    """How messages speak of a function and of its arguments."""

    function: str = "function"
    arguments: tuple[str, ...] = ()

    def argument(self, place: int) -> str:
        """Return what an argument is called."""
        return f"`{self.arguments[place]}`" if place < len(self.arguments) else f"argument {place}"


@dataclass
class Neighbourhood:
    """A function around the point where its derivative is wanted.

    Arguments:
        evaluate: gives the outputs at many points.
        values: the arguments at the point, arrays and constants; they are never written to.
        places: positions of the differentiable ones.
        outs: the outputs at the point.
        caller: how messages speak of it.

    Raises:
        ArgumentError: a differentiable argument is not real and floating, or no output is.
    """

    evaluate: Evaluate
    values: Sequence[Any]
    places: Sequence[int]
    outs: Sequence[Array]
    caller: Caller = field(default_factory=Caller)

    def __post_init__(self) -> None:
        self.arrays = [np.asarray(self.values[place]) for place in self.places]
        for place, array in zip(self.places, self.arrays):
            if not np.issubdtype(array.dtype, np.floating):
                raise ArgumentError(
                    f"{self.caller.function}: {self.caller.argument(place)} is of dtype {array.dtype}; differences "
                    "are taken in real floating-point arguments; pass it as float64, or leave it out of `argnums`."
                )
        self.outputs = [np.asarray(out) for out in self.outs]
        self.differentiable = [np.issubdtype(out.dtype, np.floating) for out in self.outputs]
        for index, out in enumerate(self.outputs):
            if np.issubdtype(out.dtype, np.complexfloating):
                raise self.not_real(index)
        if not any(self.differentiable):
            raise self.not_real(0)
        self.ends = np.cumsum([array.size for array in self.arrays])
        self.x = _joined(self.arrays)
        self.f = _joined([out for out, real in zip(self.outputs, self.differentiable) if real])
        dtypes = [each.dtype for each in self.arrays + [o for o, r in zip(self.outputs, self.differentiable) if r]]
        self.epsilon = max(float(np.finfo(dtype).eps) for dtype in dtypes)

    def not_real(self, index: int) -> ArgumentError:
        """Build the error for an output that has no differences."""
        which = "" if len(self.outs) == 1 else f" {index}"
        return ArgumentError(
            f"{self.caller.function}: output{which} is of dtype {self.outputs[index].dtype}; differences are taken of "
            "real floating-point outputs; return a float array (of a complex one its real and imaginary part), or "
            "register a rule."
        )

    @property
    def key(self) -> tuple[Any, ...]:
        """What is learned at one point is used at others of the same shapes."""
        return (
            tuple(self.places),
            tuple((array.shape, array.dtype.str) for array in self.arrays),
            tuple((out.shape, out.dtype.str) for out in self.outputs),
        )

    @property
    def magnitude(self) -> tuple[int, ...]:
        """The size of each differentiable argument as a power of two: the length on which f varies may go with it."""
        sizes = [
            float(np.sqrt(np.mean(np.square(array, dtype=np.float64)))) if array.size else 0.0 for array in self.arrays
        ]
        return tuple([math.frexp(size)[1] if math.isfinite(size) else 0 for size in sizes])

    # --- flat vectors ---------------------------------------------------------------------------------

    def flat_outputs(self, given: Sequence[Array | None]) -> tuple[Array, Array]:
        """Join one array (or None) for each output: the values, 0 where there is none, and where there are some."""
        parts, present = [], []
        for index, (one, out, real) in enumerate(zip(given, self.outputs, self.differentiable)):
            if not real:
                if one is not None:
                    raise self.not_real(index)
                continue
            parts.append(np.zeros(out.size) if one is None else np.broadcast_to(np.asarray(one), out.shape))
            present.append(np.full(out.size, one is not None))
        return _joined(parts), np.concatenate(present)

    def flat_variables(self, given: Sequence[Array | None]) -> Array:
        """Join one array (or None, for zeros) for each differentiable argument."""
        return _joined(
            [
                np.zeros(array.size) if one is None else np.broadcast_to(np.asarray(one), array.shape)
                for one, array in zip(given, self.arrays)
            ]
        )

    def by_argument(self, flat: Array) -> list[Array]:
        """Split a vector over variables into one array for each differentiable argument, of its shape and dtype."""
        parts = np.split(flat, self.ends[:-1])
        return [part.reshape(array.shape).astype(array.dtype) for part, array in zip(parts, self.arrays)]

    def by_output(self, flat: Array) -> tuple[Array, ...]:
        """Split a vector over outputs into one array for each, of its shape and dtype; integers do not move."""
        arrays, start = [], 0
        for out, real in zip(self.outputs, self.differentiable):
            if real:
                arrays.append(flat[start : start + out.size].reshape(out.shape).astype(out.dtype))
                start += out.size
            else:
                arrays.append(np.zeros_like(out))
        return tuple(arrays)

    def rounded(self, flat: Array) -> Array:
        """Return the nearest values that the arguments can have in their dtypes."""
        parts = np.split(flat, self.ends[:-1])
        with np.errstate(over="ignore"):
            return _joined([part.astype(array.dtype) for part, array in zip(parts, self.arrays)])

    # --- points ---------------------------------------------------------------------------------------

    def moved(self, where: Array, new: Array) -> list[Any]:
        """Return the arguments with the variables numbered ``where`` set to ``new``; only what changes is copied."""
        values = list(self.values)
        owners = np.searchsorted(self.ends, where, side="right")
        for owner in np.unique(owners):
            mine, array = owners == owner, self.arrays[owner]
            dtype = np.result_type(array.dtype, np.complex64) if np.iscomplexobj(new) else array.dtype
            copy = np.array(array, dtype=dtype)
            copy.flat[where[mine] - (self.ends[owner] - array.size)] = new[mine]
            values[self.places[owner]] = copy
        return values

    def everywhere(self, new: Array) -> list[Any]:
        """Return the arguments with all variables set to ``new``."""
        return self.moved(np.arange(self.x.size), new)

    def at(self, points: list[list[Any]]) -> list[Array]:
        """Evaluate many points; give the flat outputs of each.

        Raises:
            RuleError: the shapes of the outputs are not those at the point.
        """
        if not points:
            return []
        return [self._flattened(outs) for outs in self.evaluate(points)]

    def _flattened(self, outs: Sequence[Array]) -> Array:
        arrays = [np.asarray(out) for out in outs]
        shapes, expected = [a.shape for a in arrays], [out.shape for out in self.outputs]
        if shapes != expected:
            raise RuleError(
                f"{self.caller.function}: its outputs have the shapes {shapes} next to the point where they have "
                f"{expected}; differences need the same shapes; register a rule instead."
            )
        return _joined([a for a, real in zip(arrays, self.differentiable) if real])

    def split(self, array: Array) -> list[Array]:
        """Split a vector over outputs into views, one for each output that has a derivative."""
        sizes = [out.size for out, real in zip(self.outputs, self.differentiable) if real]
        return list(np.split(array, np.cumsum(sizes)[:-1]))

    def chunks(self, count: int, points: int) -> Iterator[tuple[int, int]]:
        """Give ranges of ``count`` columns of so many points each that fit in memory together."""
        bytes_each = points * (self.x.nbytes + self.f.nbytes)
        size = max(1, MEMORY // max(1, bytes_each))
        for start in range(0, count, size):
            yield start, min(count, start + size)

    # --- messages -------------------------------------------------------------------------------------

    def variable(self, number: int) -> str:
        """Return what a variable is called: the argument and the index of the element."""
        owner = int(np.searchsorted(self.ends, number, side="right"))
        array = self.arrays[owner]
        return self.caller.argument(self.places[owner]) + _index(number - (self.ends[owner] - array.size), array.shape)

    def output(self, number: int) -> str:
        """Return what an element of the outputs is called."""
        start = 0
        for index, (out, real) in enumerate(zip(self.outputs, self.differentiable)):
            if real and number < start + out.size:
                which = "" if len(self.outputs) == 1 else f" {index}"
                return f"output{which}" + _index(number - start, out.shape)
            start += out.size if real else 0
        raise IndexError(number)

    def require_finite(self, f: Array, used: Array, where: Callable[[], str]) -> None:
        """Raise where an output that was finite at the point is not so beside it.

        Raises:
            DomainError: with what was moved, as ``where`` says it.
        """
        bad = ~np.isfinite(f) & np.isfinite(self.f) & used
        if bad.any():
            number = int(np.flatnonzero(bad)[0])
            raise DomainError(
                f"{self.caller.function}: {self.output(number)} is {f[number]} at {where()}; it must be finite "
                "wherever a difference is taken; give `bounds=` that keep the arguments where it is defined, or a "
                "smaller `abs_step=`."
            )


def _index(number: int, shape: tuple[int, ...]) -> str:
    return "" if not shape else str([int(i) for i in np.unravel_index(number, shape)])


def _joined(arrays: Sequence[Array]) -> Array:
    """Join arrays into one vector in at least double precision."""
    if not arrays:
        return np.zeros(0)
    return np.concatenate([np.ravel(a).astype(np.result_type(a.dtype, np.float64), copy=False) for a in arrays])
