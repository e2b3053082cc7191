"""Products with whole Jacobians, of the shape of an output and then that of an argument."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np


def contract(rows: Sequence[Sequence[Any]], g: Sequence[Any], shapes: Sequence[tuple[int, ...]]) -> list[Any]:
    """Return the gradient for each place from Jacobians: ``J^H g``, summed over the outputs."""
    found: list[Any] = []
    for i, shape in enumerate(shapes):
        grad = None
        for row, cotangent in zip(rows, g):
            if row[i] is None or cotangent is None:
                continue
            part = np.conj(row[i]).reshape(cotangent.size, math.prod(shape)).T @ cotangent.reshape(-1)
            grad = part if grad is None else grad + part
        found.append(None if grad is None else grad.reshape(shape))
    return found


def product(row: Sequence[Any], t: Sequence[Any], out: Any) -> Any:
    """Return the tangent of an output from its Jacobians: ``J t``, summed over the arguments."""
    total = np.zeros(out.shape, dtype=out.dtype)
    for part, tangent in zip(row, t):
        if part is not None and tangent is not None:
            total = total + (part.reshape(out.size, tangent.size) @ tangent.reshape(-1)).reshape(out.shape)
    return total
