"""How gradwright's own solvers are called: on the tensors of one call, or on those of a batch at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from gradwright.implicit.batches import row
from gradwright.implicit.equations import Equation
from gradwright.implicit.packing import Shapes, pack
from gradwright.implicit.plan import Task
from gradwright.implicit.status import Status

VectorSolver = Callable[[Callable[[Tensor], Tensor], Tensor], tuple[Tensor, list[Status]]]
"""Solves ``function(z) = 0``, where both have a row for each of some problems, which do not touch each other."""


class Native:
    """A solver of gradwright's own on the tensors of a call; this one solves problems one by one."""

    together = False

    def one(self, task: Task, start: Sequence[Tensor], rest: Sequence[Tensor]) -> tuple[list[Tensor], Status]:
        """Solve one problem."""
        raise NotImplementedError

    def many(
        self, task: Task, dims: Sequence[int | None], start: Sequence[Tensor], rest: Sequence[Tensor]
    ) -> tuple[list[Tensor], list[Status]]:
        """Solve a batch of problems; the batch is in front in ``start``, and in ``rest`` where ``dims`` say."""
        raise NotImplementedError


class OnVectors(Native):
    """A solver of rows of vectors."""

    together = True

    def __init__(self, equation: Equation, solver: VectorSolver) -> None:
        self.equation, self.solver = equation, solver

    def one(self, task: Task, start: Sequence[Tensor], rest: Sequence[Tensor]) -> tuple[list[Tensor], Status]:
        """Solve one problem."""
        shapes = Shapes(self.equation.name, start)

        def function(vectors: Tensor) -> Tensor:
            return self.equation.vector(task.start, task.given, shapes.unpack(vectors[0]), rest).unsqueeze(0)

        found, (status,) = self.solver(function, pack(start).unsqueeze(0))
        return shapes.unpack(found[0]), status

    def many(
        self, task: Task, dims: Sequence[int | None], start: Sequence[Tensor], rest: Sequence[Tensor]
    ) -> tuple[list[Tensor], list[Status]]:
        """Solve a batch of problems."""
        shapes = Shapes(self.equation.name, row(start, [0] * len(start), 0))

        def value(vector: Tensor, *rest: Tensor) -> Tensor:
            return self.equation.vector(task.start, task.given, shapes.unpack(vector), rest)

        def function(vectors: Tensor) -> Tensor:
            values: Tensor = torch.func.vmap(value, in_dims=(0, *dims))(vectors, *rest)
            return values

        found, statuses = self.solver(function, torch.func.vmap(lambda *tensors: pack(tensors))(*start))
        return torch.func.vmap(lambda vector: shapes.unpack(vector))(found), statuses
