"""More wrong formulae: mistakes of reductions, indices, axes, branches and constants."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from tests.defects.entries import Defect, positive, rule, t, x

GRADIENT = ("matches-differences",)


def softmax_vjp(dim: int) -> Any:
    def vjp(g: Tensor, x: Tensor) -> Tensor:
        p = x.softmax(-1)
        return p * (g - (g * p).sum(dim, keepdim=True))

    return vjp


def variance_vjp(divisor: int) -> Any:
    return lambda g, x: g * 2 * (x - x.mean()) / (len(x) - divisor)


def flattened_index(dtype: torch.dtype) -> Any:
    """Pick elements by a position that is computed in an integer type of its own."""

    def vjp(g: Tensor, x: Tensor) -> Tensor:
        rows = torch.arange(len(x)).to(dtype)
        position = (rows * x.shape[1] + 1).long() % x.numel()
        return torch.zeros_like(x).reshape(-1).index_add(0, position, g).reshape(x.shape)

    return vjp


def correlation(x: Tensor, k: Tensor) -> Tensor:
    if len(k) != 3:
        raise ValueError("the kernel has three elements")
    return torch.nn.functional.conv1d(x[None, None], k[None, None], padding=1)[0, 0]


def correlation_vjp(flip: bool) -> Any:
    def vjp(g: Tensor, x: Tensor, k: Tensor) -> Any:
        padded = torch.nn.functional.pad(x, (1, 1))
        grad_k = torch.stack([(padded[i : i + len(x)] * g).sum() for i in range(3)])
        return correlation(g, k.flip(0) if flip else k), grad_k

    return vjp


def pair(name: str, value: Any, wrong: Any, right: Any, inputs: Any, words: str | None = None) -> Defect:
    return Defect(
        name,
        rule(value, wrong, name="Rule"),
        rule(value, right, name="Rule"),
        inputs,
        GRADIENT,
        words,
    )


DEFECTS = [
    pair(
        "bias gradient summed over the wrong dimension of a square batch",
        lambda x, b: x * b,
        lambda g, x, b: (g * b, (g * x).sum(1)),
        lambda g, x, b: (g * b, (g * x).sum(0)),
        lambda: (x(4, 4), x(4, seed=1)),
        r"dim|reduc",
    ),
    pair(
        "off-by-one roll",
        lambda x: x.roll(1),
        lambda g, x: g.roll(-2),
        lambda g, x: g.roll(-1),
        lambda: (x(6),),
        r"shift|roll|off by one",
    ),
    pair(
        "permuted dimensions of a cube",
        lambda x: x.permute(1, 2, 0).clone(),
        lambda g, x: g.permute(1, 2, 0).clone(),
        lambda g, x: g.permute(2, 0, 1).clone(),
        lambda: (x(2, 2, 2),),
        r"permut|transpos",
    ),
    pair(
        "mean over the batch forgotten",
        lambda x: (x * x).mean(0),
        lambda g, x: g * 2 * x,
        lambda g, x: g * 2 * x / len(x),
        lambda: (x(5, 3),),
        r"factor 5",
    ),
    pair(
        "softmax backward sums over the wrong axis",
        lambda x: x.softmax(-1),
        softmax_vjp(0),
        softmax_vjp(-1),
        lambda: (x(3, 3),),
    ),
    pair(
        "clamp without the stop outside its bounds",
        lambda x: x.clamp(-0.5, 0.5),
        lambda g, x: g,
        lambda g, x: g * ((x > -0.5) & (x < 0.5)),
        lambda: (t(-2.0, -0.3, 0.1, 0.4, 1.5),),
    ),
    pair(
        "the other branch of where",
        lambda x: torch.where(x > 0, x, 0.1 * x),
        lambda g, x: torch.where(x > 0, 0.1 * g, g),
        lambda g, x: torch.where(x > 0, g, 0.1 * g),
        lambda: (t(-2.0, -0.3, 0.7, 1.5),),
    ),
    pair(
        "index computed in int8 overflows",
        lambda x: x[:, 1].clone(),
        flattened_index(torch.int8),
        flattened_index(torch.int64),
        lambda: (x(40, 5),),
    ),
    pair(
        "sample variance differentiated with n instead of n - 1",
        lambda x: x.var(),
        variance_vjp(0),
        variance_vjp(1),
        lambda: (x(5),),
        r"factor 0\.8",
    ),
    pair(
        "cumulative sum not reversed",
        lambda x: x.cumsum(0),
        lambda g, x: g.cumsum(0),
        lambda g, x: g.flip(0).cumsum(0).flip(0),
        lambda: (x(5),),
    ),
    pair(
        "convolution backward with the kernel not flipped",
        correlation,
        correlation_vjp(flip=False),
        correlation_vjp(flip=True),
        lambda: (x(6), x(3, seed=1)),
    ),
    pair(
        "second term of the quotient rule forgotten",
        lambda x: x.sin() / x,
        lambda g, x: g * x.cos() / x,
        lambda g, x: g * (x.cos() / x - x.sin() / x**2),
        lambda: (positive(4),),
    ),
    pair(
        "degrees and radians confused",
        lambda x: torch.sin(x * math.pi / 180),
        lambda g, x: g * torch.cos(x * math.pi / 180),
        lambda g, x: g * torch.cos(x * math.pi / 180) * math.pi / 180,
        lambda: (30 * x(4),),
        r"factor 57\.29",
    ),
    pair(
        "factor of the input missing",
        lambda x: x**3,
        lambda g, x: g * 3 * x,
        lambda g, x: g * 3 * x**2,
        lambda: (x(4),),
        r"factor `x`",
    ),
    pair(
        "floor division in backward",
        lambda x: x * 7 / 2,
        lambda g, x: g * (7 // 2),
        lambda g, x: g * 7 / 2,
        lambda: (x(4),),
        r"factor 0\.857",
    ),
    pair(
        "diagonal of a symmetric product counted once",
        lambda x: x @ x.t(),
        lambda g, x: g @ x,
        lambda g, x: (g + g.t()) @ x,
        lambda: (x(3, 2),),
    ),
    pair(
        "triangle not masked in backward",
        lambda x: x.tril(),
        lambda g, x: g,
        lambda g, x: g.tril(),
        lambda: (x(3, 3),),
    ),
    pair(
        "gradient of the log-sum-exp lacks the softmax's normaliser",
        lambda x: x.logsumexp(0),
        lambda g, x: g * x.exp(),
        lambda g, x: g * x.softmax(0),
        lambda: (x(5),),
        r"factor",
    ),
    pair(
        "slice put back one place too late",
        lambda x: x[1:4].clone(),
        lambda g, x: torch.cat([g.new_zeros(2), g, g.new_zeros(len(x) - 5)]),
        lambda g, x: torch.zeros_like(x).index_add(0, torch.arange(1, 1 + len(g)), g),
        lambda: (x(7),),
        r"shift|roll|off by one",
    ),
    pair(
        "interleaved elements: every second one gets no gradient",
        lambda x: x * 3,
        lambda g, x: 3 * g * (torch.arange(len(x)) % 2 == 0),
        lambda g, x: 3 * g,
        lambda: (x(8),),
        r"4 of 8 elements",
    ),
]
