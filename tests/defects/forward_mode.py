"""Forward mode: the jvp is not the derivative that the backward is."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from tests.defects.entries import Defect, rule, x

MODES = ("modes-agree", "nested-forward", "func-transforms")


def product(jvp: Any) -> Any:
    return rule(lambda x, w: x * w, lambda g, x, w: (g * w, g * x), jvp=jvp, name="Product")


RIGHT = product(lambda x, w, t, s: t * w + x * s)


def in_place(x: Tensor, w: Tensor, t: Tensor, s: Tensor) -> Tensor:
    return t.mul_(w) + x * s


def entry(name: str, jvp: Any, words: str | None, number: int | None = None, case: str | None = None) -> Defect:
    return Defect(name, product(jvp), RIGHT, lambda: (x(4), x(4, seed=1)), MODES, words, number, case)


DEFECTS = [
    entry("jvp of the wrong sign", lambda x, w, t, s: -(t * w + x * s), r"sign|jvp", 85),
    entry("jvp ignores the second tangent", lambda x, w, t, s: t * w, r"jvp|tangent", 86),
    entry("jvp has a product of two tangents", lambda x, w, t, s: t * w + x * s + t * s, r"linear|product", 88),
    entry("jvp multiplies its tangent in place", in_place, r"tangent|in place", 104),
    entry("jvp right, returned as float32", lambda x, w, t, s: (t * w + x * s).float(), r"float32", 105),
    entry("right backward, nonsense jvp", lambda x, w, t, s: t * 0 + 17, r"jvp|forward", case="D7"),
    entry("jvp of the clamped tangent", lambda x, w, t, s: t.clamp(-1, 1) * w + x * s, r"linear|jvp"),
]
