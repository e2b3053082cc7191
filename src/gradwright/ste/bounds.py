"""Values that are evenly spaced up to a bound ``a``, ``a round(x p / a) / p`` with the highest code ``p``."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gradwright.ste.masks import clipped_in_place, working_dtype
from gradwright.ste.parameters import by_element


def on_bound(x: Tensor, bound: Tensor | float, low: int, high: int) -> Tensor:
    """Return ``bound * clip(round(x * high / bound), low, high) / high``.

    A bound of zero gives zeros, and so does one so near to it (4e-37 for 8 bits in float32) that the ratio overflows:
    infinity times the zeros of ``x`` would be nan.
    """
    x = x.to(working_dtype(x.dtype))
    ratio: Tensor | float
    if isinstance(bound, Tensor):
        ratio = high / bound.to(x.dtype)
        ratio = torch.where(ratio.isinf(), 0.0, ratio)
    else:
        ratio = high / bound if abs(bound) > high / torch.finfo(x.dtype).max else 0.0
    # Not codes times bound / high: the highest would miss the bound by a rounding error.
    return clipped_in_place(x * ratio, low, high).round_().div_(high).mul_(bound)


def bound_codes(x: Tensor, bound: Any, low: int, high: int, axis: Any, group_size: Any) -> Tensor:
    """Return every value for each element, in float64."""
    return torch.arange(low, high + 1, dtype=torch.float64) / high * by_element(x, bound, axis, group_size)[..., None]
