"""Where a gradient passes: one vocabulary for the masks of estimators, and their edges.

"Straight-through" alone does not say what happens to values that are clipped. For a value ``v`` in units of the step,
between the lowest code ``n`` and the highest ``p``:

``none``
    the gradient always passes.
``range``
    where the value itself lies within the range, ``n <= v <= p``.
``pre-round``
    where it does before it is rounded, ``n < v < p`` (LSQ).
``post-round``
    where it does after it is rounded, ``n <= round(v) <= p`` (PyTorch, torchao, AIMET, Brevitas).
``trust``
    where quantising changes it little, ``|q - x| <= trust`` (QuEST).

The masks are made of comparisons, never of the derivative of ``clamp``, ``min`` or ``max``, which differ at
their bounds and change between versions of PyTorch.
"""

from __future__ import annotations

import functools
import math
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from gradwright import torch_compat
from gradwright.errors import unknown_choice

Mask: TypeAlias = Literal["none", "range", "pre-round", "post-round", "trust"]
Edges: TypeAlias = Literal["inclusive", "exclusive"]

MASKS: tuple[Mask, ...] = ("none", "range", "pre-round", "post-round", "trust")
EDGES: tuple[Edges, ...] = ("inclusive", "exclusive")
USUAL_EDGES: dict[Mask, Edges] = {
    "none": "inclusive",
    "range": "inclusive",
    "pre-round": "exclusive",
    "post-round": "inclusive",
    "trust": "inclusive",
}


def check_mask(function: str, mask: Mask, edges: Edges | None) -> tuple[Mask, Edges]:
    """Return the mask with its edges, the usual ones for None.

    Raises:
        OptionError: one of them is not known.
    """
    if mask not in MASKS:
        raise unknown_choice(f"{function}: mask", mask, MASKS)
    if edges is not None and edges not in EDGES:
        raise unknown_choice(f"{function}: edges", edges, EDGES)
    return mask, USUAL_EDGES[mask] if edges is None else edges


def keep(g: Tensor, value: Tensor, low: float, high: float, edges: Edges) -> Tensor:
    """Return ``g`` where ``value`` lies between two numbers, and zero elsewhere; where it is nan, ``g``.

    In compiled code no comparison is written: the compiler would save its result, a boolean, for the backward, which
    costs more time on a CPU than to compute it again from numbers that are there anyway.
    """
    if torch.compiler.is_compiling():
        return g * _inside(value, low, high, edges)
    if edges == "inclusive":
        low, high = _next(low, -math.inf, value.dtype), _next(high, math.inf, value.dtype)
    return torch_compat.where_between(g, value, low, high)


def _inside(value: Tensor, low: float, high: float, edges: Edges) -> Tensor:
    """Return 1 where a value lies between two numbers or is nan, else 0, by arithmetic alone."""
    value = value.to(working_dtype(value.dtype))
    if edges == "inclusive":
        return 1 - _positive(low - value) - _positive(value - high)
    is_number = torch.nan_to_num(value.clamp(-1, 1) * 0 + 1, nan=0.0)
    return 1 - is_number * (2 - _positive(value - low) - _positive(high - value))


def _positive(value: Tensor) -> Tensor:
    """Return 1 where a value is positive, the smallest number of its dtype included, else 0 (for nan too)."""
    scale = 2.0**537 if value.dtype == torch.float64 else 2.0**75
    return torch.nan_to_num(torch.relu(value) * scale * scale, nan=0.0, posinf=1.0).clamp(max=1.0)


def working_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype to compute in: at least float32, so that codes and sums are exact for half precision too."""
    return dtype if dtype == torch.float64 else torch.float32


@functools.lru_cache(maxsize=1024)
def _next(number: float, towards: float, dtype: torch.dtype) -> float:
    """Return the next representable number of a dtype."""
    return float(torch.nextafter(torch.tensor(number, dtype=dtype), torch.tensor(towards, dtype=dtype)))
