"""Backward is not linear in the incoming gradient."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tests.defects.entries import Defect, positive, rule, x

LINEAR = ("linear-in-cotangent",)
BOTH = ("linear-in-cotangent", "matches-differences")

SINE = rule(lambda x: x.sin(), lambda g, x: g * x.cos(), name="Sine")
SIN_COS = rule(lambda x: (x.sin(), x.cos()), lambda g, h, x: g * x.cos() - h * x.sin(), name="SinCos")


def sine(change: Any) -> Any:
    """The sine whose backward changes the incoming gradient first."""
    return rule(lambda x: x.sin(), lambda g, x: change(g) * x.cos(), name="Sine")


def last_wins(g: Tensor, h: Tensor, x: Tensor) -> Tensor:
    grad = g * x.cos()
    return -h * x.sin() if bool((h != 0).any()) else grad


def entry(name: str, change: Any, words: str, number: int | None = None, case: str | None = None) -> Defect:
    return Defect(name, sine(change), SINE, lambda: (x(5),), BOTH, words, number, case)


def nonzero_mean(g: Tensor) -> Tensor:
    return (g.sum() / (g != 0).sum().clamp(min=1)).expand_as(g)


MEAN = rule(lambda x: (x * x).mean(), lambda g, x: g * 2 * x / x.numel(), name="MeanSquare")

DEFECTS = [
    entry("the absolute value of grad_output", lambda g: g.abs(), r"absolute value", 28),
    entry("grad_output squared", lambda g: g * g, r"square", 29),
    entry("grad_output clamped to [-1, 1]", lambda g: g.clamp(-1, 1), r"clamp", 30),
    entry("relu of grad_output", lambda g: g.relu(), r"relu", 31),
    entry("grad_output normalised to unit norm", lambda g: g / (g.norm() + 1e-30), r"normali[sz]e", 32),
    entry("grad_output rounded to bfloat16", lambda g: g.bfloat16().double(), r"bfloat16", 34),
    entry("grad_output taken for a mask of zeros and ones", lambda g: (g != 0).double(), r"mask", 35),
    Defect(
        "two outputs: an extra product of the two incoming gradients",
        rule(lambda x: (x.sin(), x.cos()), lambda g, h, x: g * x.cos() - h * x.sin() + g * h, name="SinCos"),
        SIN_COS,
        lambda: (x(4),),
        LINEAR,
        r"product of two incoming|mixes",
        36,
    ),
    Defect(
        "two outputs: the second gradient overwrites the first",
        rule(lambda x: (x.sin(), x.cos()), last_wins, name="SinCos"),
        SIN_COS,
        lambda: (x(4),),
        LINEAR,
        r"overwrites|mixes",
        37,
    ),
    Defect(
        "every element scaled by the first incoming gradient",
        sine(lambda g: g.reshape(-1)[:1].expand(g.numel()).reshape(g.shape)),
        SINE,
        lambda: (x(5),),
        BOTH,
        case="A1",
    ),
    Defect(
        "gradient made in forward, multiplied by the mean of the incoming gradients that are not zero",
        sine(nonzero_mean),
        SINE,
        lambda: (x(5),),
        BOTH,
        case="A3",
    ),
    Defect(
        "the pullback of ones, multiplied by grad_output afterwards",
        rule(lambda x, m: m @ x, lambda g, x, m: ((m.t() @ torch.ones_like(g)) * g, torch.outer(g, x)), name="Apply"),
        rule(lambda x, m: m @ x, lambda g, x, m: (m.t() @ g, torch.outer(g, x)), name="Apply"),
        lambda: (x(3), x(3, 3, seed=1)),
        BOTH,
        case="A4",
    ),
    entry("grad_output clipped by nan_to_num", lambda g: g.nan_to_num(0, 1, -1).clamp(-1, 1), r"clamp", case="A5"),
    entry("the sign of grad_output", lambda g: g.sign(), r"sign", case="A6"),
    Defect(
        "grad_output through half precision: infinite under a loss scale",
        sine(lambda g: g.half().double()),
        SINE,
        lambda: (x(5),),
        BOTH,
        r"half|float16",
        case="A7",
    ),
    Defect(
        "identity that reverses the order of grad_output",
        rule(lambda x: x * 1, lambda g, x: g.flip(0), name="Identity"),
        rule(lambda x: x * 1, lambda g, x: g, name="Identity"),
        lambda: (x(5),),
        ("matches-differences",),
        case="A8",
    ),
    Defect(
        "scalar loss whose backward reads grad_output as if it had one element for each input",
        rule(lambda x: (x * x).mean(), lambda g, x: g.expand_as(x).contiguous().sum() * 2 * x / x.numel(), name="Loss"),
        MEAN,
        lambda: (positive(4),),
        ("matches-differences",),
        r"factor 4",
        case="A9",
    ),
    Defect(
        "an average of grad_output over the batch",
        sine(lambda g: g.mean().expand_as(g)),
        SINE,
        lambda: (x(5),),
        BOTH,
    ),
    Defect(
        "the incoming gradient of the first of two outputs ignored",
        rule(lambda x: (x.sin(), x.cos()), lambda g, h, x: -h * x.sin(), name="SinCos"),
        SIN_COS,
        lambda: (x(4),),
        ("matches-differences",),
        r"zeros",
    ),
    Defect(
        "an epsilon added to grad_output",
        sine(lambda g: g + 1e-8),
        SINE,
        lambda: (x(4),),
        BOTH,
        r"added|zero incoming",
    ),
]
