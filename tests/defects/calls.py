"""How the Function is called: the same buffer twice, containers, modules, captured tensors, registration."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from tests.defects.entries import DOUBLE, Defect, Fresh, rule, x

SINE = rule(lambda x: x.sin(), lambda g, x: g * x.cos(), name="Sine")
REACH = ("gradients-reach-leaves",)


def aliased(g: Tensor, x: Tensor, w: Tensor) -> Any:
    return g, g.mul_(2)


class TwiceTheSame(Function):
    """Gives one tensor as the gradient of two inputs, which is right."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
        return x + w

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return g, g


class ListArgument(Function):
    """Tensors inside a list: autograd does not see them."""

    @staticmethod
    def forward(ctx: Any, parts: list[Tensor]) -> Tensor:
        return torch.stack([p.detach() for p in parts]).sum(0)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return None


class Spread(Function):
    @staticmethod
    def forward(ctx: Any, *parts: Tensor) -> Tensor:
        ctx.count = len(parts)
        return torch.stack(parts).sum(0)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return (g,) * ctx.count


def returning(pack: Any) -> type[Function]:
    class Packed(Function):
        """Returns its output inside a container."""

        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Any:
            ctx.save_for_backward(x)
            return pack(x.sin())

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            (x,) = ctx.saved_tensors
            return g * x.cos()

    return Packed


class ZeroWeightGradient(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
        ctx.save_for_backward(x, w)
        return x @ w.t()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        _, w = ctx.saved_tensors
        return g @ w, torch.zeros_like(w)


class MatmulTransposed(ZeroWeightGradient):
    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        x, w = ctx.saved_tensors
        return g @ w, g.t() @ x


class Layer(torch.nn.Module):
    """A layer around one of the two Functions."""

    def __init__(self, function: type[Function]) -> None:
        super().__init__()
        self.function = function
        self.weight = torch.nn.Parameter(x(2, 3, seed=3))

    def forward(self, x: Tensor) -> Tensor:
        return self.function.apply(x, self.weight)


class BackwardOnModule(torch.nn.Module):
    """Has a ``backward`` that nobody calls."""

    def forward(self, x: Tensor) -> Tensor:
        return x.round()

    def backward(self, g: Tensor) -> Tensor:
        return g


def captured(lost: bool) -> Any:
    """A callable that uses a tensor which requires grad; its Function may forget it."""
    scale = torch.tensor(1.5, dtype=DOUBLE, requires_grad=True)

    class Scaled(Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x * scale

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            return g * scale

    if lost:
        return lambda x: Scaled.apply(x)
    return lambda x: x * scale


class NoBackward(Function):
    """Has no backward, and detaches its output."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        out = x.exp()
        ctx.mark_non_differentiable(out)
        return out


def same_twice(wrong: bool) -> type[Function]:
    """Adds up gradients in a dictionary by the identity of the input, so that a tensor passed twice counts once."""

    class Product(Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
            ctx.save_for_backward(x, w)
            ctx.same = x.data_ptr() == w.data_ptr()
            return x * w

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            x, w = ctx.saved_tensors
            if wrong and ctx.same:
                return g * 2 * x, g * 2 * x
            return g * w, g * x

    return Product


DEFECTS = [
    Defect(
        "grad_output returned for one input and changed in place for the other",
        rule(lambda x, w: x + 2 * w, aliased, name="Sum", once=True),
        rule(lambda x, w: x + 2 * w, lambda g, x, w: (g, 2 * g), name="Sum"),
        lambda: (x(4), x(4, seed=1)),
        ("matches-differences", "cotangent-untouched"),
        None,
        95,
    ),
    Defect(
        "one tensor returned as the gradient of two inputs: right",
        TwiceTheSame,
        None,
        lambda: (x(4), x(4, seed=1)),
        (),
        number=96,
        control=True,
    ),
    Defect(
        "forward has no backward at all, the output is detached",
        NoBackward,
        rule(lambda x: x.exp(), lambda g, x: g * x.exp(), name="Exp"),
        lambda: (x(4),),
        ("matches-differences", "non-differentiable-outputs", "gradients-reach-leaves"),
        r"requires grad|non.?differentiable",
        case="C12",
    ),
    Defect(
        "module whose weight gradient is zero",
        Fresh(lambda: Layer(ZeroWeightGradient)),
        Fresh(lambda: Layer(MatmulTransposed)),
        lambda: (x(4, 3),),
        ("matches-differences",),
        r"weight",
        case="D4",
    ),
    Defect(
        "tensors inside a list argument get no gradient",
        ListArgument,
        Spread,
        lambda: ([x(3), x(3, seed=1)],),
        (),
        None,
        raises="autograd does not track tensors inside containers",
        case="I4",
        twin_inputs=lambda: (x(3), x(3, seed=1)),
    ),
    Defect(
        "output in a dictionary",
        returning(lambda out: {"out": out}),
        SINE,
        lambda: (x(3),),
        (*REACH, "matches-differences"),
        r"dict|container|requires grad",
        case="I5",
    ),
    Defect(
        "output in a list, not a tuple",
        returning(lambda out: [out]),
        SINE,
        lambda: (x(3),),
        (*REACH, "matches-differences"),
        r"list|container|requires grad",
        case="I6",
    ),
    Defect(
        "backward defined on a module, where it is never called",
        BackwardOnModule(),
        rule(lambda x: x.round(), lambda g, x: 0 * g, name="Round"),
        lambda: (3 * x(4),),
        (),
        None,
        note="never called",
        case="I8",
    ),
    Defect(
        "gradient of a captured tensor lost",
        Fresh(lambda: captured(lost=True)),
        Fresh(lambda: captured(lost=False)),
        lambda: (x(4),),
        REACH,
        r"captur|closure|scale",
        100,
    ),
    Defect(
        "the same tensor passed twice counts twice over",
        same_twice(wrong=True),
        same_twice(wrong=False),
        lambda: (x(4), x(4, seed=1)),
        ("same-tensor-twice",),
        r"twice|same",
    ),
]
