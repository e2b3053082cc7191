"""Functions of arrays with every rule by hand, and the same in torch, for the tests of wrapping.

Each is non-linear in all it depends on and has a Jacobian that is not symmetric, so that a forgotten transpose, half a
derivative or a zero second derivative shows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

import gradwright as gw

W = np.array([[0.5, -1.0, 2.0], [1.5, 0.25, -0.75]])
WT = torch.tensor(W)


def constants() -> Tensor:
    """Return W inside of a rule that is recorded, which may use no tensor from outside."""
    return torch.tensor(W.tolist(), dtype=torch.float64)


@dataclass(frozen=True)
class Example:
    """One function: on arrays, in torch, its rules by name, and inputs."""

    host: Callable[..., Any]
    truth: Callable[..., Tensor]
    rules: dict[str, Callable[..., Any]]
    on_tensors: Callable[..., Any]
    out: Any
    inputs: tuple[Tensor, ...]


# ---------------------------------------------------------------- one number


def wave(x: Any) -> Any:
    """Return ``x sin x``."""
    return x * np.sin(x)


def wave_vjp(g: Any, x: Any) -> Any:
    return g * (np.sin(x) + x * np.cos(x))


def wave_jvp(t: Any, x: Any) -> Any:
    return (np.sin(x) + x * np.cos(x)) * t


def wave_jacobian(x: Any) -> Any:
    return np.sin(x) + x * np.cos(x)


def wave_hvp(g: Any, t: Any, x: Any) -> Any:
    return g * t * (2 * np.cos(x) - x * np.sin(x))


def wave_on_tensors(g: Tensor, x: Tensor) -> Tensor:
    return g * (torch.sin(x) + x * torch.cos(x))


# ---------------------------------------------------------------- a vector


def mix(x: Any) -> Any:
    """Return ``W sin x``."""
    return W @ np.sin(x)


def mix_vjp(g: Any, x: Any) -> Any:
    return np.cos(x) * (W.T @ g)


def mix_jvp(t: Any, x: Any) -> Any:
    return W @ (np.cos(x) * t)


def mix_jacobian(x: Any) -> Any:
    return W * np.cos(x)


def mix_hvp(g: Any, t: Any, x: Any) -> Any:
    return -np.sin(x) * t * (W.T @ g)


def mix_on_tensors(g: Tensor, x: Tensor) -> Tensor:
    return torch.cos(x) * (g @ constants())


# ---------------------------------------------------------------- two arguments


def blend(x: Any, y: Any) -> Any:
    """Return ``(W sin x) y²``."""
    return (W @ np.sin(x)) * y**2


def blend_vjp(g: Any, x: Any, y: Any) -> Any:
    return {"x": np.cos(x) * (W.T @ (g * y**2)), "y": g * 2 * y * (W @ np.sin(x))}


def blend_jvp(t: Any, x: Any, y: Any) -> Any:
    total = np.zeros_like(y)
    if t["x"] is not None:
        total = total + (W @ (np.cos(x) * t["x"])) * y**2
    if t["y"] is not None:
        total = total + (W @ np.sin(x)) * 2 * y * t["y"]
    return total


def blend_jacobian(x: Any, y: Any) -> Any:
    return {"x": (y**2)[:, None] * W * np.cos(x), "y": np.diag(2 * y * (W @ np.sin(x)))}


def blend_hvp(g: Any, t: Any, x: Any, y: Any) -> Any:
    tx = np.zeros_like(x) if t["x"] is None else t["x"]
    ty = np.zeros_like(y) if t["y"] is None else t["y"]
    by_x = -np.sin(x) * tx * (W.T @ (g * y**2)) + np.cos(x) * (W.T @ (g * 2 * y * ty))
    by_y = g * 2 * y * (W @ (np.cos(x) * tx)) + g * 2 * (W @ np.sin(x)) * ty
    return {"x": by_x, "y": by_y}


def blend_on_tensors(g: Tensor, x: Tensor, y: Tensor) -> Any:
    w = constants()
    return {"x": torch.cos(x) * ((g * y**2) @ w), "y": g * 2 * y * (w @ torch.sin(x))}


def real(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


EXAMPLES = {
    "scalar": Example(
        wave,
        lambda x: x * torch.sin(x),
        {"vjp": wave_vjp, "jvp": wave_jvp, "jacobian": wave_jacobian, "hvp": wave_hvp},
        wave_on_tensors,
        gw.like("x"),
        (torch.tensor(0.7, dtype=torch.float64),),
    ),
    "vector": Example(
        mix,
        lambda x: WT @ torch.sin(x),
        {"vjp": mix_vjp, "jvp": mix_jvp, "jacobian": mix_jacobian, "hvp": mix_hvp},
        mix_on_tensors,
        gw.spec((2,)),
        (real(0.7, -0.4, 1.3),),
    ),
    "two": Example(
        blend,
        lambda x, y: (WT @ torch.sin(x)) * y**2,
        {"vjp": blend_vjp, "jvp": blend_jvp, "jacobian": blend_jacobian, "hvp": blend_hvp},
        blend_on_tensors,
        gw.like("y"),
        (real(0.7, -0.4, 1.3), real(1.1, -0.6)),
    ),
}

WAYS: dict[str, tuple[tuple[str, ...], dict[str, Any]]] = {
    "vjp": (("vjp",), {}),
    "jvp": (("jvp",), {}),
    "jacobian": (("jacobian",), {}),
    "vjp+hvp": (("vjp", "hvp"), {}),
    "vjp+jvp+hvp": (("vjp", "jvp", "hvp"), {}),
    "differences": (("vjp",), {"second_order": "differences"}),
    "tensors": ((), {}),
    "none": ((), {}),
}
"""How the derivative is given: the rules, and options."""


def wrapped(example: Example, way: str, **options: Any) -> Any:
    """Return the function of an example with its derivative given in one of the ways."""
    kinds, more = WAYS[way]
    function = gw.external(example.host, out=example.out, **{**more, **options})
    for kind in kinds:
        getattr(function, f"register_{kind}")(example.rules[kind])
    if way == "tensors":
        function.vjp(example.on_tensors)
    return function
