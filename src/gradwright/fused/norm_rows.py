"""The two ways to an RMS norm and its gradient: as formulae that PyTorch can follow, and in blocks of rows."""

from __future__ import annotations

from typing import Literal, TypeAlias

import torch
from torch import Tensor

from gradwright.authoring.exact import HALF
from gradwright.fused.route import block_rows
from gradwright.stable.arguments import widened

Cast: TypeAlias = Literal["output", "normalized"]
"""What is rounded to the dtype of ``x``: the output, or what has been normalised, before the weight comes to it."""


# -------------------------------------------------------------------- the formula, in operations that can be followed


def _wide(x: Tensor) -> torch.dtype:
    """Return the dtype that is computed in."""
    return torch.float32 if x.dtype in HALF else x.dtype


def _axes(dims: int) -> tuple[int, ...]:
    return tuple(range(-dims, 0))


def _factor(weight: Tensor, offset: float, dtype: torch.dtype) -> Tensor:
    return weight.to(dtype) + offset if offset else weight.to(dtype)


def _inverse(wide: Tensor, dims: int, eps: float) -> Tensor:
    return torch.rsqrt((wide * wide).mean(_axes(dims), keepdim=True) + eps)


def formula(x: Tensor, weight: Tensor | None, dims: int, eps: float, offset: float, cast: Cast) -> Tensor:
    """Return the norm; ``dims`` dimensions are one row."""
    wide = widened(x)
    normed = wide * _inverse(wide, dims, eps)
    if weight is None:
        return normed.to(x.dtype)
    if cast == "normalized":
        return _factor(weight, offset, weight.dtype) * normed.to(x.dtype)
    return (normed * _factor(weight, offset, wide.dtype)).to(x.dtype)


def slopes(
    g: Tensor, x: Tensor, weight: Tensor | None, dims: int, eps: float, offset: float
) -> tuple[Tensor, Tensor | None]:
    """Return the gradients of ``x`` and of ``weight``."""
    wide = widened(x)
    g = g.to(wide.dtype)
    inverse = _inverse(wide, dims, eps)
    normed = wide * inverse
    scaled = g if weight is None else g * _factor(weight, offset, wide.dtype)
    dx = (scaled - normed * (scaled * normed).mean(_axes(dims), keepdim=True)) * inverse
    if weight is None:
        return dx.to(x.dtype), None
    leading = tuple(range(x.dim() - dims))
    dw = (g * normed).sum(leading) if leading else g * normed
    return dx.to(x.dtype), dw.to(weight.dtype)


# -------------------------------------------------------------------- the same in blocks of rows


def several_blocks(x: Tensor, dims: int) -> bool:
    """Tell whether there is more than one block; one alone takes fewer operations as a formula."""
    columns = x.shape[x.dim() - dims :].numel()
    return columns > 0 and x.numel() > columns * block_rows(x.numel() // columns, columns, _wide(x).itemsize, x.device)


def _rows_of(x: Tensor, dims: int) -> Tensor:
    """Return ``x`` with two dimensions; a copy only where its strides do not allow a view."""
    columns = x.shape[x.dim() - dims :].numel()
    return x.reshape(x.shape[: x.dim() - dims].numel(), columns)


def _block_of(x: Tensor, room: Tensor) -> Tensor:
    """Return a block in the dtype of ``room``, as it is or copied to there."""
    return x if x.dtype == room.dtype else room[: len(x)].copy_(x)


def _room(x: Tensor, rows: int, columns: int, dtype: torch.dtype, blocks: torch.dtype) -> Tensor:
    """Return a buffer of ``dtype`` for blocks of another one; an empty buffer where they have ``dtype`` already."""
    return torch.empty(rows if blocks != dtype else 0, columns, dtype=dtype, device=x.device)


def _inverse_of(block: Tensor, room: Tensor, eps: float) -> Tensor:
    """Return ``rsqrt(mean(x x) + eps)`` of each row, whose squares are left in ``room``."""
    return torch.mul(block, block, out=room).mean(1, keepdim=True).add_(eps).rsqrt_()


def in_blocks(x: Tensor, weight: Tensor | None, dims: int, eps: float, offset: float, cast: Cast) -> Tensor:
    """Return what :func:`formula` does."""
    rows, wide, dtype, factor = _rows_of(x, dims), _wide(x), x.dtype, None
    early = cast == "normalized" and weight is not None
    if weight is not None:
        dtype = torch.promote_types(x.dtype, weight.dtype) if early else x.dtype
        factor = _factor(weight, offset, weight.dtype if early else wide).reshape(-1)
    out = torch.empty(rows.shape, dtype=dtype, device=x.device)
    columns = rows.shape[1]
    size = block_rows(len(rows), columns, wide.itemsize, x.device)
    own, room = (_room(x, size, columns, wide, each) for each in (x.dtype, dtype))
    for given, target in zip(rows.split(size), out.split(size)):
        block = _block_of(given, own)
        normed = target if target.dtype == wide else room[: len(block)]
        torch.mul(block, _inverse_of(block, normed, eps), out=normed)
        if early:
            target.copy_(normed.to(x.dtype)).mul_(factor)
            continue
        if factor is not None:
            normed.mul_(factor)
        if normed is not target:
            target.copy_(normed)
    return out.view(x.shape)


def slopes_in_blocks(
    g: Tensor,
    x: Tensor,
    weight: Tensor | None,
    dims: int,
    eps: float,
    offset: float,
    needs: dict[str, bool],
) -> tuple[Tensor | None, Tensor | None]:
    """Return the gradients of ``x`` and of ``weight``; None where it is not needed."""
    rows, slopes, wide = _rows_of(x, dims), _rows_of(g, dims), _wide(x)
    columns = rows.shape[1]
    factor = None if weight is None else _factor(weight, offset, wide).reshape(-1)
    dx = torch.empty(rows.shape, dtype=x.dtype, device=x.device) if needs["x"] else None
    dw = torch.zeros(columns, dtype=wide, device=x.device) if weight is not None and needs["weight"] else None
    size = block_rows(len(rows), columns, wide.itemsize, x.device)
    own, own_g, own_dx = (_room(x, size, columns, wide, each) for each in (x.dtype, g.dtype, x.dtype))
    room = torch.empty(size, columns, dtype=wide, device=x.device)
    for start in range(0, len(rows), size):
        part = slice(start, start + size)
        block, slope = _block_of(rows[part], own), _block_of(slopes[part], own_g)
        product = room[: len(block)]
        inverse = _inverse_of(block, product, eps)
        torch.mul(slope, block, out=product).mul_(inverse)  # g h
        if dw is not None:
            dw.add_(product.sum(0))
        if dx is None:
            continue
        target = dx[part]
        found = target if target.dtype == wide else own_dx[: len(block)]
        if factor is None:
            found.copy_(slope)
        else:
            torch.mul(slope, factor, out=found)
            product.mul_(factor)
        found.addcmul_(block, product.mean(1, keepdim=True).mul_(inverse), value=-1.0).mul_(inverse)
        if found is not target:
            target.copy_(found)
    return (
        None if dx is None else dx.view(x.shape),
        None if dw is None or weight is None else dw.to(weight.dtype).view(weight.shape),
    )
