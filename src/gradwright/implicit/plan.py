"""How a solve is done and differentiated, and one call of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor

from gradwright.authoring import trees
from gradwright.implicit.convergence import Record
from gradwright.implicit.equations import Equation, Given
from gradwright.implicit.options import SolveOptions

Backward: TypeAlias = Literal["exact", "neumann", "one-step"]
Solver: TypeAlias = Callable[["Task", Sequence[Tensor], Sequence[Tensor]], list[Tensor]]
"""Gets the tensors of the first argument and of the parameters, and returns those of the unknowns."""

BatchedSolver: TypeAlias = Callable[
    ["Task", Sequence[int | None], Sequence[Tensor], Sequence[Tensor]], tuple[list[Tensor], list[Any]]
]
"""Gets where the batch is in each parameter, and tensors of which those of the first argument have it in front.

It returns those of the unknowns, with the batch in front, and what it returns besides for each sample.
"""


class Task:
    """One call without its tensors. It is not taken apart: only dataclasses and containers are."""

    def __init__(self, start: trees.Structure, given: Given, starts: int) -> None:
        self.start = start
        self.given = given
        self.starts = starts
        """How many tensors the first argument has."""
        self.record = Record()

    def zeros(self, out: Sequence[Tensor]) -> list[Tensor]:
        """Return the gradient of the first argument.

        It is as large as the solution: so the first argument itself needs not be kept, and may be written into.
        """
        return [torch.zeros_like(z) for z in out[: self.starts]]


@dataclass(frozen=True)
class Plan:
    """How a solve is done and differentiated."""

    equation: Equation
    solver: Solver
    batched: BatchedSolver | None
    """Solves a whole batch at once, where that is possible."""
    options: SolveOptions
    tol_residual: float | None = None
    backward: Backward = "exact"
    steps: int = 0
    """Terms of the series behind the first, with ``"neumann"``."""
