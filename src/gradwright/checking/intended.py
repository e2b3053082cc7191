"""A rule as it is meant: its linear part, or the rule divided by the constant factor that it has on purpose.

What is compared with differences is then a copy of the case whose gradients are adjusted, so that nothing is judged
more loosely than an exact rule is.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from gradwright.checking.case import Case
from gradwright.checking.differences import FIRST_STEP, Behaviour, differentiate_sum, element_steps, signed
from gradwright.checking.intent import declared
from gradwright.checking.judge import largest_entry
from gradwright.checking.parts import Adjustment

ELEMENTS = 15
"""Input elements by which a factor is estimated; a wrong one among them does not move the median."""
SHARP = 1e-3
"""A ratio with a wider relative error bar says nothing about the factor."""


@dataclass(frozen=True)
class Factor:
    """By what the gradient of one input is a multiple of the derivative."""

    value: float
    bar: float
    """Relative error bar."""


def linear_part(case: Case) -> Case:
    """Return the case without what its rule adds to the gradient whatever comes in, when it is declared to add it."""
    return without_offset(case) if "side-loss" in declared(case) else case


def without_offset(case: Case) -> Case:
    """Return the case with B(v) - B(0) for B(v)."""

    def subtract(pulled: list[Tensor | None], flats: Mapping[int, Tensor]) -> list[Tensor | None]:
        offset = case.pull_all(torch.zeros(case.m, dtype=torch.float64), flats)
        return [None if g is None else g - b for g, b in zip(pulled, offset)]

    size = largest_entry(*case.pull_all(torch.zeros(case.m, dtype=torch.float64)))
    adjusted = _adjusted(case, subtract)
    granted = case.allowances
    # The difference of the two is rounded as the offset is, however small the rest.
    adjusted.allowances = replace(granted, atol=granted.atol + 8 * case.epsilon * size)
    return adjusted


def divided(case: Case, factors: Sequence[Factor | None]) -> Case:
    """Return the case with the gradient of each input divided by its factor; None and 0 stand for 1."""
    by = [factor.value if factor is not None and factor.value else 1.0 for factor in factors]

    def divide(pulled: list[Tensor | None], flats: Mapping[int, Tensor]) -> list[Tensor | None]:
        return [None if g is None else g / c for g, c in zip(pulled, by)]

    adjusted = _adjusted(case, divide)
    granted = case.allowances
    adjusted.allowances = replace(granted, rtol=granted.rtol + 2 * max(f.bar for f in factors if f is not None))
    return adjusted


def _adjusted(case: Case, adjust: Adjustment) -> Case:
    before = case.adjust
    adjusted = copy.copy(case)
    adjusted.__dict__.pop("exact", None)  # which would be the case without the adjustment
    adjusted.adjust = adjust if before is None else lambda g, flats: adjust(before(g, flats), flats)
    return adjusted


def factors_of(case: Case) -> list[Factor | None]:
    """Estimate for each input by what its gradient is a multiple of the derivative; None where nothing moves.

    The estimate is the median over single elements along a random cotangent, taken at the element whose error bar is
    the smallest among those that agree with the median.
    """
    v = signed(case.m, case.generator("factor v"))
    pulled = case.pull_all(v)
    return [_factor(case, k, v, pulled[k]) if case.n[k] else None for k in range(len(case.inputs))]


def _factor(case: Case, k: int, v: Tensor, pulled: Tensor) -> Factor | None:
    x = case.base[k]
    steps = element_steps(x) / FIRST_STEP
    ratios = []
    for i in torch.randperm(case.n[k], generator=case.generator(f"factor {k}"))[:ELEMENTS].tolist():
        u = torch.zeros(case.n[k], dtype=torch.float64)
        u[i] = steps[i]
        estimate = differentiate_sum(lambda flat: v * case.value({k: flat}), x, u, case.epsilon)
        numeric, bar = float(estimate.value), float(estimate.bar)
        if int(estimate.behaviour) != Behaviour.SMOOTH or not math.isfinite(bar) or not math.isfinite(float(pulled[i])):
            continue
        if numeric and bar <= SHARP * abs(numeric):
            ratios.append(Factor(float(pulled[i] * u[i]) / numeric, bar / abs(numeric) + 64 * case.epsilon))
    if not ratios:
        return None
    middle = sorted(ratios, key=lambda ratio: ratio.value)[len(ratios) // 2]
    return min((r for r in ratios if _same(r, middle)), key=lambda ratio: ratio.bar)


def _same(one: Factor, other: Factor) -> bool:
    return abs(one.value - other.value) <= 2 * (one.bar + other.bar) * max(abs(one.value), abs(other.value))
