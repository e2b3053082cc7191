"""The verdict on each entry of a Jacobian: analytic value A against numeric value N with its error bar.

An entry is fine when ``|A - N| <= bar + tolerance``, where the tolerance allows for rounding in the analytic side only.
At a kink any value between the one-sided slopes is a valid subgradient. Anything else is accused, and an accusation is
prosecuted (finer ladders, and the analytic side at points one rounding unit away) before it becomes a finding.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import IntEnum

import torch
from torch import Tensor

from gradwright.checking.allowances import NONE, Allowances
from gradwright.checking.differences import (
    FIRST_STEP,
    NEAREST_KINK,
    Behaviour,
    Estimate,
    VectorFunction,
    differentiate,
)

MAX_PROSECUTED = 24
"""Columns that are prosecuted; when all of them are convicted the others stand accused by the same evidence."""
MAX_PROSECUTED_OUTPUTS = 256
FINEST_STAIRS = 1e-6
SCATTER_SAFETY = 16.0
"""What the noise of an ill-conditioned forward may add to a difference at a step somewhat finer than the first."""
PROSECUTION_SCALES = (NEAREST_KINK, 1e-6, 1e-9, 1e-11)
MARGIN = 8.0
"""A number along a direction of many elements is accused only when it is this many bars away."""
UNRESOLVED_BAR = 1e-3
"""A bar wider than this fraction of the value tells too little to call the entry fine."""


class State(IntEnum):
    """Verdict on one entry."""

    FINE = 0
    WRONG = 1
    UNRESOLVED = 2
    """The bar is too wide to tell, or the prosecution's ladders disagree."""
    SUBGRADIENT = 3
    """The function has a kink here and the analytic value lies between the one-sided slopes."""
    UNDEFINED = 4
    """The function jumps or has an infinite slope here: no value is right or wrong."""
    SYMMETRIC = 5
    """Right along symmetric directions, which is all that a function of symmetric matrices promises."""


@dataclass(frozen=True)
class Tolerance:
    """Allowance for rounding on the analytic side, and what the caller grants beyond it."""

    relative: float = 1e-10
    """Of the entry itself."""
    of_largest: float = 1e-13
    """Of the largest entry of the Jacobian."""
    of_numeric: float = 0.0
    """Of the numeric value, as the caller grants."""
    absolute: float | Tensor = 0.0
    """For each entry, as the caller grants."""

    @classmethod
    def for_epsilon(cls, epsilon: float, granted: Allowances = NONE) -> Tolerance:
        """Scale the float64 allowance to another rounding unit, and add what the caller grants."""
        rounding = max(cls.relative, 256 * epsilon), max(cls.of_largest, 16 * epsilon)
        return cls(*rounding, granted.rtol, granted.atol)

    def scaled(self, scale: Tensor) -> Tolerance:
        """Return the tolerance of entries that are all multiplied by ``scale``."""
        return replace(self, absolute=self.absolute * scale)

    def at(self, analytic: Tensor, numeric: Tensor, largest: float) -> Tensor:
        """Return the allowance for each entry."""
        size = _finite(analytic).abs().maximum(_finite(numeric).abs())
        granted = self.of_numeric * _finite(numeric).abs() + self.absolute
        return self.relative * size + self.of_largest * largest + granted


def judge(analytic: Tensor, estimate: Estimate, largest: float, tolerance: Tolerance) -> Tensor:
    """Return the :class:`State` of each entry (int8, shape (C, m)); WRONG here still means accused."""
    allowed = tolerance.at(analytic, estimate.value, largest)
    inside = (analytic >= estimate.lower - allowed) & (analytic <= estimate.upper + allowed)
    known = estimate.bar.isfinite()
    wide = estimate.bar > UNRESOLVED_BAR * _finite(estimate.value).abs().clamp(min=1e-6 * largest)
    smooth = torch.where(inside, torch.where(wide, State.UNRESOLVED, State.FINE), torch.as_tensor(int(State.WRONG)))
    smooth = torch.where(known, smooth, torch.as_tensor(int(State.UNRESOLVED)))
    # A slope that grows without end, but slowly (x log x at 0), looks smooth and never settles.
    endless = known & wide & analytic.isinf() & (estimate.behaviour == Behaviour.SMOOTH)
    smooth = torch.where(endless, torch.as_tensor(int(State.UNRESOLVED)), smooth)
    # An output that no step moves at all has derivative zero, however wide the bar.
    smooth = torch.where(~estimate.moved & (analytic == 0), torch.as_tensor(int(State.FINE)), smooth)
    kink = torch.where(inside, torch.as_tensor(int(State.SUBGRADIENT)), torch.as_tensor(int(State.WRONG)))
    # Along a jump or a root no finite slope exists; NaN is still never a useful gradient where f itself is finite.
    undefined = torch.where(analytic.isnan(), int(State.WRONG), int(State.UNDEFINED))
    state = torch.where(estimate.behaviour == Behaviour.KINK, kink, smooth)
    state = torch.where(estimate.behaviour >= Behaviour.JUMP, undefined, state)
    # Where one output is infinitely steep, NaN for another one is zero times infinity in the chain rule.
    infinite = (estimate.behaviour == Behaviour.ROOT) | endless
    steep = infinite.any(dim=1, keepdim=True) & ~infinite
    return torch.where(steep & analytic.isnan(), int(State.UNDEFINED), state).to(torch.int8)


def prosecute(
    state: Tensor,
    analytic: Tensor,
    estimate: Estimate,
    largest: float,
    tolerance: Tolerance,
    *,
    f: VectorFunction,
    x: Tensor,
    directions: Tensor,
    steps: Tensor,
    epsilon: Tensor,
    analytic_spread: Callable[[], Tensor],
) -> Tensor:
    """Examine the accused entries more closely and return the states after the trial.

    A finer ladder acquits an entry (it becomes UNRESOLVED) when it is informative (its bar is at most half the
    discrepancy), the function moved in it, and its interval contains the analytic value, or contradicts the first
    ladder, whose bar is then not to be trusted. So does an analytic value that itself scatters by as much as the
    discrepancy under changes of the input of one rounding unit, or is too small to move an output that does not move.

    Arguments:
        analytic_spread: called once, only when something is accused; the scatter of each analytic entry, (C, m).
    """
    accused = state == State.WRONG
    if not bool(accused.any()):
        return state
    state = state.clone()
    discrepancy = (analytic - estimate.value).abs().nan_to_num(torch.inf)
    allowed = tolerance.at(analytic, estimate.value, largest)
    allowed = allowed + numeric_scatter(f, x, accused) * (SCATTER_SAFETY / steps).unsqueeze(1)
    ill_conditioned = accused & (discrepancy <= estimate.bar + allowed + 8 * analytic_spread())
    # An output that no step moves may have underflowed (gelu at -11): a slope that is lost in rounding is not refuted.
    size = directions.abs().amax(dim=1, keepdim=True)
    underflowed = accused & ~estimate.moved & (analytic.abs() <= epsilon * size)
    state[ill_conditioned | underflowed] = int(State.UNRESOLVED)

    columns = (state == State.WRONG).any(dim=1).nonzero().flatten()
    worst_first = columns[discrepancy[columns].amax(dim=1).argsort(descending=True)]
    tried = worst_first[:MAX_PROSECUTED]
    outputs = _worst_outputs(state == State.WRONG, discrepancy)
    wanted = (analytic, discrepancy, allowed, estimate.value, estimate.bar)
    a, r, allowed, value, bar = (t[tried][:, outputs] for t in wanted)
    guilty = state[tried][:, outputs] == State.WRONG
    acquitted = torch.zeros_like(guilty)
    for scale in PROSECUTION_SCALES:
        finer = differentiate(
            lambda flat: f(flat)[outputs], x, directions[tried], steps[tried] * scale, epsilon[outputs], scales=(1.0,)
        )
        inside = (a >= finer.lower - allowed) & (a <= finer.upper + allowed)
        contradicts = (finer.value - value).abs() > 2 * (finer.bar + bar) + allowed
        # Stairs: coarse steps see their slope, fine ones nothing, and a zero gradient is right almost everywhere.
        if scale >= FINEST_STAIRS:
            visible = FIRST_STEP * scale >= 100 * epsilon[outputs]  # not stairs of a low precision inside
            acquitted |= guilty & ~finer.moved & (a == 0) & visible
        acquitted |= guilty & (finer.bar <= r / 2) & finer.moved & (inside | contradicts)
    rows, places = acquitted.nonzero(as_tuple=True)
    state[tried[rows], outputs[places]] = int(State.UNRESOLVED)
    if bool(acquitted.any()):
        untried = torch.ones_like(state, dtype=torch.bool)
        untried[tried.unsqueeze(1), outputs.unsqueeze(0)] = False
        state[untried & (state == State.WRONG)] = int(State.UNRESOLVED)
    return state


def _worst_outputs(accused: Tensor, discrepancy: Tensor) -> Tensor:
    """Return the outputs that are tried: all that are accused, or the worst if they are many."""
    worst = torch.where(accused, discrepancy, -1.0).amax(dim=0)
    count = min(int((worst >= 0).sum()), MAX_PROSECUTED_OUTPUTS)
    return worst.argsort(descending=True)[:count]


def acquitted(analytic: float, numeric: float, bar: float, scatter: float, along: Callable[[float], Estimate]) -> bool:
    """Prosecute one accused number; see :func:`prosecute` for what acquits.

    Arguments:
        scatter: how far the analytic number moves when the inputs move by one rounding unit.
        along: the same derivative from a ladder whose first step is multiplied by its argument, which is at most 1.
    """
    discrepancy = abs(analytic - numeric)
    # Where the function is a staircase of many small jumps, the bar is of the size of the number itself.
    if discrepancy <= MARGIN * bar + 8 * scatter:
        return True
    # A finer ladder within one stair of a rule that cancels is sure of itself; the widest one sees the whole staircase.
    widest = along(1.0)
    ladders = {scale: along(scale) for scale in PROSECUTION_SCALES}
    # Half the gap between the slopes of the two sides is what a kink at the point makes of the slope of neither.
    if min(float(widest.apart), float(ladders[NEAREST_KINK].apart)) > discrepancy / 4:
        return True
    informative = int(widest.behaviour) == Behaviour.SMOOTH and float(widest.bar) <= discrepancy / 2
    if informative and float(widest.lower) - bar <= analytic <= float(widest.upper) + bar:
        return True
    for finer in ladders.values():
        if not (float(finer.bar) <= discrepancy / 2 and bool(finer.moved)):
            continue  # not informative
        inside = float(finer.lower) <= analytic <= float(finer.upper)
        contradicts = abs(float(finer.value) - numeric) > 2 * (float(finer.bar) + bar)
        if inside or contradicts:
            return True
    return False


def numeric_scatter(f: VectorFunction, x: Tensor, accused: Tensor) -> Tensor:
    """Return how far each output moves when the inputs move by one rounding unit: the noise that conditioning makes."""
    generator, here = torch.Generator().manual_seed(0), f(x)
    moves = [(f(one_unit_away(x, generator)) - here).abs().nan_to_num(0.0) for _ in range(3)]
    return torch.stack(moves).amax(dim=0) * accused


def one_unit_away(x: Tensor, generator: torch.Generator) -> Tensor:
    """Return ``x`` with each element moved up or down by one rounding unit."""
    signs = torch.randint(0, 2, x.shape, generator=generator).to(x.dtype) * 2 - 1
    return x * (1 + signs * torch.finfo(x.dtype).eps)


def largest_entry(*tensors: Tensor) -> float:
    """Return the largest finite magnitude among all entries, 0 when there is none."""
    sizes = [float(_finite(t).abs().max()) for t in tensors if t.numel()]
    return max(sizes, default=0.0)


def _finite(tensor: Tensor) -> Tensor:
    return tensor.nan_to_num(nan=0.0, posinf=0.0, neginf=0.0)
