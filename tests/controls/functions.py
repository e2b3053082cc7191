"""Hand-written Functions that are right, in both styles and with every means PyTorch offers."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from tests.controls.entries import Control, control, t, u, x, z


class Sine(Function):
    """The two-part style with forward mode and a batching rule of its own."""

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x.sin()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        (x,) = ctx.saved_tensors
        return g * x.cos()

    @staticmethod
    def jvp(ctx: Any, t: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return t * x.cos()

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], x: Tensor) -> Any:
        return Sine.apply(x), in_dims[0]


class Weighted(Function):
    """Two tensors and a number, a derived batching rule, forward mode."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, w: Tensor, k: float = 2.0) -> Tensor:
        return k * x * w

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        x, w, ctx.k = inputs
        ctx.save_for_backward(x, w)
        ctx.save_for_forward(x, w)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        x, w = ctx.saved_tensors
        grad_x = ctx.k * g * w if ctx.needs_input_grad[0] else None
        grad_w = ctx.k * g * x if ctx.needs_input_grad[1] else None
        return grad_x, grad_w, None

    @staticmethod
    def jvp(ctx: Any, t: Tensor, s: Tensor, _: None) -> Tensor:
        x, w = ctx.saved_tensors
        return ctx.k * (t * w + x * s)


class NotMaterialised(Function):
    """Handles undefined gradients itself."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Any:
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(x)
        return x.sin(), x.cos()

    @staticmethod
    def backward(ctx: Any, g: Tensor | None, h: Tensor | None) -> Any:
        (x,) = ctx.saved_tensors
        terms = [] if g is None else [g * x.cos()]
        terms += [] if h is None else [-h * x.sin()]
        return sum(terms) if terms else None


class MaxWithIndex(Function):
    """An integer output, which cannot be differentiated, beside the value."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Any:
        value, index = x.max(dim=-1)
        ctx.save_for_backward(index)
        ctx.size = x.shape[-1]
        return value, index

    @staticmethod
    def backward(ctx: Any, g: Tensor, _: Tensor) -> Any:
        (index,) = ctx.saved_tensors
        return torch.nn.functional.one_hot(index, ctx.size).to(g.dtype) * g.unsqueeze(-1)


class MaskBeside(Function):
    """A float output that is marked as not differentiable, and is piecewise constant."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Any:
        mask = (x > 0).to(x.dtype)
        ctx.mark_non_differentiable(mask)
        ctx.save_for_backward(mask)
        return mask, x * mask

    @staticmethod
    def backward(ctx: Any, _: Tensor, g: Tensor) -> Any:
        (mask,) = ctx.saved_tensors
        return g * mask


class SavedMask(Function):
    """Dropout that saves its mask."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, p: float) -> Tensor:
        mask = (torch.rand_like(x) >= p).to(x.dtype) / (1 - p)
        ctx.save_for_backward(mask)
        return x * mask

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        (mask,) = ctx.saved_tensors
        return g * mask, None


class Recomputed(Function):
    """Saves only its input and runs PyTorch's own backward on a recomputation."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.exp().sin()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> Any:
        (x,) = ctx.saved_tensors
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            return torch.autograd.grad(x.exp().sin(), x, g)[0]


class InterpolateNumpy(Function):
    """NumPy both ways, differentiable once."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, table: Tensor) -> Tensor:
        if len(table) < 2:
            raise ValueError("table: has fewer than two entries, between which nothing can be interpolated")
        place = x.detach().numpy()
        low = np.clip(np.floor(place).astype(np.int64), 0, len(table) - 2)
        ctx.save_for_backward(x, table, torch.from_numpy(low))
        values = table.detach().numpy()
        return torch.from_numpy(values[low] * (low + 1 - place) + values[low + 1] * (place - low))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> Any:
        x, table, low = ctx.saved_tensors
        grad = torch.zeros_like(table)
        grad.index_add_(0, low, g * (low + 1 - x)).index_add_(0, low + 1, g * (x - low))
        return g * (table[low + 1] - table[low]), grad


class StableLog1pExp(Function):
    """softplus with a second-order rule of its own."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.clamp(min=0) + torch.log1p((-x.abs()).exp())

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        (x,) = ctx.saved_tensors
        return g * x.sigmoid()


class BroadcastAdd(Function):
    """Reduces its gradients to the shapes of the inputs."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor) -> Tensor:
        ctx.shapes = x.shape, y.shape
        return x + y

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return g.sum_to_size(ctx.shapes[0]), g.sum_to_size(ctx.shapes[1])


class SquareInPlace(Function):
    """In place, declared, with the value saved before."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x.clone())
        ctx.mark_dirty(x)
        return x.square_()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> Any:
        (x,) = ctx.saved_tensors
        return 2 * g * x


class RoundForward(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.round()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return g


class SpikeATan(Function):
    """A spike whose gradient is that of an arc tangent."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return (x > 0).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        (x,) = ctx.saved_tensors
        return g / (1 + (torch.pi * x) ** 2)


class Reverse(Function):
    """Gradient reversal with a strength."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, strength: float) -> Tensor:
        ctx.strength = strength
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return -ctx.strength * g, None


class MatmulSubset(Function):
    """Works out only what is asked for."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
        ctx.save_for_backward(x if w.requires_grad else None, w if x.requires_grad else None)
        return x @ w

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        x, w = ctx.saved_tensors
        return (
            g @ w.t() if ctx.needs_input_grad[0] else None,
            x.t() @ g if ctx.needs_input_grad[1] else None,
        )


class ContiguousCotangent(Function):
    """Makes grad_output contiguous before it looks at its memory."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        (x,) = ctx.saved_tensors
        return (g.contiguous().view(-1) * x.reshape(-1).cos()).view(x.shape)


class AbsComplex(Function):
    """Complex in, real out, with the subgradient zero at zero."""

    @staticmethod
    def forward(ctx: Any, z: Tensor) -> Tensor:
        ctx.save_for_backward(z)
        return z.abs()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        (z,) = ctx.saved_tensors
        return g * torch.sgn(z)


class VarArgs(Function):
    """Any number of tensors."""

    @staticmethod
    def forward(ctx: Any, *parts: Tensor) -> Tensor:
        ctx.count = len(parts)
        return torch.stack(parts).sum(0)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return (g,) * ctx.count


class ViewOut(Function):
    """Returns views of one tensor it made."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Any:
        out = 2 * x
        half = len(x) // 2
        return out[:half].clone(), out[half:].clone()

    @staticmethod
    def backward(ctx: Any, g: Tensor, h: Tensor) -> Any:
        return 2 * torch.cat([g, h])


class ClipAtBound(Function):
    """Gives zero for the gradient exactly at its bounds, which is a subgradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.clamp(-1, 1)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        (x,) = ctx.saved_tensors
        return g * ((x > -1) & (x < 1))


class SparseRows(Function):
    """A sparse gradient for a table."""

    @staticmethod
    def forward(ctx: Any, table: Tensor, index: Tensor) -> Tensor:
        ctx.save_for_backward(index)
        ctx.shape = table.shape
        return table[index]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> Any:
        (index,) = ctx.saved_tensors
        return torch.sparse_coo_tensor(index[None], g, ctx.shape, check_invariants=False), None


CONTROLS: list[Control] = [
    control("two-part style with jvp and vmap", Sine, x(4)),
    control("two-part style of a matrix", Sine, x(2, 3)),
    control("derived batching rule, a number among the inputs", Weighted, x(3), x(3, seed=1), 1.5),
    control("derived batching rule, a default", Weighted, x(3), x(3, seed=1)),
    control("undefined gradients handled", NotMaterialised, x(4)),
    control("integer output beside the value", MaxWithIndex, x(3, 4)),
    control("marked output first", MaskBeside, x(5)),
    control("dropout with its mask saved", SavedMask, x(8), 0.4),
    control("recomputed in backward", Recomputed, x(4)),
    control("NumPy interpolation", InterpolateNumpy, u(4, low=0.1, high=2.9), x(4)),
    control("NumPy interpolation at a knot", InterpolateNumpy, t(1.0, 2.0, 0.5), x(4)),
    control("softplus, far out", StableLog1pExp, t(-800.0, -1.0, 0.0, 1.0, 800.0)),
    control("broadcast and reduced", BroadcastAdd, x(3, 1), x(4)),
    control("in place, declared", SquareInPlace, x(4)),
    control("straight-through round, declared", RoundForward, 3 * x(5), surrogate=lambda x: x),
    control("straight-through round of ties, declared", RoundForward, t(0.5, 1.5, -0.5), surrogate=lambda x: x),
    control("spike, declared", SpikeATan, x(5), surrogate=lambda x: torch.atan(torch.pi * x) / torch.pi),
    control("spike at its threshold", SpikeATan, t(0.0, 1.0), surrogate=lambda x: torch.atan(torch.pi * x) / torch.pi),
    control("gradient reversal, declared", Reverse, x(4), 0.3, surrogate=lambda x, s: -s * x),
    control("only what is asked for", MatmulSubset, x(3, 2), x(2, 4, seed=1)),
    control("only the first asked for", MatmulSubset, x(3, 2).requires_grad_(), x(2, 4, seed=1)),
    control("only the second asked for", MatmulSubset, x(3, 2), x(2, 4, seed=1).requires_grad_()),
    control("contiguous cotangent", ContiguousCotangent, x(2, 3)),
    control("absolute value of complex numbers", AbsComplex, z(4)),
    control("any number of tensors", VarArgs, x(3), x(3, seed=1), x(3, seed=2)),
    control("two outputs of one tensor", ViewOut, x(5)),
    control("clipping exactly at its bounds", ClipAtBound, t(-1.0, 0.3, 1.0, 2.0)),
    control("sparse gradient with duplicates", SparseRows, x(5, 2), torch.tensor([1, 3, 1])),
]
