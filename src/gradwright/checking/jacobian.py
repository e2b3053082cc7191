"""Dense comparison: the whole Jacobian, analytic against differences, entry by entry. For small cases."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gradwright.checking.case import Case
from gradwright.checking.differences import Estimate, VectorFunction, differentiate, element_steps, one_hot
from gradwright.checking.judge import State, Tolerance, judge, largest_entry, one_unit_away, prosecute
from gradwright.typing import Level

DENSE_LIMIT: dict[Level, int] = {"quick": 24, "standard": 160, "full": 512}
"""Largest number of real inputs, and of real outputs, for which the Jacobian is compared entry by entry."""
DENSE_SECONDS = 10.0
"""A forward so slow that the dense comparison would take longer is compared by projections."""
EVALUATIONS_PER_COLUMN = 30


@dataclass
class Comparison:
    """Analytic and numeric Jacobian with respect to one input; all tensors have the shape (n, m)."""

    input: int
    analytic: Tensor
    estimate: Estimate
    state: Tensor
    allowed: Tensor
    none: bool
    """True when backward gave no gradient at all for this input."""


def fits_dense(case: Case) -> bool:
    """Tell whether the whole Jacobian of the case is affordable at its level."""
    limit = DENSE_LIMIT[case.level]
    evaluations = EVALUATIONS_PER_COLUMN * sum(case.n) + 2 * case.m
    return sum(case.n) <= limit and case.m <= limit and evaluations * case.forward_seconds <= DENSE_SECONDS


def compare(case: Case) -> list[Comparison]:
    """Compare the Jacobians of all inputs, and try what is accused."""
    analytic, missing = analytic_jacobian(case)
    epsilon = case.output_epsilon()
    tolerance = Tolerance.for_epsilon(case.epsilon)
    estimates = []
    for k in range(len(case.inputs)):
        x = case.base[k]
        directions = one_hot(case.n[k], range(case.n[k]))
        estimates.append(differentiate(column(case, k), x, directions, element_steps(x), epsilon))
    largest = largest_entry(*analytic, *(e.value for e in estimates))
    scatter: list[list[Tensor]] = []

    def spread(k: int) -> Tensor:
        if not scatter:
            scatter.append(_analytic_scatter(case, analytic))
        return scatter[0][k]

    comparisons = []
    for k, (a, estimate) in enumerate(zip(analytic, estimates)):
        x = case.base[k]
        state = judge(a, estimate, largest, tolerance)
        state = prosecute(
            state,
            a,
            estimate,
            largest,
            tolerance,
            f=column(case, k),
            x=x,
            directions=one_hot(case.n[k], range(case.n[k])),
            steps=element_steps(x),
            epsilon=epsilon,
            analytic_spread=lambda k=k: spread(k),  # type: ignore[misc]
        )
        _try_joint_directions(case, k, a, state, largest, tolerance)
        comparisons.append(Comparison(k, a, estimate, state, tolerance.at(a, estimate.value, largest), missing[k]))
    return comparisons


def column(case: Case, k: int) -> VectorFunction:
    """Return the case as a function of its ``k``-th input alone."""
    return lambda flat: case.value({k: flat})


def analytic_jacobian(case: Case, flats: dict[int, Tensor] | None = None) -> tuple[list[Tensor], list[bool]]:
    """Return the Jacobian that backward gives, one (n, m) tensor for each input, and where it gave None throughout.

    Every row comes from a fresh forward, so that nothing one backward does can reach the next.
    """
    jacobian = [torch.zeros(n, case.m, dtype=torch.float64) for n in case.n]
    missing = [True] * len(case.n)
    for j in range(case.m):
        v = torch.zeros(case.m, dtype=torch.float64)
        v[j] = 1.0
        for k, gradient in enumerate(case.pull(v, flats)):
            if gradient is not None:
                missing[k] = False
                jacobian[k][:, j] = gradient
    return jacobian, [none and case.m > 0 for none in missing]


def _analytic_scatter(case: Case, analytic: list[Tensor]) -> list[Tensor]:
    """Return how far the analytic entries move when each input element moves by one rounding unit (largest of two)."""
    generator = case.generator("scatter")
    spread = [torch.zeros_like(a) for a in analytic]
    for _ in range(2):
        flats = {k: one_unit_away(x, generator) for k, x in enumerate(case.base)}
        moved, _ = analytic_jacobian(case, flats)
        spread = [s.maximum((m - a).abs().nan_to_num(0.0)) for s, m, a in zip(spread, moved, analytic)]
    return spread


def _try_joint_directions(
    case: Case, k: int, analytic: Tensor, state: Tensor, largest: float, tolerance: Tolerance
) -> None:
    """At kinks, test the flagged columns together too: a rule may pass each one-sided interval and still be wrong.

    A max that gives the full gradient to each of two tied elements passes every one-hot test, but not along (1, 1).
    """
    flagged = (state == State.SUBGRADIENT).any(dim=1)
    if int(flagged.sum()) < 2:
        return
    generator = case.generator("joint directions")
    signs = torch.randint(0, 2, (2, case.n[k]), generator=generator).to(torch.float64) * 2 - 1
    size = 0.5 + torch.rand(2, case.n[k], generator=generator, dtype=torch.float64)
    directions = torch.cat([torch.ones(1, case.n[k], dtype=torch.float64), signs * size]) * flagged
    x = case.base[k]
    steps = element_steps(x)[flagged].min().expand(len(directions))
    estimate = differentiate(column(case, k), x, directions, steps, case.output_epsilon())
    along = judge(directions @ analytic, estimate, largest, tolerance)
    convicted = (along == State.WRONG).any(dim=0)
    state[:, convicted] = torch.where(
        state[:, convicted] == State.SUBGRADIENT, int(State.WRONG), state[:, convicted].int()
    ).to(torch.int8)
