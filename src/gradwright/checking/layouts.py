"""The same values in other memory: strides, offsets, gaps, stride 0 and lazy bits, as PyTorch hands tensors over."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Layout:
    """One way of laying a tensor out."""

    name: str
    """What a tensor in it is, for example ``transposed``."""
    origin: str
    """Where such a tensor comes from in a user's program."""
    make: Callable[[Tensor], Tensor | None]
    """Return the same values in this layout; None where it does not apply."""
    code: str
    """The same as an expression of ``t``, for repro scripts."""
    lazy: bool = False
    """True for the conjugate and negative bits, which NumPy and compiled code may refuse aloud."""


def filler(tensor: Tensor) -> Tensor:
    """Return a tensor like another one to lie between its elements: NaN, so that whoever reads it shows."""
    if tensor.is_floating_point() or tensor.is_complex():
        return torch.full_like(tensor, math.nan, memory_format=torch.contiguous_format)
    return torch.zeros_like(tensor, memory_format=torch.contiguous_format)


def _transposed(t: Tensor) -> Tensor | None:
    if t.ndim < 2 or sum(size > 1 for size in t.shape) < 2:
        return None
    order = list(range(t.ndim))[::-1]
    return t.permute(order).contiguous().permute(order)


def _permuted(t: Tensor) -> Tensor | None:
    if t.ndim < 3 or t.numel() < 2:
        return None
    order = [*range(1, t.ndim), 0]
    back = [t.ndim - 1, *range(t.ndim - 1)]
    return t.permute(order).contiguous().permute(back)


def _gapped(t: Tensor) -> Tensor | None:
    return torch.stack([t, filler(t)], dim=-1)[..., 0] if t.numel() else None


def _narrowed(t: Tensor) -> Tensor | None:
    if t.ndim < 2 or not t.numel():
        return None
    return torch.cat([t, filler(t)], dim=-1)[..., : t.shape[-1]]


def _offset(t: Tensor) -> Tensor | None:
    if not t.numel():
        return None
    flat = t.reshape(-1)
    return torch.cat([filler(flat[:1]).expand(3), flat])[3:].view(t.shape)


def _channels_last(t: Tensor) -> Tensor | None:
    if t.ndim not in (4, 5):
        return None
    return t.contiguous(memory_format=torch.channels_last if t.ndim == 4 else torch.channels_last_3d)


def _conjugated(t: Tensor) -> Tensor | None:
    return torch.conj_physical(t).conj() if t.is_complex() else None


def _negated(t: Tensor) -> Tensor | None:
    # The imaginary part of a lazily conjugated tensor is the only negative bit that the public interface makes.
    if t.dtype not in (torch.float32, torch.float64):
        return None
    return torch.complex(torch.zeros_like(t), -t).conj().imag


_ORDER = "*range(t.ndim)[::-1]"
LAYOUTS = (
    Layout(
        "transposed", "out.t() or out.permute(...)", _transposed, f"t.permute({_ORDER}).contiguous().permute({_ORDER})"
    ),
    Layout(
        "permuted",
        "out.movedim(...)",
        _permuted,
        "t.permute(*range(1, t.ndim), 0).contiguous().permute(t.ndim - 1, *range(t.ndim - 1))",
    ),
    Layout(
        "sliced with other numbers between its elements",
        "torch.stack or out[..., ::2]",
        _gapped,
        "torch.stack([t, torch.full_like(t, float('nan'))], -1)[..., 0]",
    ),
    Layout(
        "a slice of a larger tensor",
        "torch.cat or torch.split",
        _narrowed,
        "torch.cat([t, torch.full_like(t, float('nan'))], -1)[..., : t.shape[-1]]",
    ),
    Layout(
        "at an offset in its memory",
        "torch.cat or torch.split",
        _offset,
        "torch.cat([t.new_zeros(3), t.reshape(-1)])[3:].view(t.shape)",
    ),
    Layout(
        "in channels-last memory format",
        "a convolution in that format",
        _channels_last,
        "t.contiguous(memory_format=torch.channels_last)",
    ),
    Layout("lazily conjugated", "out.conj()", _conjugated, "torch.conj_physical(t).conj()", lazy=True),
    Layout("lazily negated", "out.imag", _negated, "torch.complex(0 * t, -t).conj().imag", lazy=True),
)
"""Layouts that hold any values. ``origin`` speaks of the incoming gradient of ``out``."""


def constant_rows(t: Tensor) -> Tensor | None:
    """Return a tensor of stride 0 along its first dimension, filled with the first slice of another one."""
    if t.ndim == 0 or t.shape[0] < 2 or not t.numel():
        return None
    return t[:1].clone(memory_format=torch.contiguous_format).expand(t.shape)
