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
    signed,
)
from gradwright.checking.judge import (
    MARGIN,
    UNRESOLVED_BAR,
    State,
    Tolerance,
    acquitted,
    judge,
    largest_entry,
    one_unit_away,
)
from gradwright.checking.magnitudes import largest_in_backward
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
    """Sum of the magnitudes of the analytic terms."""
    typical: float
    """Mean magnitude of the analytic terms that are not zero: what one element of the gradient adds, as a rule."""
    wrong: bool
    unresolved: bool
    number: int = 0
    """Which of the pairs (u, v) of the block this is."""
    element: Entry | None = None

    @property
    def sensitivity(self) -> float | None:
        """Smallest error of a single element that would have shown, relative to a typical one; None without any.

        The bar bounds the error of the whole sum; a single wrong element must stand out of it all alone.
        """
        return MARGIN * self.bar / self.typical if self.typical and not self.unresolved else None


@dataclass
class Entry:
    """One entry of the Jacobian that bisection led to."""

    input_element: int
    output_element: int
    """Position in the joint output vector."""
    analytic: float
    numeric: float
    bar: float


def project(case: Case, k: int, o: int, count: int | None = None) -> list[Projection]:
    """Compare one input-output block along random projections; bisect the first one that is wrong, and stop there."""
    results = []
    for number in range(PROJECTIONS[case.level] if count is None else count):
        results.append(_one(case, k, o, number))
        if results[-1].wrong:
            break
    return results


def _one(case: Case, k: int, o: int, number: int) -> Projection:
    u, v = direction_pair(case, k, o, number)
    w = case.pull_all(v)[k]
    granted = case.allowances.of_sum(w * u, u * v.abs().sum())
    result = _compare(case, k, o, u, v, w)
    result.number = number
    if result.wrong and math.isfinite(float(w.sum())):
        result.wrong = not _acquitted(case, k, u, v, result)
        result.unresolved = not result.wrong
    if result.wrong:
        result.element = _bisect(case, k, u, v, w, result)
        # An accusation that cannot be shown on a single element (jumps that the joint direction crosses) is none.
        result.wrong = result.element is not None
        result.unresolved = result.element is None and not abs(result.analytic - result.numeric) <= granted
    if not result.wrong:  # an error of this size in a single element would have been let pass
        result.bar += case.allowances.of_sum(torch.tensor(result.typical), u.abs().mean())
    return result


def direction_pair(case: Case, k: int, o: int, number: int) -> tuple[Tensor, Tensor]:
    """Return the pair (u, v) of a projection: a direction of the input, and a cotangent of the one output."""
    generator = case.generator(f"projection {k} {o} {number}")
    u = signed(case.n[k], generator) * (element_steps(case.base[k]) / FIRST_STEP)
    v = torch.zeros(case.m, dtype=torch.float64)
    v[case.output_slice(o)] = signed(case.output_size(o), generator)
    return u, v


def _compare(case: Case, k: int, o: int, u: Tensor, v: Tensor, w: Tensor) -> Projection:
    estimate = _along(case, k, u, v)
    terms = w * u
    analytic, size = float(terms.sum()), float(terms.abs().sum())
    typical = size / max(1, int((terms != 0).sum()))
    rounding = rounding_of_sum(case.epsilon, terms)
    numeric, bar = float(estimate.value), float(estimate.bar)
    if int(estimate.behaviour) != Behaviour.SMOOTH or not math.isfinite(bar):
        # The slopes of a sum of several kinks bound less than its subgradients reach: only entries can be judged there.
        here = float(torch.dot(v, case.value()))
        wrong, unresolved = bool(w.isnan().any()) and bool(estimate.moved) and math.isfinite(here), True
    else:
        wrong = not (float(estimate.lower) - rounding <= analytic <= float(estimate.upper) + rounding)
        unresolved = bar > UNRESOLVED_BAR * max(size, abs(numeric))
    return Projection(k, o, analytic, numeric, bar + rounding, size, typical, wrong, unresolved and not wrong)


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
    scatter = case.epsilon * largest_in_backward(case, v) * float(u.norm())
    for _ in range(2):
        moved = case.pull_all(v, {k: one_unit_away(case.base[k], generator)})[k]
        scatter = max(scatter, abs(float((moved * u).sum()) - result.analytic))
    return acquitted(result.analytic, result.numeric, result.bar, scatter, lambda s: _along(case, k, u, v, (s,)))


def _bisect(case: Case, k: int, u: Tensor, v: Tensor, w: Tensor, result: Projection) -> Entry | None:
    """Follow the larger part of the discrepancy down to one input element, then to one output element.

    Each half costs four evaluations: the discrepancy is known, so a slope that is good to a fraction of it is enough.
    """
    scale = _coarsest_scale(case, k, u, v, result)
    keep, open_gap = torch.arange(len(u)), result.analytic - result.numeric
    while len(keep) > 1:
        half = keep[: len(keep) // 2]
        part = torch.zeros_like(u)
        part[half] = u[half]
        gap = float((w * part).sum()) - _slope(case, k, part, v, scale)
        if abs(gap) >= abs(open_gap - gap):
            keep, open_gap = half, gap
        else:
            keep, open_gap = keep[len(keep) // 2 :], open_gap - gap
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
    entry = Entry(i, j, float(case.pull_all(cotangent)[k][i]), float(numeric[j]), float(bar[j]))
    tolerance = Tolerance.for_epsilon(case.epsilon, case.allowances)
    alone = torch.full((1, case.m), entry.analytic, dtype=torch.float64)
    state = judge(alone, estimate, largest_entry(estimate.value), tolerance)[0, j]
    if int(state) != State.WRONG:
        return None
    direction = one_hot(case.n[k], [i])[0]
    agrees = case.allowances.agrees_at_step(
        alone[0], estimate.value[0], lambda flat: case.value({k: flat}), x, direction, case.output_epsilon()
    )
    return None if bool(agrees[j]) else entry


def _slope(case: Case, k: int, u: Tensor, v: Tensor, scale: float) -> float:
    """Return the derivative of ``phi`` along ``u`` from two central differences, extrapolated."""
    slopes = []
    for h in (FIRST_STEP * scale, FIRST_STEP * scale / 4):
        step = (h * u).to(case.base[k].dtype)
        above, below = case.value({k: case.base[k] + step}), case.value({k: case.base[k] - step})
        slopes.append(float(torch.dot(v, above - below)) / (2 * h))
    return (16 * slopes[1] - slopes[0]) / 15


def _coarsest_scale(case: Case, k: int, u: Tensor, v: Tensor, result: Projection) -> float:
    """Return the largest step whose slope is good to a small fraction of the discrepancy (or the best there is)."""
    wanted = abs(result.analytic - result.numeric) / 8
    errors = {}
    for scale in (1.0, 1 / 16, 1 / 256, 1 / 4096):
        errors[scale] = abs(_slope(case, k, u, v, scale) - result.numeric)
        if errors[scale] <= wanted:
            return scale
    return min(errors, key=lambda scale: errors[scale])
