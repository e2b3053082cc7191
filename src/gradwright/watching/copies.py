"""Copies of single tensors: in main memory, with their strides, without the rest of a large memory they lie in."""

from __future__ import annotations

import torch
from torch import Tensor

from gradwright import torch_compat
from gradwright.checking.tensors import copy_of
from gradwright.watching.specs import strides_like

PADDING = 8
"""A tensor keeps what lies between its elements when that is at most so many times the tensor itself."""
SMALL = 4096
"""So many bytes between elements are kept anyway."""


def bytes_of(tensor: Tensor) -> int:
    """Return how many bytes a copy takes."""
    if tensor.layout != torch.strided:
        return torch_compat.stored_elements(tensor) * (tensor.element_size() + 8 * tensor.dim())
    return _span(tensor) * tensor.element_size()


def _span(tensor: Tensor) -> int:
    """Return how many elements of memory a copy has: from the first to the last, or fewer where that is much."""
    count: int = tensor.numel()
    if tensor.is_contiguous():
        return count
    span = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride())) if count else 0
    return span if _is_near(tensor, span) else 2 * count


def _is_near(tensor: Tensor, span: int) -> bool:
    return (span - PADDING * tensor.numel()) * tensor.element_size() <= SMALL


def copy_tensor(tensor: Tensor) -> Tensor:
    """Copy a tensor that is detached into main memory, with its strides and lazy bits."""
    if not tensor.is_cpu:
        return _to_main_memory(tensor)
    if tensor.layout != torch.strided or _is_plain(tensor):
        copied = tensor.clone()
    elif _is_near(tensor, 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride()))):
        copied = copy_of(tensor)
    else:
        copied = _squeezed(tensor)
    return copied


def _is_plain(tensor: Tensor) -> bool:
    return tensor.is_contiguous() and tensor.storage_offset() == 0 and not tensor.is_conj() and not tensor.is_neg()


def _to_main_memory(tensor: Tensor) -> Tensor:
    """Copy a tensor on another device; what was expanded is expanded again."""
    once = tensor
    for dimension, stride in enumerate(tensor.stride() if tensor.layout == torch.strided else ()):
        if stride == 0 and tensor.shape[dimension] > 1:
            once = once.narrow(dimension, 0, 1)
    return once.cpu().expand(tensor.shape) if once is not tensor else once.cpu()


def _squeezed(tensor: Tensor) -> Tensor:
    """Copy a few elements out of a large memory, in an order like that which they had there, with small gaps."""
    shape = tuple(tensor.shape)
    strides = strides_like(shape, shape, tensor.stride())
    span = 1 + sum((size - 1) * stride for size, stride in zip(shape, strides))
    copied = tensor.new_empty(span).as_strided(shape, strides)
    once = copied
    values = tensor
    for dimension, stride in enumerate(strides):
        if stride == 0:
            once, values = once.narrow(dimension, 0, 1), values.narrow(dimension, 0, 1)
    once.copy_(values)
    return copied
