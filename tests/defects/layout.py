"""Backward or forward reads memory as if every tensor were contiguous."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from tests.defects.entries import Defect, rule, x

COTANGENT = ("cotangent-layouts",)
SINE = rule(lambda x: x.sin(), lambda g, x: g * x.cos(), name="Sine")


def raw(tensor: Tensor) -> Tensor:
    """Read the memory of a tensor from its start, in row-major order, as a kernel does that ignores strides."""
    storage = torch.empty(0, dtype=tensor.dtype).set_(tensor.untyped_storage())
    count = tensor.numel()
    start = tensor.storage_offset()
    reachable = storage[start : start + count]
    padded = torch.cat([reachable, reachable.new_zeros(count - len(reachable))])
    return padded.reshape(tensor.shape).clone()


def from_start(tensor: Tensor) -> Tensor:
    """The same, from the start of the storage: the offset is forgotten."""
    storage = torch.empty(0, dtype=tensor.dtype).set_(tensor.untyped_storage())
    if not tensor.is_contiguous():
        return tensor.clone()
    return storage[: tensor.numel()].reshape(tensor.shape).clone()


def viewed(g: Tensor, x: Tensor) -> Tensor:
    return (g.view(-1) * x.reshape(-1).cos()).view(x.shape)


def asserted(g: Tensor, x: Tensor) -> Tensor:
    if not g.is_contiguous():
        raise RuntimeError("grad_output must be contiguous")
    return g * x.cos()


class InPlaceOnCotangent(Function):
    """The sine; multiplies grad_output in place."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        (x,) = ctx.saved_tensors
        return g.mul_(x.cos())


class RawInput(Function):
    """The sine, computed from the memory of its input."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return raw(x.detach()).sin()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        (x,) = ctx.saved_tensors
        return g * raw(x).cos()


class RawSaved(Function):
    """Forward is right, backward reads the memory of the saved input."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        (x,) = ctx.saved_tensors
        return g * raw(x).cos()


def entry(name: str, vjp: Any, expect: tuple[str, ...] = COTANGENT, **more: Any) -> Defect:
    return Defect(name, rule(lambda x: x.sin(), vjp, name="Sine", once=True), SINE, lambda: (x(2, 3),), expect, **more)


DEFECTS = [
    entry("grad_output.view(-1) crashes unless it is contiguous", viewed, words=r"contiguous|view|stride", number=39),
    Defect(
        "in-place operation on grad_output, which fails when that is expanded",
        InPlaceOnCotangent,
        SINE,
        lambda: (x(4),),
        ("cotangent-untouched", "cotangent-layouts"),
        r"in place|writes|changes|changed",
        43,
    ),
    entry("grad_output read row by row: wrong when it is transposed", lambda g, x: raw(g) * x.cos(), case="B1"),
    entry(
        "grad_output read without its storage offset: wrong for a slice of a concatenation",
        lambda g, x: from_start(g) * x.cos(),
        case="B2",
    ),
    entry(
        "grad_output read as a full buffer: wrong when it is expanded",
        lambda g, x: (raw(g) if 0 in g.stride() else g) * x.cos(),
        case="B3",
    ),
    entry("backward asserts that grad_output is contiguous", asserted, words=r"contiguous", case="B6"),
    Defect(
        "forward reads its input row by row: wrong when it is transposed",
        RawInput,
        SINE,
        lambda: (x(2, 3),),
        ("input-layouts",),
    ),
    Defect(
        "backward reads the saved input row by row",
        RawSaved,
        SINE,
        lambda: (x(2, 3),),
        ("input-layouts",),
    ),
    Defect(
        "forward uses view on its input, which refuses a transposed one",
        rule(lambda x: x.view(-1).sin(), lambda g, x: (g * x.reshape(-1).cos()).reshape(x.shape), name="Flat"),
        rule(lambda x: x.reshape(-1).sin(), lambda g, x: (g * x.reshape(-1).cos()).reshape(x.shape), name="Flat"),
        lambda: (x(2, 3),),
        ("input-layouts",),
        r"contiguous|view|stride",
        require=("input-layouts",),
    ),
]
