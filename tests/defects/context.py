"""Right in the plain case, wrong in another precision or under autocast."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from tests.defects.entries import Defect, rule, x

SINE = rule(lambda x: x.sin(), lambda g, x: g * x.cos(), name="Sine")


def bfloat16_in_float32(g: Tensor, x: Tensor) -> Tensor:
    if x.dtype == torch.float32:
        return (g.bfloat16() * x.cos().bfloat16()).float()
    return g * x.cos()


class HalfUnderAutocast(Function):
    """Saves its input in half precision when autocast is on."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
        ctx.save_for_backward(x, w)
        ctx.lower = torch.is_autocast_enabled("cpu")
        return x * w

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        x, w = ctx.saved_tensors
        if ctx.lower:
            return (g.half() * w.half() * 2).to(x.dtype), g * x
        return g * w, g * x


class AutocastWithSetupContext(Function):
    """custom_fwd together with the two-part style, which PyTorch does not support."""

    @staticmethod
    @torch.amp.custom_fwd(device_type="cpu")
    def forward(x: Tensor) -> Tensor:
        return x.sin()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    @torch.amp.custom_bwd(device_type="cpu")
    def backward(ctx: Any, g: Tensor) -> Any:
        (x,) = ctx.saved_tensors
        return g * x.cos()


DEFECTS = [
    Defect(
        "gradient wrong by 1e-3 in float32 only",
        rule(lambda x: x.sin(), bfloat16_in_float32, name="Sine"),
        SINE,
        lambda: (x(8),),
        ("low-precision",),
        r"float32|bfloat16",
        98,
    ),
    Defect(
        "wrong under autocast only",
        HalfUnderAutocast,
        rule(lambda x, w: x * w, lambda g, x, w: (g * w, g * x), name="Product"),
        lambda: (x(4), x(4, seed=1)),
        ("autocast",),
        r"autocast",
        99,
    ),
    Defect(
        "custom_fwd together with setup_context",
        AutocastWithSetupContext,
        SINE,
        lambda: (x(4),),
        ("matches-differences", "autocast", "gradient-count"),
        r"AttributeError|custom_fwd|setup_context",
        case="K5",
    ),
]
