"""Kinds of tensors: dtypes, layouts, shapes, views, containers, constants among the inputs."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tests.controls.entries import Control, control, t, x, z

F = torch.nn.functional

FLOATS = (torch.float32, torch.float16, torch.bfloat16)
FUNCTIONS = {
    "sin": torch.sin,
    "exp": torch.exp,
    "softmax": lambda a: a.softmax(-1),
    "sum of squares": lambda a: (a * a).sum(),
    "matrix product": lambda a: a @ a.mT,
    "relu": torch.relu,
    "log of the sum of exponentials": lambda a: a.logsumexp(-1),
}


def low(dtype: torch.dtype, *shape: int) -> Tensor:
    return x(*shape).to(dtype)


LAYOUTS: dict[str, Tensor] = {
    "transposed": x(4, 3).t(),
    "sliced with garbage between": x(6, 8)[::2, 1::3],
    "with a storage offset": x(20)[5:17].reshape(4, 3)[1:],
    "expanded rows": x(1, 3).expand(4, 3),
    "expanded scalar": x(1)[0].expand(3),
    "channels last": x(1, 2, 3, 3).to(memory_format=torch.channels_last),
    "overlapping windows": x(6).unfold(0, 3, 1),
    "flipped": x(5).flip(0),
    "column": x(4, 3)[:, 1],
    "0-dim": t(0.3)[0],
    "one element": x(1),
    "empty": x(0),
    "no rows": x(0, 3),
    "no columns": x(3, 0),
    "batch of one": x(1, 4),
    "five dimensions": x(1, 2, 1, 2, 2),
    "just past a block": x(129),
    "not a leaf": x(4).requires_grad_().exp().detach(),
}
COMPLEX_LAYOUTS: dict[str, Tensor] = {
    "lazily conjugated": z(4).conj(),
    "real part of a complex tensor": z(4).real,
    "imaginary part, lazily negated": z(4).conj().imag,
    "complex and transposed": z(2, 3).t(),
    "complex and empty": z(0),
}


def needing(tensor: Tensor) -> Tensor:
    return tensor.clone().requires_grad_()


CONTAINERS: list[tuple[Any, ...]] = [
    ("list of tensors", lambda parts: parts[0] * parts[1], [x(3), x(3, seed=1)]),
    ("tuple of tensors", lambda parts: parts[0] @ parts[1], (x(2, 3), x(3, seed=1))),
    ("dictionary of tensors", lambda d: d["a"].sin() * d["b"], {"a": x(3), "b": x(3, seed=1)}),
    ("nested containers", lambda d: d["a"][0] * d["b"][1], {"a": [x(3)], "b": (None, x(3, seed=1))}),
    ("None among the arguments", lambda a, b, c: a * c if b is None else a + b, x(3), None, x(3, seed=1)),
    ("number and string among the arguments", lambda a, k, how: a * k if how == "times" else a, x(3), 2.5, "times"),
    ("boolean and integer tensors", lambda a, m, i: (a * m)[i], x(4), t(1, 0, 1, 1) > 0, torch.tensor([0, 2])),
    ("dtype among the arguments", lambda a, d: a.to(d).sin(), x(3), torch.float64),
    ("returns a dictionary", lambda a: {"sin": a.sin(), "cos": a.cos()}, x(3)),
    ("returns a list", lambda a: [a.sin(), a.cos()], x(3)),
    ("returns a tuple with None", lambda a: (a.sin(), None), x(3)),
    ("returns an integer output first", lambda a: (a.argmax(), a.sin()), x(4)),
    ("returns a boolean output last", lambda a: (a.sin(), a > 0), x(4)),
    ("returns a detached output beside", lambda a: (a.sin(), (a.detach() > 0).to(a.dtype)), x(4)),
    ("returns its input", lambda a: a, x(3)),
    ("returns a view of its input", lambda a: a[1:], x(4)),
    ("returns the same tensor twice", lambda a: (lambda out: (out, out))(a.exp()), x(3)),
    ("an input that does not matter", lambda a, b: a.sin(), x(3), x(2, seed=1)),
    ("only the second is differentiated", lambda a, b: a * b, x(3), needing(x(3, seed=1))),
    ("integer constant of the same shape", lambda a, n: a**n, x(3), torch.tensor([1, 2, 3])),
    ("real and complex inputs", lambda a, b: (a * b).sum().abs(), x(3), z(3)),
    ("mixed precision inputs", lambda a, b: a * b.double(), x(3), x(3, seed=1).float()),
    ("scalar and matrix", lambda a, s: a * s, x(2, 3), t(1.5)[0]),
    ("broadcast over three shapes", lambda a, b, c: a * b + c, x(3, 1), x(1, 4), x(4, seed=2)),
    ("keyword-like default", lambda a, k=3: a * k, x(3)),
]


def in_place_on_copy(a: Tensor) -> Tensor:
    out = a.clone()
    out.mul_(2).add_(1)
    out[0] = a[1]
    return out


def recomputed(a: Tensor) -> Tensor:
    return torch.utils.checkpoint.checkpoint(lambda b: b.sin().exp(), a, use_reentrant=False)


def inner_gradient(a: Tensor) -> Tensor:
    """The gradient of an inner function, as a value: double backward is its gradient."""
    with torch.enable_grad():
        b = a if a.requires_grad else a.detach().requires_grad_()
        (grad,) = torch.autograd.grad((b**3).sum(), b, create_graph=True)
    return grad


PROGRAMS: list[tuple[Any, ...]] = [
    ("in place on a copy", in_place_on_copy, x(4)),
    ("a loop", lambda a: sum(a**k for k in range(1, 4)), x(3)),
    ("a branch on values", lambda a: a.sin() if float(a.sum()) > 0 else a.cos(), x(3)),
    ("recomputed under checkpointing", recomputed, x(4)),
    ("the gradient of an inner function", inner_gradient, x(3)),
    ("vmap inside", torch.vmap(lambda row: row.sin().sum()), x(3, 2)),
    ("hessian inside", lambda a: torch.func.hessian(lambda b: (b**3).sum())(a).diagonal(), x(3)),
    ("jvp inside", lambda a: torch.func.jvp(torch.sin, (a,), (torch.ones_like(a),))[1], x(3)),
    ("fixed number of Newton steps", lambda a: (lambda y: 0.5 * (y + a / y))(0.5 * (1 + a)), 1 + x(3).abs()),
    ("parts detached on purpose and added back", lambda a: a.sin() + a.detach() - a.detach(), x(3)),
    ("straight-through by detach", lambda a: a + (a.round() - a).detach(), 3 * x(4)),
    ("sorting network", lambda a: torch.stack([torch.minimum(a[0], a[1]), torch.maximum(a[0], a[1])]), x(2)),
    ("cumulative maximum of a walk", lambda a: a.cumsum(0).cummax(0)[0], x(6)),
    ("lookup by rounding", lambda a, w: w[a.detach().round().long().clamp(0, 3)] * a, x(3), x(4, seed=1)),
    ("random with a seed inside", lambda a: a * torch.rand(3, generator=torch.Generator().manual_seed(1)), x(3)),
    ("dropout", lambda a: F.dropout(a, 0.3), x(9)),
    ("noise added", lambda a: a.sin() + 0.1 * torch.randn_like(a), x(4)),
    ("reparametrised sample", lambda m, s: m + s.exp() * torch.randn_like(m), x(3), x(3, seed=1)),
    ("Gumbel softmax", lambda a: F.gumbel_softmax(a, tau=0.7), x(5)),
    ("sample of a Gamma distribution", lambda a: torch.distributions.Gamma(a, 1.0).rsample(), 1 + x(3).abs()),
]
STRAIGHT = "straight-through by detach"

CONTROLS: list[Control] = [
    *(
        control(f"{name} in {str(dtype).removeprefix('torch.')}", function, low(dtype, 3, 4))
        for name, function in FUNCTIONS.items()
        for dtype in FLOATS
    ),
    control("complex64", lambda a: a * a.conj() * a, z(3).to(torch.complex64)),
    *(control(f"sin of a tensor: {name}", torch.sin, tensor) for name, tensor in LAYOUTS.items()),
    *(
        control(f"sum and product of a tensor: {name}", lambda a: a.sum() * a, tensor)
        for name, tensor in LAYOUTS.items()
    ),
    *(control(f"cubes of a tensor: {name}", lambda a: a**3, tensor) for name, tensor in COMPLEX_LAYOUTS.items()),
    *(control(name, function, *inputs) for name, function, *inputs in CONTAINERS),
    *(
        control(name, function, *inputs, **({"surrogate": lambda a: a} if name == STRAIGHT else {}))
        for name, function, *inputs in PROGRAMS
    ),
]
