"""Functions with a custom gradient, each beside the same in plain operations that autograd differentiates.

``truth`` has the same values and the derivatives that the rules mean: that of the function itself, or of the surrogate.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

import gradwright as gw


@dataclass(frozen=True)
class Example:
    """A function, its twin, and one set of floating tensors that it can be differentiated in."""

    function: Any
    truth: Callable[..., Any]
    inputs: tuple[Tensor, ...]
    call: Callable[..., Any] = field(default=lambda f, *xs: f(*xs))
    """How the function is called on the inputs, when there is more to pass."""
    refuses: frozenset[str] = frozenset()
    """What it refuses: ``second`` derivatives, ``vmap``, ``forward``."""

    @property
    def name(self) -> str:
        return str(self.function.__name__)


EXAMPLES: list[Example] = []


def add(*args: Any, **kwargs: Any) -> None:
    EXAMPLES.append(Example(*args, **kwargs))


def x(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


# -------------------------------------------------------------------- one argument


@gw.custom_gradient
def exp(x: Tensor) -> Tensor:
    return torch.exp(x)


@exp.vjp
def exp_vjp(g: Tensor, out: Tensor) -> Tensor:
    return g * out


add(exp, torch.exp, (x(3),))


@gw.custom_gradient
def ste_round(x: Tensor) -> Tensor:
    return torch.round(x)


@ste_round.vjp
def ste_round_vjp(g: Tensor) -> Tensor:
    return g


add(ste_round, lambda x: x.round().detach() + (x - x.detach()), (x(3),))


@gw.custom_gradient
def reverse(x: Tensor, *, by: float = 1.0) -> Tensor:
    return x


@reverse.vjp
def reverse_vjp(g: Tensor, by: float) -> Tensor:
    return -by * g


add(
    reverse,
    lambda x, by: (1 + by) * x.detach() - by * x,
    (x(3),),
    call=lambda f, x: f(x, by=0.5),
)


@gw.custom_gradient
def reverse_reading_out(x: Tensor) -> Tensor:
    """The input is returned as it is, and the rule reads the output: its derivative is that of the rule."""
    return x


@reverse_reading_out.vjp
def reverse_reading_out_vjp(g: Tensor, out: Tensor) -> Tensor:
    return -g * (1 + out - out.detach())


class _Reverse(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(output)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        (out,) = ctx.saved_tensors
        return -g * (1 + out - out.detach())


@gw.custom_gradient
def transposed(x: Tensor) -> Tensor:
    return x.mT


@transposed.vjp
def transposed_vjp(g: Tensor) -> Tensor:
    return g.mT


add(transposed, lambda x: x.mT, (x(2, 3),))


@gw.custom_gradient
def unannotated(x, k=2):  # type: ignore[no-untyped-def]
    return x**k


@unannotated.vjp
def unannotated_vjp(g, x, k):  # type: ignore[no-untyped-def]
    return g * k * x ** (k - 1)


add(unannotated, lambda x, k: x**k, (x(3),), call=lambda f, x: f(x, k=3))


# -------------------------------------------------------------------- several arguments


@gw.custom_gradient
def linear(x: Tensor, w: Tensor, b: Tensor | None = None, *, scale: float = 1.0) -> Tensor:
    y = scale * x @ w.mT
    return y if b is None else y + b


@linear.vjp
def linear_vjp(g: Tensor, x: Tensor, w: Tensor, scale: float, needs: dict[str, bool]) -> dict[str, Tensor | None]:
    return {
        "x": g @ w * scale if needs["x"] else None,
        "w": g.mT @ x * scale if needs["w"] else None,
        "b": g.sum(0) if needs["b"] else None,
    }


def _linear(x: Tensor, w: Tensor, b: Tensor | None = None, scale: float = 1.0) -> Tensor:
    return torch.nn.functional.linear(scale * x, w, b)


add(linear, _linear, (x(4, 3), x(2, 3, seed=2), x(2, seed=3)), call=lambda f, *xs: f(*xs, scale=2.0))
add(linear, _linear, (x(4, 3), x(2, 3, seed=2)))


@gw.custom_gradient
def take(x: Tensor, index: Tensor) -> Tensor:
    return x[index]


@take.vjp
def take_vjp(g: Tensor, x: Tensor, index: Tensor) -> dict[str, Tensor]:
    return {"x": torch.zeros_like(x).index_add(0, index, g)}


add(take, lambda x, index: x[index], (x(4),), call=lambda f, x: f(x, torch.tensor([0, 2, 2])))


@gw.custom_gradient
def weighted(x: Tensor, w: Tensor) -> Tensor:
    """Broadcasts: the gradient of a smaller argument is summed, as autograd does."""
    return x * w


@weighted.vjp
def weighted_vjp(g: Tensor, x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    return g * w, g * x


add(weighted, lambda x, w: x * w, (x(2, 3), x(3, seed=2)))


@gw.custom_gradient
def power(x: Tensor, y: Tensor, k: float = 1.0) -> Tensor:
    return k * x * x * y


@power.jvp
def power_jvp(t: dict[str, Tensor | None], x: Tensor, y: Tensor, k: float) -> Tensor:
    out = torch.zeros_like(x)
    if t["x"] is not None:
        out = out + 2 * k * x * y * t["x"]
    if t["y"] is not None:
        out = out + k * x * x * t["y"]
    return out


add(power, lambda x, y, k: k * x * x * y, (x(3), x(3, seed=2)), call=lambda f, x, y: f(x, y, 3.0))


@gw.custom_gradient
def cube(x: Tensor) -> Tensor:
    """Both rules are given."""
    return x**3


@cube.vjp
def cube_vjp(g: Tensor, x: Tensor) -> Tensor:
    return 3 * g * x * x


@cube.jvp
def cube_jvp(t: Tensor, x: Tensor) -> Tensor:
    return 3 * x * x * t


add(cube, lambda x: x**3, (x(3),))


# -------------------------------------------------------------------- several outputs


@gw.custom_gradient
def sincos(x: Tensor) -> tuple[Tensor, Tensor]:
    return torch.sin(x), torch.cos(x)


@sincos.vjp
def sincos_vjp(g: tuple[Tensor, Tensor], out: tuple[Tensor, Tensor]) -> Tensor:
    (g_sin, g_cos), (sin, cos) = g, out
    return g_sin * cos - g_cos * sin


add(sincos, lambda x: (torch.sin(x), torch.cos(x)), (x(3),))


@gw.custom_gradient(symbolic_zeros=True)
def two_powers(x: Tensor) -> tuple[Tensor, Tensor]:
    return x**2, x**3


@two_powers.vjp
def two_powers_vjp(g: tuple[Tensor | None, Tensor | None], x: Tensor) -> Tensor:
    total = torch.zeros_like(x)
    if g[0] is not None:
        total = total + 2 * x * g[0]
    if g[1] is not None:
        total = total + 3 * x * x * g[1]
    return total


add(two_powers, lambda x: (x**2, x**3), (x(3),))


@gw.custom_gradient
def largest(x: Tensor) -> tuple[Tensor, Tensor]:
    """The second output is an integer tensor."""
    values, places = x.max(0)
    return values, places


@largest.vjp
def largest_vjp(g: tuple[Tensor, Any], x: Tensor, out: tuple[Tensor, Tensor]) -> Tensor:
    return torch.zeros_like(x).scatter(0, out[1].unsqueeze(0), g[0].unsqueeze(0))


add(largest, lambda x: tuple(x.max(0)), (x(4, 2),))


@gw.custom_gradient
def twice(x: Tensor):  # type: ignore[no-untyped-def]
    """The same tensor is returned twice, and each has a cotangent of its own."""
    y = x * x
    return y, y


@twice.vjp
def twice_vjp(g: tuple[Tensor, Tensor], x: Tensor) -> Tensor:
    return 2 * x * (g[0] + g[1])


add(twice, lambda x: (x * x, x * x), (x(3),))


# -------------------------------------------------------------------- residuals, rules of its own, not PyTorch


@gw.custom_gradient
def logsumexp(x: Tensor) -> Tensor:
    return torch.logsumexp(x, 0)


@logsumexp.fwd
def logsumexp_fwd(x: Tensor) -> tuple[Tensor, Tensor]:
    p = torch.softmax(x, 0)
    return torch.logsumexp(x, 0), p


@logsumexp.vjp
def logsumexp_vjp(g: Tensor, residuals: Tensor) -> Tensor:
    return g * residuals


add(logsumexp, lambda x: torch.logsumexp(x, 0), (x(3),), refuses=frozenset({"second"}))


@gw.custom_gradient(double_backward="once")
def once(x: Tensor) -> Tensor:
    return x**3


@once.vjp
def once_vjp(g: Tensor, x: Tensor) -> Tensor:
    return 3 * g * x * x


add(once, lambda x: x**3, (x(3),), refuses=frozenset({"second"}))


@gw.custom_gradient(vmap="none")
def np_sin(x: Tensor) -> Tensor:
    return torch.from_numpy(np.sin(x.detach().numpy()))


@np_sin.vjp
def np_sin_vjp(g: Tensor, x: Tensor) -> Tensor:
    return g * torch.cos(x)


@np_sin.vmap
def np_sin_vmap(info: Any, in_dims: Any, x: Tensor) -> Any:
    return np_sin(x), in_dims[0]


add(np_sin, torch.sin, (x(3),))


@gw.custom_gradient(vmap="none", forward_mode="none")
def narrow(x: Tensor) -> Tensor:
    return torch.sin(x)


@narrow.vjp
def narrow_vjp(g: Tensor, x: Tensor) -> Tensor:
    return g * torch.cos(x)


add(narrow, torch.sin, (x(3),), refuses=frozenset({"vmap", "forward"}))


# -------------------------------------------------------------------- containers


@gw.custom_gradient
def affine(params: dict[str, Tensor], x: Tensor) -> dict[str, Tensor]:
    y = x @ params["w"] + params["b"]
    return {"y": y, "mean": y.mean()}


@affine.vjp
def affine_vjp(g: dict[str, Tensor], params: dict[str, Tensor], x: Tensor) -> dict[str, Any]:
    gy = g["y"] + g["mean"] / (x.shape[0] * params["w"].shape[1])
    return {"params": {"w": x.mT @ gy, "b": gy.sum(0)}, "x": gy @ params["w"].mT}


def _affine(params: dict[str, Tensor], x: Tensor) -> dict[str, Tensor]:
    y = x @ params["w"] + params["b"]
    return {"y": y, "mean": y.mean()}


add(affine, _affine, (x(4, 3), x(3, 2, seed=2), x(2, seed=3)), call=lambda f, x, w, b: f({"w": w, "b": b}, x))


@dataclass
class Pair:
    first: Tensor
    second: Tensor
    scale: float = 1.0


@gw.custom_gradient
def swapped(pair: Pair, extra=None):  # type: ignore[no-untyped-def]
    """A dataclass in and out; the other argument is a list or nothing."""
    more = 0 if extra is None else sum(extra)
    return Pair(pair.second * pair.scale + more, pair.first * pair.first, pair.scale)


@swapped.vjp
def swapped_vjp(g: Pair, pair: Pair, extra: Any) -> dict[str, Any]:
    grads: dict[str, Any] = {"pair": {"first": 2 * pair.first * g.second, "second": g.first * pair.scale}}
    if extra is not None:
        grads["extra"] = [g.first for _ in extra]
    return grads


def _swapped(pair: Pair, extra: Any = None) -> Pair:
    more = 0 if extra is None else sum(extra)
    return Pair(pair.second * pair.scale + more, pair.first * pair.first, pair.scale)


add(swapped, _swapped, (x(3), x(3, seed=2)), call=lambda f, a, b: f(Pair(a, b, 2.0)))
add(
    swapped,
    _swapped,
    (x(3), x(3, seed=2), x(3, seed=3), x(3, seed=4)),
    call=lambda f, a, b, c, d: f(Pair(a, b, 2.0), extra=[c, d]),
)


# -------------------------------------------------------------------- complex


@gw.custom_gradient
def absolute_square(z: Tensor) -> Tensor:
    return z.real**2 + z.imag**2


@absolute_square.vjp
def absolute_square_vjp(g: Tensor, z: Tensor) -> Tensor:
    return 2 * g * z


add(
    absolute_square,
    lambda z: z.real**2 + z.imag**2,
    (x(3), x(3, seed=2)),
    call=lambda f, a, b: f(torch.complex(a, b)),
)


@gw.custom_gradient
def complex_cube(z: Tensor) -> Tensor:
    return z**3


@complex_cube.vjp
def complex_cube_vjp(g: Tensor, z: Tensor) -> Tensor:
    return g * (3 * z * z).conj()


add(complex_cube, lambda z: z**3, (x(3), x(3, seed=2)), call=lambda f, a, b: f(torch.complex(a, b)))
