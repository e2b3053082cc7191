"""Specifications of tensors that are too large to keep or to check: their look, without their values."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

LOOKED_AT = 2**16
"""What is not looked for in all elements is looked for in about so many."""
TOLERANCE = 1e-3
"""Rows whose sums are nearer to one than this are distributions."""


@dataclass(frozen=True)
class TensorSpec:
    """What is known of a tensor whose values were not kept.

    ``low`` and ``high`` are the least and the largest finite value (of a complex tensor, of its real and imaginary
    parts), 0 where there is none; ``mean`` and ``deviation`` are estimates.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype
    device: str
    stride: tuple[int, ...]
    requires_grad: bool
    low: float
    high: float
    mean: float
    deviation: float
    whole: bool = False
    """All values are whole numbers."""
    ascending: bool = False
    """Nothing is smaller than what comes before it in the last dimension."""
    distinct: bool = False
    """No whole number occurs twice in the last dimension."""
    distribution: bool = False
    """The last dimension sums to one, and nothing is negative."""
    hidden: float = 0.0
    """The share of minus infinity, as in masks."""

    @property
    def finite(self) -> bool:
        """Whether there was no infinity in it, as far as that was looked at."""
        return self.hidden == 0.0


def specify(tensor: Tensor, requires_grad: bool | None = None) -> TensorSpec:
    """Describe a dense tensor; some properties are looked for in a part of it only.

    Arguments:
        tensor: with values, on any device, of any dtype and strides.
        requires_grad: whether it counts as differentiated; as it is, where None.
    """
    bare = tensor.detach()
    rows = _some_rows(bare)
    real = torch.view_as_real(rows.resolve_conj()) if rows.is_complex() else rows
    values = real.to("cpu", torch.float64)
    finite = values[values.isfinite()]
    low, high = _extremes(bare, finite)
    steps = values.diff(dim=-1) if values.dim() and values.shape[-1] > 1 and not rows.is_complex() else None
    whole = bool(finite.numel()) and bool((finite == finite.round()).all())
    integral = not rows.is_floating_point() and not rows.is_complex() and rows.dtype != torch.bool
    apart = steps is not None and integral and bool((values.sort(dim=-1).values.diff(dim=-1) != 0).all())
    sums = values.sum(-1) if values.dim() and rows.is_floating_point() and values.shape[-1] > 1 else None
    return TensorSpec(
        shape=tuple(bare.shape),
        dtype=bare.dtype,
        device=str(bare.device),
        stride=tuple(bare.stride()),
        requires_grad=tensor.requires_grad if requires_grad is None else requires_grad,
        low=low,
        high=high,
        mean=float(finite.mean()) if finite.numel() else 0.0,
        deviation=float(finite.std(correction=0)) if finite.numel() else 0.0,
        whole=whole,
        ascending=steps is not None and bool((steps >= 0).all()) and low < high,
        distinct=apart,
        distribution=sums is not None and low >= 0 and high > 0 and bool(((sums - 1).abs() < TOLERANCE).all()),
        hidden=float((values == -math.inf).double().mean()) if values.numel() else 0.0,
    )


def strides_like(shape: Sequence[int], old_shape: Sequence[int], old_strides: Sequence[int]) -> tuple[int, ...]:
    """Return strides for ``shape`` in the manner of a tensor with another one: its order, gaps, overlaps, expansions.

    Example:
        >>> strides_like((2, 3), (100, 200), (1, 100)), strides_like((2, 3), (100, 200), (0, 1))
        ((1, 2), (0, 1))
    """
    strides = [0] * len(shape)
    extent, old_extent = 1, 1
    for k in sorted(range(len(shape)), key=lambda k: (old_strides[k], -k)):
        if old_strides[k] == 0 and old_shape[k] > 1:
            continue
        gap = old_strides[k] > old_extent and old_shape[k] > 1
        shared = old_strides[k] < old_extent and old_shape[k] > 1
        strides[k] = extent + 1 if gap else max(1, min(old_strides[k], extent - 1)) if shared else extent
        extent = max(extent, strides[k] * max(shape[k], 1))
        old_extent = max(old_extent, old_strides[k] * max(old_shape[k], 1))
    return tuple(strides)


def _some_rows(tensor: Tensor) -> Tensor:
    """Return some whole rows of a tensor (parts, where rows are very long), about :data:`LOOKED_AT` elements."""
    for dimension in range(tensor.dim()):
        wanted = max(1, LOOKED_AT * tensor.shape[dimension] // max(tensor.numel(), 1))
        if tensor.numel() > LOOKED_AT and tensor.shape[dimension] > wanted:
            last = dimension == tensor.dim() - 1
            step = 1 if last else math.ceil(tensor.shape[dimension] / wanted)
            tensor = (
                tensor.narrow(dimension, 0, wanted)
                if last
                else tensor[(slice(None),) * dimension + (slice(None, None, step),)]
            )
    return tensor


def _extremes(tensor: Tensor, finite: Tensor) -> tuple[float, float]:
    """Return the least and the largest value; without what is not finite, where there is any."""
    try:
        extremes = tensor.aminmax()
        low, high = float(extremes.min), float(extremes.max)
    except (RuntimeError, NotImplementedError):  # complex, float8, empty
        low = high = math.nan
    if math.isfinite(low) and math.isfinite(high):
        return low, high
    if not finite.numel():
        return 0.0, 0.0
    return float(finite.min()), float(finite.max())
