"""Second derivatives that are silently wrong or missing."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from tests.defects.entries import Defect, rule, x

SECOND = ("second-order",)
HINT = r"detach|constant|silently|double backward|second"


class SineGradient(Function):
    """The gradient of the sine as a Function of its own, with a derivative of the wrong sign."""

    @staticmethod
    def forward(ctx: Any, g: Tensor, x: Tensor) -> Tensor:
        ctx.save_for_backward(g, x)
        return g * x.cos()

    @staticmethod
    def backward(ctx: Any, h: Tensor) -> Any:
        g, x = ctx.saved_tensors
        return h * x.cos(), h * g * x.sin()


def through_numpy(g: Tensor, x: Tensor) -> Tensor:
    return torch.from_numpy(g.detach().numpy() * x.detach().cos().numpy())


class KeepsOnContext(Function):
    """(2x)^2, with 2x kept as an attribute."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.twice = 2 * x
        return ctx.twice**2

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return g * 4 * ctx.twice


class SavesIntermediate(Function):
    """x exp(x), with exp(x) saved."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        e = x.exp()
        ctx.save_for_backward(x, e)
        return x * e

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        x, e = ctx.saved_tensors
        return g * (e + x * e)


class NumpySine(Function):
    """Backward in NumPy, without @once_differentiable."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        (x,) = ctx.saved_tensors
        return torch.as_tensor(x.detach().cos().numpy()) * g.detach()


class OnceSine(Function):
    """Differentiable once, and says so only when the incoming gradient carries a graph."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> Any:
        (x,) = ctx.saved_tensors
        return g * x.cos()


SINE = rule(lambda x: x.sin(), lambda g, x: g * x.cos(), name="Sine")

DEFECTS = [
    Defect(
        "second derivative of the wrong sign",
        rule(lambda x: x.sin(), lambda g, x: SineGradient.apply(g, x), name="Sine"),
        SINE,
        lambda: (x(4),),
        SECOND,
        r"second derivative|double backward",
        80,
    ),
    Defect(
        "backward through NumPy: the graph is cut without a word",
        rule(lambda x: x.sin(), through_numpy, name="Sine"),
        SINE,
        lambda: (x(4),),
        SECOND,
        HINT,
        83,
    ),
    Defect(
        "an intermediate saved with save_for_backward",
        SavesIntermediate,
        rule(lambda x: x * x.exp(), lambda g, x: g * (1 + x) * x.exp(), name="XExp"),
        lambda: (x(4),),
        SECOND,
        HINT,
        101,
    ),
    Defect(
        "(2x)^2 with 2x kept on the context",
        KeepsOnContext,
        rule(lambda x: (2 * x) ** 2, lambda g, x: g * 8 * x, name="Square"),
        lambda: (x(4),),
        SECOND,
        HINT,
        case="F1",
    ),
    Defect(
        "x exp(x) with exp(x) saved",
        SavesIntermediate,
        rule(lambda x: x * x.exp(), lambda g, x: g * (1 + x) * x.exp(), name="XExp"),
        lambda: (x(2, 2),),
        SECOND,
        HINT,
        case="F2",
    ),
    Defect(
        "once_differentiable: a gradient penalty trains on its first term only",
        OnceSine,
        SINE,
        lambda: (x(4),),
        SECOND,
        r"once|penalty",
        case="F3",
        require=("second-order",),
    ),
    Defect(
        "backward in NumPy: a gradient penalty vanishes",
        NumpySine,
        SINE,
        lambda: (x(4),),
        SECOND,
        HINT,
        case="F4",
    ),
    Defect(
        "backward detaches a saved tensor",
        rule(lambda x: x.sin() ** 2, lambda g, x: g * 2 * x.sin() * x.detach().cos(), name="SineSquared"),
        rule(lambda x: x.sin() ** 2, lambda g, x: g * 2 * x.sin() * x.cos(), name="SineSquared"),
        lambda: (x(4),),
        SECOND,
        HINT,
        case="F5",
    ),
    Defect(
        "grad_output detached in backward",
        rule(lambda x: x.sin(), lambda g, x: g.detach() * x.cos(), name="Sine"),
        SINE,
        lambda: (x(4),),
        SECOND,
        HINT,
    ),
]
