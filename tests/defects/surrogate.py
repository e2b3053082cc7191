"""Declared surrogates whose rule is not their derivative, and surrogates that are not declared."""

from __future__ import annotations

import torch

from tests.defects.entries import Defect, rule, t, x

SURROGATE = ("matches-surrogate",)


def clipped(x: torch.Tensor) -> torch.Tensor:
    return x.clamp(-1, 1)


DEFECTS = [
    Defect(
        "straight-through declared as clipped identity, the mask inverted",
        rule(lambda x: x.sign(), lambda g, x: g * (x.abs() > 1), name="Sign"),
        rule(lambda x: x.sign(), lambda g, x: g * (x.abs() <= 1), name="Sign"),
        lambda: (t(-2.0, -0.5, 0.3, 1.7),),
        SURROGATE,
        None,
        97,
        surrogate=clipped,
    ),
    Defect(
        "straight-through that is not declared",
        rule(lambda x: x.round(), lambda g, x: g, name="Round"),
        rule(lambda x: x * 1, lambda g, x: g, name="Identity"),
        lambda: (3 * x(5),),
        ("matches-differences",),
        r"straight-through",
        case="E11",
    ),
    Defect(
        "straight-through that returns one instead of grad_output",
        rule(lambda x: x.round(), lambda g, x: torch.ones_like(g), name="Round"),
        rule(lambda x: x.round(), lambda g, x: g, name="Round"),
        lambda: (3 * x(5),),
        ("matches-surrogate", "linear-in-cotangent"),
        r"grad_output",
        surrogate=lambda x: x,
    ),
    Defect(
        "quantiser whose rule forgets the clipping region",
        rule(lambda x: (x * 4).round().clamp(-4, 3) / 4, lambda g, x: g, name="Quantise"),
        rule(lambda x: (x * 4).round().clamp(-4, 3) / 4, lambda g, x: g * ((x > -1) & (x < 0.75)), name="Quantise"),
        lambda: (t(-2.0, -0.3, 0.4, 1.9),),
        SURROGATE,
        None,
        surrogate=lambda x: x.clamp(-1, 0.75),
    ),
    Defect(
        "gradient reversal with the strength forgotten",
        rule(lambda x: x * 1, lambda g, x: -g, name="Reverse"),
        rule(lambda x: x * 1, lambda g, x: -0.1 * g, name="Reverse"),
        lambda: (x(4),),
        SURROGATE,
        r"factor 10",
        surrogate=lambda x: -0.1 * x,
    ),
]
