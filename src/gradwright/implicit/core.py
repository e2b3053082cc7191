"""The function with a custom gradient behind every implicit solve."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor

from gradwright import torch_compat
from gradwright.authoring import trees
from gradwright.authoring.constructors import define
from gradwright.authoring.derive import smooth
from gradwright.authoring.seal import may_be_differentiated, seal
from gradwright.implicit.captured import value_of_constants
from gradwright.implicit.convergence import Record, directional, refuse_unconverged
from gradwright.implicit.equations import Equation, Given
from gradwright.implicit.options import SolveOptions
from gradwright.implicit.packing import Shapes, pack
from gradwright.implicit.systems import operator_solve

Backward: TypeAlias = Literal["exact", "neumann", "one-step"]
Solver: TypeAlias = Callable[["Task", Sequence[Tensor], Sequence[Tensor]], list[Tensor]]
"""Gets the tensors of the first argument and of the parameters, and returns those of the unknowns."""


class Task:
    """One call without its tensors. It is not taken apart: only dataclasses and containers are."""

    def __init__(self, start: trees.Structure, given: Given) -> None:
        self.start = start
        self.given = given
        self.record = Record()


@dataclass(frozen=True)
class Plan:
    """How a solve is done and differentiated."""

    equation: Equation
    solver: Solver
    options: SolveOptions
    tol_residual: float | None = None
    backward: Backward = "exact"
    steps: int = 0
    """Terms of the series behind the first, with ``"neumann"``."""


def make(plan: Plan) -> Callable[[Task, list[Tensor], list[Tensor]], list[Tensor]]:
    """Return the function of a call's tensors: those of the first argument, and all that the solution depends on.

    It returns the tensors of the unknowns, also those that the user does not see.
    """

    def solve(task: Task, start: list[Tensor], rest: list[Tensor]) -> list[Tensor]:
        with torch_compat.saved_tensor_hooks_off():
            return _forward(plan, task, start, rest)

    def solve_vjp(g: list[Tensor], task: Task, out: list[Tensor], start: list[Tensor], rest: list[Tensor]) -> Any:
        slopes = _differentiated(plan, task, [*g, *out, *rest], lambda: _pulled(plan, task, g, out, rest))
        return {"start": [torch.zeros_like(t) for t in start], "rest": slopes}

    def solve_jvp(t: dict[str, Any], task: Task, out: list[Tensor], rest: list[Tensor]) -> Any:
        tangents = t["rest"] or []
        if all(tangent is None for tangent in tangents):
            return [torch.zeros_like(part) for part in out]
        return _differentiated(plan, task, [*tangents, *out, *rest], lambda: _pushed(plan, task, tangents, out, rest))

    def solve_vmap(info: Any, in_dims: Any, task: Task, start: list[Tensor], rest: list[Tensor]) -> Any:
        rows = []
        for i in range(info.batch_size):
            part = Task(task.start, task.given)
            rows.append(decorated(part, _row(start, in_dims.start, i), _row(rest, in_dims.rest, i)))
            task.record.parts.append(part.record)
        task.record.structure = task.record.parts[0].structure
        task.record.aux = [part.aux for part in task.record.parts]
        return [torch.stack(parts) for parts in zip(*rows)], 0

    decorated: Any = define(solve, vjp=solve_vjp, jvp=solve_jvp, vmap=solve_vmap, name=plan.equation.name)
    return decorated  # type: ignore[no-any-return]


def _row(tensors: Sequence[Tensor], dims: Sequence[int | None] | None, i: int) -> list[Tensor]:
    return [t if dim is None else t.select(dim, i) for t, dim in zip(tensors, dims or [None] * len(tensors))]


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

        refuse_unconverged(equation.name, function, vector, value, plan.tol_residual)
        equation.refuse_other_points(record.structure, task.given, kept, fixed)

    record.check = check
    return z


def _differentiated(
    plan: Plan, task: Task, read: Sequence[Tensor | None], rule: Callable[[], Sequence[Tensor | None]]
) -> Sequence[Tensor | None]:
    """Run a rule, which reads these tensors, where the solution has a derivative."""
    with torch_compat.saved_tensor_hooks_off():
        task.record.require()
        if plan.backward == "exact":
            return rule()
        with torch.no_grad():
            found = rule()
    message = (
        f"{plan.equation.name}: its gradient was differentiated again, but with backward={plan.backward!r} it is a "
        "surrogate, whose derivative would not be the second derivative of anything; expected one differentiation; "
        "leave backward away (it is 'exact' then) for derivatives of any order."
    )
    return seal(message, found, read) if may_be_differentiated() else found


def _pulled(
    plan: Plan, task: Task, g: Sequence[Tensor], z: Sequence[Tensor], rest: Sequence[Tensor]
) -> list[Tensor | None]:
    """Return the gradient of each tensor in ``rest``."""
    w = _solved(plan, task, pack(g), z, rest, transposed=True)
    moving = [i for i, tensor in enumerate(rest) if smooth(tensor)]
    value, pull = torch.func.vjp(_of(plan, task, z, rest, moving), *(rest[i] for i in moving))[:2]
    slopes = dict(zip(moving, pull(-w.to(value.dtype))))
    return [slopes.get(i) for i in range(len(rest))]


def _pushed(
    plan: Plan, task: Task, tangents: Sequence[Tensor | None], z: Sequence[Tensor], rest: Sequence[Tensor]
) -> list[Tensor]:
    """Return the tangents of the unknowns."""
    moving = [i for i, tangent in enumerate(tangents) if tangent is not None]
    value, pull = torch.func.vjp(_of(plan, task, z, rest, moving), *(rest[i] for i in moving))[:2]
    push = torch.func.vjp(pull, torch.zeros_like(value))[1]
    moved = push(tuple(tangents[i] for i in moving))[0]
    return Shapes(plan.equation.name, z).unpack(_solved(plan, task, -moved, z, rest, transposed=False))


def _of(plan: Plan, task: Task, z: Sequence[Tensor], rest: Sequence[Tensor], moving: Sequence[int]) -> Any:
    """Return the equation as a function of some of its parameters."""

    def function(*moved: Tensor) -> Tensor:
        tensors = list(rest)
        for i, tensor in zip(moving, moved):
            tensors[i] = tensor
        return plan.equation.vector(task.record.structure, task.given, z, tensors)

    return function


def _solved(
    plan: Plan, task: Task, b: Tensor, z: Sequence[Tensor], rest: Sequence[Tensor], *, transposed: bool
) -> Tensor:
    """Return ``A^-1 b`` for the derivative ``A`` of the equation by the unknowns, or ``A^-T b``, or the surrogate."""
    structure, given, count = task.record.structure, task.given, len(z)
    shapes = Shapes(plan.equation.name, z)

    def derivative_transposed(w: Tensor, *tensors: Tensor) -> Tensor:
        def function(vector: Tensor) -> Tensor:
            return plan.equation.vector(structure, given, shapes.unpack(vector), tensors[count:])

        return torch.func.vjp(function, pack(tensors[:count]))[1](w)[0]  # type: ignore[no-any-return]

    # The operator is the transposed derivative, one product in reverse mode; forward mode asks for its transpose.
    if plan.backward == "exact":
        return operator_solve(
            derivative_transposed,
            b,
            (*z, *rest),
            transposed=not transposed,
            options=plan.options,
            name=plan.equation.name,
        )
    step = functools.partial(_step, plan, task, z, rest, transposed=transposed)
    w = b
    for _ in range(plan.steps):
        w = b + step(w)
    return w


def _step(
    plan: Plan, task: Task, z: Sequence[Tensor], rest: Sequence[Tensor], w: Tensor, *, transposed: bool
) -> Tensor:
    """Return the product of ``w`` with the derivative of the function of a fixed point, ``I - A``."""
    shapes = Shapes(plan.equation.name, z)

    def function(vector: Tensor) -> Tensor:
        return plan.equation.vector(task.record.structure, task.given, shapes.unpack(vector), rest)

    vector = pack(z)
    product = torch.func.vjp(function, vector)[1](w)[0] if transposed else directional(function, vector)(w)
    return w - product
