"""Right subjects of awkward kinds, each with inputs: no contract may accuse any of them."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from tests.subjects import (
    ClassMethods,
    ComplexSquare,
    Exp,
    Gather,
    InPlaceDouble,
    Linear,
    NewStyleScale,
    NumpySquare,
    RoundSTE,
    Scale,
    SinCos,
    variant,
    x,
)

TABLE = torch.linspace(0.0, 1.0, 7, dtype=torch.float64)
FROZEN = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)
LEARNT = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64, requires_grad=True)
CACHE: dict[Any, Tensor] = {}


class ViewBack(Function):
    """Returns a view of its input."""

    @staticmethod
    def forward(ctx: Any, t: Tensor) -> Tensor:
        ctx.shape = t.shape
        return t.view(-1)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return g.view(ctx.shape)


class Identity(Function):
    """Returns its input itself."""

    @staticmethod
    def forward(ctx: Any, t: Tensor) -> Tensor:
        return t

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return g


class Dropout(Function):
    """Draws a mask and saves it."""

    @staticmethod
    def forward(ctx: Any, t: Tensor) -> Tensor:
        mask = (torch.rand_like(t) > 0.5).to(t.dtype) * 2
        ctx.save_for_backward(mask)
        return t * mask

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        (mask,) = ctx.saved_tensors
        return g * mask


class StochasticGradient(Function):
    """A deterministic forward; backward rounds the gradient at random, on purpose."""

    @staticmethod
    def forward(ctx: Any, t: Tensor) -> Tensor:
        return t * 2

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return torch.floor(2 * g * 64 + torch.rand_like(g)) / 64


class SparseNone(Function):
    """Handles undefined gradients itself."""

    @staticmethod
    def forward(ctx: Any, t: Tensor) -> Any:
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(t)
        return t.sin(), t * t

    @staticmethod
    def backward(ctx: Any, a: Tensor | None, b: Tensor | None) -> Any:
        (t,) = ctx.saved_tensors
        parts = [p for p in (None if a is None else a * t.cos(), None if b is None else 2 * b * t) if p is not None]
        return sum(parts) if parts else None


class TopTwo(Function):
    """An integer output beside a differentiable one."""

    @staticmethod
    def forward(ctx: Any, t: Tensor) -> Any:
        values, index = t.topk(2)
        ctx.save_for_backward(index)
        ctx.n = len(t)
        ctx.mark_non_differentiable(index)
        return values, index

    @staticmethod
    def backward(ctx: Any, g: Tensor, _: Any) -> Any:
        (index,) = ctx.saved_tensors
        return g.new_zeros(ctx.n).index_add(0, index, g)


class Masked(Function):
    """A floating output that only jumps, marked as non-differentiable."""

    @staticmethod
    def forward(ctx: Any, t: Tensor) -> Any:
        mask = (t > 0).to(t.dtype)
        ctx.mark_non_differentiable(mask)
        ctx.save_for_backward(mask)
        return t * mask, mask

    @staticmethod
    def backward(ctx: Any, g: Tensor, _: Any) -> Any:
        return g * ctx.saved_tensors[0]


class LogSum(Function):
    """The two-part style returns an intermediate result in order to save it."""

    @staticmethod
    def forward(t: Tensor) -> tuple[Tensor, Tensor]:
        total = t.exp().sum(-1, keepdim=True)
        return t - total.log(), total

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(inputs[0], output[1])

    @staticmethod
    def backward(ctx: Any, g: Tensor, _: Any) -> Any:
        t, total = ctx.saved_tensors
        return g - t.exp() / total * g.sum(-1, keepdim=True)


class Interpolates(Function):
    """Uses constants from a global, and one that requires grad as a declared constant."""

    @staticmethod
    def forward(ctx: Any, t: Tensor) -> Tensor:
        scale = FROZEN.sum() + LEARNT.detach().sum() + TABLE[-1]
        ctx.save_for_backward(scale)
        return t * scale

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return g * ctx.saved_tensors[0]


class CachedTable(Function):
    """Computes a constant once and keeps it in a global on purpose."""

    @staticmethod
    def forward(ctx: Any, t: Tensor) -> Tensor:
        key = tuple(t.shape), t.dtype
        if key not in CACHE:
            CACHE[key] = torch.arange(1, t.numel() + 1, dtype=t.dtype).view(t.shape)
        ctx.save_for_backward(CACHE[key])
        return t * CACHE[key]

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return g * ctx.saved_tensors[0]


class Frees(Function):
    """Computes only the gradients that are asked for."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor) -> Tensor:
        ctx.save_for_backward(b if ctx.needs_input_grad[0] else None, a if ctx.needs_input_grad[1] else None)
        return a * b

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> Any:
        b, a = ctx.saved_tensors
        return None if b is None else g * b, None if a is None else g * a


class Aliases(Function):
    """Returns the same gradient twice, which the engine copies when it must."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor) -> Tensor:
        return a + b

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return g, g.view_as(g)


class Swap(Function):
    """Two inputs, two outputs, one a view of an input."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor) -> Any:
        return b * 2, a.view_as(a)

    @staticmethod
    def backward(ctx: Any, ga: Tensor, gb: Tensor) -> Any:
        return gb, ga * 2


class Nested(Function):
    """Applies another Function with a graph of its own in forward and differentiates it in backward."""

    @staticmethod
    def forward(ctx: Any, t: Tensor) -> Tensor:
        ctx.save_for_backward(t)
        return t.sin() * t

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> Any:
        (t,) = ctx.saved_tensors
        with torch.enable_grad():
            inner = t.detach().requires_grad_()
            out = inner.sin() * inner
        return torch.autograd.grad(out, inner, g)[0]


class Listed(Function):
    """Constants in a list."""

    @staticmethod
    def forward(ctx: Any, t: Tensor, weights: list[Tensor]) -> Tensor:
        ctx.save_for_backward(*weights)
        return sum(w * t for w in weights)  # type: ignore[return-value]

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return sum(w * g for w in ctx.saved_tensors), None


class Learns(torch.nn.Module):
    """A module with a buffer, a parameter and a custom gradient inside."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(3, dtype=torch.float64))
        self.register_buffer("shift", torch.ones(3, dtype=torch.float64))
        self.table = torch.arange(3.0, dtype=torch.float64)

    def forward(self, t: Tensor) -> Any:
        return Exp.apply(t * self.weight + self.shift) + self.table


def with_learnt(t: Tensor) -> Tensor:
    return Frees.apply(t, LEARNT)


def stopped(t: Tensor) -> Tensor:
    return t * LEARNT.detach()


def checkpointed(t: Tensor) -> Any:
    return checkpoint(lambda s: Exp.apply(s).sin(), t, use_reentrant=False)


def two_with_detached(t: Tensor) -> Any:
    return t.sin(), t.cos().detach()


def recursive(t: Tensor) -> Tensor:
    """Plain code with a reference cycle of its own."""

    def inner(depth: int) -> Tensor:
        return t * 2 if depth == 0 else inner(depth - 1)

    return inner(2)


def catches(t: Tensor) -> Tensor:
    """Holds an exception and its traceback for a while."""
    try:
        raise ValueError("inside")
    except ValueError as error:
        kept = error
    del kept
    return t.exp()


def z(*shape: int) -> Tensor:
    return torch.complex(x(*shape), x(*shape, seed=1))


with warnings.catch_warnings():
    # Building transformers warns about nested tensors.
    warnings.simplefilter("ignore")
    ENCODER = torch.nn.TransformerEncoderLayer(4, 2, 8, dropout=0.1, batch_first=True).double()

CASES: dict[str, tuple[Any, Callable[[], tuple[Any, ...]]]] = {
    "exp": (Exp, lambda: (x(3),)),
    "exp 0-dim": (Exp, lambda: (x(1)[0],)),
    "exp empty": (Exp, lambda: (x(0),)),
    "exp half": (Exp, lambda: (x(5).half(),)),
    "exp float32": (Exp, lambda: (x(5).float(),)),
    "exp transposed": (Exp, lambda: (x(2, 3).t(),)),
    "exp expanded": (Exp, lambda: (x(1, 3).expand(4, 3),)),
    "new style": (NewStyleScale, lambda: (x(3),)),
    "scale": (Scale, lambda: (x(3), 2)),
    "class methods": (ClassMethods, lambda: (x(3),)),
    "straight-through": (RoundSTE, lambda: (x(3),)),
    "two outputs": (SinCos, lambda: (x(3),)),
    "numpy": (NumpySquare, lambda: (x(3),)),
    "gather": (Gather, lambda: (x(3), torch.tensor([0, 2, 2]))),
    "in place": (InPlaceDouble, lambda: (x(3),)),
    "complex": (ComplexSquare, lambda: (z(3),)),
    "complex64": (ComplexSquare, lambda: (z(3).to(torch.complex64),)),
    "linear": (Linear, lambda: (x(2, 3), x(4, 3), x(4))),
    "linear without bias": (Linear, lambda: (x(2, 3), x(4, 3))),
    "square linear": (Linear, lambda: (x(3, 3), x(3, 3))),
    "view": (ViewBack, lambda: (x(2, 3),)),
    "identity": (Identity, lambda: (x(3),)),
    "dropout": (Dropout, lambda: (x(20),)),
    "stochastic gradient": (StochasticGradient, lambda: (x(20),)),
    "None handled": (SparseNone, lambda: (x(3),)),
    "top two": (TopTwo, lambda: (x(5),)),
    "mask returned": (Masked, lambda: (x(5),)),
    "intermediate returned": (LogSum, lambda: (x(2, 3),)),
    "constants": (Interpolates, lambda: (x(3),)),
    "cached constant": (CachedTable, lambda: (x(3),)),
    "only what is needed": (Frees, lambda: (x(3), x(3, seed=1))),
    "aliased gradients": (Aliases, lambda: (x(3), x(3, seed=1))),
    "swap": (Swap, lambda: (x(3), x(3, seed=1))),
    "nested graph": (Nested, lambda: (x(3),)),
    "list of constants": (Listed, lambda: (x(3), [x(3, seed=1), x(3, seed=2)])),
    "module": (Learns(), lambda: (x(3),)),
    "captured, passed": (with_learnt, lambda: (x(3),)),
    "captured, stopped": (stopped, lambda: (x(3),)),
    "checkpoint": (checkpointed, lambda: (x(3),)),
    "one output detached": (two_with_detached, lambda: (x(3),)),
    "cycle in plain code": (recursive, lambda: (x(3),)),
    "exception held": (catches, lambda: (x(3),)),
    "lambda": (lambda t: Exp.apply(t) * 2, lambda: (x(3),)),
    "batch norm": (torch.nn.BatchNorm1d(3).double(), lambda: (x(4, 3),)),
    "layer norm": (torch.nn.LayerNorm(3).double(), lambda: (x(4, 3),)),
    "linear module": (torch.nn.Linear(3, 2).double(), lambda: (x(4, 3),)),
    "spectral norm": (
        torch.nn.utils.parametrizations.spectral_norm(torch.nn.Linear(3, 2)).double(),
        lambda: (x(4, 3),),
    ),
    "encoder": (ENCODER, lambda: (x(2, 3, 4),)),
    "torch dropout": (functional.dropout, lambda: (x(20),)),
    "softmax": (lambda t: torch.softmax(t, -1), lambda: (x(3, 4),)),
    "max": (lambda t: torch.max(t, 1), lambda: (x(3, 4),)),
    "svd": (torch.linalg.svdvals, lambda: (x(3, 4),)),
    "matmul": (torch.matmul, lambda: (x(3, 3), x(3, 3, seed=1))),
    "conv": (functional.conv1d, lambda: (x(2, 3, 8), x(4, 3, 3))),
    "fft": (torch.fft.fft, lambda: (z(4),)),
    "cat": (lambda xs: torch.cat(xs), lambda: ([x(2), x(3)],)),
    "sort": (torch.sort, lambda: (x(5),)),
    "embedding": (lambda w, i: functional.embedding(i, w), lambda: (x(5, 2), torch.tensor([1, 1, 4]))),
    "no output moves": (
        variant(Exp, "Zero", forward=lambda ctx, t: t * 0, backward=lambda ctx, g: g * 0),
        lambda: (x(3),),
    ),
}

EVERY = pytest.mark.parametrize("name", CASES)


def right(name: str) -> tuple[Any, ...]:
    """Return the subject and its inputs."""
    subject, inputs = CASES[name]
    return (subject, *inputs())
