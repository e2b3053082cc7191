"""What a diagnosis reasons about: the entries of one input-output block, and what it concludes."""

from __future__ import annotations

import functools
from dataclasses import dataclass

from torch import Tensor

from gradwright.checking.case import Case
from gradwright.checking.jacobian import Comparison
from gradwright.checking.judge import State


@dataclass(frozen=True)
class Diagnosis:
    """A label for tests, what it means, and what to do."""

    label: str
    meaning: str
    remedy: str


@dataclass(frozen=True)
class Block:
    """The compared entries of one input-output block; tensors have the shape (C, M) of its pattern."""

    case: Case
    comparison: Comparison
    bar: Tensor
    """Error bars, with the allowance for rounding in the analytic values."""
    known: Tensor
    """Entries that are known well enough to reason about."""

    @property
    def input(self) -> int:
        """Number of the input."""
        return self.comparison.input

    @property
    def output(self) -> int:
        """Number of the differentiable output."""
        return self.comparison.output

    @property
    def analytic(self) -> Tensor:
        """What backward gives."""
        return self.comparison.analytic

    @property
    def numeric(self) -> Tensor:
        """What differences give."""
        return self.comparison.estimate.value

    @functools.cached_property
    def elements(self) -> Tensor:
        """The input element behind each entry."""
        return self.comparison.pattern.elements()

    @property
    def whole(self) -> bool:
        """True when every entry of the block was compared, so that its rows and columns can be moved about."""
        return not self.comparison.pattern.pairs

    @property
    def name(self) -> str:
        """The input's name in backquotes."""
        return f"`{self.case.inputs[self.input].name}`"

    def explains(self, prediction: Tensor) -> bool:
        """Tell whether the analytic values equal ``prediction`` (made from numeric ones) to within the bars."""
        if not bool(prediction[self.known].isfinite().all()):
            return False  # a quotient by zero; an infinite scale would allow for anything
        scale = float(prediction[self.known].abs().max()) if bool(self.known.any()) else 0.0
        allowed = 4 * self.bar + 1e-8 * prediction.abs() + 1e-11 * scale
        return bool(((self.analytic - prediction).abs() <= allowed)[self.known].all())


def block_of(case: Case, comparison: Comparison) -> Block:
    """Prepare a comparison for diagnosis."""
    state, bar = comparison.state, comparison.estimate.bar
    known = ((state == State.FINE) | (state == State.WRONG)) & bar.isfinite()
    return Block(case, comparison, bar + comparison.allowed, known)
