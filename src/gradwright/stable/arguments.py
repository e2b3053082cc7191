"""What the elementwise functions have in common: which dtypes they take, and in which they compute."""

from __future__ import annotations

import torch
from torch import Tensor

from gradwright import torch_compat
from gradwright.authoring.exact import HALF
from gradwright.errors import ArgumentError, kind_of


def require_floating(name: str, **tensors: Tensor) -> None:
    """Refuse what is not a tensor, or not real and floating point.

    Raises:
        ArgumentError: an argument is of another kind or dtype.
    """
    for argument, x in tensors.items():
        if not isinstance(x, Tensor):
            raise not_a_tensor(name, argument, x, "a floating-point tensor")
        if not x.is_floating_point():
            kind = "complex" if x.is_complex() else "of integers, which have no gradient"
            raise ArgumentError(
                f"{name}: {argument} is {x.dtype}; expected a floating-point tensor, and this one is {kind}; convert "
                "it, or use the function of PyTorch."
            )


def not_a_tensor(name: str, argument: str, value: object, expected: str) -> ArgumentError:
    """Build the error for a value that should be a tensor."""
    return ArgumentError(f"{name}: {argument} is {kind_of(value)}; expected {expected}; write torch.tensor(...).")


def require_dim(
    name: str, dim: object, *, several: bool = False, none: bool = False, advice: str = "count dimensions from 0"
) -> None:
    """Refuse what is no dimension; ``several`` and ``none`` say whether a tuple or None are meant too.

    Raises:
        ArgumentError: it is something else.
    """
    if none and dim is None:
        return
    for each in dim if several and isinstance(dim, (tuple, list)) else (dim,):
        if not isinstance(each, (int, torch.SymInt)) and not _converts(each, "__index__"):
            expected = "an int" + ", or a tuple of them" * several + ", or None" * none
            raise ArgumentError(f"{name}: dim is {kind_of(each)}; expected {expected}; {advice}.")


def require_number(name: str, **values: object) -> None:
    """Refuse what is no number of Python, which has no gradient.

    Raises:
        ArgumentError: a value is something else.
    """
    for argument, value in values.items():
        if not isinstance(value, (int, float, torch.SymInt, torch.SymFloat)) and not _converts(value, "__float__"):
            raise ArgumentError(
                f"{name}: {argument} is {kind_of(value)}; expected a number, which has no gradient; write "
                f"{argument}{'.item()' if isinstance(value, Tensor) else '=2.0, say'}."
            )


def _converts(value: object, method: str) -> bool:
    """Tell whether a value is a number of another library; arrays convert too where they hold one element."""
    return hasattr(value, method) and not hasattr(value, "__len__")


def widened(x: Tensor) -> Tensor:
    """Return ``x`` in the dtype in which it is computed with: half types in float32, others as they are."""
    return x.float() if x.dtype in HALF else x


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
