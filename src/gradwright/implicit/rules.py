"""The derivatives of a solution, as operations of PyTorch on it and its parameters, so that they have derivatives."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from gradwright import torch_compat
from gradwright.authoring.derive import smooth
from gradwright.authoring.seal import may_be_differentiated, seal
from gradwright.implicit.convergence import directional
from gradwright.implicit.folds import look_for_fold
from gradwright.implicit.packing import Shapes, pack
from gradwright.implicit.plan import Plan, Task
from gradwright.implicit.systems import operator_solve


def differentiated(
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


def pulled(
    plan: Plan, task: Task, g: Sequence[Tensor], z: Sequence[Tensor], rest: Sequence[Tensor]
) -> list[Tensor | None]:
    """Return the gradient of each tensor in ``rest``."""
    w = _solved(plan, task, pack(g), z, rest, transposed=True)
    moving = [i for i, tensor in enumerate(rest) if smooth(tensor)]
    value, pull = torch.func.vjp(_of(plan, task, z, rest, moving), *(rest[i] for i in moving))[:2]
    slopes = dict(zip(moving, pull(-w.to(value.dtype))))
    return [slopes.get(i) for i in range(len(rest))]


def pushed(
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

    def look(w: Tensor, solve: Callable[[Tensor, bool], Tensor]) -> None:
        def function(vector: Tensor) -> Tensor:
            return plan.equation.vector(structure, given, shapes.unpack(vector), fixed)

        fixed = [t.detach() for t in rest]
        look_for_fold(
            plan.equation.name,
            function,
            pack(z),
            w,
            lambda b, transposed: solve(b, not transposed),
            transposed=transposed,
            options=plan.options,
        )

    # The operator is the transposed derivative, one product in reverse mode; forward mode asks for its transpose.
    if plan.backward == "exact":
        return operator_solve(
            derivative_transposed,
            b,
            (*z, *rest),
            transposed=not transposed,
            options=plan.options,
            name=plan.equation.name,
            look=look,
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
