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
from collections.abc import Callable
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from gradwright import torch_compat
from gradwright.errors import ArgumentError, unknown_choice

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


FLOATING = (torch.float16, torch.bfloat16, torch.float32, torch.float64)

Keep: TypeAlias = Callable[[Tensor], Tensor]
"""Takes one value for each element and returns those where a gradient passes, and zero for the others."""


def everywhere(values: Tensor) -> Tensor:
    """Keep all values."""
    return values


def passing(
    position: Tensor, low: float | Tensor, high: float | Tensor, edges: Edges, *, overwrite: bool = False
) -> Keep:
    """Return what keeps values where ``position`` lies between two bounds, or is nan, and is zero elsewhere.

    An infinite number as a bound is none. With ``overwrite`` the caller has no more use for the memory of ``position``.

    In compiled code no comparison is written: the compiler would save its result, a boolean, for the backward, which
    costs more time on a CPU than to compute it again from numbers that are there anyway.
    """
    if torch.compiler.is_compiling():
        inside = _inside(position, low, high, edges)
        return lambda values: values * inside
    if isinstance(low, Tensor) or isinstance(high, Tensor):
        below = position <= low if edges == "exclusive" and _is_bound(low) else position < low
        above = position >= high if edges == "exclusive" and _is_bound(high) else position > high
        outside = below | above
        return lambda values: torch.where(outside, 0.0, values)
    middle = (max(low, -1e4) + min(high, 1e4)) / 2
    if edges == "inclusive":
        low, high = _next(low, -math.inf, position.dtype), _next(high, math.inf, position.dtype)
    clear = torch.nan_to_num_ if overwrite else torch.nan_to_num
    numbers = clear(
        position,
        nan=middle,  # what the kernel does with nan depends on the place in memory (torch 2.13)
        posinf=math.inf if math.isfinite(high) else middle,
        neginf=-math.inf if math.isfinite(low) else middle,
    )
    return lambda values: torch_compat.where_between(values, numbers, low, high)


def _is_bound(bound: float | Tensor) -> bool:
    """Tell whether there is a bound: an infinite number is none."""
    return isinstance(bound, Tensor) or math.isfinite(bound)


def _inside(value: Tensor, low: float | Tensor, high: float | Tensor, edges: Edges) -> Tensor:
    """Return 1 where a value lies between two bounds or is nan, else 0, by arithmetic alone."""
    value = value.to(working_dtype(value.dtype))
    outside: Tensor | float = 0.0
    if _is_bound(low):
        outside = positive(low - value) if edges == "inclusive" else 1 - positive(value - low)
    if _is_bound(high):
        outside = outside + (positive(value - high) if edges == "inclusive" else 1 - positive(high - value))
    inside = 1 - outside
    if not isinstance(inside, Tensor):
        return torch.ones_like(value)
    return torch.where(inside == inside, inside, 1.0)  # not nan_to_num, which is not vectorised (torch 2.13)


def positive(value: Tensor) -> Tensor:
    """Return 1 where a value is positive, the smallest number of its dtype included, else 0."""
    scale = 2.0**537 if value.dtype == torch.float64 else 2.0**75
    return (torch.relu(value) * scale * scale).clamp(max=1.0)


def clipped_in_place(values: Tensor, low: float, high: float) -> Tensor:
    """Return values clipped, in their own memory where that can be; they are the caller's to overwrite.

    vmap has no batching rule for ``clamp_`` (torch 2.13): it would warn, and take the elements of the batch one by one.
    """
    return values.clamp(low, high) if torch_compat.transforms_active() else values.clamp_(low, high)


def working_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype to compute in: at least float32, so that codes and sums are exact for half precision too.

    Raises:
        ArgumentError: numbers of the dtype are no real ones, or so coarse that no gradient survives in it.
    """
    if dtype not in FLOATING:
        raise ArgumentError(
            f"gw.ste: got a tensor of {dtype}; expected float16, bfloat16, float32 or float64, which hold the result "
            "and its gradient; write `.float()`."
        )
    return dtype if dtype == torch.float64 else torch.float32


@functools.lru_cache(maxsize=1024)
def _next(number: float, towards: float, dtype: torch.dtype) -> float:
    """Return the next representable number of a dtype."""
    return float(torch.nextafter(torch.tensor(number, dtype=dtype), torch.tensor(towards, dtype=dtype)))
