"""The interface of backward: counts, None, undefined gradients, outputs that are not differentiable."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from tests.defects.entries import Defect, rule, t, x

SIN_COS = rule(lambda x: (x.sin(), x.cos()), lambda g, h, x: g * x.cos() - h * x.sin(), name="SinCos")
PRODUCT = rule(lambda x, w: x * w, lambda g, x, w: (g * w, g * x), name="Product")
SINE = rule(lambda x: x.sin(), lambda g, x: g * x.cos(), name="Sine")


class CrashesOnSubset(Function):
    """Fails when its first input needs no gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
        ctx.save_for_backward(x, w)
        return x * w

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        x, w = ctx.saved_tensors
        grad_x = g * w if ctx.needs_input_grad[0] else None
        grad_x = grad_x.contiguous()
        return grad_x, g * x


class SubsetMatters(Function):
    """The gradient of the second input is left out with that of the first."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
        ctx.save_for_backward(x, w)
        return x * w

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        x, w = ctx.saved_tensors
        return (g * w, g * x) if ctx.needs_input_grad[0] else (None, None)


class SubsetRight(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
        ctx.save_for_backward(x, w)
        return x * w

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        x, w = ctx.saved_tensors
        return g * w if ctx.needs_input_grad[0] else None, g * x if ctx.needs_input_grad[1] else None


def undefined(instead: Any) -> type[Function]:
    """Two outputs; ``instead`` is what an undefined gradient is replaced by."""

    class TwoOutputs(Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Any:
            ctx.set_materialize_grads(False)
            ctx.save_for_backward(x)
            return x.sin(), x.cos()

        @staticmethod
        def backward(ctx: Any, g: Tensor | None, h: Tensor | None) -> Any:
            (x,) = ctx.saved_tensors
            g = instead(x) if g is None else g
            h = instead(x) if h is None else h
            return g * x.cos() - h * x.sin()

    return TwoOutputs


def marked(second: Any, *, mark: bool, all_outputs: bool = False) -> type[Function]:
    """Two outputs, of which the second (or both) may be declared non-differentiable."""

    class Marked(Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Any:
            ctx.save_for_backward(x)
            out, other = x.sin(), second(x)
            if mark:
                ctx.mark_non_differentiable(*((out, other) if all_outputs else (other,)))
            return out, other

        @staticmethod
        def backward(ctx: Any, g: Tensor, h: Tensor) -> Any:
            (x,) = ctx.saved_tensors
            return g * x.cos() - (0 if mark else h * x.sin())

    return Marked


class OnlyOutputMarked(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        out = x.sin()
        ctx.mark_non_differentiable(out)
        return out

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return g


class CountsUnmarked(Function):
    """Returns how many elements are positive, as a float that is not marked; backward rightly ignores it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Any:
        ctx.save_for_backward(x)
        return x.sin(), (x > 0).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, g: Tensor, h: Tensor) -> Any:
        (x,) = ctx.saved_tensors
        return g * x.cos()


class DetachesSecond(Function):
    """The second output loses its gradient: backward never uses what comes in for it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Any:
        ctx.save_for_backward(x)
        return x.sin(), x.cos()

    @staticmethod
    def backward(ctx: Any, g: Tensor, h: Tensor) -> Any:
        (x,) = ctx.saved_tensors
        return g * x.cos()


def affine(shifted: bool) -> type[Function]:
    """An optional bias; with the mistake the gradients move up one place when it is absent."""

    class Affine(Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, b: Tensor | None, w: Tensor) -> Tensor:
            ctx.save_for_backward(x, w)
            ctx.has_bias = b is not None
            return x * w if b is None else x * w + b

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            x, w = ctx.saved_tensors
            if shifted and not ctx.has_bias:
                return g * w, g * x
            return g * w, g if ctx.has_bias else None, g * x

    return Affine


def counting(count: int) -> type[Function]:
    """A product of two tensors that returns ``count`` gradients."""

    class Product(Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
            ctx.save_for_backward(x, w)
            return x * w

        @staticmethod
        @once_differentiable
        def backward(ctx: Any, g: Tensor) -> Any:
            x, w = ctx.saved_tensors
            return (g * w, g * x, None, None)[:count]

    return Product


class UnusedGradient(Function):
    """Passes two tensors through; the gradient of the one that is not used is zeros."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor) -> Any:
        return x.clone(), y.clone()

    @staticmethod
    def backward(ctx: Any, g: Tensor, h: Tensor) -> Any:
        return g, h


NON_DIFFERENTIABLE = ("non-differentiable-outputs", "matches-differences")

DEFECTS = [
    Defect(
        "crash when the first input needs no gradient",
        CrashesOnSubset,
        SubsetRight,
        lambda: (x(4), x(4, seed=1)),
        ("needs-input-grad-subsets",),
        r"needs|require",
        62,
    ),
    Defect(
        "gradient lost when the first input needs none",
        SubsetMatters,
        SubsetRight,
        lambda: (x(4), x(4, seed=1)),
        ("needs-input-grad-subsets",),
        r"needs|require",
    ),
    Defect(
        "undefined gradients asked for and not handled",
        undefined(lambda x: None),
        undefined(torch.zeros_like),
        lambda: (x(4),),
        ("undefined-cotangents",),
        r"None|undefined",
        64,
    ),
    Defect(
        "undefined gradient replaced by ones",
        undefined(torch.ones_like),
        undefined(torch.zeros_like),
        lambda: (x(4),),
        ("undefined-cotangents", "matches-differences", "linear-in-cotangent"),
        r"None|undefined|unused",
        65,
    ),
    Defect(
        "differentiable output marked non-differentiable, one of two",
        marked(lambda x: x.cos(), mark=True),
        marked(lambda x: x.cos(), mark=False),
        lambda: (x(4),),
        ("non-differentiable-outputs",),
        r"non.?differentiable|output 1",
        67,
    ),
    Defect(
        "the only output marked non-differentiable",
        OnlyOutputMarked,
        SINE,
        lambda: (x(4),),
        NON_DIFFERENTIABLE,
        r"non.?differentiable|requires grad",
        68,
    ),
    Defect(
        "a float output of whole numbers is not marked and its gradient ignored: right",
        CountsUnmarked,
        None,
        lambda: (x(4),),
        (),
        number=69,
        control=True,
    ),
    Defect(
        "optional bias None: gradients shifted by one place",
        affine(shifted=True),
        affine(shifted=False),
        lambda: (x(4), None, x(4, seed=1)),
        ("gradient-count",),
        r"2 gradients|gradient",
        107,
    ),
    Defect(
        "gradient of a differentiable input silently None",
        rule(lambda x, w: x.sin() * w, lambda g, x, w: (None, g * x.sin()), name="Wave"),
        rule(lambda x, w: x.sin() * w, lambda g, x, w: (g * w * x.cos(), g * x.sin()), name="Wave"),
        lambda: (x(4), x(4, seed=1)),
        ("matches-differences",),
        r"returns None",
        111,
    ),
    Defect(
        "a float output depends on the input and is marked non-differentiable",
        marked(lambda x: x.exp(), mark=True),
        marked(lambda x: (x > 0).to(x.dtype), mark=True),
        lambda: (x(4),),
        ("non-differentiable-outputs",),
        r"non.?differentiable|output 1",
        case="D5",
    ),
    Defect(
        "two outputs, the gradient of the second lost",
        DetachesSecond,
        SIN_COS,
        lambda: (x(4),),
        ("matches-differences",),
        r"zeros",
        case="D6",
    ),
    Defect(
        "two tensors, one gradient returned",
        counting(1),
        counting(2),
        lambda: (x(4), x(4, seed=1)),
        ("gradient-count",),
        r"gradient",
        case="I1",
    ),
    Defect(
        "more gradients than inputs, all None: right",
        counting(4),
        None,
        lambda: (x(4), x(4, seed=1)),
        (),
        case="I2",
        control=True,
    ),
    Defect(
        "two tensors passed through, the gradient of the unused one is zeros: right",
        UnusedGradient,
        None,
        lambda: (x(2), t(1.0, 2.0)),
        (),
        case="K2",
        control=True,
    ),
]
