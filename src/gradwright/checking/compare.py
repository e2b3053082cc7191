"""Compare what should be the same thing twice: two gradients of one rule, two values of one forward, bytes over time.

No differences are involved, so the allowance is that of rounding: two paths to one number may add in another order.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gradwright.checking.audit import user_location
from gradwright.checking.case import Case
from gradwright.checking.tensors import bits, to_flat
from gradwright.errors import describe_exception

RELATIVE, OF_LARGEST = 1e-10, 1e-11
"""Allowances in float64, as a fraction of an entry and of the largest one; wider in lower precision."""


@dataclass(frozen=True)
class Mismatch:
    """The element where two vectors differ most, by input or output number."""

    number: int
    position: int
    """Position within the flattened real vector."""
    got: float
    want: float
    allowed: float

    @property
    def words(self) -> str:
        """The two values, for a message."""
        return f"{self.got:.6g} instead of {self.want:.6g}"


def gradient_mismatch(
    case: Case, got: Sequence[Tensor | None], want: Sequence[Tensor | None], among: Collection[int] | None = None
) -> Mismatch | None:
    """Return where two gradients (one tensor or None for each input; None is zero) differ by more than rounding."""
    chosen = range(len(case.inputs)) if among is None else among
    pairs = [
        (k, a, b) for k, (a, b) in enumerate(zip(case.flatten_inputs(got), case.flatten_inputs(want))) if k in chosen
    ]
    # Terms of the size of the cotangent, about one, may cancel to their rounding.
    granted = case.allowances.atol + case.allowances.nondet_tol
    return worst_mismatch(pairs, case.epsilon, 64 * case.epsilon + granted, case.allowances.rtol)


def value_mismatch(case: Case, got: Sequence[Tensor], want: Sequence[Tensor]) -> Mismatch | None:
    """Return where the tensors of two results, in the same order, differ by more than rounding."""
    pairs = [
        (number, to_flat(a).to(torch.float64), to_flat(b).to(torch.float64))
        for number, (a, b) in enumerate(zip(got, want))
    ]
    return worst_mismatch(pairs, case.epsilon)


def worst_mismatch(
    pairs: Sequence[tuple[int, Tensor, Tensor]], epsilon: float, floor: float = 0.0, granted: float = 0.0
) -> Mismatch | None:
    """Return the gravest difference beyond rounding; an element that is not finite where it should be counts.

    Where the wanted value is not finite itself there is nothing to compare with.

    Arguments:
        pairs: a number, what was got, and what was wanted.
        epsilon: the rounding unit.
        floor: allowed for every element.
        granted: allowed for every element, as a fraction of it.
    """
    relative, of_largest = max(RELATIVE, 256 * epsilon) + granted, max(OF_LARGEST, 64 * epsilon)
    found: tuple[float, Mismatch] | None = None
    for number, got, want in pairs:
        if got.shape != want.shape or not got.numel():
            continue
        sizes = torch.maximum(got.nan_to_num(0.0, 0.0, 0.0).abs(), want.nan_to_num(0.0, 0.0, 0.0).abs())
        allowed = relative * sizes + of_largest * float(sizes.max()) + floor + 1e-300
        excess = ((got - want).abs() / allowed).nan_to_num(torch.inf)
        excess = torch.where(want.isfinite(), excess, 0.0)
        position = int(excess.argmax())
        worst = float(excess[position])
        if worst > 1 and (found is None or worst > found[0]):
            values = float(got[position]), float(want[position]), float(allowed[position])
            found = worst, Mismatch(number, position, *values)
    return found[1] if found else None


def first_change(now: Tensor, before: Tensor) -> str | None:
    """Say which elements of a tensor no longer hold the bits they held before, or None."""
    if now.shape != before.shape or now.dtype != before.dtype:
        return f"its shape or dtype changed to {tuple(now.shape)}, {now.dtype}"
    if not now.numel() or torch.equal(bits(now), bits(before)):
        return None
    width = now.element_size()
    changed = (bits(now) != bits(before)).view(-1, width).any(dim=1)
    i = int(changed.int().argmax())
    old, new = before.detach().reshape(-1)[i].item(), now.detach().reshape(-1)[i].item()
    return f"{int(changed.sum())} of {now.numel()} elements, the first from {old:.6g} to {new:.6g}"


def snapshot(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Return copies of some tensors as they are now."""
    return [t.detach().clone() for t in tensors]


@dataclass(frozen=True)
class Attempt:
    """The gradients of one backward, or what it raised."""

    gradients: list[Tensor | None]
    error: Exception | None = None

    @property
    def complaint(self) -> str:
        """The error in words, with the line of the user's code."""
        assert self.error is not None
        place = user_location(self.error)
        return describe_exception(self.error) + (f" at {place}" if place else "")


def attempt(backward: Callable[[], Sequence[Tensor | None]]) -> Attempt:
    """Run a backward and keep its gradients or its error."""
    try:
        return Attempt(list(backward()))
    except Exception as error:
        return Attempt([], error)
