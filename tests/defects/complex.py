"""Complex numbers: conjugates and imaginary parts."""

from __future__ import annotations

from tests.defects.entries import Defect, rule, x, z

SQUARE = rule(lambda z: z * z, lambda g, z: g * 2 * z.conj(), name="Square")
GRADIENT = ("matches-differences",)

DEFECTS = [
    Defect(
        "conjugate missing",
        rule(lambda z: z.sin(), lambda g, z: g * z.cos(), name="Sine"),
        rule(lambda z: z.sin(), lambda g, z: g * z.cos().conj(), name="Sine"),
        lambda: (z(4),),
        GRADIENT,
        r"conjugate",
        75,
    ),
    Defect(
        "conjugate missing, tested with real inputs only",
        rule(lambda z: z * z, lambda g, z: g * 2 * z, name="Square"),
        SQUARE,
        lambda: (x(4),),
        (),
        None,
        76,
        note="accepts complex input, but its gradient is wrong",
    ),
    Defect(
        "imaginary part of the gradient dropped",
        rule(lambda z: z * z, lambda g, z: (g * 2 * z.conj()).real + 0j, name="Square"),
        SQUARE,
        lambda: (z(4),),
        GRADIENT,
        r"imaginary|real",
        77,
    ),
    Defect(
        "complex gradient returned for a real input",
        rule(lambda x, w: x * w, lambda g, x, w: (g * w.conj(), g * x), name="Product"),
        rule(lambda x, w: x * w, lambda g, x, w: ((g * w.conj()).real, g * x), name="Product"),
        lambda: (x(4), z(4)),
        ("gradient-shape-and-dtype",),
        r"complex",
        79,
    ),
    Defect(
        "z squared, backward without conjugate",
        rule(lambda z: z**2, lambda g, z: 2 * z * g, name="Square"),
        SQUARE,
        lambda: (z(2, 2),),
        GRADIENT,
        r"conjugate",
        case="C11",
    ),
    Defect(
        "absolute square: factor two forgotten",
        rule(lambda z: (z * z.conj()).real, lambda g, z: g * z, name="AbsoluteSquare"),
        rule(lambda z: (z * z.conj()).real, lambda g, z: 2 * g * z, name="AbsoluteSquare"),
        lambda: (z(3),),
        GRADIENT,
        r"factor 0\.5",
    ),
]
