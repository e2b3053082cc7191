"""How large the numbers are that a backward works with: what its rounding is relative to.

Where large terms cancel, as in the gradient of a saturated softmax, what remains is rounded as the terms were, however
small it is. Neither the values of the function nor the gradient tell how large the terms were; the operations do.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gradwright import torch_compat
from gradwright.checking.case import Case
from gradwright.checking.judge import largest_entry
from gradwright.checking.tensors import tensors_in

FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)


class Magnitudes(torch_compat.recorder_of_operations()):  # type: ignore[misc]
    """A mode that notes the largest finite number any operation gives: what the rounding of the rest is relative to."""

    largest = 0.0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the operation and look at its result."""
        result = func(*args, **(kwargs or {}))
        if "empty" not in str(func):  # whatever lay in memory
            # The values of a sparse tensor came by as an ordinary one.
            plain = [t.detach() for t in tensors_in(result) if t.layout == torch.strided]
            numbers = [t.abs() for t in plain if t.is_complex() or t.dtype in FLOATS]
            self.largest = max(self.largest, largest_entry(*numbers))
        return result


def largest_in_backward(case: Case, v: Tensor) -> float:
    """Return the largest finite number that the backward of a cotangent meets, itself included."""
    run, cotangents, seen = case.forward(), case.cotangents(v), Magnitudes()
    with case.sandbox(), seen:
        run.gradients(cotangents)
    return max(seen.largest, largest_entry(v))
