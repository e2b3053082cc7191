"""Right custom gradients, in the styles people write them.

Run ``gradwright check examples/tour.py``: every Function defined here is found, run on the samples declared at the
bottom, and passes. This is a plain PyTorch file; nothing in it imports gradwright.
"""

import numpy as np
import torch
from torch import Tensor
from torch.autograd import Function


class MyExp(Function):
    """exp(x). Its derivative is its own output, so forward saves the output instead of computing it twice."""

    @staticmethod
    def forward(ctx, x):
        out = torch.exp(x)
        ctx.save_for_backward(out)
        return out

    @staticmethod
    def backward(ctx, g):
        (out,) = ctx.saved_tensors
        return g * out


class RoundSTE(Function):
    """Rounding, with the gradient of the identity: a straight-through estimator.

    The true derivative of rounding is zero almost everywhere. The rule uses that of ``x -> x`` instead, on purpose, and
    the samples below say so.
    """

    @staticmethod
    def forward(ctx, x):
        return torch.round(x)

    @staticmethod
    def backward(ctx, g):
        return g


class SetupContextExp(Function):
    """exp(x) again, in the newer style: forward without ``ctx``, and ``setup_context``.

    No sample is declared for this one: the annotation tells that ``x`` is a tensor, and the report says which inputs
    were used.
    """

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return torch.exp(x)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(output)

    @staticmethod
    def backward(ctx, g):
        (out,) = ctx.saved_tensors
        return g * out


class SetupContextRound(Function):
    """The straight-through rounding again, in the newer style."""

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return torch.round(x)

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, g):
        return g


class Scale(Function):
    """k * x with a Python number ``k``: backward returns one value for each argument of forward, None for ``k``."""

    @staticmethod
    def forward(ctx, x, k):
        ctx.k = k
        return x * k

    @staticmethod
    def backward(ctx, g):
        return g * ctx.k, None


class NumpySinh(Function):
    """sinh(x) computed by NumPy, which autograd cannot see into. The derivative, cosh, is a Function as well."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.as_tensor(np.sinh(x.detach().numpy()))

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * NumpyCosh.apply(x)


class NumpyCosh(Function):
    """cosh(x) computed by NumPy; with NumpySinh it is differentiable any number of times."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.as_tensor(np.cosh(x.detach().numpy()))

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * NumpySinh.apply(x)


class SinCos(Function):
    """Two outputs, so backward receives two cotangents. Each output is what the derivative of the other needs."""

    @staticmethod
    def forward(ctx, angle):
        sin, cos = torch.sin(angle), torch.cos(angle)
        ctx.save_for_backward(sin, cos)
        return sin, cos

    @staticmethod
    def backward(ctx, g_sin, g_cos):
        sin, cos = ctx.saved_tensors
        return g_sin * cos - g_cos * sin


# --- samples --------------------------------------------------------------------------------------
# On what to check each Function. Both ways are plain Python: a mapping by name, or a function named samples_<Name>.


def normal(*shape: int) -> Tensor:
    """Return the same normally distributed float64 numbers each time."""
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def identity(x: Tensor) -> Tensor:
    """What RoundSTE pretends to be when it is differentiated."""
    return x


gradwright_samples = {
    "MyExp": normal(3),  # one tensor: the only argument
    "RoundSTE": {"args": (normal(2, 3),), "surrogate": identity},
    "SetupContextRound": {"args": (normal(2, 3),), "surrogate": identity},
    "NumpySinh": normal(4),
    "NumpyCosh": normal(4),
    "SinCos": [normal(3), normal(2, 2)],  # a list: several samples
}


def samples_Scale():
    """Several samples, made when they are needed."""
    yield normal(3), 2  # a tuple: the positional arguments
    yield {"args": (normal(2, 2),), "kwargs": {"k": -3}, "name": "negative k"}
