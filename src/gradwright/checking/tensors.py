"""Small operations on tensors that the rest of checking is built from: copies, real views, bits, indices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from gradwright.checking import trees

MAX_OFFSET = 16
"""Copies of tensors that start later than this in their memory start here."""


def join(parts: Sequence[Tensor]) -> Tensor:
    """Concatenate real vectors as float64; the result is empty when there are none."""
    if not parts:
        return torch.empty(0, dtype=torch.float64)
    if len(parts) == 1:
        return parts[0].to(torch.float64)
    return torch.cat([part.to(torch.float64) for part in parts])


def same_bits(a: Tensor, b: Tensor) -> bool:
    """Tell whether two tensors hold the same bits in the same shape, NaN included."""
    return a.shape == b.shape and a.dtype == b.dtype and torch.equal(bits(a), bits(b))


def tensors_in(value: Any) -> list[Tensor]:
    """Return the tensors within nested containers, in order."""
    if isinstance(value, Tensor):
        return [value]
    leaves, _ = trees.flatten(value)
    return [leaf for leaf in leaves if isinstance(leaf, Tensor)]


def real_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype of the real and imaginary parts; a real dtype is its own."""
    return dtype.to_real()


def real_size(shape: torch.Size, dtype: torch.dtype) -> int:
    """Return how many real numbers a tensor holds."""
    return shape.numel() * (2 if dtype.is_complex else 1)


def to_flat(tensor: Tensor) -> Tensor:
    """View a tensor as a flat real vector (complex numbers as pairs)."""
    tensor = tensor.detach().resolve_conj().resolve_neg()
    if tensor.layout != torch.strided:
        tensor = tensor.to_dense()
    return (torch.view_as_real(tensor) if tensor.is_complex() else tensor).reshape(-1)


def from_flat(flat: Tensor, template: Tensor) -> Tensor:
    """Undo :func:`to_flat`: a fresh tensor with the shape, dtype and (where it can be written) layout of template."""
    flat = flat.to(real_dtype(template.dtype))
    if template.is_complex():
        values = torch.view_as_complex(flat.reshape(*template.shape, 2).contiguous())
    else:
        values = flat.reshape(template.shape)
    if template.is_contiguous() or overlaps(template):
        return values.clone(memory_format=torch.contiguous_format)
    fresh = copy_of(template)
    fresh.copy_(values)
    return fresh


def copy_of(tensor: Tensor) -> Tensor:
    """Copy a tensor with its strides, what lies between its elements, an offset if it had one, and its lazy bits."""
    tensor = tensor.detach()
    if tensor.is_conj() and tensor.layout == torch.strided:
        return torch.conj_physical(tensor).resolve_conj().clone().conj()
    if tensor.is_neg() and tensor.layout == torch.strided and tensor.dtype in (torch.float32, torch.float64):
        return torch.complex(torch.zeros_like(tensor), -tensor.resolve_neg()).conj().imag
    if tensor.layout != torch.strided or tensor.is_neg():
        return tensor.clone()
    if tensor.is_contiguous() and tensor.storage_offset() == 0:
        return tensor.clone()
    span = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride())) if tensor.numel() else 0
    # A slice of a huge tensor keeps a short offset, not the memory before it.
    offset = min(tensor.storage_offset(), MAX_OFFSET)
    memory = tensor.new_empty(offset + span)
    memory[offset:] = tensor.as_strided((span,), (1,), tensor.storage_offset())
    return tensor.new_empty(0).set_(memory.untyped_storage(), offset, tensor.size(), tensor.stride())


def overlaps(tensor: Tensor) -> bool:
    """Tell whether several elements may share memory (expanded or self-overlapping), so that it cannot be written."""
    extent = 1
    for size, stride in sorted(zip(tensor.shape, tensor.stride()), key=lambda pair: pair[1]):
        if size > 1:
            if stride < extent:
                return True
            extent = stride * size
    return False


def bits(tensor: Tensor) -> Tensor:
    """Return the bytes of a tensor, in the order of its elements."""
    tensor = tensor.detach()
    if tensor.layout != torch.strided:
        tensor = tensor.to_dense()
    flat = tensor.resolve_conj().resolve_neg().contiguous().view(-1)
    if flat.numel() <= 1:
        flat = flat.as_strided((flat.numel(),), (1,))  # at most one element is contiguous whatever the stride
    return flat.view(torch.uint8)


def unravel(position: int, shape: torch.Size, dtype: torch.dtype) -> tuple[int, ...]:
    """Return the index of the ``position``-th real number of a tensor (of its complex element, for a complex dtype)."""
    if dtype.is_complex:
        position //= 2
    index = []
    for size in reversed(shape):
        index.append(position % size)
        position //= size
    return tuple(reversed(index))
