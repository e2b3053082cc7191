"""Every example under every transform and every pair of them: the value is right, or it refuses with our message."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.func import grad, hessian, jacfwd, jacrev, jvp, vjp, vmap

from gradwright.authoring import trees
from gradwright.errors import GradwrightError
from tests.authoring.examples import EXAMPLES, Example

F = Callable[..., Tensor]


def measured(example: Example, function: Any) -> F:
    """Return a smooth function of the inputs that every output goes into, with another weight for every element."""

    def smooth(*xs: Tensor) -> Tensor:
        leaves: list[Tensor] = []
        trees.flatten(example.call(function, *xs), leaves)
        total: Any = 0.0
        for k, leaf in enumerate(leaves):
            for part in (leaf.real, leaf.imag) if leaf.is_complex() else (leaf,):
                steps = torch.arange(part.numel(), dtype=torch.float64).reshape(part.shape)
                total = total + (torch.sin(part * 0.7 + k) * torch.cos(steps + k)).sum()
        return total

    return smooth


def _along(f: F) -> F:
    def pushed(*xs: Tensor) -> Tensor:
        tangents = tuple(torch.cos(torch.arange(t.numel(), dtype=t.dtype)).reshape(t.shape) for t in xs)
        return jvp(f, xs, tangents)[1]

    return pushed


def _pulled(f: F) -> F:
    def pulled(*xs: Tensor) -> Tensor:
        out, pull = vjp(f, *xs)
        return sum(t.sin().sum() for t in pull(torch.ones_like(out)))

    return pulled


def _batched(f: F) -> F:
    def batched(*xs: Tensor) -> Tensor:
        return vmap(f)(*(torch.stack([t, 1.1 * t, t - 0.3]) for t in xs))

    return batched


def _batched_first(f: F) -> F:
    """Only the first input is batched, and in its last dimension."""

    def batched(*xs: Tensor) -> Tensor:
        return vmap(lambda t: f(t, *xs[1:]), in_dims=-1)(torch.stack([xs[0], 1.1 * xs[0]], -1))

    return batched


def _last(transform: Any) -> Any:
    """Differentiate in the last input."""
    return lambda f: lambda *xs: transform(lambda *ys: f(*ys).sum(), argnums=len(xs) - 1)(*xs)


TRANSFORMS: dict[str, Callable[[F], F]] = {
    "grad": lambda f: lambda *xs: grad(lambda *ys: f(*ys).sum())(*xs),
    "vjp": _pulled,
    "jvp": _along,
    "jacrev": lambda f: lambda *xs: jacrev(f)(*xs),
    "jacfwd": lambda f: lambda *xs: jacfwd(f)(*xs),
    "last-jacfwd": _last(jacfwd),
    "hessian": lambda f: lambda *xs: hessian(lambda *ys: f(*ys).sum())(*xs),
    "vmap": _batched,
    "vmap-first": _batched_first,
}

PLAIN = "backward"


def _backward(f: F) -> F:
    """Differentiate with plain autograd, which can only be the outermost."""

    def swept(*xs: Tensor) -> Tensor:
        leaves = [t.detach().clone().requires_grad_() for t in xs]
        grads = torch.autograd.grad(f(*leaves).sin().sum(), leaves, materialize_grads=True)
        return torch.cat([g.flatten() for g in grads])

    return swept


def _double_backward(f: F) -> F:
    def swept(*xs: Tensor) -> Tensor:
        leaves = [t.detach().clone().requires_grad_() for t in xs]
        grads = torch.autograd.grad(f(*leaves).sin().sum(), leaves, create_graph=True, materialize_grads=True)
        penalty = sum((g * g).sum() for g in grads)
        again = torch.autograd.grad(penalty, leaves, materialize_grads=True)
        return torch.cat([g.flatten() for g in again])

    return swept


def _dual(f: F) -> F:
    """Push with dual numbers, PyTorch's own forward mode."""

    def pushed(*xs: Tensor) -> Tensor:
        with torch.autograd.forward_ad.dual_level():
            duals = [torch.autograd.forward_ad.make_dual(t, torch.cos(t)) for t in xs]
            tangent = torch.autograd.forward_ad.unpack_dual(f(*duals).sum()).tangent
            assert tangent is not None
            return tangent

    return pushed


OUTERMOST = {PLAIN: _backward, "double-backward": _double_backward, "dual": _dual}
ORDER = {"grad", "vjp", "jvp", "jacrev", "jacfwd", "last-jacfwd", PLAIN, "dual"}
FORWARD = {"jvp", "jacfwd", "last-jacfwd", "hessian", "dual"}


def refused(example: Example, names: tuple[str, ...]) -> bool:
    """Tell whether the example must refuse the composition of these transforms."""
    order = sum(2 if n in ("hessian", "double-backward") else n in ORDER for n in names)
    return (
        ("second" in example.refuses and order > 1)
        # A Jacobian is batched inside; a transform that a batched one is inside of meets the batch too.
        or ("vmap" in example.refuses and bool({"vmap", "vmap-first"} & set(names)))
        or ("forward" in example.refuses and bool(FORWARD & set(names)))
    )


SINGLE = [(name,) for name in (*TRANSFORMS, *OUTERMOST)]
PAIRS = [
    (outer, inner)
    for outer in (*TRANSFORMS, *OUTERMOST)
    for inner in TRANSFORMS
    # PyTorch has one level of dual numbers, which its own functional forward mode uses too.
    if not (outer == "dual" and inner in FORWARD)
]
ALWAYS = {"exp", "linear", "power", "largest", "logsumexp", "np_sin", "affine"}
"""Examples for which all pairs are run each time; for the others with ``-m slow``, since there are thousands."""
CELLS = [
    pytest.param(example, names, marks=pytest.mark.slow if example.name not in ALWAYS and len(names) > 1 else ())
    for example in EXAMPLES
    for names in SINGLE + PAIRS
]


def composed(names: tuple[str, ...], f: F) -> F:
    for name in reversed(names):
        f = (TRANSFORMS | OUTERMOST)[name](f)
    return f


@pytest.mark.parametrize(
    ("example", "names"), CELLS, ids=lambda v: f"{v.name}{len(v.inputs)}" if isinstance(v, Example) else "-of-".join(v)
)
def test_right_or_refused(example: Example, names: tuple[str, ...]) -> None:
    ours = composed(names, measured(example, example.function))
    if refused(example, names):
        with pytest.raises(GradwrightError, match=f"^{example.name}: "):
            ours(*example.inputs)
        return
    theirs = composed(names, measured(example, example.truth))
    torch.testing.assert_close(ours(*example.inputs), theirs(*example.inputs), atol=1e-9, rtol=1e-9)
