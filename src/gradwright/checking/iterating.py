"""Forwards that iterate until a tolerance is met: their derivative is known only as well as they have converged."""

from __future__ import annotations

from typing import Any

import torch

from gradwright import torch_compat
from gradwright.checking.case import Case

LOOSE = 1e-3
"""Relative to the largest entry; what differs by more is no matter of convergence."""
NEARBY = 4
SPREAD = 0.3


def operations_vary(case: Case) -> bool:
    """Tell whether forward runs another number of operations at points near the sample, as a loop with a test does.

    What NumPy or compiled code does is not seen.
    """
    generator = case.generator("number of operations")
    here = _operations(case, {})
    for _ in range(NEARBY):
        factors = [1 + SPREAD * (2 * torch.rand(len(x), generator=generator) - 1) for x in case.base]
        there = _operations(case, {k: (x * f).to(x.dtype) for k, (x, f) in enumerate(zip(case.base, factors))})
        if None not in (here, there) and here != there:
            return True
    return False


def _operations(case: Case, flats: dict[int, torch.Tensor]) -> int | None:
    count = 0
    base = torch_compat.recorder_of_operations()

    class Counter(base):  # type: ignore[misc, valid-type]
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            nonlocal count
            count += 1
            return func(*args, **(kwargs or {}))

    try:
        with Counter():
            case.forward(flats)
    except Exception:
        return None
    return count
