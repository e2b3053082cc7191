"""The value of forward, or the gradient, against a reference in plain PyTorch."""

from __future__ import annotations

import torch

from tests.defects.entries import Defect, rule, x

GELU = rule(
    lambda x: torch.nn.functional.gelu(x),
    lambda g, x: g * (0.5 * (1 + (x / 2**0.5).erf()) + x * (-x * x / 2).exp() / (2 * torch.pi) ** 0.5),
    name="Gelu",
)

DEFECTS = [
    Defect(
        "forward is another function than intended, the gradient matches the wrong forward",
        rule(
            lambda x: x * (1.7 * x).sigmoid(),
            lambda g, x: g * ((1.7 * x).sigmoid() + 1.7 * x * (1.7 * x).sigmoid() * (-1.7 * x).sigmoid()),
            name="Gelu",
        ),
        GELU,
        lambda: (x(5),),
        ("matches-reference",),
        r"value|reference",
        108,
        reference=torch.nn.functional.gelu,
    ),
    Defect(
        "value and gradient of a mean where the reference has a sum",
        rule(lambda x: (x * x).mean(), lambda g, x: g * 2 * x / x.numel(), name="Loss"),
        rule(lambda x: (x * x).sum(), lambda g, x: g * 2 * x, name="Loss"),
        lambda: (x(6),),
        ("matches-reference",),
        r"value|reference|factor",
        reference=lambda x: (x * x).sum(),
    ),
]
