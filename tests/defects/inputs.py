"""Right on the sample, wrong elsewhere: values, shapes and indices the sample does not contain."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from tests.defects.entries import Defect, positive, rule, t, x

VALUES = ("extreme-values",)
SHAPES = ("shapes",)
GRID = ("extreme-values", "shapes")

SQUARE = rule(lambda x: x * x, lambda g, x: g * 2 * x, name="Square")
BIAS = rule(lambda x, b: x + b, lambda g, x, b: (g, g.sum(0)), name="Bias")


def from_block(size: int) -> Any:
    def vjp(g: Tensor, x: Tensor) -> Tensor:
        grad = (g * 2 * x).reshape(-1)
        return torch.cat([grad[:size], 0 * grad[size:]]).reshape(x.shape)

    return vjp


def squeezed_bias(g: Tensor, x: Tensor, b: Tensor) -> Any:
    return g, g.squeeze().sum(0).expand(b.shape)


def safe_norm_vjp(g: Tensor, x: Tensor) -> Tensor:
    size = x.norm()
    return torch.where(size > 0, g * x / torch.where(size > 0, size, 1.0), 0 * x)


def scaled_square(g: Tensor, x: Tensor) -> Tensor:
    scale = x.abs().max()
    return g * 2 * (x / scale) * scale


def naive_sigmoid(g: Tensor, x: Tensor) -> Tensor:
    return g * x.exp() / (1 + x.exp()) ** 2


class Pick(Function):
    """Rows picked by an index; the gradient is added up."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, index: Tensor) -> Tensor:
        ctx.save_for_backward(index)
        ctx.shape = x.shape
        return x[index]

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        (index,) = ctx.saved_tensors
        return g.new_zeros(ctx.shape).index_add(0, index, g), None


class PickLast(Pick):
    """The same, but one of several gradients for the same row wins."""

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        (index,) = ctx.saved_tensors
        return g.new_zeros(ctx.shape).index_copy(0, index, g), None


DEFECTS = [
    Defect(
        "wrong on a branch that the sample does not visit",
        rule(lambda x: x * x, lambda g, x: g * 2 * x * (x <= 4), name="Square"),
        SQUARE,
        lambda: (x(5),),
        GRID,
        number=20,
    ),
    Defect(
        "NaN at zero, the sample has none",
        rule(lambda x: x.norm(), lambda g, x: g * x / x.norm(), name="Norm"),
        rule(lambda x: x.norm(), safe_norm_vjp, name="Norm"),
        lambda: (x(4),),
        GRID,
        r"NaN",
        21,
    ),
    Defect(
        "wrong for a batch of one, the sample has three",
        rule(lambda x, b: x + b, squeezed_bias, name="Bias"),
        BIAS,
        lambda: (x(3, 4), x(4)),
        SHAPES,
        number=23,
    ),
    Defect(
        "backward crashes on an empty input",
        rule(lambda x: x * x, scaled_square, name="Square"),
        SQUARE,
        lambda: (x(4),),
        SHAPES,
        r"empty|zero.size|\(0",
        24,
    ),
    Defect(
        "wrong past element 128, the sample has five",
        rule(lambda x: x * x, from_block(128), name="Square"),
        SQUARE,
        lambda: (x(5),),
        SHAPES,
        r"128|no gradient|block",
        26,
    ),
    Defect(
        "scatter without accumulation, the sample has no duplicates",
        PickLast,
        Pick,
        lambda: (x(5), torch.tensor([3, 0, 2])),
        GRID,
        r"duplicate|repeat|twice",
        27,
    ),
    Defect(
        "overflow for large inputs",
        rule(lambda x: x.sigmoid(), naive_sigmoid, name="Sigmoid"),
        rule(lambda x: x.sigmoid(), lambda g, x: g * x.sigmoid() * (-x).sigmoid(), name="Sigmoid"),
        lambda: (x(5),),
        GRID,
        r"NaN|overflow",
        106,
    ),
    Defect(
        "right for the first 64 elements, zero after them",
        rule(lambda x: x * x, from_block(64), name="Square"),
        SQUARE,
        lambda: (x(5),),
        SHAPES,
        r"64|no gradient|block",
        case="C4",
    ),
    Defect(
        "wrong where negative, the sample is positive",
        rule(lambda x: x * x, lambda g, x: g * 2 * x.abs(), name="Square"),
        SQUARE,
        lambda: (positive(5),),
        GRID,
        case="C8",
    ),
    Defect(
        "masked square root: NaN on the masked side",
        lambda x: torch.where(x > 0, x.sqrt(), x),
        lambda x: torch.where(x > 0, torch.where(x > 0, x, 1.0).sqrt(), x),
        lambda: (t(-1.0, 0.5, 2.0),),
        ("matches-differences",),
        r"NaN",
        case="K7",
    ),
    Defect(
        "square root of a sum of squares at zero",
        lambda x: (x * x).sum(-1).sqrt(),
        lambda x: x.norm(dim=-1),
        lambda: (torch.stack([x(3), torch.zeros(3, dtype=torch.float64)]),),
        ("matches-differences", "extreme-values"),
        r"NaN",
    ),
]
