"""Activations whose gradient is read from their output, which the next layer keeps anyway.

PyTorch keeps the input as well, so that a stack of layers holds both. With ``y = softplus(x)`` the slope
``sigmoid(x)`` is ``1 - exp(-y)``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from gradwright.authoring.catalogue import Example, grid
from gradwright.authoring.cheaper import Goal, cheaper
from gradwright.authoring.decorator import custom_gradient
from gradwright.authoring.exact import HALF, Point, relative
from gradwright.stable.arguments import require_floating, require_number, widened
from gradwright.torch_compat import kernels


def _softplus_examples(dtype: torch.dtype) -> Sequence[Example]:
    return [
        Point((grid(-3.0, 3.0, 12, dtype),), note="ordinary"),
        Point((grid(-3.0, 3.0, 12, dtype).reshape(3, 4).t(),), {"beta": 2.0}, note="not contiguous, steeper"),
        Point((torch.tensor([-40.0, 0.0, 20.125, 30.0], dtype=dtype),), note="switch"),
    ]


@cheaper(
    forward="out = log(1 + exp(beta x)) / beta, x where beta x > threshold",
    gradient={"x": "g (1 - exp(-beta out))"},
    replaces=torch.nn.functional.softplus,
    kept=lambda x, beta=1.0, threshold=20.0: 0,
    goal=Goal(time=1.1, kept=0.55),
    domain="every number",
    bars=relative(1e-12, 1e-6, *HALF),
    examples=_softplus_examples,
    ordinary=lambda: (torch.randn(2048, 2048),),
    measure="element",
    paper="pytorch#63644",
)
@custom_gradient
def softplus(x: Tensor, beta: float = 1.0, threshold: float = 20.0) -> Tensor:
    """Return the softplus, whose gradient needs its output alone."""
    require_floating("softplus", x=x)
    require_number("softplus", beta=beta, threshold=threshold)
    return torch.nn.functional.softplus(x, beta, threshold)


@softplus.vjp
def softplus_vjp(g: Tensor, out: Tensor, beta: float, threshold: float) -> dict[str, Tensor]:
    y = beta * widened(out)
    switched = threshold + math.log1p(math.exp(-threshold))  # the output where PyTorch goes on with x itself
    return {"x": g * torch.where(y > switched, 1.0, -kernels.expm1(-y)).to(out.dtype)}
