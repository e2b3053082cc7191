"""Wrong formulae: the gradient is not the derivative of forward."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tests.defects.entries import DOUBLE, Defect, positive, rule, t, x

GRADIENT = ("matches-differences",)
BOTH = ("matches-differences", "linear-in-cotangent")

EXP = rule(lambda x: x.exp(), lambda g, x: g * x.exp(), name="Exp")
PRODUCT = rule(lambda x, w: x * w, lambda g, x, w: (g * w, g * x), name="Product")
MATMUL = rule(lambda x, w: x @ w, lambda g, x, w: (g @ w.t(), x.t() @ g), name="Matmul")
BIAS = rule(lambda x, b: x + b, lambda g, x, b: (g, g.sum(0)), name="Bias")
WAVE = rule(lambda x, y: x.sin() * y, lambda g, x, y: (g * y * x.cos(), g * x.sin()), name="Wave")
SQUARE = rule(lambda x: x * x, lambda g, x: g * 2 * x, name="Square")
TINY = rule(lambda x: 1e-6 * x.sin(), lambda g, x: 1e-6 * g * x.cos(), name="Tiny")
MASK = torch.zeros(12, dtype=DOUBLE).index_fill(0, torch.tensor(7), 1.0)


def exp(vjp: Any) -> Any:
    return rule(lambda x: x.exp(), vjp, name="Exp")


def last_zeroed(g: Tensor, x: Tensor) -> Tensor:
    grad = g * x.exp()
    return torch.cat([grad[:-1], 0 * grad[-1:]])


def norm_product(g: Tensor, x: Tensor) -> Tensor:
    return g * 2 * x * x / x.abs()


def normalised(x: Tensor) -> Tensor:
    return x / (1 + 0.01 * x.norm())


def normalised_vjp(g: Tensor, x: Tensor) -> Tensor:
    norm = x.norm()
    size = 1 + 0.01 * norm
    return g / size - torch.where(norm == 0, 0.0, x * (g * x).sum() * 0.01 / (norm * size**2))


DEFECTS = [
    Defect(
        "wrong sign of one gradient",
        rule(lambda x, w: x * w, lambda g, x, w: (g * w, -g * x), name="Product"),
        PRODUCT,
        lambda: (x(4), x(4, seed=1)),
        GRADIENT,
        r"sign is wrong",
        1,
    ),
    Defect(
        "off by factor 2",
        rule(lambda x: x * x, lambda g, x: g * 4 * x, name="Square"),
        SQUARE,
        lambda: (x(4),),
        GRADIENT,
        r"factor 2\b",
        2,
    ),
    Defect(
        "grad_output factor missing",
        exp(lambda g, x: x.exp()),
        EXP,
        lambda: (x(4),),
        BOTH,
        r"grad_output is missing",
        3,
    ),
    Defect(
        "grad_output added, not multiplied",
        exp(lambda g, x: g + x.exp()),
        EXP,
        lambda: (x(4),),
        BOTH,
        r"added",
        4,
    ),
    Defect(
        "transpose missing, square matrices",
        rule(lambda x, w: x @ w, lambda g, x, w: (g @ w, x.t() @ g), name="Matmul"),
        MATMUL,
        lambda: (x(3, 3), x(3, 3, seed=1)),
        GRADIENT,
        r"transpos",
        5,
    ),
    Defect(
        "gradients of two inputs of the same shape swapped",
        rule(lambda x, y: x.sin() * y, lambda g, x, y: (g * x.sin(), g * y * x.cos()), name="Wave"),
        WAVE,
        lambda: (x(4), x(4, seed=1)),
        GRADIENT,
        r"swapped",
        6,
    ),
    Defect(
        "gradient of one input dropped",
        rule(lambda x, w: x * w, lambda g, x, w: (g * w, None), name="Product"),
        PRODUCT,
        lambda: (x(4), x(4, seed=1)),
        GRADIENT,
        r"returns None",
        8,
    ),
    Defect(
        "last element of the gradient zero, 2000 elements",
        exp(last_zeroed),
        EXP,
        lambda: (x(2000),),
        GRADIENT,
        r"1999",
        11,
    ),
    Defect(
        "broadcast reduction uses the mean, not the sum",
        rule(lambda x, b: x + b, lambda g, x, b: (g, g.mean(0)), name="Bias"),
        BIAS,
        lambda: (x(3, 4), x(4)),
        GRADIENT,
        r"factor 0\.333|mean",
        12,
    ),
    Defect(
        "relative error of 5e-4",
        exp(lambda g, x: g * x.exp() * (1 + 5e-4)),
        EXP,
        lambda: (x(4),),
        GRADIENT,
        r"factor 1\.0005",
        15,
    ),
    Defect(
        "backward computed in float32 in a float64 operation",
        exp(lambda g, x: (g.float() * x.float().exp()).double()),
        EXP,
        lambda: (x(8),),
        BOTH,
        r"float32",
        16,
    ),
    Defect(
        "backward computed in float16 in a float64 operation",
        exp(lambda g, x: (g.half() * x.half().exp()).double()),
        EXP,
        lambda: (x(8),),
        BOTH,
        r"float16|half",
        17,
    ),
    Defect(
        "operation of scale 1e-6, gradient three times too big",
        rule(lambda x: 1e-6 * x.sin(), lambda g, x: 3e-6 * g * x.cos(), name="Tiny"),
        TINY,
        lambda: (x(4),),
        GRADIENT,
        r"factor 3\b",
        18,
    ),
    Defect(
        "operation of scale 1e-6, gradient all zeros",
        rule(lambda x: 1e-6 * x.sin(), lambda g, x: 0 * g, name="Tiny"),
        TINY,
        lambda: (x(4),),
        GRADIENT,
        r"zeros",
        19,
    ),
    Defect(
        "0/0 in backward, the sample has a zero",
        rule(lambda x: x * x.abs(), norm_product, name="SignedSquare"),
        rule(lambda x: x * x.abs(), lambda g, x: g * 2 * x.abs(), name="SignedSquare"),
        lambda: (t(0.0, 1.0, -2.0),),
        BOTH,
        r"NaN",
        102,
    ),
    Defect(
        "small term missing: one percent on one of twelve elements",
        rule(lambda x: x.exp() * (1 + 0.01 * MASK), lambda g, x: g * x.exp(), name="Bumped"),
        rule(lambda x: x.exp() * (1 + 0.01 * MASK), lambda g, x: g * x.exp() * (1 + 0.01 * MASK), name="Bumped"),
        lambda: (x(12),),
        GRADIENT,
        r"1 of 12",
        113,
    ),
    Defect(
        "normaliser treated as a constant, one percent",
        rule(normalised, lambda g, x: g / (1 + 0.01 * x.norm()), name="Normalised"),
        rule(normalised, normalised_vjp, name="Normalised"),
        lambda: (x(6),),
        GRADIENT,
        r"normali[sz]er|low.rank|rank.(1|one)|common term|constant term",
        115,
    ),
    Defect(
        "bias add: gradient with an extra leading axis, which the engine sums",
        rule(lambda x: x * 2, lambda g, x: (2 * g).expand(5, *g.shape), name="Double"),
        rule(lambda x: x * 2, lambda g, x: 2 * g, name="Double"),
        lambda: (x(3),),
        ("matches-differences", "gradient-shape-and-dtype"),
        r"shape|factor 5",
        case="C2",
    ),
    Defect(
        "constant factor one half missing",
        rule(lambda x: 0.5 * x * x, lambda g, x: 2 * g * x, name="HalfSquare"),
        rule(lambda x: 0.5 * x * x, lambda g, x: g * x, name="HalfSquare"),
        lambda: (x(5),),
        GRADIENT,
        r"factor 2\b",
        case="C7",
    ),
    Defect(
        "identity on 2000 elements, one gradient entry zero",
        rule(lambda x: x * 1, lambda g, x: g.index_fill(0, torch.tensor(1234), 0.0), name="Identity"),
        rule(lambda x: x * 1, lambda g, x: g, name="Identity"),
        lambda: (x(2000),),
        GRADIENT,
        r"1234",
        case="D1",
    ),
    Defect(
        "gradient 0.09 percent too large everywhere",
        exp(lambda g, x: g * x.exp() * 1.0009),
        EXP,
        lambda: (x(5),),
        GRADIENT,
        r"factor 1\.0009",
        case="D3",
    ),
    Defect(
        "half-precision arithmetic inside a float64 backward",
        rule(lambda x: x.sin() * 3, lambda g, x: g * (3 * x.half().cos()).double(), name="Sine"),
        rule(lambda x: x.sin() * 3, lambda g, x: g * 3 * x.cos(), name="Sine"),
        lambda: (positive(6),),
        GRADIENT,
        r"float16|half",
        case="D8",
    ),
    Defect(
        "None returned for an input that has a gradient",
        rule(lambda x, s: x * s, lambda g, x, s: (None, (g * x).sum()), name="Scaled"),
        rule(lambda x, s: x * s, lambda g, x, s: (g * s, (g * x).sum()), name="Scaled"),
        lambda: (x(3), x(1, seed=2)[0]),
        GRADIENT,
        r"returns None",
        case="I9",
    ),
]
