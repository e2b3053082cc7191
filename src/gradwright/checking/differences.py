r"""Derivatives by differences, each with its own error bar, and what the function does near the point.

For a direction u and steps h_k = h_0 / 4^k the central differences D_k are extrapolated (Romberg), and each entry of
the tableau carries a truncation estimate (Ridders 1982) and the rounding error of its points:

    T[k,m] = (16^m T[k,m-1] - T[k-1,m-1]) / (16^m - 1)          T[k,0] = D_k
    R[k,m] = (16^m R[k,m-1] + R[k-1,m-1]) / (16^m - 1)          R[k,0] = e_f / h_k
    tr     = max(|T[k,m] - T[k,m-1]|, |T[k,m] - T[k-1,m-1]|)
    bar    = 4 (tr + R) at the entry where tr + R is smallest

Every output element picks its own entry, so that one step need not fit all. e_f is the noise of f (see :mod:`noise`).
Points where f is not finite drop out, so a domain edge costs nothing.

Ridders, Adv. Eng. Software 4 (1982) 75.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import TypeAlias

import torch
from torch import Tensor

from gradwright.checking.noise import Points, jumps_within, noise_of

VectorFunction: TypeAlias = Callable[[Tensor], Tensor]
"""Maps a real flat vector of length n to a float64 vector of length m; NaN where it has no value."""

LEVELS = 7
RATIO = 4.0
SAFETY = 4.0
FIRST_STEP = 0.05
"""First step relative to the size of the element."""
NEAREST_KINK = 1e-3
"""The finest ladder, as a fraction of the first, that may tell a kink that is only near from one at the point."""
FLOOR = 1e-3
"""Elements smaller than this fraction of the typical one are moved as if they were that large."""
MAX_STAIRS = 4
"""Outputs of one column that are searched for jumps."""
CHUNK_BYTES = 64 * 2**20


class Behaviour(IntEnum):
    """What the function does at the point along the direction."""

    SMOOTH = 0
    KINK = 1
    """Both one-sided slopes exist and differ."""
    JUMP = 2
    ROOT = 3
    """The slope is infinite, as that of sqrt at 0."""


@dataclass
class Estimate:
    """Derivatives along C directions of m outputs; every tensor is float64 of shape (C, m)."""

    value: Tensor
    bar: Tensor
    """Bound on the error of ``value``; infinite where nothing could be said."""
    lower: Tensor
    upper: Tensor
    """At a kink the interval of the one-sided slopes, widened by their error bars; elsewhere ``value`` -+ ``bar``."""
    behaviour: Tensor
    """A :class:`Behaviour` for each entry (int8)."""
    moved: Tensor
    """Whether any step changed the output at all (bool)."""
    apart: Tensor
    """How far the slopes of the two sides may be apart at the point: what the ladder shows, and no model of it."""

    def take(self, other: Estimate, rows: Tensor, better: Tensor) -> None:
        """Replace the entries of ``rows`` where ``better`` holds by those of ``other``."""
        for mine, theirs in zip(self._tensors(), other._tensors()):
            mine[rows] = torch.where(better, theirs, mine[rows])

    def _tensors(self) -> tuple[Tensor, ...]:
        return self.value, self.bar, self.lower, self.upper, self.behaviour, self.moved, self.apart


def element_steps(x: Tensor) -> Tensor:
    """Return the first step of each element of ``x``: 5 % of its size, or of 1e-3 of the typical size."""
    magnitude = x.to(torch.float64).abs()
    finite = magnitude[magnitude.isfinite() & (magnitude > 0)]
    typical = _norm(finite) / math.sqrt(finite.numel()) if finite.numel() else 1.0
    return FIRST_STEP * magnitude.nan_to_num(0.0).clamp(min=FLOOR * typical)


def differentiate(
    f: VectorFunction,
    x: Tensor,
    directions: Tensor,
    steps: Tensor,
    epsilon: Tensor,
    scales: Sequence[float] = (1.0, 1e-3, 1e-6),
) -> Estimate:
    """Differentiate ``f`` at ``x`` along each row of ``directions``.

    Arguments:
        f: the function.
        x: the point, shape (n,), real; steps are taken in its dtype.
        directions: shape (C, n).
        steps: first step along each direction, shape (C,).
        epsilon: rounding unit of each output element, shape (m,).
        scales: factors on ``steps``; ladders after the first are climbed only where the bar is still too wide, or
            where a kink was seen and could be merely near.

    Returns:
        The estimates, shape (C, m).
    """
    centre = f(x)
    best, coarse = _ladders(f, x, directions, steps * scales[0], epsilon, centre)
    for scale in scales[1:]:
        size = best.value.abs()
        size = torch.where(size.isfinite(), size, torch.zeros_like(size))
        largest = float(size.max()) if size.numel() else 0.0
        wide = best.bar > 1e-6 * size.clamp(min=1e-3 * largest)
        wide |= best.behaviour == Behaviour.KINK
        rows = wide.any(dim=1).nonzero().flatten()
        if rows.numel() == 0:
            break
        finer, _ = _ladders(f, x, directions[rows], steps[rows] * scale, epsilon, centre)
        kink = best.behaviour[rows] == Behaviour.KINK
        gap = best.upper[rows] - best.lower[rows]
        # In a fine ladder a kink may drown in rounding and look smooth, with the mean of its slopes.
        near = (scale >= NEAREST_KINK) & (finer.apart < gap / 4)
        only_near = kink & near & (finer.behaviour == Behaviour.SMOOTH) & finer.moved & (finer.bar < gap / 4)
        # A finer ladder in which nothing moved says nothing about a function that moved in a coarser one.
        narrower = ~kink & (finer.bar < best.bar[rows]) & (finer.moved | ~best.moved[rows])
        best.take(finer, rows, only_near | narrower)
    _widen_within_stairs(f, x, directions, steps * scales[0], epsilon, centre, best, coarse)
    return best


def differentiate_sum(
    terms: VectorFunction,
    x: Tensor,
    u: Tensor,
    epsilon: float,
    scales: Sequence[float] = (1.0, 1e-3, 1e-6),
) -> Estimate:
    """Differentiate ``sum(terms(x + s u))`` at ``s = 0``; the first step is 5 % of ``u``.

    A sum that cancels is rounded by more than eps times its value, so the bar also covers the rounding of the terms.

    Returns:
        An estimate whose tensors have shape (1, 1).
    """
    size = _norm(terms(x).nan_to_num(0.0))

    def total(flat: Tensor) -> Tensor:
        return terms(flat).sum().reshape(1)

    steps = torch.tensor([FIRST_STEP], dtype=torch.float64)
    units = torch.tensor([epsilon], dtype=torch.float64)
    estimate = differentiate(total, x, u.unsqueeze(0), steps, units, scales)
    extra = SAFETY * epsilon * size / (FIRST_STEP * scales[0])
    estimate.bar = estimate.bar + extra
    estimate.lower, estimate.upper = estimate.lower - extra, estimate.upper + extra
    estimate.apart = estimate.apart + extra
    return estimate


def _widen_within_stairs(
    f: VectorFunction,
    x: Tensor,
    directions: Tensor,
    steps: Tensor,
    epsilon: Tensor,
    centre: Tensor,
    best: Estimate,
    coarse: Tensor,
) -> None:
    """Widen the bars of slopes that were found within one stair, to reach the slope of the staircase.

    Cancellation makes stairs that need not be flat: ``(exp(x) - 1) / x`` is c / x within each. Only there do the widest
    step and the finer ones disagree, with jumps on both sides.
    """
    gap = (coarse - best.value).abs()
    doubtful = gap > (0.5 * best.value.abs()).maximum(0.5 * coarse.abs()).maximum(best.bar)  # False for NaN
    doubtful &= (best.behaviour == Behaviour.SMOOTH) & best.moved
    for row in doubtful.any(dim=1).nonzero().flatten().tolist():
        columns = doubtful[row].nonzero().flatten()
        u, first = directions[row].to(x.dtype), float(steps[row])
        for j in columns[gap[row, columns].argsort(descending=True)][:MAX_STAIRS].tolist():
            rounding = float(epsilon[j] * centre[j].abs())

            def one(t: float, u: Tensor = u, j: int = j) -> float:
                return float(f(x + t * u)[j])

            slope = float(best.value[row, j])
            if all(jumps_within(one, reach, slope, rounding) for reach in (first, -first)):
                best.bar[row, j] += 2 * gap[row, j]
                best.lower[row, j] = best.value[row, j] - best.bar[row, j]
                best.upper[row, j] = best.value[row, j] + best.bar[row, j]


def _ladders(
    f: VectorFunction, x: Tensor, directions: Tensor, steps: Tensor, epsilon: Tensor, centre: Tensor
) -> tuple[Estimate, Tensor]:
    """Return the estimates, and the slopes of the widest step."""
    m = centre.numel()
    chunk = max(1, CHUNK_BYTES // max(1, 8 * 2 * (2 * LEVELS + 12) * m))
    parts = [
        _ladder_chunk(f, x, directions[start : start + chunk], steps[start : start + chunk], epsilon, centre)
        for start in range(0, len(directions), chunk)
    ]
    if not parts:
        empty = torch.empty(0, m, dtype=torch.float64)
        return Estimate(empty, empty, empty, empty, empty.to(torch.int8), empty.to(torch.bool), empty), empty
    joined = [torch.cat(tensors) for tensors in zip(*(part._tensors() for part, _ in parts))]
    return Estimate(*joined), torch.cat([coarse for _, coarse in parts])


@dataclass(frozen=True)
class Rungs:
    """Values of a function along a ladder, and what follows from them directly; K steps, C directions, m outputs."""

    h: Tensor
    """Half the distance of each pair of points, as it is after rounding, shape (K, C, 1)."""
    plus: Tensor
    minus: Tensor
    slopes: Tensor
    """Central differences, shape (K, C, m)."""
    noise: Tensor
    rounding: Tensor
    """Of one value, shape (C, m)."""

    def settled(self) -> tuple[Tensor, Tensor]:
        """Return the extrapolated slopes and their bars, shape (C, m)."""
        return _romberg(self.slopes, self.noise / self.h, RATIO**2)


def climb(f: VectorFunction, x: Tensor, directions: Tensor, steps: Tensor, epsilon: Tensor, centre: Tensor) -> Rungs:
    """Evaluate ``f`` along the ladders of some directions; see :func:`differentiate` for the arguments."""
    c, m = len(directions), centre.numel()
    plus = torch.empty(LEVELS, c, m, dtype=torch.float64)
    minus = torch.empty_like(plus)
    h = torch.empty(LEVELS, c, dtype=torch.float64)
    around = torch.empty(2, 7, c, m, dtype=torch.float64)
    for column in range(c):
        u = directions[column].to(x.dtype)
        first = float(steps[column])
        for k in range(LEVELS):
            step = first / RATIO**k
            above, below = x + step * u, x - step * u
            h[k, column] = _step_taken(above, below, u)
            plus[k, column], minus[k, column] = f(above), f(below)
        for row, spacing in enumerate((first / RATIO ** (LEVELS - 1), first / RATIO ** (LEVELS - 1) / 40)):
            for j in range(-3, 4):
                around[row, j + 3, column] = centre if j == 0 else f(x + (j * spacing) * u)
    size = torch.cat([plus, minus]).abs().nan_to_num(0.0, posinf=0.0).amax(dim=0).maximum(centre.abs().nan_to_num(0.0))
    rounding = epsilon * size + torch.finfo(torch.float64).tiny
    h = h.unsqueeze(-1)
    slopes = (plus - minus) / (2 * h)
    points = Points(plus, minus, centre, around)
    return Rungs(h, plus, minus, slopes, noise_of(f, x, directions, steps, points, slopes, epsilon, rounding), rounding)


def _ladder_chunk(
    f: VectorFunction, x: Tensor, directions: Tensor, steps: Tensor, epsilon: Tensor, centre: Tensor
) -> tuple[Estimate, Tensor]:
    rungs = climb(f, x, directions, steps, epsilon, centre)
    h, plus, minus, slopes, noise, rounding = (
        rungs.h,
        rungs.plus,
        rungs.minus,
        rungs.slopes,
        rungs.noise,
        rungs.rounding,
    )
    forward, backward = (plus - centre) / h, (centre - minus) / h
    value, bar = rungs.settled()
    behaviour = _behaviour(forward, backward, h, rounding)
    kink = behaviour == Behaviour.KINK
    lower, upper = value - bar, value + bar
    apart = _apart(forward - backward, noise / h)
    if bool(kink.any()) or not bool(bar.isfinite().all()):
        right, right_bar = _one_sided(forward, rounding / h)
        left, left_bar = _one_sided(backward, rounding / h)
        for side, side_bar in ((right, right_bar), (left, left_bar)):
            # One side outside the domain: central differences never existed.
            alone = ~bar.isfinite() & side_bar.isfinite()
            value, bar = torch.where(alone, side, value), torch.where(alone, side_bar, bar)
            apart = torch.where(alone, 0.0, apart)
        lower = torch.where(kink, (left - left_bar).minimum(right - right_bar), value - bar)
        upper = torch.where(kink, (left + left_bar).maximum(right + right_bar), value + bar)
    moved = ((plus != centre) | (minus != centre)).any(dim=0)
    return Estimate(value, bar, lower, upper, behaviour, moved, apart), slopes[0]


def _step_taken(above: Tensor, below: Tensor, u: Tensor) -> float:
    """Return half the step really taken along ``u`` after rounding."""
    u = u.to(torch.float64)
    taken = torch.dot(above.to(torch.float64) - below.to(torch.float64), u) / (2 * torch.dot(u, u))
    return float(taken) if taken > 0 else math.nan


def _romberg(slopes: Tensor, rounding: Tensor, base: float) -> tuple[Tensor, Tensor]:
    """Extrapolate slopes (K, C, m) to step 0 and return value and bar; ``base`` is the error ratio of one level."""
    best = torch.full_like(slopes[0], math.nan)
    error = torch.full_like(slopes[0], math.inf)
    previous: list[tuple[Tensor, Tensor]] = []
    for k in range(len(slopes)):
        row = [(slopes[k], rounding[k])]
        if k:
            best, error = _keep_smaller(best, error, slopes[k], (slopes[k] - previous[0][0]).abs() + rounding[k])
        for order in range(1, k + 1):
            factor = base**order
            old_value, old_rounding = previous[order - 1]
            coarse_value, coarse_rounding = row[order - 1]
            value = (factor * coarse_value - old_value) / (factor - 1)
            carried = (factor * coarse_rounding + old_rounding) / (factor - 1)
            truncation = (value - coarse_value).abs().maximum((value - old_value).abs())
            best, error = _keep_smaller(best, error, value, truncation + carried)
            row.append((value, carried))
        previous = row
    return best, SAFETY * error


def _one_sided(slopes: Tensor, rounding: Tensor) -> tuple[Tensor, Tensor]:
    """Extrapolate the slopes of one side; hidden noise shows as a difference between the last two of them.

    The noise table cannot be used here: it spans both sides, and takes the kink between them for noise.
    """
    value, bar = _romberg(slopes, 2 * rounding, RATIO)
    return value, bar + SAFETY * (slopes[-1] - slopes[-2]).abs()


def _apart(gaps: Tensor, rounding: Tensor) -> Tensor:
    """Return how far the one-sided slopes may be apart, from their gaps (K, C, m) and the rounding of each slope.

    The gap of a smooth function is odd in h, so that one extrapolation leaves h^3 of it; that of a kink is constant.
    Two steps in a row must agree: at a kink that is only near the extrapolated gap passes through zero.
    """
    shown = ((RATIO * gaps[1:] - gaps[:-1]) / (RATIO - 1)).abs() + SAFETY * (rounding[1:] + rounding[:-1])
    return shown[1:].maximum(shown[:-1]).nan_to_num(math.inf).amin(dim=0)


def _keep_smaller(best: Tensor, error: Tensor, value: Tensor, candidate: Tensor) -> tuple[Tensor, Tensor]:
    better = candidate < error  # False for NaN
    return torch.where(better, value, best), torch.where(better, candidate, error)


def _behaviour(forward: Tensor, backward: Tensor, h: Tensor, rounding: Tensor) -> Tensor:
    """Classify each entry by how its one-sided slopes (K, C, m) scale over the last four steps.

    No noise model enters here: the difference table would take a kink for noise.
    """
    visible = 64 * rounding / h
    gap = (forward - backward)[-4:]
    steepest = forward.abs().fmax(backward.abs())  # of the sides that exist
    last, growth = steepest[-4:], steepest[-3:] / steepest[-4:-1]

    def settled(slopes: Tensor) -> Tensor:
        return (slopes[-1] - slopes[-2]).abs() <= 0.1 * gap[-1].abs()

    gap_size = gap.abs()
    constant = (gap_size.amax(dim=0) <= 1.2 * gap_size.amin(dim=0)) & ((gap > 0).all(dim=0) | (gap < 0).all(dim=0))
    kink = constant & (gap_size > visible[-4:]).all(dim=0) & settled(forward) & settled(backward)

    # One quantum of hidden low-precision arithmetic also looks like a jump, but a tiny one.
    moves = steepest * h
    large = (last > visible[-4:]).all(dim=0) & (moves[-1] > 1e-3 * moves[0])
    steady = growth.amax(dim=0) <= 1.05 * growth.amin(dim=0)
    ratio = growth[-1]
    jump = large & steady & (ratio > 0.9 * RATIO)
    root = large & steady & (ratio > 1.2) & ~jump

    behaviour = torch.full_like(ratio, int(Behaviour.SMOOTH), dtype=torch.int8)
    behaviour[kink] = int(Behaviour.KINK)
    behaviour[jump] = int(Behaviour.JUMP)
    behaviour[root] = int(Behaviour.ROOT)
    return behaviour


def _norm(values: Tensor) -> float:
    """Return the Euclidean norm without overflow of the squares."""
    largest = float(values.abs().max()) if values.numel() else 0.0
    return largest * float((values / largest).norm()) if largest else 0.0


def one_hot(size: int, positions: Sequence[int]) -> Tensor:
    """Return unit directions (len(positions), size) in float64."""
    directions = torch.zeros(len(positions), size, dtype=torch.float64)
    for row, position in enumerate(positions):
        directions[row, position] = 1.0
    return directions


def signed(size: int, generator: torch.Generator) -> Tensor:
    """Draw entries of magnitude 1/2 to 3/2 and random sign, so that no element is unweighted and nothing hides."""
    signs = torch.randint(0, 2, (size,), generator=generator).to(torch.float64) * 2 - 1
    return signs * (0.5 + torch.rand(size, generator=generator, dtype=torch.float64))
