"""The arguments of a call that is measured."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from torch import Tensor


def differentiated(given: Iterable[Any]) -> tuple[Any, ...]:
    """Return arguments of which those that are marked require a gradient; all of floating point where none is."""
    given = tuple(given)
    marked = any(isinstance(x, Tensor) and x.requires_grad for x in given)
    return tuple(
        x.detach().clone().requires_grad_(x.requires_grad or not marked)
        if isinstance(x, Tensor) and (x.is_floating_point() or x.is_complex())
        else x
        for x in given
    )


def leaves_of(args: Sequence[Any]) -> list[Tensor]:
    """Return the arguments that require a gradient."""
    return [x for x in args if isinstance(x, Tensor) and x.requires_grad]
