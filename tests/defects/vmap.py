"""Batching: the vmap rule, or the backward under vmap, is not a loop."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from tests.defects.entries import Defect, rule, x

VMAP = ("vmap", "func-transforms")


class Batched(Function):
    """The right rule of a product of matrices and vectors."""

    @staticmethod
    def forward(m: Tensor, v: Tensor) -> Tensor:
        return (m * v).sum(-1)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        m, v = ctx.saved_tensors
        return g[..., None] * v, (g[..., None] * m).sum(tuple(range(m.dim() - 1))) if v.dim() == 1 else g[..., None] * m

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], m: Tensor, v: Tensor) -> Any:
        m = m.movedim(in_dims[0], 0) if in_dims[0] is not None else m.expand(info.batch_size, *m.shape)
        v = v.movedim(in_dims[1], 0) if in_dims[1] is not None else v.expand(info.batch_size, *v.shape)
        return Elementwise.apply(m, v[:, None, :].expand(m.shape)), 0


class Elementwise(Function):
    """The same of two tensors of one shape."""

    generate_vmap_rule = True

    @staticmethod
    def forward(m: Tensor, v: Tensor) -> Tensor:
        return (m * v).sum(-1)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        m, v = ctx.saved_tensors
        return g[..., None] * v, g[..., None] * m


class WrongOutDim(Batched):
    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], m: Tensor, v: Tensor) -> Any:
        out, _ = Batched.vmap(info, in_dims, m, v)
        return out, out.dim() - 1


class IgnoresInDims(Batched):
    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], m: Tensor, v: Tensor) -> Any:
        return Batched.vmap(info, tuple(None if d is None else 0 for d in in_dims), m, v)


def soft(normalise: bool) -> type[Function]:
    class Soft(Function):
        """Exponentials; with the mistake, normalised across the batch."""

        @staticmethod
        def forward(x: Tensor) -> Tensor:
            return x.exp()

        @staticmethod
        def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
            ctx.save_for_backward(output)

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            (out,) = ctx.saved_tensors
            return g * out

        @staticmethod
        def vmap(info: Any, in_dims: tuple[Any, ...], x: Tensor) -> Any:
            x = x.movedim(in_dims[0], 0)
            return Soft.apply(x / x.norm() if normalise else x), 0

    return Soft


def through_item(g: Tensor, x: Tensor) -> Tensor:
    return g * x.cos() if g.dim() else g.item() * x.cos()


def by_dim(g: Tensor, x: Tensor) -> Tensor:
    return (g * x.cos()) if g.dim() < 9 else g


def numpy_square(g: Tensor, x: Tensor) -> Tensor:
    return torch.from_numpy(g.numpy() * 2 * x.detach().numpy())


DEFECTS = [
    Defect(
        "vmap rule returns the wrong out_dim",
        WrongOutDim,
        Batched,
        lambda: (x(3, 3), x(3, seed=1)),
        VMAP,
        r"loop|out_dim",
        89,
    ),
    Defect(
        "vmap rule ignores in_dims",
        IgnoresInDims,
        Batched,
        lambda: (x(3, 3), x(3, seed=1)),
        VMAP,
        r"loop|in_dim",
        90,
    ),
    Defect(
        "backward reads grad_output with .item(), which cannot be batched",
        rule(lambda x: x.sin().sum(), through_item, name="SumOfSines"),
        rule(lambda x: x.sin().sum(), lambda g, x: g * x.cos(), name="SumOfSines"),
        lambda: (x(4),),
        VMAP,
        r"item|batch",
        91,
        require=VMAP,
    ),
    Defect(
        "backward that looks at g.dim() and is right for every number of dimensions in use",
        rule(lambda x: x.sin(), by_dim, name="Sine"),
        None,
        lambda: (x(4),),
        (),
        number=92,
        control=True,
    ),
    Defect(
        "vmap rule normalises across the batch",
        soft(normalise=True),
        soft(normalise=False),
        lambda: (x(3),),
        VMAP,
        r"loop|batch",
        case="D10",
    ),
    Defect(
        "backward through NumPy, batched gradients asked for",
        rule(lambda x: x * x, numpy_square, name="Square", once=True),
        rule(lambda x: x * x, lambda g, x: g * 2 * x, jvp=lambda x, t: 2 * x * t, name="Square"),
        lambda: (x(4),),
        VMAP,
        r"batch|vmap|NumPy|numpy",
        case="D11",
        require=VMAP,
    ),
    Defect(
        "no batching rule",
        rule(lambda x: x * x, lambda g, x: g * 2 * x, name="Square"),
        rule(lambda x: x * x, lambda g, x: g * 2 * x, jvp=lambda x, t: 2 * x * t, name="Square"),
        lambda: (x(4),),
        VMAP,
        r"vmap|setup_context",
        case="J2",
        require=VMAP,
    ),
]
