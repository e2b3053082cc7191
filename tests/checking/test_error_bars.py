"""Acceptance of the error bars: over a thousand derivatives against 50 digits, and not one error beyond its bar.

The reference is the derivative of the exact function at the float64 point; what the code computes instead (in float32,
with noise, after cancellation) is the function's own rounding, which the bar has to notice.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from dataclasses import dataclass

import mpmath
import pytest
import torch
from mpmath import mp, mpf
from torch import Tensor
from torch.nn.functional import gelu, logsigmoid, silu, softplus

from gradwright.checking.differences import FIRST_STEP, differentiate, one_hot

EPS = 2.0**-52
SMALL = (1e-12, 1e-9, 1e-7, 1e-5, 1e-3, 0.02)
MIDDLE = (0.1, 0.3, 0.5, 0.9999, 1.0, 1.7, 2.9, 5.3)
LARGE = (11.0, 37.0, 150.0, 1e3, 12345.6, 1e6, 3.3e7, 1e8)
POSITIVE = SMALL + MIDDLE + LARGE
EVERYWHERE = tuple(sign * x for x in POSITIVE for sign in (1.0, -1.0))
MODERATE = tuple(sign * x for x in (*SMALL, *MIDDLE, 11.0, 26.0) for sign in (1.0, -1.0))


@dataclass(frozen=True)
class Subject:
    """A function in float64 (or worse) and the exact one it stands for."""

    name: str
    compute: Callable[[Tensor], Tensor]
    exact: Callable[[mpf], mpf]
    points: tuple[float, ...] = EVERYWHERE


def gauss(x: mpf) -> mpf:
    return mpmath.exp(-x * x)


def noise(x: Tensor) -> Tensor:
    """Return reproducible noise in [-1, 1] that is rough in the last bits of ``x``."""
    bits = x.view(torch.int64)
    mixed = (bits * 6364136223846793005 + 1442695040888963407) >> 20
    return (mixed % 2_000_003).double() / 1_000_001.0 - 1.0


SMOOTH = [
    Subject("exp", torch.exp, mpmath.exp, (*MODERATE, 300.0, -300.0)),
    Subject("expm1", torch.expm1, mpmath.expm1, MODERATE),
    Subject("exp2", torch.exp2, lambda x: mpf(2) ** x, MODERATE),
    Subject("log", torch.log, mpmath.log, POSITIVE),
    Subject("log1p", torch.log1p, mpmath.log1p, POSITIVE),
    Subject("log10", torch.log10, mpmath.log10, POSITIVE),
    Subject("sqrt", torch.sqrt, mpmath.sqrt, POSITIVE),
    Subject("rsqrt", torch.rsqrt, lambda x: 1 / mpmath.sqrt(x), POSITIVE),
    Subject("reciprocal", torch.reciprocal, lambda x: 1 / x),
    Subject("square", torch.square, lambda x: x**2),
    Subject("cube", lambda x: x**3, lambda x: x**3),
    Subject("x^7", lambda x: x**7, lambda x: x**7),
    Subject("x^-3", lambda x: x**-3, lambda x: x**-3),
    Subject("x^0.3", lambda x: x**0.3, lambda x: x ** mpf(0.3), POSITIVE),
    Subject("x^2.5", lambda x: x**2.5, lambda x: x ** mpf(2.5), POSITIVE),
    Subject("sin", torch.sin, mpmath.sin),
    Subject("cos", torch.cos, mpmath.cos),
    Subject("tan", torch.tan, mpmath.tan, MODERATE),
    Subject("sin(1000 x)", lambda x: torch.sin(1000 * x), lambda x: mpmath.sin(1000 * x), MODERATE),
    Subject("atan", torch.atan, mpmath.atan),
    Subject("asin", torch.asin, mpmath.asin, tuple(s * x for x in (*SMALL, 0.1, 0.5, 0.9999) for s in (1.0, -1.0))),
    Subject("sinh", torch.sinh, mpmath.sinh, MODERATE),
    Subject("tanh", torch.tanh, mpmath.tanh, MODERATE),
    Subject("asinh", torch.asinh, mpmath.asinh, MODERATE),
    Subject("sigmoid", torch.sigmoid, lambda x: 1 / (1 + mpmath.exp(-x)), MODERATE),
    Subject("logsigmoid", logsigmoid, lambda x: -mpmath.log1p(mpmath.exp(-x)), MODERATE),
    Subject("silu", silu, lambda x: x / (1 + mpmath.exp(-x)), MODERATE),
    Subject("gelu", gelu, lambda x: x * mpmath.ncdf(x), MODERATE),
    Subject("softplus", lambda x: softplus(x, threshold=1e9), lambda x: mpmath.log1p(mpmath.exp(x)), MODERATE),
    Subject("erf", torch.erf, mpmath.erf, MODERATE),
    Subject("erfc", torch.erfc, mpmath.erfc, tuple(x for x in MODERATE if x < 20)),
    Subject("lgamma", torch.lgamma, lambda x: mpmath.re(mpmath.loggamma(x)), POSITIVE),
    Subject("digamma", torch.digamma, mpmath.digamma, POSITIVE),
    Subject("gauss", lambda x: torch.exp(-x * x), gauss, MODERATE),
    Subject("exp(-1/x^2)", lambda x: torch.exp(-1 / x**2), lambda x: mpmath.exp(-1 / x**2)),
    Subject("x sin(1/x)", lambda x: x * torch.sin(1 / x), lambda x: x * mpmath.sin(1 / x), (*MIDDLE, *LARGE, 0.02)),
    Subject("x^x", lambda x: x**x, lambda x: x**x, (*SMALL, *MIDDLE, 11.0)),
    Subject("exp(sin(3x))", lambda x: torch.exp(torch.sin(3 * x)), lambda x: mpmath.exp(mpmath.sin(3 * x)), MODERATE),
    Subject("x/(1+x^2)", lambda x: x / (1 + x * x), lambda x: x / (1 + x * x)),
    Subject("abs", torch.abs, abs, tuple(sign * 10.0**k for k in range(-12, 9) for sign in (1.0, -1.0))),
    Subject(
        "relu(x - 1)", lambda x: torch.relu(x - 1), lambda x: max(x - 1, mpf(0)), tuple(x for x in EVERYWHERE if x != 1)
    ),
]
"""Well computed: the bars must also be narrow."""

ROUGH = [
    Subject("sin(x) + 1e8", lambda x: torch.sin(x) + 1e8, lambda x: mpmath.sin(x) + 10**8),
    Subject("x^2 - 1e6", lambda x: x * x - 1e6, lambda x: x * x - 10**6),
    Subject("(1 - cos x)/x^2", lambda x: (1 - torch.cos(x)) / x**2, lambda x: (1 - mpmath.cos(x)) / x**2, MODERATE),
    Subject("(1 - cos x)/x^2, large", lambda x: (1 - torch.cos(x)) / x**2, lambda x: (1 - mpmath.cos(x)) / x**2, LARGE),
    Subject("(e^x - 1)/x", lambda x: (torch.exp(x) - 1) / x, lambda x: mpmath.expm1(x) / x, MODERATE),
    Subject("log(1 + x)", lambda x: torch.log(1 + x), mpmath.log1p, POSITIVE),
    Subject("sqrt(x^2 + 1) - x", lambda x: (x * x + 1).sqrt() - x, lambda x: mpmath.sqrt(x * x + 1) - x, POSITIVE),
    Subject("(x + 1e5) - 1e5", lambda x: (x + 1e5) - 1e5, lambda x: x),
    Subject(
        "(x - 1)^7 expanded",
        lambda x: ((((((x - 7) * x + 21) * x - 35) * x + 35) * x - 21) * x + 7) * x - 1,
        lambda x: (x - 1) ** 7,
        MODERATE,
    ),
    Subject("float32 sin", lambda x: torch.sin(x.float()).double(), mpmath.sin, MODERATE),
    Subject("float32 exp", lambda x: torch.exp(x.float()).double(), mpmath.exp, MODERATE),
    Subject("float32 square", lambda x: (x.float() ** 2).double(), lambda x: x**2, MODERATE),
    Subject("float32 result of tanh", lambda x: torch.tanh(x).float().double(), mpmath.tanh, MODERATE),
    Subject("float32 log", lambda x: torch.log(x.float()).double(), mpmath.log, POSITIVE),
    Subject("bf16 sin", lambda x: torch.sin(x.bfloat16()).double(), mpmath.sin, MODERATE),
    Subject("bf16 result of exp", lambda x: torch.exp(x).bfloat16().double(), mpmath.exp, MODERATE),
    Subject("bf16 square", lambda x: (x.bfloat16() ** 2).double(), lambda x: x**2, MODERATE),
    Subject(
        "half result of sigmoid",
        lambda x: torch.sigmoid(x).half().double(),
        lambda x: 1 / (1 + mpmath.exp(-x)),
        MODERATE,
    ),
    Subject("noisy exp", lambda x: torch.exp(x) * (1 + 1e-8 * noise(x)), mpmath.exp, MODERATE),
    Subject("noisy sin", lambda x: torch.sin(x) * (1 + 1e-8 * noise(x)), mpmath.sin, MODERATE),
    Subject("noisy cube", lambda x: x**3 * (1 + 1e-8 * noise(x)), lambda x: x**3),
    Subject("noisy log", lambda x: torch.log(x) * (1 + 1e-8 * noise(x)), mpmath.log, POSITIVE),
    Subject("noise of 1e-12", lambda x: torch.atan(x) * (1 + 1e-12 * noise(x)), mpmath.atan),
    Subject("noise of 1e-3", lambda x: torch.atan(x) * (1 + 1e-3 * noise(x)), mpmath.atan),
]
"""Computed with cancellation, in low precision, or with noise."""


@dataclass(frozen=True)
class Row:
    """One derivative: what is true, what was found, and whether a step moved the function as it is computed."""

    label: str
    truth: mpf
    value: float
    bar: float
    moved: bool

    @property
    def covered(self) -> bool:
        return bool(abs(mpf(self.value) - self.truth) <= self.bar)

    @property
    def relative(self) -> float:
        return self.bar / abs(float(self.truth)) if float(self.truth) else math.inf * self.bar


def truth(subject: Subject, x: float) -> mpf:
    with mp.workdps(50):
        exact = mpf(x)
        return mpmath.diff(subject.exact, exact, h=abs(exact) * mpf(10) ** -25)


def weight(derivative: mpf) -> float:
    """Return a power of two that brings the derivative to about 1: the elements of a call are judged by the largest."""
    size = abs(float(derivative))
    return 2.0 ** -round(math.log2(size)) if 1e-250 < size < 1e250 else 1.0


def rows(subject: Subject, *, grouped: bool = False) -> list[Row]:
    """Differentiate at all points in one call: each by itself, or all along one direction as a group of columns is."""
    x = torch.tensor(subject.points, dtype=torch.float64)
    truths = [truth(subject, point) for point in subject.points]
    weights = torch.tensor([weight(t) for t in truths], dtype=torch.float64)
    units = torch.full((len(x),), EPS, dtype=torch.float64)

    def f(flat: Tensor) -> Tensor:
        return subject.compute(flat) * weights

    if grouped:
        estimate = differentiate(f, x, x.abs().unsqueeze(0), torch.tensor([FIRST_STEP], dtype=torch.float64), units)
        scale = weights * x.abs()
        value, bar, moved = estimate.value[0] / scale, estimate.bar[0] / scale, estimate.moved[0]
    else:
        estimate = differentiate(f, x, one_hot(len(x), range(len(x))), FIRST_STEP * x.abs(), units)
        value, bar, moved = (t.diagonal() for t in (estimate.value / weights, estimate.bar / weights, estimate.moved))
    labels = [f"{subject.name} at {point}" for point in subject.points]
    return [Row(*items) for items in zip(labels, truths, value.tolist(), bar.tolist(), moved.tolist())]


def escaped(found: list[Row]) -> list[str]:
    """Return the rows whose error is beyond the bar.

    A function that no step moves as it is computed (1 - cos x below 1e-8) is a constant, whatever it stands for: no
    evaluation could tell it from one.
    """
    return [f"{r.label}: {r.value} +- {r.bar} for {float(r.truth)}" for r in found if r.moved and not r.covered]


@pytest.fixture(scope="module")
def smooth() -> list[Row]:
    return [row for subject in SMOOTH for row in rows(subject)]


@pytest.fixture(scope="module")
def rough() -> list[Row]:
    return [row for subject in ROUGH for row in rows(subject)]


def test_the_bar_covers_the_error_of_every_smooth_function(smooth: list[Row]) -> None:
    assert not escaped(smooth)
    assert sum(row.moved for row in smooth) >= 1000


def test_the_bar_covers_the_error_of_every_rough_function(rough: list[Row]) -> None:
    assert not escaped(rough)
    assert sum(row.moved for row in rough) >= 500


@pytest.mark.parametrize("subject", SMOOTH, ids=lambda subject: subject.name)
def test_the_bar_covers_the_error_when_columns_are_grouped(subject: Subject) -> None:
    assert not escaped(rows(subject, grouped=True))


def test_bars_are_narrow(smooth: list[Row]) -> None:
    relative = [row.relative for row in smooth]
    assert statistics.median(relative) < 1e-11
    assert sum(r < 1e-6 for r in relative) > 0.85 * len(relative)
    assert all(row.bar < math.inf for row in smooth)


def test_bars_of_rough_functions_follow_their_noise(rough: list[Row]) -> None:
    assert all(row.bar < math.inf for row in rough)
    for name, size in (("noisy exp at 1.0", 1e-4), ("noisy sin at 1.0", 1e-4), ("float32 sin at 0.5", 1e-3)):
        (row,) = [row for row in rough if row.label == name]
        assert row.relative < size
