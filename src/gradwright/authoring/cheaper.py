"""Functions of the catalogue whose gradient is the usual one, for less memory or time.

An entry names what it replaces. That, in float64 and differentiated by PyTorch, is the truth of the suite that proves
the entry; and it is what ``benchmarks/fused.py`` measures beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch import Tensor

from gradwright.authoring.catalogue import Example, definition_of, public_name
from gradwright.authoring.exact import Measure, TrueEntry

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True)
class Goal:
    """What the ordinary call must reach, as a part of what is replaced; None is no promise."""

    time: float | None = None
    """Forward and backward."""
    peak: float | None = None
    """The most memory that is allocated at one time, gradients included, arguments not."""
    kept: float | None = None
    """Bytes kept for the backward."""


@dataclass(frozen=True, eq=False, kw_only=True)
class CheaperEntry(TrueEntry):
    """A function with the same values and gradients as what it replaces."""

    goal: Goal
    kept: Callable[..., int]
    """Takes the arguments of a call and returns how many bytes may be kept for the backward beyond the arguments."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """What the ordinary call is given by keyword."""


def nothing(*args: object, **kwargs: object) -> int:
    """Return no bytes, for whatever arguments."""
    return 0


def cheaper(
    *,
    forward: str,
    gradient: Mapping[str, str],
    replaces: Callable[..., Any],
    goal: Goal,
    domain: str,
    bars: Mapping[torch.dtype, float],
    examples: Callable[[torch.dtype], Sequence[Example]],
    ordinary: Callable[[], tuple[Any, ...]],
    paper: str,
    kept: Callable[..., int] = nothing,
    options: Mapping[str, Any] | None = None,
    measure: Measure = "tensor",
    observed: Callable[[Any], Tensor] | None = None,
    slower: str = "",
) -> Callable[[F], F]:
    """Enter a function into the catalogue; the arguments are those of :class:`CheaperEntry`."""

    def enter(function: F) -> F:
        definition_of(function)  # one that is made of others has the same attributes
        vars(function)["__catalogue_entry__"] = CheaperEntry(
            name=public_name(function),
            function=function,
            forward=forward,
            gradient=dict(gradient),
            examples=examples,
            paper=paper,
            domain=domain,
            bars=dict(bars),
            elementwise=False,
            measure=measure,
            observed=observed,
            replaces=replaces,
            ordinary=ordinary,
            slower=slower,
            kept=kept,
            goal=goal,
            options=dict(options or {}),
        )
        return function

    return enter
