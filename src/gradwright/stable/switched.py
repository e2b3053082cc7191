"""What the entries with a removable singularity have in common: how they are made, where they are proved.

Each is made by the template of :mod:`~gradwright.stable.singularity`: a Taylor series near the point and the closed
form elsewhere, for the function and for three derivatives. The coefficients are exact fractions; where a function
changes from one to the other was measured by ``tools/switch_points.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from gradwright.authoring.catalogue import Example, around, joined
from gradwright.authoring.exact import HALF, Point, relative, sweep
from gradwright.stable.closed_forms import FORMS
from gradwright.stable.singularity import removable
from gradwright.stable.switch_points import SWITCHES

BARS = relative(2e-15, 1e-6, *HALF)
SLOWER = "a series and a closed form are both computed, for every element"


def made(name: str) -> Callable[[Tensor], Tensor]:
    """Return the function of a closed form, with the switches that were measured."""
    form = FORMS[name]
    switches = SWITCHES[name]
    return removable(
        form.closed, form.coefficient, name=name, at=form.at, low=form.low, high=form.high, switches=switches
    )


def examples_of(name: str) -> Callable[[torch.dtype], Sequence[Example]]:
    """Return examples where the function is defined: the point, every switch and the numbers next to it, near, far."""
    form = FORMS[name]

    def examples(dtype: torch.dtype) -> Sequence[Example]:
        switches = SWITCHES[name][dtype if dtype in SWITCHES[name] else torch.float32]
        edges = {form.at + sign * switch.distance for switch in switches for sign in (1, -1)}
        bulk = torch.tensor([-7.3, -2.3, -1.3, -0.7, -0.2, 0.3, 0.9, 1.7, 2.9, 5.1], dtype=dtype)
        near = joined([form.at + sweep(-40, -2, dtype, 4), torch.tensor([form.at], dtype=dtype)])
        parts = {"bulk": bulk, "near the point": near, "where it changes": around(*sorted(edges), dtype=dtype)}
        inside = {note: part[(part > form.low) & (part < form.high)] for note, part in parts.items()}
        ends = torch.tensor([end for end in (form.low, form.high) if end == form.at], dtype=dtype)
        return [
            Point((torch.cat([part, ends]) if note != "bulk" else part,), note=note, extreme=note != "bulk")
            for note, part in inside.items()
        ]

    return examples
