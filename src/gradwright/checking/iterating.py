"""Forwards that iterate until a tolerance is met: their derivative is known only as well as they have converged."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from gradwright import torch_compat
from gradwright.checking.case import Case

LOOSE = 1e-3
"""Relative to the largest entry; what differs by more is no matter of convergence."""
FACTORS = (0.0, 0.01, 0.3, 3.0, 10.0)
"""A loop stops sooner or later at so many times the values of the sample."""


def operations_vary(case: Case) -> bool:
    """Tell whether forward runs another number of operations for other values, as a loop with a test does.

    What NumPy or compiled code does is not seen.
    """
    here = _operations(case, {})
    for factor in FACTORS:
        there = _operations(case, {k: x * factor for k, x in enumerate(case.base)})
        if None not in (here, there) and here != there:
            return True
    return False


def _operations(case: Case, flats: dict[int, Tensor]) -> int | None:
    count = 0

    def look(*_: Any) -> None:
        nonlocal count
        count += 1

    try:
        with torch_compat.watch_operations(look):
            case.forward(flats)
    except Exception:
        return None
    return count
