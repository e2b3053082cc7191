"""State: what one call leaves behind for another, randomness, leaks."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from tests.defects.entries import Defect, Fresh, rule, x

SINE = rule(lambda x: x.sin(), lambda g, x: g * x.cos(), name="Sine")
EXP = rule(lambda x: x.exp(), lambda g, x: g * x.exp(), name="Exp")


class OutputOnContext(Function):
    """Keeps its output as an attribute: a reference cycle."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.out = x.exp()
        return ctx.out

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return g * ctx.out


class IntermediateOnContext(Function):
    """Keeps an intermediate as an attribute: it lives as long as the graph and passes saved-tensor hooks by."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.cosine = x.cos()
        return x.sin()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return g * ctx.cosine


def saved_on_class() -> Any:
    class SavedOnClass(Function):
        """A second forward overwrites what the first one saved."""

        kept: Any = None

        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            SavedOnClass.kept = x
            return x.sin()

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            return g * SavedOnClass.kept.cos()

    return SavedOnClass


def noisy(x: Tensor) -> Tensor:
    return x.exp() + 1e-3 * torch.randn_like(x)


def wrong_from(call: int) -> Any:
    """Backward is wrong from a certain call on."""

    def make() -> Any:
        calls = {"n": 0}

        def vjp(g: Tensor, x: Tensor) -> Tensor:
            calls["n"] += 1
            return g * x.cos() * (2 if calls["n"] >= call else 1)

        return rule(lambda x: x.sin(), vjp, name="Sine", once=True)

    return make


def wrong_after_forwards(call: int) -> Any:
    def make() -> Any:
        calls = {"n": 0}

        def value(x: Tensor) -> Tensor:
            calls["n"] += 1
            return x.sin()

        return rule(value, lambda g, x: g * x.cos() * (2 if calls["n"] >= call else 1), name="Sine", once=True)

    return make


class OtherPathWithoutGrad(Function):
    """Takes a cheaper path, with other values, when nothing requires grad."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.sin() if ctx.needs_input_grad[0] else x - x**3 / 6

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        (x,) = ctx.saved_tensors
        return g * x.cos()


class ClearsItsCache(Function):
    """Backward drops what it kept: the second one fails."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.cosine = x.cos()
        return x.sin()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        cosine, ctx.cosine = ctx.cosine, None
        return g * cosine


class FreesItsGraph(Function):
    """Keeps a graph of its own on the context; the first backward frees it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        with torch.enable_grad():
            ctx.x = x.detach().requires_grad_()
            ctx.out = ctx.x.exp()
        return ctx.out.detach()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return torch.autograd.grad(ctx.out, ctx.x, g)[0]


class SavesTwice(Function):
    """Calls save_for_backward twice: only the second call counts."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        ctx.save_for_backward(w)
        return x * w

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        (x,) = ctx.saved_tensors
        return g * x, g * x


class UnpacksTooMany(Function):
    """Unpacks one saved tensor more than was saved."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.exp()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        x, _ = ctx.saved_tensors
        return g * x.exp()


class EditedUnseen(Function):
    """Keeps its input off save_for_backward, so that an edit between forward and backward goes unnoticed."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.x = x
        return x.sin()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return g * ctx.x.cos()


def random_backward() -> Any:
    return rule(lambda x: x.sin(), lambda g, x: g * x.cos() * (1 + 1e-3 * torch.randn_like(x)), name="Sine", once=True)


STATE = ("no-shared-state", "deterministic", "matches-differences", "second-backward", "shapes", "extreme-values")

DEFECTS = [
    Defect(
        "output kept as an attribute of the context: a reference cycle",
        OutputOnContext,
        EXP,
        lambda: (x(4),),
        ("released", "saved-through-hooks"),
        r"ctx|attribute|cycle|save_for_backward",
        53,
    ),
    Defect(
        "saved tensors kept on the class: a second forward overwrites the first",
        Fresh(saved_on_class),
        SINE,
        lambda: (x(4),),
        ("no-shared-state", "saved-through-hooks"),
        r"earlier|interleav|other call|class|shared|second forward",
        54,
    ),
    Defect(
        "forward adds random noise",
        rule(noisy, lambda g, x: g * x.exp(), name="Noisy"),
        EXP,
        lambda: (x(4),),
        (),
        None,
        58,
        note="draws random numbers",
    ),
    Defect(
        "backward wrong from the two hundredth call on",
        Fresh(wrong_from(200)),
        SINE,
        lambda: (x(4),),
        STATE,
        None,
        59,
    ),
    Defect(
        "forward takes another path when nothing requires grad",
        OtherPathWithoutGrad,
        SINE,
        lambda: (x(4),),
        ("needs-input-grad-subsets", "deterministic", "no-shared-state", "modes-agree", "checkpoint"),
        r"requires? grad|no_grad|without grad",
        60,
    ),
    Defect(
        "backward wrong after a thousand forwards",
        Fresh(wrong_after_forwards(1000)),
        SINE,
        lambda: (x(4),),
        STATE,
        None,
        112,
    ),
    Defect(
        "the output as an attribute of the context",
        OutputOnContext,
        EXP,
        lambda: (x(2, 3),),
        ("released", "saved-through-hooks"),
        r"cycle|gc|collect|released|alive",
        case="G1",
    ),
    Defect(
        "an intermediate as an attribute of the context",
        IntermediateOnContext,
        rule(lambda x: x.sin(), lambda g, x: g * x.cos(), name="Sine"),
        lambda: (x(4),),
        ("saved-through-hooks", "released"),
        r"save_for_backward|attribute",
        case="G2",
    ),
    Defect(
        "an intermediate as an attribute of the context, under checkpointing",
        IntermediateOnContext,
        SINE,
        lambda: (x(2, 2),),
        ("saved-through-hooks", "checkpoint", "released"),
        r"save_for_backward|attribute",
        case="G4",
    ),
    Defect(
        "backward clears what it kept",
        ClearsItsCache,
        SINE,
        lambda: (x(4),),
        ("second-backward",),
        r"second|retain_graph",
        case="G6",
    ),
    Defect(
        "backward frees a graph of its own",
        FreesItsGraph,
        EXP,
        lambda: (x(4),),
        ("second-backward",),
        r"second|retain_graph",
        case="G7",
    ),
    Defect(
        "save_for_backward called twice",
        SavesTwice,
        rule(lambda x, w: x * w, lambda g, x, w: (g * w, g * x), name="Product"),
        lambda: (x(4), x(4, seed=1)),
        ("matches-differences",),
        case="G9",
    ),
    Defect(
        "backward unpacks more saved tensors than there are",
        UnpacksTooMany,
        EXP,
        lambda: (x(4),),
        ("matches-differences", "gradient-count"),
        r"unpack|saved",
        case="G10",
    ),
    Defect(
        "an edit of the input between forward and backward goes unnoticed",
        EditedUnseen,
        SINE,
        lambda: (x(4),),
        ("saved-untouched", "saved-through-hooks", "released"),
    ),
    Defect(
        "backward draws random numbers",
        Fresh(random_backward),
        SINE,
        lambda: (x(4),),
        ("deterministic", "matches-differences"),
        r"random",
    ),
]
