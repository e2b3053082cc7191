"""Functions in the styles that people write, each beside the same in plain operations that autograd differentiates."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from tests.subjects import ClassMethods, ComplexSquare, Exp, Linear, NewStyleScale, RoundSTE, Scale, SinCos


@dataclass(frozen=True)
class OldFunction:
    """A Function, its twin, and one set of floating tensors that it can be differentiated in."""

    function: Any
    truth: Callable[..., Any]
    inputs: tuple[Tensor, ...]
    call: Callable[..., Any] = field(default=lambda f, *xs: f(*xs))
    refuses: frozenset[str] = frozenset()
    """What it refuses: ``second`` derivatives, ``forward`` mode, ``func`` (all transforms), ``nested forward`` mode
    (a batched one around another), ``vmap twice`` (one around another), or one by name."""
    name: str = ""
    surrogate: Callable[..., Any] | None = None
    """For a rule that is not the derivative: what it is the derivative of."""
    faults: frozenset[str] = frozenset()
    """The contracts that a full check rightly finds broken."""


OLD_FUNCTIONS: list[OldFunction] = []


def add(
    function: Any,
    truth: Any,
    inputs: Any,
    call: Any = None,
    refuses: Any = (),
    name: str = "",
    surrogate: Any = None,
    faults: Any = (),
) -> None:
    more: dict[str, Any] = {} if call is None else {"call": call}
    more |= {"surrogate": surrogate, "refuses": frozenset(refuses), "faults": frozenset(faults)}
    OLD_FUNCTIONS.append(OldFunction(function, truth, inputs, name=name or function.__name__, **more))


def x(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def through(value: Tensor, soft: Tensor) -> Tensor:
    return value.detach() + (soft - soft.detach())


# -------------------------------------------------------------------- what the other tests have

add(Exp, torch.exp, (x(3),))
add(RoundSTE, lambda x: through(x.round(), x), (x(3),), surrogate=lambda x: x)
add(SinCos, lambda x: (x.sin(), x.cos()), (x(3),))
add(ClassMethods, lambda x, dim=-1: x.cumsum(dim), (x(3),))
add(Scale, lambda x, k=2: x * k, (x(3),))
add(Scale, lambda x, k=2: x * k, (x(3),), lambda f, t: f(t, k=3), name="ScaleByName")
add(NewStyleScale, lambda x, k=2: x * k, (x(3),))
add(NewStyleScale, lambda x, k=2: x * k, (x(3),), lambda f, t: f(k=3, x=t), name="NewStyleScaleByName")
add(Linear, lambda x, w, b=None: x @ w.t() + (0 if b is None else b), (x(2, 3), x(2, 3, seed=2)))
add(
    Linear,
    lambda x, w, b=None: x @ w.t() + (0 if b is None else b),
    (x(2, 3), x(2, 3, seed=2), x(2, seed=3)),
    name="LinearWithBias",
)


# -------------------------------------------------------------------- what is kept, and where


class SavesInput(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        (x,) = ctx.saved_tensors
        return 3 * g * x**2


add(SavesInput, lambda x: x**3, (x(3),))


class SavesIntermediate(Function):
    """x exp(x), with exp(x) saved."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        e = x.exp()
        ctx.save_for_backward(x, e)
        return x * e

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        x, e = ctx.saved_tensors
        return g * (e + x * e)


add(SavesIntermediate, lambda x: x * x.exp(), (x(3),))


class KeepsOnContext(Function):
    """(2x)^2, with 2x kept as an attribute."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.twice = 2 * x
        return ctx.twice**2

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return g * 4 * ctx.twice


add(KeepsOnContext, lambda x: (2 * x) ** 2, (x(3),))


class KeepsInContainers(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor) -> Tensor:
        ctx.cache = {"pair": [x, y.sin()], "k": 2}
        return x * y.sin() * 2

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        x, s = ctx.cache["pair"]
        ctx.cache.clear()
        return 2 * g * s, 2 * g * x * (1 - s * s).sqrt()


add(KeepsInContainers, lambda x, y: 2 * x * y.sin(), (x(3), 0.3 * x(3, seed=2)))


class Sigmoid(Function):
    """The output is an attribute."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.out = 1 / (1 + (-x).exp())
        return ctx.out

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return g * ctx.out * (1 - ctx.out)


add(Sigmoid, torch.sigmoid, (x(3),))


class ReluMask(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        mask = (x > 0).to(x.dtype)
        ctx.save_for_backward(mask)
        return x * mask

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        (mask,) = ctx.saved_tensors
        return g * mask


add(ReluMask, torch.relu, (x(3),))


class ClampInPlace(Function):
    """Builds its output, and its gradient, by assignment."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, low: float, high: float) -> Tensor:
        ctx.save_for_backward(x)
        ctx.bounds = (low, high)
        out = x.clone()
        out[out < low] = low
        out[out > high] = high
        return out

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        (x,) = ctx.saved_tensors
        low, high = ctx.bounds
        grad = g.clone()
        grad[x < low] = 0
        grad[x > high] = 0
        return grad, None, None


add(ClampInPlace, lambda x, low, high: x.clamp(low, high), (x(3),), lambda f, t: f(t, -0.5, 0.7))


class Softmax(Function):
    """An output and a normaliser that is kept."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, dim: int = -1) -> Tensor:
        shifted = x - x.max(dim, keepdim=True)[0]
        e = shifted.exp()
        total = e.sum(dim, keepdim=True)
        ctx.dim = dim
        ctx.save_for_backward(e, total)
        return e / total

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        e, total = ctx.saved_tensors
        p = e / total
        return p * (g - (g * p).sum(ctx.dim, keepdim=True)), None


add(Softmax, lambda x, dim=-1: x.softmax(dim), (x(4),))


class SavesExpanded(Function):
    """Keeps views: an expanded one and a transposed one."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, k: float) -> Tensor:
        ctx.k = torch.tensor(k, dtype=x.dtype).expand(x.shape)
        ctx.save_for_backward(x.t())
        return ctx.k * x * x

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        (transposed,) = ctx.saved_tensors
        return 2 * g * ctx.k * transposed.t(), None


add(SavesExpanded, lambda x, k: k * x * x, (x(2, 3),), lambda f, t: f(t, 1.5))


class SavesNone(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, w)
        return x * x if w is None else x * x * w

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        x, w = ctx.saved_tensors
        return (2 * g * x, None) if w is None else (2 * g * x * w, g * x * x)


add(SavesNone, lambda x, w: x * x, (x(3),), lambda f, t: f(t, None), name="SavesNone")
add(SavesNone, lambda x, w: x * x * w, (x(3), x(3, seed=2)), name="SavesOptional")


class SavesOnlyNeeded(Function):
    """Looks at needs_input_grad in the forward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
        ctx.save_for_backward(w if ctx.needs_input_grad[0] else None, x if ctx.needs_input_grad[1] else None)
        return x * w

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        w, x = ctx.saved_tensors
        return g * w if ctx.needs_input_grad[0] else None, g * x if ctx.needs_input_grad[1] else None


add(SavesOnlyNeeded, lambda x, w: x * w, (x(3), x(3, seed=2)))


class SavesShape(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.shape = x.shape
        return x.reshape(-1)[:2].sum()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        grad = torch.zeros(ctx.shape, dtype=g.dtype).reshape(-1)
        first = torch.arange(grad.numel()) < 2
        return torch.where(first, g, grad).reshape(ctx.shape)


add(SavesShape, lambda x: x.reshape(-1)[:2].sum(), (x(2, 2),))


# -------------------------------------------------------------------- inputs and outputs


class ReverseGradient(Function):
    """Returns its input, through a view."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: float) -> Tensor:
        ctx.scale = scale
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return g.neg() * ctx.scale, None


add(
    ReverseGradient,
    lambda x, scale: through(x, -scale * x),
    (x(3),),
    lambda f, t: f(t, 0.5),
    surrogate=lambda x, scale: -scale * x,
)


class IdentityInput(Function):
    """Returns its input as it is."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return 2 * g


add(IdentityInput, lambda x: through(x, 2 * x), (x(3),), surrogate=lambda x: 2 * x)


class ManyInputs(Function):
    """Takes any number of tensors."""

    @staticmethod
    def forward(ctx: Any, k: float, *xs: Tensor) -> Tensor:
        ctx.k = k
        ctx.save_for_backward(*xs)
        return k * torch.stack(xs).prod(0)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        xs = ctx.saved_tensors
        others = [torch.stack([o for j, o in enumerate(xs) if j != i]).prod(0) for i in range(len(xs))]
        return None, *(ctx.k * g * other for other in others)


add(
    ManyInputs,
    lambda k, *xs: k * torch.stack(xs).prod(0),
    (x(3), x(3, seed=2), x(3, seed=3)),
    lambda f, *xs: f(2.0, *xs),
)


class TakeRows(Function):
    """An integer tensor among the inputs."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, index: Tensor) -> Tensor:
        ctx.save_for_backward(index)
        ctx.shape = x.shape
        return x.index_select(0, index)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        (index,) = ctx.saved_tensors
        return torch.zeros(ctx.shape, dtype=g.dtype).index_add(0, index, g), None


INDEX = torch.tensor([2, 0, 2])
add(TakeRows, lambda x, index: x.index_select(0, index), (x(3, 2),), lambda f, t: f(t, INDEX))


class MaxWithIndex(Function):
    """An integer output beside the value, marked."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Any:
        value, index = x.max(dim=-1)
        ctx.mark_non_differentiable(index)
        ctx.save_for_backward(index)
        ctx.size = x.shape[-1]
        return value, index

    @staticmethod
    def backward(ctx: Any, g: Tensor, _: Tensor) -> Any:
        (index,) = ctx.saved_tensors
        return g.unsqueeze(-1) * (torch.arange(ctx.size) == index.unsqueeze(-1))


add(MaxWithIndex, lambda x: x.max(dim=-1)[0], (x(2, 3),), lambda f, t: _first(f(t)))


def _first(out: Any) -> Tensor:
    return out[0] if isinstance(out, tuple) else out


class StillOutput(Function):
    """A floating output that has no derivative."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Any:
        sign = x.sign()
        ctx.mark_non_differentiable(sign)
        ctx.save_for_backward(sign)
        return x.abs(), sign

    @staticmethod
    def backward(ctx: Any, g: Tensor, _: Tensor) -> Any:
        (sign,) = ctx.saved_tensors
        return g * sign


add(StillOutput, lambda x: (x.abs(), x.sign().detach()), (x(3),))


class NotMaterialised(Function):
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


add(NotMaterialised, lambda x: (x.sin(), x.cos()), (x(3),))
add(NotMaterialised, torch.sin, (x(3),), lambda f, t: _first(f(t)), name="NotMaterialisedFirst")
add(SinCos, torch.sin, (x(3),), lambda f, t: _first(f(t)), name="SinCosFirst")


class WithNumber(Function):
    """Returns a number beside the tensor."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Any:
        ctx.save_for_backward(x)
        return x * x, x.ndim

    @staticmethod
    def backward(ctx: Any, g: Tensor, _: Any) -> Any:
        (x,) = ctx.saved_tensors
        return 2 * g * x


add(WithNumber, lambda x: x * x, (x(3),), lambda f, t: _first(f(t)))


class AddInPlace(Function):
    """Changes its input and says so."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor) -> Tensor:
        ctx.mark_dirty(x)
        ctx.save_for_backward(y)
        return x.add_(y * y)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        (y,) = ctx.saved_tensors
        return g, 2 * g * y


add(
    AddInPlace,
    lambda x, y: x + y * y,
    (x(3), x(3, seed=2)),
    lambda f, t, y: f(t * 2.0, y),
    refuses=("nested forward",),
)


class SquaredDistance(Function):
    """Gradients come in the shape of the broadcast result."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor) -> Tensor:
        ctx.save_for_backward(x, y)
        return (x - y) ** 2

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        x, y = ctx.saved_tensors
        d = 2 * g * (x - y)
        return d, -d.sum(0)


add(SquaredDistance, lambda x, y: (x - y) ** 2, (x(2, 3), x(3, seed=2)))


# -------------------------------------------------------------------- other styles


class TwoPartIntermediate(Function):
    """The two-part style, with an intermediate computed in setup_context."""

    @staticmethod
    def forward(x: Tensor, k: float = 1.0) -> Tensor:
        return (k * x).sin()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        x, ctx.k = inputs
        ctx.save_for_backward((ctx.k * x).cos())

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        (c,) = ctx.saved_tensors
        return g * ctx.k * c, None


add(TwoPartIntermediate, lambda x, k=1.0: (k * x).sin(), (x(3),), lambda f, t: f(t, k=1.5))


class TwoPartOnce(Function):
    """Two parts, differentiable once, with an output that has no derivative."""

    @staticmethod
    def forward(x: Tensor, w: Tensor | None) -> tuple[Tensor, Tensor]:
        return x**3 if w is None else x**3 * w, x.sign()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(*inputs)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor, _: Tensor) -> Any:
        x, w = ctx.saved_tensors
        return (3 * g * x**2, None) if w is None else (3 * g * x**2 * w, g * x**3)


add(
    TwoPartOnce,
    lambda x, w: (x**3 * w, x.sign().detach()),
    (x(3), x(3, seed=2)),
    refuses=("second",),
)


class TwoPartInPlace(Function):
    """Two parts; the second says that the input was changed."""

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x.exp_()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.mark_dirty(*inputs)
        ctx.save_for_backward(output)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return g * ctx.saved_tensors[0]


add(TwoPartInPlace, torch.exp, (x(3),), lambda f, t: f(t * 1.0), refuses=("nested forward",))


class TwoPartMany(Function):
    """Two parts with any number of tensors, keeping what they make together and a number."""

    @staticmethod
    def forward(k: float, *xs: Tensor) -> Tensor:
        return k * torch.stack(xs).sum(0).sin()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.k, *xs = inputs
        ctx.count = len(xs)
        ctx.save_for_backward(torch.stack(xs).sum(0).cos())

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        (cosine,) = ctx.saved_tensors
        return None, *(ctx.k * g * cosine for _ in range(ctx.count))


add(
    TwoPartMany,
    lambda k, *xs: k * torch.stack(xs).sum(0).sin(),
    (x(3), x(3, seed=2)),
    lambda f, *xs: f(2.0, *xs),
)


class TwoPartNumpy(Function):
    """Two parts; NumPy makes the intermediate, and backward looks at what is needed."""

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x.sin()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(torch.from_numpy(np.cos(inputs[0].detach().numpy())))

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        (c,) = ctx.saved_tensors
        return g * c if ctx.needs_input_grad[0] else None


add(TwoPartNumpy, torch.sin, (x(3),), refuses=("second",))


class Nested(Function):
    """Uses another Function in both directions."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        e = x.exp()
        ctx.save_for_backward(x)
        return x * e

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        (x,) = ctx.saved_tensors
        return g * (1 + x) * x.exp()


add(Nested, lambda x: x * x.exp(), (x(3),))


class VjpName(Function):
    """The backward under the name ``vjp``."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.tan()

    @staticmethod
    def vjp(ctx: Any, g: Tensor) -> Any:  # type: ignore[override]
        (x,) = ctx.saved_tensors
        return g / x.cos() ** 2


add(VjpName, torch.tan, (x(3),))


class Autocast(Function):
    @staticmethod
    @torch.amp.custom_fwd(device_type="cpu", cast_inputs=torch.float32)
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    @torch.amp.custom_bwd(device_type="cpu")
    def backward(ctx: Any, g: Tensor) -> Any:
        (x,) = ctx.saved_tensors
        return g * x.cos()


add(Autocast, torch.sin, (x(3),))


class Surrogate(Function):
    """A spike, as spiking networks have it: the derivative of a sigmoid, with a number on ctx."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, alpha: float) -> Tensor:
        if x.requires_grad:
            ctx.save_for_backward(x)
            ctx.alpha = alpha
        return (x > 0).to(x)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        grad = None
        if ctx.needs_input_grad[0]:
            s = (ctx.alpha * ctx.saved_tensors[0]).sigmoid()
            grad = g * s * (1 - s) * ctx.alpha
        return grad, None


add(
    Surrogate,
    lambda x, alpha: through((x > 0).to(x), (alpha * x).sigmoid()),
    (x(3),),
    lambda f, t: f(t, 2.0),
    surrogate=lambda x, alpha: (alpha * x).sigmoid(),
)


# -------------------------------------------------------------------- what refuses


class Once(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> Any:
        (x,) = ctx.saved_tensors
        return 3 * g * x**2


add(Once, lambda x: x**3, (x(3),), refuses=("second",))


class DetachedIntermediate(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        e = x.detach().exp()
        ctx.save_for_backward(x, e)
        return x * e

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        x, e = ctx.saved_tensors
        return g * (e + x * e)


add(DetachedIntermediate, lambda x: x * x.exp(), (x(3),), refuses=("second",))


class DataIntermediate(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.cosine = x.data.cos()
        return x.sin()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return g * ctx.cosine


add(DataIntermediate, torch.sin, (x(3),), refuses=("second", "vmap"))


class NoGradIntermediate(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        with torch.no_grad():
            ctx.cosine = x.cos()
        return x.sin()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return g * ctx.cosine


add(NoGradIntermediate, torch.sin, (x(3),), refuses=("second",))


class FilledFromOutside(Function):
    """A kernel of another library writes into a tensor of zeros; NumPy stands for it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        out = torch.zeros_like(x)
        kernel(x, out)
        ctx.save_for_backward(out * 1.0)
        return x.sin()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        (c,) = ctx.saved_tensors
        return g * c


def kernel(x: Tensor, out: Tensor) -> None:
    """Write the cosine where PyTorch does not see it, as a function in C does."""
    with torch._C.DisableTorchFunction():
        np.cos(x.detach().numpy(), out=out.numpy())


add(FilledFromOutside, torch.sin, (x(3),), refuses=("second",))


class NumpyIntermediate(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        c = torch.from_numpy(np.cos(x.detach().numpy()))
        ctx.save_for_backward(c)
        return x.sin()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        (c,) = ctx.saved_tensors
        return g * c


add(NumpyIntermediate, torch.sin, (x(3),), refuses=("second",))


class ItemIntermediate(Function):
    """A number read out of a tensor, kept as a number."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.total = x.sum().item()
        ctx.save_for_backward(x * 2)
        return x * ctx.total

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        (twice,) = ctx.saved_tensors
        return g * ctx.total + (g * twice).sum() / 2


add(ItemIntermediate, lambda x: x * x.sum(), (x(3),), refuses=("second", "vmap"))


class KeepsItem(Function):
    """Nothing is saved but an input, and a number that was read out of it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.total = x.sum().item()
        ctx.save_for_backward(x)
        return x * ctx.total

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        (x,) = ctx.saved_tensors
        return g * ctx.total + (g * x).sum()


add(KeepsItem, lambda x: x * x.sum(), (x(3),), refuses=("second", "vmap"))


class KeepsArray(Function):
    """A NumPy array as an attribute."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.cosine = np.cos(x.detach().numpy())
        return x.sin()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return g * torch.from_numpy(ctx.cosine)


add(KeepsArray, torch.sin, (x(3),), refuses=("second", "vmap"))


class KeepsList(Function):
    """A list of numbers as an attribute, in two parts."""

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x.sin()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.kept = {"cosine": inputs[0].cos().tolist()}

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return g * torch.tensor(ctx.kept["cosine"], dtype=g.dtype)


add(KeepsList, torch.sin, (x(3),), refuses=("second", "vmap"))


class KeepsNumbers(Function):
    """Numbers that have nothing to do with values: an argument, a constant, and one of the shape."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, k: float) -> Tensor:
        ctx.save_for_backward(x)
        ctx.numbers = [k, 0.5, 1 / x.shape[-1]]
        return x**3 * k * 0.5 / x.shape[-1]

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        (x,) = ctx.saved_tensors
        a, b, c = ctx.numbers
        return 3 * g * x**2 * a * b * c, None


add(KeepsNumbers, lambda x, k: x**3 * k * 0.5 / x.shape[-1], (x(3),), lambda f, t: f(t, 1.5))


class NumpySquare(Function):
    """NumPy in both directions."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return torch.from_numpy(x.detach().numpy() ** 2)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> Any:
        (x,) = ctx.saved_tensors
        return torch.from_numpy(g.numpy() * 2 * x.detach().numpy())


add(NumpySquare, lambda x: x**2, (x(3),), refuses=("second", "forward"))


class Branch(Function):
    """A branch on the values."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        ctx.up = bool(x.sum() > 0)
        return x * x if ctx.up else x**3

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        (x,) = ctx.saved_tensors
        return 2 * g * x if ctx.up else 3 * g * x * x


# It keeps a bool on ctx, which is not the same for each element of the larger batch.
add(Branch, lambda x: torch.where(x.sum() > 0, x * x, x**3), (x(3),), refuses=("vmap twice",))


class OwnGraph(Function):
    """Differentiates inside: the graph of the forward is kept on ctx."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        with torch.enable_grad():
            ctx.x = x.detach().requires_grad_()
            ctx.y = ctx.x.sin() * ctx.x
        return ctx.y.detach()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return torch.autograd.grad(ctx.y, ctx.x, g, retain_graph=True)[0]


add(
    OwnGraph,
    lambda x: x.sin() * x,
    (x(3),),
    refuses=("second", "vmap", "forward", "func"),
    faults=("saved-through-hooks",),
)


class Dropout(Function):
    """Random numbers, kept."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, p: float) -> Tensor:
        mask = torch.bernoulli(torch.full_like(x, 1 - p)) / (1 - p)
        ctx.save_for_backward(mask)
        return x * mask

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        (mask,) = ctx.saved_tensors
        return g * mask, None


# p = 0 keeps everything, so that there is a twin.
add(Dropout, lambda x, p: x * 1, (x(3),), lambda f, t: f(t, 0.0), refuses=("vmap",))

COMPLEX = OldFunction(ComplexSquare, lambda z: z * z, (torch.complex(x(3), x(3, seed=2)),), name="ComplexSquare")
