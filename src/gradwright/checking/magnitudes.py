"""How large the numbers are that a backward works with: what its rounding is relative to.

Where large terms cancel, as in the gradient of a saturated softmax, what remains is rounded as the terms were, however
small it is. Neither the values of the function nor the gradient tell how large the terms were; the operations do.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor

from gradwright import torch_compat
from gradwright.checking.case import Case
from gradwright.checking.judge import largest_entry
from gradwright.checking.tensors import tensors_in

FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)


CANCELLED = 64.0
"""Rounding units of the largest number in backward that two ways of computing a gradient may lie apart."""


class Magnitudes:
    """The largest finite number that any operation gives: what the rounding of the rest is relative to."""

    def __init__(self) -> None:
        self.largest = 0.0

    def watch(self) -> AbstractContextManager[Any]:
        """Look at the operations that are run within the block."""
        return torch_compat.watch_operations(self._look)

    def _look(self, operation: Any, result: Any) -> None:
        if "empty" in str(operation):
            return  # whatever lay in memory
        # The values of a sparse tensor came by as an ordinary one.
        plain = [t.detach() for t in tensors_in(result) if t.layout == torch.strided and torch_compat.has_memory(t)]
        numbers = [t.abs() for t in plain if t.is_complex() or t.dtype in FLOATS]
        self.largest = max(self.largest, largest_entry(*numbers))


def largest_in_backward(case: Case, v: Tensor) -> float:
    """Return the largest finite number that the backward of a cotangent meets, itself included."""
    run, cotangents, seen = case.forward(), case.cotangents(v), Magnitudes()
    with case.sandbox(), seen.watch():
        run.gradients(cotangents)
    return max(seen.largest, largest_entry(v))
