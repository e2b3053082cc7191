"""Something is written that belongs to somebody else: inputs, saved tensors, incoming gradients, shared buffers."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from tests.defects.entries import Defect, Fresh, rule, t, x
from tests.defects.layout import InPlaceOnCotangent

SINE = rule(lambda x: x.sin(), lambda g, x: g * x.cos(), name="Sine")
EXP = rule(lambda x: x.exp(), lambda g, x: g * x.exp(), name="Exp")
CLAMP = rule(lambda x: x.clamp(-1, 1), lambda g, x: g * (x.abs() < 1), name="Clamp")
SHIFT = rule(lambda x: x + 0.1, lambda g, x: g, name="Shift")
PRODUCT = rule(lambda x, s: x * s, lambda g, x, s: (g * s, None), name="Product")


class ScalesSaved(Function):
    """Scales the saved input through ``.data`` once it has been used."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        (x,) = ctx.saved_tensors
        grad = g * x.cos()
        x.data.mul_(2)
        return grad


class ReusesSavedOutput(Function):
    """Writes the gradient into the saved output."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        out = x.exp()
        ctx.save_for_backward(out)
        return out

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        (out,) = ctx.saved_tensors
        return out.data.mul_(g).clone()


class SavesOutput(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        out = x.exp()
        ctx.save_for_backward(out)
        return out

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        (out,) = ctx.saved_tensors
        return g * out


class ClampsInput(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        inside = x.abs() < 1
        ctx.save_for_backward(inside)
        x.clamp_(-1, 1)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        (inside,) = ctx.saved_tensors
        return g * inside


class ShiftsInput(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        x.add_(0.1)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return g


class NumpyShiftsInput(Function):
    """The same through NumPy, which PyTorch cannot see."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        array = x.detach().numpy()
        array += 0.1
        return torch.from_numpy(array.copy())

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return g


class ShiftsScale(Function):
    """Mutates a second input that is not differentiated."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, steps: Tensor) -> Tensor:
        ctx.factor = float(steps.sum())
        steps.add_(1)
        return x * ctx.factor

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return g * ctx.factor, None


class CountsSteps(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, steps: Tensor) -> Tensor:
        ctx.factor = float(steps.sum())
        return x * ctx.factor

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return g * ctx.factor, None


class ReturnedInPlace(Function):
    """Changes its input in place and returns it, without a word to autograd."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.mul_(2)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return g * 2


class DeclaredInPlace(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.mark_dirty(x)
        return x.mul_(2)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return g * 2


class DirtyNotReturned(Function):
    """Declares its input dirty and does not return it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.mark_dirty(x)
        x.mul_(2)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return g * 2


class SavedInputOverwritten(Function):
    """Stores the gradient in the memory of the saved input, which an earlier operation saved as its output."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        (x,) = ctx.saved_tensors
        x.data.copy_(2 * g * x)
        return x.data.clone()


def static_gradient() -> Any:
    buffer: dict[torch.Size, Tensor] = {}

    def vjp(g: Tensor, x: Tensor) -> Tensor:
        out = buffer.setdefault(g.shape, torch.empty_like(g))
        with torch.no_grad():
            out.copy_(g * x.cos())
        return out

    return rule(lambda x: x.sin(), vjp, name="Sine", once=True)


def static_output() -> Any:
    buffer: dict[torch.Size, Tensor] = {}

    def value(x: Tensor) -> Tensor:
        out = buffer.setdefault(x.shape, torch.empty_like(x))
        return out.copy_(x.sin()).view(x.shape)

    return rule(lambda x: value(x.detach()), lambda g, x: g * x.cos(), name="Sine")


def accumulated_gradient() -> Any:
    buffer: dict[torch.Size, Tensor] = {}

    def vjp(g: Tensor, x: Tensor) -> Tensor:
        out = buffer.setdefault(g.shape, torch.zeros_like(g))
        with torch.no_grad():
            out += g * x.cos()
        return out.clone()

    return rule(lambda x: x.sin(), vjp, name="Sine", once=True)


ANY_MUTATION = ("inputs-untouched", "saved-untouched", "second-backward", "matches-differences")

DEFECTS = [
    Defect(
        "grad_output changed in place, the returned gradient right",
        InPlaceOnCotangent,
        SINE,
        lambda: (x(4),),
        ("cotangent-untouched",),
        r"in place|writes|changes|changed",
        44,
    ),
    Defect(
        "saved input scaled through .data after use",
        ScalesSaved,
        SINE,
        lambda: (x(4),),
        ANY_MUTATION,
        r"input|saved",
        45,
    ),
    Defect(
        "saved output overwritten through .data",
        ReusesSavedOutput,
        SavesOutput,
        lambda: (x(4),),
        ANY_MUTATION,
        r"saved|output",
        46,
    ),
    Defect(
        "forward clamps its input in place",
        ClampsInput,
        CLAMP,
        lambda: (2 * x(5),),
        ("inputs-untouched",),
        r"mark_dirty|in place",
        47,
    ),
    Defect(
        "forward adds to its input in place",
        ShiftsInput,
        SHIFT,
        lambda: (x(4),),
        ("inputs-untouched",),
        r"mark_dirty|in place",
        48,
    ),
    Defect(
        "forward changes a second input that is not differentiated",
        ShiftsScale,
        CountsSteps,
        lambda: (x(4), torch.tensor([1, 2])),
        ("inputs-untouched",),
        r"steps",
        49,
    ),
    Defect(
        "gradient in a buffer that all calls share",
        Fresh(static_gradient),
        SINE,
        lambda: (x(4),),
        ("no-shared-state", "linear-in-cotangent", "second-backward", "deterministic"),
        r"buffer|shared|same memory|earlier",
        50,
    ),
    Defect(
        "output in a buffer that all calls share",
        Fresh(static_output),
        SINE,
        lambda: (x(4),),
        ("no-shared-state", "deterministic"),
        r"buffer|shared|same memory|earlier",
        51,
    ),
    Defect(
        "gradient added up in a buffer that all calls share",
        Fresh(accumulated_gradient),
        SINE,
        lambda: (x(4),),
        ("no-shared-state", "deterministic", "second-backward", "matches-differences", "linear-in-cotangent"),
        None,
        103,
    ),
    Defect(
        "backward multiplies grad_output in place: a sibling branch gets three times its gradient",
        rule(lambda x: x * 3, lambda g, x: g.mul_(3), name="Triple", once=True),
        rule(lambda x: x * 3, lambda g, x: g * 3, name="Triple"),
        lambda: (x(4),),
        ("cotangent-untouched",),
        r"in place|writes|changes|changed",
        case="D9",
    ),
    Defect(
        "forward changes its input through NumPy",
        NumpyShiftsInput,
        SHIFT,
        lambda: (x(4),),
        ("inputs-untouched",),
        r"mark_dirty|in place",
        case="H1",
    ),
    Defect(
        "backward overwrites a saved input that an earlier operation saved as its output",
        SavedInputOverwritten,
        rule(lambda x: x * x, lambda g, x: 2 * g * x, name="Square"),
        lambda: (x(4),),
        ANY_MUTATION,
        r"input|saved",
        case="H2",
    ),
    Defect(
        "mark_dirty on an input that is not returned",
        DirtyNotReturned,
        DeclaredInPlace,
        lambda: (x(4),),
        ("inputs-untouched", "matches-differences"),
        case="H4",
        raises=r"dirty",
    ),
    Defect(
        "changed in place and returned, without mark_dirty",
        ReturnedInPlace,
        DeclaredInPlace,
        lambda: (x(4),),
        ("inputs-untouched",),
        r"mark_dirty",
        case="H5",
    ),
    Defect(
        "changed in place, returned and declared: right",
        DeclaredInPlace,
        None,
        lambda: (t(1.0, 2.0),),
        (),
        case="H7",
        control=True,
    ),
]
