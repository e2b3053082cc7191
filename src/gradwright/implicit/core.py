"""The function with a custom gradient behind every implicit solve."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from gradwright import torch_compat
from gradwright.authoring.constructors import define
from gradwright.errors import GradwrightError
from gradwright.implicit.batches import batched, in_front, row
from gradwright.implicit.captured import value_of_constants
from gradwright.implicit.convergence import refuse_changed, refuse_unconverged, relative_errors
from gradwright.implicit.packing import Shapes, pack
from gradwright.implicit.plan import Plan, Task
from gradwright.implicit.rules import differentiated, pulled, pushed
from gradwright.implicit.systems import alive


def make(plan: Plan) -> Callable[[Task, list[Tensor], list[Tensor]], list[Tensor]]:
    """Return the function of a call's tensors: those of the first argument, and all that the solution depends on.

    It returns the tensors of the unknowns, also those that the user does not see.
    """

    def solve(task: Task, start: list[Tensor], rest: list[Tensor]) -> list[Tensor]:
        with torch_compat.saved_tensor_hooks_off():
            return _forward(plan, task, start, rest)

    def solve_vjp(g: list[Tensor], task: Task, out: list[Tensor], rest: list[Tensor]) -> Any:
        g, out, rest = alive(g), alive(out), alive(rest)
        slopes = differentiated(plan, task, [*g, *out, *rest], lambda: pulled(plan, task, g, out, rest))
        return {"start": task.zeros(out), "rest": slopes}

    def solve_jvp(t: dict[str, Any], task: Task, out: list[Tensor], rest: list[Tensor]) -> Any:
        out, rest = alive(out), alive(rest)
        tangents = t["rest"] or []
        if all(tangent is None for tangent in tangents):
            return [torch.zeros_like(part) for part in out]
        return differentiated(plan, task, [*tangents, *out, *rest], lambda: pushed(plan, task, tangents, out, rest))

    def solve_vmap(info: Any, in_dims: Any, task: Task, start: list[Tensor], rest: list[Tensor]) -> Any:
        if together is not None:
            size, dims = info.batch_size, list(in_dims.rest or ())
            moved = [in_front(t, dim, size) for t, dim in zip(start, in_dims.start)]
            try:
                return together(task, dims, moved, rest), 0
            except (RuntimeError, NotImplementedError) as error:
                if isinstance(error, GradwrightError) and not isinstance(error.__cause__, RuntimeError):
                    raise
                # What the user's function does cannot be done to batches; a loop asks for less.
        rows = []
        for i in range(info.batch_size):
            part = Task(task.start, task.given, task.starts)
            rows.append(decorated(part, row(start, in_dims.start, i), row(rest, in_dims.rest, i)))
            task.record.parts.append(part.record)
        task.record.structure = task.record.parts[0].structure
        task.record.aux = [part.aux for part in task.record.parts]
        return [torch.stack(parts) for parts in zip(*rows)], 0

    together = None if plan.batched is None else batched(plan, plan.batched)
    decorated: Any = define(
        solve, vjp=solve_vjp, jvp=solve_jvp, vmap=solve_vmap, name=plan.equation.name, autocast="off"
    )
    return decorated  # type: ignore[no-any-return]


def _forward(plan: Plan, task: Task, start: Sequence[Tensor], rest: Sequence[Tensor]) -> list[Tensor]:
    """Run the solver, and see that the equation is one."""
    equation, record = plan.equation, task.record
    fixed = [t.detach() for t in rest]
    found = plan.solver(task, [t.detach() for t in start], fixed)
    # So that neither a buffer of the solver, which it may use again, nor an argument is what is returned.
    found = [t.detach().clone() for t in found]
    z = equation.extended(record.structure, task.given, found, fixed)
    value = value_of_constants(equation, record.structure, task.given, z, fixed)
    shapes = Shapes(equation.name, z)
    # The tensors that are returned get a graph, which holds the record: so it must not hold them.
    kept, vector = [t.detach() for t in z], pack(z)

    def check() -> None:
        def function(vector: Tensor) -> Tensor:
            return equation.vector(record.structure, task.given, shapes.unpack(vector), fixed)

        measure = functools.partial(relative_errors, function, vector)
        refuse_unconverged(equation.name, measure, vector, value, plan.tol_residual)
        refuse_changed(equation.name, function(vector) - value, measure, plan.tol_residual)
        equation.refuse_other_points(record.structure, task.given, kept, fixed)

    record.check = check
    return z
