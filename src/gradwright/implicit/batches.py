"""A batch of solves at once: the same rules as for one, under ``vmap``, around a solver that takes batches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from gradwright import torch_compat
from gradwright.authoring.constructors import define
from gradwright.authoring.derive import smooth
from gradwright.implicit.convergence import refuse_changed, refuse_unconverged, relative_errors
from gradwright.implicit.packing import Shapes, pack
from gradwright.implicit.plan import BatchedSolver, Plan, Task
from gradwright.implicit.rules import differentiated, pulled, pushed
from gradwright.implicit.systems import alive


def batched(
    plan: Plan, solver: BatchedSolver
) -> Callable[[Task, list[int | None], list[Tensor], list[Tensor]], list[Tensor]]:
    """Return the function of a batch of calls: those of the first argument have it in front, others where ``dims`` say.

    For equations whose solver returns all unknowns.
    """

    def solve(task: Task, dims: Any, start: list[Tensor], rest: list[Tensor]) -> list[Tensor]:
        with torch_compat.saved_tensor_hooks_off():
            return _forward(plan, solver, task, dims, [t.detach() for t in start], [t.detach() for t in rest])

    def solve_vjp(g: list[Tensor], task: Task, dims: Any, out: list[Tensor], rest: list[Tensor]) -> Any:
        g, out, rest = alive(g), alive(out), alive(rest)
        moving = [i for i, tensor in enumerate(rest) if smooth(tensor)]

        def rule(g: list[Tensor], out: list[Tensor], rest: list[Tensor]) -> list[Tensor]:
            slopes = pulled(plan, task, g, out, rest)
            return [slopes[i] for i in moving]  # type: ignore[misc]  # those have one

        def run() -> list[Tensor | None]:
            found = torch.func.vmap(rule, in_dims=(0, 0, dims))(g, out, rest) if moving else []
            slopes: list[Tensor | None] = [None] * len(rest)
            for i, slope in zip(moving, found):
                slopes[i] = slope.sum(0) if dims[i] is None else slope.movedim(0, dims[i])
            return slopes

        slopes = differentiated(plan, task, [*g, *out, *rest], run)
        return {"start": task.zeros(out), "rest": slopes}

    def solve_jvp(t: dict[str, Any], task: Task, dims: Any, out: list[Tensor], rest: list[Tensor]) -> Any:
        out, rest = alive(out), alive(rest)
        moving = [i for i, tangent in enumerate(t["rest"] or ()) if tangent is not None]
        if not moving:
            return [torch.zeros_like(part) for part in out]
        tangents = [t["rest"][i] for i in moving]

        def rule(tangents: list[Tensor], out: list[Tensor], rest: list[Tensor]) -> list[Tensor]:
            by_place = dict(zip(moving, tangents))
            return pushed(plan, task, [by_place.get(i) for i in range(len(rest))], out, rest)

        def run() -> list[Tensor]:
            found: list[Tensor] = torch.func.vmap(rule, in_dims=([dims[i] for i in moving], 0, dims))(
                tangents, out, rest
            )
            return found

        return differentiated(plan, task, [*tangents, *out, *rest], run)

    def solve_vmap(info: Any, in_dims: Any, task: Task, dims: Any, start: list[Tensor], rest: list[Tensor]) -> Any:
        rows = []
        for i in range(info.batch_size):
            part = Task(task.start, task.given, task.starts)
            rows.append(decorated(part, dims, row(start, in_dims.start, i), row(rest, in_dims.rest, i)))
            task.record.parts.append(part.record)
        task.record.structure = task.start
        task.record.aux = [part.aux for part in task.record.parts]
        return [torch.stack(parts) for parts in zip(*rows)], 0

    decorated: Any = define(
        solve, vjp=solve_vjp, jvp=solve_jvp, vmap=solve_vmap, name=plan.equation.name, autocast="off"
    )
    return decorated  # type: ignore[no-any-return]


def in_front(tensor: Tensor, dim: int | None, size: int) -> Tensor:
    """Return a tensor with its batch in front."""
    return tensor.expand(size, *tensor.shape) if dim is None else tensor.movedim(dim, 0)


def row(tensors: Sequence[Tensor], dims: Sequence[int | None] | None, i: int) -> list[Tensor]:
    """Return the tensors of one sample."""
    return [t if dim is None else t.select(dim, i) for t, dim in zip(tensors, dims or [None] * len(tensors))]


def _forward(
    plan: Plan,
    solver: BatchedSolver,
    task: Task,
    dims: Sequence[int | None],
    start: Sequence[Tensor],
    rest: Sequence[Tensor],
) -> list[Tensor]:
    equation, record = plan.equation, task.record
    record.structure = task.start
    z, record.aux = solver(task, dims, start, rest)
    z = [t.detach().clone() for t in z]
    shapes = Shapes(equation.name, row(z, [0] * len(z), 0))

    def value(vector: Tensor, *rest: Tensor) -> Tensor:
        return equation.vector(task.start, task.given, shapes.unpack(vector), rest)

    def error(vector: Tensor, value_there: Tensor, *rest: Tensor) -> Tensor:
        return relative_errors(lambda vector: value(vector, *rest), vector, value_there)

    vectors = torch.func.vmap(lambda *tensors: pack(tensors))(*z)

    def all_values() -> Tensor:
        found: Tensor = torch.func.vmap(value, in_dims=(0, *dims))(vectors, *rest)
        return found

    values = all_values()

    def check() -> None:
        def measure(values: Tensor) -> Tensor:
            found: Tensor = torch.func.vmap(error, in_dims=(0, 0, *dims))(vectors, values, *rest)
            return found

        refuse_unconverged(equation.name, measure, vectors, values, plan.tol_residual)
        refuse_changed(equation.name, all_values() - values, measure, plan.tol_residual)

    record.check = check
    return z
