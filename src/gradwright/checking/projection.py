"""Large cases: signed random projections with error bars, and bisection to the element that is wrong.

For an input x and an output block f, with random u and v whose entries are bounded away from zero and carry random
signs, compare ``<B(v), u>`` with the derivative of ``phi(s) = <v, f(x + s u)>``. A single wrong entry shows, because
the bar of phi grows far more slowly than the sum of what it covers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from gradwright.checking.case import Case
from gradwright.checking.differences import (
    FIRST_STEP,
    Behaviour,
    Estimate,
    differentiate,
    differentiate_sum,
    element_steps,
    one_hot,
)
from gradwright.checking.judge import UNRESOLVED_BAR, acquitted, one_unit_away
from gradwright.typing import Level

PROJECTIONS: dict[Level, int] = {"quick": 1, "standard": 2, "full": 3}
"""Independent pairs (u, v) for each input and output block."""


@dataclass
class Projection:
    """Comparison of one input-output block along one random pair."""

    input: int
    output: int
    analytic: float
    numeric: float
    bar: float
    """Error bar of the numeric value plus the rounding of the analytic one."""
    size: float
    """Sum of the magnitudes of the analytic terms: what an error is relative to."""
    wrong: bool
    unresolved: bool
    element: Entry | None = None


@dataclass
class Entry:
    """One entry of the Jacobian that bisection led to."""

    input_element: int
    output_element: int
    """Position in the joint output vector."""
    analytic: float
    numeric: float
    bar: float


def project(case: Case) -> list[Projection]:
    """Compare every input-output block along random projections; bisect the first wrong one of each block."""
    results = []
    for k in range(len(case.inputs)):
        for o in range(len(case.outputs)):
            if case.n[k] == 0 or case.output_size(o) == 0:
                continue
            for number in range(PROJECTIONS[case.level]):
                result = _one(case, k, o, number)
                results.append(result)
                if result.wrong:
                    break
    return results


def _one(case: Case, k: int, o: int, number: int) -> Projection:
    generator = case.generator(f"projection {k} {o} {number}")
    x = case.base[k]
    u = signed(case.n[k], generator) * (element_steps(x) / FIRST_STEP)
    v = torch.zeros(case.m, dtype=torch.float64)
    block = case.output_slice(o)
    v[block] = signed(case.output_size(o), generator)
    w = case.pull_all(v)[k]
    result = _compare(case, k, o, u, v, w)
    if result.wrong and math.isfinite(float(w.sum())):
        result.wrong = not _acquitted(case, k, u, v, result)
        result.unresolved = not result.wrong
    if result.wrong:
        result.element = _bisect(case, k, u, v, w)
    return result


def _compare(case: Case, k: int, o: int, u: Tensor, v: Tensor, w: Tensor) -> Projection:
    estimate = _along(case, k, u, v)
    terms = w * u
    analytic, size = float(terms.sum()), float(terms.abs().sum())
    rounding = rounding_of_sum(case.epsilon, terms)
    numeric, bar = float(estimate.value), float(estimate.bar)
    if int(estimate.behaviour) >= Behaviour.JUMP or not math.isfinite(bar):
        wrong, unresolved = math.isnan(analytic) and bool(estimate.moved), True
    else:
        wrong = not (float(estimate.lower) - rounding <= analytic <= float(estimate.upper) + rounding)
        unresolved = bar > UNRESOLVED_BAR * max(size, abs(numeric))
    return Projection(k, o, analytic, numeric, bar + rounding, size, wrong, unresolved and not wrong)


def rounding_of_sum(epsilon: float, terms: Tensor) -> float:
    """Return the allowance for rounding in a sum of analytic terms."""
    return 4 * epsilon * max(1.0, math.log2(max(2, terms.numel())) / 4) * float(terms.abs().sum())


def _along(case: Case, k: int, u: Tensor, v: Tensor, scales: tuple[float, ...] = (1.0, 1e-3, 1e-6)) -> Estimate:
    """Differentiate ``phi(s) = <v, f(x + s u)>`` at 0."""
    epsilon = float(case.output_epsilon().max())
    return differentiate_sum(lambda flat: v * case.value({k: flat}), case.base[k], u, epsilon, scales)


def _acquitted(case: Case, k: int, u: Tensor, v: Tensor, result: Projection) -> bool:
    """Prosecute an accused projection: finer ladders, and the analytic side one rounding unit away."""
    generator = case.generator("projection scatter")
    scatter = 0.0
    for _ in range(2):
        moved = case.pull_all(v, {k: one_unit_away(case.base[k], generator)})[k]
        scatter = max(scatter, abs(float((moved * u).sum()) - result.analytic))
    return acquitted(result.analytic, result.numeric, result.bar, scatter, lambda s: _along(case, k, u, v, (s,)))


def _bisect(case: Case, k: int, u: Tensor, v: Tensor, w: Tensor) -> Entry | None:
    """Halve the wrong projection until one input element is left, then find the output element."""
    keep = torch.arange(len(u))
    while len(keep) > 1:
        half = keep[: len(keep) // 2]
        part = torch.zeros_like(u)
        part[half] = u[half]
        keep = half if _compare(case, k, 0, part, v, w).wrong else keep[len(keep) // 2 :]
    i = int(keep[0])
    x = case.base[k]
    estimate = differentiate(
        lambda flat: case.value({k: flat}), x, one_hot(case.n[k], [i]), element_steps(x)[[i]], case.output_epsilon()
    )
    numeric, bar = estimate.value[0], estimate.bar[0]
    outputs = v.nonzero().flatten()
    while len(outputs) > 1:
        half = outputs[: len(outputs) // 2]
        part = torch.zeros_like(v)
        part[half] = v[half]
        analytic = float(case.pull_all(part)[k][i])
        expected, allowed = float((part * numeric).sum()), float((part.abs() * bar).sum()) + 1e-9 * abs(analytic)
        wrong = not abs(analytic - expected) <= allowed
        outputs = half if wrong else outputs[len(outputs) // 2 :]
    j = int(outputs[0])
    cotangent = torch.zeros_like(v)
    cotangent[j] = 1.0
    return Entry(i, j, float(case.pull_all(cotangent)[k][i]), float(numeric[j]), float(bar[j]))


def signed(size: int, generator: torch.Generator) -> Tensor:
    """Draw entries of magnitude 1/2 to 3/2 and random sign, so that no element is unweighted and nothing hides."""
    signs = torch.randint(0, 2, (size,), generator=generator).to(torch.float64) * 2 - 1
    return signs * (0.5 + torch.rand(size, generator=generator, dtype=torch.float64))
