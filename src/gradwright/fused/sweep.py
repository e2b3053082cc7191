"""Running through rows in the cache: which block is next, and which rows of it are combined with which.

Along a dimension of ``n`` rows, ``out[k]`` joins ``x[0]`` to ``x[k]``. Row by row that is ``n`` calls. As a tree it is
about ``3 log2(n)`` calls, each of which joins many pairs: pairs of neighbours, then of pairs, and on the way back what
is between them (Brent and Kung, 1982). That is twice the arithmetic, so it pays in blocks that stay in the cache.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from gradwright.authoring.exact import HALF
from gradwright.fused.route import CACHED_BYTES, block_rows, by_hand

BLOCKS_CACHED = 2
"""How many blocks of :func:`~gradwright.fused.route.block_rows` one here has: a larger one saves calls, and the second
level of the cache is near enough."""
RUN = 16
"""How many numbers must lie side by side in a row of a block that is not copied together."""

COLUMNS = 64
"""How many columns of a long block a kernel takes at least: fewer, and lines of the cache are read in part."""


@dataclass(frozen=True)
class Block:
    """Some rows of some columns, in the order in which they are run through."""

    columns: tuple[slice, ...]
    """The index of the dimensions after the first."""
    rows: slice
    begins: bool
    """Whether it is the first of its columns."""

    @property
    def index(self) -> tuple[slice, ...]:
        """What the block is of the whole tensor."""
        return (self.rows, *self.columns)


def pairs(size: int, reverse: bool) -> Iterator[tuple[slice, slice, bool]]:
    """Give which rows take in which others, level by level, and whether both are sums of as many neighbours.

    After a level where they are, a row joins twice as many; after the last level each row joins all before it.
    """

    def every(first: int, step: int, count: int) -> slice:
        if reverse:
            first = size - 1 - first - step * (count - 1)
        return slice(first, first + step * (count - 1) + 1, step)

    reach = 1
    while 2 * reach <= size:
        count = size // (2 * reach)
        yield every(2 * reach - 1, 2 * reach, count), every(reach - 1, 2 * reach, count), True
        reach *= 2
    while reach >= 1:
        count = (size - reach) // (2 * reach)
        if count > 0:
            yield every(3 * reach - 1, 2 * reach, count), every(2 * reach - 1, 2 * reach, count), False
        reach //= 2


def blocks(out: Tensor, reverse: bool) -> Iterator[Block]:
    """Give the blocks of a tensor along its first dimension.

    A block has all rows where they fit, of a part of the dimension with the largest stride: what it reads lies
    together. Else it has some rows of all columns.
    """
    size, columns = len(out), out[0].numel()
    outer = max(range(1, out.dim()), key=out.stride, default=0)
    parts: list[tuple[slice, ...]] = [()]
    if outer and out.stride(outer) > out.stride(0):
        width = out.shape[outer]
        several = _fitting(width, size * columns // width, out)
        parts = [(slice(None),) * (outer - 1) + (slice(k, k + several),) for k in range(0, width, several)]
        columns = several * columns // width
    rows = _fitting(size, columns, out)
    starts = range(0, size, rows)
    for part in parts:
        for start in reversed(starts) if reverse else starts:
            stop = min(start + rows, size)
            yield Block(part, slice(start, stop), stop == size if reverse else start == 0)


def _fitting(count: int, numbers: int, out: Tensor) -> int:
    """Return how many times so many numbers a block may have."""
    return min(count, BLOCKS_CACHED * block_rows(count, numbers, out.element_size(), out.device))


class Desk:
    """Where the rows of a block are worked on: in the output itself, or in a buffer that every block uses."""

    def __init__(self, out: Tensor) -> None:
        self.out = out
        self.direct = out.dtype not in HALF and (out.stride(0) >= RUN or out[0].numel() == 1)
        self.memory: Tensor | None = None

    def rows(self, block: Block) -> Tensor:
        """Return the place for the rows of a block."""
        place = self.out[block.index]
        if self.direct:
            return place
        return self.buffer(place)

    def buffer(self, like: Tensor) -> Tensor:
        """Return a buffer of a shape, wide enough to compute with; the same memory each time."""
        if self.memory is None or self.memory.numel() < like.numel():
            dtype = torch.float32 if self.out.dtype in HALF else self.out.dtype
            self.memory = torch.empty(like.numel(), dtype=dtype, device=like.device)
        return self.memory[: like.numel()].view(like.shape)

    def done(self, block: Block, rows: Tensor) -> None:
        """Put finished rows where they belong."""
        if not self.direct:
            put(self.out[block.index], rows)


def put(target: Tensor, source: Tensor) -> Tensor:
    """Copy rows into a target that may lie across them, and return it.

    For matrices that lie across each other PyTorch has a kernel of its own, three times as fast.
    """
    if target.dim() > 1:
        flat, rows = target.flatten(1), source.flatten(1)
        if flat.data_ptr() == target.data_ptr():  # a view
            across = flat.stride(0) < flat.stride(1)
            (flat.t() if across else flat).copy_(rows.t() if across else rows)
            return target
    return target.copy_(source)


def joined(combine: Callable[..., Tensor], x: Tensor, dim: int, reverse: bool) -> Tensor:
    """Return ``x`` with each row joined to all rows before it, by an operation that may be grouped in any way."""
    result = torch.empty_like(x)
    if not x.numel():
        return result
    x, out = x.movedim(dim, 0), result.movedim(dim, 0)
    desk, before = Desk(out), None
    for block in blocks(out, reverse):
        own = put(desk.rows(block), x[block.index])
        first, last = (-1, 0) if reverse else (0, -1)
        if not block.begins:
            combine(own[first], before, out=own[first])
        for late, early, _ in pairs(len(own), reverse):
            combine(own[late], own[early], out=own[late])
        before = own[last] if desk.direct else own[last].clone()
        desk.done(block, own)
    return result


def by_kernel(kernel: Callable[..., Tensor], x: Tensor, dim: int, reverse: bool) -> Tensor:
    """Return what a function of PyTorch gives that runs along a dimension.

    Where rows are wide it gets blocks that are copied together: else it would read each number from another part of the
    memory. What it makes beside its result is as small as a block.
    """
    out = torch.empty_like(x) if spread(x, dim, COLUMNS) else None
    if out is None or x.stride() != out.stride():
        return kernel(x.flip(dim), dim).flip(dim) if reverse else kernel(x, dim)
    place, source = _layers(out, dim), _layers(x, dim)
    layers, size, columns = place.shape
    width = max(COLUMNS, block_rows(columns, size, out.element_size(), out.device) // 2)
    for layer in range(layers):
        for start in range(0, columns, width):
            index = (layer, slice(None), slice(start, start + width))
            if reverse:
                place[index].copy_(kernel(source[index].flip(0), 0).flip(0))
            else:
                place[index].copy_(kernel(source[index].contiguous(), 0))
    return out


def spread(x: Tensor, dim: int, least: int) -> bool:
    """Tell whether blocks pay for what runs along a dimension: eager mode, and wide rows that leave the cache."""
    # The mode first: while torch.compile traces a backward it knows no strides.
    if not by_hand(x) or not x.numel() or x.stride(dim) < least:
        return False
    return x.numel() * x.element_size() > CACHED_BYTES.get(x.device.type, math.inf)


def _layers(x: Tensor, dim: int) -> Tensor:
    """Return a view of a dense tensor with what lies outside of a dimension, that, and what lies inside."""
    order = sorted(range(x.dim()), key=x.stride, reverse=True)
    place = order.index(dim % x.dim())
    shape = [x.shape[k] for k in order]
    return x.permute(order).view(math.prod(shape[:place]), shape[place], math.prod(shape[place + 1 :]))
