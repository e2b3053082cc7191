"""Wrong custom gradients: one classic mistake each. All of them train without an error.

Run ``gradwright check examples/broken.py``: it exits with status 1 and names every mistake. The findings are intended.
"""

import torch
from torch import Tensor
from torch.autograd import Function


class GradientMissing(Function):
    """Mistake: one gradient too few. Forward has two arguments, so backward must return two values: ``g * k, None``."""

    @staticmethod
    def forward(ctx, x, k):
        ctx.k = k
        return x * k

    @staticmethod
    def backward(ctx, g):
        return g * ctx.k


class FactorMissing(Function):
    """Mistake: the cotangent is not multiplied in. Right only where the loss is the plain sum of the output."""

    @staticmethod
    def forward(ctx, x):
        out = torch.exp(x)
        ctx.save_for_backward(out)
        return out

    @staticmethod
    def backward(ctx, g):
        (out,) = ctx.saved_tensors
        return out


class SignWrong(Function):
    """Mistake: a wrong sign. The derivative of cos is -sin."""

    @staticmethod
    def forward(ctx, angle):
        sin, cos = torch.sin(angle), torch.cos(angle)
        ctx.save_for_backward(sin, cos)
        return sin, cos

    @staticmethod
    def backward(ctx, g_sin, g_cos):
        sin, cos = ctx.saved_tensors
        return g_sin * cos + g_cos * sin


class KeptOnContext(Function):
    """Mistake: a tensor kept as an attribute of ``ctx`` instead of being saved with ``ctx.save_for_backward``.

    Nobody notices when ``x`` is changed in place between forward and backward: the gradient is then silently wrong.
    """

    @staticmethod
    def forward(ctx, x):
        ctx.x = x
        return torch.sin(x)

    @staticmethod
    def backward(ctx, g):
        return g * torch.cos(ctx.x)


class CotangentOverwritten(Function):
    """Mistake: backward writes into the cotangent it was given, which others may still need."""

    @staticmethod
    def forward(ctx, x):
        out = torch.exp(x)
        ctx.save_for_backward(out)
        return out

    @staticmethod
    def backward(ctx, g):
        (out,) = ctx.saved_tensors
        return g.mul_(out)


class SecondDerivativeSilent(Function):
    """Mistake: an intermediate result saved for backward. The second derivative takes it for a constant.

    x * sigmoid(x) with sigmoid(x) saved. The first derivative is right; the second lacks a part, without an error.
    """

    @staticmethod
    def forward(x: Tensor) -> tuple[Tensor, Tensor]:
        sigmoid = torch.sigmoid(x)
        return x * sigmoid, sigmoid

    @staticmethod
    def setup_context(ctx, inputs, output):
        (x,) = inputs
        _, sigmoid = output
        ctx.mark_non_differentiable(sigmoid)
        ctx.save_for_backward(x, sigmoid)

    @staticmethod
    def backward(ctx, g, _):
        x, sigmoid = ctx.saved_tensors
        return g * (sigmoid + x * sigmoid * (1 - sigmoid))


def normal(*shape: int) -> Tensor:
    """Return the same normally distributed float64 numbers each time."""
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


gradwright_samples = {
    "GradientMissing": (normal(3), 2),
    "FactorMissing": normal(3),
    "SignWrong": normal(3),
    "KeptOnContext": normal(3),
    "CotangentOverwritten": normal(3),
    "SecondDerivativeSilent": normal(3),
}
