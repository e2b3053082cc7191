"""Entry-by-entry comparison of Jacobians, analytic against differences, each entry with its own bar.

For every input-output block whose pattern (see :mod:`pattern`) needs few enough groups of columns; other blocks are
compared along random projections.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from gradwright.checking.case import Case
from gradwright.checking.differences import (
    FIRST_STEP,
    Estimate,
    VectorFunction,
    differentiate,
    element_steps,
    one_hot,
    signed,
)
from gradwright.checking.judge import State, Tolerance, judge, largest_entry, one_unit_away, prosecute
from gradwright.checking.magnitudes import largest_in_backward
from gradwright.checking.pattern import Pattern, dense_pattern, find_pattern
from gradwright.typing import Level

GROUP_LIMIT: dict[Level, int] = {"quick": 24, "standard": 160, "full": 512}
"""Largest number of groups, and of backwards, for which a block is compared entry by entry."""
SECONDS_PER_BLOCK: dict[Level, float] = {"quick": 0.5, "standard": 3.0, "full": 60.0}
"""A forward so slow that a block would take longer is compared by projections."""
EVALUATIONS_PER_GROUP = 30
DENSE_ENTRIES = 400
"""Blocks with fewer entries than this are compared whole: looking for a pattern would cost more than it saves."""
MOST_ELEMENTS: dict[Level, int] = {"quick": 2**17, "standard": 2**19, "full": 2**22}
"""A block with more inputs or outputs than this is only compared along projections, however few its entries."""
MAX_CONFIRMED = 8
MAX_EXCUSED = 256
NEARBY, NEARBY_POINTS = 1e-6, 48
"""Far beyond the steps taken there (1e-9), so that not even a hundred tied elements change places in a step."""
TIE_SLACK = 0.1
"""Share of the spread of the slopes at those points by which they may be exceeded."""


@dataclass
class Comparison:
    """One block compared; the tensors have the shape (C, M) of its pattern."""

    input: int
    output: int
    pattern: Pattern
    analytic: Tensor
    estimate: Estimate
    state: Tensor
    allowed: Tensor
    none: bool
    """True when backward gave no gradient at all for this input."""


def compare(case: Case, k: int, o: int) -> Comparison | None:
    """Compare one block entry by entry, and try what is accused; None when the block is too large for that."""
    pattern = affordable_pattern(case, k, o)
    if pattern is None:
        return None
    analytic, none = _analytic(case, k, o, pattern)
    estimate = _numeric(case, k, o, pattern)
    largest = largest_entry(analytic, estimate.value)
    tolerance = Tolerance.for_epsilon(case.epsilon, case.allowances)
    state = judge(analytic, estimate, largest, tolerance)
    state = _tried(case, k, o, pattern, analytic, estimate, state, largest, tolerance)
    _try_joint_directions(case, k, o, pattern, analytic, state, largest, tolerance)
    _excuse_ties(case, k, o, pattern, analytic, state)
    allowed = tolerance.at(analytic, estimate.value, largest)
    _excuse_symmetric(case, k, pattern, analytic, estimate, state, allowed)
    _hear_plain_differences(case, k, o, pattern, analytic, estimate.value, state)
    return Comparison(k, o, pattern, analytic, estimate, state, allowed, none)


def affordable_pattern(case: Case, k: int, o: int) -> Pattern | None:
    """Return the pattern of a block if comparing all its entries is affordable at the level of the case."""
    n, m = case.n[k], case.output_size(o)
    if max(n, m) > MOST_ELEMENTS[case.level]:
        return None
    pattern = dense_pattern(case, k, o) if n * m <= DENSE_ENTRIES else find_pattern(case, k, o)
    limit = GROUP_LIMIT[case.level]
    evaluations = EVALUATIONS_PER_GROUP * pattern.groups + 2 * pattern.rests
    if pattern.groups > limit or pattern.rests > limit:
        return None
    return pattern if evaluations * case.forward_seconds <= SECONDS_PER_BLOCK[case.level] else None


def block_function(case: Case, k: int, o: int) -> VectorFunction:
    """Return one output of the case as a function of its ``k``-th input alone."""
    where = case.output_slice(o)
    return lambda flat: case.value({k: flat})[where]


def _analytic(
    case: Case, k: int, o: int, pattern: Pattern, flats: Mapping[int, Tensor] | None = None
) -> tuple[Tensor, bool]:
    """Return what backward gives for the entries of the pattern; every backward follows a fresh forward."""
    start = case.output_slice(o).start
    analytic = torch.zeros(pattern.groups, len(pattern.rest_of), dtype=torch.float64)
    none = True
    for rest in range(pattern.rests):
        rows = (pattern.rest_of == rest).nonzero().flatten()
        v = torch.zeros(case.m, dtype=torch.float64)
        v[start + rows] = 1.0
        gradient = case.pull(v, flats)[k]
        if gradient is not None:
            none = False
            analytic[:, rows] = gradient[pattern.element[pattern.slice_of[rows]]].t()
    return analytic, none and pattern.rests > 0


def _directions(case: Case, k: int, pattern: Pattern) -> Tensor:
    """Return one direction for each group, scaled to the size of the elements it moves, shape (C, n)."""
    scale = element_steps(case.base[k]) / FIRST_STEP
    directions = torch.zeros(pattern.groups, case.n[k], dtype=torch.float64)
    for c in range(pattern.groups):
        members = pattern.element[:, c]
        directions[c, members] = scale[members]
    return directions


def _numeric(case: Case, k: int, o: int, pattern: Pattern) -> Estimate:
    epsilon = case.output_epsilon()[case.output_slice(o)]
    directions = _directions(case, k, pattern)
    steps = torch.full((pattern.groups,), FIRST_STEP, dtype=torch.float64)
    estimate = differentiate(block_function(case, k, o), case.base[k], directions, steps, epsilon)
    return _per_element(case, k, pattern, estimate)


def _per_element(case: Case, k: int, pattern: Pattern, estimate: Estimate) -> Estimate:
    """Turn derivatives along scaled directions into those with respect to the elements."""
    scale = (element_steps(case.base[k]) / FIRST_STEP)[pattern.elements()]
    return Estimate(
        estimate.value / scale,
        estimate.bar / scale,
        estimate.lower / scale,
        estimate.upper / scale,
        estimate.behaviour,
        estimate.moved,
        estimate.apart / scale,
    )


def _tried(
    case: Case,
    k: int,
    o: int,
    pattern: Pattern,
    analytic: Tensor,
    estimate: Estimate,
    state: Tensor,
    largest: float,
    tolerance: Tolerance,
) -> Tensor:
    """Prosecute the accused entries, and confirm the worst ones along a single element if the pattern was used."""
    scale = (element_steps(case.base[k]) / FIRST_STEP)[pattern.elements()]

    @functools.cache
    def spread() -> Tensor:
        v = torch.zeros(case.m, dtype=torch.float64)
        v[case.output_slice(o)] = 1.0
        return scale * (_analytic_scatter(case, k, o, pattern, analytic) + case.epsilon * largest_in_backward(case, v))

    scaled = Estimate(
        estimate.value * scale,
        estimate.bar * scale,
        estimate.lower * scale,
        estimate.upper * scale,
        estimate.behaviour,
        estimate.moved,
        estimate.apart * scale,
    )
    state = prosecute(
        state,
        analytic * scale,
        scaled,
        largest_entry(analytic * scale, scaled.value),
        tolerance.scaled(scale),
        f=block_function(case, k, o),
        x=case.base[k],
        directions=_directions(case, k, pattern),
        steps=torch.full((pattern.groups,), FIRST_STEP, dtype=torch.float64),
        epsilon=case.output_epsilon()[case.output_slice(o)],
        analytic_spread=spread,
    )
    if pattern.pairs and bool((state == State.WRONG).any()) and not _confirmed(case, k, o, pattern, state, analytic):
        state = torch.where(state == State.WRONG, int(State.UNRESOLVED), state.int()).to(torch.int8)
    return state


def _excuse_ties(case: Case, k: int, o: int, pattern: Pattern, analytic: Tensor, state: Tensor) -> None:
    """Accept what is a derivative at points close by, where the function has a kink that one element cannot show.

    In a three-way tie, moving the middle element alone moves nothing; the permutation of a sort is a subgradient all
    the same: a limit of gradients at points near x (Clarke). Along every direction tried it must lie between the slopes
    at random points near x, and these must differ, which they do only where the function is not smooth.
    """
    accused = (state == State.WRONG).any(dim=0)
    if not bool(accused.any()) or pattern.groups < 2:
        return
    outputs = accused.nonzero().flatten()[:MAX_EXCUSED]
    elements, x, where = pattern.elements()[:, outputs], case.base[k], case.output_slice(o)
    generator, scale = case.generator("ties"), element_steps(case.base[k]) / FIRST_STEP
    random = signed(3 * case.n[k], generator).reshape(3, -1)
    fine = torch.ones(len(outputs), dtype=torch.bool)
    rough = torch.zeros_like(fine)
    for u in torch.cat([torch.ones(1, case.n[k], dtype=torch.float64), random]) * scale:
        slopes = []
        for _ in range(NEARBY_POINTS):
            near = x + (NEARBY * scale * signed(case.n[k], generator)).to(x.dtype)
            h = (1e-9 * u).to(x.dtype)
            change = case.value({k: near + h}) - case.value({k: near - h})
            slopes.append(change[where][outputs] / 2e-9)
        low, high = torch.stack(slopes).amin(dim=0), torch.stack(slopes).amax(dim=0)
        size = low.abs().maximum(high.abs())
        along = (analytic[:, outputs] * u[elements]).sum(dim=0)
        # Of a tie of many elements the points show most slopes, but not the steepest.
        slack = 1e-3 * size + TIE_SLACK * (high - low)
        fine &= (along >= low - slack) & (along <= high + slack)
        rough |= high - low > 1e-2 * size
    excused = outputs[fine & rough]
    state[:, excused] = torch.where(
        state[:, excused] == State.WRONG, int(State.SUBGRADIENT), state[:, excused].int()
    ).to(torch.int8)


def _excuse_symmetric(
    case: Case, k: int, pattern: Pattern, analytic: Tensor, estimate: Estimate, state: Tensor, allowed: Tensor
) -> None:
    """Accept a gradient that is right along symmetric directions at a symmetric matrix.

    Functions of symmetric matrices (Cholesky factor, eigenvalues) read one triangle and give the gradient that is
    symmetric; single elements tell another one.
    """
    tensor = case.inputs[k].tensor
    square = tensor.dim() >= 2 and tensor.shape[-1] == tensor.shape[-2] > 1 and not tensor.is_complex()
    square = square and tensor.layout == torch.strided
    if pattern.pairs or not square or not torch.equal(tensor, tensor.mT) or not bool((state == State.WRONG).any()):
        return

    def symmetric(values: Tensor) -> Tensor:
        full = values.reshape(*tensor.shape, -1)
        return ((full + full.transpose(-3, -2)) / 2).reshape(values.shape)

    gap = symmetric(analytic - estimate.value).abs()
    fine = gap <= symmetric(estimate.bar + allowed)
    if bool(fine[state == State.WRONG].all()):
        state[state == State.WRONG] = int(State.SYMMETRIC)


def _hear_plain_differences(
    case: Case, k: int, o: int, pattern: Pattern, analytic: Tensor, numeric: Tensor, state: Tensor
) -> None:
    """Acquit what agrees with the plain difference of the step that the caller gave: two witnesses disagree."""
    accused = state == State.WRONG
    if case.allowances.eps is None:
        return
    f, x, epsilon = block_function(case, k, o), case.base[k], case.output_epsilon()[case.output_slice(o)]
    for c in accused.any(dim=1).nonzero().flatten().tolist():
        direction = torch.zeros(case.n[k], dtype=torch.float64)
        direction[pattern.element[:, c]] = 1.0
        agrees = case.allowances.agrees_at_step(analytic[c], numeric[c], f, x, direction, epsilon)
        state[c, accused[c] & agrees] = int(State.UNRESOLVED)


def _confirmed(case: Case, k: int, o: int, pattern: Pattern, state: Tensor, analytic: Tensor) -> bool:
    """Tell whether some accused entry is wrong without the help of the pattern, which could be an accident."""
    elements = pattern.elements()
    x, where = case.base[k], case.output_slice(o)
    tolerance = Tolerance.for_epsilon(case.epsilon, case.allowances)
    for c, j in (state == State.WRONG).nonzero()[:MAX_CONFIRMED].tolist():
        i = int(elements[c, j])
        v = torch.zeros(case.m, dtype=torch.float64)
        v[where.start + j] = 1.0
        alone = case.pull_all(v)[k][[i]].unsqueeze(0)
        estimate = differentiate(
            lambda flat, j=j: case.value({k: flat})[where.start + j : where.start + j + 1],  # type: ignore[misc]
            x,
            one_hot(case.n[k], [i]),
            element_steps(x)[[i]],
            case.output_epsilon()[where.start + j : where.start + j + 1],
        )
        if int(judge(alone, estimate, largest_entry(alone, estimate.value), tolerance)) == State.WRONG:
            return True
    return False


def _analytic_scatter(case: Case, k: int, o: int, pattern: Pattern, analytic: Tensor) -> Tensor:
    """Return how far the analytic entries move when each input element moves by one rounding unit (largest of two)."""
    generator = case.generator("scatter")
    spread = torch.zeros_like(analytic)
    for _ in range(2):
        flats = {number: one_unit_away(x, generator) for number, x in enumerate(case.base)}
        moved, _ = _analytic(case, k, o, pattern, flats)
        spread = spread.maximum((moved - analytic).abs().nan_to_num(0.0))
    return spread


def _try_joint_directions(
    case: Case,
    k: int,
    o: int,
    pattern: Pattern,
    analytic: Tensor,
    state: Tensor,
    largest: float,
    tolerance: Tolerance,
) -> None:
    """At kinks, test the flagged elements together too: a rule may pass each one-sided interval and still be wrong.

    A max that gives the full gradient to each of two tied elements passes every one-hot test, but not along (1, 1).
    """
    elements = pattern.elements()
    flagged = torch.zeros(case.n[k], dtype=torch.bool)
    flagged[elements[state == State.SUBGRADIENT]] = True
    if int(flagged.sum()) < 2 or pattern.groups < 2:
        return
    random = signed(2 * case.n[k], case.generator("joint directions")).reshape(2, -1)
    x = case.base[k]
    scale = element_steps(x) / FIRST_STEP
    directions = torch.cat([torch.ones(1, case.n[k], dtype=torch.float64), random]) * flagged * scale
    steps = torch.full((len(directions),), FIRST_STEP, dtype=torch.float64)
    epsilon = case.output_epsilon()[case.output_slice(o)]
    estimate = differentiate(block_function(case, k, o), x, directions, steps, epsilon)
    along = torch.stack([(analytic * direction[elements]).sum(dim=0) for direction in directions])
    granted = case.allowances.of(analytic)
    granted = torch.stack([(granted * direction[elements].abs()).sum(dim=0) for direction in directions])
    tolerance = replace(tolerance, of_numeric=0.0, absolute=granted)
    convicted = (judge(along, estimate, largest, tolerance) == State.WRONG).any(dim=0)
    state[:, convicted] = torch.where(
        state[:, convicted] == State.SUBGRADIENT, int(State.WRONG), state[:, convicted].int()
    ).to(torch.int8)
