"""Writes of which it is known which one wins where several go to one place.

The numbers of the writes are written by the same indices; what is read back at a place is the number of its winner.
Where the order of writes is left to a device or a compiler, the next such write might be won by another. There each one
writes the value of the winner, so that it does not matter.

Whatever indices look like, there are two kinds: slices along a dimension, and single numbers along a dimension.
"""

from __future__ import annotations

import torch
from torch import Tensor

from gradwright import torch_compat
from gradwright.authoring.decorator import custom_gradient
from gradwright.stable.selecting import keep


def write_numbers(input: Tensor, dim: int, index: Tensor, src: Tensor) -> Tensor:
    """Return ``input.scatter(dim, index, src)``, for an index and a source of one shape."""
    winner, kept = _winners(index, dim, input.shape[dim])
    return scattered(input, src, dim, index, kept, None if _in_order(index) else winner.long())


def write_rows(input: Tensor, dim: int, index: Tensor, source: Tensor) -> Tensor:
    """Return ``input.index_copy(dim, index, source)``, for an index of one dimension."""
    if input.ndim == 1:
        return write_numbers(input, dim, index, source)
    winner, kept = _winners(index, 0, input.shape[dim])
    return written_rows(input, source, dim, index, kept, winner.long())


@custom_gradient
def scattered(input: Tensor, src: Tensor, dim: int, index: Tensor, kept: Tensor, winner: Tensor | None) -> Tensor:
    """Write single numbers.

    Arguments:
        src, index, kept: of one shape; ``kept`` says which writes win.
        winner: for each write the place along ``dim`` of the one that wins; None where the last one does.
    """
    return input.scatter(dim, index, _numbers(src, dim, winner))


@scattered.vjp
def scattered_vjp(g: Tensor, dim: int, index: Tensor, kept: Tensor, needs: dict[str, bool]) -> dict[str, Tensor | None]:
    return {
        "input": _cleared(g, dim, index) if needs["input"] else None,
        "src": keep(_read(g, dim, index), kept) if needs["src"] else None,
    }


@scattered.jvp
def scattered_jvp(t: dict[str, Tensor | None], input: Tensor, dim: int, index: Tensor, winner: Tensor | None) -> Tensor:
    moved, written = t["input"], t["src"]
    moved = torch.zeros_like(input) if moved is None else moved
    if written is None:
        return _cleared(moved, dim, index)
    return moved.scatter(dim, index, _numbers(written, dim, winner))


def _numbers(src: Tensor, dim: int, winner: Tensor | None) -> Tensor:
    return src if winner is None else _read(src, dim, winner)


@custom_gradient
def written_rows(input: Tensor, source: Tensor, dim: int, index: Tensor, kept: Tensor, winner: Tensor) -> Tensor:
    """Write slices, each time those of the winner.

    Arguments:
        index, kept, winner: of one dimension, as long as ``source`` is in ``dim``; as in :func:`scattered`.
    """
    return input.index_copy(dim, index, source.index_select(dim, winner))


@written_rows.vjp
def written_rows_vjp(
    g: Tensor, dim: int, index: Tensor, kept: Tensor, needs: dict[str, bool]
) -> dict[str, Tensor | None]:
    found: dict[str, Tensor | None] = {"input": None, "source": None}
    if needs["input"]:
        found["input"] = g.index_fill(dim, index, 0.0)
    if needs["source"]:
        after = g.ndim - 1 - dim % g.ndim
        found["source"] = keep(g.index_select(dim, index), kept.reshape(-1, *[1] * after))
    return found


@written_rows.jvp
def written_rows_jvp(t: dict[str, Tensor | None], input: Tensor, dim: int, index: Tensor, winner: Tensor) -> Tensor:
    moved, written = t["input"], t["source"]
    moved = torch.zeros_like(input) if moved is None else moved
    if written is None:
        return moved.index_fill(dim, index, 0.0)
    return moved.index_copy(dim, index, written.index_select(dim, winner))


def _read(x: Tensor, dim: int, index: Tensor) -> Tensor:
    return x.index_select(0, index) if x.ndim == 1 else x.gather(dim, index)  # it takes a quarter of the time


def _cleared(x: Tensor, dim: int, index: Tensor) -> Tensor:
    return x.index_fill(0, index, 0.0) if x.ndim == 1 else x.scatter(dim, index, 0.0)


def _in_order(index: Tensor) -> bool:
    """Tell whether ``scatter`` writes in order, so that the last one wins.

    Its kernel for CPUs does: one thread goes along ``dim`` for each line. That of ``index_copy`` shares the index among
    threads, and what compilers and other devices do is theirs.
    """
    return index.device.type == "cpu" and not torch_compat.is_recording()


def _winners(index: Tensor, dim: int, size: int) -> tuple[Tensor, Tensor]:
    """Return for each write the number, along ``dim``, of the one that wins at its place, and whether that is it."""
    dim = dim % index.ndim
    length = index.shape[dim]
    # The shortest integers that can count the writes: reading and writing them takes most of the time.
    dtype = torch.int16 if length <= torch.iinfo(torch.int16).max else torch.int32
    shape = [length if d == dim else 1 for d in range(index.ndim)]
    own = torch.arange(length, device=index.device, dtype=dtype).reshape(shape).expand(index.shape)
    places = [size if d == dim else n for d, n in enumerate(index.shape)]
    winner = own.new_empty(places).scatter(dim, index, own)
    winner = _read(winner, dim, index)  # only what was written
    return winner, winner == own
