"""Sparse gradients."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from tests.defects.entries import Defect, x


def lookup(values: Any) -> type[Function]:
    """Rows of a table; the gradient is a sparse tensor whose indices and values ``values`` prepares."""

    class Lookup(Function):
        @staticmethod
        def forward(ctx: Any, table: Tensor, index: Tensor) -> Tensor:
            ctx.save_for_backward(index)
            ctx.shape = table.shape
            return table[index]

        @staticmethod
        @once_differentiable
        def backward(ctx: Any, g: Tensor) -> Any:
            (index,) = ctx.saved_tensors
            where, what = values(index, g)
            return torch.sparse_coo_tensor(where[None], what, ctx.shape, check_invariants=False), None

    return Lookup


def last_of_each(index: Tensor, g: Tensor) -> Any:
    last = {int(row): place for place, row in enumerate(index.tolist())}
    places = torch.tensor(list(last.values()))
    return index[places], g[places]


def first_twice(index: Tensor, g: Tensor) -> Any:
    return torch.cat([index, index[:1]]), torch.cat([g, g[:1]])


GRADIENT = ("matches-differences",)

DEFECTS = [
    Defect(
        "sparse gradient: values of duplicate indices overwritten",
        lookup(last_of_each),
        lookup(lambda index, g: (index, g)),
        lambda: (x(5, 2), torch.tensor([1, 3, 1])),
        GRADIENT,
        None,
        109,
    ),
    Defect(
        "sparse gradient: an index counted twice",
        lookup(first_twice),
        lookup(lambda index, g: (index, g)),
        lambda: (x(5, 2), torch.tensor([4, 0, 2])),
        GRADIENT,
        None,
        110,
    ),
]
