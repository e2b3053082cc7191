"""Functions of arrays as ``gw.external`` hands them to derivatives: many points at a time, counted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np


class Evaluate:
    """Evaluates a function at many points; remembers how many, in how many batches, and where."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self.batches: list[int] = []
        self.points: list[list[Any]] = []

    @property
    def calls(self) -> int:
        return sum(self.batches)

    def __call__(self, points: list[list[Any]]) -> list[tuple[Any, ...]]:
        self.batches.append(len(points))
        self.points += points
        return [self.outs(*point) for point in points]

    def outs(self, *values: Any) -> tuple[Any, ...]:
        found = self.function(*values)
        return tuple(map(np.asarray, found)) if isinstance(found, tuple) else (np.asarray(found),)

    def gradient(self, derivative: Any, *values: Any, cotangent: Any = None, places: Any = None) -> Any:
        """Return the gradient by the arguments at ``places`` (all) for one output."""
        outs = self.outs(*values)
        cotangent = np.ones(outs[0].shape) if cotangent is None else cotangent
        places = range(len(values)) if places is None else places
        found = derivative.vjp(self, list(values), list(places), outs, [cotangent])
        return found[0] if len(found) == 1 else found

    def along(self, derivative: Any, *values: Any, tangents: Any) -> Any:
        """Return the derivative of the one output along tangents."""
        (found,) = derivative.jvp(self, list(values), list(range(len(values))), self.outs(*values), tangents)
        return found


def off(found: Any, expected: Any) -> float:
    """Return the relative error of an array."""
    difference = np.linalg.norm(np.ravel(np.asarray(found, dtype=np.float64) - expected))
    return float(difference / np.linalg.norm(np.ravel(expected)))
