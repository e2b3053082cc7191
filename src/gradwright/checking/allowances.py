"""Allowances that a caller grants beyond the error bars, by the names that ``torch.autograd.gradcheck`` gives them.

They only ever widen what counts as right: a check that passes without them passes with them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from numbers import Real

import torch
from torch import Tensor

from gradwright.checking.differences import VectorFunction
from gradwright.errors import OptionError

INFORMATIVE = 0.5
"""The rounding in a plain difference may be at most this part of the discrepancy that it is to settle."""


@dataclass(frozen=True)
class Allowances:
    """What a caller allows beyond the error bars.

    Raises:
        OptionError: a value is not a number, is negative or not finite, or the step is zero.
    """

    eps: float | None = None
    """Step of a plain central difference whose agreement acquits an accused entry."""
    atol: float = 0.0
    """Error of each derivative that is allowed whatever its size."""
    rtol: float = 0.0
    """Error of each derivative that is allowed, as a fraction of it."""
    nondet_tol: float = 0.0
    """How far two backwards (or two forwards) on the same inputs may differ."""

    def __post_init__(self) -> None:
        for item in fields(self):
            value = getattr(self, item.name)
            if value is None and item.name == "eps":
                continue
            smallest = "greater than 0" if item.name == "eps" else "not negative"
            is_number = isinstance(value, Real) and not isinstance(value, bool)
            if not is_number or not math.isfinite(value) or value < 0 or (item.name == "eps" and value == 0):
                raise OptionError(f"{item.name}: got {value!r}; expected a finite number that is {smallest}.")

    def with_accuracy(self, rtol: float, atol: float) -> Allowances:
        """Return allowances that are no smaller than these."""
        return replace(self, rtol=max(self.rtol, rtol), atol=max(self.atol, atol))

    def granted(self) -> dict[str, float]:
        """Return what is allowed, by name; empty when nothing is."""
        return {item.name: float(value) for item in fields(self) if (value := getattr(self, item.name))}

    def of(self, numeric: Tensor) -> Tensor:
        """Return the allowance for each of some derivatives."""
        return self.atol + self.rtol * numeric.abs().nan_to_num(0.0, 0.0, 0.0)

    def of_sum(self, terms: Tensor, weights: Tensor) -> float:
        """Return the allowance for a weighted sum of derivatives; ``terms`` are the products with the weights."""
        weight = float(weights.abs().sum()) if self.atol else 0.0
        return self.atol * weight + self.rtol * float(terms.abs().nan_to_num(0.0, 0.0, 0.0).sum())

    def agrees_at_step(
        self, analytic: Tensor, numeric: Tensor, f: VectorFunction, x: Tensor, direction: Tensor, epsilon: Tensor
    ) -> Tensor:
        """Tell which analytic values agree with the plain central difference of step ``eps`` along a direction.

        They must agree to within the other allowances and the rounding in the difference itself, which must be small
        enough for the agreement to mean something.
        """
        if self.eps is None:
            return torch.zeros_like(analytic, dtype=torch.bool)
        step = (self.eps * direction).to(x.dtype)
        above, below = f(x + step), f(x - step)
        plain = (above - below) / (2 * self.eps)
        rounding = epsilon * above.abs().maximum(below.abs()) / self.eps
        informative = rounding <= INFORMATIVE * (analytic - numeric).abs()
        return informative & ((analytic - plain).abs() <= rounding + self.of(plain))

    def describe(self) -> str | None:
        """Say what is allowed, in a sentence for the notes of a report; None when nothing is."""
        said = []
        if self.atol or self.rtol:
            said.append(f"derivatives may be off by atol={self.atol:g} and rtol={self.rtol:g} beyond their error bars")
        if self.eps is not None:
            said.append(f"an entry that agrees with the plain difference of step eps={self.eps:g} is not accused")
        if self.nondet_tol:
            said.append(f"two runs may differ by nondet_tol={self.nondet_tol:g}")
        return f"allowances were widened: {'; '.join(said)}" if said else None


NONE = Allowances()
"""Nothing beyond the error bars."""
