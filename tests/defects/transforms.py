"""The rule is right in eager mode and is lost, or refused, under a transform."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from tests.defects.entries import Defect, rule, x

COMPILE = ("compile-with-func",)


class StraightThrough(Function):
    """Round, with the gradient of the identity in both modes; usable with torch.func."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x.round()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return g

    @staticmethod
    def jvp(ctx: Any, t: Tensor) -> Tensor:
        return t


class SavedForBackwardOnly(Function):
    """A jvp that reads saved tensors, although save_for_forward was not called."""

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x.sin()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        (x,) = ctx.saved_tensors
        return g * x.cos()

    @staticmethod
    def jvp(ctx: Any, t: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return t * x.cos()


SINE = rule(lambda x: x.sin(), lambda g, x: g * x.cos(), jvp=lambda x, t: t * x.cos(), name="Sine")


class Keyword(Function):
    """A keyword and a default in the two-part style: right."""

    @staticmethod
    def forward(x: Tensor, factor: float = 2.0) -> Tensor:
        return x * factor

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.factor = inputs[1]

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return g * ctx.factor, None


def straight_through(name: str, expect: tuple[str, ...], case: str) -> Defect:
    return Defect(
        name,
        StraightThrough,
        None,
        lambda: (3 * x(4),),
        expect,
        r"dropped|lost|differentiates? (the )?forward|ignored",
        case=case,
        surrogate=lambda x: x,
        level="full",
        require=expect,
    )


@torch.library.custom_op("gradwright_defects::sine", mutates_args=())
def sine(x: Tensor) -> Tensor:
    return x.sin()


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _sine_backward(ctx: Any, g: Tensor) -> Tensor:
    (x,) = ctx.saved_tensors
    return g * x.cos()


sine.register_autograd(_sine_backward, setup_context=_save)
sine.register_fake(torch.empty_like)

DEFECTS = [
    Defect(
        "jvp reads saved tensors that were saved for backward only",
        SavedForBackwardOnly,
        SINE,
        lambda: (x(4),),
        ("modes-agree", "func-transforms", "nested-forward"),
        r"save_for_forward|unpack",
        case="J4",
    ),
    straight_through("the rule is dropped by compile around grad", COMPILE, "J5"),
    straight_through("the rule is dropped by compile around jvp", COMPILE, "J6"),
    straight_through("the rule is dropped by compile around vmap", COMPILE, "J7"),
    straight_through("the rule is dropped by export", ("export",), "J8"),
    Defect(
        "custom op under torch.func.grad",
        sine,
        SINE,
        lambda: (x(4),),
        ("func-transforms",),
        r"setup_context|torch.func|custom op",
        case="J9",
        require=("func-transforms",),
    ),
    Defect(
        "same tensor passed twice: right",
        rule(lambda a, b: a * b + a + b, lambda g, a, b: (g * (b + 1), g * (a + 1)), name="Mixed"),
        None,
        lambda: (x(4), x(4)),
        (),
        case="J10",
        control=True,
    ),
    Defect(
        "an unused jvp: right",
        SINE,
        None,
        lambda: (x(5),),
        (),
        case="J11",
        control=True,
    ),
    Defect(
        "keyword and default with setup_context: right",
        Keyword,
        None,
        lambda: (x(4),),
        (),
        case="I7",
        kwargs={"factor": 3.0},
        control=True,
    ),
]
