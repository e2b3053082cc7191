"""Small Functions the tests share: right ones, and the same with one mistake each."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable


class Exp(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        out = torch.exp(x)
        ctx.save_for_backward(out)
        return out

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        (out,) = ctx.saved_tensors
        return g * out


class NewStyleScale(Function):
    """Two-part style, a Python number, a default and a keyword."""

    @staticmethod
    def forward(x: Tensor, k: int = 2) -> Tensor:
        return x * k

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.k = inputs[1]

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return g * ctx.k, None


class Scale(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, k: Any = 2) -> Tensor:
        ctx.k = k
        return x * k

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return g * ctx.k, None


class ClassMethods(Function):
    @classmethod
    def forward(cls, ctx: Any, x: Tensor, dim: int = -1) -> Tensor:
        out = x.cumsum(dim)
        ctx.dim = dim
        return out

    @classmethod
    def backward(cls, ctx: Any, g: Tensor) -> Any:
        return g.flip(ctx.dim).cumsum(ctx.dim).flip(ctx.dim), None


class RoundSTE(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return torch.round(x)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return g


class SinCos(Function):
    """Two outputs."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Any:
        ctx.save_for_backward(x)
        return x.sin(), x.cos()

    @staticmethod
    def backward(ctx: Any, gs: Tensor, gc: Tensor) -> Any:
        (x,) = ctx.saved_tensors
        return gs * x.cos() - gc * x.sin()


class NumpySquare(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return torch.from_numpy(x.detach().numpy() ** 2)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> Any:
        (x,) = ctx.saved_tensors
        return torch.from_numpy(g.numpy() * 2 * x.numpy())


class Gather(Function):
    """An integer tensor among the inputs."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, index: Tensor) -> Tensor:
        ctx.save_for_backward(index)
        ctx.n = len(x)
        return x[index]

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        (index,) = ctx.saved_tensors
        return g.new_zeros(ctx.n).index_add(0, index, g), None


class InPlaceDouble(Function):
    """In place, and declared."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.mark_dirty(x)
        return x.mul_(2)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return g * 2


class ComplexSquare(Function):
    @staticmethod
    def forward(ctx: Any, z: Tensor) -> Tensor:
        ctx.save_for_backward(z)
        return z * z

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        (z,) = ctx.saved_tensors
        return g * 2 * z.conj()


class Linear(Function):
    """Several inputs, an optional one."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor, b: Tensor | None = None) -> Tensor:
        ctx.save_for_backward(x, w)
        out = x @ w.t()
        return out if b is None else out + b

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        x, w = ctx.saved_tensors
        needs_bias = len(ctx.needs_input_grad) > 2 and ctx.needs_input_grad[2]
        return g @ w, g.t() @ x, g.sum(0) if needs_bias else None


def variant(base: type[Function], name: str, **methods: Any) -> type[Function]:
    """Return a subclass of ``base`` with some methods replaced."""
    return type(name, (base,), {key: staticmethod(value) for key, value in methods.items()})


def x(*shape: int, seed: int = 0) -> Tensor:
    """A float64 tensor of random values."""
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def by_hand(function: Any) -> type[Function]:
    """Return a Function of one output whose backward is autograd's own derivative of ``function``: a right rule."""

    class ByHand(Function):
        @staticmethod
        def forward(ctx: Any, *inputs: Any) -> Tensor:
            ctx.constants = [... if _differentiable(v) else v for v in inputs]
            ctx.save_for_backward(*(v for v in inputs if _differentiable(v)))
            return function(*inputs)

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            again, saved = torch.is_grad_enabled(), ctx.saved_tensors
            with torch.enable_grad():
                own = [t.view_as(t) if again and t.requires_grad else t.detach().requires_grad_() for t in saved]
                tensors = iter(own)
                out = function(*(next(tensors) if c is ... else c for c in ctx.constants))
                gradients = iter(torch.autograd.grad(out, own, g, create_graph=again, allow_unused=True))
            return tuple(next(gradients) if c is ... else None for c in ctx.constants)

    return ByHand


def _differentiable(value: Any) -> bool:
    return isinstance(value, Tensor) and (value.is_floating_point() or value.is_complex())
