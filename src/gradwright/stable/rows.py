"""What functions of rows have in common: a row is the numbers along one dimension.

One number often leads a row: ``exp(x - max)`` of the others is tiny. What is lost then is told apart from what is not:
the shares of the others are summed without the leading one, ``rest``, so that ``log1p(rest)`` and ``1 - p`` keep all
their digits. A row in which every number is ``-inf`` has no share at all, and ``+inf`` takes the row.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from gradwright.errors import ArgumentError
from gradwright.stable.arguments import not_a_tensor

LEADS = 0.75
"""From this share on a number leads its row: below, ``1 - p`` has lost less than two bits."""


def check_mask(function: str, x: Tensor, mask: Tensor) -> None:
    """Refuse a mask that is not boolean, or has a shape to which ``x`` would have to grow.

    Raises:
        ArgumentError: it is.
    """
    if not isinstance(mask, Tensor):
        raise not_a_tensor(function, "mask", mask, "a boolean tensor, True where a number takes part")
    if mask.dtype != torch.bool:
        raise ArgumentError(
            f"{function}: mask is of {mask.dtype}; expected a boolean tensor, True where a number takes part; "
            "write `mask.bool()`."
        )
    rest = zip(reversed(mask.shape), reversed(x.shape))
    if mask.dim() > x.dim() or any(size not in (1, whole) for size, whole in rest):
        raise ArgumentError(
            f"{function}: mask has the shape {tuple(mask.shape)}; expected one that can be broadcast to that of x, "
            f"{tuple(x.shape)}; insert dimensions of size 1 or expand x."
        )


def masked(x: Tensor, mask: Tensor | None) -> Tensor:
    """Return ``x`` with ``-inf`` where a mask is False: its gradient there is exactly zero."""
    return x if mask is None else x.masked_fill(~mask, -math.inf)


def dimensions(dim: int | tuple[int, ...], count: int) -> tuple[int, ...]:
    """Return the places of one or several dimensions of a tensor that has ``count``, from 0.

    Raises:
        IndexError: there is no such dimension, as PyTorch raises.
    """
    size = max(count, 1)
    found = (dim,) if isinstance(dim, (int, torch.SymInt)) else tuple(dim)
    if any(not -size <= place < size for place in found):
        raise IndexError(f"dim is {dim}; expected a dimension from {-size} to {size - 1}; count again.")
    return tuple(place % size for place in found)


def flattened(x: Tensor, dims: tuple[int, ...]) -> Tensor:
    """Return ``x`` with the given dimensions as one, at the end."""
    if not x.dim():
        return x.unsqueeze(0)
    if dims == (x.dim() - 1,):
        return x
    return x.movedim(dims, tuple(range(-len(dims), 0))).flatten(-len(dims))


def first_of(x: Tensor, dim: int) -> Tensor:
    """Return the first number of each row: in a row whose sum is nan, every result is."""
    return x.narrow(dim, 0, min(1, x.shape[dim])) if x.dim() else x


def led(x: Tensor, dim: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return of each row its largest number, ``x`` minus that, ``exp`` of it, and its sum without the largest one.

    All are zero or ``-inf`` where a row is ``-inf``. Where there is ``+inf``, the others count as ``-inf``.
    """
    top = x.argmax(dim, keepdim=True)
    lead = x.gather(dim, top)
    x = torch.where(lead == math.inf, torch.where(x == math.inf, 0.0, -math.inf), x)
    z = x - torch.where(lead.isinf(), 0.0, lead)
    shares = z.exp()
    rest = shares.scatter(dim, top, 0.0).sum(dim, keepdim=True)
    return lead, z, shares, rest


def by_rows(function: Callable[..., Any], dim: int, *arrays: Any) -> Any:
    """Return what a function makes of each row of NumPy arrays: a list in the place of the row, or a number."""
    import numpy as np

    moved = [np.moveaxis(np.atleast_1d(array), dim, -1) for array in np.broadcast_arrays(*arrays)]
    rows = [function(*(list(array[place]) for array in moved)) for place in np.ndindex(moved[0].shape[:-1])]
    shape = moved[0].shape[:-1]
    if rows and isinstance(rows[0], Sequence):
        whole = np.array(rows, dtype=object).reshape((*shape, -1))
        return np.moveaxis(whole, -1, dim).reshape(np.shape(arrays[0]))
    return np.array(rows, dtype=object).reshape(shape)


def pairs(dtype: torch.dtype, points: Sequence[tuple[float, float]]) -> tuple[Tensor, Tensor]:
    """Return the first and the second numbers of some pairs, for examples."""
    x, y = torch.tensor(points, dtype=torch.float64).to(dtype).unbind(1)
    return x.clone(), y.clone()
