"""What the elementwise functions have in common: which dtypes they take, and in which they compute."""

from __future__ import annotations

import torch
from torch import Tensor

from gradwright import torch_compat
from gradwright.errors import ArgumentError

HALVES = (torch.bfloat16, torch.float16)


def require_floating(name: str, **tensors: Tensor | None) -> None:
    """Refuse tensors that are not real and floating point.

    Raises:
        ArgumentError: an argument is of another dtype.
    """
    for argument, x in tensors.items():
        if x is not None and not x.is_floating_point():
            kind = "complex" if x.is_complex() else "of integers, which have no gradient"
            raise ArgumentError(
                f"{name}: {argument} is {x.dtype}; expected a floating-point tensor, and this one is {kind}; convert "
                "it, or use the function of PyTorch."
            )


def widened(x: Tensor) -> Tensor:
    """Return ``x`` in the dtype in which it is computed with: half types in float32, others as they are."""
    return x.float() if x.dtype in HALVES else x


def widened_pair(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Return both in their common dtype, at least float32: what is computed in less is wrong in the wider result."""
    dtype = common_dtype(x, y)
    return widened(x.to(dtype)), widened(y.to(dtype))


def scaled(own: Tensor, weight: Tensor) -> Tensor:
    """Return ``own * weight`` in the memory of ``own``, which nobody else has.

    Under ``vmap`` ``weight`` may be a batch that ``own`` is not, and has no room for.
    """
    return own * weight if torch_compat.may_be_batched(weight) else own.mul_(weight)


def common_dtype(x: Tensor, y: Tensor) -> torch.dtype:
    """Return ``torch.result_type(x, y)`` of floating-point tensors; that one torch.compile does not record."""
    if (x.dim() == 0) == (y.dim() == 0):
        return torch.promote_types(x.dtype, y.dtype)
    return y.dtype if x.dim() == 0 else x.dtype
