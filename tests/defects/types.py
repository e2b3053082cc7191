"""Shape and dtype of the gradient."""

from __future__ import annotations

from tests.defects.entries import Defect, rule, t, x

SHAPE = ("gradient-shape-and-dtype",)
BIAS = rule(lambda x, b: x + b, lambda g, x, b: (g, g.sum(0)), name="Bias")
SINE = rule(lambda x: x.sin(), lambda g, x: g * x.cos(), name="Sine")

DEFECTS = [
    Defect(
        "gradient returned as float32 for a float64 input",
        rule(lambda x: x.sin(), lambda g, x: (g * x.cos()).float(), name="Sine"),
        SINE,
        lambda: (x(4),),
        SHAPE,
        r"float32",
        71,
    ),
    Defect(
        "un-reduced gradient of a broadcast input, which the engine sums",
        rule(lambda x, b: x + b, lambda g, x, b: (g, g), name="Bias"),
        BIAS,
        lambda: (x(3, 4), x(4)),
        SHAPE,
        r"shape",
        72,
    ),
    Defect(
        "gradient of shape (1, n) for an input of n elements",
        rule(lambda x: x.sin(), lambda g, x: (g * x.cos())[None], name="Sine"),
        SINE,
        lambda: (x(4),),
        SHAPE,
        r"shape",
        73,
    ),
    Defect(
        "gradient of a wrong shape",
        rule(lambda x: x.sin(), lambda g, x: (g * x.cos())[:-1], name="Sine"),
        SINE,
        lambda: (x(4),),
        SHAPE,
        r"shape",
        74,
    ),
    Defect(
        "bias add that returns its incoming gradient un-reduced",
        rule(lambda x, b: x + b, lambda g, x, b: (g, g), name="BiasAdd"),
        BIAS,
        lambda: (x(5, 2), x(2)),
        SHAPE,
        r"shape",
        case="C1",
    ),
    Defect(
        "gradient smaller than the input",
        rule(lambda x, s: x * s, lambda g, x, s: (g * s, (g * x).sum()), name="Scaled"),
        rule(lambda x, s: x * s, lambda g, x, s: (g * s, (g * x).sum().reshape(s.shape)), name="Scaled"),
        lambda: (x(4), t(2.0)),
        SHAPE,
        r"shape",
        case="C3",
    ),
]
