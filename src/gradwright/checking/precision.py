"""The precision that a forward really computes in, which may be lower than that of its inputs and outputs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from gradwright.checking.case import Case

CANDIDATES = ((torch.bfloat16, 2), (torch.float16, 2), (torch.float32, 16))
"""Lower precisions, and by how many of their units inputs are moved to see whether the outputs follow."""


def hidden_epsilon(case: Case) -> float:
    """Return the rounding unit of a lower precision that forward casts its inputs to, or 0.

    Such a forward gives the same bits for inputs that are already rounded, and most of its outputs still move when the
    inputs move by a few units more; those of a step function, such as rounding, stay.
    """
    here = case.value()
    for dtype, units in CANDIDATES:
        unit = float(torch.finfo(dtype).eps)
        if unit <= torch.finfo(case.dtype).eps:
            continue
        rounded = {k: x.to(dtype).to(x.dtype) for k, x in enumerate(case.base)}
        # Inputs that rounding leaves alone show nothing, and would hide a step function by moving its steps.
        rounded = {k: x for k, x in rounded.items() if not torch.equal(x, case.base[k])}
        if rounded and torch.equal(case.value(rounded), here):
            moved = case.value({k: case.base[k] * (1 + units * unit) for k in rounded})
            if float((moved != here).double().mean()) > 0.5:
                return unit
    return 0.0
