"""What is true: closed forms and central differences, in mpmath with so many digits that neither rounds.

mpmath comes with torch, through sympy.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from mpmath import mp
from torch import Tensor

from gradwright.probing.row import Probe

DIGITS = 100
STEP = "1e-25"
"""Of central differences, relative to the number. They are right to about 50 digits in the first order, and to as many
in the second: what the formula leaves out is of the order of its square, and rounding loses as much again."""
NOISE_OF_DIFFERENCES = "1e-45"
NOISE_OF_FORMULAE = "1e-80"
"""Of the largest number of a truth: what is smaller is not known, and is zero."""


def wanted(probe: Probe, inputs: Sequence[Tensor]) -> list[Any]:
    """Return what is true of a probe as a flat list of numbers of mpmath."""
    with mp.workdps(DIGITS):
        exact = [_exact(tensor.double().tolist()) for tensor in inputs]
        if probe.right is not None:
            return _without_noise(flat(probe.right(*exact)), NOISE_OF_FORMULAE)
        assert probe.scalar is not None
        return _without_noise(by_differences(probe.scalar, exact, probe.of), NOISE_OF_DIFFERENCES)


def by_differences(scalar: Callable[..., Any], exact: Sequence[Any], of: str) -> list[Any]:
    """Return the values of a function of mpmath, or one of its derivatives by central differences."""
    if of == "value":
        return flat(scalar(*exact))
    numbers = flat(exact)

    def total(moved: Sequence[Any]) -> Any:
        return sum(flat(scalar(*_like(exact, iter(moved)))))

    steps = [mp.mpf(STEP) * (abs(x) if x and mp.isfinite(x) else 1) for x in numbers]
    with mp.workdps(DIGITS):
        return _first(total, numbers, steps) if of == "gradient" else _second(total, numbers, steps)


def flat(value: Any) -> list[Any]:
    """Return the numbers in nested lists and matrices, row by row."""
    if isinstance(value, mp.matrix):
        return [value[i, j] for i in range(value.rows) for j in range(value.cols)]
    if isinstance(value, (list, tuple)):
        return [number for part in value for number in flat(part)]
    return [mp.mpf(value)]


def _without_noise(numbers: Sequence[Any], noise: str) -> list[Any]:
    least = mp.mpf(noise) * max((abs(x) for x in numbers if mp.isfinite(x)), default=mp.mpf(0))
    return [mp.mpf(0) if abs(x) < least else x for x in numbers]


def _exact(value: Any) -> Any:
    return [_exact(part) for part in value] if isinstance(value, list) else mp.mpf(value)


def _like(shape: Any, numbers: Iterator[Any]) -> Any:
    """Return nested lists like ``shape`` with other numbers."""
    return [_like(part, numbers) for part in shape] if isinstance(shape, (list, tuple)) else next(numbers)


def _first(total: Callable[[Sequence[Any]], Any], x: Sequence[Any], steps: Sequence[Any]) -> list[Any]:
    return [(total(_moved(x, {i: h})) - total(_moved(x, {i: -h}))) / (2 * h) for i, h in enumerate(steps)]


def _second(total: Callable[[Sequence[Any]], Any], x: Sequence[Any], steps: Sequence[Any]) -> list[Any]:
    """Return the Hessian times 1, 2, 3, ..."""
    middle = total(x)
    products = [mp.mpf(0)] * len(x)
    for i, j in itertools.combinations_with_replacement(range(len(x)), 2):
        a, b = steps[i], steps[j]
        if i == j:
            entry = (total(_moved(x, {i: a})) - 2 * middle + total(_moved(x, {i: -a}))) / a**2
        else:
            same = total(_moved(x, {i: a, j: b})) + total(_moved(x, {i: -a, j: -b}))
            entry = (same - total(_moved(x, {i: a, j: -b})) - total(_moved(x, {i: -a, j: b}))) / (4 * a * b)
            products[j] += entry * (i + 1)
        products[i] += entry * (j + 1)
    return products


def _moved(x: Sequence[Any], steps: dict[int, Any]) -> list[Any]:
    return [number + steps[i] if i in steps else number for i, number in enumerate(x)]
