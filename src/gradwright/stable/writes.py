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
    return scattered(input, src, dim, index, *_winners(index, dim, input.shape[dim]))


def write_rows(input: Tensor, dim: int, index: Tensor, source: Tensor) -> Tensor:
    """Return ``input.index_copy(dim, index, source)``, for an index of one dimension."""
    return written_rows(input, source, dim, index, *_winners(index, 0, input.shape[dim]))


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
        "input": g.scatter(dim, index, 0.0) if needs["input"] else None,
        "src": keep(g.gather(dim, index), kept) if needs["src"] else None,
    }


@scattered.jvp
def scattered_jvp(t: dict[str, Tensor | None], input: Tensor, dim: int, index: Tensor, winner: Tensor | None) -> Tensor:
    moved, written = t["input"], t["src"]
    moved = torch.zeros_like(input) if moved is None else moved
    if written is None:
        return moved.scatter(dim, index, 0.0)
    return moved.scatter(dim, index, _numbers(written, dim, winner))


def _numbers(src: Tensor, dim: int, winner: Tensor | None) -> Tensor:
    return src if winner is None else src.gather(dim, winner)


@custom_gradient
def written_rows(input: Tensor, source: Tensor, dim: int, index: Tensor, kept: Tensor, winner: Tensor | None) -> Tensor:
    """Write slices.

    Arguments:
        index, kept, winner: of one dimension, as long as ``source`` is in ``dim``; as in :func:`scattered`.
    """
    return input.index_copy(dim, index, _slices(source, dim, winner))


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
def written_rows_jvp(
    t: dict[str, Tensor | None], input: Tensor, dim: int, index: Tensor, winner: Tensor | None
) -> Tensor:
    moved, written = t["input"], t["source"]
    moved = torch.zeros_like(input) if moved is None else moved
    if written is None:
        return moved.index_fill(dim, index, 0.0)
    return moved.index_copy(dim, index, _slices(written, dim, winner))


def _slices(source: Tensor, dim: int, winner: Tensor | None) -> Tensor:
    return source if winner is None else source.index_select(dim, winner)


def _winners(index: Tensor, dim: int, size: int) -> tuple[Tensor, Tensor | None]:
    """Return for each write whether it wins, and the number, along ``dim``, of the one that does.

    The kernels for CPUs go along ``dim`` in order, with one thread for each line: the last one wins, and None is
    returned for the numbers.
    """
    dim = dim % index.ndim
    length = index.shape[dim]
    in_order = index.device.type == "cpu" and not torch_compat.is_recording()
    short = torch.int16 if length <= torch.iinfo(torch.int16).max else torch.int32
    shape = [length if d == dim else 1 for d in range(index.ndim)]
    own = torch.arange(length, device=index.device, dtype=short if in_order else torch.int64)
    own = own.reshape(shape).expand(index.shape)
    places = [size if d == dim else n for d, n in enumerate(index.shape)]
    winner = own.new_empty(places).scatter(dim, index, own).gather(dim, index)  # reads only what was written
    return winner == own, None if in_order else winner
